//! Tailed files, without kernel and programs: a follower's bytes, and its job's outcome.

use crate::support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{FileSystem, Found, Handle, NewNode, OpenFlags, Part, ROOT, SetAttr};
use outrigger_fuse::live::{LiveVolume, NOTHING_MORE, StillWaits, TailRules, Tailed, Wanted};
use outrigger_store::meta::jobs::{
    Claimed, JobId, JobInput, JobState, NewJob, NewSplit, OPEN_END, SplitRow, SplitState, job_holder,
};
use outrigger_store::meta::{At, SessionId, SessionKind};
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::{Error, ErrorKind, Result, Store};
use outrigger_workload::Rng;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use support::tailed::{Model, Written};
use support::volume::{close, create, mount, options, random, read, reclaim, write};
use support::{Place, ROOT_USER, find, names};

/// Wants all files in the root whose names begin with `raw`; hides those that begin with
/// `rawhidden`.
struct All {
    store: Arc<Store>,
    ahead: Option<u64>,
    fails: bool,
}

struct One {
    store: Arc<Store>,
    path: Vec<u8>,
    ahead: Option<u64>,
    fails: bool,
}

impl TailRules for All {
    fn refresh(&self) -> Result<()> {
        Ok(())
    }

    fn is_any(&self) -> bool {
        true
    }

    fn wanted(&self, path: &[Vec<u8>]) -> Option<Box<dyn Wanted>> {
        let path = path.join(&b'/');
        path.starts_with(b"raw").then(|| {
            let (store, ahead, fails) = (Arc::clone(&self.store), self.ahead, self.fails);
            Box::new(One { store, path, ahead, fails }) as Box<dyn Wanted>
        })
    }

    fn expect(&self, _: &str, _: StillWaits) -> Result<Receiver<JobId>> {
        Err(Error::new(ErrorKind::Invalid, "nobody asks"))
    }
}

impl Wanted for One {
    fn is_unpublished(&self) -> bool {
        self.path.starts_with(b"rawhidden")
    }

    fn ahead(&self) -> Option<u64> {
        self.ahead
    }

    fn begin(self: Box<Self>, _: u64, _: SessionId, _: bool) -> Result<Vec<JobId>> {
        if self.fails {
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

/// A volume whose files are followed, and the store beside it.
struct Site {
    place: Place,
    store: Arc<Store>,
    session: Arc<Session>,
    volume: Option<LiveVolume>,
}

impl Site {
    fn new(ahead: Option<u64>) -> Self {
        let place = Place::new();
        let store = Arc::new(place.open());
        let session = store.session(SessionKind::Writer, "job test").unwrap();
        let mut site = Self { place, store, session, volume: None };
        site.mount(ahead, false);
        site
    }

    fn mount(&mut self, ahead: Option<u64>, fails: bool) {
        let volume = mount(&self.place, options());
        volume.set_tail_rules(Arc::new(All { store: Arc::clone(&self.store), ahead, fails })).unwrap();
        self.volume = Some(volume);
    }

    fn volume(&self) -> &LiveVolume {
        self.volume.as_ref().unwrap()
    }

    fn newest(&self) -> JobId {
        self.store.jobs().jobs(1).unwrap()[0].id
    }

    fn claim(&self, job: JobId) -> Claimed {
        self.store.jobs().claim_splits(self.session.id(), job, 1, 9, None).unwrap().claimed[0]
    }

    fn split(&self, job: JobId) -> SplitRow {
        self.store.jobs().split(job, 0).unwrap().unwrap()
    }

    fn content(&self, root: &Root) -> Vec<u8> {
        let mut bytes = Vec::new();
        Reader::new(&self.store)
            .read(root, 0, u64::MAX, &mut |some| {
                bytes.extend_from_slice(some);
                Ok(())
            })
            .unwrap();
        bytes
    }

    fn input(&self, job: JobId) -> Vec<u8> {
        let root = self.store.jobs().inputs(job).unwrap()[0].root.clone();
        self.content(&root)
    }

    /// The follower's next bytes from `from` on.
    fn follow(&self, inode: u64, from: u64) -> Tailed {
        self.volume().tail(inode, from, Duration::ZERO).unwrap()
    }

    /// Until the mount has closed it.
    fn wait_closed(&self, inode: u64) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.volume().tail(inode, NOTHING_MORE, Duration::from_millis(50)).unwrap() != Tailed::Closed {
            assert!(Instant::now() < end, "it was never closed");
        }
    }
}

struct Raw<'a> {
    site: &'a Site,
    file: (u64, Handle),
}

impl Written for Raw<'_> {
    fn set_len(&self, len: u64) {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.site.volume().set_attributes(ROOT_USER, self.file.0, &set).unwrap();
    }

