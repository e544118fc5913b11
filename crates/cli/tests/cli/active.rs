//! Programs over stored data, on the command line.

use std::path::PathBuf;
use std::process::Stdio;

use crate::run::{Place, fed};
use crate::site::Site;

/// Trusted programs need no bubblewrap.
const RUN: [&str; 3] = ["run", "--sandbox", "off"];

fn run_args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn the_first_example_works() {
    let place = Place::new();
    place.write("numbers", "1\n2.5\n");
    place.done(&["put", "numbers", "--to", "in.txt"]);
    let said = place.run(&run_args(&[
        "--pattern",
        "1R->1W",
        "--in",
        "in.txt",
        "--out",
        "out.txt",
        "--records",
        "lines",
        "--",
        "awk",
        "{print $1*2}",
    ]));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.text().starts_with("job 1: 1 split, 6 B read"), "{}", said.text());
    assert_eq!(place.done(&["cat", "out.txt"]).text(), "2\n5\n");
}

#[test]
fn a_plug_in_says_where_inputs_are_cut_and_hosts_have_a_split_each() {
    let place = Place::new();
    place.write("in.fa", ">a\nACGT\n>b\nAC\nGT\nAC\n>c\n>d\nA\n");
    place.done(&["put", "in.fa", "--to", "in.fa"]);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/active/records/fasta.sh");
    let plugin = |program: &str| format!("plugin:{program}");
    let counted = |records: &str, splits: &str, out: &str| {
        let count = ["--records", records, "--splits", splits, "--", "grep", "-c", "^>"];
        place.run(&run_args(&[&["--in", "in.fa", "--out", out], &count[..]].concat()))
    };
    let said = counted(&plugin(example), "3", "counts");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(place.done(&["cat", "counts"]).text(), "2\n2\n");
    place.done(&["component", "add", example]);
    assert_eq!(counted(&plugin("@fasta.sh"), "3", "again").code, 0);
    assert_eq!(place.done(&["cat", "again"]).text(), "2\n2\n");
    // In a store in a directory nothing says which host holds data.
    assert_eq!(counted(&plugin("@fasta.sh"), "hosts", "hosts").code, 0);
    assert_eq!(place.done(&["cat", "hosts"]).text(), "4\n");
    let said = counted(&plugin("echo here"), "3", "no");
    assert!(
        said.code != 0 && said.err.contains("over `in.fa`: line 1 of what it printed is `here`"),
        "{}",
        said.err
    );
    for (more, says) in [
        (&["--in", "in.fa", "--splits", "hosts"][..], "--records"),
        (&["--in", "-", "--pattern", "1W->1W", "--records", "plugin:x"], "--records"),
        (&["--in", "in.fa", "--records", "plugin:"], "plugin:@starts"),
    ] {
        let said = place.run(&run_args(&[more, &["--out", "no", "--", "cat"]].concat()));
        assert!(said.code == 2 && said.err.contains(says), "{more:?}: {} {}", said.code, said.err);
    }
    for rule in [&["--splits", "hosts", "--records", "lines"][..], &["--records", "plugin:@fasta.sh"]] {
        let rule = [
            &["rule", "add", "r", "--on", "close", "--in", "x/*", "--out", "y/{stem}"],
            rule,
            &["--", "cat"],
        ];
        let said = place.run(&rule.concat());
        assert!(said.code == 2 && said.err.contains("is for `run`"), "{} {}", said.code, said.err);
    }
}

