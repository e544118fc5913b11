//! Programs on files that are being written in shared mounts: readers, and outcomes of kills.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Host, Shared, command, until};
use crate::run::{Agents, Said, Waits};

/// Two hosts, and agents on them. Dropping this kills the agents.
struct Site {
    // Dropped before the hosts, so that no agent uses their directories.
    agents: Agents,
    one: Host,
    two: Host,
    shared: Shared,
}

impl Site {
    fn new() -> Option<Self> {
        let shared = Shared::new()?;
        let (one, two) = (shared.mount(), shared.mount());
        fs::create_dir(one.path("raw")).unwrap();
        Some(Self { agents: Agents::default(), one, two, shared })
    }

    /// A rule for files below `raw`. Its program prints its input in capitals and copies it into
    /// `mark`. It waits while `hold` exists, and fails while `fail` exists.
    fn rule(&self, pattern: &str, more: &[&str]) {
        let at = |name: &str| self.one.place.path(name).display().to_string();
        let script = format!(
            "tee -a {} | tr a-z A-Z; while [ -e {} ]; do sleep 0.02; done; test ! -e {}",
            at("mark"),
            at("hold"),
            at("fail")
        );
        let head = "rule add r --quiet --on write --in raw/* --sandbox off --pattern";
        let head: Vec<&str> = head.split(' ').chain([pattern]).collect();
        self.one.done(&[&head[..], more, &["--", "sh", "-c", &script]].concat());
        // The other mount checks for rules once a second.
        std::thread::sleep(Duration::from_millis(1500));
    }

    fn agent(&mut self, on_one: bool, name: &str) {
        let host = if on_one { &self.one } else { &self.two };
        let command =
            command(&host.place, &host.url, &["node", "--allow-root", "--name", name, "--slots", "2"]);
        self.agents.start(command);
        self.until(|| self.one.done(&["node", "list"]).text().contains(name));
    }

    #[track_caller]
    fn until(&self, is: impl FnMut() -> bool) {
        until(&self.one, 60, &["jobs"], is);
    }

    #[track_caller]
    fn until_read(&self, text: &str) {
        self.until(|| fs::read_to_string(self.one.place.path("mark")).is_ok_and(|read| read.ends_with(text)));
    }

    fn create(host: &Host, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).open(host.path("raw").join(name)).unwrap()
    }

    fn run(&self, args: &[&str]) -> Said {
        Said::from(command(&self.one.place, &self.one.url, args).output().unwrap())
    }

    fn wait(&self, job: &str) -> Said {
        self.run(&["job", "wait", job, "--timeout", "60"])
    }

    fn overwrite(host: &Host, name: &str) -> File {
        OpenOptions::new().write(true).truncate(true).open(host.path("raw").join(name)).unwrap()
    }

    fn is_nowhere(&self, name: &str) -> bool {
        let hosts = [&self.one, &self.two];
        self.run(&["cat", name]).code != 0 && hosts.iter().all(|host| !host.path(name).exists())
    }

    fn kill(&mut self) {
        self.one.kill_and_mount();
    }
}

/// Writes and closes nothing. A child of this process would close, and so store, inherited files.
struct Writer(Child);

