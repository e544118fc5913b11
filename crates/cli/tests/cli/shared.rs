//! Several mounts of a PostgreSQL store: what they see of each other, and what a kill leaves.

mod anonymous;
mod follow;
mod locks;
mod marked;
mod path;
mod recovered;
mod yields;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_workload::postgres::Server;
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use crate::run::{Place, Said};

/// A workplace with its own cache. A child mounts the store on `mnt`; it is killed on drop.
pub struct Host {
    pub place: Place,
    pub url: String,
    pub child: Child,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.place.path("mnt")).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `is` holds, or fails after so many seconds with the output of the command `log`.
#[track_caller]
pub fn until(host: &Host, within: u64, log: &[&str], mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(within);
    while !is() {
        assert!(Instant::now() < end, "it never came to be\n{}", host.done(log).text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A store in its own schema.
pub struct Shared {
    pub server: Server,
    pub schema: String,
    pub packs: tempfile::TempDir,
}

impl Shared {
    /// `None`, with a line that says so, without FUSE or PostgreSQL.
    pub fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// With more options of `init`.
    pub fn with(options: &[&str]) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        let server = Server::own_database()?;
        let schema = server.fresh();
        let shared = Self { server, schema, packs: tempfile::tempdir().unwrap() };
        let place = Place::empty();
        let packs = format!("file:{}", shared.packs.path().display());
        let init = [&["init", "--packs", &packs], options].concat();
        let init = command(&place, &shared.url(), &init).output().unwrap();
        assert_eq!(Said::from(init).code, 0);
        Some(shared)
    }

    pub fn url(&self) -> String {
        self.server.url(&self.schema)
    }

    pub fn mount(&self) -> Host {
        Host::new(self.url(), &[])
    }

    pub fn check(&self, host: &Host) {
        host.done(&["check", "--read-data"]);
        outrigger_workload::eventually("no lock is left", || self.server.advisory_locks() == 0);
    }
}

pub fn command(place: &Place, url: &str, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env("OUTRIGGER_STORE", url).env("OUTRIGGER_CACHE", place.path("cache"));
    command
}

fn start(place: &Place, url: &str) -> Child {
    start_with(place, url, &[], &[])
}

fn start_with(place: &Place, url: &str, environment: &[(&str, &str)], options: &[&str]) -> Child {
    let mut command = command(place, url, &["mount", "--foreground", "mnt"]);
    command.args(options).envs(environment.iter().copied());
    let said = File::options().create(true).append(true).open(place.path("said")).unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
    let above = fs::metadata(place.path("")).unwrap().dev();
    // When all tests run at once, a small machine is busy for long.
    for _ in 0..1500 {
        if fs::metadata(place.path("mnt")).is_ok_and(|mounted| mounted.dev() != above) {
            return child;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let said = fs::read_to_string(place.path("said")).unwrap_or_default();
    panic!("nothing was mounted for half a minute: {:?}, {said}", child.wait());
}

impl Host {
    /// A mount whose process has more environment variables.
    pub fn new(url: String, environment: &[(&str, &str)]) -> Self {
        Self::with(url, environment, &[])
    }

    /// As [`Host::new`], with options.
    fn with(url: String, environment: &[(&str, &str)], options: &[&str]) -> Self {
        let place = Place::empty();
        fs::create_dir(place.path("mnt")).unwrap();
        let child = start_with(&place, &url, environment, options);
        Self { place, url, child }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    /// The messages of its process.
    pub fn said(&self) -> String {
        fs::read_to_string(self.place.path("said")).unwrap()
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> Said {
        let said = Said::from(command(&self.place, &self.url, args).output().unwrap());
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    #[track_caller]
    pub fn must_read(&self, name: &str, bytes: impl AsRef<[u8]>) {
        assert!(fs::read(self.path(name)).unwrap() == bytes.as_ref(), "{name}");
    }

    /// Ends the process as a crash would, and mounts again.
    fn kill_and_mount(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(self.place.path("mnt")).status().unwrap().success());
        self.mount_again();
    }

    /// Mounts again where a mount has ended.
    pub fn mount_again(&mut self) {
        self.child = start(&self.place, &self.url);
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn what_one_mount_has_closed_the_others_open_and_commands_too() {
    let Some(shared) = Shared::new() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    one.write("f", "first");
    two.must_read("f", "first");
    // The other host shows the new content and not its kernel's cache.
    for round in 0..20 {
        let text = format!("round {round}");
        one.write("f", &text);
        two.must_read("f", &text);
        fs::rename(two.path("f"), two.path("g")).unwrap();
        one.must_read("g", &text);
        assert!(!one.path("f").exists());
        fs::rename(one.path("g"), one.path("f")).unwrap();
        let mut appended = OpenOptions::new().append(true).open(two.path("f")).unwrap();
        appended.write_all(b"!").unwrap();
        appended.sync_all().unwrap();
        one.must_read("f", format!("{text}!"));
    }
    let exclusive = OpenOptions::new().write(true).create_new(true).open(two.path("f"));
    assert_eq!(exclusive.unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::set_permissions(one.path("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(two.path("f")).unwrap().mode() & 0o777, 0o600);
    // A whole tree, written on one host, read and removed on the other.
    let tree = one.place.path("tree");
    source_tree(&tree, &TreeOptions::new(7, 60)).unwrap();
    copy(&tree, &one.path("tree"));
    assert_eq!(compare_trees(&tree, &two.path("tree")).unwrap(), []);
    one.done(&["snapshot", "create", "s"]);
    fs::remove_dir_all(two.path("tree")).unwrap();
    assert!(!one.path("tree").exists());
    assert_eq!(compare_trees(&tree, &two.path(".snapshots/s/tree")).unwrap(), []);
    // Commands, while both are mounted.
    assert_eq!(one.done(&["cat", "f"]).text(), "round 19!");
    one.done(&["put", tree.to_str().unwrap(), "--to", "put"]);
    assert_eq!(compare_trees(&tree, &two.path("put")).unwrap(), []);
    one.done(&["gc"]);
    assert_eq!(compare_trees(&tree, &two.path("put")).unwrap(), []);
    shared.check(&one);
}

#[test]
fn status_shows_the_mounts_of_all_hosts_and_their_sessions() {
    let Some(shared) = Shared::new() else { return };
    let (one, mut two) = (shared.mount(), shared.mount());
    one.write("f", "first");
    two.must_read("f", "first");
    let standing = |host: &Host, what: &str| {
        let said = host.done(&["status", "--json"]).json();
        let sessions = said["sessions"].as_array().unwrap().clone();
        let of =
            sessions.iter().filter(|session| session["command"] == "mount" && session["kind"] == "writer");
        of.filter(|session| session["standing"] == what)
            .map(|session| session["process"].clone())
            .collect::<Vec<_>>()
    };
    let mut processes = [one.child.id(), two.child.id()];
    processes.sort_unstable();
    assert_eq!(standing(&one, "live"), processes);
    assert!(one.done(&["status"]).text().contains(&format!("process {}", processes[0])));
    // The remaining leases; a database administrator finds the sessions by name.
    let status = one.done(&["status", "--json"]).json();
    for session in status["sessions"].as_array().unwrap() {
        let (left, id) = (session["lease_left_secs"].as_u64().unwrap(), &session["id"]);
        assert!((1..=60).contains(&left), "{session}");
        if session["command"] == "mount" && session["kind"] == "writer" {
            let named = "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE 'outrigger mount, session %'";
            assert_eq!(shared.server.sql(named), "t", "{id}");
        }
    }
    let place = &status["places"][0];
    assert!(place["bytes"].as_u64().is_some() && place["free_bytes"].as_u64() > Some(0), "{status}");
    // Each host lists the mount points of both.
    let mounts = |host: &Host| host.done(&["status", "--json"]).json()["mounts"].as_array().unwrap().clone();
    for host in [&one, &two] {
        let point = host.place.path("mnt").canonicalize().unwrap();
        let of = mounts(&one).into_iter().find(|mount| mount["point"].as_str() == point.to_str());
        assert_eq!(of.unwrap()["process"], host.child.id());
    }
    assert_eq!(mounts(&two).len(), 2);
    // The samples of a mount on this host.
    let live = one.done(&["stats", "--live", "--count", "1", "--json"]).json();
    assert!(live["written_bytes"].as_u64().unwrap() > 0, "{live}");
    let mut other = command(&one.place, &one.url, &["stats", "--live", "--session", "1000000"]);
    let said = Said::from(other.output().unwrap());
    assert!(said.code == 1 && said.err.contains("no mount of"), "{} {}", said.code, said.err);
    let sql = format!(
        "UPDATE {}.session SET lease_until = 1, lease_secs = 0 WHERE process = {}",
        shared.schema,
        two.child.id()
    );
    // Stopped, so that it does not renew its lease.
    let signal =
        |name: &str| Command::new("kill").arg(name).arg(two.child.id().to_string()).status().unwrap();
    assert!(signal("-STOP").success());
    std::thread::sleep(Duration::from_millis(300));
    shared.server.sql(&sql);
    assert_eq!(standing(&one, "over"), [two.child.id()]);
    assert!(signal("-CONT").success());
    // An unmounted mount leaves nothing behind.
    two.done(&["unmount", "mnt"]);
    assert!(two.child.wait().unwrap().success());
    assert_eq!(fs::read_dir(two.place.path("cache")).unwrap().count(), 1);
    let cache = fs::read_dir(two.place.path("cache")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(cache.join("mounts")).unwrap().count(), 0);
    drop(one);
}

/// A mount caches names: its own changes show at once, others' later, and content is never old.
#[test]
fn names_that_count_for_a_while_lead_to_what_is_there_now() {
    let Some(shared) = Shared::new() else { return };
    let one = Host::with(shared.url(), &[], &["--names-for", "2"]);
    let two = shared.mount();
    fs::create_dir(two.path("d")).unwrap();
    one.write("d/moved", "first");
    one.write("d/gone", "first");
    one.must_read("d/moved", "first");
    // The mount asks for the file that a name leads to.
    two.write("d/moved", "second, and longer");
    one.must_read("d/moved", "second, and longer");
    two.write("new", "there");
    one.must_read("new", "there");
    // Own changes are seen at once.
    fs::rename(one.path("new"), one.path("newer")).unwrap();
    assert_eq!(fs::metadata(one.path("new")).unwrap_err().kind(), ErrorKind::NotFound);
    one.must_read("newer", "there");
    fs::rename(two.path("d/moved"), two.path("d/there")).unwrap();
    fs::remove_file(two.path("d/gone")).unwrap();
    // A removed file cannot be opened, even if its name is cached.
    assert_eq!(File::open(one.path("d/gone")).unwrap_err().kind(), ErrorKind::NotFound);
    one.must_read("d/there", "second, and longer");
    // In the end the names are right, although they are used all the time.
    let until = Instant::now() + Duration::from_secs(60);
    while fs::symlink_metadata(one.path("d/moved")).is_ok() {
        assert!(Instant::now() < until, "a name was never looked for again");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A mount knows all names in a directory that it made. A host told of the directory sees it.
    fs::create_dir(one.path("own")).unwrap();
    two.write("own/theirs", "theirs");
    two.write("own/later", "later");
    assert_eq!(File::create_new(one.path("own/theirs")).unwrap_err().kind(), ErrorKind::AlreadyExists);
    let mut theirs = OpenOptions::new().append(true).create(true).open(one.path("own/theirs")).unwrap();
    theirs.write_all(b" and ours").unwrap();
    drop(theirs);
    one.must_read("own/theirs", "theirs and ours");
    let until = Instant::now() + Duration::from_secs(60);
    while fs::symlink_metadata(one.path("own/later")).is_err() {
        assert!(Instant::now() < until, "another host's name was never looked for");
        std::thread::sleep(Duration::from_millis(50));
    }
    one.must_read("own/later", "later");
    shared.check(&two);
}

#[test]
fn a_mount_that_is_unmounted_ends_well_and_leaves_nothing_on_its_host() {
    let Some(shared) = Shared::new() else { return };
    let mut host = shared.mount();
    host.write("f", "there");
    host.done(&[
        "rule",
        "add",
        "r",
        "--on",
        "write",
        "--in",
        "nowhere/*",
        "--pattern",
        "1W->0",
        "--",
        "true",
    ]);
    assert!(Command::new("umount").arg(host.place.path("mnt")).status().unwrap().success());
    assert!(host.child.wait().unwrap().success(), "{}", host.said());
    let mounts = host.place.path("cache");
    let left = fs::read_dir(&mounts).unwrap().flat_map(|store| {
        let of_store = store.unwrap().path().join("mounts");
        fs::read_dir(of_store).into_iter().flatten().map(|entry| entry.unwrap().path())
    });
    assert_eq!(left.collect::<Vec<_>>(), [] as [PathBuf; 0]);
    shared.mount().must_read("f", "there");
}

#[test]
fn a_mount_that_is_killed_loses_what_was_not_closed_and_leaves_nothing_half_done() {
    let Some(shared) = Shared::new() else { return };
    let (mut one, two) = (shared.mount(), shared.mount());
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    one.write("kept", &large);
    one.write("synced", "");
    // By processes that close nothing: a child of this process would close inherited files.
    let writes = |script: &str, name: &str| {
        let before = fs::metadata(one.path(name)).unwrap().modified().unwrap();
        let mut writer = Command::new("sh");
        let writer = writer.args(["-c", &format!("{script}; read end")]).current_dir(one.path(""));
        let writer = writer.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        while fs::metadata(one.path(name)).unwrap().modified().unwrap() == before {
            std::thread::sleep(Duration::from_millis(10));
        }
        writer
    };
    let mut writers = [
        writes("exec >> synced; printf synced; sync synced; printf ', and more'", "synced"),
        writes("exec 1<> kept; printf %01000000d 0", "kept"),
    ];
    while fs::metadata(one.path("synced")).unwrap().len() != 16 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::metadata(two.path("synced")).unwrap().len(), 6);
    one.kill_and_mount();
    for writer in &mut writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    for host in [&one, &two] {
        host.must_read("kept", &large);
        host.must_read("synced", "synced");
    }
    // Killed in the middle of anything.
    let tree = one.place.path("tree");
    source_tree(&tree, &TreeOptions::new(8, 60)).unwrap();
    for round in 0..4_u64 {
        let mut copying = Command::new("cp")
            .arg("-a")
            .arg(&tree)
            .arg(one.path(&format!("copy{round}")))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + 150 * round));
        one.kill_and_mount();
        copying.wait().unwrap();
        two.must_read("kept", &large);
        two.done(&["check"]);
    }
    // Closed files are there: each is whole, or not yet written.
    for round in 0..4 {
        let below = two.path(&format!("copy{round}"));
        if below.exists() {
            for difference in compare_trees(&tree, &below).unwrap() {
                let text = format!("{difference:?}");
                let file = text.split('"').nth(1).map(|name| below.join(name));
                let len = file.and_then(|file| fs::metadata(file).ok()).map_or(0, |file| file.len());
                let whole = fs::metadata(tree.join(text.split('"').nth(1).unwrap_or_default()))
                    .map_or(0, |file| file.len());
                assert!(len == 0 || len == whole || below.is_dir(), "{text}");
            }
        }
    }
    one.done(&["gc"]);
    copy(&tree, &one.path("again"));
    assert_eq!(compare_trees(&tree, &two.path("again")).unwrap(), []);
    shared.check(&one);
}

#[test]
fn a_mount_whose_session_was_ended_goes_on_and_says_so() {
    let Some(shared) = Shared::new() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    one.write("f", "before");
    let mut open = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    // The server sees this when a host is cut off for longer than its lease and a collector runs.
    let pid = one.child.id();
    let Shared { server, schema, .. } = &shared;
    server.sql(&format!("DELETE FROM {schema}.session WHERE process = {pid}"));
    open.write_all(b"after!").and_then(|()| open.sync_all()).unwrap();
    fs::create_dir(one.path("d")).unwrap();
    fs::write(one.path("new"), "x").unwrap();
    drop(open);
    two.must_read("f", "after!");
    two.must_read("new", "x");
    let mut said = String::new();
    File::open(one.place.path("said")).unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("the mount continues"), "{said}");
    shared.check(&two);
}

#[test]
fn a_server_that_is_killed_while_mounts_write_comes_back_to_all_that_was_closed() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        outrigger_workload::skipped!("/dev/fuse cannot be opened");
        return;
    }
    let Some(server) = Server::start("fsync = on") else { return };
    let packs = tempfile::tempdir().unwrap();
    let url = server.url("store");
    let place = Place::empty();
    let init = command(&place, &url, &["init", "--packs", &format!("file:{}", packs.path().display())]);
    assert_eq!(Said::from({ init }.output().unwrap()).code, 0);
    fs::create_dir(place.path("mnt")).unwrap();
    let child = start(&place, &url);
    let host = Host { place, url, child };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..60 {
                host.write(&format!("f{number}"), format!("content {number}"));
            }
        });
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(250));
            server.kill().unwrap();
            server.run().unwrap();
        }
        writer.join().unwrap();
    });
    for number in 0..60 {
        host.must_read(&format!("f{number}"), format!("content {number}"));
    }
    host.done(&["check", "--read-data"]);
    drop(host);
}