#[test]
fn what_happened_is_told_in_codes_and_words() {
    let place = Place::new();
    for (name, text) in [("a", "good\n"), ("b", "bad\n")] {
        place.write(name, text);
        place.done(&["put", name, "--to", &format!("in/{name}")]);
    }
    let picky = [
        "--in",
        "in/*",
        "--out",
        "out/{name}",
        "--tries",
        "1",
        "--",
        "sh",
        "-c",
        "read x; echo said $x >&2; test $x = good && echo $x",
    ];
    let said = place.run(&run_args(&picky));
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("split 1 (`in/b`, from byte 0) was set aside: exit code 1: said bad"),
        "{}",
        said.err
    );
    assert!(
        said.err.contains("job 1 failed, and none of its output is visible")
            && said.err.contains("outrigger job logs 1"),
        "{}",
        said.err
    );
    assert_eq!(place.run(&["ls", "out"]).code, 1);
    let mut going = picky.to_vec();
    going.splice(4..4, ["--keep-going", "--json"]);
    let said = place.run(&run_args(&going));
    assert_eq!(said.code, 4, "{}", said.err);
    let json = said.json();
    assert_eq!((json["state"].as_str(), json["files"][0]["path"].as_str()), (Some("done"), Some("out/a")));
    assert_eq!(json["set_aside"][0]["input"].as_str(), Some("in/b"));
    assert!(json["inputs_lie"].is_null() && json["bytes_here"].is_null(), "a directory does not say");
    let jobs = place.done(&["jobs", "--json"]).json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2);
    assert!(place.done(&["jobs"]).text().lines().next().unwrap().contains("done"));
    let logs = place.done(&["job", "logs", "1"]).text();
    assert!(
        logs.contains("--- split 0, attempt 1, done\nsaid good\n") && logs.contains("said bad"),
        "{logs}"
    );
    assert!(place.done(&["job", "show", "1"]).text().contains("failed"));
    assert_eq!(place.run(&["job", "wait", "1"]).code, 1);
    assert_eq!(place.run(&["job", "wait", "2"]).code, 4);
    assert_eq!(place.run(&["job", "show", "77"]).code, 1);
    place.done(&["gc"]);
    assert_eq!(place.run(&["job", "show", "1"]).code, 0, "it is not long ago");
    let said = place.done(&["gc", "--forget-jobs", "0"]).text();
    assert!(said.starts_with("forgot 1 job that"), "{said}");
    assert_eq!((place.run(&["job", "show", "1"]).code, place.run(&["job", "show", "2"]).code), (1, 0));
    place.done(&["check"]);
}

#[test]
fn requests_without_sense_are_refused_before_anything_happens() {
    let place = Place::new();
    place.write("a", "x");
    place.done(&["put", "a"]);
    for (args, wanted) in [
        (&["--in", "a", "--out", "b"][..], "needs a program"),
        (&["--in", "a", "--", "cat"], "--out"),
        (&["--in", "nothing*", "--out", "b", "--", "cat"], "no stored file matches"),
        (&["--in", "a", "--out", "{colour}", "--", "cat"], "{colour} is not known"),
        (&["--in", "a", "--out", "b", "--splits", "4", "--", "cat"], "--records"),
        (&["--pattern", "1W->2W", "--in", "a", "--out", "b", "--", "cat"], "--in -"),
        (&["--pattern", "3R->1W", "--in", "a", "--out", "b", "--", "cat"], "is no pattern"),
        (&["--in", "a", "--out", "b", "--limits", "speed=1", "--", "cat"], "there are memory"),
    ] {
        let said = place.run(&run_args(args));
        assert!(matches!(said.code, 1 | 2), "{args:?}: {}", said.code);
        assert!(said.err.contains(wanted), "{args:?}: {}", said.err);
    }
    assert_eq!(place.done(&["jobs"]).text(), "");
}

#[test]
fn a_detached_job_is_waited_for_cancelled_and_retried() {
    let place = Place::new();
    place.write("a", "x\n");
    place.done(&["put", "a"]);
    let stop = place.write("stop", "");
    let script = format!("while [ -e {} ]; do sleep 0.02; done; cat", stop.display());
    let said = place.done(&run_args(&["--in", "a", "--out", "b", "--detach", "--", "sh", "-c", &script]));
    let job = said.text().trim().to_string();
    let said = place.run(&["job", "wait", &job, "--timeout", "0.2"]);
    assert!(said.code == 1 && said.err.contains("is still"), "{}", said.err);
    place.done(&["job", "cancel", &job]);
    assert_eq!(place.run(&["job", "wait", &job]).code, 1);
    assert_eq!(place.run(&["cat", "b"]).code, 1);
    std::fs::remove_file(stop).unwrap();
    place.done(&["job", "retry", &job]);
    assert_eq!(place.done(&["cat", "b"]).text(), "x\n");
    assert_eq!(place.run(&["job", "cancel", &job]).code, 1);
}

