//! Working in a mount and beside it. Without FUSE these tests say so and pass.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use outrigger_workload::TreeOptions;
use outrigger_workload::eventually;
use rustix::fs::OFlags;

use crate::run::Place;

/// A workplace whose store a child has mounted on `mnt`. Dropping this kills the child.
pub struct Mounts {
    pub place: Place,
    pub child: Child,
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.place.path("mnt")).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mount(place: &Place) -> Child {
    mount_with(place, &[])
}

fn mount_with(place: &Place, options: &[&str]) -> Child {
    let mut command = place.command(&[&["mount", "--foreground"], options, &["mnt"]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parent = fs::metadata(place.path("src")).unwrap().dev();
    eventually("it is mounted", || {
        assert!(child.try_wait().unwrap().is_none(), "the mount ended");
        fs::metadata(place.path("mnt")).is_ok_and(|mounted| mounted.dev() != parent)
    });
    child
}

impl Mounts {
    /// `None` without FUSE.
    pub fn new() -> Option<Self> {
        Self::with(&[])
    }

    /// As [`Mounts::new`], mounted with these options.
    pub fn with(options: &[&str]) -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        let place = Place::new();
        fs::create_dir_all(place.path("src")).unwrap();
        fs::create_dir(place.path("mnt")).unwrap();
        let child = mount_with(&place, options);
        Some(Self { place, child })
    }

    /// Ends the process as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(self.place.path("mnt")).status().unwrap().success());
    }

    pub fn mount(&mut self) {
        self.child = mount(&self.place);
    }
}

#[test]
fn what_was_written_survives_the_end_of_the_mount_however_it_comes() {
    let Some(mut mounts) = Mounts::new() else { return };
    outrigger_workload::source_tree(&mounts.place.path("src/tree"), &TreeOptions::new(3, 80)).unwrap();
    let copy = |place: &Place, to: &str| {
        let done = Command::new("cp").arg("-a").arg(place.path("src/tree")).arg(place.path(to)).status();
        assert!(done.unwrap().success());
    };
    let same = |place: &Place, at: &str| {
        assert_eq!(outrigger_workload::compare_trees(&place.path("src/tree"), &place.path(at)).unwrap(), []);
    };
    copy(&mounts.place, "mnt/one");
    // Killed at once: nothing was synced, and all writes were acknowledged.
    mounts.kill();
    mounts.mount();
    same(&mounts.place, "mnt/one");
    copy(&mounts.place, "mnt/two");
    fs::rename(mounts.place.path("mnt/one"), mounts.place.path("mnt/moved")).unwrap();
    mounts.kill();
    // Without a mount the next command stores the rest.
    assert_eq!(mounts.place.lines(&["ls"]), ["moved", "two"]);
    assert!(!mounts.place.path("store/staging").exists(), "nothing is left staged");
    mounts.mount();
    same(&mounts.place, "mnt/moved");
    same(&mounts.place, "mnt/two");
    mounts.place.done(&["unmount", "mnt"]);
    assert!(mounts.child.wait().unwrap().success());
    mounts.place.done(&["get", "two", "restored"]);
    same(&mounts.place, "restored");
    assert!(!mounts.place.path("store/staging").exists(), "nothing is left staged");
    mounts.place.done(&["check", "--read-data"]);
}