    fn punch(&self, from: u64, len: u64) {
        let part = Part { number: self.file.0, handle: self.file.1, offset: from };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.site.volume().allocate(ROOT_USER, part, len, punch).unwrap();
    }

    fn write(&self, at: u64, data: &[u8]) {
        write(self.site.volume(), self.file, at, data);
    }

    fn store(&mut self, _: &[u8]) {
        self.site.volume().destage_all().unwrap();
    }

    fn tail(&self, from: u64) -> Tailed {
        self.site.follow(self.file.0, from)
    }
}

#[test]
fn a_follower_sees_what_the_file_becomes_or_is_told_that_it_did_not() {
    let mut site = Site::new(None);
    let (mut clean, mut invalidated, mut crashed, mut aborted) = (0, 0, 0, 0);
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let name = format!("raw{seed}");
        let file = create(site.volume(), ROOT, name.as_bytes());
        let job = site.newest();
        let claimed = site.claim(job);
        let mut raw = Raw { site: &site, file };
        let Model { content, seen, is_invalidated, .. } = Model::at_random(seed, &mut rng, 30, &mut raw);
        match rng.below(8) {
            0 => {
                // The process ends: what was acknowledged is in the tree, and the job is as open as
                // it was.
                crashed += 1;
                drop(site.volume.take());
                assert!(site.split(job).range.is_open());
                site.mount(None, false);
                assert_eq!(site.follow(file.0, 0), Tailed::Closed, "this mount knows nothing of it");
                site.volume().destage_all().unwrap();
                let row = site.store.meta.lookup(At::Now, ROOT, name.as_bytes()).unwrap().unwrap();
                assert!(row.number == file.0 && site.content(&row.root) == content, "seed {seed}");
                continue;
            }
            1 => {
                aborted += 1;
                let (name_of, flags) = (b"user.outrigger.abort", XattrFlags::empty());
                site.volume().set_xattr(ROOT_USER, file.0, name_of, b"1", flags).unwrap();
                close(site.volume(), file);
                site.wait_closed(file.0);
                let row = site.store.jobs().job(job).unwrap().unwrap();
                assert!(row.state == JobState::Failed && row.why.contains("gave"), "{}", row.why);
                assert!(matches!(
                    site.volume().lookup(ROOT_USER, ROOT, name.as_bytes()).unwrap(),
                    Found::Missing { .. }
                ));
                continue;
            }
            _ => {}
        }
        close(site.volume(), file);
        site.wait_closed(file.0);
        let split = site.split(job);
        assert_eq!(split.range.to, content.len() as u64, "seed {seed}");
        assert!(site.input(job) == content, "seed {seed}");
        let row = site.store.meta.lookup(At::Now, ROOT, name.as_bytes()).unwrap().unwrap();
        assert!(site.content(&row.root) == content, "who is told that it is closed finds a version");
        if is_invalidated {
            invalidated += 1;
            assert!(split.state == SplitState::Waiting && split.attempt > claimed.attempt, "seed {seed}");
        } else {
            clean += 1;
            assert_eq!((split.state, split.attempt), (SplitState::Running, claimed.attempt), "seed {seed}");
            assert!(content.starts_with(&seen), "seed {seed}");
        }
    }
    assert!(
        clean > 20 && invalidated > 10 && crashed > 3 && aborted > 3,
        "{clean} {invalidated} {crashed} {aborted}"
    );
    site.volume().close().unwrap();
}

