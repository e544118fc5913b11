//! Locks that programs take through several mounts: which others they exclude, how they end, and
//! that a new owner reads the latest bytes.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_fuse::fs::{Answer, FileSystem, LockRequest, ROOT, Result, Unlock};
use outrigger_store::meta::locks::{LOCK_END, Lock, LockFamily, LockMode, LockRange};
use outrigger_workload::eventually;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::faults::damage;
use super::hosts::{Cluster, Host, Open, USER};
use super::{RDWR, random, reclaim};

use LockMode::{Exclusive, Shared};

/// As long as a test waits for what must come.
const LONG: Duration = Duration::from_secs(60);

pub fn lock(owner: u64, first: u64, last: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Ranges, owner, range: LockRange { first, last }, mode, process: 77 }
}

pub fn all(owner: u64, mode: LockMode) -> Lock {
    lock(owner, 0, LOCK_END, mode)
}

impl Open<'_> {
    /// Asks as the kernel does.
    pub fn ask(&self, request: u64, lock: Lock, waits: bool) -> Receiver<Result<()>> {
        let (tell, told) = mpsc::channel();
        let answer = Answer::new(move |done| {
            let _ = tell.send(done);
        });
        self.host.volume.lock(
            self.number,
            &LockRequest { handle: self.handle, request, lock, waits },
            answer,
        );
        told
    }

    pub fn try_lock(&self, lock: Lock) -> Result<()> {
        self.ask(0, lock, false).recv_timeout(LONG).expect("it is answered")
    }

    pub fn wait_lock(&self, lock: Lock) -> Result<()> {
        // No two of one mount that are under way have the same number.
        self.ask(1000 + lock.owner, lock, true).recv_timeout(LONG).expect("it is answered")
    }

    pub fn unlock(&self, lock: Lock) -> Result<()> {
        let unlock = Unlock { family: lock.family, owner: lock.owner, range: lock.range };
        self.host.volume.unlock(self.number, &unlock)
    }

    /// A process closes a descriptor; the file stays open.
    pub fn closed_by(&self, owner: u64) {
        self.host.volume.flush(USER, self.number, self.handle).unwrap();
        self.host.volume.closed_by(self.number, owner);
    }
}

impl Cluster {
    pub fn count(&self, table: &str) -> u64 {
        self.server.sql(&format!("SELECT count(*) FROM {}.{table}", self.schema)).parse().unwrap()
    }

    #[track_caller]
    pub fn becomes(&self, table: &str, rows: u64) {
        eventually(&format!("{rows} rows in {table}"), || self.count(table) == rows);
    }
}

pub fn open_both<'a>(one: &'a Host, two: &'a Host, name: &str) -> (Open<'a>, Open<'a>) {
    one.put(name, b"").unwrap();
    (one.open(name, RDWR).unwrap(), two.open(name, RDWR).unwrap())
}

#[test]
fn locks_exclude_on_all_hosts_and_end_when_their_process_closes_the_file() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    here.try_lock(lock(1, 0, 9, Exclusive)).unwrap();
    assert_eq!(there.try_lock(lock(1, 9, 9, Shared)), Err(Errno::AGAIN));
    assert_eq!(here.try_lock(lock(2, 9, 9, Shared)), Err(Errno::AGAIN), "another process of the same host");
    there.try_lock(lock(1, 10, 19, Exclusive)).unwrap();
    // The lock in the way may be that of a process of this host, or of another.
    let asked = |open: &Open<'_>, lock| open.host.volume.locked_by(open.number, &lock).unwrap();
    assert_eq!(asked(&here, lock(2, 0, 0, Shared)), Some(lock(1, 0, 9, Exclusive)));
    assert_eq!(asked(&there, lock(2, 0, 0, Shared)), Some(Lock { process: 0, ..lock(1, 0, 9, Exclusive) }));
    assert_eq!(asked(&here, lock(1, 0, 9, Exclusive)), None, "not what it has itself");
    assert_eq!(asked(&here, lock(2, 20, 29, Exclusive)), None);
    // A part is released; another handle of the same process ends all.
    here.unlock(lock(1, 0, 4, Exclusive)).unwrap();
    there.try_lock(lock(1, 0, 4, Exclusive)).unwrap();
    assert_eq!(there.try_lock(lock(1, 5, 5, Shared)), Err(Errno::AGAIN));
    let reader = one.open("f", OFlags::RDONLY).unwrap();
    reader.closed_by(3);
    assert_eq!(there.try_lock(lock(1, 5, 5, Shared)), Err(Errno::AGAIN), "another process closed it");
    reader.closed_by(1);
    there.try_lock(lock(1, 5, 5, Shared)).unwrap();
    there.closed_by(1);
    assert_eq!(cluster.count("file_lock"), 0);
    // Those of `flock` are the open file's, and end with it; so are those of open files that look
    // like a process's.
    let whole = |owner, mode| Lock { family: LockFamily::Whole, ..all(owner, mode) };
    here.try_lock(whole(10, Exclusive)).unwrap();
    here.try_lock(all(11, Exclusive)).unwrap();
    here.closed_by(1);
    assert_eq!(there.try_lock(whole(10, Shared)), Err(Errno::AGAIN));
    assert_eq!(there.try_lock(all(11, Shared)), Err(Errno::AGAIN));
    here.close().unwrap();
    there.try_lock(whole(10, Shared)).unwrap();
    there.try_lock(all(11, Shared)).unwrap();
    there.close().unwrap();
    reader.close().unwrap();
    assert_eq!(cluster.count("file_lock"), 0);
    // Closing a file that was never locked costs nothing, and removing a name removes no lock.
    let (here, there) = open_both(&one, &two, "gone");
    here.try_lock(all(1, Exclusive)).unwrap();
    two.unlink("gone").unwrap();
    reclaim(&cluster);
    assert_eq!(there.try_lock(all(1, Exclusive)), Err(Errno::AGAIN));
    here.close().unwrap();
    there.try_lock(all(1, Exclusive)).unwrap();
    there.close().unwrap();
    assert_eq!(*cluster.said.lock().unwrap(), [""; 0]);
    cluster.check();
}