impl Writer {
    fn new(host: &Host, script: &str) -> Self {
        let mut command = Command::new("sh");
        let command = command.args(["-c", &format!("{script}; read end")]).current_dir(host.path(""));
        Self(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Lets it go on after all that it waits for has been read, and waits for its end.
    fn goes_on(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn agents_of_a_mounts_host_read_what_is_written_there_and_others_leave_it_to_them() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}", "--tries", "1"]);
    // This agent is there first, but cannot read data that is written on the other host.
    site.agent(false, "two");
    let mut file = Site::create(&site.one, "a");
    file.write_all(b"first ").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let shown = site.one.done(&["job", "show", "1", "--json"]).json();
    assert_eq!((&shown["splits_waiting"], &shown["being_written"]), (&1.into(), &true.into()), "{shown}");
    let host = outrigger_store::host::name();
    assert!(site.one.done(&["job", "show", "1"]).text().contains(&format!("written on {host}")));
    // Nor can a retry on that host. Then the job waits as before.
    site.one.done(&["job", "cancel", "1"]);
    let retried =
        command(&site.two.place, &site.two.url, &["job", "retry", "--allow-root", "1"]).output().unwrap();
    let said = Said::from(retried);
    assert!(said.code == 1 && said.err.contains(&format!("in a mount on {host}")), "{}", said.err);
    site.agent(true, "one");
    site.until_read("first ");
    // Synced, so that others see it, and closed once: neither ends the file.
    file.sync_all().unwrap();
    assert_eq!(fs::read(site.two.path("raw/a")).unwrap(), b"first ");
    file.try_clone().unwrap().write_all(b"second").unwrap();
    site.until_read("second");
    assert!(site.is_nowhere("up/a"));
    drop(file);
    assert_eq!(site.wait("1").code, 0);
    site.two.must_read("raw/a", "first second");
    site.two.must_read("up/a", "FIRST SECOND");
    assert_eq!(
        site.one.done(&["job", "logs", "1", "--json"]).json()["splits"][0]["attempt"],
        1,
        "no try was used"
    );
    // Data written on the other host is for its agent. A file that is closed is for any agent.
    fs::write(site.one.place.path("mark"), "").unwrap();
    let mut file = Site::create(&site.two, "b");
    file.write_all(b"of two").unwrap();
    site.until_read("of two");
    drop(file);
    assert_eq!(site.wait("2").code, 0);
    site.one.must_read("up/b", "OF TWO");
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.one.write("raw/c", "closed");
    assert_eq!(site.wait("3").code, 0);
    site.one.must_read("up/c", "CLOSED");
    site.one.done(&["node", "drain", "two", "--wait"]);
    site.shared.check(&site.one);
}

#[test]
fn agents_of_other_hosts_read_what_is_stored_of_a_large_file_while_it_is_written() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}", "--tries", "1"]);
    site.agent(false, "two");
    let data = |seed: u8| {
        (0..20u32 << 20).map(|at| b'a' + (at / 7919 + u32::from(seed)) as u8 % 26).collect::<Vec<_>>()
    };
    let read = |site: &Site| fs::metadata(site.one.place.path("mark")).map_or(0, |mark| mark.len());
    for (name, job, spoils) in [("a", "1", false), ("b", "2", true)] {
        fs::write(site.one.place.path("mark"), "").unwrap();
        let mut written = data(name.as_bytes()[0]);
        let from = site.one.place.path("data");
        fs::write(&from, &written).unwrap();
        // A child of this process would close, and so store, inherited files: only `tee` has it.
        let script =
            format!("{{ cat {}; read go; printf 'the end'; }} | tee raw/{name} > /dev/null", from.display());
        let mut writer = Writer::new(&site.one, &script);
        // The other host's program has most of the open file: after a second only 1 MiB is missing.
        site.until(|| read(&site) >= 19 << 20);
        assert!(site.is_nowhere(&format!("up/{name}")));
        if spoils {
            let file = OpenOptions::new().write(true).open(site.one.path("raw").join(name)).unwrap();
            file.write_all_at(b"changed", 0).unwrap();
            written[..7].copy_from_slice(b"changed");
        }
        writer.goes_on();
        written.extend_from_slice(b"the end");
        let said = site.wait(job);
        assert_eq!(said.code, 0, "{}", said.err);
        let wanted = written.to_ascii_uppercase();
        assert!(fs::read(site.two.path(&format!("up/{name}"))).unwrap() == wanted, "{name}");
        assert_eq!(read(&site) > written.len() as u64, spoils, "it was run again if it had to be");
    }
    site.shared.check(&site.one);
}

