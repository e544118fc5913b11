//! Snapshots, pins, and the history that they keep.

use super::transaction::Gate;
use super::{PostgresMeta, tree};
use crate::error::Result;
use crate::meta::{Snapshots, VersionRow};
use outrigger_format::Root;

use super::connection::{Query, Row};
use super::sealing::Subject;
use super::transaction::Tx;
use super::{counters, row, sessions};
use crate::error::ErrorKind;
use crate::meta::change::row::root_column;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{PinTarget, SessionId, SnapshotRow};

/// Inserts one that this role takes; a trigger sees to it that it says so.
const TAKE: &str = "INSERT INTO @snapshot (epoch, name, time, tags, role) VALUES ($1, $2, $3, $4, session_user) RETURNING role, time";

/// Names the current epoch and raises it; runs alone.
pub(super) fn create(tx: &mut Tx<'_>, name: &str, time: u64, tags: &[String]) -> Outcome<SnapshotRow> {
    if name.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "a snapshot needs a name"));
    }
    if epoch_of(tx, name)?.is_some() {
        return Err(refuse(ErrorKind::Exists, format!("snapshot `{name}` exists already")));
    }
    let epoch = counters::end_epoch(tx)?;
    let snapshot =
        SnapshotRow { name: name.to_owned(), epoch: epoch as u64, time, tags: tags.to_vec(), role: None };
    let answer = tx.one(insert(&snapshot, TAKE))?;
    let row = counters::row(&answer)?;
    // The server dates those of a role that only adds.
    let (role, time) = (row.public::<Option<_>>(0)?, row.try_get::<_, i64>(1)? as u64);
    Ok(SnapshotRow { role, time, ..snapshot })
}

/// Adds one that came with a copy: nobody here has taken it.
pub(super) fn insert_copied(snapshot: &SnapshotRow) -> Query {
    insert(snapshot, "INSERT INTO @snapshot (epoch, name, time, tags) VALUES ($1, $2, $3, $4)")
}

fn insert(snapshot: &SnapshotRow, sql: &'static str) -> Query {
    let SnapshotRow { epoch, name, time, tags, .. } = snapshot;
    let query = Query::new(sql).int(*epoch as i64).text(Subject::SnapshotName, name).int(*time as i64);
    query.list(tags_of(*epoch as i64, name), tags)
}

fn tags_of(epoch: i64, name: &str) -> Subject {
    Subject::SnapshotTags { epoch, name: name.into() }
}

/// Replaces a snapshot's tags.
pub(super) fn set_tags(tx: &mut Tx<'_>, name: &str, tags: &[String]) -> Outcome<()> {
    let epoch = required_epoch(tx, name)?;
    let query = Query::new("UPDATE @snapshot SET tags = $2 WHERE epoch = $1").int(epoch);
    tx.later(query.list(tags_of(epoch, name), tags));
    Ok(())
}

/// Locked, so that it stays until the transaction has ended.
fn epoch_of(tx: &mut Tx<'_>, name: &str) -> Outcome<Option<i64>> {
    let answer = tx.one(
        Query::new("SELECT epoch FROM @snapshot WHERE name = $1 FOR KEY SHARE")
            .text(Subject::SnapshotName, name),
    )?;
    Ok(answer.first().map(|row| row.try_get(0)).transpose()?)
}

fn required_epoch(tx: &mut Tx<'_>, name: &str) -> Outcome<i64> {
    epoch_of(tx, name)?.ok_or_else(|| refuse(ErrorKind::NotFound, format!("there is no snapshot `{name}`")))
}

/// All snapshots, oldest first, for [`read`].
pub(super) const ALL: &str = "SELECT epoch, name, time, tags, role FROM @snapshot ORDER BY epoch";

/// A row of [`ALL`].
pub(super) fn read(row: &Row) -> Outcome<SnapshotRow> {
    let (epoch, name) = (row.try_get(0)?, row.text(1, &Subject::SnapshotName)?);
    let tags = row.list(3, &tags_of(epoch, &name))?;
    let (time, role) = (row.try_get::<_, i64>(2)? as u64, row.public::<Option<_>>(4)?);
    Ok(SnapshotRow { epoch: epoch as u64, name, time, tags, role })
}

/// Forgets a snapshot.
pub(super) fn delete(tx: &mut Tx<'_>, name: &str) -> Outcome<()> {
    let epoch = required_epoch(tx, name)?;
    tx.later(Query::new("DELETE FROM @snapshot WHERE epoch = $1").int(epoch));
    Ok(())
}

