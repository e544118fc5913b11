//! The state that all operations of a writable mount share: the log, the tree, and the rules for
//! touching them.
//!
//! **Locks**, in the order they are taken: room in the log, the flusher's turn, `freeze_lock`,
//! `tree`, a node, `dirty`. [`Core::room`] may wait for the flusher, so nothing else is held then.
//! Every change shares the freeze lock `freeze_lock`; a batch and a barrier take it alone. A change
//! appends its record to the log and changes memory under the lock that gives both one order: the
//! tree's for names, the node's for content and attributes.
//!
//! A change is acknowledged when its record is appended: from then on it survives the death of the
//! process.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_format::staging::Operation;
use outrigger_store::ErrorKind;
use outrigger_store::meta::At;
use outrigger_store::read::Reader;
use outrigger_store::session::Session;
use outrigger_store::staging::{Appended, Log, Reservation};
use rustix::io::Errno;

use super::LiveOptions;
use super::directory::LiveDir;
use super::flusher::Control;
use super::freeze_lock::FreezeLock;
use super::node::{Node, State};
use super::tree::Tree;
use super::world::{Seen, World};
use crate::fs::{Attr, Caller, Entry, Result, Statfs};
use crate::measures::Histogram;
use crate::reads::Opens;
use crate::running::{Run, Running};
use crate::tail::{Places, Tailing};
use crate::view::ahead::ReadAhead;
use crate::view::handles::Handles;
use crate::view::{FOREVER, attr, space};

/// Room that a record needs beside its data, names and attributes.
const RECORD_ROOM: u64 = 256;
/// How long a change waits for room while the flusher fails, before its caller gets the error.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Inode numbers reserved in the database at once.
const INODES_AT_ONCE: u64 = 16 << 10;

/// An open file.
pub(super) struct OpenFile {
    pub node: Arc<Node>,
    pub writes: bool,
    pub appends: bool,
    pub _run: Option<Run>,
}

/// See the module.
pub(super) struct Core {
    pub world: World,
    pub session: Arc<Session>,
    pub log: Log,
    pub options: LiveOptions,
    pub freeze_lock: FreezeLock,
    tree: RwLock<Tree>,
    inodes: Mutex<Range<u64>>,
    pub files: Handles<OpenFile>,
    pub dirs: Handles<LiveDir>,
    /// Files opened since another process last changed the store: the kernel has their right bytes.
    pub fresh: Mutex<HashSet<u64>>,
    statfs: Mutex<Option<(Instant, Statfs)>>,
    pub ahead: ReadAhead,
    pub control: Control,
    pub tailing: Tailing<Node>,
    pub places: Places,
    pub opens: Arc<Opens>,
    pub running: Running,
    pub counters: Counters,
}

/// Counts of events since the mount began.
#[derive(Default)]
pub(super) struct Counters {
    pub destaged: AtomicU64,
    pub invalidated: AtomicU64,
    pub batches: AtomicU64,
    /// How long batches took that had something to store.
    pub took: Histogram,
    /// Batches that failed.
    pub failures: AtomicU64,
    pub stored: AtomicU64,
    pub new: AtomicU64,
    /// How often another process may have changed the store.
    pub reloads: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    pub fn note_reload(&self) {
        Self::add(&self.reloads, 1);
        // Open directory pages are out of date, too.
        Self::add(&self.batches, 1);
    }
}

impl Core {
    /// Puts it together around what the replay of the log has left in memory.
    pub fn new(
        world: World,
        tree: Tree,
        log: Log,
        session: Arc<Session>,
        ahead: ReadAhead,
        options: LiveOptions,
    ) -> Self {
        Self {
            world,
            session,
            log,
            options,
            freeze_lock: FreezeLock::default(),
            tree: RwLock::new(tree),
            inodes: Mutex::new(0..0),
            files: Handles::default(),
            dirs: Handles::default(),
            fresh: Mutex::default(),
            statfs: Mutex::default(),
            ahead,
            control: Control::default(),
            tailing: Tailing::default(),
            places: Places::default(),
            opens: Arc::default(),
            running: Running::default(),
            counters: Counters::default(),
        }
    }

