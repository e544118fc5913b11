//! Programs on files while they are written in a mount: each pattern, and the outcome when each
//! process is killed. Without FUSE these tests say so and pass.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Agents, Said, Waits};
use crate::writable::Mounts;

/// A mount with a directory `raw` in it, and agents that are killed when this is dropped.
struct Site {
    // Dropped before the mount, which the agents have open.
    agents: Agents,
    mounts: Mounts,
}

impl Site {
    fn new() -> Option<Self> {
        let mounts = Mounts::new()?;
        fs::create_dir(mounts.place.path("mnt/raw")).unwrap();
        Some(Self { mounts, agents: Agents::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounts.place.path(name)
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        self.mounts.place.done(args)
    }

    /// A rule for files below `raw`. Its program copies its input so far into the file `mark`.
    fn rule(&self, pattern: &str, more: &[&str], script: &str) {
        let head = [
            "rule",
            "add",
            "r",
            "--quiet",
            "--on",
            "write",
            "--in",
            "raw/*",
            "--sandbox",
            "off",
            "--pattern",
            pattern,
        ];
        self.done(&[&head[..], more, &["--", "sh", "-c", script]].concat());
    }

    /// A program that prints its input in capitals, and copies it into `mark` as it comes.
    fn script(&self) -> String {
        format!("tee -a {} | tr a-z A-Z", self.path("mark").display())
    }

    fn agent(&mut self, name: &str) {
        let command = self.mounts.place.command(&["node", "--allow-root", "--name", name, "--slots", "2"]);
        self.agents.start(command);
        self.until(|| self.done(&["node", "list"]).text().contains(name));
    }

    #[track_caller]
    fn until(&self, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end, "it never came to be\n{}", self.jobs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn jobs(&self) -> String {
        self.mounts.place.run(&["jobs"]).text()
    }

    fn until_read(&self, text: &str) {
        self.until(|| fs::read_to_string(self.path("mark")).is_ok_and(|read| read.ends_with(text)));
    }

    fn create(&self, name: &str) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.path("mnt/raw").join(name))
            .unwrap()
    }

    /// Waits for the end of a job and returns its exit code.
    fn wait(&self, job: &str) -> Said {
        self.mounts.place.run(&["job", "wait", job, "--timeout", "60"])
    }

    fn is_there(&self, path: &str) -> bool {
        self.mounts.place.run(&["cat", path]).code == 0
    }
}

#[test]
fn a_program_reads_a_file_while_it_is_written_and_sees_its_end_when_it_is_closed() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}"], &site.script());
    site.agent("one");
    let mut file = site.create("a");
    file.write_all(b"first ").unwrap();
    site.until_read("first ");
    // Flushed, synced and read by others: none of these ends the file.
    file.sync_all().unwrap();
    assert_eq!(fs::read(site.path("mnt/raw/a")).unwrap(), b"first ");
    file.try_clone().unwrap().write_all(b"second").unwrap();
    site.until_read("second");
    assert!(!site.is_there("up/a"));
    drop(file);
    assert_eq!(site.wait("1").code, 0);
    assert_eq!(site.done(&["cat", "up/a", "raw/a"]).text(), "FIRST SECONDfirst second");
    assert_eq!(fs::read(site.path("mnt/up/a")).unwrap(), b"FIRST SECOND");
    // Two files at once, for one agent. The writer of one is killed, which closes its files.
    let (mut b, mut c) = (site.create("b"), site.create("c"));
    b.write_all(b"b of two").unwrap();
    site.until_read("b of two");
    c.write_all(b"c of two").unwrap();
    site.until_read("c of two");
    drop((b, c));
    let script = format!("exec > {}; echo killed; exec sleep 100", site.path("mnt/raw/d").display());
    let mut writer = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    site.until_read("killed\n");
    writer.kill().unwrap();
    writer.wait().unwrap();
    for job in ["2", "3", "4"] {
        assert_eq!(site.wait(job).code, 0, "{}", site.jobs());
    }
    assert_eq!(site.done(&["cat", "up/b", "up/c", "up/d"]).text(), "B OF TWOC OF TWOKILLED\n");
    // Files outside the pattern or only appended to make no job; overwritten ones do under a rule.
    fs::write(site.path("mnt/other"), "x").unwrap();
    OpenOptions::new().append(true).open(site.path("mnt/raw/b")).unwrap().write_all(b"!").unwrap();
    fs::write(site.path("mnt/raw/a"), "anew").unwrap();
    assert_eq!(site.wait("5").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/a", "raw/a"]).text(), "ANEWanew");
    site.done(&["rule", "remove", "r"]);
    fs::write(site.path("mnt/raw/e"), "x").unwrap();
    assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(), 5);
    site.done(&["node", "drain", "one", "--wait"]);
    site.done(&["check", "--read-data"]);
}