#[test]
fn a_file_is_followed_wherever_its_directory_lies_and_once_it_is_closed_no_more() {
    let site = Site::new(None);
    let directory = NewNode { kind: FileKind::Directory, mode: 0o755, umask: 0, rdev: 0 };
    let raw = site.volume().make(ROOT_USER, ROOT, b"raw", directory).unwrap().attr.number;
    let deep = site.volume().make(ROOT_USER, raw, b"deep", directory).unwrap().attr.number;
    // In memory, and in the database.
    for round in 0..2u8 {
        let file = create(site.volume(), deep, &[b'a' + round]);
        let input = site.store.jobs().inputs(site.newest()).unwrap().remove(0);
        assert_eq!(input.path, [b"raw/deep/".as_slice(), &[b'a' + round]].concat());
        write(site.volume(), file, 0, b"some");
        assert_eq!(site.follow(file.0, 0), Tailed::Data(b"some".to_vec()));
        close(site.volume(), file);
        site.wait_closed(file.0);
    }
    // A directory that was moved is known by its new name.
    site.volume().rename(ROOT_USER, (raw, b"deep"), (ROOT, b"rawer"), RenameFlags::empty()).unwrap();
    let file = create(site.volume(), deep, b"c");
    assert_eq!(site.store.jobs().inputs(site.newest()).unwrap()[0].path, b"rawer/c");
    close(site.volume(), file);
    let jobs = || site.store.jobs().jobs(99).unwrap().len();
    assert_eq!(jobs(), 3);
    // Neither what is not wanted nor what is there already, and is added to, makes a job.
    let other = create(site.volume(), ROOT, b"other");
    assert_eq!(site.follow(other.0, 0), Tailed::Closed);
    close(site.volume(), other);
    let again = find(site.volume(), "rawer/c").attr.number;
    let handle = site.volume().open(ROOT_USER, again, OFlags::WRONLY | OFlags::APPEND).unwrap().handle;
    write(site.volume(), (again, handle), 0, b"more");
    close(site.volume(), (again, handle));
    assert_eq!(jobs(), 3);
    site.volume().close().unwrap();
}

#[test]
fn a_file_that_loses_its_name_while_it_is_written_is_read_to_its_end() {
    let site = Site::new(None);
    let file = create(site.volume(), ROOT, b"raw");
    let job = site.newest();
    let expected = random(5, 300_000);
    write(site.volume(), file, 0, &expected[..100_000]);
    site.volume().unlink(ROOT_USER, ROOT, b"raw").unwrap();
    write(site.volume(), file, 100_000, &expected[100_000..]);
    close(site.volume(), file);
    site.volume().forget(file.0, 1);
    site.wait_closed(file.0);
    reclaim(&site.place);
    assert!(site.input(job) == expected);
    assert!(site.store.meta.held(&job_holder(job)).unwrap().len() == 1);
    site.volume().close().unwrap();
    assert!(!site.store.meta.holders().unwrap().iter().any(|holder| holder.starts_with("orphan")));
}

#[test]
fn what_is_hidden_is_seen_by_nobody_and_leaves_nothing_behind() {
    let mut site = Site::new(None);
    let (name, new) =
        (b"rawhidden".as_slice(), NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 });
    let file = create(site.volume(), ROOT, name);
    let expected = random(6, 3 << 20);
    write(site.volume(), file, 0, &expected);
    let volume = site.volume();
    // Its writer finds it by its name; a directory does not show it, and the name is taken.
    assert_eq!(find(volume, "rawhidden").attr.number, file.0);
    assert_eq!((find(volume, "rawhidden").attr.links, find(volume, "rawhidden").attr.size), (1, 3 << 20));
    assert!(!names(volume, ROOT, 100, true).contains(&name.to_vec()));
    let exclusive = OpenFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    assert_eq!(volume.create(ROOT_USER, ROOT, name, new, exclusive).err(), Some(Errno::EXIST));
    let other = create(volume, ROOT, b"other");
    let renamed = volume.rename(ROOT_USER, (ROOT, b"other"), (ROOT, name), RenameFlags::empty());
    assert_eq!(renamed.err(), Some(Errno::BUSY));
    let renamed = volume.rename(ROOT_USER, (ROOT, name), (ROOT, b"away"), RenameFlags::empty());
    assert_eq!(renamed.err(), Some(Errno::BUSY));
    close(volume, other);
    volume.destage_all().unwrap();
    assert!(site.store.meta.lookup(At::Now, ROOT, name).unwrap().is_none(), "the database knows no name");
    assert!(matches!(site.follow(file.0, 0), Tailed::Data(bytes) if expected.starts_with(&bytes)));
    // The process ends: nothing is left, and the job is open.
    let job = site.newest();
    drop(site.volume.take());
    site.mount(None, false);
    assert!(matches!(site.volume().lookup(ROOT_USER, ROOT, name).unwrap(), Found::Missing { .. }));
    assert!(site.store.meta.inode(At::Now, file.0).unwrap().is_none() && site.split(job).range.is_open());
    // Closed: its content is the job's, and the name is free.
    let file = create(site.volume(), ROOT, name);
    let job = site.newest();
    write(site.volume(), file, 0, &expected);
    close(site.volume(), file);
    site.wait_closed(file.0);
    assert!(matches!(site.volume().lookup(ROOT_USER, ROOT, name).unwrap(), Found::Missing { .. }));
    site.volume().destage_all().unwrap();
    reclaim(&site.place);
    assert!(site.input(job) == expected);
    // Removed by its writer: the job fails, and nothing was ever there.
    let file = create(site.volume(), ROOT, name);
    let job = site.newest();
    write(site.volume(), file, 0, b"wrong");
    site.volume().unlink(ROOT_USER, ROOT, name).unwrap();
    site.wait_closed(file.0);
    assert_eq!(site.store.jobs().job(job).unwrap().unwrap().state, JobState::Failed);
    assert_eq!(read(site.volume(), file, 10), b"wrong", "who has it open has it");
    close(site.volume(), file);
    site.volume().close().unwrap();
    let holders: BTreeSet<String> = site.store.meta.holders().unwrap().into_iter().collect();
    assert!(!holders.iter().any(|holder| holder.starts_with("orphan")), "{holders:?}");
}