/// Pins something that is there. For [`PinTarget::Now`] it runs alone, as it ends the epoch.
pub(super) fn pin(tx: &mut Tx<'_>, session: SessionId, target: &PinTarget) -> Outcome<(u64, Option<Root>)> {
    sessions::require_live(tx, session)?;
    let epoch = match target {
        PinTarget::Now => counters::end_epoch(tx)?,
        PinTarget::Snapshot(name) => required_epoch(tx, name)?,
        PinTarget::Version { inode, number } => {
            let root = pin_version(tx, session, *inode, *number)?;
            let answer = tx.one(Query::new("SELECT epoch FROM @state"))?;
            return Ok((counters::row(&answer)?.try_get::<_, i64>(0)? as u64, Some(root)));
        }
    };
    let sql = "INSERT INTO @pin (epoch, session) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.later(Query::new(sql).int(epoch).int(session.0 as i64));
    Ok((epoch as u64, None))
}

fn pin_version(tx: &mut Tx<'_>, session: SessionId, inode: u64, number: u64) -> Outcome<Root> {
    // Locked: otherwise the version could be dropped, and a collector read the roots, before this
    // pin is there.
    let sql = "SELECT inode, number, time, mtime_secs, mtime_nanos, sum, root FROM @version \
               WHERE inode = $1 AND number = $2 FOR KEY SHARE";
    let answer = tx.one(Query::new(sql).int(inode as i64).int(number as i64))?;
    let missing = || refuse(ErrorKind::NotFound, format!("inode {inode} has no version {number}"));
    let root = row::read_version(answer.first().ok_or_else(missing)?)?.root;
    later_pin_root(tx, session, &root);
    Ok(root)
}

/// Reads every row of `pin_root`, for [`read_pinned`].
pub(super) const PINNED: &str = "SELECT root, session FROM @pin_root";

/// A row of [`PINNED`].
pub(super) fn read_pinned(row: &Row) -> Outcome<Root> {
    let session: i64 = row.try_get(1)?;
    row::root_of(Some(&row.bytes(0, &Subject::PinnedRoot { session })?))
}

/// Pins a content that this transaction has found to be committed, and locked.
pub(super) fn later_pin_root(tx: &mut Tx<'_>, session: SessionId, root: &Root) {
    if let Some(bytes) = root_column(root) {
        let sql = "INSERT INTO @pin_root (session, root) VALUES ($1, $2)";
        let subject = Subject::PinnedRoot { session: session.0 as i64 };
        tx.later(Query::new(sql).int(session.0 as i64).bytes(subject, bytes));
    }
}

/// No snapshot and no pin looks at the row's epochs. New ones never will: they begin after every
/// row of the history has ended.
macro_rules! unseen {
    () => {
        "NOT EXISTS (SELECT 1 FROM @retained r WHERE r.epoch >= o.epoch_from AND r.epoch < o.epoch_to)"
    };
}

/// Deletes up to `batch` rows of the history that no snapshot or pin sees; returns how many.
pub(super) fn purge(tx: &mut Tx<'_>, batch: i64) -> Outcome<u64> {
    let inodes = concat!(
        "DELETE FROM @inode_old WHERE ctid = ANY (ARRAY (SELECT o.ctid FROM @inode_old o WHERE ",
        unseen!(),
        " LIMIT $1))"
    );
    let names = concat!(
        "DELETE FROM @dentry_old WHERE ctid = ANY (ARRAY (SELECT o.ctid FROM @dentry_old o WHERE ",
        unseen!(),
        " LIMIT $1))"
    );
    let answers = tx.run(vec![Query::new(inodes).int(batch), Query::new(names).int(batch)])?;
    Ok(answers.iter().map(|answer| answer.affected).sum())
}

impl Snapshots for PostgresMeta {
    fn versions(&self, inode: u64) -> Result<Vec<VersionRow>> {
        let query = Query::new(tree::VERSIONS).int(inode as i64);
        self.read("listing versions", &query, |answer| answer.rows.iter().map(row::read_version).collect())
    }

    fn create_snapshot(&self, name: &str, time: u64, tags: &[String]) -> Result<SnapshotRow> {
        self.write("taking a snapshot", Gate::Alone, |tx| create(tx, name, time, tags))
    }

    fn set_snapshot_tags(&self, name: &str, tags: &[String]) -> Result<()> {
        self.write("changing a snapshot", Gate::Shared, |tx| set_tags(tx, name, tags))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.list("listing snapshots", ALL, read)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.write("deleting a snapshot", Gate::Shared, |tx| delete(tx, name))
    }

    fn pin(&self, session: SessionId, target: &PinTarget) -> Result<(u64, Option<Root>)> {
        let gate = if *target == PinTarget::Now { Gate::Alone } else { Gate::Shared };
        self.write("pinning", gate, |tx| pin(tx, session, target))
    }

    fn purge_history(&self) -> Result<u64> {
        const BATCH: i64 = 20_000;
        let mut total = 0;
        loop {
            let gone = self.write("purging history", Gate::Shared, |tx| purge(tx, BATCH))?;
            if gone == 0 {
                return Ok(total);
            }
            total += gone;
        }
    }

    fn restore_versions(&self, inode: u64, versions: &[VersionRow]) -> Result<()> {
        self.write("restoring versions", Gate::Shared, |tx| tree::restore_versions(tx, inode, versions))
    }
}