#[test]
fn a_file_that_changes_where_it_was_read_is_processed_again_as_it_became() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}", "--tries", "1"], &site.script());
    site.agent("one");
    let file = site.create("a");
    file.write_all_at(b"wrong text", 0).unwrap();
    site.until_read("wrong text");
    file.write_all_at(b"right", 0).unwrap();
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/a"]).text(), "RIGHT TEXT");
    // A file written out of order is read when it is closed, or up to the first gap.
    let file = site.create("b");
    file.write_all_at(b"end", 7).unwrap();
    file.write_all_at(b"mid ", 3).unwrap();
    file.write_all_at(b"be ", 0).unwrap();
    site.until_read("be mid end");
    drop(file);
    assert_eq!(site.wait("2").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/b"]).text(), "BE MID END");
    // Written through a mapping, whose pages the kernel writes in any order.
    let script = "import mmap,sys\nf=open(sys.argv[1],'w+b'); f.truncate(3<<20); m=mmap.mmap(f.fileno(),3<<20)\n\
                  for p in list(range(700,-1,-7))+[i for i in range(768) if i%7]: m[p*4096:p*4096+1]=b'x'\n\
                  m.flush(); m.close(); f.close()";
    let at = site.path("mnt/raw/c");
    let mapped = Command::new("python3").args(["-c", script]).arg(&at).stderr(Stdio::null()).status();
    if !mapped.is_ok_and(|status| status.success()) {
        println!("no mapping was tried: python3 could not make one here");
        return;
    }
    assert_eq!(site.wait("3").code, 0, "{}", site.jobs());
    let raw = site.done(&["cat", "raw/c"]).out;
    let up = site.done(&["cat", "up/c"]).out;
    assert!(raw.len() == 3 << 20 && raw.to_ascii_uppercase() == up);
}

