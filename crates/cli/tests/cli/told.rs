//! Messages of `run` and its like about jobs that fail, stop, or are run by others: the truth, and
//! what to do next.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::run::{Agents, Place, Said};
use crate::site::Site;

fn interrupt(child: &Child) {
    let id = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
}

/// Starts a command that will be interrupted, with its output in pipes.
fn begin(mut command: std::process::Command, stdin: Stdio) -> Child {
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn state(site: &Site, job: &str) -> String {
    site.done(&["job", "show", job, "--json"]).json()["state"].as_str().unwrap().to_string()
}

/// A program that records its start, and goes on when a file `go` exists.
fn waits(place: &Place) -> String {
    let (ran, go) = (place.path("ran"), place.path("go"));
    format!("echo $AS_SPLIT >> {}; while [ ! -e {} ]; do sleep 0.02; done; cat", ran.display(), go.display())
}

fn begun(place: &Place) -> usize {
    std::fs::read_to_string(place.path("ran")).map_or(0, |text| text.lines().count())
}

#[test]
fn a_job_that_cannot_be_run_here_does_not_wait_for_somebody_else() {
    let site = Site::sqlite();
    site.put_numbers(10);
    let args = ["run", "--sandbox", "off", "--in", "numbers", "--out", "out"];
    let broken = |more: &[&str]| {
        // Without this directory nothing can be prepared.
        let mut command = site.command(&[&args[..], more, &["--", "cat"]].concat());
        Said::from(command.env("TMPDIR", site.place.path("nowhere")).output().unwrap())
    };
    let said = broken(&[]);
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("job 1 failed, and none of its output is visible: making a directory")
            && said.err.contains("`outrigger job retry 1` tries again"),
        "{}",
        said.err
    );
    assert_eq!(state(&site, "1"), "failed");
    // A background process has nobody to tell.
    let said = broken(&["--detach"]);
    let job = said.text().trim().to_string();
    let said = Said::from(site.command(&["job", "wait", &job, "--timeout", "60"]).output().unwrap());
    assert!(said.code == 1 && said.err.contains("failed: making a directory"), "{}", said.err);
    site.done(&["node", "--allow-root", "--until-idle"]);
    assert!(site.command(&["cat", "out"]).output().unwrap().status.code() != Some(0));
    site.done(&["job", "retry", "--allow-root", "1"]);
    assert_eq!(state(&site, "1"), "done");
    let mut retry = site.command(&["job", "retry", "--allow-root", &job]);
    let said = Said::from(retry.env("TMPDIR", site.place.path("nowhere")).output().unwrap());
    assert!(said.code == 1 && said.err.contains(&format!("job {job} failed")), "{}", said.err);
    assert_eq!(state(&site, &job), "failed");
}

#[test]
fn who_interrupts_a_job_is_told_who_goes_on_with_it() {
    let site = Site::sqlite();
    site.put_numbers(10);
    let script = waits(&site.place);
    let args = ["run", "--sandbox", "off", "--in", "numbers", "--out", "out", "--", "sh", "-c", &script];
    let alone = begin(site.command(&args), Stdio::null());
    site.until(|| begun(&site.place) == 1);
    interrupt(&alone);
    let said = Said::from(alone.wait_with_output().unwrap());
    assert_eq!(said.code, 130);
    assert!(
        said.err.contains(
            "no output of job 1 is visible; `outrigger job retry 1` or the next agent continues it"
        ) && said.err.contains("`outrigger job cancel 1`"),
        "{}",
        said.err
    );
    site.done(&["job", "cancel", "1"]);
    let mut agents = Agents::default();
    let helped = begin(site.command(&args), Stdio::null());
    site.until(|| begun(&site.place) == 2);
    agents.0.push(site.agent("one", "2"));
    interrupt(&helped);
    let said = Said::from(helped.wait_with_output().unwrap());
    assert!(said.err.contains("an agent continues job 2; `outrigger job cancel 2` stops it"), "{}", said.err);
    site.place.write("go", "");
    site.done(&["job", "wait", "2", "--timeout", "60"]);
}

