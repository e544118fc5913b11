//! A file that is open here: its row as the database last reported it, and what was written here
//! and is not stored yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, OtherTimes, Time};
use outrigger_store::meta::Inode;
use outrigger_store::staging::{ExtentMap, Usage};

use super::stored_prefix::Increments;
use crate::fs::{Caller, SetAttr};
use crate::live::attributes::{apply, drop_privileges};
use crate::tail::{Open, Versioned};
use crate::view::content::{Budget, StoredFile};

/// See the module.
pub(super) struct File {
    pub number: u64,
    state: RwLock<State>,
    handles: AtomicU32,
    /// Those of them that may write.
    writers: AtomicU32,
}

/// An open file's data, behind its lock.
pub(super) struct State {
    /// As the database had it when it was last asked, or told.
    pub row: Inode,
    /// Its content.
    pub stored: Arc<StoredFile>,
    /// Extents that were written over it.
    pub map: ExtentMap,
    /// Time of the last write, if it is to be the modification time.
    pub written: Option<Time>,
    /// The next store drops set-id bits and capabilities, as the file was written.
    pub drops_rights: bool,
    /// Other changes of attributes, in order, that are committed with what was written.
    edits: Vec<Edit>,
    /// The last process to open it for writing, until that process closes it.
    pub writer: Option<u32>,
    /// It was made here, and not closed yet.
    pub is_new: bool,
    /// All of what was written was appended.
    pub only_appended: bool,
    /// It has no name any more. Nobody else can find it, and it is stored only for programs that
    /// tail it.
    pub is_removed: bool,
    /// The content that was pinned when this host removed its last name, or what was stored after
    /// that.
    pinned: Option<Root>,
    /// Programs read it while it is written.
    pub open: Option<Box<Open>>,
    /// The stored prefix of an incremental flush.
    pub increments: Option<Increments>,
    /// A thread waits, or has waited, until this many bytes are stored, and not only by an agent.
    pub close_barrier: u64,
    /// It has a name in this mount only, and the database knows of no such inode.
    pub is_unpublished: bool,
    /// An anonymous file, which may get a name; until then it is treated like a removed file.
    pub may_be_named: bool,
    /// A registry record says that a content of this file is held although it has no name yet.
    pub is_noted: bool,
    /// Its staged data is being committed. Until that has ended, the database may report the old or
    /// the new row.
    pub is_committing: bool,
    /// The committed content was once the file's at a close: a version worth keeping.
    pub is_version: bool,
    /// Rises with each change of the file by this host.
    pub edition: u64,
    /// Counts contents and attributes from elsewhere that replaced what this host and its kernel
    /// knew …
    pub others: u64,
    /// … and up to which count the kernel has dropped its cache.
    pub dropped: u64,
}

/// A change of attributes.
#[derive(Clone)]
enum Edit {
    /// At this time.
    Set(SetAttr, Time),
    /// Something was written before: see [`State::drops_rights`].
    DropRights,
}

impl File {
    /// As the database has it.
    pub fn new(row: Inode, usage: &Arc<Usage>, budget: &Arc<Budget>) -> Self {
        let stored = Arc::new(StoredFile::new(row.root.clone(), budget));
        let state = State {
            map: ExtentMap::new(Arc::clone(usage), row.root.len()),
            stored,
            written: None,
            drops_rights: false,
            edits: Vec::new(),
            writer: None,
            is_new: false,
            only_appended: false,
            is_removed: false,
            pinned: None,
            open: None,
            increments: None,
            close_barrier: 0,
            is_unpublished: false,
            may_be_named: false,
            is_noted: false,
            is_committing: false,
            is_version: true,
            edition: 0,
            others: 0,
            dropped: 0,
            row,
        };
        Self {
            number: state.row.number,
            state: RwLock::new(state),
            handles: AtomicU32::default(),
            writers: AtomicU32::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while it is held")
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while it is held")
    }

    /// True if nothing is staged, or nobody can find the file any more.
    pub fn is_stored(&self) -> bool {
        let state = self.read();
        state.is_void() || !state.is_dirty()
    }

    /// One more handle may write.
    pub fn writer_came(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub fn writer_left(&self) {
        self.writers.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }
}

impl Versioned for File {
    fn number(&self) -> u64 {
        self.number
    }

    fn look<T>(&self, look: impl FnOnce(Option<&Open>, u64) -> T) -> T {
        let state = self.read();
        look(state.open.as_deref(), state.map.len())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Option<Box<Open>>) -> T) -> T {
        change(&mut self.write().open)
    }
}

impl State {
    /// Takes over a row from the database, unless it may be older than the known one.
    pub fn take(&mut self, row: &Inode, budget: &Arc<Budget>) {
        if self.is_committing || self.is_removed || self.is_unpublished {
            return;
        }
        self.lie_over(&row.root, budget);
        self.others += u64::from(self.row.attributes != row.attributes);
        self.row = row.clone();
    }