/// Committed packs, and inline chunks.
fn packs_and_inline(host: &Host) -> (u64, u64) {
    let status = host.done(&["status", "--json"]).json();
    let committed = status["packs"].as_array().unwrap().iter();
    let committed = committed.filter(|packs| packs["state"] == "live" || packs["state"] == "candidate");
    (committed.map(|packs| packs["packs"].as_u64().unwrap()).sum(), status["inline_chunks"].as_u64().unwrap())
}

#[test]
fn small_files_of_a_mount_that_is_killed_are_all_there_and_packed_by_others() {
    let Some(shared) = Shared::new() else { return };
    let (mut one, two) = (shared.mount(), shared.mount());
    let tree = one.place.path("tree");
    source_tree(&tree, &TreeOptions::new(11, 150)).unwrap();
    copy(&tree, &one.path("tree"));
    let of_last = |number: u32| format!("the content of file {number}");
    // Killed before it has packed the last chunks. If it was faster, the loop tries again.
    let mut inline = 0;
    for round in 0..20 {
        for number in 0..100 {
            one.write(&format!("last{number}"), format!("round {round}"));
            one.write(&format!("last{number}"), of_last(number));
        }
        one.child.kill().unwrap();
        one.child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(one.place.path("mnt")).status().unwrap().success());
        inline = packs_and_inline(&two).1;
        if inline > 0 {
            break;
        }
        one.child = start(&one.place, &one.url);
    }
    assert!(inline > 0, "it always was faster");
    // The chunks lie in the database, where every reader finds them.
    for number in 0..100 {
        two.must_read(&format!("last{number}"), of_last(number));
    }
    assert_eq!(compare_trees(&tree, &two.path("tree")).unwrap(), []);
    assert!(two.done(&["status"]).text().contains("of small files in the database"));
    assert_eq!(two.done(&["cat", "last7"]).text(), of_last(7));
    two.done(&["get", "last99", two.place.path("got").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(two.place.path("got")).unwrap(), of_last(99));
    let archive = two.done(&["export", "last5"]).out;
    assert!(archive.windows(21).any(|part| part == &of_last(5).as_bytes()[..21]));
    two.done(&["check", "--read-data"]);
    // Another host packs them when the lease is over.
    let Shared { server, schema, .. } = &shared;
    server.sql(&format!(
        "UPDATE {schema}.session SET lease_until = 1, lease_secs = 0 WHERE process = {}",
        one.child.id()
    ));
    let report = two.done(&["gc", "--json"]).json();
    assert!(report["chunks_packed"].as_u64().is_some(), "{report}");
    // The other mount does so, too, and may have been faster.
    let until = Instant::now() + Duration::from_secs(60);
    let packs = loop {
        let (packs, inline) = packs_and_inline(&two);
        if inline == 0 {
            break packs;
        }
        assert!(Instant::now() < until, "{inline} chunks are not packed");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(packs < 30, "{packs} packs");
    one.child = start(&one.place, &one.url);
    for host in [&one, &two] {
        for number in 0..100 {
            host.must_read(&format!("last{number}"), of_last(number));
        }
    }
    assert_eq!(compare_trees(&tree, &one.path("tree")).unwrap(), []);
    // An unmount leaves no chunk to pack.
    one.write("more", "of it");
    one.done(&["unmount", "mnt"]);
    assert!(one.child.wait().unwrap().success());
    assert_eq!(packs_and_inline(&two).1, 0);
    two.must_read("more", "of it");
    shared.check(&two);
}

#[test]
fn a_file_that_is_read_on_any_host_sets_off_a_rule() {
    let Some(shared) = Shared::new() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    fs::create_dir(one.path("in")).unwrap();
    one.write("in/a", "text");
    let rule = ["rule", "add", "r", "--quiet", "--on", "read", "--in", "in/*", "--out", "up/{name}"];
    one.done(&[&rule[..], &["--sandbox", "off", "--", "tr", "a-z", "A-Z"]].concat());
    let agent = || drop(one.done(&["node", "--allow-root", "--until-idle", "--name", "agent"]));
    agent();
    assert!(!two.path("up/a").exists(), "nobody has read it");
    // Mounts check for rules about once a second, and any agent runs the job.
    let until = Instant::now() + Duration::from_secs(60);
    while !one.path("up/a").exists() {
        assert!(Instant::now() < until, "{}", one.done(&["jobs"]).text());
        two.must_read("in/a", "text");
        agent();
    }
    one.must_read("up/a", "TEXT");
    shared.check(&one);
}