#[test]
fn a_program_that_fails_or_a_writer_that_gives_up_leaves_no_output() {
    let Some(mut site) = Site::new() else { return };
    let script = format!("{}; test ! -e {}", site.script(), site.path("fail").display());
    site.rule("1W->2W", &["--out", "up/{name}"], &script);
    site.agent("one");
    fs::write(site.path("fail"), "").unwrap();
    let mut file = site.create("a");
    file.write_all(b"text").unwrap();
    site.until_read("text");
    drop(file);
    assert_eq!(site.wait("1").code, 1);
    assert!(!site.is_there("up/a"));
    assert_eq!(site.done(&["cat", "raw/a"]).text(), "text", "the file stays");
    // A failed job can be retried over the written content.
    fs::remove_file(site.path("fail")).unwrap();
    site.done(&["job", "retry", "--allow-root", "1"]);
    assert_eq!(site.done(&["cat", "up/a"]).text(), "TEXT");
    let mut file = site.create("b");
    file.write_all(b"more text").unwrap();
    site.until_read("more text");
    rustix::fs::fsetxattr(&file, "user.outrigger.abort", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    drop(file);
    let said = site.wait("2");
    assert_eq!(said.code, 1, "{}", said.err);
    site.until(|| !site.path("mnt/raw/b").exists());
    assert!(!site.is_there("up/b") && !site.is_there("raw/b"));
    // A program that ends before it has read everything succeeds like any other.
    site.done(&["rule", "remove", "r"]);
    site.rule("1W->2W", &["--out", "up/{name}"], "head -c 3");
    let mut file = site.create("c");
    file.write_all(b"enough and more").unwrap();
    drop(file);
    assert_eq!(site.wait("3").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/c"]).text(), "eno");
    // A job that is cancelled stops while its file is still being written.
    let file = site.create("d");
    site.until(|| site.done(&["job", "show", "4", "--json"]).json()["splits_running"] == 1);
    site.done(&["job", "cancel", "4"]);
    site.until(|| site.done(&["node", "list"]).text().contains("idle"));
    drop(file);
    assert!(!site.is_there("up/d"));
}

#[test]
fn when_the_mount_is_killed_the_program_gets_what_it_had_acknowledged() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}"], &site.script());
    site.agent("one");
    let mut file = site.create("a");
    file.write_all(b"acknowledged").unwrap();
    site.until_read("acknowledged");
    site.mounts.kill();
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/a", "raw/a"]).text(), "ACKNOWLEDGEDacknowledged");
    // Once more, with a new mount that knows nothing of the file, and at first without an agent.
    site.done(&["node", "drain", "one", "--wait"]);
    site.mounts.mount();
    let mut file = site.create("b");
    file.write_all(b"as well").unwrap();
    site.mounts.kill();
    drop(file);
    site.mounts.mount();
    site.agent("two");
    assert_eq!(site.wait("2").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/b"]).text(), "AS WELL");
    site.done(&["check", "--read-data"]);
}

#[test]
fn when_the_agent_is_killed_another_begins_anew() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}"], &site.script());
    // No agent is there yet: the job waits, and the mount has the whole file.
    let mut file = site.create("a");
    file.write_all(b"one ").unwrap();
    site.agent("first");
    site.until_read("one ");
    site.agents.0[0].kill().unwrap();
    site.agents.0[0].wait().unwrap();
    file.write_all(b"two ").unwrap();
    fs::write(site.path("mark"), "").unwrap();
    site.agent("second");
    site.until_read("one two ");
    file.write_all(b"three").unwrap();
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/a"]).text(), "ONE TWO THREE");
    // A file without an agent waits for one. A drained agent leaves its file to others.
    let mut file = site.create("b");
    file.write_all(b"b").unwrap();
    site.until_read("b");
    site.done(&["node", "drain", "second", "--wait"]);
    drop(file);
    fs::write(site.path("mnt/raw/c"), "c").unwrap();
    site.done(&["node", "--allow-root", "--until-idle"]);
    assert_eq!(site.done(&["cat", "up/b", "up/c"]).text(), "BC");
}

#[test]
fn what_is_processed_in_its_place_is_never_seen_raw() {
    let Some(mut site) = Site::new() else { return };
    let script = format!("{}; test ! -e {}", site.script(), site.path("fail").display());
    site.rule("1W->1W", &[], &script);
    site.agent("one");
    let mut file = site.create("a");
    file.write_all(b"raw text").unwrap();
    site.until_read("raw text");
    assert_eq!(file.metadata().unwrap().len(), 8);
    let listed = || fs::read_dir(site.path("mnt/raw")).unwrap().count();
    assert!(listed() == 0 && !site.is_there("raw/a"));
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "raw/a"]).text(), "RAW TEXT");
    site.until(|| fs::read(site.path("mnt/raw/a")).is_ok_and(|bytes| bytes == b"RAW TEXT"));
    // By `cp`, which checks the file that it has made.
    fs::write(site.path("plain"), "copied").unwrap();
    assert!(
        Command::new("cp")
            .arg("-p")
            .args([site.path("plain"), site.path("mnt/raw/b")])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(site.wait("2").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "raw/b"]).text(), "COPIED");
    // A program fails: nothing is visible, and the written data is kept for a retry.
    fs::write(site.path("fail"), "").unwrap();
    fs::write(site.path("mnt/raw/c"), "kept").unwrap();
    assert_eq!(site.wait("3").code, 1);
    assert!(!site.is_there("raw/c") && !site.path("mnt/raw/c").exists());
    site.done(&["gc"]);
    fs::remove_file(site.path("fail")).unwrap();
    site.done(&["job", "retry", "--allow-root", "3"]);
    assert_eq!(site.done(&["cat", "raw/c"]).text(), "KEPT");
    // The mount is killed: nothing was ever visible, and the job says why.
    let mut file = site.create("d");
    file.write_all(b"lost").unwrap();
    site.until_read("lost");
    site.mounts.kill();
    drop(file);
    let said = site.wait("4");
    assert!(
        said.code == 1 && site.done(&["job", "show", "4"]).text().contains("writer was lost"),
        "{}",
        said.err
    );
    assert!(!site.is_there("raw/d"));
    site.done(&["check", "--read-data"]);
}