    /// Puts staged data over this content.
    fn lie_over(&mut self, root: &Root, budget: &Arc<Budget>) {
        if *self.stored.root() != *root {
            self.replace(root, budget);
        }
    }

    /// Somebody else has stored another content.
    pub fn replace(&mut self, root: &Root, budget: &Arc<Budget>) {
        self.others += 1;
        if let Some(open) = &mut self.open {
            open.prefix.replaced();
        }
        if let Some(increments) = &mut self.increments {
            increments.prefix.replaced();
        }
        self.stored = Arc::new(StoredFile::new(root.clone(), budget));
        self.map.rebase(root.len(), self.only_appended);
        self.is_version = true;
    }

    /// Drops all changes that are not stored; the file is what was stored last.
    pub fn forget_changes(&mut self, map: ExtentMap) {
        self.map = map;
        (self.written, self.drops_rights, self.only_appended) = (None, false, false);
        self.edits.clear();
        (self.edition, self.others) = (self.edition + 1, self.others + 1);
    }

    /// Its last name is gone, and its inode with it. The number is not used again.
    pub fn lose(&mut self) {
        self.is_removed = true;
        self.row.links = 0;
    }

    /// It has no name yet.
    pub fn await_name(&mut self) {
        self.lose();
        self.may_be_named = true;
    }

    /// It has its first name.
    pub fn got_name(&mut self) {
        (self.may_be_named, self.is_removed, self.row.links) = (false, false, 1);
    }

    /// This host has removed its last name and pinned the content of `row`.
    pub fn lose_pinned(&mut self, row: &Inode, budget: &Arc<Budget>) {
        self.pinned = Some(row.root.clone());
        self.row.attributes = row.attributes.clone();
        self.lose();
        self.settle_pinned(budget);
    }

    /// True if it has no name but programs tail it: what is stored of it is held for their jobs.
    pub fn is_kept(&self) -> bool {
        self.open.is_some() && (self.is_unpublished || self.pinned.is_some())
    }

    /// True if nobody else can find it, and it is not stored.
    pub fn is_void(&self) -> bool {
        self.is_removed && !self.is_kept()
    }

    /// True if it has no name, and nothing protects its content from the collector.
    pub fn is_given_up(&self) -> bool {
        self.is_removed && self.pinned.is_none() && !self.may_be_named
    }

    /// Its stored content is gone, so it can get no name any more.
    pub fn can_have_no_name(&mut self) {
        self.may_be_named = false;
    }

    /// The session that had pinned it is over.
    pub fn forget_pin(&mut self) {
        self.pinned = None;
    }

    /// The content that was pinned when this host removed its last name, or what was stored after
    /// that.
    pub fn pinned(&self) -> Option<Root> {
        self.pinned.clone()
    }

    /// A part of a file without a name was stored, and is held.
    pub fn keep(&mut self, root: &Root) {
        if let Some(pinned) = &mut self.pinned {
            *pinned = root.clone();
        }
    }

    /// Makes the pinned content the one that reads use, except while a commit of the file is in
    /// progress.
    pub fn settle_pinned(&mut self, budget: &Arc<Budget>) {
        if !self.is_committing
            && let Some(root) = self.pinned.clone()
        {
            self.lie_over(&root, budget);
            self.row.root = root;
        }
    }

    /// Attributes were set when `written` was the time of the last write. Earlier writes no longer
    /// drop rights, and with `times` no longer set the modification time.
    pub fn changed(&mut self, written: Option<Time>, times: bool) {
        if self.written == written {
            self.drops_rights = false;
            if times {
                self.written = None;
            }
        }
    }

    /// Sets attributes of a file that only this mount knows. They replace those that were to go
    /// with a close.
    pub fn set_at_once(&mut self, attributes: Attributes) {
        self.row.attributes = attributes;
        (self.written, self.drops_rights) = (None, false);
        self.edits.clear();
        // A commit in progress carries the old attributes.
        self.edition += 1;
    }

