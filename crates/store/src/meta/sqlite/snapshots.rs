//! Snapshots, pins, and the history that they keep.

use super::{SqliteMeta, tree};
use crate::error::Result;
use crate::meta::{Snapshots, VersionRow};
use outrigger_format::Root;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::state::{advance, counter};
use super::sums::{self, snapshot_intact, snapshot_tag_intact, version_intact};
use super::{Moment, row, sessions};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{PinTarget, SessionId, SnapshotRow};

/// Names the current epoch and raises it.
pub(super) fn create(
    connection: &Connection,
    name: &str,
    time: u64,
    tags: &[String],
) -> Outcome<SnapshotRow> {
    if name.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "a snapshot needs a name"));
    }
    if epoch_of(connection, name)?.is_some() {
        return Err(refuse(ErrorKind::Exists, format!("snapshot `{name}` exists already")));
    }
    let epoch = advance(connection, "epoch", 1)?;
    connection.prepare_cached("INSERT INTO snapshot VALUES (?1, ?2, ?3)")?.execute((
        epoch as i64,
        name,
        time as i64,
    ))?;
    insert_tags(connection, epoch as i64, tags)?;
    Ok(SnapshotRow { name: name.to_owned(), epoch, time, tags: tags.to_vec(), role: None })
}

/// Writes a snapshot's tags.
pub(super) fn insert_tags(connection: &Connection, epoch: i64, tags: &[String]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT INTO snapshot_tag VALUES (?1, ?2, ?3)")?;
    for (position, tag) in (0i64..).zip(tags) {
        insert.execute((epoch, position, tag))?;
    }
    Ok(())
}

/// Replaces a snapshot's tags.
pub(super) fn set_tags(connection: &Connection, name: &str, tags: &[String]) -> Outcome<()> {
    let epoch = required_epoch(connection, name)?;
    connection.prepare_cached("DELETE FROM snapshot_tag WHERE epoch = ?1")?.execute([epoch])?;
    Ok(insert_tags(connection, epoch, tags)?)
}

fn epoch_of(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT epoch FROM snapshot WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

fn required_epoch(connection: &Connection, name: &str) -> Outcome<i64> {
    epoch_of(connection, name)?
        .ok_or_else(|| refuse(ErrorKind::NotFound, format!("there is no snapshot `{name}`")))
}

/// All snapshots, oldest first.
pub(super) fn all(connection: &Connection) -> Outcome<Vec<SnapshotRow>> {
    let mut tags = connection.prepare_cached(concat!(
        "SELECT tag, ",
        snapshot_tag_intact!(),
        " FROM snapshot_tag WHERE epoch = ?1 ORDER BY position"
    ))?;
    let mut statement = connection.prepare_cached(concat!(
        "SELECT epoch, name, time, ",
        snapshot_intact!(),
        " FROM snapshot ORDER BY epoch"
    ))?;
    let mut rows = statement.query([])?;
    let mut snapshots = Vec::new();
    while let Some(row) = rows.next()? {
        sums::require(row, 3)?;
        let epoch: i64 = row.get(0)?;
        let read_tag = |row: &rusqlite::Row<'_>| {
            sums::require(row, 1)?;
            row.get(0)
        };
        snapshots.push(SnapshotRow {
            name: row.get(1)?,
            epoch: epoch as u64,
            time: row.get::<_, i64>(2)? as u64,
            tags: tags.query_map([epoch], read_tag)?.collect::<rusqlite::Result<_>>()?,
            role: None,
        });
    }
    Ok(snapshots)
}

/// Forgets a snapshot.
pub(super) fn delete(connection: &Connection, name: &str) -> Outcome<()> {
    let epoch = required_epoch(connection, name)?;
    connection.prepare_cached("DELETE FROM snapshot WHERE epoch = ?1")?.execute([epoch])?;
    connection.prepare_cached("DELETE FROM snapshot_tag WHERE epoch = ?1")?.execute([epoch])?;
    Ok(())
}

