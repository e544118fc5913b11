//! Changing the tree inside one transaction.
//!
//! Every change goes through a handful of steps here (`make`, `rewrite`, `relink`, `drop_name`, `drop_inode`), and each of these first copies the row it
//! changes to the history, if the row is from an earlier epoch that somebody can still see. What the editor remembers (known directories,
//! interned traits, aliases) was read in this transaction, which nobody else's writes can interleave with.

use std::collections::{HashMap, HashSet};

use outrigger_format::Root;
use outrigger_format::catalogue::Attributes;
use rusqlite::{Connection, OptionalExtension as _};

use super::fault::{Outcome, refuse};
use super::policies::{KeepVersions, any_versions_policy};
use super::row::{self, Content, STORED_COLUMNS, Stored};
use super::state::{Retained, TotalsDelta, counter};
use super::statements::Statements;
use super::{sums, times};
use crate::error::ErrorKind;
use crate::meta::{Committed, ROOT_INODE};

const ROOT: i64 = ROOT_INODE as i64;

/// What a put brings.
pub(super) struct Arrival {
    pub mode: i64,
    pub content: Content,
    pub length: u64,
    pub stamp: i64,
}

/// Distinct combinations of permissions, owner and extended attributes.
type TraitsKey = (i64, i64, i64, Option<Vec<u8>>);

/// Changes the tree inside one transaction.
pub(super) struct Editor<'c> {
    pub connection: &'c Connection,
    pub(super) sql: Statements<'c>,
    pub(super) epoch: i64,
    next_inode: i64,
    time: i64,
    retained: Retained,
    directories: HashSet<i64>,
    traits: HashMap<TraitsKey, i64>,
    keep: HashMap<i64, KeepVersions>,
    keep_is_default: bool,
    totals: TotalsDelta,
    pub(super) done: Committed,
}

impl<'c> Editor<'c> {
    /// An editor for the transaction that `connection` is in.
    pub fn new(connection: &'c Connection, time: u64) -> Outcome<Self> {
        Ok(Self {
            sql: Statements::prepare(connection)?,
            epoch: counter(connection, "epoch")?,
            next_inode: counter(connection, "next_inode")?,
            time: time as i64,
            retained: Retained::load(connection)?,
            directories: HashSet::new(),
            traits: HashMap::new(),
            keep: HashMap::new(),
            keep_is_default: !any_versions_policy(connection)?,
            totals: TotalsDelta::default(),
            done: Committed { generation: counter(connection, "generation")? as u64, ..Committed::default() },
            connection,
        })
    }

    /// Writes what was summed up, and says what was done.
    pub fn finish(self) -> Outcome<Committed> {
        self.totals.store(self.connection)?;
        Ok(self.done)
    }

    // ---- finding ----------------------------------------------------------------------------------------------------

    /// The number that a caller's number stands for in this commit.
    pub fn resolve(&self, inode: u64) -> Outcome<i64> {
        let number = self.done.aliases.get(&inode).copied().unwrap_or(inode) as i64;
        if number <= 0 || number >= self.next_inode {
            return Err(refuse(ErrorKind::Invalid, format!("inode {inode} was never reserved")));
        }
        Ok(number)
    }

    /// A directory that exists.
    pub fn directory(&mut self, inode: u64) -> Outcome<i64> {
        let number = self.resolve(inode)?;
        if !self.directories.contains(&number) {
            if self.parent_of(number)?.is_none() {
                return Err(refuse(ErrorKind::NotFound, format!("directory {inode} does not exist")));
            }
            self.directories.insert(number);
        }
        Ok(number)
    }

    /// The directory that a directory is in.
    pub fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>> {
        Ok(self.sql.parent_of.query_row([directory], |row| row.get(0)).optional()?)
    }

