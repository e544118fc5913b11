//! The rows that a commit works on: read in bulk before it, changed in memory, written in bulk after it.
//!
//! Each statement costs a round trip and its planning, so a commit makes few of them. [`Working::load`] reads and locks in one go
//! everything that its changes name. Other rows (the way up from a directory, the entries of a directory that is removed) are
//! read when they are needed. `flush.rs` writes the changes.
//!
//! **Locks.** Rows of names and inodes that a commit may change are locked for update as they are read, in the order of their
//! keys. If a directory gets an entry, its row in `directory` is locked for key share; it is locked for update before the
//! directory is found empty. So no commit makes an entry in a directory that is being removed. A free name or number cannot be
//! locked: when two commits both make it, the primary key refuses the second one's insertion, and that commit is repeated.
//! Changes that would need more locks (moving a directory, removing one that has entries) are made alone.

use std::collections::{HashMap, HashSet};

use outrigger_format::Root;
use tokio_postgres::types::Type;

use super::connection::{Answer, Query};
use super::row::{self, Stored, Traits, require, stored_columns};
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::change::Rows;
use crate::meta::change::row::{TraitsKey, root_column};
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::{Change, ROOT_INODE};

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

/// Locks the names in `$1` and `$2`. Their inodes are read separately: if another commit exchanged a name while this one waited
/// for its lock, a join would look for the name's old inode, and not find it.
const LOAD_NAMES: &str = "SELECT d.parent, d.name, d.inode, d.epoch, d.sum FROM unnest($1, $2) AS wanted (parent, name) \
    JOIN @dentry d ON d.parent = wanted.parent AND d.name = wanted.name FOR UPDATE OF d";
/// Reads the inodes of names that are locked. Being a statement of its own, it sees everything committed before.
const LOAD_NAMED: &str = concat!(
    "SELECT ",
    stored_columns!(),
    " FROM @inode i WHERE i.number IN (SELECT d.inode FROM unnest($1, $2) AS wanted (parent, name) \
     JOIN @dentry d ON d.parent = wanted.parent AND d.name = wanted.name) ORDER BY i.number FOR UPDATE OF i"
);
const LOAD_INODES: &str = concat!(
    "SELECT ",
    stored_columns!(),
    " FROM @inode i WHERE i.number = ANY ($1) ORDER BY i.number FOR UPDATE"
);
/// Reads without a lock, so no transaction waits for it.
const GLANCE: &str = concat!("SELECT ", stored_columns!(), " FROM @inode i WHERE i.number = ANY ($1)");
const LOAD_DIRECTORIES: &str =
    "SELECT inode, parent, sum FROM @directory WHERE inode = ANY ($1) ORDER BY inode FOR KEY SHARE";
const GUARD_DIRECTORY: &str = "SELECT inode, parent, sum FROM @directory WHERE inode = $1 FOR UPDATE";
const HAS_NAMES: &str = "SELECT name FROM @dentry WHERE parent = $1 LIMIT $2";
/// For a transaction that runs alone: no name is exchanged meanwhile.
const LOAD_ENTRIES: &str = concat!(
    "SELECT d.parent, d.name, d.inode, d.epoch, d.sum, ",
    stored_columns!(),
    " FROM @dentry d JOIN @inode i ON i.number = d.inode WHERE d.parent = $1 FOR UPDATE OF d, i"
);
const VERSIONS_POLICY: &str = "WITH RECURSIVE up (inode, distance) AS (SELECT $1::bigint, 0 UNION ALL \
    SELECT h.parent, up.distance + 1 FROM up JOIN @directory h ON h.inode = up.inode \
    WHERE h.parent <> up.inode AND up.distance < 100000) \
    SELECT p.value, p.inode FROM up JOIN @policy p ON p.inode = up.inode AND p.key = 'versions' ORDER BY up.distance LIMIT 1";