#[test]
fn a_file_that_no_job_can_be_made_of_is_not_made() {
    let mut site = Site::new(None);
    drop(site.volume.take());
    site.mount(None, true);
    let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
    for name in [b"raw".as_slice(), b"rawhidden"] {
        let made = site.volume().create(ROOT_USER, ROOT, name, new, OpenFlags::RDWR | OFlags::CREATE);
        assert_eq!(made.err(), Some(Errno::IO));
        assert!(matches!(site.volume().lookup(ROOT_USER, ROOT, name).unwrap(), Found::Missing { .. }));
    }
    assert!(site.place.said.lock().unwrap().iter().any(|said| said.contains("no job can be made")));
    drop(site.volume.take());
    // One that nobody wants after all, somebody else having had the file that he waited for, is a
    // file like any other.
    site.mount(None, false);
    for name in [b"rawnobody".as_slice(), b"rawhiddennobody"] {
        let file = create(site.volume(), ROOT, name);
        write(site.volume(), file, 0, b"kept");
        assert_eq!(site.follow(file.0, 0), Tailed::Closed);
        close(site.volume(), file);
        assert!(names(site.volume(), ROOT, 100, true).contains(&name.to_vec()));
    }
    site.volume().close().unwrap();
    assert!(site.store.meta.lookup(At::Now, ROOT, b"rawhiddennobody").unwrap().is_some());
}

#[test]
fn what_is_open_when_the_mount_ends_is_closed_with_what_it_has() {
    let site = Site::new(None);
    let file = create(site.volume(), ROOT, b"raw");
    let job = site.newest();
    write(site.volume(), file, 0, b"so far");
    site.volume().close().unwrap();
    assert_eq!(site.input(job), b"so far");
    assert!(!site.split(job).range.is_open());
}

#[test]
fn a_writer_that_is_attached_is_never_further_ahead_than_it_may_be() {
    const AHEAD: u64 = 256 << 10;
    const STEP: u64 = 64 << 10;
    const LEN: u64 = 4 << 20;
    let site = Site::new(Some(AHEAD));
    let file: (u64, Handle) = create(site.volume(), ROOT, b"raw");
    let expected = random(9, LEN as usize);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, part) in (0u64..).zip(expected.chunks(STEP as usize)) {
                write(site.volume(), file, number * STEP, part);
                written.store((number + 1) * STEP, Ordering::SeqCst);
            }
        });
        let mut seen = Vec::new();
        while (seen.len() as u64) < LEN {
            let before = written.load(Ordering::SeqCst);
            assert!(before <= seen.len() as u64 + AHEAD, "{before} written, {} read", seen.len());
            if let Tailed::Data(bytes) =
                site.volume().tail(file.0, seen.len() as u64, Duration::from_secs(5)).unwrap()
            {
                seen.extend(bytes);
            }
        }
        assert!(seen == expected);
    });
    // A follower that has read enough keeps nobody waiting.
    let file = create(site.volume(), ROOT, b"raw2");
    assert_eq!(site.follow(file.0, NOTHING_MORE), Tailed::Nothing);
    write(site.volume(), file, 0, &expected);
    close(site.volume(), file);
    site.volume().close().unwrap();
}

/// Opens a file by its number, as a kernel does that knows it, to write it anew.
fn write_and_close(site: &Site, file: (u64, Handle), data: &[u8]) {
    write(site.volume(), file, 0, data);
    close(site.volume(), file);
    site.wait_closed(file.0);
}

