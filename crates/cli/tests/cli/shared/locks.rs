//! Locks through the kernel, by processes in several mounts of a store. They are in `python3`,
//! whose calls are the system's.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use super::{Host, Shared, start};
use crate::run::Place;
use outrigger_workload::eventually;

/// Adds one to the number in a file under a lock, so many times.
const COUNT: &str = r#"
import fcntl, os, sys
path, kind, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = getattr(fcntl, kind)
fd = os.open(path, os.O_RDWR)
for _ in range(times):
    lock(fd, fcntl.LOCK_EX)
    count = int(os.pread(fd, 32, 0))
    os.pwrite(fd, b"%08d" % (count + 1), 0)
    lock(fd, fcntl.LOCK_UN)
"#;

/// Waits for a lock, prints a line, and keeps the lock until its input ends.
const HOLD: &str = r#"
import fcntl, os, signal, sys
def stop(*_):
    print("interrupted", flush=True)
    os._exit(7)
signal.signal(signal.SIGUSR1, stop)
fd = os.open(sys.argv[1], os.O_RDWR)
getattr(fcntl, sys.argv[2])(fd, getattr(fcntl, sys.argv[3]))
print("locked", flush=True)
sys.stdin.read()
"#;

/// Prints whether a lock is free now, and the owner of one on the first byte: its kind and process.
const TRY: &str = r#"
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
kind, _, _, _, process = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
who = "nobody" if kind == fcntl.F_UNLCK else process
try:
    getattr(fcntl, sys.argv[2])(fd, getattr(fcntl, sys.argv[3]) | fcntl.LOCK_NB)
    print("yes", who)
except BlockingIOError:
    print("no", who)
"#;

/// Prints what a mapping of the file shows: at first, and under a lock whenever a line comes.
const SHOW: &str = r#"
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
shown = mmap.mmap(fd, 8, prot=mmap.PROT_READ)
print(shown[:8].decode(), flush=True)
for _ in sys.stdin:
    fcntl.lockf(fd, fcntl.LOCK_SH)
    print(shown[:8].decode(), flush=True)
    fcntl.lockf(fd, fcntl.LOCK_UN)
"#;

/// Writes each line of its input to the file under a lock, first by a call, then through a mapping.
/// It closes nothing.
const WRITE: &str = r#"
import fcntl, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(fd, 8)
for at, line in enumerate(sys.stdin):
    fcntl.lockf(fd, fcntl.LOCK_EX)
    if at % 2 == 0:
        os.pwrite(fd, line[:8].encode(), 0)
    else:
        mapped[:8] = line[:8].encode()
        mapped.flush()
    fcntl.lockf(fd, fcntl.LOCK_UN)
    print("written", flush=True)
"#;

/// Takes a lock of the open file, and closes that when a line comes.
const OPEN_FILE: &str = r#"
import fcntl, os, struct, sys
other = os.open(sys.argv[1], os.O_RDWR)
fd = os.open(sys.argv[1], os.O_RDWR)
asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked)
os.close(other)
print("locked", flush=True)
sys.stdin.readline()
os.close(fd)
print("closed", flush=True)
sys.stdin.read()
"#;

/// Adds rows to a table, each in a transaction that reads what is there.
const ROWS: &str = r#"
import sqlite3, sys
path, name, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, timeout=120, isolation_level=None)
for at in range(times):
    base.execute("BEGIN IMMEDIATE")
    (count,) = base.execute("SELECT count(*) FROM t").fetchone()
    base.execute("INSERT INTO t VALUES (?, ?, ?)", (count, name, at))
    base.execute("COMMIT")
"#;

/// `None`, with a line that says so, without Python.
fn shared() -> Option<Shared> {
    if Command::new("python3").arg("-c").arg("import sqlite3").status().is_ok_and(|status| status.success()) {
        return Shared::new();
    }
    outrigger_workload::skipped!("python3 is not installed");
    None
}