#[test]
fn what_was_read_and_changed_is_run_again_and_who_fails_or_gives_up_leaves_no_output() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}", "--tries", "1"]);
    site.agent(true, "one");
    let file = Site::create(&site.one, "a");
    file.write_all_at(b"wrong text", 0).unwrap();
    site.until_read("wrong text");
    file.write_all_at(b"right", 0).unwrap();
    drop(file);
    assert_eq!(site.wait("1").code, 0);
    site.two.must_read("up/a", "RIGHT TEXT");
    // Another host writes to the file, too.
    let file = Site::create(&site.one, "b");
    file.write_all_at(b"both hosts", 0).unwrap();
    site.until_read("both hosts");
    file.sync_all().unwrap();
    OpenOptions::new().write(true).open(site.two.path("raw/b")).unwrap().write_all(b"BOTH").unwrap();
    drop(file);
    assert_eq!(site.wait("2").code, 0);
    site.one.must_read("raw/b", "BOTH hosts");
    site.two.must_read("up/b", "BOTH HOSTS");
    // The program fails: the file stays, and the job can be retried.
    fs::write(site.one.place.path("fail"), "").unwrap();
    site.one.write("raw/c", "text");
    assert_eq!(site.wait("3").code, 1);
    assert!(site.is_nowhere("up/c"));
    site.two.must_read("raw/c", "text");
    fs::remove_file(site.one.place.path("fail")).unwrap();
    site.one.done(&["job", "retry", "--allow-root", "3"]);
    site.two.must_read("up/c", "TEXT");
    // The writer gives up; a process on another host may do so, too.
    for (job, name, on_one) in [("4", "d", true), ("5", "e", false)] {
        let mut file = Site::create(&site.one, name);
        file.write_all(b"more text").unwrap();
        site.until_read("more text");
        fs::write(site.one.place.path("mark"), "").unwrap();
        let path = if on_one { &site.one } else { &site.two }.path("raw").join(name);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.outrigger.abort", b"1", flags).unwrap();
        drop(file);
        assert_eq!(site.wait(job).code, 1);
        let (raw, up) = (format!("raw/{name}"), format!("up/{name}"));
        site.until(|| site.is_nowhere(&raw));
        assert!(site.is_nowhere(&up));
    }
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.shared.check(&site.one);
}

#[test]
fn when_the_mount_is_killed_the_job_fails_and_what_was_synced_can_be_run_over() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}"]);
    site.agent(true, "one");
    let writer = Writer::new(&site.one, "exec > raw/a; printf synced; sync raw/a; printf ', and not'");
    site.until_read("synced, and not");
    site.kill();
    drop(writer);
    let said = site.wait("1");
    let why = "its writer was lost: the mount has ended before the file was closed; 6 bytes";
    assert!(said.code == 1 && said.err.contains(why), "{}", said.err);
    site.two.must_read("raw/a", "synced");
    assert!(site.is_nowhere("up/a"));
    site.one.done(&["job", "retry", "--allow-root", "1"]);
    site.two.must_read("up/a", "SYNCED");
    // The new mount goes on with the rule. The job keeps the synced part of its unpublished file.
    site.one.done(&["rule", "remove", "r"]);
    site.rule("1W->1W", &[]);
    let writer = Writer::new(&site.one, "exec > raw/b; printf hidden; sync raw/b; printf ' and lost'");
    site.until_read("hidden and lost");
    assert!(site.run(&["cat", "raw/b"]).code != 0 && !site.two.path("raw/b").exists());
    site.kill();
    drop(writer);
    let said = site.wait("2");
    assert!(said.code == 1 && said.err.contains(why), "{}", said.err);
    assert!(site.is_nowhere("raw/b"));
    site.one.done(&["gc"]);
    site.one.done(&["job", "retry", "--allow-root", "2"]);
    site.two.must_read("raw/b", "HIDDEN");
    let writer = Writer::new(&site.one, "exec > raw/c; printf 'all of it'");
    site.until_read("all of it");
    site.kill();
    drop(writer);
    let said = site.wait("3");
    assert!(said.code == 1 && said.err.contains("nothing of the file was stored"), "{}", said.err);
    assert!(site.is_nowhere("raw/c"));
    site.one.done(&["node", "drain", "one", "--wait"]);
    let schema = &site.shared.schema;
    let left = format!("SELECT count(*) FROM {schema}.record WHERE kind = 'open-version'");
    assert_eq!(site.shared.server.sql(&left), "0");
    site.shared.check(&site.two);
}