/// Also a file that the mount has not made itself has the policies of its directory.
#[test]
fn what_is_changed_in_a_mount_is_stored_as_its_directory_says() {
    let Some(mut mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    place.write("src/docs/file", "one");
    place.done(&["put", "src/docs"]);
    place.done(&["policy", "set", "docs", "versions=none"]);
    fs::write(place.path("mnt/docs/file"), "two").unwrap();
    place.done(&["unmount", "mnt"]);
    assert!(mounts.child.wait().unwrap().success());
    let versions = place.done(&["versions", "docs/file", "--json"]).json();
    assert_eq!(
        (&versions["current"]["size"], versions["versions"].as_array().unwrap().len()),
        (&3.into(), 0)
    );
}

/// The log of a mount that was killed names inodes that the lost database gave out.
#[test]
fn what_a_killed_mount_staged_is_stored_in_a_recovered_database() {
    let Some(mut mounts) = Mounts::new() else { return };
    mounts.place.write("mnt/stored", "1");
    mounts.place.done(&["snapshot", "create", "one"]);
    mounts.place.write("mnt/staged", "2");
    mounts.kill();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(mounts.place.path(format!("store/meta.db{suffix}"))).unwrap();
    }
    mounts.place.done(&["recover"]);
    assert_eq!(mounts.place.lines(&["ls"]), ["staged", "stored"]);
    assert_eq!(mounts.place.done(&["cat", "staged"]).text(), "2");
    mounts.place.done(&["check", "--read-data"]);
}

#[test]
fn a_mount_that_has_a_device_stores_the_same() {
    let Some(mut mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    place.done(&["unmount", "mnt"]);
    mounts.child.wait().unwrap();
    // All work that the device can do goes there.
    let device = ["--offload", "sim:pcie5-gpu,objective=cpu,cpu_slack=1000"];
    mounts.child = mount_with(place, &device);
    let mut bytes = vec![0; 9 << 20];
    outrigger_workload::Rng::new(4).fill(&mut bytes);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(place.path("mnt/file")).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes);
    drop(file);
    fs::copy(place.path("mnt/file"), place.path("mnt/copy")).unwrap();
    // Twice: at once after the writes, and after all was stored.
    mounts.kill();
    mounts.child = mount_with(&mounts.place, &device);
    let place = &mounts.place;
    assert!(place.read("mnt/file") == bytes && place.read("mnt/copy") == bytes);
    place.done(&["unmount", "mnt"]);
    assert!(mounts.child.wait().unwrap().success());
    place.done(&["check", "--read-data"]);
    // Without a device all chunks have the same fingerprints.
    place.write("src/file", &bytes);
    let again = place.done(&["put", "src/file", "--to", "again", "--json"]).json();
    assert_eq!(again["bytes_new"].as_u64(), Some(0), "{again}");
    mounts.child = mount(&mounts.place);
    assert!(mounts.place.read("mnt/file") == bytes && mounts.place.read("mnt/again") == bytes);
}

