//! Reading the tree, now or at an epoch.
//!
//! At an epoch, a name or inode is either the current row, if that is old enough, or the one row of
//! the history whose epochs contain it. Callers use one transaction for such reads: between two
//! statements a row could move from one place to the other.

use super::{SqliteMeta, commit, state};
use crate::error::{Error, Result, Unanswered};
use crate::meta::{Commit, Committed, SessionId, Tree, TreeTotals};
use outrigger_format::catalogue::Time;
use rusqlite::{Connection, OptionalExtension as _};
use std::ops::Range;

use super::row::{self, INODE_COLUMNS, inode_columns};
use super::sums::{self, dentry_intact, dentry_old_intact, directory_intact, version_intact};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{At, DirEntry, Era, Inode, VersionRow};

/// The inode.
pub(super) fn inode(connection: &Connection, at: At, number: u64) -> Outcome<Option<Inode>> {
    let number = number as i64;
    match at {
        At::Now => {
            let sql = concat!(
                "SELECT ",
                inode_columns!(inode_intact),
                " FROM inode i CROSS JOIN traits t ON t.id = i.traits WHERE i.number = ?1"
            );
            Ok(connection.prepare_cached(sql)?.query_row([number], |row| row::inode(row, 0)).optional()?)
        }
        At::Epoch(epoch) => inode_at(connection, number, epoch as i64),
    }
}

fn inode_at(connection: &Connection, number: i64, epoch: i64) -> Outcome<Option<Inode>> {
    let current = concat!(
        "SELECT ",
        inode_columns!(inode_intact),
        " FROM inode i CROSS JOIN traits t ON t.id = i.traits WHERE i.number = ?1 AND i.epoch <= ?2"
    );
    let former = concat!(
        "SELECT ",
        inode_columns!(inode_old_intact),
        " FROM inode_old i CROSS JOIN traits t ON t.id = i.traits \
         WHERE i.number = ?1 AND i.epoch_from <= ?2 AND i.epoch_to > ?2"
    );
    for sql in [current, former] {
        let mut statement = connection.prepare_cached(sql)?;
        if let Some(inode) = statement.query_row((number, epoch), |row| row::inode(row, 0)).optional()? {
            return Ok(Some(inode));
        }
    }
    Ok(None)
}

/// The inode that the entry `name` of `parent` stands for.
pub(super) fn lookup(connection: &Connection, at: At, parent: u64, name: &[u8]) -> Outcome<Option<Inode>> {
    let parent = parent as i64;
    let epoch = match at {
        At::Now => {
            let sql = concat!(
                "SELECT ",
                inode_columns!(inode_intact),
                ", ",
                dentry_intact!(),
                " FROM dentry d CROSS JOIN inode i ON i.number = d.inode CROSS JOIN traits t ON t.id = i.traits \
                 WHERE d.parent = ?1 AND d.name = ?2"
            );
            let found = connection.prepare_cached(sql)?.query_row((parent, name), |row| {
                sums::require(row, INODE_COLUMNS)?;
                row::inode(row, 0)
            });
            return Ok(found.optional()?);
        }
        At::Epoch(epoch) => epoch as i64,
    };
    let sql = concat!(
        "SELECT inode, ",
        dentry_intact!(),
        " FROM dentry d WHERE parent = ?1 AND name = ?2 AND epoch <= ?3 UNION ALL SELECT inode, ",
        dentry_old_intact!(),
        " FROM dentry_old d WHERE parent = ?1 AND name = ?2 AND epoch_from <= ?3 AND epoch_to > ?3 LIMIT 1"
    );
    let found = connection.prepare_cached(sql)?.query_row((parent, name, epoch), |row| {
        sums::require(row, 1)?;
        row.get(0)
    });
    let number: Option<i64> = found.optional()?;
    number.map_or(Ok(None), |number| inode_at(connection, number, epoch))
}

/// The parent of a directory.
pub(super) fn parent_of(connection: &Connection, directory: u64) -> Outcome<Option<u64>> {
    let sql = concat!("SELECT parent, ", directory_intact!(), " FROM directory WHERE inode = ?1");
    let found = connection.prepare_cached(sql)?.query_row([directory as i64], |row| {
        sums::require(row, 1)?;
        Ok(row.get::<_, i64>(0)? as u64)
    });
    Ok(found.optional()?)
}