fn python(host: &Host, script: &str, args: &[&str]) -> Child {
    let mut python = Command::new("python3");
    python.arg("-c").arg(script).args(args).current_dir(host.path(""));
    python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn says(child: &mut Child) -> String {
    let mut line = String::new();
    // One byte at a time, because later bytes are for another reader.
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_string()
}

fn hold(host: &Host, kind: &str, mode: &str) -> Child {
    let mut child = python(host, HOLD, &["f", kind, mode]);
    assert_eq!(says(&mut child), "locked");
    child
}

#[track_caller]
fn tries(host: &Host, kind: &str, mode: &str, wanted: &str) {
    let mut child = python(host, TRY, &["f", kind, mode]);
    assert_eq!(says(&mut child), wanted);
    assert!(child.wait().unwrap().success());
}

fn tell(child: &mut Child, line: &str) {
    writeln!(child.stdin.as_mut().unwrap(), "{line}").unwrap();
}

fn lets_go(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

impl Shared {
    #[track_caller]
    fn has(&self, table: &str, rows: u64) {
        let sql = format!("SELECT count(*) FROM {}.{table}", self.schema);
        eventually(&format!("{rows} rows in {table}"), || self.server.sql(&sql) == rows.to_string());
    }
}

#[test]
fn processes_in_two_mounts_count_behind_locks_and_no_increment_is_lost() {
    let Some(shared) = shared() else { return };
    let hosts = [shared.mount(), shared.mount()];
    for (kind, times) in [("lockf", 100), ("flock", 25)] {
        hosts[0].write("f", "00000000");
        let counting: Vec<Child> =
            (0..4).map(|at| python(&hosts[at % 2], COUNT, &["f", kind, &times.to_string()])).collect();
        for mut child in counting {
            assert!(child.wait().unwrap().success());
        }
        for host in &hosts {
            host.must_read("f", format!("{:08}", 4 * times));
        }
    }
    shared.has("file_lock", 0);
    shared.has("file_lock_wait", 0);
    shared.check(&hosts[0]);
}

#[test]
fn locks_exclude_in_all_mounts_and_who_waits_can_be_interrupted_and_killed() {
    let Some(shared) = shared() else { return };
    let (one, mut two) = (shared.mount(), shared.mount());
    one.write("f", "x");
    let holder = hold(&one, "lockf", "LOCK_EX");
    // A process on the same host sees the owner's number.
    tries(&one, "lockf", "LOCK_EX", &format!("no {}", holder.id()));
    tries(&two, "lockf", "LOCK_EX", "no 0");
    tries(&two, "flock", "LOCK_EX", "yes 0");
    let status = one.done(&["status", "--json"]).json();
    let held =
        status["sessions"].as_array().unwrap().iter().map(|session| session["locks"].as_u64().unwrap());
    assert_eq!(held.sum::<u64>(), 1);
    assert!(one.done(&["status"]).text().contains(", 1 lock, lease "));
    // More waiters than threads; the mount still answers.
    let mut waiting: Vec<Child> = (0..12).map(|_| python(&two, HOLD, &["f", "lockf", "LOCK_EX"])).collect();
    shared.has("file_lock_wait", 12);
    two.must_read("f", "x");
    let mut interrupted = waiting.pop().unwrap();
    assert!(Command::new("kill").args(["-USR1", &interrupted.id().to_string()]).status().unwrap().success());
    assert_eq!(says(&mut interrupted), "interrupted");
    assert_eq!(interrupted.wait().unwrap().code(), Some(7));
    for child in &mut waiting {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    shared.has("file_lock_wait", 0);
    tries(&two, "lockf", "LOCK_EX", "no 0");
    // A killed waiter or owner leaves no lock, and neither does one that ends.
    let mut next = python(&two, HOLD, &["f", "lockf", "LOCK_EX"]);
    shared.has("file_lock_wait", 1);
    let mut holder = holder;
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(says(&mut next), "locked");
    lets_go(next);
    tries(&one, "lockf", "LOCK_EX", "yes nobody");
    // Shared locks coexist. A lock of `flock` ends when the file is closed, without a wait.
    let readers = [hold(&one, "flock", "LOCK_SH"), hold(&two, "flock", "LOCK_SH")];
    tries(&one, "flock", "LOCK_EX", "no nobody");
    let mut writer = python(&one, HOLD, &["f", "flock", "LOCK_EX"]);
    readers.into_iter().for_each(lets_go);
    assert_eq!(says(&mut writer), "locked");
    tries(&two, "flock", "LOCK_SH", "no nobody");
    lets_go(writer);
    shared.has("file_lock", 0);
    two.done(&["unmount", "mnt"]);
    assert!(two.child.wait().unwrap().success());
    shared.check(&one);
}

#[test]
fn what_a_kernel_has_mapped_is_what_was_written_under_the_lock_before() {
    let Some(shared) = shared() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    one.write("f", "content0");
    let mut show = python(&two, SHOW, &["f"]);
    assert_eq!(says(&mut show), "content0");
    let mut write = python(&one, WRITE, &["f"]);
    for round in 1..9 {
        let text = format!("content{round}");
        tell(&mut write, &text);
        assert_eq!(says(&mut write), "written");
        tell(&mut show, "");
        assert_eq!(says(&mut show), text);
    }
    lets_go(write);
    lets_go(show);
    // A lock of an open file does not belong to its process. It ends only with that open file.
    let mut open = python(&one, OPEN_FILE, &["f"]);
    assert_eq!(says(&mut open), "locked");
    tries(&two, "lockf", "LOCK_EX", "no 0");
    tell(&mut open, "");
    assert_eq!(says(&mut open), "closed");
    shared.has("file_lock", 0);
    tries(&two, "lockf", "LOCK_EX", "yes nobody");
    lets_go(open);
    shared.has("file_lock", 0);
    shared.check(&two);
}

#[test]
fn locks_of_a_mount_that_is_killed_end_at_once_on_its_host_and_with_its_lease_elsewhere() {
    let Some(shared) = shared() else { return };
    let (mut one, elsewhere) = (shared.mount(), shared.mount());
    // On the same host: it sees the lock files of the other clients there.
    let place = Place::empty();
    symlink(one.place.path("cache"), place.path("cache")).unwrap();
    std::fs::create_dir(place.path("mnt")).unwrap();
    let child = start(&place, &shared.url());
    let beside = Host { place, url: shared.url(), child };
    one.write("f", "x");
    let kill = |host: &mut Host, holder: &mut Child| {
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(host.place.path("mnt")).status().unwrap().success());
        holder.kill().unwrap();
        holder.wait().unwrap();
    };
    let mut holder = hold(&one, "lockf", "LOCK_EX");
    let mut next = python(&beside, HOLD, &["f", "lockf", "LOCK_EX"]);
    shared.has("file_lock_wait", 1);
    kill(&mut one, &mut holder);
    assert_eq!(says(&mut next), "locked");
    lets_go(next);
    one.child = start(&one.place, &one.url);
    // Other hosts cannot know before the lease is over.
    let mut holder = hold(&one, "lockf", "LOCK_EX");
    let mut next = python(&elsewhere, HOLD, &["f", "lockf", "LOCK_EX"]);
    shared.has("file_lock_wait", 1);
    let process = one.child.id();
    kill(&mut one, &mut holder);
    tries(&elsewhere, "lockf", "LOCK_EX", "no 0");
    let Shared { server, schema, .. } = &shared;
    server.sql(&format!(
        "UPDATE {schema}.session SET lease_until = 1, lease_secs = 0 WHERE process = {process}"
    ));
    assert_eq!(says(&mut next), "locked");
    lets_go(next);
    shared.has("file_lock", 0);
    shared.check(&elsewhere);
}

#[test]
fn a_database_of_sqlite_is_changed_from_two_mounts_at_once() {
    const EACH: usize = 8;
    let Some(shared) = shared() else { return };
    let hosts = [shared.mount(), shared.mount()];
    let mut make = python(
        &hosts[0],
        "import sqlite3, sys\nbase = sqlite3.connect('base')\n\
         base.execute('CREATE TABLE t (n INTEGER PRIMARY KEY, who TEXT, at INTEGER)')\nbase.commit()\n",
        &[],
    );
    assert!(make.wait().unwrap().success());
    let writing: Vec<Child> = (0..4)
        .map(|at| python(&hosts[at % 2], ROWS, &["base", &format!("p{at}"), &EACH.to_string()]))
        .collect();
    for mut child in writing {
        assert!(child.wait().unwrap().success());
    }
    for host in &hosts {
        let mut look = python(
            host,
            "import sqlite3\nbase = sqlite3.connect('base')\n\
             print(base.execute('PRAGMA integrity_check').fetchone()[0])\n\
             print(base.execute('SELECT count(*), max(n) FROM t').fetchone())\n\
             print(base.execute('SELECT count(*) FROM (SELECT who FROM t GROUP BY who HAVING count(*) = 8)').fetchone()[0])\n",
            &[],
        );
        let mut said = String::new();
        look.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(look.wait().unwrap().success());
        assert_eq!(said, format!("ok\n({}, {})\n4\n", 4 * EACH, 4 * EACH - 1));
    }
    shared.has("file_lock", 0);
    shared.check(&hosts[1]);
}