#[test]
fn commands_beside_a_mount_see_what_it_has_and_it_sees_what_they_did() {
    let Some(mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    place.write("mnt/file", "first");
    assert_eq!(place.lines(&["ls"]), ["file"]);
    assert_eq!(place.done(&["cat", "file"]).text(), "first");
    place.done(&["snapshot", "create", "before"]);
    place.write("mnt/file", "second");
    fs::create_dir(place.path("mnt/dir")).unwrap();
    assert_eq!(place.done(&["cat", "--at", "before", "file"]).text(), "first");
    assert_eq!(place.read("mnt/.snapshots/before/file"), b"first");
    assert!(fs::write(place.path("mnt/.snapshots/before/file"), "no").is_err());
    // Commands' changes show in the mount, also to processes that have looked before.
    place.write("src/new", "put beside it");
    place.done(&["put", "src/new", "--to", "dir/new"]);
    assert_eq!(place.read("mnt/dir/new"), b"put beside it");
    place.done(&["mv", "file", "dir/moved"]);
    assert!(!place.path("mnt/file").exists());
    assert_eq!(place.read("mnt/dir/moved"), b"second");
    place.write("mnt/dir/moved", "third");
    place.done(&["rm", "dir/new"]);
    assert!(!place.path("mnt/dir/new").exists());
    place.done(&["gc"]);
    place.done(&["check", "--read-data"]);
    assert_eq!(place.done(&["cat", "dir/moved"]).text(), "third");
    assert_eq!(place.read("mnt/dir/moved"), b"third");
    let versions = place.lines(&["versions", "dir/moved"]);
    assert!(versions.len() >= 2, "closed contents are versions: {versions:?}");
}

#[test]
fn the_control_socket_outlives_what_its_clients_do() {
    let Some(mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    let asks = || place.done(&["stats", "--live", "--count", "1", "--json"]);
    asks();
    let connect = || UnixStream::connect(place.path("store/mount.sock")).unwrap();
    // An endless line is refused before it takes much memory.
    let mut endless = connect();
    let block = vec![b'x'; 1 << 20];
    assert!((0..64).any(|_| endless.write_all(&block).is_err()), "64 MiB of a line are taken");
    asks();
    // More clients than the mount may have open files.
    let pid = mounts.child.id().to_string();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let limit = |most: u64| {
        let limit = format!("--nofile={most}:");
        Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success()
    };
    assert!(limit(open + 4));
    let clients: Vec<UnixStream> = (0..50).map(|_| connect()).collect();
    let is_full = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64 >= open + 3;
    eventually("the mount has no more files to open", is_full);
    drop(clients);
    assert!(limit(1024));
    asks();
    place.write("mnt/file", "and goes on");
    assert_eq!(place.done(&["cat", "file"]).text(), "and goes on");
}

#[test]
fn files_behave_as_on_a_disk() {
    let Some(mounts) = Mounts::new() else { return };
    let at = |name: &str| mounts.place.path(format!("mnt/{name}"));
    let open =
        |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(at(name));
    // A sparse file of terabytes.
    let file = open("sparse").unwrap();
    file.write_all_at(b"end", 5 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (5 << 40) + 3);
    assert!(file.metadata().unwrap().blocks() < 1000);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap() >> 12, (5 << 40) >> 12);
    // Copied bytes are not written again.
    let bytes = vec![7; 3 << 20];
    fs::write(at("source"), &bytes).unwrap();
    File::open(at("source")).unwrap().sync_all().unwrap();
    fs::copy(at("source"), at("copy")).unwrap();
    assert!(fs::read(at("copy")).unwrap() == bytes);
    // An open file can lose its name.
    let mut gone = open("gone").unwrap();
    gone.write_all(b"still here").unwrap();
    fs::remove_file(at("gone")).unwrap();
    let mut back = [0; 10];
    gone.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"still here");
    // Appending from two handles.
    let appender = || OpenOptions::new().append(true).create(true).open(at("log")).unwrap();
    let (mut one, mut other) = (appender(), appender());
    for _ in 0..50 {
        one.write_all(b"one ").unwrap();
        other.write_all(b"two ").unwrap();
    }
    assert_eq!(fs::read(at("log")).unwrap(), b"one two ".repeat(50));
    // Holes, allocation, locks, modes.
    let file = open("holes").unwrap();
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).unwrap();
    let mut part = [9; 8192];
    file.read_exact_at(&mut part, 4096).unwrap();
    assert!(part.iter().all(|byte| *byte == 0));
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let other = open("holes").unwrap();
    assert!(rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err());
    fs::set_permissions(at("holes"), fs::Permissions::from_mode(0o604)).unwrap();
    let mut text = String::new();
    let fifo = Command::new("mkfifo").arg(at("fifo")).status().unwrap();
    assert!(fifo.success());
    Command::new("stat")
        .args(["-c", "%F %a"])
        .args([at("fifo"), at("holes")])
        .output()
        .unwrap()
        .stdout
        .as_slice()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "fifo 644\nregular file 604\n");
}