#[test]
fn who_waits_gets_it_when_it_is_free_or_gives_up() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    here.try_lock(all(1, Exclusive)).unwrap();
    // More than there are threads: none of them keeps one.
    let waiters: Vec<_> = (0..12).map(|at| there.ask(at, all(10 + at, Shared), true)).collect();
    cluster.becomes("file_lock_wait", 12);
    assert_eq!(there.try_lock(lock(99, 0, 0, Shared)), Err(Errno::AGAIN), "others are answered");
    assert!(waiters.iter().all(|waiter| waiter.try_recv().is_err()));
    // One request is interrupted, and one that has not arrived yet.
    two.volume.interrupt(3);
    assert_eq!(waiters[3].recv_timeout(LONG).unwrap(), Err(Errno::INTR));
    two.volume.interrupt(500);
    assert_eq!(there.ask(500, all(30, Shared), true).recv_timeout(LONG).unwrap(), Err(Errno::INTR));
    cluster.becomes("file_lock_wait", 11);
    here.unlock(all(1, Exclusive)).unwrap();
    for (at, waiter) in waiters.iter().enumerate().filter(|(at, _)| *at != 3) {
        assert_eq!(waiter.recv_timeout(LONG).unwrap(), Ok(()), "{at}");
    }
    assert_eq!((cluster.count("file_lock"), cluster.count("file_lock_wait")), (11, 0));
    // A waiter on the same host gets the lock, too; and one that still waits at the end gets an
    // error.
    let waiting = here.ask(1, all(1, Exclusive), true);
    there.closed_by(10);
    cluster.becomes("file_lock_wait", 1);
    one.volume.interrupt(7);
    let last = here.ask(2, all(2, Exclusive), true);
    cluster.becomes("file_lock_wait", 2);
    one.volume.close(|| ()).unwrap();
    for waiter in [waiting, last] {
        assert!(matches!(waiter.recv_timeout(LONG).unwrap(), Err(Errno::IO | Errno::INTR)));
    }
    there.close().unwrap();
    assert_eq!(cluster.count("file_lock"), 0);
}

#[test]
fn whoever_has_a_lock_reads_what_was_written_under_those_before() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let forgotten: Arc<Mutex<Vec<u64>>> = Arc::default();
    let open_versions = Arc::clone(&forgotten);
    two.volume.forget_by(move |inode| open_versions.lock().unwrap().push(inode));
    let (here, there) = open_both(&one, &two, "f");
    let said = || std::mem::take(&mut *forgotten.lock().unwrap());
    for (round, bytes) in
        [b"small".to_vec(), random(1, 300_000), Vec::new(), b"again".to_vec()].iter().enumerate()
    {
        here.wait_lock(all(1, Exclusive)).unwrap();
        one.volume
            .set_attributes(
                USER,
                here.number,
                &outrigger_fuse::fs::SetAttr {
                    handle: Some(here.handle),
                    size: Some(0),
                    ..Default::default()
                },
            )
            .unwrap();
        here.write(0, bytes).unwrap();
        assert_ne!(there.read().unwrap(), *bytes, "round {round}: nobody sees it before");
        here.unlock(all(1, Exclusive)).unwrap();
        there.wait_lock(all(1, Shared)).unwrap();
        assert!(there.read().unwrap() == *bytes, "round {round}");
        assert_eq!(
            two.volume.attributes(USER, there.number, Some(there.handle)).unwrap().attr.size,
            bytes.len() as u64
        );
        assert_eq!(said(), [there.number], "the kernel has forgotten the content before, once");
        there.unlock(all(1, Shared)).unwrap();
        // The kernel keeps its cache of an unchanged content.
        there.wait_lock(all(1, Shared)).unwrap();
        there.unlock(all(1, Shared)).unwrap();
        assert_eq!(said(), [0; 0]);
    }
    // An exclusive lock that becomes a shared one lets readers in, and a wait that begins before
    // the write sees it, too.
    here.wait_lock(all(1, Exclusive)).unwrap();
    let waiting = there.ask(1, all(1, Shared), true);
    cluster.becomes("file_lock_wait", 1);
    here.write(0, b"AGAIN").unwrap();
    here.try_lock(all(1, Shared)).unwrap();
    assert_eq!(waiting.recv_timeout(LONG).unwrap(), Ok(()));
    assert_eq!(there.read().unwrap(), b"AGAIN");
    there.closed_by(1);
    // A process that closes another descriptor of the file ends its lock, and what it wrote is
    // there.
    here.wait_lock(all(1, Exclusive)).unwrap();
    here.write(0, b"other").unwrap();
    let reader = one.open("f", OFlags::RDONLY).unwrap();
    reader.closed_by(1);
    there.wait_lock(all(1, Exclusive)).unwrap();
    assert_eq!(there.read().unwrap(), b"other");
    for open in [reader, here, there] {
        open.close().unwrap();
    }
    cluster.check();
}

