//! The rows that a commit works on: read in bulk before it, changed in memory, written in bulk
//! after it.
//!
//! Each statement costs a round trip and its planning, so a commit makes few of them.
//! [`Working::load`] reads and locks in one go everything that its changes name. Other rows (the
//! way up from a directory, the entries of a directory that is removed) are read when they are
//! needed. `flush.rs` writes the changes.
//!
//! **Locks.** Rows of names and inodes that a commit may change are locked for update as they are
//! read, in the order of their keys. If a directory gets an entry, its row in `directory` is locked
//! for key share; it is locked for update before the directory is found empty. So no commit makes
//! an entry in a directory that is being removed. A free name or number cannot be locked: when two
//! commits both make it, the primary key refuses the second one's insertion, and that commit is
//! repeated. Changes that would need more locks (moving a directory, removing one that has entries)
//! are made alone.

mod load;
mod rows;

use std::collections::{HashMap, HashSet};

use super::connection::{Answer, Query};
use super::row::Stored;
use super::sealing::Seals;
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Fault, Outcome, refuse};

/// A row as it was read, and as it is to be written.
pub(super) struct Slot<T> {
    pub before: Option<T>,
    pub now: Option<T>,
}

impl<T: Clone> Slot<T> {
    fn read(row: Option<T>) -> Self {
        Self { before: row.clone(), now: row }
    }
}

/// The inode that a name stands for, and the epoch since when.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub inode: i64,
    pub epoch: i64,
}

/// Names of one directory.
pub(super) type Names = HashMap<Vec<u8>, Slot<Name>>;

/// Where rows come from that are not loaded yet.
pub(super) enum Source<'t, 'p> {
    Transaction(&'t mut Tx<'p>),
    /// Nowhere: rows that are not assumed stay unknown (`speculative.rs`).
    Nowhere,
}

impl Source<'_, '_> {
    pub fn run(&mut self, queries: Vec<Query>) -> Outcome<Vec<Answer>> {
        match self {
            Self::Transaction(tx) => tx.run(queries),
            Self::Nowhere => Err(Fault::Again { alone: false }),
        }
    }

    pub fn one(&mut self, query: Query) -> Outcome<Answer> {
        match self {
            Self::Transaction(tx) => tx.one(query),
            Self::Nowhere => Err(Fault::Again { alone: false }),
        }
    }

    /// Without a transaction nothing is written from here.
    pub fn later(&mut self, query: Query) {
        if let Self::Transaction(tx) = self {
            tx.later(query);
        }
    }

    /// The engine's, for checksums of rows that are written.
    pub fn seals(&self) -> Seals {
        match self {
            Self::Transaction(tx) => tx.seals().clone(),
            Self::Nowhere => Seals::default(),
        }
    }

    fn is_alone(&self) -> bool {
        matches!(self, Self::Transaction(tx) if tx.alone)
    }
}

/// The rows of one transaction.
pub(super) struct Working<'t, 'p> {
    pub tx: Source<'t, 'p>,
    pub names: HashMap<i64, Names>,
    pub inodes: HashMap<i64, Slot<Stored>>,
    /// Inodes that were read without a lock.
    glanced: HashMap<i64, Stored>,
    pub directories: HashMap<i64, Slot<i64>>,
    /// For the history: a former state, and the epoch at which it ended.
    pub former_inodes: Vec<(Stored, i64)>,
    pub former_names: Vec<(i64, Vec<u8>, Name, i64)>,
    pub versions: Vec<Stored>,
    /// Inode → the oldest number that stays.
    pub trims: HashMap<i64, i64>,
    pub policies_gone: Vec<i64>,
    pub held: HashMap<String, Option<Vec<u8>>>,
    /// Directories with all their names in `names`: those made here, and those read whole.
    whole: HashSet<i64>,
    /// Rows of `directory` that are locked for update.
    guarded: HashSet<i64>,
}

/// Rows that a commit keeps in memory; with more, it writes what it has so far.
const ROWS_MAX: usize = 200_000;

impl<'t, 'p> Working<'t, 'p> {
    /// No rows yet.
    pub fn new(tx: &'t mut Tx<'p>) -> Self {
        Self::from(Source::Transaction(tx))
    }

    /// No rows, and never others than those that are assumed.
    pub fn guess() -> Self {
        Self::from(Source::Nowhere)
    }

    fn from(tx: Source<'t, 'p>) -> Self {
        Self {
            tx,
            names: HashMap::new(),
            inodes: HashMap::new(),
            glanced: HashMap::new(),
            directories: HashMap::new(),
            former_inodes: Vec::new(),
            former_names: Vec::new(),
            versions: Vec::new(),
            trims: HashMap::new(),
            policies_gone: Vec::new(),
            held: HashMap::new(),
            whole: HashSet::new(),
            guarded: HashSet::new(),
        }
    }

    /// Assumes that a name is free …
    pub fn assume_free(&mut self, parent: i64, name: &[u8]) {
        self.names.entry(parent).or_default().entry(name.to_vec()).or_insert_with(|| Slot::read(None));
    }

    /// … that a directory exists, wherever it lies …
    pub fn assume_directory(&mut self, directory: i64) {
        self.directories.entry(directory).or_insert_with(|| Slot::read(Some(0)));
    }

    /// … that an inode has this row, or does not exist …
    pub fn assume_inode(&mut self, number: i64, row: Option<Stored>) {
        self.inodes.entry(number).or_insert_with(|| Slot::read(row));
    }

    /// … that an inode has these traits, and that no change needs more of it.
    pub fn assume_like(&mut self, number: i64, row: Stored) {
        self.glanced.entry(number).or_insert(row);
    }

    fn now_named(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<Name>> {
        self.know_name(parent, name)?;
        Ok(self.names.get(&parent).and_then(|names| names.get(name)).and_then(|slot| slot.now))
    }

    fn slot_of_name(&mut self, parent: i64, name: &[u8]) -> Outcome<&mut Slot<Name>> {
        self.know_name(parent, name)?;
        self.names
            .get_mut(&parent)
            .and_then(|names| names.get_mut(name))
            .ok_or_else(|| refuse(ErrorKind::Damaged, "a name that was just read is not known"))
    }

    /// Returns an inode that the editor has just seen.
    fn present(&mut self, number: i64) -> Outcome<&mut Stored> {
        let slot = self.know_inode(number)?;
        slot.now.as_mut().ok_or_else(|| refuse(ErrorKind::Damaged, format!("inode {number} is missing")))
    }

    /// The names that a directory has now, as far as they are known.
    fn known_names(&self, parent: i64) -> impl Iterator<Item = (&Vec<u8>, Name)> {
        let names = self.names.get(&parent).into_iter().flatten();
        names.filter_map(|(name, slot)| slot.now.map(|now| (name, now)))
    }

    /// Writes and forgets the rows if there are many.
    fn relieve(&mut self) -> Outcome<()> {
        if self.inodes.len() + self.former_inodes.len() < ROWS_MAX {
            return Ok(());
        }
        self.flush();
        self.tx.run(Vec::new())?;
        self.names.clear();
        self.inodes.clear();
        self.directories.clear();
        self.whole.clear();
        self.guarded.clear();
        Ok(())
    }
}