#[test]
fn a_program_in_the_path_or_beside_it_gets_the_same() {
    let Some(mut site) = Site::new() else { return };
    let text: String = (0..2_000_000).map(|number| format!("{number:09}\n")).collect();
    fs::write(site.path("text"), text.repeat(4)).unwrap();
    // More than a writer may be ahead of the program.
    for (job, attach) in [("1", "path"), ("2", "beside")] {
        site.rule(
            "1W->0",
            &["--attach", attach],
            &format!("sleep 1; b3sum > {0} || sha256sum > {0}", site.path(attach).display()),
        );
        if site.agents.0.is_empty() {
            site.agent("one");
        }
        fs::copy(site.path("text"), site.path("mnt/raw").join(attach)).unwrap();
        assert_eq!(site.wait(job).code, 0, "{}", site.jobs());
        site.done(&["rule", "remove", "r"]);
    }
    let sums = ["path", "beside"].map(|attach| fs::read(site.path(attach)).unwrap());
    assert!(!sums[0].is_empty() && sums[0] == sums[1]);
    assert!(fs::read(site.path("mnt/raw/path")).unwrap() == fs::read(site.path("text")).unwrap());
}

#[test]
fn a_run_that_follows_waits_for_one_file_and_ends_as_its_job_does() {
    let Some(site) = Site::new() else { return };
    let args = "run --follow --sandbox off --pattern 1W->2W --in raw/*.csv --out up/{name} -- tr a-z A-Z";
    let waits = Waits::begin(site.mounts.place.command(&args.split(' ').collect::<Vec<_>>()));
    fs::write(site.path("mnt/raw/other"), "not this one").unwrap();
    fs::write(site.path("mnt/raw/1.csv"), "text").unwrap();
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "up/1.csv"]).text(), "TEXT");
    fs::write(site.path("mnt/raw/later.csv"), "x").unwrap();
    assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(), 1, "one file");
    for (args, says) in [
        (&["--pattern", "1R->1W", "--in", "x", "--out", "y"][..], "stored files"),
        (&["--pattern", "1W->0", "--in", "x", "--records", "lines"], "split"),
        (&["--pattern", "1W->0", "--in", "x", "--in", "y"], "once"),
        (&["--pattern", "1W->0", "--in", "-"], "remove --follow"),
    ] {
        let args = [&["run", "--follow", "--sandbox", "off"][..], args, &["--", "cat"]].concat();
        let said = site.mounts.place.run(&args);
        assert!(said.code == 2 && said.err.contains(says), "{args:?}: {}", said.err);
    }
    for (args, says) in [
        (&["--on", "write", "--pattern", "1R->0"][..], "stored files"),
        (&["--on", "write", "--pattern", "1W->0", "--existing"], "--existing"),
        (&["--on", "close", "--pattern", "1W->0"], "--on write"),
    ] {
        let args = [&["rule", "add", "r", "--in", "x"][..], args, &["--", "cat"]].concat();
        let said = site.mounts.place.run(&args);
        assert!(said.code == 2 && said.err.contains(says), "{args:?}: {}", said.err);
    }
    site.done(&["unmount", "mnt"]);
    let said = site.mounts.place.run(&[
        "run",
        "--follow",
        "--pattern",
        "1W->0",
        "--in",
        "x",
        "--sandbox",
        "off",
        "--",
        "cat",
    ]);
    assert!(said.code == 1 && said.err.contains("outrigger mount"), "{}", said.err);
}

