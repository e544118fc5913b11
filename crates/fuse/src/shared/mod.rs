//! A tree that other hosts change at the same time: a POSIX file system over a store whose metadata
//! lies in PostgreSQL.
//!
//! ```text
//!   names, attributes ──► one transaction of the database, then the answer
//!   bytes             ──► staging log of this mount ──close, fsync──► cut, hash, dedup, compress, pack ──► one transaction
//!                                                                └──► small ones: cut, hash ──► one transaction, with the bytes ──later──► packed together
//!   lookup, stat by name, open ──► the database, each time
//! ```
//!
//! **Nothing is cached on trust.** The mount owns nothing, so nobody would have to tell it about
//! changes: the kernel may keep no name and no attribute. It asks each time. Each answer is what
//! the database says then. So no feed of changes exists that could lose one, and nothing waits for
//! it. The mount keeps only the bytes of files, while their root is the same, and the attributes of
//! open files, for a second.
//!
//! **Names and attributes**: each change is one transaction with preconditions ([`Change::IfName`],
//! [`Change::CompareAndSwap`]). If another host was faster, the database refuses it, and the mount
//! looks and decides again. So `O_EXCL`, `mkdir`, `link` and `rename` are exclusive among all
//! hosts, and no host's `chmod` undoes another's.
//!
//! **Bytes** that are written lie in this mount's log until the file is closed or synced (or the
//! log fills: `crate::destage_order`), and no other host sees them. (Most of a large file is stored by then, under
//! no name.) Then they are stored, and the new content becomes the file's, if the file still has
//! the old one. If not, they are laid over the new content and stored again: byte by byte the last
//! close wins, and data that was only appended follows the new end. The log promises nothing: it is
//! lost when the mount is killed.
//!
//! **The session** has a lease, which the server judges. Every transaction locks the session's row.
//! If another client ends the session, the mount goes on with a new one (`lease.rs`).
//!
//! Locks, in the order they are taken: the gate of opening and removing; the flush lock; the map of
//! open files, for a moment; a file's state; the inode cache, for a moment.
//!
//! | file | holds |
//! | --- | --- |
//! | `core.rs`, `rows.rs` | what all operations share: transactions, room in the log; rows and the inode cache |
//! | `file.rs` | an open file: what is committed, and what is staged over it |
//! | `names.rs`, `attributes.rs` | the operations that are transactions |
//! | `path_prefetch.rs` | path prefetch: directories on a path, asked for before the kernel comes to them |
//! | `negative_cache.rs` | directories that this mount has just made, with all their names |
//! | `anonymous.rs` | anonymous files, which may get a name |
//! | `store.rs` | from the log to the store: the flush lock, and who waits for it |
//! | `batch.rs`, `dirty.rs` | how a batch of files is stored; the dirty snapshots that it stores |
//! | `in_doubt.rs` | commits in doubt |
//! | `increments.rs`, `increment_queue.rs`, `stored_prefix.rs` | incremental flush of large files: its thread, what that does next, and what it has stored of a file |
//! | `delegated.rs` | delegated uploads by agents on other hosts |
//! | `deferred.rs`, `close_barrier.rs` | deferred closes, and the close barrier that waits for them |
//! | `lease.rs` | the session, and the next one when another client has ended it |
//! | `locks/` | locks of programs, among all hosts |
//! | `tail.rs`, `unpublished.rs`, `open_versions.rs` | tailed files: the part that this kind of mount adds to `crate::tail` |
//! | `packer.rs` | packs small files' chunks from the database |
//! | `outbox.rs` | the change outbox: names and inodes to publish to the catalogue |
//! | `worker.rs` | a mount's background thread |
//! | `opening.rs`, `bytes.rs` | opening files, writing and reading their bytes |
//! | `filesystem.rs` | the trait [`FileSystem`](crate::fs::FileSystem) in terms of these |
//!
//! [`Change::IfName`]: outrigger_store::meta::Change::IfName
//! [`Change::CompareAndSwap`]: outrigger_store::meta::Change::CompareAndSwap