const ABOVE: &str = "SELECT h.parent, d.name FROM @directory h JOIN @dentry d ON d.parent = h.parent AND d.inode = h.inode \
    WHERE h.inode = $1";
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

    /// Makes the statements that read the rows that `changes` name, in the order of [`Working::loaded`].
    pub fn load(changes: &[Change]) -> (Wanted, Vec<Query>) {
        let wanted = Wanted::of(changes);
        let by_name = |sql, names: &[(i64, Vec<u8>)]| {
            let (parents, names): (Vec<i64>, Vec<Vec<u8>>) = names.iter().cloned().unzip();
            Query::new(sql).ints(parents).with(names, Type::BYTEA_ARRAY)
        };
        let mut queries = Vec::with_capacity(5);
        if !wanted.directories.is_empty() {
            queries.push(Query::new(LOAD_DIRECTORIES).ints(wanted.directories.clone()));
        }
        if !wanted.names.is_empty() {
            queries.push(by_name(LOAD_NAMES, &wanted.names));
        }
        if !wanted.named.is_empty() {
            queries.push(by_name(LOAD_NAMED, &wanted.named));
        }
        if !wanted.inodes.is_empty() {
            queries.push(Query::new(LOAD_INODES).ints(wanted.inodes.clone()));
        }
        if !wanted.glances.is_empty() {
            queries.push(Query::new(GLANCE).ints(wanted.glances.clone()));
        }
        (wanted, queries)
    }

    /// Takes the answers to the statements of [`Working::load`].
    pub fn loaded(&mut self, wanted: Wanted, answers: &[Answer]) -> Outcome<()> {
        let mut answers = answers.iter();
        let mut rows = |asked: bool| {
            let answer = if asked { answers.next() } else { None };
            answer.map_or(&[][..], |answer| &answer.rows)
        };
        for row in rows(!wanted.directories.is_empty()) {
            self.take_directory(row)?;
        }
        for row in rows(!wanted.names.is_empty()) {
            self.take_name(row)?;
        }
        for row in rows(!wanted.named.is_empty()) {
            self.take_inode(row, 0)?;
        }
        for row in rows(!wanted.inodes.is_empty()) {
            self.take_inode(row, 0)?;
        }
        for row in rows(!wanted.glances.is_empty()) {
            let stored = row::read_stored(row, 0)?;
            self.glanced.insert(stored.number, stored);
        }
        // The other directories do not exist.
        for directory in wanted.directories {
            self.directories.entry(directory).or_insert_with(|| Slot::read(None));
        }
        for (parent, name) in wanted.names {
            self.names.entry(parent).or_default().entry(name).or_insert_with(|| Slot::read(None));
        }
        for inode in wanted.inodes {
            self.inodes.entry(inode).or_insert_with(|| Slot::read(None));
        }
        Ok(())
    }

    fn take_directory(&mut self, row: &tokio_postgres::Row) -> Outcome<()> {
        let (inode, parent): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let what = || format!("where directory {inode} hangs is not what was written");
        require(row.try_get(2)?, row::directory_sum(inode, parent), what)?;
        self.directories.entry(inode).or_insert_with(|| Slot::read(Some(parent)));
        Ok(())
    }

    fn take_name(&mut self, row: &tokio_postgres::Row) -> Outcome<()> {
        let (parent, name): (i64, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        let found = Name { inode: row.try_get(2)?, epoch: row.try_get(3)? };
        let what = || format!("a name in directory {parent} is not what was written");
        require(row.try_get(4)?, row::name_sum(parent, &name, found.inode, found.epoch), what)?;
        self.names.entry(parent).or_default().entry(name).or_insert_with(|| Slot::read(Some(found)));
        Ok(())
    }

    fn take_inode(&mut self, row: &tokio_postgres::Row, first: usize) -> Outcome<()> {
        let stored = row::read_stored(row, first)?;
        self.inodes.entry(stored.number).or_insert_with(|| Slot::read(Some(stored)));
        Ok(())
    }

    /// Reads a name if it is not known yet.
    fn know_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()> {
        if self.names.get(&parent).is_some_and(|names| names.contains_key(name)) {
            return Ok(());
        }
        if !self.whole.contains(&parent) {
            let query = |sql| Query::new(sql).ints(vec![parent]).with(vec![name.to_vec()], Type::BYTEA_ARRAY);
            let answers = self.tx.run(vec![query(LOAD_NAMES), query(LOAD_NAMED)])?;
            for row in &answers[0].rows {
                self.take_name(row)?;
            }
            for row in &answers[1].rows {
                self.take_inode(row, 0)?;
            }
        }
        self.names.entry(parent).or_default().entry(name.to_vec()).or_insert_with(|| Slot::read(None));
        Ok(())
    }

    fn know_inode(&mut self, number: i64) -> Outcome<&mut Slot<Stored>> {
        if !self.inodes.contains_key(&number) {
            let answer = self.tx.one(Query::new(LOAD_INODES).ints(vec![number]))?;
            let stored = answer.first().map(|row| row::read_stored(row, 0)).transpose()?;
            self.inodes.insert(number, Slot::read(stored));
        }
        Ok(self.inodes.entry(number).or_insert_with(|| Slot::read(None)))
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

    /// Locks a directory so that no commit makes an entry in it.
    fn guard(&mut self, directory: i64) -> Outcome<()> {
        if !self.whole.contains(&directory) && self.guarded.insert(directory) {
            let answer = self.tx.one(Query::new(GUARD_DIRECTORY).int(directory))?;
            if let Some(row) = answer.first() {
                self.take_directory(row)?;
            }
        }
        Ok(())
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

/// The keys of what changes name, in order, each once.
#[derive(Default)]
pub(super) struct Wanted {
    directories: Vec<i64>,
    names: Vec<(i64, Vec<u8>)>,
    /// Names that are expected to exist.
    named: Vec<(i64, Vec<u8>)>,
    inodes: Vec<i64>,
    glances: Vec<i64>,
}

impl Wanted {
    fn of(changes: &[Change]) -> Self {
        use outrigger_format::catalogue::FileKind;
        let mut wanted = Self::default();
        // A directory that is only just being made has no entries. (If it turns out to exist, its names are read one by one.)
        let mut new = HashSet::new();
        let mut free = HashSet::new();
        for change in changes {
            match change {
                Change::Put { parent, name, inode, attributes, .. } => {
                    if attributes.kind == FileKind::Directory && *inode != ROOT_INODE {
                        new.insert(*inode);
                    }
                    if !new.contains(parent) {
                        wanted.entry(*parent, name);
                    }
                    wanted.inodes.push(*inode as i64);
                }
                Change::Link { parent, name, inode } => {
                    wanted.entry(*parent, name);
                    wanted.inodes.push(*inode as i64);
                }
                Change::Remove { parent, name, .. } => wanted.entry(*parent, name),
                Change::Rename { parent, name, new_parent, new_name } => {
                    wanted.entry(*parent, name);
                    wanted.entry(*new_parent, new_name);
                }
                Change::Name { parent, name, inode } => {
                    wanted.entry(*parent, name);
                    if let Some(inode) = inode {
                        wanted.inodes.push(*inode as i64);
                        wanted.directories.push(*inode as i64);
                    }
                }
                Change::Node { inode, parent, .. } => {
                    wanted.inodes.push(*inode as i64);
                    wanted.directories.extend([*inode as i64, *parent as i64]);
                }
                Change::IfName { parent, name, inode } => {
                    wanted.entry(*parent, name);
                    if inode.is_none() {
                        free.insert((*parent as i64, name.as_slice()));
                    }
                }
                Change::CompareAndSwap { inode, .. }
                | Change::Touch { inode, .. }
                | Change::PinContent { inode, .. } => {
                    wanted.inodes.push(*inode as i64);
                }
                Change::IfAttributes { inode, .. } => wanted.glances.push(*inode as i64),
                Change::Orphan { .. } | Change::Job(_) | Change::InlineChunks(_) => {}
            }
        }
        wanted.directories.sort_unstable();
        wanted.directories.dedup();
        wanted.names.sort_unstable();
        wanted.names.dedup();
        let named = wanted.names.iter().filter(|(parent, name)| !free.contains(&(*parent, name.as_slice())));
        wanted.named = named.cloned().collect();
        wanted.inodes.sort_unstable();
        wanted.inodes.dedup();
        wanted.glances.sort_unstable();
        wanted.glances.dedup();
        // Locked rows are more reliable.
        wanted.glances.retain(|number| wanted.inodes.binary_search(number).is_err());
        wanted
    }

    fn entry(&mut self, parent: u64, name: &[u8]) {
        self.directories.push(parent as i64);
        if !name.is_empty() {
            self.names.push((parent as i64, name.to_vec()));
        }
    }
}

impl Rows for Working<'_, '_> {
    type Traits = Traits;

    fn insert_name(&mut self, parent: i64, name: &[u8], inode: i64, epoch: i64) -> Outcome<bool> {
        let slot = self.slot_of_name(parent, name)?;
        if slot.now.is_some() {
            return Ok(false);
        }
        slot.now = Some(Name { inode, epoch });
        Ok(true)
    }

    fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored)>> {
        let Some(found) = self.now_named(parent, name)? else { return Ok(None) };
        let stored = self.know_inode(found.inode)?.now.clone();
        Ok(stored.map(|stored| (found.epoch, stored)))
    }

    fn name(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, i64)>> {
        Ok(self.now_named(parent, name)?.map(|found| (found.inode, found.epoch)))
    }

    fn has_names(&mut self, parent: i64) -> Outcome<bool> {
        if self.known_names(parent).next().is_some() {
            return Ok(true);
        }
        if self.whole.contains(&parent) {
            return Ok(false);
        }
        self.guard(parent)?;
        // This commit may already have removed as many of the names that are there.
        let gone = self.names.get(&parent).map_or(0, HashMap::len);
        let answer = self.tx.one(Query::new(HAS_NAMES).int(parent).int(gone as i64 + 1))?;
        for row in &answer.rows {
            let name: &[u8] = row.try_get(0)?;
            if self.names.get(&parent).is_none_or(|names| !names.contains_key(name)) {
                return Ok(true);
            }
        }
        // No commit can make one until this transaction has ended.
        self.whole.insert(parent);
        Ok(false)
    }

    fn some_names(&mut self, parent: i64, limit: usize) -> Outcome<Vec<(Vec<u8>, i64, Stored)>> {
        if !self.whole.contains(&parent) && self.has_names(parent)? {
            if !self.tx.is_alone() {
                return Err(Fault::Again { alone: true });
            }
            self.relieve()?;
            let answer = self.tx.one(Query::new(LOAD_ENTRIES).int(parent))?;
            for row in &answer.rows {
                self.take_name(row)?;
                self.take_inode(row, 5)?;
            }
            self.whole.insert(parent);
        }
        let some: Vec<(Vec<u8>, Name)> =
            self.known_names(parent).take(limit).map(|(name, found)| (name.clone(), found)).collect();
        let mut entries = Vec::with_capacity(some.len());
        for (name, found) in some {
            if let Some(stored) = self.know_inode(found.inode)?.now.clone() {
                entries.push((name, found.epoch, stored));
            }
        }
        Ok(entries)
    }

    fn archive_name(&mut self, parent: i64, name: &[u8], epoch_to: i64) -> Outcome<()> {
        if let Some(found) = self.now_named(parent, name)? {
            self.former_names.push((parent, name.to_vec(), found, epoch_to));
        }
        Ok(())
    }

    fn delete_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()> {
        self.slot_of_name(parent, name)?.now = None;
        Ok(())
    }

    fn stored(&mut self, number: i64) -> Outcome<Option<Stored>> {
        Ok(self.know_inode(number)?.now.clone())
    }

    fn glance(&mut self, number: i64) -> Outcome<Option<Stored>> {
        match self.glanced.get(&number) {
            Some(stored) if !self.inodes.contains_key(&number) => Ok(Some(stored.clone())),
            _ => self.stored(number),
        }
    }

    fn insert_inode(&mut self, new: &Stored) -> Outcome<bool> {
        let slot = self.know_inode(new.number)?;
        if slot.now.is_some() {
            return Ok(false);
        }
        slot.now = Some(new.clone());
        Ok(true)
    }

    fn update_inode(&mut self, new: &Stored) -> Outcome<()> {
        *self.present(new.number)? = new.clone();
        Ok(())
    }

    fn update_links(&mut self, number: i64, epoch: i64, links: i64) -> Outcome<()> {
        let stored = self.present(number)?;
        (stored.epoch, stored.links) = (epoch, links);
        Ok(())
    }

    fn update_stamp(&mut self, number: i64, stamp: i64) -> Outcome<()> {
        self.present(number)?.stamp = stamp;
        Ok(())
    }

    fn archive_inode(&mut self, number: i64, epoch_to: i64) -> Outcome<()> {
        let former = self.present(number)?.clone();
        self.former_inodes.push((former, epoch_to));
        Ok(())
    }

    fn delete_inode(&mut self, number: i64) -> Outcome<()> {
        self.know_inode(number)?.now = None;
        Ok(())
    }

    fn traits(&mut self, (mode, uid, gid, xattrs): TraitsKey) -> Outcome<Traits> {
        Ok(Traits { mode, uid, gid, xattrs })
    }

    fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>> {
        if !self.directories.contains_key(&directory) {
            let answer = self.tx.one(Query::new(LOAD_DIRECTORIES).ints(vec![directory]))?;
            for row in &answer.rows {
                self.take_directory(row)?;
            }
        }
        Ok(self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now)
    }

    fn insert_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        // Its inode is new, so there is no such row.
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = Some(parent);
        self.whole.insert(directory);
        Ok(())
    }

    fn move_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        // No other transaction knows a directory that was made in this one.
        let known = self.directories.get(&directory).is_some_and(|slot| slot.before.is_none());
        if !known && !self.tx.is_alone() {
            return Err(Fault::Again { alone: true });
        }
        self.parent_of(directory)?;
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = Some(parent);
        Ok(())
    }

    fn delete_directory(&mut self, directory: i64) -> Outcome<()> {
        self.guard(directory)?;
        self.parent_of(directory)?;
        self.directories.entry(directory).or_insert_with(|| Slot::read(None)).now = None;
        Ok(())
    }

    fn delete_policies(&mut self, directory: i64) -> Outcome<()> {
        self.policies_gone.push(directory);
        Ok(())
    }

    fn versions_policy(&mut self, directory: i64) -> Outcome<Option<String>> {
        // Directories made or moved here are not in the database yet; those above them are.
        let mut at = directory;
        while self.directories.get(&at).is_some_and(|slot| slot.before != slot.now) && at != ROOT_INODE as i64
        {
            if let Some(value) = self.own_policy(at)? {
                return Ok(Some(value));
            }
            match self.directories.get(&at).and_then(|slot| slot.now) {
                Some(parent) => at = parent,
                None => return Ok(None),
            }
        }
        let answer = self.tx.one(Query::new(VERSIONS_POLICY).int(at))?;
        Ok(answer.first().map(|row| row.try_get(0)).transpose()?)
    }

    fn insert_version(&mut self, of: &Stored) -> Outcome<()> {
        self.versions.push(of.clone());
        Ok(())
    }

    fn trim_versions(&mut self, number: i64, oldest: i64) -> Outcome<()> {
        let kept = self.trims.entry(number).or_insert(oldest);
        *kept = oldest.max(*kept);
        self.versions.retain(|version| version.number != number || version.version >= oldest);
        Ok(())
    }

    fn delete_versions(&mut self, number: i64) -> Outcome<()> {
        self.trim_versions(number, i64::MAX)
    }

    fn hold_only(&mut self, holder: &str, root: &Root) -> Outcome<()> {
        self.held.insert(holder.to_owned(), root_column(root));
        Ok(())
    }

    fn above(&mut self, directory: i64) -> Option<(i64, Vec<u8>)> {
        let answer = self.tx.one(Query::new(ABOVE).int(directory)).ok()?;
        let row = answer.first()?;
        Some((row.try_get(0).ok()?, row.try_get(1).ok()?))
    }
}

impl Working<'_, '_> {
    fn own_policy(&mut self, directory: i64) -> Outcome<Option<String>> {
        let sql = "SELECT value FROM @policy WHERE inode = $1 AND key = 'versions'";
        let answer = self.tx.one(Query::new(sql).int(directory))?;
        Ok(answer.first().map(|row| row.try_get(0)).transpose()?)
    }
}