/// Pins something that is there.
pub(super) fn pin(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    target: &PinTarget,
) -> Outcome<(u64, Option<Root>)> {
    sessions::require_live(connection, now, session)?;
    let epoch = match target {
        PinTarget::Now => advance(connection, "epoch", 1)? as i64,
        PinTarget::Snapshot(name) => required_epoch(connection, name)?,
        PinTarget::Version { inode, number } => {
            let root = pin_version(connection, session, *inode, *number)?;
            return Ok((counter(connection, "epoch")? as u64, Some(root)));
        }
    };
    connection
        .prepare_cached("INSERT INTO pin VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute((epoch, session.0 as i64))?;
    Ok((epoch as u64, None))
}

fn pin_version(connection: &Connection, session: SessionId, inode: u64, number: u64) -> Outcome<Root> {
    let root = connection
        .prepare_cached(concat!(
            "SELECT root, ",
            version_intact!(),
            " FROM version WHERE inode = ?1 AND number = ?2"
        ))?
        .query_row((inode as i64, number as i64), |row| {
            sums::require(row, 1)?;
            row::root(row.get_ref(0)?, 0)
        })
        .optional()?;
    let missing = || refuse(ErrorKind::NotFound, format!("inode {inode} has no version {number}"));
    let root = root.ok_or_else(missing)?;
    pin_root(connection, session, &root)?;
    Ok(root)
}

/// Pins a content that this transaction has found to be committed.
pub(super) fn pin_root(connection: &Connection, session: SessionId, root: &Root) -> Outcome<()> {
    if let Some(bytes) = row::root_column(root) {
        connection
            .prepare_cached("INSERT INTO pin_root VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
            .execute((session.0 as i64, bytes))?;
    }
    Ok(())
}

/// A table of this many traits is small enough to leave alone.
const TRAITS_TOLERATED: i64 = 1000;

/// Where a purge goes on after a batch.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum PurgePosition {
    Inodes { number: i64, epoch_from: i64 },
    Names { parent: i64, name: Vec<u8>, epoch_from: i64 },
    Traits,
    Done,
}

impl PurgePosition {
    /// The beginning.
    pub const START: Self = Self::Inodes { number: i64::MIN, epoch_from: i64::MIN };
}

/// No snapshot and no pin looks at the row's epochs. New ones never will: they begin after every
/// row of the history has ended.
macro_rules! unseen {
    () => {
        "NOT EXISTS (SELECT 1 FROM snapshot WHERE epoch >= epoch_from AND epoch < epoch_to) \
         AND NOT EXISTS (SELECT 1 FROM pin WHERE epoch >= epoch_from AND epoch < epoch_to)"
    };
}

/// Reads up to `batch` rows of the history, and deletes those that no snapshot or pin sees; returns
/// where to go on, and how many were deleted. Batches are transactions of their own, so that
/// writers never wait for the whole.
pub(super) fn purge(
    connection: &Connection,
    at: PurgePosition,
    batch: usize,
) -> Outcome<(PurgePosition, u64)> {
    match at {
        PurgePosition::Inodes { number, epoch_from } => {
            let end: Option<(i64, i64)> = connection
                .prepare_cached(
                    "SELECT number, epoch_from FROM inode_old WHERE (number, epoch_from) > (?1, ?2) \
                     ORDER BY number, epoch_from LIMIT 1 OFFSET ?3",
                )?
                .query_row(params![number, epoch_from, batch as i64], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let sql = concat!(
                "DELETE FROM inode_old WHERE (number, epoch_from) > (?1, ?2) AND (number, epoch_from) <= (?3, ?4) AND ",
                unseen!()
            );
            let (last_number, last_epoch) = end.unwrap_or((i64::MAX, i64::MAX));
            let gone =
                connection.prepare_cached(sql)?.execute((number, epoch_from, last_number, last_epoch))?
                    as u64;
            let next = match end {
                Some((number, epoch_from)) => PurgePosition::Inodes { number, epoch_from },
                None => PurgePosition::Names { parent: i64::MIN, name: Vec::new(), epoch_from: i64::MIN },
            };
            Ok((next, gone))
        }
        PurgePosition::Names { parent, name, epoch_from } => {
            let end: Option<(i64, Vec<u8>, i64)> = connection
                .prepare_cached(
                    "SELECT parent, name, epoch_from FROM dentry_old WHERE (parent, name, epoch_from) > (?1, ?2, ?3) \
                     ORDER BY parent, name, epoch_from LIMIT 1 OFFSET ?4",
                )?
                .query_row(params![parent, name, epoch_from, batch as i64], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .optional()?;
            let sql = concat!(
                "DELETE FROM dentry_old WHERE (parent, name, epoch_from) > (?1, ?2, ?3) \
                 AND (parent, name, epoch_from) <= (?4, ?5, ?6) AND ",
                unseen!()
            );
            let last = end.clone().unwrap_or((i64::MAX, Vec::new(), i64::MAX));
            let gone = connection
                .prepare_cached(sql)?
                .execute(params![parent, name, epoch_from, last.0, last.1, last.2])?
                as u64;
            let next = match end {
                Some((parent, name, epoch_from)) => PurgePosition::Names { parent, name, epoch_from },
                None => PurgePosition::Traits,
            };
            Ok((next, gone))
        }
        PurgePosition::Traits => {
            // Finding the unused ones reads every inode: not worth it for a few.
            let count: i64 =
                connection.prepare_cached("SELECT count(*) FROM traits")?.query_row([], |row| row.get(0))?;
            if count < TRAITS_TOLERATED {
                return Ok((PurgePosition::Done, 0));
            }
            connection
                .prepare_cached(
                    "DELETE FROM traits WHERE id NOT IN \
                     (SELECT traits FROM inode UNION SELECT traits FROM inode_old)",
                )?
                .execute([])?;
            Ok((PurgePosition::Done, 0))
        }
        PurgePosition::Done => Ok((PurgePosition::Done, 0)),
    }
}

impl Snapshots for SqliteMeta {
    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>> {
        self.read_once("listing versions", |db| tree::versions(db, inode))
    }

    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow> {
        self.write("taking a snapshot", |db| create(db, name, time, tags))
    }

    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()> {
        self.write("changing a snapshot", |db| set_tags(db, name, tags))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.read("listing snapshots", all)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.write("deleting a snapshot", |db| delete(db, name))
    }

    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)> {
        self.write("pinning", |db| pin(db, self.moment(), session, target))
    }

    fn purge_history(&self) -> Result<u64> {
        const BATCH: usize = 20_000;
        let (mut at, mut total) = (PurgePosition::START, 0);
        while at != PurgePosition::Done {
            let (next, gone) = self.write("purging history", |db| purge(db, at, BATCH))?;
            at = next;
            total += gone;
        }
        Ok(total)
    }

    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()> {
        self.write("restoring versions", |db| tree::restore_versions(db, inode, versions))
    }
}