mod anonymous;
mod attributes;
mod batch;
mod bytes;
mod close_barrier;
mod core;
mod deferred;
mod delegated;
mod dirty;
mod file;
mod filesystem;
mod in_doubt;
mod increment_queue;
mod increments;
mod lease;
mod locks;
mod names;
mod negative_cache;
mod open_versions;
mod opening;
mod outbox;
mod packer;
mod path_prefetch;
mod rows;
mod store;
mod stored_prefix;
mod tail;
mod unpublished;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_store::meta::{Role, SessionId, SessionKind};
use outrigger_store::ops::View;
use outrigger_store::policy::Overrides;
use outrigger_store::staging::{self, Log};
use outrigger_store::{Error, ErrorKind, Result, Store};

use self::core::Core;
use self::locks::Locks;
use self::packer::Packer;
use crate::destage_order::Order;
use crate::live::{STAGING_BYTES, log_options};
use crate::measures::{Status, Watched};
use crate::reads::{Opens, Reads, Source};
use crate::report::Reports;
use crate::view::ahead::ReadAhead;
use crate::view::{FRAMES_BYTES, ReadOptions, ReadVolume};

pub use self::close_barrier::{await_closed, sweep_barriers};
pub use self::open_versions::{LeftOpen, held_of, left_open, let_go};

/// Where this host's mounts of a store have their logs, and listen.
fn dirs_above(store: &Store) -> PathBuf {
    store.dir().join("mounts")
}

/// Where the mount that has this session has its log, and listens, if it is on this host.
pub fn dir_of_mount(store: &Store, mount: SessionId) -> PathBuf {
    dirs_above(store).join(format!("{:x}", mount.0))
}

/// Where mounts of this store on this host may listen.
pub fn dirs_of_mounts(store: &Store) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dirs_above(store)).into_iter().flatten().flatten();
    // A mount that goes on with another session has a link by that one's number.
    found.map(|entry| entry.path()).filter(|path| !path.is_symlink()).collect()
}

/// How to mount a store that other hosts write to.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// Bytes of the staging log at most.
    pub staging_bytes: u64,
    /// Which written data is stored first when room is needed.
    pub order: Order,
    /// Threads that cut, hash and compress.
    pub write_threads: usize,
    /// Threads that serve requests. All but one (of eight, if there are more) may wait for programs
    /// that tail files, and for agents that store them.
    pub request_threads: usize,
    /// Threads that decode ahead of sequential reads.
    pub ahead_threads: usize,
    /// Show `.snapshots` in the root.
    pub snapshots: bool,
    /// See [`ReadOptions::tame_snapshots`].
    pub tame_snapshots: bool,
    /// Override the policies.
    pub overrides: Overrides,
    /// An incremental flush stores a file each time this many bytes were added to it.
    pub increment_bytes: u64,
    /// How long the kernel may cache a name. For the same time after this mount made a directory, a
    /// name in it counts as free unless this mount has made it.
    pub names_for: Duration,
    /// How much later than its close a small file may be visible to other hosts. Zero: the close
    /// waits until it is.
    pub closes_within: Duration,
}

impl SharedOptions {
    /// Defaults, for a machine with so many threads to use.
    pub fn new(threads: usize) -> Self {
        Self {
            staging_bytes: STAGING_BYTES,
            order: Order::default(),
            write_threads: threads,
            request_threads: threads,
            ahead_threads: threads,
            snapshots: true,
            tame_snapshots: false,
            overrides: Overrides::default(),
            increment_bytes: stored_prefix::ROUND,
            names_for: Duration::ZERO,
            closes_within: Duration::ZERO,
        }
    }

    fn log(&self, store: &Store) -> staging::Options {
        log_options(self.staging_bytes, store)
    }
}