#[test]
fn what_agents_did_of_a_job_is_told_with_the_rest() {
    const FILES: usize = 14;
    for site in Site::all() {
        for file in 0..FILES {
            site.place.write(format!("in/{file}"), "1234\n");
        }
        site.done(&["put", "in"]);
        let mut agents = Agents::default();
        agents.0.push(site.agent("one", "3"));
        for (json, share) in [(true, ""), (false, "by this process")] {
            for name in ["ran", "go"] {
                let _ = std::fs::remove_file(site.place.path(name));
            }
            let script = waits(&site.place);
            let mut args =
                vec!["run", "--sandbox", "off", "--in", "in/*", "--out", "out/{name}", "--slots", "1"];
            args.extend(json.then_some("--json"));
            args.extend(["--", "sh", "-c", &script]);
            let run = begin(site.command(&args), Stdio::null());
            // The agent runs some of them.
            site.until(|| begun(&site.place) >= 3);
            site.place.write("go", "");
            let said = Said::from(run.wait_with_output().unwrap());
            assert_eq!(said.code, 0, "{}", said.err);
            if !json {
                assert!(said.text().contains("14 splits, 70 B read in "), "{}", said.text());
                assert!(
                    said.text().contains(": 14 files, 70 B; of it ") && said.text().contains(share),
                    "{}",
                    said.text()
                );
                continue;
            }
            let json = said.json();
            assert_eq!(json["files"].as_array().unwrap().len(), FILES, "{json}");
            let [made, read, written] =
                ["files_made", "bytes_read", "bytes_written"].map(|of| json[of].as_u64());
            assert_eq!((made, read, written), (Some(14), Some(70), Some(70)), "{json}");
            assert!(json["splits_here"].as_u64().unwrap() < 14 && json["why"] == "14 files", "{json}");
        }
        let show = site.done(&["job", "show", "1", "--json"]).json();
        assert_eq!((show["files_made"].as_u64(), show["bytes_made"].as_u64()), (Some(14), Some(70)));
        for input in show["inputs"].as_array().unwrap() {
            assert_eq!(input["bytes"], 5, "{show}");
        }
    }
}

#[test]
fn a_job_whose_process_was_killed_is_not_taken_for_one_that_runs() {
    for site in Site::all() {
        site.put_numbers(10);
        let script = waits(&site.place);
        let args = ["run", "--sandbox", "off", "--in", "numbers", "--out", "out", "--", "sh", "-c", &script];
        let mut run = Site::spawn(site.command(&args));
        site.until(|| begun(&site.place) == 1);
        let shown = || site.done(&["job", "show", "1"]).text();
        assert!(!shown().contains("has ended"), "{}", shown());
        assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"][0]["is_left"], false);
        run.kill().unwrap();
        run.wait().unwrap();
        let words = "its process has ended; run `outrigger job retry 1` to continue it";
        assert!(shown().contains(&format!("running ({words})")), "{}", shown());
        assert!(site.done(&["jobs"]).text().contains(words));
        assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"][0]["is_left"], true);
        let said = Said::from(site.command(&["job", "wait", "1", "--timeout", "60"]).output().unwrap());
        assert!(said.code == 1 && said.err.contains(words), "{}", said.err);
        site.place.write("go", "");
        site.done(&["job", "retry", "--allow-root", "1"]);
        site.done(&["job", "wait", "1"]);
        assert!(shown().starts_with("job 1: done: 1 file\n"), "{}", shown());
    }
}

