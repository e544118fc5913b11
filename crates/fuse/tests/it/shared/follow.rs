//! Tailed files in one of several mounts: a follower's bytes, and its job's outcome.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use outrigger_format::Root;
use outrigger_fuse::control::{is_within_reach, listens_at, mounts_of};
use outrigger_fuse::fs::{FileSystem, OpenFlags, Part, ROOT, SetAttr};
use outrigger_fuse::live::{NOTHING_MORE, STAGING_BYTES_MIN, StillWaits, TailRules, Tailed, Wanted};
use outrigger_fuse::shared::{SharedOptions, held_of, left_open, let_go};
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_store::meta::jobs::{
    Claimed, JobId, JobInput, JobRow, JobState, NewJob, NewSplit, OPEN_END, SplitRow, SplitState,
};
use outrigger_store::meta::{At, Role, SessionId, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::{Error, ErrorKind, Store};
use outrigger_workload::Rng;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::hosts::{Cluster, Host, Open, USER, new_file};
use super::random;
use crate::support::tailed::{Model, Written};

pub const MAKE: OpenFlags = OpenFlags::RDWR.union(OFlags::CREATE);

/// Wants all files whose paths begin with `raw`; hides those that begin with `rawhidden`.
struct All(Arc<Store>);

struct One {
    store: Arc<Store>,
    path: Vec<u8>,
}

impl TailRules for All {
    fn refresh(&self) -> outrigger_store::Result<()> {
        Ok(())
    }

    fn is_any(&self) -> bool {
        true
    }

    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>> {
        let path = path.join(&b'/');
        path.starts_with(b"raw")
            .then(|| Box::new(One { store: Arc::clone(&self.0), path }) as Box<dyn Wanted>)
    }

    fn expect(&self, _: &str, _: StillWaits) -> outrigger_store::Result<Receiver<JobId>> {
        Err(Error::new(ErrorKind::Invalid, "nobody asks"))
    }
}

impl Wanted for One {
    fn is_unpublished(&self) -> bool {
        self.path.starts_with(b"rawhidden")
    }

    fn ahead(&self) -> Option<u64> {
        self.path.ends_with(b"near").then_some(64 << 20)
    }

    fn begin(self: Box<Self>, _: u64, _: SessionId, again: bool) -> outrigger_store::Result<Vec<JobId>> {
        if again && self.path.ends_with(b"slow") {
            // Meanwhile another writer overwrites it, too.
            std::thread::sleep(Duration::from_millis(300));
        }
        if self.path.ends_with(b"fails") {
            return Err(Error::new(ErrorKind::Io, "no job can be made"));
        }
        if self.path.ends_with(b"nobody") {
            return Ok(Vec::new());
        }
        let job = NewJob {
            inputs: vec![JobInput { path: self.path, root: Root::Empty }],
            splits: vec![NewSplit { input: Some(0), from: 0, to: OPEN_END }],
            ..NewJob::default()
        };
        Ok(vec![self.store.jobs().create_job(&job)?])
    }
}

/// A store, with access to its jobs.
pub struct Site {
    pub cluster: Cluster,
    pub store: Store,
    session: Arc<Session>,
}

impl Site {
    /// Releases the open version of this file, the only one that a gone mount has left.
    fn let_go_of(&self, number: u64) {
        let left = left_open(&self.store).unwrap();
        assert_eq!(left.iter().map(|left| left.record.inode).collect::<Vec<_>>(), [number]);
        left.iter().for_each(|left| let_go(&self.store, left).unwrap());
    }

    pub fn new() -> Option<Self> {
        let cluster = Cluster::new()?;
        let store = cluster.store();
        let session = store.session(SessionKind::Writer, "job test").unwrap();
        Some(Self { cluster, store, session })
    }

    pub fn mount(&self) -> Host {
        self.mount_as(SharedOptions { staging_bytes: STAGING_BYTES_MIN, ..SharedOptions::new(2) })
    }

    pub fn mount_as(&self, options: SharedOptions) -> Host {
        let host = self.cluster.mount_with(options);
        host.volume.set_tail_rules(Arc::new(All(Arc::clone(&host.store)))).unwrap();
        host
    }

    pub fn newest(&self) -> JobId {
        self.store.jobs().jobs(1).unwrap()[0].id
    }

    pub fn row(&self, job: JobId) -> JobRow {
        self.store.jobs().job(job).unwrap().unwrap()
    }

    pub fn claim(&self, job: JobId) -> Claimed {
        self.store.jobs().claim_splits(self.session.id(), job, 1, 9, None).unwrap().claimed[0]
    }

    pub fn split(&self, job: JobId) -> SplitRow {
        self.store.jobs().split(job, 0).unwrap().unwrap()
    }

    pub fn content(&self, root: &Root) -> Vec<u8> {
        // Others may have packed something meanwhile.
        self.store.refresh_index().unwrap();
        let mut bytes = Vec::new();
        Reader::new(&self.store)
            .read(root, 0, u64::MAX, &mut |some| {
                bytes.extend_from_slice(some);
                Ok(())
            })
            .unwrap();
        bytes
    }

    pub fn input(&self, job: JobId) -> Vec<u8> {
        let root = self.store.jobs().inputs(job).unwrap()[0].root.clone();
        self.content(&root)
    }

    pub fn reclaim(&self) {
        let options = GcOptions { grace_secs: 0, ..GcOptions::default() };
        for _ in 0..2 {
            collect(&self.store, &options, &GcProgress::default()).unwrap();
        }
    }

    /// Nothing is held for files that are not open any more.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        assert_eq!(self.store.meta.records().records("open-version").unwrap(), []);
        let held = self.store.meta.holders().unwrap();
        let is_ours = |holder: &String| holder.starts_with("orphan") || holder.starts_with("open-version");
        assert!(!held.iter().any(is_ours), "{held:?}");
        self.wait_let_go();
    }
}