/// A shared mount's volume: see the module.
pub struct SharedVolume {
    core: Arc<Core>,
    snapshots: Option<ReadVolume>,
    dir: PathBuf,
    locks: Locks,
    opens: Arc<Opens>,
}

impl SharedVolume {
    /// Opens the tree for changes.
    ///
    /// # Errors
    /// `Invalid` for a store of one machine, `Denied` where the role may only read, and those of
    /// the store.
    pub fn open(store: Arc<Store>, options: SharedOptions, reports: Reports) -> Result<Self> {
        if !store.is_shared() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "only a store in PostgreSQL can be written to by several mounts",
            ));
        }
        store.packs.set_cache_bytes(FRAMES_BYTES);
        let session = store.session(SessionKind::Writer, Role::Mount)?;
        let reports = Arc::new(reports);
        sweep(&dirs_above(&store), &store, &options);
        let dir = dir_of_mount(&store, session.id());
        let (log, _) = Log::open(&dir, options.log(&store), &mut |_| Ok(()))?;
        let ahead = ReadAhead::start(&store, options.ahead_threads)?;
        let snapshots = options.snapshots.then(|| {
            let view = View::live(&store, Role::Mount)?;
            let options =
                ReadOptions { snapshots: true, tame_snapshots: options.tame_snapshots, ahead_threads: 0 };
            ReadVolume::new(Arc::clone(&store), view, options, Reports::shared(&reports))
        });
        let snapshots = snapshots.transpose()?;
        let packer = Packer::start(&store, options.write_threads, &reports)?;
        let core = Arc::new(Core::new(store, session, packer, log, ahead, options, reports));
        let increments = Arc::clone(&core);
        core.increments.start(move || increments.store_increments())?;
        if !core.options.closes_within.is_zero() {
            let deferred = Arc::clone(&core);
            core.deferred.start(move || deferred.store_deferred_in_time())?;
            core.register_deferred(core.session().id())?;
        }
        let locks = Locks::start(&core)?;
        lease::watch(&core, locks.service());
        Ok(Self { core, snapshots, dir, locks, opens: Arc::default() })
    }

    /// Reports to `reads` from now on which files are opened for reading; once.
    ///
    /// # Errors
    /// When there are too many threads, or it cannot be found out whether somebody wants to know.
    pub fn set_reads(&self, reads: Arc<dyn Reads>) -> Result<()> {
        self.opens.start(reads, Box::new(Stored(Arc::clone(&self.core.reports))))
    }

    /// Sets how to make the kernel drop its cache of a file that another host has changed. Only
    /// threads that serve no requests call it.
    pub fn forget_by(&self, forget: impl Fn(u64) + Send + Sync + 'static) {
        self.locks.forget_by(Box::new(forget));
    }

    /// Has `then` called with each new session's number, after another client has ended the one
    /// before.
    pub fn when_renewed(&self, then: impl Fn(SessionId) -> Result<()> + Send + Sync + 'static) {
        self.core.lease.when_renewed(Box::new(then));
    }

    /// Its session.
    pub fn session_id(&self) -> SessionId {
        self.core.session().id()
    }

    /// Where it has its log, and listens.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stores everything that was written and not stored yet.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged.
    pub fn store_all(&self) -> Result<()> {
        self.core.store_all()
    }

    /// Stores all closed files, including those whose close was deferred.
    ///
    /// # Errors
    /// Those of the store.
    pub fn store_closed(&self) -> Result<()> {
        self.core.store_closed()
    }

    /// Stores everything, packs what small files left in the database, and removes the log. Nothing
    /// may be open any more. `end_server` is called when there is nothing left for readers to
    /// ask, and before the directory is removed in which its socket lies.
    ///
    /// # Errors
    /// Those of the store; data that could not be stored is lost. Chunks that could not be packed
    /// are not lost: another mount or `gc` packs them.
    pub fn close(&self, end_server: impl FnOnce()) -> Result<()> {
        self.opens.stop();
        self.locks.end();
        let ended = self.end_tailing();
        self.core.store_deferred();
        self.core.deferred.stop();
        self.core.unregister_deferred();
        let stored = self.core.store_all().and(ended);
        self.core.end_increments();
        self.core.packer.finish();
        self.core.lease.end();
        end_server();
        self.core.log.discard(self.core.log.last())?;
        // Usually gone with the log; otherwise the next mount sweeps it.
        let _ = std::fs::remove_dir_all(&self.dir);
        let link = dir_of_mount(&self.core.store, self.session_id());
        let _ = if link.is_symlink() { std::fs::remove_file(link) } else { Ok(()) };
        stored
    }
}

