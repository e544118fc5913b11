//! A file that is open here: what the database said of it, and what was written here and is not stored yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, OtherTimes, Time};
use outrigger_store::meta::Inode;
use outrigger_store::staging::{ExtentMap, Usage};

use super::early::Early;
use crate::follow::{Open, Versioned};
use crate::fs::{Caller, SetAttr};
use crate::live::attributes::{apply, drop_privileges};
use crate::view::content::{Budget, StoredFile};

/// See the module.
pub(super) struct File {
    pub number: u64,
    state: RwLock<State>,
    handles: AtomicU32,
    /// Those of them that may write.
    writers: AtomicU32,
}

/// What its lock guards.
pub(super) struct State {
    /// As the database had it when it was last asked, or told.
    pub row: Inode,
    /// Its content.
    pub stored: Arc<StoredFile>,
    /// What was written over that.
    pub map: ExtentMap,
    /// When, if that is to be the time of the last modification.
    pub written: Option<Time>,
    /// Set-id bits and capabilities go with what was written.
    pub drops_rights: bool,
    /// What else was done to its attributes, in order, and goes with what was written.
    edits: Vec<Edit>,
    /// The process that opened it last to write, until it has closed it.
    pub writer: Option<u32>,
    /// It was made here, and not closed yet.
    pub is_new: bool,
    /// All of what was written was appended.
    pub only_appended: bool,
    /// It has no name any more: nobody else can come by it, and nothing of it is stored, but for programs that read it while it is written.
    pub is_removed: bool,
    /// The content that it had when this host removed its last name, and that is pinned since; or what was stored of it after that.
    pinned: Option<Root>,
    /// Programs read it while it is written.
    pub open: Option<Box<Open>>,
    /// What is stored of it before it is closed.
    pub early: Option<Early>,
    /// Somebody waits until so many bytes of it are stored, or has, and not only by an agent.
    pub awaited: u64,
    /// It has a name in this mount only, and the database knows of no such inode.
    pub is_hidden: bool,
    /// It was made without a name and may get one; until then it is as one that was removed.
    pub may_be_named: bool,
    /// A note says that something of it is stored, and held, although it has no name yet.
    pub is_noted: bool,
    /// What is staged is being committed: until that has ended, the database says either.
    pub is_committing: bool,
    /// The committed content was once the file's at a close: a version worth keeping.
    pub is_version: bool,
    /// Rises with everything that this host makes of it.
    pub edition: u64,
    /// Rises with every content and all attributes that came from elsewhere, in place of what was known here and in the kernel …
    pub others: u64,
    /// … and so far the kernel has forgotten that.
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
            early: None,
            awaited: 0,
            is_hidden: false,
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

    /// Nothing of it is staged, or nobody can come by it any more.
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
    /// Takes over what the database says, unless it may be older than what is known.
    pub fn take(&mut self, row: &Inode, budget: &Arc<Budget>) {
        if self.is_committing || self.is_removed || self.is_hidden {
            return;
        }
        self.lie_over(&row.root, budget);
        self.others += u64::from(self.row.attributes != row.attributes);
        self.row = row.clone();
    }

    /// What is staged lies over this content from now on.
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
        if let Some(early) = &mut self.early {
            early.prefix.replaced();
        }
        self.stored = Arc::new(StoredFile::new(root.clone(), budget));
        self.map.rebase(root.len(), self.only_appended);
        self.is_version = true;
    }

    /// What was written here and is not stored is given up, for the file as it was last stored.
    pub fn forget_changes(&mut self, map: ExtentMap) {
        self.map = map;
        (self.written, self.drops_rights, self.only_appended) = (None, false, false);
        self.edits.clear();
        (self.edition, self.others) = (self.edition + 1, self.others + 1);
    }

    /// It has no name any more, and never will have one again: the inode is gone. Its number is not given to another one.
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

    /// This host has taken its last name, when it was what `row` says, and has pinned the content of that.
    pub fn lose_pinned(&mut self, row: &Inode, budget: &Arc<Budget>) {
        self.pinned = Some(row.root.clone());
        self.row.attributes = row.attributes.clone();
        self.lose();
        self.settle_pinned(budget);
    }

    /// No name leads to it, but programs read it while it is written: what of it is stored is held for their jobs.
    pub fn is_kept(&self) -> bool {
        self.open.is_some() && (self.is_hidden || self.pinned.is_some())
    }

    /// Nobody else can come by it, and nothing of it is stored.
    pub fn is_void(&self) -> bool {
        self.is_removed && !self.is_kept()
    }

    /// It has no name, and nothing keeps its content from being reclaimed.
    pub fn is_given_up(&self) -> bool {
        self.is_removed && self.pinned.is_none() && !self.may_be_named
    }

    /// What was stored of it is gone, so it gets no name any more.
    pub fn can_have_no_name(&mut self) {
        self.may_be_named = false;
    }

    /// The session is over that had pinned it.
    pub fn forget_pin(&mut self) {
        self.pinned = None;
    }

    /// The content that it had when this host removed its last name; or what was stored of it after that.
    pub fn pinned(&self) -> Option<Root> {
        self.pinned.clone()
    }

    /// Something of what nobody finds by a name was stored, and is held.
    pub fn keep(&mut self, root: &Root) {
        if let Some(pinned) = &mut self.pinned {
            *pinned = root.clone();
        }
    }

    /// What is read is what is pinned, unless it is not known yet what a batch has made of the content.
    pub fn settle_pinned(&mut self, budget: &Arc<Budget>) {
        if !self.is_committing
            && let Some(root) = self.pinned.clone()
        {
            self.lie_over(&root, budget);
            self.row.root = root;
        }
    }

    /// Attributes were set, when `written` was the time of the last write: what was written until then says nothing of rights any more, and with `times`
    /// nothing of the time.
    pub fn changed(&mut self, written: Option<Time>, times: bool) {
        if self.written == written {
            self.drops_rights = false;
            if times {
                self.written = None;
            }
        }
    }

    /// Attributes were set of a file that only this mount knows: they are what they are from now on, with all that was to go with a close.
    pub fn set_at_once(&mut self, attributes: Attributes) {
        self.row.attributes = attributes;
        (self.written, self.drops_rights) = (None, false);
        self.edits.clear();
        // What is just being stored of it says what they were before.
        self.edition += 1;
    }

    /// Something of it is not stored.
    pub fn is_dirty(&self) -> bool {
        !self.map.is_clean() || !self.edits.is_empty()
    }

    /// The caller is just writing it, and will close it: what it sets of its attributes can go with that. (Processes of another namespace have no number.)
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

    /// Does to attributes what waits to be done to those of the file; returns how much that is.
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

    /// So much of what waited is in the row now.
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

    /// Held from before it is decided whether a file that loses a name is open, until it has lost it: so nobody has opened it meanwhile, as it was before.
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

    /// One more handle of a file; `false`, and nothing has happened, if it has none any more.
    pub fn again(&self, file: &File) -> bool {
        let files = self.lock();
        let is_open = files.contains_key(&file.number);
        if is_open {
            file.handles.fetch_add(1, Ordering::Relaxed);
        }
        is_open
    }

    /// One handle less; the last one takes the file out. `false`, and nothing has happened, if with that something would be lost that is not stored.
    pub fn close(&self, file: &File) -> bool {
        let mut files = self.lock();
        // Whoever adds one, or takes one, holds the lock; and without a handle nobody writes.
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