pub fn follow(host: &Host, inode: u64, from: u64) -> Tailed {
    host.volume.tail(inode, from, Duration::ZERO).unwrap()
}

/// Until the mount has closed it.
#[track_caller]
pub fn wait_closed(host: &Host, inode: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while host.volume.tail(inode, NOTHING_MORE, Duration::from_millis(50)).unwrap() != Tailed::Closed {
        assert!(Instant::now() < end, "it was never closed");
    }
}

#[test]
fn a_follower_sees_what_the_file_becomes_or_is_told_that_it_did_not() {
    follow_files(SharedOptions { staging_bytes: STAGING_BYTES_MIN, ..SharedOptions::new(2) });
}

#[test]
fn a_follower_is_told_the_same_of_files_that_are_stored_while_they_are_written() {
    follow_files(SharedOptions { increment_bytes: 4 << 10, ..SharedOptions::new(2) });
}

struct Raw<'a> {
    open: &'a Open<'a>,
    /// Another host's mount.
    two: &'a Host,
    name: &'a str,
    synced: Vec<u8>,
}

impl Written for Raw<'_> {
    fn set_len(&self, len: u64) {
        let set = SetAttr { size: Some(len), handle: Some(self.open.handle), ..Default::default() };
        self.open.host.volume.set_attributes(USER, self.open.number, &set).unwrap();
    }

    fn punch(&self, from: u64, len: u64) {
        let part = Part { number: self.open.number, handle: self.open.handle, offset: from };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.open.host.volume.allocate(USER, part, len, punch).unwrap();
    }

    fn write(&self, at: u64, data: &[u8]) {
        self.open.write(at, data).unwrap();
    }

    fn store(&mut self, content: &[u8]) {
        self.open.sync().unwrap();
        self.synced = content.to_vec();
        assert_eq!(self.two.cat(self.name).unwrap(), content);
    }

    fn tail(&self, from: u64) -> Tailed {
        follow(self.open.host, self.open.number, from)
    }
}

/// The writer discards its file.
fn abort(host: &Host, open: Open<'_>) {
    let number = open.number;
    host.volume.set_xattr(USER, number, b"user.outrigger.abort", b"1", XattrFlags::empty()).unwrap();
    open.close().unwrap();
    wait_closed(host, number);
}

