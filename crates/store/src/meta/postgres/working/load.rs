//! Reading the rows of a commit: all that its changes name before it, in one group of statements,
//! and others one by one when they are needed.
//!
//! A row that was asked for and not found is known to be missing. What is in memory already is
//! never overwritten by a later reading.

use std::collections::HashSet;

use super::{Name, Slot, Working};
use crate::meta::fault::Outcome;
use crate::meta::postgres::connection::{Answer, Query, Row};
use crate::meta::postgres::row::{self, Stored, require, stored_columns};
use crate::meta::postgres::sealing::Subject;
use crate::meta::postgres::tree::by_names;
use crate::meta::{Change, ROOT_INODE};
use outrigger_format::catalogue::FileKind;

/// Locks the names in `$1` and `$2`. Their inodes are read separately: if another commit exchanged
/// a name while this one waited for its lock, a join would look for the name's old inode, and not
/// find it.
const LOAD_NAMES: &str = "SELECT d.parent, d.name, d.inode, d.epoch, d.sum FROM unnest($1, $2) AS wanted (parent, name) \
    JOIN @dentry d ON d.parent = wanted.parent AND d.name = wanted.name FOR UPDATE OF d";
/// Reads the inodes of names that are locked. Being a statement of its own, it sees everything
/// committed before.
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
pub(super) const LOAD_DIRECTORIES: &str =
    "SELECT inode, parent, sum FROM @directory WHERE inode = ANY ($1) ORDER BY inode FOR KEY SHARE";
const GUARD_DIRECTORY: &str = "SELECT inode, parent, sum FROM @directory WHERE inode = $1 FOR UPDATE";

impl Working<'_, '_> {
    /// Makes the statements that read the rows that `changes` name, in the order of
    /// [`Working::loaded`].
    pub fn load(changes: &[Change]) -> (Wanted, Vec<Query>) {
        let wanted = Wanted::of(changes);
        let by_name = |sql, names: &[(i64, Vec<u8>)]| {
            by_names(sql, names.iter().map(|(parent, name)| (*parent, name.as_slice())))
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

    pub(super) fn take_directory(&mut self, row: &Row) -> Outcome<()> {
        let (inode, parent): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let what = || format!("where directory {inode} hangs is not what was written");
        require(row.try_get(2)?, row::directory_sum(row.seals(), inode, parent), what)?;
        self.directories.entry(inode).or_insert_with(|| Slot::read(Some(parent)));
        Ok(())
    }

    pub(super) fn take_name(&mut self, row: &Row) -> Outcome<()> {
        let parent: i64 = row.try_get(0)?;
        let name = row.bytes(1, &Subject::Name { parent })?;
        let found = Name { inode: row.try_get(2)?, epoch: row.try_get(3)? };
        let what = || format!("a name in directory {parent} is not what was written");
        require(row.try_get(4)?, row::name_sum(row.seals(), parent, &name, found.inode, found.epoch), what)?;
        self.names.entry(parent).or_default().entry(name).or_insert_with(|| Slot::read(Some(found)));
        Ok(())
    }

    pub(super) fn take_inode(&mut self, row: &Row, first: usize) -> Outcome<()> {
        let stored = row::read_stored(row, first)?;
        self.inodes.entry(stored.number).or_insert_with(|| Slot::read(Some(stored)));
        Ok(())
    }

    /// Reads a name if it is not known yet.
    pub(super) fn know_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()> {
        if self.names.get(&parent).is_some_and(|names| names.contains_key(name)) {
            return Ok(());
        }
        if !self.whole.contains(&parent) {
            let query = |sql| by_names(sql, std::iter::once((parent, name)));
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

    pub(super) fn know_inode(&mut self, number: i64) -> Outcome<&mut Slot<Stored>> {
        if !self.inodes.contains_key(&number) {
            let answer = self.tx.one(Query::new(LOAD_INODES).ints(vec![number]))?;
            let stored = answer.first().map(|row| row::read_stored(row, 0)).transpose()?;
            self.inodes.insert(number, Slot::read(stored));
        }
        Ok(self.inodes.entry(number).or_insert_with(|| Slot::read(None)))
    }

    /// Locks a directory so that no commit makes an entry in it.
    pub(super) fn guard(&mut self, directory: i64) -> Outcome<()> {
        if !self.whole.contains(&directory) && self.guarded.insert(directory) {
            let answer = self.tx.one(Query::new(GUARD_DIRECTORY).int(directory))?;
            if let Some(row) = answer.first() {
                self.take_directory(row)?;
            }
        }
        Ok(())
    }
}

/// The keys of what changes name, in order, each once.
#[derive(Default)]
pub(in crate::meta::postgres) struct Wanted {
    directories: Vec<i64>,
    names: Vec<(i64, Vec<u8>)>,
    /// Names that are expected to exist.
    named: Vec<(i64, Vec<u8>)>,
    inodes: Vec<i64>,
    glances: Vec<i64>,
}

impl Wanted {
    fn of(changes: &[Change]) -> Self {
        let mut wanted = Self::default();
        // A directory that is only just being made has no entries. (If it turns out to exist, its
        // names are read one by one.)
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
        self.glances.push(parent as i64);
        if !name.is_empty() {
            self.names.push((parent as i64, name.to_vec()));
        }
    }
}