#[test]
fn a_stream_is_one_split_and_one_attempt_and_cannot_be_gone_on_with() {
    let site = Site::sqlite();
    let run = |more: &[&str], input: &[u8]| {
        let args = [&["run", "--sandbox", "off", "--in", "-", "--to", "raw"][..], more].concat();
        crate::run::fed(site.command(&args), input)
    };
    let place = ["sh", "-c", "cat > /dev/null; echo $AS_ATTEMPT $AS_SPLITS"];
    let said =
        run(&[&["--pattern", "1W->2W", "--out", "place", "--json", "--"], &place[..]].concat(), b"text\n");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!((said.json()["splits"].as_u64(), said.json()["bytes_read"].as_u64()), (Some(1), Some(5)));
    assert_eq!(site.done(&["cat", "place", "raw"]).text(), "1 1\ntext\n");
    let seen = site.place.path("seen");
    let script = format!("cat > /dev/null; echo $AS_ATTEMPT $AS_SPLITS > {}", seen.display());
    let said = run(&["--pattern", "1W->0", "--", "sh", "-c", &script], b"text\n");
    assert!(said.text().starts_with("job 2: 1 split, 5 B read"), "{}", said.text());
    assert_eq!(std::fs::read_to_string(seen).unwrap(), "1 1\n");

    let args = ["run", "--sandbox", "off", "--in", "-", "--to", "raw", "--pattern", "1W->0", "--"];
    let script = format!("read line; echo $line > {}; cat", site.place.path("ran").display());
    let mut child = begin(site.command(&[&args[..], &["sh", "-c", &script]].concat()), Stdio::piped());
    let mut writer = child.stdin.take().unwrap();
    writer.write_all(b"first\n").unwrap();
    site.until(|| begun(&site.place) == 1);
    interrupt(&child);
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!(said.code, 130);
    assert!(
        said.err.contains("no output of job 3 is visible, and it cannot be retried")
            && !said.err.contains("retry"),
        "{}",
        said.err
    );
    assert_eq!(state(&site, "3"), "cancelled");
}

#[test]
fn what_makes_no_files_says_nothing_of_files_and_nothing_is_said_to_be_nothing() {
    let site = Site::sqlite();
    for (args, says) in [(&["jobs"][..], "no jobs"), (&["node", "list"], "no agents")] {
        let said = site.done(args);
        assert!(said.text().is_empty() && said.err.contains(says), "{}", said.err);
        assert_eq!(site.done(&[args, &["--quiet"]].concat()).err, "");
        assert_eq!(site.done(&[args, &["--json"]].concat()).err, "");
    }
    site.put_numbers(10);
    let args = ["run", "--sandbox", "off", "--pattern", "1R->0", "--in", "numbers", "--", "wc"];
    let said = site.done(&args).text();
    assert!(said.starts_with("job 1: 1 split, 20 B read in ") && !said.contains("file"), "{said}");
}

/// True if a file below `dir` contains these bytes.
fn is_written_below(dir: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
        true => is_written_below(&path, bytes),
        false => std::fs::read(path).unwrap().windows(bytes.len()).any(|some| some == bytes),
    })
}

#[test]
fn a_variable_without_a_value_has_that_of_who_runs_the_program_and_is_stored_nowhere() {
    const SECRET: &str = "correct-horse-battery";
    let site = Site::sqlite();
    site.put_numbers(1);
    let args = ["--sandbox", "off", "--in", "numbers", "--env", "PGPASSWORD", "--env", "PLAIN=x"];
    let rest = ["--", "sh", "-c", "cat > /dev/null; echo $PGPASSWORD $PLAIN | tr a-z A-Z"];
    let run = |head: &[&str], secret: Option<&str>| {
        let mut command = site.command(&[head, &args[..], &rest].concat());
        Said::from(
            command
                .env_remove("PGPASSWORD")
                .envs(secret.map(|secret| ("PGPASSWORD", secret)))
                .output()
                .unwrap(),
        )
    };
    let said = run(&["run", "--out", "out"], None);
    assert!(said.code == 1 && said.err.contains("the variable PGPASSWORD"), "{}", said.err);
    assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(), 0, "no job is made");
    let said = run(&["run", "--out", "out"], Some(SECRET));
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "out"]).text(), "CORRECT-HORSE-BATTERY X\n");
    // By an agent that lacks the secret, then by one that has it.
    let mut agents = Agents::default();
    let mut agent = |name: &str, secret: Option<&str>| {
        let mut command = site.command(&["node", "--allow-root", "--name", name]);
        command.env_remove("PGPASSWORD").envs(secret.map(|secret| ("PGPASSWORD", secret)));
        agents.start(command);
        site.until(|| site.done(&["node", "list"]).text().contains(name));
    };
    agent("lacks", None);
    let job = run(&["run", "--detach", "--out", "out"], None).text().trim().to_string();
    let said = Said::from(site.command(&["job", "wait", &job, "--timeout", "60"]).output().unwrap());
    assert!(
        said.code == 1
            && said.err.contains("the variable PGPASSWORD")
            && said.err.contains("start the agent with it"),
        "{}",
        said.err
    );
    site.done(&["node", "drain", "lacks", "--wait"]);
    agent("has", Some("by-rule"));
    let said = run(&["rule", "add", "r", "--on", "close", "--existing", "--out", "by"], None);
    assert_eq!(said.code, 0, "{}", said.err);
    site.until(|| site.command(&["cat", "by"]).output().unwrap().stdout == b"BY-RULE X\n");
    assert!(site.done(&["job", "show", &job]).text().contains("  inherits  PGPASSWORD\n"));
    assert!(!is_written_below(&site.place.path("shared"), SECRET.as_bytes()));
    // The same in a copy that is not encrypted, where a search would find it.
    site.done(&["copy", "shared", "plain", "--no-encryption"]);
    assert!(!is_written_below(&site.place.path("plain"), SECRET.as_bytes()));
    assert!(
        is_written_below(&site.place.path("plain"), b"PGPASSWORD"),
        "it was looked for where it would be"
    );
    let rules = site.done(&["rule", "list", "--json"]).json();
    assert_eq!(rules["rules"][0]["outputs"][0]["template"], "by");
    assert!(site.done(&["rule", "list"]).text().contains("  to by"));
}