fn follow_files(options: SharedOptions) {
    let Some(site) = Site::new() else { return };
    // A reader of the stored prefix may have read any of its bytes.
    let is_incremental = options.increment_bytes < 1 << 20;
    let (mut one, two) = (site.mount_as(options.clone()), site.mount());
    let (mut clean, mut invalidated, mut killed, mut aborted, mut outside) = (0, 0, 0, 0, 0);
    for seed in 0..70 {
        let (mut rng, name) = (Rng::new(seed), format!("raw{seed}"));
        let open = one.open(&name, MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        let claimed = site.claim(job);
        let mut raw = Raw { open: &open, two: &two, name: &name, synced: Vec::new() };
        let Model { mut content, seen, mut is_invalidated, looks_back } =
            Model::at_random(seed, &mut rng, 24, &mut raw);
        let synced = raw.synced;
        assert_eq!(follow(&two, number, 0), Tailed::Closed, "the other mount has nothing of it");
        match rng.below(10) {
            0 => {
                // The process ends: what was synced is in the tree, and the job is still open.
                killed += 1;
                drop(one);
                assert!(site.split(job).range.is_open());
                assert_eq!(two.cat(&name).unwrap(), synced, "seed {seed}");
                site.let_go_of(number);
                one = site.mount_as(options.clone());
                continue;
            }
            1 => {
                aborted += 1;
                abort(&one, open);
                let row = site.row(job);
                assert!(row.state == JobState::Failed && row.why.contains("gave"), "{}", row.why);
                assert_eq!([&one, &two].map(|host| host.find(&name)), [Err(Errno::NOENT); 2]);
                continue;
            }
            2 => {
                // Another host writes another content, which is laid below what was written here.
                outside += 1;
                two.put(&name, b"from elsewhere, and last").unwrap();
                wait_closed(&two, number);
                is_invalidated |= !seen.is_empty();
                let is_stored = content == synced;
                content = if is_stored { b"from elsewhere, and last".to_vec() } else { Vec::new() };
            }
            _ => {}
        }
        open.close().unwrap();
        wait_closed(&one, number);
        let now = two.cat(&name).unwrap();
        assert!(content.is_empty() || now == content, "seed {seed}");
        let split = site.split(job);
        assert!(split.range.to == now.len() as u64 && site.input(job) == now, "seed {seed}");
        let is_void = split.state == SplitState::Waiting;
        if is_invalidated || (is_incremental && looks_back && is_void) {
            invalidated += 1;
            assert!(split.state == SplitState::Waiting && split.attempt > claimed.attempt, "seed {seed}");
        } else {
            clean += 1;
            assert_eq!((split.state, split.attempt), (SplitState::Running, claimed.attempt), "seed {seed}");
            assert!(now.starts_with(&seen), "seed {seed}");
        }
    }
    let ends = [clean, invalidated, killed, aborted, outside];
    assert!(clean > 10 && invalidated > 4 && ends.iter().all(|count| *count > 1), "{ends:?}");
    one.volume.close(|| ()).unwrap();
    // The collector also removes prefixes of mounts that were killed.
    site.reclaim();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn what_is_hidden_is_seen_by_no_host_and_leaves_nothing_behind() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let name = "rawhidden";
    let open = one.open(name, MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    // More than its mount's log has room for.
    let expected = random(6, 3 * STAGING_BYTES_MIN as usize);
    let mut seen = Vec::new();
    for (at, part) in (0..).step_by(1 << 20).zip(expected.chunks(1 << 20)) {
        open.write(at, part).unwrap();
        let Tailed::Data(bytes) = follow(&one, number, seen.len() as u64) else { panic!("nothing at {at}") };
        seen.extend(bytes);
    }
    assert!(seen == expected);
    // Its writer finds it by its name; nobody else does, and no directory shows it.
    let seen = one.stat(name).unwrap();
    assert_eq!((seen.number, seen.links, seen.size), (number, 1, expected.len() as u64));
    one.chmod(name, 0o600).unwrap();
    assert_eq!(one.stat(name).unwrap().mode & 0o777, 0o600);
    assert_eq!(two.find(name), Err(Errno::NOENT));
    for host in [&one, &two] {
        assert_eq!(host.list("").unwrap(), Vec::<String>::new());
    }
    // The name is taken, on the other host as well.
    let exclusive = OpenFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    for host in [&one, &two] {
        assert_eq!(host.open(name, exclusive).err(), Some(Errno::EXIST));
    }
    assert_eq!(two.open(name, MAKE).err(), Some(Errno::BUSY));
    one.put("other", b"x").unwrap();
    assert_eq!(one.mkdir(name), Err(Errno::EXIST));
    assert_eq!(one.link("other", name), Err(Errno::EXIST));
    assert_eq!(one.link(name, "more"), Err(Errno::NOENT));
    assert_eq!(one.rename("other", name, RenameFlags::empty()), Err(Errno::BUSY));
    assert_eq!(one.rename(name, "away", RenameFlags::empty()), Err(Errno::BUSY));
    // Closed: its content is the job's, and the name is free.
    open.close().unwrap();
    wait_closed(&one, number);
    assert_eq!([&one, &two].map(|host| host.find(name)), [Err(Errno::NOENT); 2]);
    site.nothing_is_left();
    site.reclaim();
    assert!(site.input(job) == expected);
    assert_eq!(site.split(job).range.to, expected.len() as u64);
    // Removed by its writer: the job fails, and nothing was ever there.
    let open = two.open(name, MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    open.write(0, b"wrong").unwrap();
    open.sync().unwrap();
    two.unlink(name).unwrap();
    wait_closed(&two, number);
    assert_eq!(site.row(job).state, JobState::Failed);
    assert_eq!(two.find(name), Err(Errno::NOENT));
    open.close().unwrap();
    // Small, and empty.
    for text in [b"small".as_slice(), b""] {
        let open = one.open(name, MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        open.write(0, text).unwrap();
        open.close().unwrap();
        wait_closed(&one, number);
        assert_eq!(site.input(job), text);
    }
    one.volume.close(|| ()).unwrap();
    two.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn of_a_hidden_file_whose_mount_is_killed_there_is_what_was_synced_and_nobody_sees_it() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let open = one.open("rawhidden", MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    open.write(0, b"synced").unwrap();
    open.sync().unwrap();
    open.write(6, b", and not").unwrap();
    let mount = site.store.meta.sessions().unwrap();
    let mount = mount.iter().rfind(|row| row.owner.role == Role::Mount).unwrap().id;
    assert!(left_open(&site.store).unwrap().is_empty(), "its mount is at work");
    drop(one);
    assert!(site.split(job).range.is_open() && !is_within_reach(&site.store, mount));
    assert_eq!(two.find("rawhidden"), Err(Errno::NOENT));
    // Nobody is kept from the name, and nothing is lost that was held.
    let again = two.open("rawhidden", MAKE).unwrap();
    let left = left_open(&site.store).unwrap();
    assert_eq!(left.iter().map(|left| left.record.inode).collect::<Vec<_>>(), [number]);
    site.reclaim();
    assert_eq!(site.content(&held_of(&site.store, number).unwrap().unwrap()), b"synced");
    let_go(&site.store, &left[0]).unwrap();
    assert_eq!(held_of(&site.store, number).unwrap(), None);
    again.close().unwrap();
    two.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn a_mount_without_its_session_hands_nothing_out_and_closes_nothing() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let (open, unpublished) = (one.open("raw", MAKE).unwrap(), one.open("rawhidden", MAKE).unwrap());
    let (number, job) = (open.number, site.newest());
    open.write(0, b"written").unwrap();
    assert_eq!(follow(&one, number, 0), Tailed::Data(b"written".to_vec()));
    // As another host does with one that was cut off for longer than its lease.
    let sql = format!(
        "DELETE FROM {}.session WHERE id IN (SELECT (value::json ->> 'mount')::bigint FROM {}.record WHERE kind = 'open-version')",
        site.cluster.schema, site.cluster.schema
    );
    site.cluster.server.sql(&sql);
    // A file with a name for others goes on without followers; an unpublished file is lost.
    open.sync().unwrap();
    for inode in [number, unpublished.number] {
        assert_eq!(follow(&one, inode, 0), Tailed::Closed);
    }
    open.close().unwrap();
    assert_eq!(unpublished.write(0, b"more"), Err(Errno::IO));
    assert_eq!(unpublished.close(), Err(Errno::IO));
    assert!(site.split(job).range.is_open() && site.row(job).state != JobState::Failed);
    assert_eq!((two.cat("raw").unwrap(), two.find("rawhidden")), (b"written".to_vec(), Err(Errno::NOENT)));
    assert_eq!(left_open(&site.store).unwrap().len(), 2);
    // The next one is followed as ever.
    let open = one.open("raw2", MAKE).unwrap();
    open.write(0, b"anew").unwrap();
    assert_eq!(follow(&one, open.number, 0), Tailed::Data(b"anew".to_vec()));
    open.close().unwrap();
    one.volume.close(|| ()).unwrap();
}

#[test]
fn a_file_that_loses_its_name_is_read_to_its_end_unless_another_host_took_it() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let expected = random(5, 300_000);
    for synced in [false, true] {
        let open = one.open("raw", MAKE).unwrap();
        let (number, job) = (open.number, site.newest());
        open.write(0, &expected[..100_000]).unwrap();
        if synced {
            open.sync().unwrap();
        }
        one.unlink("raw").unwrap();
        open.write(100_000, &expected[100_000..]).unwrap();
        site.reclaim();
        assert!(open.read().unwrap() == expected);
        open.close().unwrap();
        wait_closed(&one, number);
        site.reclaim();
        assert!(site.input(job) == expected);
    }
    let open = one.open("raw", MAKE).unwrap();
    let (number, job) = (open.number, site.newest());
    open.write(0, b"some").unwrap();
    two.unlink("raw").unwrap();
    let _ = open.close();
    wait_closed(&one, number);
    let row = site.row(job);
    assert!(row.state == JobState::Failed && row.why.contains("another host removed"), "{}", row.why);
    // One that was moved is the same file, and is given up by its new name.
    let open = one.open("raw", MAKE).unwrap();
    one.rename("raw", "moved", RenameFlags::empty()).unwrap();
    one.volume.set_xattr(USER, open.number, b"user.outrigger.abort", b"", XattrFlags::empty()).unwrap();
    let number = open.number;
    open.close().unwrap();
    wait_closed(&one, number);
    assert_eq!(two.find("moved"), Err(Errno::NOENT));
    one.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    site.cluster.check();
}

#[test]
fn what_is_made_where_rules_look_is_found_by_its_path_and_is_no_other_file_than_before() {
    let Some(site) = Site::new() else { return };
    let (one, two) = (site.mount(), site.mount());
    let path_of = |job| site.store.jobs().inputs(job).unwrap().remove(0).path;
    one.mkdir("raw").unwrap();
    two.mkdir("raw/deep").unwrap();
    let at = |host: &Host, path: &str| {
        let open = host.open(path, MAKE).unwrap();
        let number = open.number;
        open.close().unwrap();
        wait_closed(host, number);
        path_of(site.newest())
    };
    assert_eq!(at(&one, "raw/deep/a"), b"raw/deep/a");
    // A directory that another host has moved is known by its new name.
    two.rename("raw/deep", "rawer", RenameFlags::empty()).unwrap();
    assert_eq!(at(&one, "rawer/b"), b"rawer/b");
    let jobs = || site.store.jobs().jobs(99).unwrap().len();
    // Neither what is not wanted nor what is appended to makes a job.
    let before = jobs();
    one.put("other", b"x").unwrap();
    two.append("rawer/b", b"x").unwrap();
    for name in ["rawnobody", "rawhiddennobody"] {
        let open: Open<'_> = one.open(name, MAKE).unwrap();
        open.write(0, b"kept").unwrap();
        assert_eq!(follow(&one, open.number, 0), Tailed::Closed);
        open.close().unwrap();
        assert_eq!(two.cat(name).unwrap(), b"kept");
    }
    for name in [b"rawfails".as_slice(), b"rawhiddenfails"] {
        let made = one.volume.create(USER, ROOT, name, new_file(0o644), MAKE);
        assert_eq!(made.err(), Some(Errno::IO));
        let name = std::str::from_utf8(name).unwrap();
        assert_eq!([&one, &two].map(|host| host.find(name)), [Err(Errno::NOENT); 2]);
    }
    assert_eq!(jobs(), before);
    // A file that is open when its mount ends is closed with its bytes so far.
    let open = one.open("rawlast", MAKE).unwrap();
    let job = site.newest();
    open.write(0, b"so far").unwrap();
    one.volume.close(|| ()).unwrap();
    assert!(site.input(job) == b"so far" && !site.split(job).range.is_open());
    // Nobody has begun to listen: there is nothing to be asked.
    assert!(mounts_of(&two.store).unwrap().is_empty());
    assert!(listens_at(&two.store, SessionId(0xab)).ends_with("mounts/ab"));
    two.volume.close(|| ()).unwrap();
    site.nothing_is_left();
    let version = site.store.meta.lookup(At::Now, ROOT, b"rawlast").unwrap().unwrap();
    assert_eq!(site.content(&version.root), b"so far");
    site.cluster.check();
}