#[test]
fn counters_behind_locks_lose_nothing_however_many_hosts_count() {
    const EACH: u64 = 25;
    let Some(cluster) = Cluster::new() else { return };
    let hosts: Vec<_> = (0..3).map(|_| cluster.mount()).collect();
    hosts[0].put("counter", b"0").unwrap();
    std::thread::scope(|scope| {
        for host in &hosts {
            for owner in 0..2 {
                scope.spawn(move || {
                    let open = host.open("counter", RDWR).unwrap();
                    for _ in 0..EACH {
                        open.wait_lock(all(owner, Exclusive)).unwrap();
                        let text = String::from_utf8(open.read().unwrap()).unwrap();
                        let count: u64 = text.parse().unwrap();
                        open.write(0, (count + 1).to_string().as_bytes()).unwrap();
                        open.unlock(all(owner, Exclusive)).unwrap();
                    }
                    open.close().unwrap();
                });
            }
        }
    });
    assert_eq!(hosts[1].cat("counter").unwrap(), (6 * EACH).to_string().as_bytes());
    assert_eq!((cluster.count("file_lock"), cluster.count("file_lock_wait")), (0, 0));
    cluster.check();
}

#[test]
fn owners_on_two_hosts_that_wait_for_each_other_are_told() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let (here, there) = open_both(&one, &two, "f");
    here.try_lock(lock(1, 0, 0, Exclusive)).unwrap();
    there.try_lock(lock(1, 1, 1, Exclusive)).unwrap();
    let waiting = here.ask(1, lock(1, 1, 1, Exclusive), true);
    cluster.becomes("file_lock_wait", 1);
    assert_eq!(there.wait_lock(lock(1, 0, 0, Exclusive)), Err(Errno::DEADLK));
    assert!(waiting.try_recv().is_err());
    there.closed_by(1);
    assert_eq!(waiting.recv_timeout(LONG).unwrap(), Ok(()));
    here.close().unwrap();
    there.close().unwrap();
}

#[test]
fn snapshots_can_be_locked_by_all_who_read() {
    let Some(cluster) = Cluster::new() else { return };
    let host = cluster.mount();
    host.put("f", b"x").unwrap();
    host.store.meta.create_snapshot("s", 1, &[]).unwrap();
    let open = host.open(".snapshots/s/f", OFlags::RDONLY).unwrap();
    open.try_lock(all(1, Shared)).unwrap();
    assert_eq!(open.try_lock(all(1, Exclusive)), Err(Errno::NOLCK));
    assert_eq!(host.volume.locked_by(open.number, &all(2, Exclusive)), Ok(None));
    open.unlock(all(1, Shared)).unwrap();
    open.close().unwrap();
    assert!(host.find("f").unwrap() != ROOT && cluster.count("file_lock") == 0);
}

#[test]
fn a_lock_stays_if_what_was_written_under_it_cannot_be_stored_until_the_file_is_closed() {
    let Some(cluster) = Cluster::new() else { return };
    let (one, two) = (cluster.mount(), cluster.mount());
    let mut wanted = random(3, 400_000);
    two.put("f", &wanted).unwrap();
    let repair = damage(&cluster);
    one.store.packs.set_cache_bytes(0);
    let (here, there) = (one.open("f", RDWR).unwrap(), two.open("f", RDWR).unwrap());
    here.try_lock(all(1, Exclusive)).unwrap();
    // Each part of it needs the rest of its chunk.
    (0..8).for_each(|at| here.write(at * 50_000 + 7, b"new").unwrap());
    assert_eq!(here.unlock(all(1, Exclusive)), Err(Errno::IO));
    assert_eq!(there.try_lock(all(1, Shared)), Err(Errno::AGAIN), "who wrote is told, and nobody reads");
    one.volume.closed_by(here.number, 1);
    there.try_lock(all(1, Shared)).unwrap();
    repair();
    here.sync().unwrap();
    there.unlock(all(1, Shared)).unwrap();
    there.try_lock(all(1, Shared)).unwrap();
    (0..8).for_each(|at| wanted[at * 50_000 + 7..][..3].copy_from_slice(b"new"));
    assert!(there.read().unwrap() == wanted);
    here.close().unwrap();
    there.close().unwrap();
    cluster.check();
}