    /// The entry `name` of `parent`: since when it is so, and its inode.
    pub fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored)>> {
        let found = self.sql.find.query_row((parent, name), |row| {
            sums::require(row, 1 + STORED_COLUMNS)?;
            Ok((row.get(0)?, Stored::read(row, 1)?))
        });
        Ok(found.optional()?)
    }

    /// An inode.
    pub fn stored(&mut self, number: i64) -> Outcome<Option<Stored>> {
        Ok(self.sql.stored.query_row([number], |row| Stored::read(row, 0)).optional()?)
    }

    /// Path of an entry, for messages.
    pub fn path(&mut self, parent: i64, name: &[u8]) -> String {
        super::tree::path_of(self.connection, parent, name)
    }

    /// Checks attributes and content, and interns what is shared.
    pub fn arrival(&mut self, attributes: &Attributes, root: &Root, stamp: u64) -> Outcome<Arrival> {
        let (mode, special, xattrs) = row::columns(attributes, root)?;
        let key = (mode, i64::from(attributes.uid), i64::from(attributes.gid), xattrs);
        let traits = match self.traits.get(&key) {
            Some(&id) => id,
            None => self.intern(key)?,
        };
        let mtime = attributes.mtime;
        let times = attributes.times.as_ref().map(|other| times::encode(other, mtime));
        let content = Content { traits, mtime, special, root: row::root_column(root), times };
        Ok(Arrival { mode, content, length: root.len(), stamp: stamp as i64 })
    }

    fn intern(&mut self, key: TraitsKey) -> Outcome<i64> {
        let (mode, uid, gid, xattrs) = &key;
        let digest = row::traits_digest(*mode, *uid, *gid, xattrs);
        let mut rows = self.sql.find_traits.query([digest])?;
        let mut found = None;
        while let Some(row) = rows.next()? {
            let same: TraitsKey = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
            if same == key {
                found = Some(row.get(0)?);
                break;
            }
        }
        drop(rows);
        let id = match found {
            Some(id) => id,
            None => self.sql.insert_traits.insert((digest, mode, uid, gid, xattrs))?,
        };
        self.traits.insert(key, id);
        Ok(id)
    }

    // ---- steps ------------------------------------------------------------------------------------------------------

    /// A new inode; false when its number is in use.
    pub fn make(&mut self, number: i64, parent: i64, new: &Arrival) -> Outcome<bool> {
        let Content { traits, mtime, special, root, times } = &new.content;
        let values = (
            number,
            self.epoch,
            traits,
            mtime.secs,
            mtime.nanos,
            self.time,
            new.stamp,
            special,
            root.as_deref(),
            times.as_deref(),
        );
        if self.sql.insert_inode.execute(values)? == 0 {
            return Ok(false);
        }
        if row::is_directory(new.mode) {
            self.sql.insert_directory.execute((number, parent))?;
            self.directories.insert(number);
        }
        self.totals.count(1, new.mode, new.length)?;
        Ok(true)
    }

    /// Gives an inode new attributes and content and adds `more_links` to its names; true when anything but its stamp changed.
    /// `keeper` is the directory whose policy says how many earlier contents are kept; without one the content is replaced as if it had
    /// never been.
    pub fn rewrite(
        &mut self,
        old: &Stored,
        new: &Arrival,
        more_links: i64,
        keeper: Option<i64>,
    ) -> Outcome<bool> {
        if old.content == new.content && more_links == 0 {
            if old.stamp != new.stamp {
                // Not worth a row of history: a stamp says nothing about the file, only about what was seen of its source.
                self.sql.update_stamp.execute((old.number, new.stamp))?;
            }
            return Ok(false);
        }
        let (mut version, mut time) = (old.version, old.time);
        if old.content.root != new.content.root {
            if let Some(directory) = keeper {
                self.keep_version(old, directory)?;
                version += 1;
            }
            time = self.time;
        }
        self.archive_inode(old)?;
        let Content { traits, mtime, special, root, times } = &new.content;
        let links = old.links + more_links;
        self.sql.update_inode.execute(rusqlite::params![
            old.number,
            self.epoch,
            traits,
            links,
            version,
            mtime.secs,
            mtime.nanos,
            time,
            new.stamp,
            special,
            root.as_deref(),
            times.as_deref()
        ])?;
        self.totals.count(-1, old.mode, row::length(&old.content.root)?)?;
        self.totals.count(1, new.mode, new.length)?;
        Ok(true)
    }

    fn keep_version(&mut self, old: &Stored, directory: i64) -> Outcome<()> {
        let keep = self.keep_versions(directory)?;
        if keep != KeepVersions::Newest(0) && row::is_file(old.mode) {
            let Content { mtime, root, .. } = &old.content;
            let values = (old.number, old.version, old.time, mtime.secs, mtime.nanos, root.as_deref());
            self.sql.insert_version.execute(values)?;
        }
        if let KeepVersions::Newest(count) = keep {
            let oldest = (old.version + 1).saturating_sub(count.into());
            if oldest > 1 || count == 0 {
                self.sql.trim_versions.execute((old.number, oldest))?;
            }
        }
        Ok(())
    }

    fn keep_versions(&mut self, directory: i64) -> Outcome<KeepVersions> {
        if self.keep_is_default {
            return Ok(KeepVersions::default());
        }
        if let Some(&keep) = self.keep.get(&directory) {
            return Ok(keep);
        }
        let value: Option<String> =
            self.sql.versions_policy.query_row([directory], |row| row.get(0)).optional()?;
        let keep = value.map_or(Ok(KeepVersions::default()), |value| KeepVersions::parse(&value))?;
        self.keep.insert(directory, keep);
        Ok(keep)
    }

    /// Policies are looked up afresh: directories have moved.
    pub fn forget_policies(&mut self) {
        self.keep.clear();
    }

    /// Changes how many names an inode has; the last one takes it along.
    pub fn relink(&mut self, old: &Stored, more_links: i64) -> Outcome<()> {
        let links = old.links + more_links;
        if links <= 0 {
            return self.drop_inode(old);
        }
        self.archive_inode(old)?;
        self.sql.update_links.execute((old.number, self.epoch, links))?;
        Ok(())
    }

    fn archive_inode(&mut self, old: &Stored) -> Outcome<()> {
        if old.epoch < self.epoch && self.retained.sees(old.epoch, self.epoch) {
            self.sql.archive_inode.execute((old.number, self.epoch))?;
        }
        Ok(())
    }

    /// Takes a name that is so since `since` out of its directory.
    pub fn drop_name(&mut self, parent: i64, name: &[u8], since: i64) -> Outcome<()> {
        if since < self.epoch && self.retained.sees(since, self.epoch) {
            self.sql.archive_dentry.execute((parent, name, self.epoch))?;
        }
        self.sql.delete_dentry.execute((parent, name))?;
        Ok(())
    }

    /// Takes an inode that has no name any more, with all that belongs to it.
    pub fn drop_inode(&mut self, old: &Stored) -> Outcome<()> {
        self.archive_inode(old)?;
        self.sql.delete_inode.execute([old.number])?;
        if old.version > 1 {
            self.sql.delete_versions.execute([old.number])?;
        }
        if old.is_directory() {
            self.sql.delete_directory.execute([old.number])?;
            self.sql.delete_policies.execute([old.number])?;
            self.directories.remove(&old.number);
            self.keep.remove(&old.number);
        }
        self.totals.count(-1, old.mode, row::length(&old.content.root)?)
    }

    /// Removes an entry and, when it was the last name, its inode; of a directory, everything below it.
    pub fn remove(&mut self, parent: i64, name: &[u8], since: i64, old: &Stored) -> Outcome<()> {
        self.drop_name(parent, name, since)?;
        self.done.removed += 1;
        self.relink(old, -1)?;
        if old.is_directory() {
            self.empty(old.number)?;
        }
        Ok(())
    }

    /// Removes everything below a directory, depth first, in memory bounded by depth: the stack holds the directories of one
    /// batch per level.
    fn empty(&mut self, directory: i64) -> Outcome<()> {
        const BATCH: i64 = 256;
        let mut stack = vec![directory];
        while let Some(&top) = stack.last() {
            let entries: Vec<(Vec<u8>, i64, Stored)> = self
                .sql
                .some_entries
                .query_map((top, BATCH), |row| {
                    sums::require(row, 2 + STORED_COLUMNS)?;
                    Ok((row.get(0)?, row.get(1)?, Stored::read(row, 2)?))
                })?
                .collect::<rusqlite::Result<_>>()?;
            if entries.is_empty() {
                stack.pop();
            }
            for (name, since, old) in entries {
                self.drop_name(top, &name, since)?;
                self.done.removed += 1;
                if old.is_directory() {
                    stack.push(old.number);
                    self.relink(&old, -1)?;
                } else {
                    // Read again: two names of one inode may be in the same batch.
                    let old = if old.links > 1 { self.stored(old.number)?.unwrap_or(old) } else { old };
                    self.relink(&old, -1)?;
                }
            }
        }
        Ok(())
    }

    /// True when a directory has no entries.
    pub fn is_empty(&mut self, directory: i64) -> Outcome<bool> {
        Ok(!self.sql.some_entries.exists((directory, 1))?)
    }

    /// True when `directory` is `above` or lies below it.
    pub fn is_within(&mut self, directory: i64, above: i64) -> Outcome<bool> {
        const DEPTH_MAX: u32 = 1 << 20;
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            let parent = self.parent_of(at)?;
            at = parent.ok_or_else(|| refuse(ErrorKind::Damaged, format!("directory {at} hangs nowhere")))?;
        }
        Err(refuse(ErrorKind::Damaged, format!("directory {directory} is more than {DEPTH_MAX} levels deep")))
    }
}
