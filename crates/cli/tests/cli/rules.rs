//! Rules, and components kept in the store, over both metadata engines.

use std::path::Path;
use std::process::Command;

use crate::run::{Said, fed};
use crate::site::Site;

#[test]
fn a_rule_makes_one_job_of_each_event_however_many_agents_there_are() {
    for site in Site::all() {
        for name in ["a", "b"] {
            site.place.write(name, format!("{name} is old\n"));
            site.done(&["put", name, "--to", &format!("in/{name}")]);
        }
        let rule = |name: &str, on: &str, out: &str| {
            site.done(&[
                "rule",
                "add",
                name,
                "--on",
                on,
                "--in",
                "in/*",
                "--out",
                out,
                "--sandbox",
                "off",
                "--",
                "tr",
                "a-z",
                "A-Z",
            ])
        };
        assert!(rule("closed", "close", "up/{name}").err.contains("no agent is running"));
        rule("created", "create", "made/{name}");
        let mut agents = [site.agent("one", "1"), site.agent("two", "1")];
        let put = |name: &str, text: &str| {
            site.place.write(name, text);
            site.done(&["put", name, "--to", &format!("in/{name}")]);
        };
        let made = |rule: &str| {
            let log = site.done(&["rule", "log", rule, "--limit", "100", "--json"]).json();
            log["jobs"].as_array().unwrap().iter().filter(|job| job["state"] == "done").count()
        };
        put("b", "b is new\n");
        put("c", "c has come\n");
        site.until(|| made("closed") == 2 && made("created") == 1);
        assert_eq!(
            site.done(&["cat", "up/b", "up/c", "made/c"]).text(),
            "B IS NEW\nC HAS COME\nC HAS COME\n"
        );
        assert!(site.done(&["ls", "up"]).text().lines().count() == 2, "what was there does not count");
        // The same content again makes no job; files that come during a pause wait.
        put("c", "c has come\n");
        site.done(&["rule", "pause", "closed"]);
        put("d", "d too\n");
        site.until(|| made("created") == 2);
        assert_eq!(made("closed"), 2);
        assert!(site.done(&["rule", "list"]).text().contains("(paused)"));
        site.done(&["rule", "resume", "closed"]);
        site.until(|| made("closed") == 3);
        // One agent is killed, and the other goes on. No file is processed again.
        agents[0].kill().unwrap();
        agents[0].wait().unwrap();
        put("e", "last\n");
        site.until(|| made("closed") == 4 && made("created") == 3);
        site.done(&["rule", "remove", "created"]);
        put("f", "more\n");
        site.until(|| made("closed") == 5);
        let jobs = site.done(&["jobs", "--limit", "100", "--json"]).json();
        assert_eq!(jobs["jobs"].as_array().unwrap().len(), 5 + 3, "each event once");
        site.done(&["node", "drain", "two", "--wait"]);
        assert!(agents[1].wait().unwrap().success());
        site.done(&["check"]);
    }
}