#[test]
fn a_file_that_is_read_in_a_mount_sets_off_a_rule_and_programs_of_jobs_do_not() {
    let Some(mut site) = Site::new() else { return };
    site.mounts.place.write("stored", "stored long ago");
    site.done(&["put", "stored", "--to", "papers/a"]);
    site.done(&["put", "stored", "--to", "papers/b"]);
    let rule = |name: &str, pattern: &str, more: &[&str], program: &[&str]| {
        let head = ["rule", "add", name, "--quiet", "--on", "read", "--in", "papers/*", "--sandbox", "off"];
        site.done(&[&head[..], &["--pattern", pattern], more, &["--"], program].concat());
    };
    rule("copy", "1R->1W", &["--out", "seen/{name}"], &["cat"]);
    assert!(site.done(&["rule", "list"]).text().contains("read "));
    site.agent("one");
    let jobs = || site.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len();
    assert_eq!(fs::read_to_string(site.path("mnt/papers/a")).unwrap(), "stored long ago");
    site.until(|| jobs() == 1);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "seen/a"]).text(), "stored long ago");
    // Commands, listings, writers and jobs' programs are no readers; nor is a reader so soon again.
    site.done(&["cat", "papers/b"]);
    fs::metadata(site.path("mnt/papers/b")).unwrap();
    drop(OpenOptions::new().read(true).write(true).open(site.path("mnt/papers/b")).unwrap());
    let read = format!("cat {} > /dev/null", site.path("mnt/papers/b").display());
    site.done(&[
        "run",
        "--sandbox",
        "off",
        "--pattern",
        "1R->0",
        "--in",
        "papers/a",
        "--",
        "sh",
        "-c",
        &read,
    ]);
    drop(File::open(site.path("mnt/papers/a")).unwrap());
    // Created in the mount and read just now: this one counts, and comes last.
    fs::write(site.path("mnt/papers/c"), "just written").unwrap();
    assert_eq!(fs::read(site.path("mnt/papers/c")).unwrap(), b"just written");
    site.until(|| jobs() == 3);
    assert_eq!(site.wait("3").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "seen/c"]).text(), "just written");
    assert!(!site.is_there("seen/b"));
    assert_eq!(jobs(), 3);
    site.done(&["node", "drain", "one", "--wait"]);
    site.done(&["check", "--read-data"]);
}

#[test]
fn what_overwrites_a_file_is_seen_until_the_output_takes_its_place() {
    let Some(mut site) = Site::new() else { return };
    let hold = site.path("hold");
    let script = format!("{}; while [ -e {} ]; do sleep 0.02; done", site.script(), hold.display());
    // The kernel has its name in the cache before the rule exists.
    fs::write(site.path("mnt/raw/a"), "before").unwrap();
    site.rule("1W->1W", &[], &script);
    site.agent("one");
    let overwrite = || OpenOptions::new().write(true).truncate(true).open(site.path("mnt/raw/a")).unwrap();
    let mut file = overwrite();
    file.write_all(b"first").unwrap();
    site.until_read("first");
    assert_eq!(fs::read(site.path("mnt/raw/a")).unwrap(), b"first");
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(fs::read(site.path("mnt/raw/a")).unwrap(), b"FIRST");
    // Overwritten again before the program has ended: the new data does not mix in.
    fs::write(&hold, "").unwrap();
    let mut file = overwrite();
    file.write_all(b"second").unwrap();
    drop(file);
    site.until_read("second");
    let mut file = overwrite();
    assert_eq!(site.wait("2").code, 1);
    assert!(site.done(&["job", "show", "2"]).text().contains("overwritten"), "{}", site.jobs());
    file.write_all(b"third").unwrap();
    fs::remove_file(&hold).unwrap();
    drop(file);
    assert_eq!(site.wait("3").code, 0, "{}", site.jobs());
    assert_eq!(fs::read(site.path("mnt/raw/a")).unwrap(), b"THIRD");
    assert_eq!(site.done(&["cat", "raw/a"]).text(), "THIRD");
    // If a program fails, the written content stays.
    site.done(&["rule", "remove", "r"]);
    site.rule("1W->1W", &["--tries", "1"], "cat > /dev/null; exit 1");
    overwrite().write_all(b"fourth").unwrap();
    assert_eq!(site.wait("4").code, 1);
    assert_eq!(fs::read(site.path("mnt/raw/a")).unwrap(), b"fourth");
    site.done(&["node", "drain", "one", "--wait"]);
    site.done(&["check", "--read-data"]);
}