#[test]
fn a_stream_is_stored_and_processed_at_once() {
    let place = Place::new();
    let said = fed(
        place.command(&run_args(&[
            "--pattern",
            "1W->2W",
            "--in",
            "-",
            "--to",
            "raw/text",
            "--out",
            "up",
            "--",
            "tr",
            "a-z",
            "A-Z",
        ])),
        b"some text\n",
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(place.done(&["cat", "raw/text", "up"]).text(), "some text\nSOME TEXT\n");
    // Options that a stream cannot have are refused, not ignored.
    for (more, says) in [
        (&["--with", "raw/text", "--", "cat"][..], "--in - with --with"),
        (&["--records", "lines", "--", "cat"], "--in - with --records"),
        (&["--splits", "4", "--", "cat"], "--in - with --splits"),
        (&["--splits", "hosts", "--", "cat"], "--in - with --splits"),
        (&["--attach", "path", "--", "cat"], "--in - with --attach"),
        (&["--", "cat", "{in}"], "--in - with {in}"),
        (&["--", "cat", "{in.1}"], "--in - with {in}"),
        (&["--", "cat", "--and", "--out", "b", "--", "cat", "{in}"], "--in - with {in}"),
    ] {
        let args = [&["--pattern", "1W->1W", "--in", "-", "--out", "no"], more].concat();
        let said = fed(place.command(&run_args(&args)), b"text");
        assert!(said.code == 2 && said.err.contains(says), "{more:?}: {} {}", said.code, said.err);
    }
    assert_eq!(place.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(), 1);
}

#[test]
fn an_agent_that_is_not_root_runs_what_its_own_user_submitted_and_says_so_of_others() {
    use outrigger_active::job::Mode;
    use outrigger_active::job::spec::Spec;
    use outrigger_active::{identity::Submitter, pattern::Pattern, plan};
    let place = Place::plain();
    place.write("in", "x\n");
    place.done(&["put", "in"]);
    let own = place.run(&["run", "--sandbox", "off", "--in", "in", "--out", "out", "--", "cat"]);
    assert_eq!(own.code, 0, "{}", own.err);
    let uid = place.done(&["job", "show", "1", "--json"]).json()["uid"].as_u64();
    assert_eq!(uid, Some(rustix::process::geteuid().as_raw().into()));
    let store = std::sync::Arc::new(outrigger_store::Store::open(&place.path("store"), false).unwrap());
    let mut spec = Spec::new(Pattern::ReadToNothing, vec!["true".into()]);
    (spec.sandbox, spec.submitter) = (Mode::Off, Some(Submitter { uid: 0, gid: 0, groups: Vec::new() }));
    let job = plan::submit(&store, &spec, &["in".into()], &[], plan::Splits::Auto).unwrap().to_string();
    drop(store);
    let Some(mut agent) = place.unprivileged(&["node", "--until-idle", "--nice", "0"]) else {
        outrigger_workload::skipped!("nobody else can run this program here");
        return;
    };
    let said = crate::run::Said::from(agent.output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(
        said.err.contains(&format!("job {job} cannot be run here: it was submitted by uid 0")),
        "{}",
        said.err
    );
    let said = crate::run::Said::from(place.unprivileged(&["job", "retry", &job]).unwrap().output().unwrap());
    assert!(said.code == 1 && said.err.contains("submitted by uid 0"), "{} {}", said.code, said.err);
    let row = place.unprivileged(&["job", "show", &job, "--json"]).unwrap().output().unwrap();
    assert_eq!(crate::run::Said::from(row).json()["state"].as_str(), Some("waiting"));
}

/// A damaged database may say so.
#[test]
fn a_directory_that_lies_below_itself_ends_the_search_for_inputs() {
    let place = Place::plain();
    place.write("tree/deep/er/file", "x");
    place.done(&["put", "tree"]);
    let db = outrigger_store::testing::database(&place.path("store/meta.db")).unwrap();
    let sql = "INSERT INTO dentry (parent, name, inode, epoch) SELECT er.inode, CAST('again' AS BLOB), deep.inode, er.epoch \
               FROM dentry er JOIN dentry deep ON deep.name = CAST('deep' AS BLOB) WHERE er.name = CAST('er' AS BLOB)";
    assert_eq!(db.execute(sql, ()).unwrap(), 1);
    drop(db);
    let said = place.run(&[
        "run",
        "--sandbox",
        "off",
        "--pattern",
        "1R->0",
        "--in",
        "tree/**/nothing",
        "--",
        "true",
    ]);
    assert!(said.code != 0 && said.err.contains("below itself"), "{} {}", said.code, said.err);
}

/// A killed runner can remove neither its directory nor the mount in it. The next command does.
#[test]
fn what_a_killed_runner_leaves_goes_with_the_next_command() {
    let site = Site::sqlite();
    site.put_numbers(10);
    let scratch = site.place.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let command = |args: &[&str]| {
        let mut command = site.command(args);
        command.env("TMPDIR", &scratch);
        command
    };
    let left = || std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let go = site.place.path("go").display().to_string();
    let script = format!("touch {go}; while [ -e {go} ]; do sleep 0.1; done");
    let run = [
        "run",
        "--sandbox",
        "off",
        "--pattern",
        "1R->0",
        "--in",
        "numbers",
        "--",
        "sh",
        "-c",
        &script,
        "{in}",
    ];
    let mut runner = command(&run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    site.until(|| std::fs::exists(&go).unwrap());
    assert!(command(&["ls"]).status().unwrap().success());
    assert_eq!(left().len(), 1, "it is at work");
    runner.kill().unwrap();
    runner.wait().unwrap();
    assert!(command(&["ls"]).status().unwrap().success());
    assert_eq!(left(), Vec::<PathBuf>::new());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(scratch.to_str().unwrap()), "{mounts}");
}

#[test]
fn several_programs_are_given_what_is_read_once() {
    let place = Place::new();
    place.write("n", "3\n1\n2\n");
    place.done(&["put", "n"]);
    let both = ["--in", "n", "--out", "sum", "--json", "--", "awk", "{s+=$1} END {print s}", "--and"];
    let said = place.run(&run_args(&[&both[..], &["--out", "sorted", "--", "sort", "-n"]].concat()));
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(
        (said.json()["bytes_read"].as_u64(), said.json()["files"][1]["bytes"].as_u64()),
        (Some(6), Some(2))
    );
    assert_eq!(place.done(&["cat", "sum", "sorted"]).text(), "6\n1\n2\n3\n");
    let told = place.done(&["job", "show", "1"]).text();
    assert!(told.contains("--and -- sort -n"), "{told}");
    let refused = |more: &[&str], says: &str| {
        let said = place.run(&run_args(&[&["--in", "n", "--out", "x", "--", "cat", "--and"], more].concat()));
        assert!(said.code == 2 && said.err.contains(says), "{}: {}", said.code, said.err);
    };
    refused(&["--out", "y"], "--and --out TEMPLATE -- PROGRAM");
    refused(&["--", "cat"], "for each program");
    refused(&["--colour", "--", "cat"], "--colour");
    refused(&["--out", "x", "--", "cat"], "`x`");
    assert_eq!(place.run(&["cat", "x"]).code, 1);
}

#[test]
fn results_are_printed_in_order_and_become_no_files() {
    let place = Place::new();
    let lines = |from: usize| (from..from + 20_000).map(|line| format!("{line}\n")).collect::<String>();
    for (name, from) in [("a", 0), ("b", 20_000), ("c", 40_000)] {
        place.write(format!("n/{name}"), lines(from));
    }
    place.done(&["put", "n"]);
    let args =
        ["run", "--sandbox", "off", "--in", "n/*", "--records", "lines", "--splits", "4", "--slots", "3"];
    let printed = place.done(&[&args[..], &["--out", "-", "--", "sed", "s/^/x/"]].concat());
    let expected: String = (0..60_000).map(|line| format!("x{line}\n")).collect();
    assert!(printed.text() == expected, "{} bytes", printed.out.len());
    // Many inputs make one result.
    let joined =
        ["run", "--sandbox", "off", "--pattern", "#W->1W", "--in", "n/*", "--out", "-", "--", "wc", "-l"];
    assert_eq!(place.done(&joined).text().trim(), "60000");
    assert_eq!(place.done(&["ls"]).text().lines().count(), 1, "nothing was stored");
    // A part of the results, and what failed.
    let failing = ["--tries", "1", "--out", "-", "--", "sh", "-c", "grep 59999"];
    let said = place.run(&[&args[..], &failing].concat());
    assert!(said.code == 1 && said.err.contains("job logs"), "{}", said.err);
    for refused in [
        &["--out", "-", "--detach", "--", "cat"][..],
        &["--out", "-", "--json", "--", "cat"],
        &["--out", "-", "--out", "x=x", "--", "cat"],
        &["--out", "-", "--", "cat", "--and", "--out", "x", "--", "cat"],
    ] {
        assert_eq!(place.run(&[&args[..], refused].concat()).code, 2, "{refused:?}");
    }
    let rule = ["rule", "add", "r", "--on", "close", "--in", "n/*", "--out", "-", "--", "cat"];
    assert_eq!(place.run(&rule).code, 2);
}

/// As `head` closes it.
#[test]
fn a_job_whose_reader_has_gone_is_cancelled() {
    let place = Place::new();
    place.write("n", "0123456789\n".repeat(100_000));
    place.done(&["put", "n"]);
    let args =
        ["run", "--sandbox", "off", "--in", "n", "--records", "lines", "--splits", "8", "--slots", "1"];
    let mut child = place
        .command(&[&args[..], &["--out", "-", "--", "cat"]].concat())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(!child.wait().unwrap().success());
    assert!(place.done(&["jobs"]).text().contains("cancelled"));
}