/// Stores nothing when a program opens a file to read: others can read only what is stored already.
struct Stored(Arc<Reports>);

impl Source for Stored {
    fn store(&self, _: &[u64]) -> Result<()> {
        Ok(())
    }

    fn report(&self, error: &Error) {
        self.0.errno_of_our_own(error);
    }
}

impl Drop for SharedVolume {
    fn drop(&mut self) {
        self.opens.stop();
        self.core.lease.end();
        self.core.tailing.stop();
        self.core.increments.stop();
        self.core.deferred.stop();
    }
}

/// Removes the logs of mounts that are gone: their content was never promised.
fn sweep(above: &Path, store: &Store, options: &SharedOptions) {
    // First the directories, then the sessions: a mount's session is there before its directory is.
    let found: Vec<_> = std::fs::read_dir(above).into_iter().flatten().flatten().collect();
    let Ok(sessions) = store.meta.sessions() else { return };
    for entry in found {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        if number.is_none() || sessions.iter().any(|session| Some(session.id.0) == number) {
            continue;
        }
        if entry.path().is_symlink() {
            let _ = std::fs::remove_file(entry.path());
            continue;
        }
        match Log::open(&entry.path(), options.log(store), &mut |_| Ok(())) {
            // It stays locked while it is removed.
            Ok(_locked) => drop(std::fs::remove_dir_all(entry.path())),
            // Nobody reads it any more, and it was locked when that was found.
            Err(error) if error.kind() == ErrorKind::Damaged => drop(std::fs::remove_dir_all(entry.path())),
            // A mount whose session is over and that does not know it yet is busy. Nothing is known
            // of the others.
            Err(_) => {}
        }
    }
}

impl Watched for SharedVolume {
    fn watch(&self, status: &mut Status) {
        let core = &self.core;
        let fill = core.log.fill();
        status.staging_used_bytes = fill.used;
        status.staging_capacity_bytes = fill.capacity;
        status.waiting_operations = fill.waiting as u64;
        status.writing_paced_seconds = core.tailing.waited();
        status.dirty_inodes = core.dirty().len() as u64;
        let snapshots = self.snapshots.as_ref().map_or(0, ReadVolume::handles_open);
        status.open_handles = (core.files.len() + core.dirs.len() + snapshots) as u64;
        core.counters.watch(status);
        (status.sessions_lost, status.files_kept_aside) = core.lease.counts();
        status.unpacked_bytes = core.packer.waiting();
        core.store.packs.watch(status);
        crate::measures::database(&*core.store.meta, status);
    }
}

/// For tests: the row of something that was just made.
#[cfg(test)]
fn new_row(number: u64, kind: outrigger_format::catalogue::FileKind) -> outrigger_store::meta::Inode {
    let attributes = outrigger_format::catalogue::Attributes {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: outrigger_format::catalogue::Time::default(),
        rdev: 0,
        target: Vec::new(),
        xattrs: Vec::new(),
        times: None,
    };
    let root = outrigger_format::Root::Empty;
    outrigger_store::meta::Inode { number, attributes, root, links: 1, stamp: 0 }
}