#[test]
fn several_files_that_are_written_are_read_one_after_the_other_into_one() {
    let Some(mut site) = Site::new() else { return };
    let run = |out: &str, script: &str| {
        let head =
            ["run", "--follow", "--sandbox", "off", "--pattern", "#W->1W", "--in", "raw/a", "--in", "raw/b"];
        let args = [&head[..], &["--out", out, "--", "sh", "-c", script]].concat();
        Waits::begin(site.mounts.place.command(&args))
    };
    let overwrite = |name: &str| {
        OpenOptions::new().write(true).truncate(true).open(site.path("mnt/raw").join(name)).unwrap()
    };
    // The second file is written first and read last; each is read while it is written.
    let waits = run("both", &site.script());
    let mut b = site.create("b");
    b.write_all(b"second").unwrap();
    let mut a = site.create("a");
    a.write_all(b"first").unwrap();
    site.until_read("first");
    a.write_all(b" one, ").unwrap();
    drop(a);
    site.until_read("first one, second");
    b.write_all(b" one").unwrap();
    site.until_read("second one");
    assert!(!site.is_there("both"));
    drop(b);
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "both"]).text(), "FIRST ONE, SECOND ONE");
    assert_eq!(site.done(&["cat", "raw/a", "raw/b"]).text(), "first one, second one");
    // The writer changes data of one file that was read: the program reads all again, as it became.
    fs::remove_file(site.path("mark")).unwrap();
    let waits = run("both", &site.script());
    let a = overwrite("a");
    a.write_all_at(b"wrong", 0).unwrap();
    site.until_read("wrong");
    a.write_all_at(b"right", 0).unwrap();
    drop(a);
    fs::write(site.path("mnt/raw/b"), " again").unwrap();
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "both"]).text(), "RIGHT AGAIN");
    // If one file is given up, the whole job fails.
    let waits = run("none", &site.script());
    let a = overwrite("a");
    let b = overwrite("b");
    rustix::fs::fsetxattr(&b, "user.outrigger.abort", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    drop((a, b));
    let said = waits.end();
    assert!(said.code == 1 && said.err.contains("gave the file up"), "{} {}", said.code, said.err);
    assert!(!site.is_there("none"));
    // The mount is killed: a closed file has its content, the other has what the log held.
    let waits = run("left", "cat");
    let mut a = overwrite("a");
    a.write_all(b"closed, ").unwrap();
    drop(a);
    let mut b = overwrite("b");
    b.write_all(b"and not").unwrap();
    // The process that waits for the files must know the job by then.
    site.until(|| site.jobs().lines().next().is_some_and(|newest| newest.contains("running")));
    site.mounts.kill();
    drop(b);
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "left"]).text(), "closed, and not");
    site.done(&["check", "--read-data"]);
}

#[test]
fn several_files_are_given_by_their_names_once_and_with_a_program() {
    let Some(site) = Site::new() else { return };
    for (more, says) in [
        (&["--in", "raw/*", "--", "cat"][..], "by their names"),
        (&["--in", "x", "--in", "x", "--", "cat"], "twice"),
        (&["--in", "x", "--in", "y"], "-- cat"),
    ] {
        let head = ["run", "--follow", "--sandbox", "off", "--pattern", "#W->1W", "--out", "o"];
        let said = site.mounts.place.run(&[&head[..], more].concat());
        assert!(said.code == 2 && said.err.contains(says), "{more:?}: {}", said.err);
    }
}