fn overwrite(site: &Site, number: u64) -> (u64, Handle) {
    let flags = OpenFlags::RDWR | OFlags::TRUNC;
    (number, site.volume().open(ROOT_USER, number, flags).unwrap().handle)
}

#[test]
fn a_file_that_is_overwritten_is_followed_as_one_that_is_made() {
    let mut site = Site::new(None);
    let file = create(site.volume(), ROOT, b"plain");
    write(site.volume(), file, 0, b"what was there, and is longer");
    close(site.volume(), file);
    site.volume().rename(ROOT_USER, (ROOT, b"plain"), (ROOT, b"raw"), RenameFlags::empty()).unwrap();
    // Nothing of it is in memory.
    site.volume().close().unwrap();
    site.volume = None;
    site.mount(None, false);
    let jobs = || site.store.jobs().jobs(100).unwrap().len();
    let number = find(site.volume(), "raw").attr.number;
    // Opened to be read, or to be written without losing what it has, it is none.
    for flags in [OpenFlags::RDONLY, OpenFlags::RDWR, OpenFlags::WRONLY | OFlags::APPEND] {
        let opened = site.volume().open(ROOT_USER, number, flags).unwrap();
        site.volume().release(number, opened.handle);
    }
    assert_eq!(jobs(), 0);
    let file = overwrite(&site, number);
    let job = site.newest();
    let claimed = site.claim(job);
    assert_eq!(site.follow(number, 0), Tailed::Nothing, "nothing of what was there");
    write(site.volume(), file, 0, b"anew");
    assert_eq!(site.follow(number, 0), Tailed::Data(b"anew".to_vec()));
    // Once more while it is: the same job, which begins again.
    let second = overwrite(&site, number);
    write(site.volume(), second, 0, b"and again");
    close(site.volume(), file);
    assert_eq!(site.follow(number, 4), Tailed::Data(b"again".to_vec()));
    close(site.volume(), second);
    site.wait_closed(number);
    assert_eq!((jobs(), site.input(job)), (1, b"and again".to_vec()));
    assert!(site.split(job).attempt > claimed.attempt, "what it had read was changed");
    // And then: another one. It is closed as it is if it is given up, and loses the mark.
    let third = overwrite(&site, number);
    assert_eq!(jobs(), 2);
    write(site.volume(), third, 0, b"half");
    site.volume().set_xattr(ROOT_USER, number, b"user.outrigger.abort", b"1", XattrFlags::empty()).unwrap();
    close(site.volume(), third);
    site.wait_closed(number);
    let row = site.store.jobs().job(site.newest()).unwrap().unwrap();
    assert_eq!((row.state, find(site.volume(), "raw").attr.size), (JobState::Failed, 4));
    assert!(site.volume().xattr(ROOT_USER, number, b"user.outrigger.abort").is_err());
    // Cut by who has it open; and by its name, then written.
    let opened = site.volume().open(ROOT_USER, number, OpenFlags::RDWR).unwrap();
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    site.volume().set_attributes(ROOT_USER, number, &empty).unwrap();
    write(site.volume(), (number, opened.handle), 0, b"cut");
    assert_eq!((jobs(), site.follow(number, 0)), (3, Tailed::Data(b"cut".to_vec())));
    close(site.volume(), (number, opened.handle));
    site.wait_closed(number);
    site.volume().set_attributes(ROOT_USER, number, &empty).unwrap();
    assert_eq!(jobs(), 3);
    let opened = site.volume().open(ROOT_USER, number, OpenFlags::WRONLY).unwrap();
    write_and_close(&site, (number, opened.handle), b"by name");
    assert_eq!((jobs(), site.input(site.newest())), (4, b"by name".to_vec()));
    // Where it is matters, not where it was; what hides new files cannot hide one that others see.
    site.volume().rename(ROOT_USER, (ROOT, b"raw"), (ROOT, b"other"), RenameFlags::empty()).unwrap();
    close(site.volume(), overwrite(&site, number));
    assert_eq!(jobs(), 4);
    site.volume().rename(ROOT_USER, (ROOT, b"other"), (ROOT, b"rawhidden"), RenameFlags::empty()).unwrap();
    let file = overwrite(&site, number);
    write(site.volume(), file, 0, b"seen");
    assert!(names(site.volume(), ROOT, 100, true).contains(&b"rawhidden".to_vec()));
    close(site.volume(), file);
    site.wait_closed(number);
    assert_eq!((jobs(), site.input(site.newest())), (5, b"seen".to_vec()));
    site.volume().close().unwrap();
}