#[test]
fn who_interrupts_a_job_that_is_being_made_leaves_no_plug_in_behind() {
    let site = Site::sqlite();
    site.put_numbers(1000);
    let ran = site.place.path("ran");
    let plugin = site.place.path("plugin");
    let script = format!("#!/bin/sh\necho $$ >> {}\nsleep 600\n", ran.display());
    outrigger_workload::write_program(&plugin, script.as_bytes());
    let records = format!("plugin:{}", plugin.display());
    let run = ["run", "--sandbox", "off", "--in", "numbers", "--out", "out", "--splits", "2", "--records"];
    let making = begin(site.command(&[&run[..], &[&records, "--", "cat"]].concat()), Stdio::null());
    site.until(|| begun(&site.place) == 1);
    interrupt(&making);
    let said = Said::from(making.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.trim_end()), (130, "outrigger: stopped; no job was made"));
    let pid = std::fs::read_to_string(ran).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    site.until(|| std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
    assert_eq!(site.done(&["jobs"]).text(), "");
}

#[test]
fn a_program_that_is_brought_along_is_run_by_agents_who_do_not_find_its_file() {
    for site in Site::all() {
        let text = site.put_numbers(100);
        let program = site.place.path("mine");
        outrigger_workload::write_program(&program, b"#!/bin/sh\ntest -e $1 || exit 3\nexec sed 's/^/x/'\n");
        // It fails until the file exists, so the rest runs after the program's own file is gone.
        let go = site.place.path("go").display().to_string();
        let run = [
            "run",
            "--sandbox",
            "off",
            "--in",
            "numbers",
            "--out",
            "out",
            "--tries",
            "1",
            "--",
            "./mine",
            &go,
        ];
        let said = Said::from(site.command(&run).output().unwrap());
        assert!(said.code == 1 && said.err.contains("exit code 3"), "{} {}", said.code, said.err);
        std::fs::remove_file(&program).unwrap();
        std::fs::write(&go, "").unwrap();
        let wanted: String = text.lines().map(|line| format!("x{line}\n")).collect();
        let told = site.done(&["job", "show", "1"]).text();
        assert!(told.contains("bundles   mine:"), "{told}");
        let mut agents = Agents::default();
        agents.0.push(site.agent("one", "1"));
        site.done(&["job", "retry", "--allow-root", "1", "--detach"]);
        site.done(&["job", "wait", "1", "--timeout", "60"]);
        assert_eq!(site.done(&["cat", "out"]).text(), wanted);
        // Short claims on contents are released, and the job's own were released when it was done.
        site.done(&["gc"]);
        site.done(&["check"]);
    }
}