#[test]
fn several_programs_follow_a_file_in_one_pass() {
    let Some(mut site) = Site::new() else { return };
    let script = site.script();
    let more = ["--and", "--out", "first/{name}", "--", "head", "-c", "5"];
    let fails = format!("cat > /dev/null; test ! -e {}", site.path("fail").display());
    let last = ["--and", "--out", "none/{name}", "--", "sh", "-c", &fails];
    let head =
        ["rule", "add", "r", "--quiet", "--on", "write", "--in", "raw/*", "--sandbox", "off", "--tries", "1"];
    let one = ["--pattern", "1W->2W", "--out", "up/{name}", "--", "sh", "-c", &script];
    site.done(&[&head[..], &one, &more, &last].concat());
    site.agent("one");
    // One program has read enough long before the end. The others go on, and it counts with them.
    let mut file = site.create("a");
    file.write_all(b"first ").unwrap();
    site.until_read("first ");
    file.write_all(b"second").unwrap();
    site.until_read("second");
    assert!(!site.is_there("first/a"));
    drop(file);
    assert_eq!(site.wait("1").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/a", "first/a", "none/a"]).text(), "FIRST SECONDfirst");
    // The writer changed data that was read: all programs run again.
    let file = site.create("b");
    file.write_all_at(b"wrong text", 0).unwrap();
    site.until_read("wrong text");
    file.write_all_at(b"right", 0).unwrap();
    drop(file);
    assert_eq!(site.wait("2").code, 0, "{}", site.jobs());
    assert_eq!(site.done(&["cat", "up/b", "first/b"]).text(), "RIGHT TEXTright");
    // If one fails, none has an output; the raw file stays.
    fs::write(site.path("fail"), "").unwrap();
    fs::write(site.path("mnt/raw/c"), "more text").unwrap();
    assert_eq!(site.wait("3").code, 1);
    assert!(!site.is_there("up/c") && !site.is_there("first/c") && site.is_there("raw/c"));
    site.done(&["node", "drain", "one", "--wait"]);
    site.done(&["check", "--read-data"]);
}

#[test]
fn a_marker_that_is_closed_has_all_that_was_closed_before_it_joined_by_rule_and_on_demand() {
    let Some(mut site) = Site::new() else { return };
    let rule = "rule add join --quiet --on close --when raw/*/_DONE --pattern #W->1W --in {dir}/part-* --in {dir}/more/{stem}* --out out/{dir} --sandbox off -- cat";
    site.done(&rule.split(' ').collect::<Vec<_>>());
    site.agent("one");
    for run in 0..4 {
        let dir = site.path("mnt/raw").join(run.to_string());
        fs::create_dir_all(dir.join("more")).unwrap();
        let mut wanted = String::new();
        for part in 0..20 {
            let text = format!("part {part:02} of run {run}\n").repeat(300);
            fs::write(dir.join(format!("part-{part:02}")), &text).unwrap();
            wanted += &text;
        }
        fs::write(dir.join("more/_DONE.1"), "one more\n").unwrap();
        fs::write(dir.join("_DONE"), "").unwrap();
        wanted += "one more\n";
        let out = site.path("mnt/out/raw").join(run.to_string());
        site.until(|| out.exists());
        assert!(fs::read_to_string(&out).unwrap() == wanted, "run {run}");
        let at = format!("raw/{run}/part-*");
        site.done(&["run", "--quiet", "--pattern", "#W->1W", "--in", &at, "--out", "again", "--", "cat"]);
        assert!(wanted.starts_with(&fs::read_to_string(site.path("mnt/again")).unwrap()));
    }
    // A marker without files is in the log. Its next content is considered again.
    fs::create_dir(site.path("mnt/raw/none")).unwrap();
    fs::write(site.path("mnt/raw/none/_DONE"), "").unwrap();
    site.until(|| site.done(&["rule", "log", "join"]).text().contains("no job"));
    assert_eq!(site.done(&["rule", "log", "join", "--json"]).json()["jobs"].as_array().unwrap().len(), 4);
    site.done(&["node", "drain", "one", "--wait"]);
}
