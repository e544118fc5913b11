//! A store's writable tree: a POSIX file system whose changes are staged in a log and written back
//! into packs and the database.
//!
//! ```text
//!   a change ──► staging log (appended: survives the process)  ──fsync──► durable
//!        └─────► memory: names (tree.rs), nodes (node.rs)
//!                   │ least recently written first, in batches (crate::destage_order, destage.rs)
//!                   ▼
//!                the store's write path: cut, hash, dedup, compress, pack, commit
//! ```
//!
//! One mount owns an embedded store. Reads look at memory first, and then at the database and the
//! packs.
//!
//! | file | holds |
//! | --- | --- |
//! | `core.rs`, `world.rs`, `freeze_lock.rs` | what all operations share; the locks and their order |
//! | `tree.rs`, `node.rs` | names and inodes in memory |
//! | `names.rs`, `anonymous.rs`, `attributes.rs`, `acl.rs`, `file.rs`, `directory.rs` | the operations |
//! | `opening.rs` | opening and making files, with those that are tailed |
//! | `flusher.rs`, `dirty.rs`, `destage.rs`, `plan.rs` | when and how write-back stores the log's data; which parts of a file are cut again |
//! | `replay.rs` | the log of a mount that was killed |
//! | `tail.rs`, `places.rs` | tailed files: the part that this kind of mount adds to `crate::tail` |
//! | `reads.rs` | which files programs open to read, for rules |
//! | `hold.rs`, `status.rs` | for commands beside the mount |
//! | `filesystem.rs` | the trait [`FileSystem`](crate::fs::FileSystem) in terms of all these |

pub(crate) mod acl;
mod anonymous;
pub(crate) mod attributes;
mod core;
mod destage;
mod directory;
pub(crate) mod dirty;
pub(crate) mod file;
pub(crate) mod filesystem;
mod flusher;
mod freeze_lock;
mod hold;
pub(crate) mod names;
mod node;
mod opening;
mod places;
pub(crate) mod plan;
mod reads;
mod replay;
mod status;
mod tail;
mod tree;
mod world;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_store::meta::{MOUNT_HOLDER as HOLDER, ORPHAN, Role, SessionKind};
use outrigger_store::ops::View;
use outrigger_store::policy::Overrides;
use outrigger_store::staging::{self, Log, Usage};
use outrigger_store::{Context as _, Result, Store};

use self::core::Core;
use self::replay::Replay;
use self::tree::Tree;
use self::world::World;
use crate::report::Reports;
use crate::view::ahead::ReadAhead;
use crate::view::{FRAMES_BYTES, ReadOptions, ReadVolume};

pub use self::flusher::Paused;
pub use self::hold::{Held, Stale};
pub use crate::destage_order::Order;
pub use crate::tail::{BLOCK, Input, NOTHING_MORE, StillWaits, TailRules, Tailed, Wanted};

/// Room for staging unless said otherwise: twice the largest batch that a device takes.
pub const STAGING_BYTES: u64 = 256 << 20;
/// The least room for staging.
pub const STAGING_BYTES_MIN: u64 = 8 << 20;

/// How to mount for writing.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// Bytes of the staging log at most.
    pub staging_bytes: u64,
    /// Bytes of staged data that are stored at once, about, if little of it is written again.
    pub batch_bytes: u64,
    /// How long data may rest before it is stored.
    pub idle: Duration,
    /// Which data goes first when room is needed.
    pub order: Order,
    /// Threads that cut, hash and compress.
    pub write_threads: usize,
    /// Threads that decode ahead of sequential reads.
    pub ahead_threads: usize,
    /// Show `.snapshots` in the root.
    pub snapshots: bool,
    /// See [`ReadOptions::tame_snapshots`].
    pub tame_snapshots: bool,
    /// Override the policies for all data that is stored.
    pub overrides: Overrides,
}

impl LiveOptions {
    /// Defaults, for a machine with so many threads to use.
    pub fn new(threads: usize) -> Self {
        Self {
            staging_bytes: STAGING_BYTES,
            batch_bytes: STAGING_BYTES / 2,
            idle: Duration::from_secs(5),
            order: Order::default(),
            write_threads: threads,
            ahead_threads: threads,
            snapshots: true,
            tame_snapshots: false,
            overrides: Overrides::default(),
        }
    }

    fn log(&self, store: &Store) -> staging::Options {
        log_options(self.staging_bytes, store)
    }
}

/// The log of a mount that has so many bytes for staging.
pub(crate) fn log_options(staging_bytes: u64, store: &Store) -> staging::Options {
    let capacity = staging_bytes.max(STAGING_BYTES_MIN);
    // Small segments are given back early; but each costs a file.
    let segment_len = (capacity / 8).clamp(4 << 20, 32 << 20);
    let packs_beside = store.has_packs_beside();
    let key = store.keys().map(|keys| keys.content_keys().expect("a mount has all rights").staging.clone());
    staging::Options { segment_len, capacity, packs_beside, key, ..staging::Options::new(store.config.id) }
}