#[test]
fn rules_that_make_no_sense_or_set_themselves_off_are_refused() {
    let site = Site::sqlite();
    let refused = |args: &[&str], says: &str| {
        let said = Said::from(site.command(args).output().unwrap());
        assert!(said.code != 0 && said.err.contains(says), "{args:?}: {}", said.err);
    };
    let add = ["rule", "add", "r", "--sandbox", "off", "--in", "in/**"];
    refused(&[&add[..], &["--on", "read", "--existing", "--out", "x", "--", "cat"]].concat(), "--existing");
    refused(
        &[&add[..], &["--on", "close", "--pattern", "#W->1W", "--out", "x", "--", "cat"]].concat(),
        "--when",
    );
    // Rules for files that belong together.
    let when = ["rule", "add", "r", "--sandbox", "off", "--when", "in/*/_DONE"];
    let joins = ["--pattern", "#W->1W"];
    for (more, says) in [
        ("--on close --in {dir}/p* --in {dir}/x* --out {dir}/_DONE", "set it off"),
        ("--on close --in {dir}/* --out {dir}/all", "read by the same rule"),
        ("--on close --in {dir}/{split} --out all", "no meaning here"),
        ("--on close --in {dir}/{nothing} --out all", "not known"),
        ("--on create --in {dir}/p* --out all", "--on close"),
    ] {
        let more: Vec<&str> = more.split(' ').collect();
        refused(&[&when[..], &joins, &more, &["--", "cat"]].concat(), says);
    }
    refused(
        &[&when[..], &["--on", "close", "--in", "{dir}/p*", "--out", "all", "--", "cat"]].concat(),
        "#W->1W",
    );
    let two =
        ["rule", "add", "r", "--on", "close", "--in", "a/*", "--in", "b/*", "--out", "c/{name}", "--", "cat"];
    refused(&two, "--in once");
    refused(&[&add[..], &["--on", "close", "--", "cat"]].concat(), "--out");
    refused(&["rule", "remove", "r"], "no rule `r`");
    for (input, output) in [("in/*", "in/{stem}.up"), ("in/**", "in/deep/"), ("{in,out}/?", "in/b")] {
        let add = ["rule", "add", "r", "--sandbox", "off", "--in", input, "--on", "close"];
        let pattern = ["--pattern", "1W->#W", "--out", output, "--", "cat"];
        refused(&[&add[..], &pattern].concat(), "set off the same rule again: say with --out where");
    }
    site.done(&[&add[..], &["--on", "read", "--out", "in/{stem}.up", "--", "cat"]].concat());
    site.done(&["rule", "remove", "r"]);
    // Only some files trigger this rule.
    let some = ["rule", "add", "r", "--sandbox", "off", "--in", "in/*.*", "--on", "close"];
    site.done(&[&some[..], &["--out", "in/{stem}", "--", "cat"]].concat());
    refused(&[&add[..], &["--on", "close", "--out", "x", "--", "cat"]].concat(), "already");
    site.place.write("a", "text\n");
    site.done(&["put", "a", "--to", "in/a.b.c"]);
    site.done(&["node", "--allow-root", "--until-idle"]);
    let log = site.done(&["rule", "log", "r"]).text();
    assert!(log.contains("in/a.b.c") && log.contains("set off the same rule"), "{log}");
    assert_eq!(site.done(&["jobs"]).text(), "");
    // The failure is logged once. The rule tries again when there is a new file.
    site.done(&["node", "--allow-root", "--until-idle"]);
    assert_eq!(site.done(&["rule", "log", "r"]).text(), log);
}

#[test]
fn a_component_runs_as_it_was_when_the_job_was_made_wherever_its_agent_is() {
    for site in Site::all() {
        site.put_numbers(100);
        site.done(&["component", "add", "--library"]);
        let first = site.place.write("answer", "#!/bin/sh\necho first $AS_INPUT $1\n");
        site.done(&["component", "add", first.to_str().unwrap()]);
        let listed = site.done(&["component", "list", "--json"]).json();
        let components = listed["components"].as_array().unwrap();
        let names: Vec<&str> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["answer", "archive", "index", "scale", "statistics"]);
        let hash = components[0]["hash"].as_str().unwrap().to_string();
        // An agent that shares neither directory nor cache with the submitter.
        let mut agent = site.command_at("far", &["node", "--allow-root", "--name", "far"]);
        agent.current_dir("/");
        let mut agent = Site::spawn(agent);
        site.until(|| site.done(&["node", "list"]).text().contains("far"));
        let run = |out: &str, words: &[&str]| {
            let args = [
                "run",
                "--detach",
                "--sandbox",
                "off",
                "--in",
                "numbers",
                "--out",
                out,
                "--records",
                "lines",
                "--splits",
                "1",
                "--",
            ];
            site.done(&[&args[..], words].concat()).text().trim().to_string()
        };
        let job = run("out", &["@answer", "x"]);
        site.done(&["job", "wait", &job, "--timeout", "60"]);
        assert_eq!(site.done(&["cat", "out"]).text(), "first numbers x\n");
        site.place.write("answer", "#!/bin/sh\necho second\n");
        site.done(&["component", "add", "answer"]);
        for (word, says) in
            [("@answer".to_string(), "second\n"), (format!("@answer:{}", &hash[..12]), "first numbers\n")]
        {
            let job = run("out", &[&word]);
            site.done(&["job", "wait", &job, "--timeout", "60"]);
            assert_eq!(site.done(&["cat", "out"]).text(), says, "{word}");
        }
        let job = run("sums", &["@statistics"]);
        site.done(&["job", "wait", &job, "--timeout", "60"]);
        let sums = "count 100\nsum 4950\nleast 0\ngreatest 99\nmean 49.5\ndeviation 29.0115\n";
        assert_eq!(site.done(&["cat", "sums"]).text(), sums);
        for (wrong, says) in [
            ("@nothing", "no component"),
            ("@answer:00000000000000", "nor an earlier"),
            ("@answer:12", "12 digits"),
        ] {
            let said = Said::from(
                site.command(&["run", "--in", "numbers", "--out", "x", "--", wrong]).output().unwrap(),
            );
            assert!(said.code != 0 && said.err.contains(says), "{wrong}: {}", said.err);
        }
        site.done(&["node", "drain", "far", "--wait"]);
        assert!(agent.wait().unwrap().success());
    }
}

