//! The rows that a commit works on: each step is a statement, at once.

use std::collections::HashMap;

use outrigger_format::{Domain, Root};
use rusqlite::{Connection, OptionalExtension as _};

use super::row::{STORED_COLUMNS, Stored, read_stored, traits_digest};
use super::statements::Statements;
use super::{reclaim, sums};
use crate::meta::change::Rows;
use crate::meta::change::row::{Content, TraitsKey, domain_of};
use crate::meta::fault::Outcome;

/// The rows of the transaction that a connection is in.
pub(super) struct SqliteRows<'c> {
    pub connection: &'c Connection,
    sql: Statements<'c>,
    /// Ids of the traits seen in this transaction.
    traits: HashMap<TraitsKey, i64>,
    /// Domains in the traits seen in this transaction.
    domains: HashMap<i64, Domain>,
}

impl<'c> SqliteRows<'c> {
    pub fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            sql: Statements::prepare(connection)?,
            traits: HashMap::new(),
            domains: HashMap::new(),
        })
    }

    fn intern(&mut self, key: TraitsKey) -> Outcome<i64> {
        let (mode, uid, gid, xattrs) = &key;
        let digest = traits_digest(*mode, *uid, *gid, xattrs);
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
}

impl Rows for SqliteRows<'_> {
    type Traits = i64;

    fn insert_name(&mut self, parent: i64, name: &[u8], inode: i64, epoch: i64) -> Outcome<bool> {
        Ok(self.sql.insert_dentry.execute((parent, name, inode, epoch))? == 1)
    }

    fn find(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, Stored)>> {
        let found = self.sql.find.query_row((parent, name), |row| {
            sums::require(row, 1 + STORED_COLUMNS)?;
            Ok((row.get(0)?, read_stored(row, 1)?))
        });
        Ok(found.optional()?)
    }

    fn name(&mut self, parent: i64, name: &[u8]) -> Outcome<Option<(i64, i64)>> {
        let found = self.sql.name.query_row((parent, name), |row| {
            sums::require(row, 2)?;
            Ok((row.get(0)?, row.get(1)?))
        });
        Ok(found.optional()?)
    }

    fn has_names(&mut self, parent: i64) -> Outcome<bool> {
        Ok(self.sql.has_names.exists([parent])?)
    }

    fn some_names(&mut self, parent: i64, limit: usize) -> Outcome<Vec<(Vec<u8>, i64, Stored)>> {
        let rows = self.sql.some_entries.query_map((parent, limit as i64), |row| {
            sums::require(row, 2 + STORED_COLUMNS)?;
            Ok((row.get(0)?, row.get(1)?, read_stored(row, 2)?))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn archive_name(&mut self, parent: i64, name: &[u8], epoch_to: i64) -> Outcome<()> {
        self.sql.archive_dentry.execute((parent, name, epoch_to))?;
        Ok(())
    }

    fn delete_name(&mut self, parent: i64, name: &[u8]) -> Outcome<()> {
        self.sql.delete_dentry.execute((parent, name))?;
        Ok(())
    }

    fn stored(&mut self, number: i64) -> Outcome<Option<Stored>> {
        Ok(self.sql.stored.query_row([number], |row| read_stored(row, 0)).optional()?)
    }

    fn insert_inode(&mut self, new: &Stored) -> Outcome<bool> {
        let Content { traits, mtime, special, root, times } = &new.content;
        let values = (
            new.number,
            new.epoch,
            traits,
            mtime.secs,
            mtime.nanos,
            new.time,
            new.stamp,
            special,
            root.as_deref(),
            times.as_deref(),
        );
        Ok(self.sql.insert_inode.execute(values)? == 1)
    }

    fn update_inode(&mut self, new: &Stored) -> Outcome<()> {
        let Content { traits, mtime, special, root, times } = &new.content;
        self.sql.update_inode.execute(rusqlite::params![
            new.number,
            new.epoch,
            traits,
            new.links,
            new.version,
            mtime.secs,
            mtime.nanos,
            new.time,
            new.stamp,
            special,
            root.as_deref(),
            times.as_deref()
        ])?;
        Ok(())
    }

    fn update_links(&mut self, number: i64, epoch: i64, links: i64) -> Outcome<()> {
        self.sql.update_links.execute((number, epoch, links))?;
        Ok(())
    }

    fn update_stamp(&mut self, number: i64, stamp: i64) -> Outcome<()> {
        self.sql.update_stamp.execute((number, stamp))?;
        Ok(())
    }

    fn archive_inode(&mut self, number: i64, epoch_to: i64) -> Outcome<()> {
        self.sql.archive_inode.execute((number, epoch_to))?;
        Ok(())
    }

    fn delete_inode(&mut self, number: i64) -> Outcome<()> {
        self.sql.delete_inode.execute([number])?;
        Ok(())
    }

    fn traits(&mut self, key: TraitsKey) -> Outcome<i64> {
        match self.traits.get(&key) {
            Some(&id) => Ok(id),
            None => self.intern(key),
        }
    }

    fn domain(&mut self, traits: &i64) -> Outcome<Domain> {
        if let Some(&known) = self.domains.get(traits) {
            return Ok(known);
        }
        let xattrs: Option<Option<Vec<u8>>> =
            self.sql.xattrs.query_row([traits], |row| row.get(0)).optional()?;
        let domain = domain_of(xattrs.flatten().as_deref())?;
        self.domains.insert(*traits, domain);
        Ok(domain)
    }

    fn parent_of(&mut self, directory: i64) -> Outcome<Option<i64>> {
        Ok(self.sql.parent_of.query_row([directory], |row| row.get(0)).optional()?)
    }

    fn insert_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        self.sql.insert_directory.execute((directory, parent))?;
        Ok(())
    }

    fn move_directory(&mut self, directory: i64, parent: i64) -> Outcome<()> {
        self.sql.move_directory.execute((directory, parent))?;
        Ok(())
    }

    fn delete_directory(&mut self, directory: i64) -> Outcome<()> {
        self.sql.delete_directory.execute([directory])?;
        Ok(())
    }

    fn delete_policies(&mut self, directory: i64) -> Outcome<()> {
        self.sql.delete_policies.execute([directory])?;
        Ok(())
    }

    fn versions_policy(&mut self, directory: i64) -> Outcome<Option<String>> {
        Ok(self.sql.versions_policy.query_row([directory], |row| row.get(0)).optional()?)
    }

    fn insert_version(&mut self, of: &Stored) -> Outcome<()> {
        let Content { mtime, root, .. } = &of.content;
        let values = (of.number, of.version, of.time, mtime.secs, mtime.nanos, root.as_deref());
        self.sql.insert_version.execute(values)?;
        Ok(())
    }

    fn trim_versions(&mut self, number: i64, oldest: i64) -> Outcome<()> {
        self.sql.trim_versions.execute((number, oldest))?;
        Ok(())
    }

    fn delete_versions(&mut self, number: i64) -> Outcome<()> {
        self.sql.delete_versions.execute([number])?;
        Ok(())
    }

    fn hold_only(&mut self, holder: &str, root: &Root) -> Outcome<()> {
        reclaim::let_go(self.connection, holder, None)?;
        reclaim::hold(self.connection, holder, std::slice::from_ref(root))
    }

    fn above(&mut self, directory: i64) -> Option<(i64, Vec<u8>)> {
        super::tree::above(self.connection, directory).ok()
    }
}