/// Where the mount of the store in directory `store` stages. While this is there, a mount is at
/// work, or has ended without unmounting: the database may not have all that was acknowledged.
pub fn staging_dir(store: &Path) -> PathBuf {
    store.join("staging")
}

/// Content of an earlier mount's log.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Operations.
    pub records: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The torn end: never acknowledged as durable.
    pub torn: Option<staging::Torn>,
}

/// A writable volume: see the module. Dropping it stops the flusher; staged data stays in the log.
pub struct LiveVolume {
    core: Arc<Core>,
    snapshots: Option<ReadVolume>,
    flusher: Mutex<Option<JoinHandle<()>>>,
    recovered: Recovered,
}

impl LiveVolume {
    /// Opens a store's tree for changes, with what an earlier mount left staged.
    ///
    /// # Errors
    /// `Busy` when another mount has it, `Denied` on a read-only store, `Damaged` when the log is,
    /// and those of the store.
    pub fn open(store: Arc<Store>, options: LiveOptions, reports: Reports) -> Result<Self> {
        store.packs.set_cache_bytes(FRAMES_BYTES);
        let session = store.session(SessionKind::Writer, Role::Mount)?;
        session.use_reserve();
        let reports = Arc::new(reports);
        let world = World {
            store: Arc::clone(&store),
            usage: Arc::<Usage>::default(),
            budget: Arc::default(),
            reports: Arc::clone(&reports),
            dirty: Mutex::default(),
            gone: Mutex::default(),
            parents: Mutex::default(),
        };
        let mut replay = Replay { world: &world, tree: Tree::default(), records: 0, clones: false };
        let (log, report) = Log::open_counting(
            &staging_dir(store.dir()),
            options.log(&store),
            Arc::clone(&world.usage),
            &mut |record| replay.apply(record),
        )?;
        let (records, clones) = (replay.records, replay.clones);
        let tree = replay.finish();
        if !clones && !store.meta.held(HOLDER)?.is_empty() {
            store.meta.release(HOLDER, None)?;
        }
        // Files that were open without a name ended with the mount that had them open.
        for holder in store.meta.holders()?.iter().filter(|holder| holder.starts_with(ORPHAN)) {
            store.meta.release(holder, None)?;
        }
        let recovered = Recovered { records, bytes: report.bytes, torn: report.torn };
        let ahead = ReadAhead::start(&store, options.ahead_threads)?;
        let snapshots = options.snapshots.then(|| {
            let options =
                ReadOptions { snapshots: true, tame_snapshots: options.tame_snapshots, ahead_threads: 0 };
            ReadVolume::new(
                Arc::clone(&store),
                View::live(&store, Role::Mount)?,
                options,
                Reports::shared(&reports),
            )
        });
        let snapshots = snapshots.transpose()?;
        let core = Arc::new(Core::new(world, tree, log, session, ahead, options));
        if clones {
            core.control.note_hold();
        }
        let working = Arc::clone(&core);
        let flusher =
            std::thread::Builder::new().name("flusher".to_string()).spawn(move || working.run_flusher());
        let flusher = Mutex::new(Some(flusher.context(|| "cannot start the flusher".to_string())?));
        Ok(Self { core, snapshots, flusher, recovered })
    }

    /// Content of an earlier mount's log.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Stores everything that is staged now, while changes go on.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged.
    pub fn destage_all(&self) -> Result<()> {
        self.core.flush()
    }

    /// For a snapshot: stores everything that was acknowledged before. Until the returned guard is
    /// dropped, nothing is stored that comes after some moment within this call. Changes go on
    /// meanwhile, as far as the log has room.
    ///
    /// # Errors
    /// Those of the store.
    pub fn pause(&self) -> Result<Paused<'_>> {
        self.core.pause()
    }

    /// Stores everything, and removes the staging log. Nothing may be open any more.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged, for the next mount.
    pub fn close(&self) -> Result<()> {
        let ended = self.end_tailing();
        self.stop();
        ended?;
        self.core.world.delete_all(&mut self.core.tree_mut());
        self.core.flush()?;
        self.core.release_orphans()?;
        self.core.log.discard(self.core.log.last())?;
        self.core.world.store.meta.release(HOLDER, None)
    }

    fn stop(&self) {
        self.stop_closer();
        self.core.opens.stop();
        self.core.control.stop();
        if let Some(thread) = self.flusher.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }
}

impl Drop for LiveVolume {
    fn drop(&mut self) {
        self.stop();
    }
}