/// Entries of `parent` after `after`, in the order of their names.
pub(super) fn read_dir(
    connection: &Connection,
    at: At,
    parent: u64,
    after: Option<&[u8]>,
    limit: usize,
) -> Outcome<Vec<DirEntry>> {
    // No name is empty, so every name comes after the empty one.
    let (parent, after) = (parent as i64, after.unwrap_or_default());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut entries = Vec::new();
    match at {
        At::Now => {
            let sql = concat!(
                "SELECT d.name, ",
                inode_columns!(inode_intact),
                ", ",
                dentry_intact!(),
                " FROM dentry d CROSS JOIN inode i ON i.number = d.inode CROSS JOIN traits t ON t.id = i.traits \
                 WHERE d.parent = ?1 AND d.name > ?2 ORDER BY d.name LIMIT ?3"
            );
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query((parent, after, limit))?;
            while let Some(row) = rows.next()? {
                sums::require(row, 1 + INODE_COLUMNS)?;
                entries.push(DirEntry { name: row.get(0)?, inode: row::inode(row, 1)? });
            }
        }
        At::Epoch(epoch) => {
            // Both halves come in the order of their keys, so SQLite merges them and stops at the
            // limit.
            let sql = concat!(
                "SELECT name, inode, ",
                dentry_intact!(),
                " FROM dentry d WHERE parent = ?1 AND name > ?2 AND epoch <= ?4 UNION ALL SELECT name, inode, ",
                dentry_old_intact!(),
                " FROM dentry_old d WHERE parent = ?1 AND name > ?2 AND epoch_from <= ?4 AND epoch_to > ?4 \
                 ORDER BY name LIMIT ?3"
            );
            let mut statement = connection.prepare_cached(sql)?;
            let mut rows = statement.query((parent, after, limit, epoch as i64))?;
            while let Some(row) = rows.next()? {
                sums::require(row, 2)?;
                let (name, number): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
                let inode = inode_at(connection, number, epoch as i64)?.ok_or_else(|| {
                    refuse(
                        ErrorKind::Damaged,
                        format!("`{}` stands for no inode at epoch {epoch}", name.escape_ascii()),
                    )
                })?;
                entries.push(DirEntry { name, inode });
            }
        }
    }
    Ok(entries)
}

/// Every name that `directory` has or had, with every state of its inode.
pub(super) fn history(connection: &Connection, directory: u64) -> Outcome<Vec<Era>> {
    let sql = concat!(
        "SELECT name, inode, epoch, NULL, ",
        dentry_intact!(),
        " FROM dentry d WHERE parent = ?1 UNION ALL SELECT name, inode, epoch_from, epoch_to, ",
        dentry_old_intact!(),
        " FROM dentry_old d WHERE parent = ?1 ORDER BY 1, 3"
    );
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([directory as i64])?;
    let mut eras = Vec::new();
    while let Some(row) = rows.next()? {
        sums::require(row, 4)?;
        let (name, number): (Vec<u8>, i64) = (row.get(0)?, row.get(1)?);
        let (from, until) = epochs(row, 2)?;
        for (inode, since, to) in states(connection, number)? {
            let (from, until) = (from.max(since), until.min(to));
            if from < until {
                eras.push(Era { entry: DirEntry { name: name.clone(), inode }, from, until });
            }
        }
    }
    Ok(eras)
}