    /// True if something of it is not stored.
    pub fn is_dirty(&self) -> bool {
        !self.map.is_clean() || !self.edits.is_empty()
    }

    /// True if the caller is the process that is writing it and will close it: its changes of
    /// attributes can be committed with that close. (Processes of another PID namespace have no
    /// number.)
    pub fn is_written_by(&self, caller: Caller) -> bool {
        caller.pid != 0
            && self.writer == Some(caller.pid)
            && self.row.links > 0
            && (self.is_new || self.is_dirty())
    }

    /// Sets attributes when what was written is stored.
    pub fn set_later(&mut self, set: &SetAttr, time: Time) {
        if self.drops_rights {
            self.edits.push(Edit::DropRights);
        }
        self.edits.push(Edit::Set(set.clone(), time));
        self.changed(self.written, set.mtime.is_some());
    }

    /// Applies the waiting changes to `attributes`; returns how many there are.
    pub fn edit(&self, attributes: &mut Attributes) -> usize {
        for edit in &self.edits {
            match edit {
                Edit::Set(set, time) => apply(attributes, set, *time),
                Edit::DropRights => drop(drop_privileges(attributes)),
            }
        }
        self.edits.len()
    }

    /// How many changes of attributes wait.
    pub fn waiting(&self) -> usize {
        self.edits.len()
    }

    /// The row now has this many of the waiting changes.
    pub fn edited(&mut self, edits: usize) {
        self.edits.drain(..edits.min(self.edits.len()));
    }

    /// Attributes with what was written.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.row.attributes.clone();
        let edits = self.edit(&mut attributes);
        if let Some(time) = self.written {
            let before = attributes.mtime;
            let times = attributes.times.get_or_insert(OtherTimes { atime: before, ctime: before });
            times.ctime = if edits > 0 { time.max(times.ctime) } else { time };
            attributes.mtime = time;
        }
        if self.drops_rights {
            drop_privileges(&mut attributes);
        }
        attributes
    }
}

/// Files of which one may be removed while another is opened.
const GATES: usize = 32;

/// The files that are open.
#[derive(Default)]
pub(super) struct Files {
    open: Mutex<HashMap<u64, Arc<File>>>,
    gates: [RwLock<()>; GATES],
}

impl Files {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<File>>> {
        self.open.lock().expect("no panic while held")
    }

    fn gate(&self, number: u64) -> &RwLock<()> {
        &self.gates[(number % GATES as u64) as usize]
    }

    /// Held from before a file's row is read until it is among the open ones.
    pub fn opening(&self, number: u64) -> RwLockReadGuard<'_, ()> {
        self.gate(number).read().expect("no panic while held")
    }

    /// Held from before a rename or unlink checks if the file is open until its name is gone, so
    /// that nobody opens the old row meanwhile.
    pub fn removing(&self, number: u64) -> RwLockWriteGuard<'_, ()> {
        self.gate(number).write().expect("no panic while held")
    }

    pub fn get(&self, number: u64) -> Option<Arc<File>> {
        self.lock().get(&number).cloned()
    }

    /// One more handle of a file; `make` if it has none.
    pub fn open(&self, number: u64, make: impl FnOnce() -> File) -> (Arc<File>, bool) {
        let mut files = self.lock();
        let was_open = files.contains_key(&number);
        let file = files.entry(number).or_insert_with(|| Arc::new(make()));
        file.handles.fetch_add(1, Ordering::Relaxed);
        (Arc::clone(file), was_open)
    }

    /// Adds a handle to a file. `false`, and nothing has happened, if it has none any more.
    pub fn again(&self, file: &File) -> bool {
        let files = self.lock();
        let is_open = files.contains_key(&file.number);
        if is_open {
            file.handles.fetch_add(1, Ordering::Relaxed);
        }
        is_open
    }

    /// Removes a handle; the last one takes the file out. `false`, and nothing has happened, if
    /// that would lose data that is not stored.
    pub fn close(&self, file: &File) -> bool {
        let mut files = self.lock();
        // Handles change only under the lock, and without a handle nobody writes.
        let is_last = file.handles.load(Ordering::Relaxed) == 1;
        if is_last && !file.is_stored() {
            return false;
        }
        file.handles.fetch_sub(1, Ordering::Relaxed);
        if is_last {
            files.remove(&file.number);
        }
        true
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<File>> {
        self.lock().values().cloned().collect()
    }
}