#[test]
fn a_snapshot_does_not_grow_with_the_tree() {
    let Some(mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    fs::create_dir(place.path("mnt/many")).unwrap();
    for number in 0..2000 {
        place.write(format!("mnt/many/{number}"), "x");
    }
    place.done(&["snapshot", "create", "one"]);
    let database = || fs::metadata(place.path("store/meta.db")).unwrap().len();
    let before = database();
    for round in 0..20 {
        place.write("mnt/changed", format!("{round}"));
        place.done(&["snapshot", "create", &format!("again-{round}")]);
    }
    assert!(database() - before < 64 << 10, "{} bytes more", database() - before);
}

/// FUSE's atomic `O_TRUNC` empties the file before the kernel checks whether it is being executed.
#[test]
fn a_running_program_is_not_emptied() {
    let Some(mounts) = Mounts::new() else { return };
    let program = mounts.place.path("mnt/program");
    fs::copy("/bin/sleep", &program).unwrap();
    let text = fs::read(&program).unwrap();
    let mut running = Command::new(&program).arg("100").spawn().unwrap();
    for (flags, how) in [(OFlags::TRUNC, "to empty it"), (OFlags::WRONLY, "to write it")] {
        let opened = rustix::fs::open(&program, flags, rustix::fs::Mode::empty());
        assert_eq!(opened.err(), Some(rustix::io::Errno::TXTBSY), "opened {how}");
        assert!(fs::read(&program).unwrap() == text);
    }
    assert!(running.try_wait().unwrap().is_none(), "it still runs");
    running.kill().unwrap();
    running.wait().unwrap();
    // The kernel reports the program's end a moment later.
    fs::write(&program, b"another").unwrap();
    assert_eq!(fs::read(&program).unwrap(), b"another");
}

/// A command that waits for input, or is stopped (Ctrl-Z), does not block the mount's writers.
#[test]
fn a_slow_command_beside_a_mount_stops_nobody() {
    let Some(mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    place.write("mnt/dir/old", "before");
    let mut command = place.command(&["put", "-", "--to", "dir/slow"]);
    let mut slow = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    slow.stdin.as_mut().unwrap().write_all(&[7; 3 << 20]).unwrap();
    assert!(Command::new("kill").args(["-s", "STOP", &slow.id().to_string()]).status().unwrap().success());
    // Changes that the command must tolerate, also in its target directory.
    for n in 0..50 {
        place.write(format!("mnt/dir/{n}"), format!("{n}"));
    }
    fs::remove_file(place.path("mnt/dir/old")).unwrap();
    assert!(Command::new("kill").args(["-s", "CONT", &slow.id().to_string()]).status().unwrap().success());
    drop(slow.stdin.take());
    assert!(slow.wait().unwrap().success());
    assert!(place.read("mnt/dir/slow") == [7; 3 << 20]);
    assert_eq!(fs::read_dir(place.path("mnt/dir")).unwrap().count(), 51);
    place.write("mnt/dir/slow", "changed in the mount");
    assert_eq!(place.done(&["cat", "dir/slow"]).text(), "changed in the mount");
    place.done(&["check", "--read-data"]);
}

/// A client holds a mount and then says nothing more. The mount's writers wait for a minute; then
/// the client's session is over.
#[test]
#[ignore = "slow: waits for a minute"]
fn whoever_holds_a_mount_and_falls_silent_is_ended() {
    let Some(mounts) = Mounts::new() else { return };
    let place = &mounts.place;
    let mut command = place.command(&["put", "-", "--to", "slow"]);
    let mut slow =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    slow.stdin.as_mut().unwrap().write_all(b"some").unwrap();
    let mut number = None;
    eventually("it has a session", || {
        let status = place.done(&["status", "--json"]).json();
        let sessions = status["sessions"].as_array().unwrap();
        let put = sessions.iter().find(|session| session["command"] == "put");
        number = put.and_then(|session| session["id"].as_u64());
        number.is_some()
    });
    let mut socket = UnixStream::connect(place.path("store/mount.sock")).unwrap();
    writeln!(socket, "hold {}", number.unwrap()).unwrap();
    let mut answer = [0; 3];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ok\n");
    place.write("mnt/after", "this waits");
    drop(slow.stdin.take());
    let said = slow.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(1) && err.contains("another client ended it"), "{err}");
    assert_eq!(place.done(&["cat", "after"]).text(), "this waits");
    place.code(1, &["cat", "slow"]);
}