#[test]
fn the_components_of_the_library_do_what_they_say() {
    let site = Site::sqlite();
    site.done(&["component", "add", "--library"]);
    site.place.write("n", "1 2\n3.5 4\n-1 0\n");
    site.done(&["put", "n", "--to", "d/n"]);
    site.place.write("m", "x\n");
    site.done(&["put", "m", "--to", "d/e/m"]);
    let run = |args: &[&str]| drop(site.done(&[&["run", "--sandbox", "off"], args].concat()));
    run(&["--in", "d/n", "--out", "scaled", "--records", "lines", "--splits", "3", "--", "@scale", "2"]);
    assert_eq!(site.done(&["cat", "scaled"]).text(), "2 4\n7 8\n-2 0\n");
    run(&["--in", "d/n", "--out", "index", "--records", "lines", "--splits", "3", "--", "@index"]);
    assert_eq!(site.done(&["cat", "index"]).text(), "1\t0\n3.5\t4\n-1\t10\n");
    // A component can process a stream, too.
    let said = fed(
        site.command(&[
            "run",
            "--sandbox",
            "off",
            "--pattern",
            "1W->1W",
            "--in",
            "-",
            "--out",
            "streamed",
            "--",
            "@scale",
            "3",
        ]),
        b"5\n",
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "streamed"]).text(), "15\n");
    if !Path::new("/dev/fuse").exists() {
        println!("the archive was not made: there is no /dev/fuse");
        return;
    }
    for out in ["one.tar", "two.tar"] {
        run(&["--pattern", "#W->1W", "--in", "d/**", "--out", out, "--", "@archive", "{in}"]);
    }
    let archive = site.done(&["cat", "one.tar"]).out;
    assert_eq!(archive, site.done(&["cat", "two.tar"]).out, "the same inputs, the same bytes");
    std::fs::write(site.place.path("one.tar"), archive).unwrap();
    let names = Command::new("tar").arg("tf").arg(site.place.path("one.tar")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&names.stdout), "d/e/m\nd/n\n");
}

#[test]
fn a_rule_of_another_version_hides_no_other_from_who_lists_them() {
    let site = Site::sqlite();
    site.done(&["rule", "add", "known", "--on", "close", "--in", "in/*", "--pattern", "1R->0", "--", "true"]);
    let store = outrigger_store::Store::open(&site.place.path("shared"), false).unwrap();
    store.meta.records().set_record("rule", "later", Some("{\"on\": \"Full moon\"}")).unwrap();
    drop(store);
    let listed = Said::from(site.command(&["rule", "list"]).output().unwrap());
    assert_eq!(listed.code, 4, "{}", listed.err);
    assert!(listed.text().starts_with("known ") && listed.text().lines().count() == 1, "{}", listed.text());
    assert!(listed.err.contains("`later`") && listed.err.contains("another version"), "{}", listed.err);
    let json = Said::from(site.command(&["rule", "list", "--json"]).output().unwrap()).json();
    assert_eq!(json["rules"].as_array().unwrap().len(), 1);
}