    pub fn tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().expect("no panic while it is held")
    }

    pub fn tree_mut(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().expect("no panic while it is held")
    }

    pub fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.freeze_lock.pass()
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.world.store)
    }

    /// True when changes are likely to have to wait: the log is nearly full, or a barrier is at
    /// work.
    pub fn may_wait(&self) -> bool {
        let fill = self.log.fill();
        self.freeze_lock.is_closed() || fill.waiting > 0 || fill.used + fill.reserved > fill.capacity / 8 * 7
    }

    /// Waits until the log has room for a change with this many bytes of data, names and
    /// attributes.
    pub fn room(&self, bytes: usize) -> Result<Reservation<'_>> {
        let bytes = bytes as u64 + RECORD_ROOM;
        loop {
            self.control.note_pressure(&self.log);
            match self.log.reserve(bytes, Some(ROOM_TIMEOUT)) {
                Err(error) if error.kind() == ErrorKind::Busy => match self.control.trouble() {
                    Some(errno) => return Err(errno),
                    None if self.is_out_of_disk(bytes) => return Err(Errno::NOSPC),
                    None => continue,
                },
                reserved => return self.world.fail(reserved),
            }
        }
    }

    /// See [`Log::is_out_of_disk`].
    fn is_out_of_disk(&self, bytes: u64) -> bool {
        // A collector may just have removed packs that are open here.
        self.world.store.backend.tend();
        self.log.is_out_of_disk(bytes)
    }

    /// As [`Core::room`], for a change that will make room: while nothing can be stored it may
    /// exceed the log's bound. Otherwise a full store could not be emptied.
    pub fn room_to_free(&self, bytes: usize) -> Option<Reservation<'_>> {
        if self.control.trouble().is_some() || self.log.fill().is_bounded {
            return self.log.reserve(bytes as u64 + RECORD_ROOM, Some(Duration::ZERO)).ok();
        }
        self.room(bytes).ok()
    }

    /// Appends a record; from here on the change survives this process. Refused once the session is
    /// over, as nothing can be stored then.
    pub fn append(&self, operation: &Operation, data: &[u8]) -> Result<Appended> {
        self.world.fail(self.session.check())?;
        self.world.fail(self.log.append(operation, data))
    }

    /// Makes all appended records durable, if the store still exists.
    pub fn sync(&self) -> Result<()> {
        let there = self.world.store.meta.still_there();
        self.world.fail(there.and_then(|()| self.log.sync())).map(drop)
    }

    /// A number for a new inode.
    pub fn next_inode(&self) -> Result<u64> {
        let mut inodes = self.inodes.lock().expect("no panic while it is held");
        if inodes.is_empty() {
            *inodes = self.world.fail(self.world.store.meta.reserve_inodes(INODES_AT_ONCE))?;
        }
        inodes.start += 1;
        Ok(inodes.start - 1)
    }

    // ---- from numbers and names to nodes --------------------------------------------------------------------------

    /// A number's inode: a node in memory, or a row of the database.
    pub fn seen(&self, number: u64) -> Result<Seen> {
        let tree = self.tree();
        if let Some(node) = tree.nodes.get(&number) {
            return Ok(Seen::Node(Arc::clone(node)));
        }
        self.world.fail(self.world.store.meta.inode(At::Now, number))?.map(Seen::Row).ok_or(Errno::STALE)
    }

    /// Finds the file of a file handle, if it still has a name, or the directory above it.
    pub fn by_handle(&self, number: u64, above: bool) -> Result<Entry> {
        let number = if above { self.above(number)? } else { number };
        // A file that lost its name may leave memory before the database hears of that.
        let dirty = self.world.dirty.lock().expect("no panic while it is held").get(&number).cloned();
        let seen = dirty.map_or_else(|| self.seen(number), |node| Ok(Seen::Node(node)))?;
        let names = match &seen {
            Seen::Node(node) => node.read().links_shown(),
            Seen::Row(row) => row.links,
        };
        if names == 0 { Err(Errno::STALE) } else { Ok(self.entry(&seen)) }
    }

    /// The node of a number, brought into memory.
    pub fn node(&self, number: u64) -> Result<Arc<Node>> {
        if let Some(node) = self.tree().nodes.get(&number) {
            return Ok(Arc::clone(node));
        }
        self.world.node_in(&mut self.tree_mut(), number)
    }

    /// Room in the store, as it was a moment ago.
    pub fn statfs(&self) -> Result<Statfs> {
        const MOMENT: Duration = Duration::from_secs(1);
        let mut last = self.statfs.lock().expect("no panic while held");
        if let Some((at, statfs)) = *last
            && at.elapsed() < MOMENT
        {
            return Ok(statfs);
        }
        let count = || {
            let totals = self.world.store.meta.totals()?;
            space::statfs(&self.world.store, totals.files + totals.directories + totals.others)
        };
        let statfs = self.world.fail(count())?;
        *last = Some((Instant::now(), statfs));
        Ok(statfs)
    }

    /// True if the kernel may keep its cache of a file that is being opened.
    pub fn keeps_cache(&self, number: u64) -> bool {
        self.counters.reloads.load(Ordering::Relaxed) == 0
            || !self.fresh.lock().expect("no panic while held").insert(number)
    }

    // ---- attributes -----------------------------------------------------------------------------------------------

    /// The answer to `stat`.
    pub fn entry(&self, seen: &Seen) -> Entry {
        match seen {
            Seen::Node(node) => self.entry_of(node),
            Seen::Row(row) => {
                let attr = attr::attr(row.number, row, attr::allocated(&self.reader(), &row.root));
                Entry::new(attr, FOREVER)
            }
        }
    }

    /// The answer to `stat` for a node. The name of a tailed file may vanish without the kernel, so
    /// it is not cached.
    pub fn entry_of(&self, node: &Node) -> Entry {
        let valid = if node.read().open.is_some() { Duration::ZERO } else { FOREVER };
        Entry::new(self.attr(node), valid)
    }

    /// A node's attributes.
    pub fn attr(&self, node: &Node) -> Attr {
        let state = node.read();
        let allocated = match node.kind {
            FileKind::File => match self.allocated(&state) {
                Some(allocated) => allocated,
                None => {
                    drop(state);
                    return self.attr_counted(node);
                }
            },
            _ => 0,
        };
        attr::shown(node.number, &state.attributes, state.links_shown(), state.len(), allocated)
    }

    /// Bytes that are not in holes; `None` while those of the committed content are not counted.
    fn allocated(&self, state: &State) -> Option<u64> {
        use outrigger_store::staging::Piece;
        let file = &state.file;
        let stored = file.stored.root();
        let base = file.allocated.or_else(|| attr::allocated_at_once(stored))?;
        if file.map.is_clean() {
            return Some(base);
        }
        let (mut staged, mut committed) = (0, 0);
        for (range, piece) in file.map.pieces(0..u64::MAX) {
            match piece {
                Piece::Data(_) | Piece::Clone(..) => staged += range.end - range.start,
                Piece::Committed => committed += range.end - range.start,
                Piece::Zero => {}
            }
        }
        Some(staged + committed.min(base))
    }

    fn attr_counted(&self, node: &Node) -> Attr {
        let mut state = node.write();
        let base = attr::allocated(&self.reader(), state.file.stored.root());
        state.file.allocated = Some(base);
        let allocated = self.allocated(&state).unwrap_or(base);
        attr::shown(node.number, &state.attributes, state.links_shown(), state.len(), allocated)
    }
}

/// The current time.
pub(super) fn now() -> Time {
    Time::from_nanos(outrigger_clock::now_nanos())
}

/// True if the caller is exempt from the rules on set-id bits and sticky groups.
pub(super) fn is_privileged(caller: Caller) -> bool {
    caller.uid == 0
}