/// Columns of epochs: the second one is NULL for the present state.
fn epochs(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<(u64, u64)> {
    let until: Option<i64> = row.get(first + 1)?;
    Ok((row.get::<_, i64>(first)? as u64, until.map_or(u64::MAX, |until| until as u64)))
}

/// Every state of an inode, with its epochs, in the order of time.
fn states(connection: &Connection, number: i64) -> Outcome<Vec<(Inode, u64, u64)>> {
    let former = concat!(
        "SELECT ",
        inode_columns!(inode_old_intact),
        ", i.epoch_from, i.epoch_to FROM inode_old i CROSS JOIN traits t ON t.id = i.traits WHERE i.number = ?1 \
         ORDER BY i.epoch_from"
    );
    let current = concat!(
        "SELECT ",
        inode_columns!(inode_intact),
        ", i.epoch, NULL FROM inode i CROSS JOIN traits t ON t.id = i.traits WHERE i.number = ?1"
    );
    let mut states = Vec::new();
    for sql in [former, current] {
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([number])?;
        while let Some(row) = rows.next()? {
            let (from, until) = epochs(row, INODE_COLUMNS)?;
            states.push((row::inode(row, 0)?, from, until));
        }
    }
    Ok(states)
}

/// Earlier contents, newest first.
pub(super) fn versions(connection: &Connection, inode: u64) -> Outcome<Vec<VersionRow>> {
    let sql = concat!(
        "SELECT number, time, mtime_secs, mtime_nanos, root, ",
        version_intact!(),
        " FROM version WHERE inode = ?1 ORDER BY number DESC"
    );
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([inode as i64], |row| {
        sums::require(row, 5)?;
        Ok(VersionRow {
            number: row.get::<_, i64>(0)? as u64,
            time: row.get::<_, i64>(1)? as u64,
            mtime: Time { secs: row.get(2)?, nanos: row.get(3)? },
            root: row::root(row.get_ref(4)?, 4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Inserts earlier contents of a file, for a database that is being rebuilt.
pub(super) fn restore_versions(connection: &Connection, inode: u64, versions: &[VersionRow]) -> Outcome<()> {
    let number = inode as i64;
    if !connection.prepare_cached("SELECT 1 FROM inode WHERE number = ?1")?.exists([number])? {
        return Err(refuse(ErrorKind::NotFound, format!("inode {inode} does not exist")));
    }
    let mut insert = connection.prepare_cached(
        "INSERT INTO version (inode, number, time, mtime_secs, mtime_nanos, root) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
         ON CONFLICT DO NOTHING",
    )?;
    // The present content comes after all of them.
    let mut raise =
        connection.prepare_cached("UPDATE inode SET version = max(version, ?2 + 1) WHERE number = ?1")?;
    for version in versions {
        let (kept, mtime, root) = (version.number as i64, version.mtime, row::root_column(&version.root));
        insert.execute((number, kept, version.time as i64, mtime.secs, mtime.nanos, root))?;
        raise.execute((number, kept))?;
    }
    Ok(())
}

/// The directory that a directory is in, and its name there.
pub(super) fn above(connection: &Connection, directory: i64) -> rusqlite::Result<(i64, Vec<u8>)> {
    // Reads the parent's entries one by one: slow in a large directory, but only errors come here.
    connection
        .prepare_cached(
            "SELECT directory.parent, dentry.name FROM directory \
             CROSS JOIN dentry ON dentry.parent = directory.parent AND dentry.inode = directory.inode \
             WHERE directory.inode = ?1",
        )?
        .query_row([directory], |row| Ok((row.get(0)?, row.get(1)?)))
}

impl Tree for SqliteMeta {
    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>> {
        self.read_tree("reading an inode", at, |db| inode(db, at, number))
    }

    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        self.read_tree("looking up a name", at, |db| lookup(db, at, parent, name))
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        self.read_once("finding where a directory hangs", |db| parent_of(db, directory))
    }

    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        self.read_tree("reading a directory", at, |db| read_dir(db, at, parent, after, limit))
    }

    fn history(&self, directory: u64) -> Result<Vec<Era>> {
        self.read("reading a directory's history", |db| history(db, directory))
    }

    fn reserve_inodes(&self, count: u64) -> Result<Range<u64>> {
        let first = self.write("reserving inodes", |db| state::advance(db, "next_inode", count))?;
        Ok(first..first + count)
    }

    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        self.write("committing", |db| commit::commit(db, self.moment(), session, commit))
    }

    fn has_happened(&self, _: Unanswered) -> Result<bool> {
        Err(Error::new(ErrorKind::Invalid, "transactions of a file always have their answer"))
    }

    fn next_sequence(&self) -> Result<u64> {
        self.write("numbering a catalogue block", |db| state::advance(db, "next_sequence", 1))
    }

    fn totals(&self) -> Result<TreeTotals> {
        self.read_once("reading totals", |db| Ok(state::totals(db)?))
    }
}
