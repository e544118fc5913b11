//! The state of one inode while it is in memory.
//!
//! A node is *clean* when the database has all of it; then it may be forgotten at any time, and is
//! read again when it is asked for. It is *dirty* while the log has something of it that the
//! database lacks: attributes (`changed`), or content (its map of extents). A node without names
//! lives until it is closed and the kernel has forgotten it; then it is *deleted*.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, OtherTimes, Time};
use outrigger_store::meta::Inode;
use outrigger_store::staging::{ExtentMap, Usage};

use crate::tail::Open;
use crate::view::content::{Budget, StoredFile};

/// See the module.
pub(super) struct Node {
    pub number: u64,
    pub kind: FileKind,
    state: RwLock<State>,
    /// It is in the set of dirty nodes.
    pub listed: AtomicBool,
    /// Open handles.
    handles: AtomicU32,
    /// Those of them that may write.
    writers: AtomicU32,
}

/// An inode's state, behind its lock.
pub(super) struct State {
    pub attributes: Attributes,
    /// Names it has. Changed with the tree's lock held, too.
    pub links: u32,
    /// A directory that it has, or had, a name in.
    pub parent: u64,
    /// The database lacks its attributes, or all of it.
    pub changed: bool,
    /// Rises with every change of the attributes: a commit is complete if it has not risen since.
    pub edition: u64,
    /// The database has a row for it.
    pub in_database: bool,
    /// An anonymous file: it had no name so far and may get one.
    pub may_be_named: bool,
    /// It has no name, and the kernel does not know it any more.
    pub is_forgotten: bool,
    /// Nobody can find it, and its content was given up.
    pub is_buried: bool,
    /// Content; of files only.
    pub file: File,
    /// Its open version, while programs tail it.
    pub open: Option<Box<Open>>,
    /// It was cut to nothing by its name, so the next program that opens it for writing overwrites
    /// it.
    pub emptied: bool,
}

/// A file's content.
pub(super) struct File {
    /// Its committed content.
    pub stored: Arc<StoredFile>,
    /// Extents that are staged over it.
    pub map: ExtentMap,
    /// The committed content is held, as the file has no name any more.
    pub is_held: bool,
    /// Bytes of the committed content that are not in holes, once somebody has asked.
    pub allocated: Option<u64>,
    /// The committed content is what the file was when its last writer closed it: a version worth
    /// keeping.
    pub is_version: bool,
    /// When it was last written, and when it became dirty: they decide which files are stored
    /// first.
    pub written: Instant,
    pub dirty_since: Option<Instant>,
    /// Small ranges that were overwritten, counted over all batches.
    pub rewrites: u32,
    /// It is rewritten in place: fixed blocks, small frames, staged for longer.
    pub in_place: bool,
}

impl File {
    fn new(root: Root, usage: &Arc<Usage>, budget: &Arc<Budget>) -> Self {
        let map = ExtentMap::new(Arc::clone(usage), root.len());
        let stored = Arc::new(StoredFile::new(root, budget));
        let written = Instant::now();
        Self {
            stored,
            map,
            is_held: false,
            allocated: None,
            is_version: true,
            written,
            dirty_since: None,
            rewrites: 0,
            in_place: false,
        }
    }

    /// Something was written.
    pub fn touched(&mut self) {
        self.written = Instant::now();
        self.dirty_since.get_or_insert(self.written);
    }
}

impl Node {
    /// A node as the database has it.
    pub fn stored(inode: Inode, parent: u64, usage: &Arc<Usage>, budget: &Arc<Budget>) -> Self {
        let Inode { number, attributes, root, links, .. } = inode;
        let file = File::new(root, usage, budget);
        Self::with(
            number,
            State {
                attributes,
                links,
                parent,
                changed: false,
                edition: 0,
                in_database: true,
                may_be_named: false,
                is_forgotten: false,
                is_buried: false,
                file,
                open: None,
                emptied: false,
            },
        )
    }

    /// A new node without names.
    pub fn new(
        number: u64,
        attributes: Attributes,
        parent: u64,
        usage: &Arc<Usage>,
        budget: &Arc<Budget>,
    ) -> Self {
        let file = File::new(Root::Empty, usage, budget);
        let (links, edition) = (0, 1);
        Self::with(
            number,
            State {
                attributes,
                links,
                parent,
                changed: true,
                edition,
                in_database: false,
                may_be_named: false,
                is_forgotten: false,
                is_buried: false,
                file,
                open: None,
                emptied: false,
            },
        )
    }

    fn with(number: u64, state: State) -> Self {
        Self {
            number,
            kind: state.attributes.kind,
            state: RwLock::new(state),
            listed: AtomicBool::new(false),
            handles: AtomicU32::new(0),
            writers: AtomicU32::new(0),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while it is held")
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while it is held")
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// It was opened.
    pub fn opened(&self, to_write: bool) {
        self.handles.fetch_add(1, Ordering::Relaxed);
        self.writers.fetch_add(to_write.into(), Ordering::Relaxed);
    }

    /// A handle was released; `true` when it was the last.
    pub fn closed(&self, to_write: bool) -> bool {
        self.writers.fetch_sub(to_write.into(), Ordering::Relaxed);
        self.handles.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub fn is_open(&self) -> bool {
        self.handles.load(Ordering::Relaxed) > 0
    }

    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }
}

impl State {
    /// Gives up the content.
    pub fn delete_packs(&mut self, usage: &Arc<Usage>, budget: &Arc<Budget>) {
        self.is_buried = true;
        self.file = File::new(Root::Empty, usage, budget);
    }

    /// Takes over what the database says now.
    pub fn reload(&mut self, row: Inode, usage: &Arc<Usage>, budget: &Arc<Budget>) {
        self.attributes = row.attributes;
        self.links = row.links;
        if *self.file.stored.root() != row.root {
            self.file = File::new(row.root, usage, budget);
            if let Some(open) = &mut self.open {
                open.prefix.replaced();
            }
        }
        self.changed = false;
        self.edition += 1;
    }

    /// The database lacks something of it.
    pub fn is_dirty(&self) -> bool {
        self.changed || !self.file.map.is_clean()
    }

    /// Its attributes were changed, and that was logged.
    pub fn edited(&mut self) {
        self.changed = true;
        self.edition += 1;
    }

    /// Its content was changed, and that was logged.
    pub fn modified(&mut self, time: Time) {
        self.attributes.mtime = time;
        self.changed_at(time);
        self.changed = true;
        self.edition += 1;
    }

    /// Its time of last change.
    pub fn changed_at(&mut self, time: Time) {
        self.times_mut().ctime = time;
    }

    /// Times that may be set.
    pub fn times_mut(&mut self) -> &mut OtherTimes {
        let mtime = self.attributes.mtime;
        self.attributes.times.get_or_insert(OtherTimes { atime: mtime, ctime: mtime })
    }

    /// Its number of names, as programs see it: a name that only this mount knows counts, too.
    pub fn links_shown(&self) -> u32 {
        self.links.max(self.open.as_ref().is_some_and(|open| open.is_unpublished).into())
    }

    /// Bytes of a file, or of a symlink's target.
    pub fn len(&self) -> u64 {
        match self.attributes.kind {
            FileKind::File => self.file.map.len(),
            FileKind::Symlink => self.attributes.target.len() as u64,
            _ => 0,
        }
    }
}