#[test]
fn when_the_mount_loses_its_session_its_programs_are_stopped_and_their_outputs_vanish() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->2W", &["--out", "up/{name}"]);
    site.agent(true, "one");
    let mut file = Site::create(&site.one, "a");
    file.write_all(b"some").unwrap();
    site.until_read("some");
    // The server sees this when a host is cut off for longer than its lease and a collector runs.
    let sql = format!(
        "DELETE FROM {}.session WHERE process = {} AND role = '\"mount\"'",
        site.shared.schema,
        site.one.child.id()
    );
    site.shared.server.sql(&sql);
    // The program ends without its writer, whose file is from then on like any other.
    let said = site.wait("1");
    assert!(said.code == 1 && said.err.contains("its writer was lost"), "{}", said.err);
    file.write_all(b"more").and_then(|()| file.sync_all()).unwrap();
    drop(file);
    site.two.must_read("raw/a", "somemore");
    assert!(site.is_nowhere("up/a"));
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.shared.check(&site.two);
}

#[test]
fn what_is_processed_in_its_place_is_never_seen_raw_on_any_host() {
    let Some(mut site) = Site::new() else { return };
    site.rule("1W->1W", &["--tries", "1"]);
    site.agent(true, "one");
    let mut file = Site::create(&site.one, "a");
    file.write_all(b"raw text").unwrap();
    file.sync_all().unwrap();
    site.until_read("raw text");
    assert_eq!(file.metadata().unwrap().len(), 8);
    for host in [&site.one, &site.two] {
        assert_eq!(fs::read_dir(host.path("raw")).unwrap().count(), 0);
    }
    assert!(!site.two.path("raw/a").exists() && site.run(&["cat", "raw/a"]).code != 0);
    assert!(OpenOptions::new().write(true).create_new(true).open(site.two.path("raw/a")).is_err());
    drop(file);
    assert_eq!(site.wait("1").code, 0);
    for host in [&site.one, &site.two] {
        host.must_read("raw/a", "RAW TEXT");
    }
    // By `cp`, which checks the file that it has made.
    site.one.write("plain", "copied");
    super::copy(&site.one.path("plain"), &site.one.path("raw/b"));
    assert_eq!(site.wait("2").code, 0);
    site.two.must_read("raw/b", "COPIED");
    // The program fails: nothing is visible, and the written data is kept for a retry.
    fs::write(site.one.place.path("fail"), "").unwrap();
    site.one.write("raw/c", "kept");
    assert_eq!(site.wait("3").code, 1);
    assert!(site.is_nowhere("raw/c"));
    site.one.done(&["gc"]);
    fs::remove_file(site.one.place.path("fail")).unwrap();
    site.one.done(&["job", "retry", "--allow-root", "3"]);
    site.two.must_read("raw/c", "KEPT");
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.shared.check(&site.one);
}

#[test]
fn a_run_that_follows_waits_for_one_file_in_any_mount_of_its_host() {
    let Some(site) = Site::new() else { return };
    // A second mount of the same host.
    fs::create_dir(site.one.place.path("more")).unwrap();
    site.one.done(&["mount", "more"]);
    let args = "run --follow --sandbox off --pattern 1W->2W --in raw/* --out up/{name} --attach path";
    let args: Vec<&str> = args.split(' ').chain(["--", "tr", "a-z", "A-Z"]).collect();
    let begin = || Waits::begin(command(&site.one.place, &site.one.url, &args));
    for (at, name) in [("more/raw", "1"), ("mnt/raw", "2")] {
        let waits = begin();
        fs::write(site.one.place.path(at).join(name), format!("text {name}")).unwrap();
        let said = waits.end();
        assert_eq!(said.code, 0, "{}", said.err);
        site.two.must_read(&format!("up/{name}"), format!("TEXT {name}"));
    }
    site.one.write("raw/later", "x");
    assert_eq!(
        site.one.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(),
        2,
        "one file each\n{}",
        site.one.done(&["jobs"]).text()
    );
    // Each mount would know only its own files, so several files need a single mount.
    let several = "run --follow --sandbox off --pattern #W->1W --in raw/x --in raw/y --out both -- cat";
    let said = site.run(&several.split(' ').collect::<Vec<_>>());
    assert!(said.code == 2 && said.err.contains("mounted 2 times here"), "{} {}", said.code, said.err);
    site.one.done(&["unmount", "more"]);
    site.shared.check(&site.one);
}

#[test]
fn what_overwrites_a_file_is_seen_until_the_output_takes_its_place() {
    let Some(mut site) = Site::new() else { return };
    site.one.write("raw/a", "before");
    site.rule("1W->1W", &["--tries", "1"]);
    site.agent(true, "one");
    let writer = Writer::new(&site.one, "{ printf first; read end; } | tee raw/a > /dev/null");
    site.until_read("first");
    // The writer's host sees the data; other hosts see it after the close.
    site.one.must_read("raw/a", "first");
    site.two.must_read("raw/a", "before");
    drop(writer);
    assert_eq!(site.wait("1").code, 0);
    for host in [&site.one, &site.two] {
        host.must_read("raw/a", "FIRST");
    }
    // Overwritten on the other host before the program has ended: the new data does not mix in.
    let hold = site.one.place.path("hold");
    fs::write(&hold, "").unwrap();
    Site::overwrite(&site.one, "a").write_all(b"second").unwrap();
    site.until_read("second");
    site.until(|| fs::read(site.two.path("raw/a")).unwrap() == b"second");
    let mut file = Site::overwrite(&site.two, "a");
    assert_eq!(site.wait("2").code, 1);
    assert!(site.one.done(&["job", "show", "2"]).text().contains("overwritten"));
    file.write_all(b"third").unwrap();
    fs::remove_file(&hold).unwrap();
    drop(file);
    assert_eq!(site.wait("3").code, 0);
    site.one.must_read("raw/a", "THIRD");
    // If a program fails, the written data stays. If the writer gives up, it stays as well.
    fs::write(site.one.place.path("fail"), "").unwrap();
    Site::overwrite(&site.one, "a").write_all(b"fourth").unwrap();
    assert_eq!(site.wait("4").code, 1);
    site.two.must_read("raw/a", "fourth");
    fs::remove_file(site.one.place.path("fail")).unwrap();
    let mut file = Site::overwrite(&site.one, "a");
    file.write_all(b"fifth").unwrap();
    rustix::fs::fsetxattr(&file, "user.outrigger.abort", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    drop(file);
    assert_eq!(site.wait("5").code, 1);
    site.two.must_read("raw/a", "fifth");
    // The mount is killed: unsynced data is lost, and the job says that bytes may be older. `tee`
    // closes nothing; a shell's `>` would, and would store the empty file.
    let writer = Writer::new(&site.one, "{ printf 'and lost'; read end; } | tee raw/a > /dev/null; true");
    site.until_read("and lost");
    site.kill();
    drop(writer);
    let said = site.wait("6");
    assert!(
        said.code == 1 && said.err.contains("5 bytes of it are there, maybe from before"),
        "{}",
        said.err
    );
    site.two.must_read("raw/a", "fifth");
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.shared.check(&site.two);
}

#[test]
fn what_is_overwritten_is_given_to_programs_of_every_pattern() {
    let Some(mut site) = Site::new() else { return };
    site.one.write("raw/a", "before");
    site.agent(true, "one");
    for (number, pattern) in (1..).zip(["1W->2W", "1W->0"]) {
        let out: &[&str] = if pattern == "1W->2W" { &["--out", "up/{name}"] } else { &[] };
        site.rule(pattern, out);
        let mut file = Site::overwrite(&site.one, "a");
        let text = format!("text {number}");
        file.write_all(text.as_bytes()).unwrap();
        site.until_read(&text);
        drop(file);
        assert_eq!(site.wait(&number.to_string()).code, 0, "{pattern}");
        site.two.must_read("raw/a", &text);
        site.one.done(&["rule", "remove", "r"]);
    }
    site.two.must_read("up/a", "TEXT 1");
    let many = "rule add r --quiet --on write --in raw/* --sandbox off --pattern 1W->#W --out parts/ -- split -b 2 - p-";
    site.one.done(&many.split(' ').collect::<Vec<_>>());
    Site::overwrite(&site.one, "a").write_all(b"manY").unwrap();
    assert_eq!(site.wait("3").code, 0);
    site.two.must_read("parts/p-aa", "ma");
    site.two.must_read("parts/p-ab", "nY");
    // Data that was read is overwritten: the program runs again over the new content.
    site.one.done(&["rule", "remove", "r"]);
    site.rule("1W->2W", &["--out", "up/{name}"]);
    let file = Site::overwrite(&site.one, "a");
    file.write_all_at(b"wrong text", 0).unwrap();
    site.until_read("wrong text");
    file.write_all_at(b"right", 0).unwrap();
    drop(file);
    assert_eq!(site.wait("4").code, 0);
    site.two.must_read("up/a", "RIGHT TEXT");
    site.one.done(&["node", "drain", "one", "--wait"]);
    site.shared.check(&site.one);
}

#[test]
fn several_files_that_are_written_in_one_mount_are_read_into_one() {
    let Some(mut site) = Site::new() else { return };
    let mark = site.one.place.path("mark").display().to_string();
    let script = format!("tee -a {mark} | tr a-z A-Z");
    let run = |site: &Site, out: &str| {
        let head = "run --follow --sandbox off --pattern #W->1W --in raw/a --in raw/b --out";
        let args: Vec<&str> = head.split(' ').chain([out, "--", "sh", "-c", &script]).collect();
        Waits::begin(command(&site.one.place, &site.one.url, &args))
    };
    // The second file exists first and is read last; each is read while it is written.
    let waits = run(&site, "both");
    let mut b = Site::create(&site.one, "b");
    b.write_all(b"second").unwrap();
    let mut a = Site::create(&site.one, "a");
    a.write_all(b"first, ").unwrap();
    site.until_read("first, ");
    drop(a);
    site.until_read("first, second");
    b.write_all(b" one").unwrap();
    site.until_read("second one");
    assert!(site.is_nowhere("both"));
    drop(b);
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    site.two.must_read("both", "FIRST, SECOND ONE");
    // Data of one file that was read changes, and the other file is overwritten.
    let waits = run(&site, "both");
    let a = Site::overwrite(&site.one, "a");
    a.write_all_at(b"wrong", 0).unwrap();
    site.until_read("wrong");
    a.write_all_at(b"right", 0).unwrap();
    drop(a);
    site.one.write("raw/b", " again");
    let said = waits.end();
    assert_eq!(said.code, 0, "{}", said.err);
    site.two.must_read("both", "RIGHT AGAIN");
    // If one file is given up, the whole job fails.
    let waits = run(&site, "none");
    let (a, b) = (Site::overwrite(&site.one, "a"), Site::overwrite(&site.one, "b"));
    rustix::fs::fsetxattr(&b, "user.outrigger.abort", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    drop((a, b));
    let said = waits.end();
    assert!(said.code == 1 && said.err.contains("gave the file up"), "{} {}", said.code, said.err);
    assert!(site.is_nowhere("none"));
    // The mount is killed: the job fails, and can run over the stored data.
    let waits = run(&site, "left");
    Site::overwrite(&site.one, "a").write_all(b"closed, ").unwrap();
    site.until_read("closed, ");
    let writer = Writer::new(&site.one, "exec > raw/b; printf synced; sync raw/b; printf ', and not'");
    site.until_read("synced, and not");
    site.kill();
    drop(writer);
    let said = waits.end();
    let why = "the mount has ended before its files were closed; 14 bytes of them are there";
    assert!(said.code == 1 && said.err.contains(why), "{} {}", said.code, said.err);
    assert!(site.is_nowhere("left"));
    let job = site.one.done(&["jobs", "--json"]).json()["jobs"][0]["job"].to_string();
    site.one.done(&["job", "retry", "--allow-root", &job]);
    site.two.must_read("left", "CLOSED, SYNCED");
    site.shared.check(&site.two);
}
