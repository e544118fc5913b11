//! Reading the tree, now or at an epoch: each read is one statement, so it sees one state.
//!
//! At an epoch, a name or inode is either the current row, if that is old enough, or the one row of
//! the history whose epochs contain it.

use super::speculative::ObservedRows;
use super::transaction::Gate;
use super::{PostgresMeta, commit, counters};
use crate::error::{Result, Unanswered};
use crate::meta::{Commit, Committed, SessionId, Tree, TreeTotals};
use std::collections::HashMap;
use std::ops::Range;
use tokio_postgres::types::Type;

use super::connection::{Answer, Query, Row};
use super::flush::{VersionColumn, insert_versions};
use super::row::{self, ended_columns, former_columns, require, stored_columns};
use super::sealing::{Private, Public, Subject};
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::change::row::root_column;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{At, DirEntry, Era, Hanging, Inode, VersionRow};

/// Rows of the current table come first; whether a row is a former one is the first column.
const INODE: &str = concat!("SELECT false, ", stored_columns!(), " FROM @inode i WHERE i.number = $1");
const INODE_AT: &str = concat!(
    "SELECT false, ",
    stored_columns!(),
    " FROM @inode i WHERE i.number = $1 AND i.epoch <= $2 UNION ALL SELECT ",
    ended_columns!(),
    " FROM @inode_old i WHERE i.number = $1 AND i.epoch_from <= $2 AND i.epoch_to > $2"
);
/// Name, its inode, its epochs (the second one NULL for a current name), its checksum.
macro_rules! name_columns {
    () => {
        "d.name, d.inode, d.epoch, NULL::bigint AS epoch_to, d.sum"
    };
}
macro_rules! former_name_columns {
    () => {
        "d.name, d.inode, d.epoch_from, d.epoch_to, d.sum"
    };
}
/// The same where the end does not matter. A row that the server has compared with that of `dentry`
/// is read as this was.
macro_rules! ended_name_columns {
    () => {
        "d.name, d.inode, d.epoch_from, CASE WHEN d.was_sum IS NULL THEN d.epoch_to END, coalesce(d.was_sum, d.sum)"
    };
}
const LOOKUP: &str = concat!(
    "SELECT ",
    name_columns!(),
    ", false, ",
    stored_columns!(),
    " FROM @dentry d JOIN @inode i ON i.number = d.inode WHERE d.parent = $1 AND d.name = $2"
);
const READ_DIR: &str = concat!(
    "SELECT ",
    name_columns!(),
    ", false, ",
    stored_columns!(),
    " FROM (SELECT * FROM @dentry WHERE parent = $1 AND name > $2 ORDER BY name LIMIT $3) d \
     JOIN @inode i ON i.number = d.inode ORDER BY d.name"
);
/// The names that `$1` (parent), `$2` and `$3` choose at epoch `$4`, each with its inode then.
macro_rules! at_epoch {
    ($which:literal) => {
        concat!(
            "SELECT n.name, n.inode, n.epoch, n.epoch_to, n.sum, i.* FROM (SELECT * FROM (SELECT ",
            name_columns!(),
            " FROM @dentry d WHERE d.parent = $1 AND ",
            $which,
            " AND d.epoch <= $4 UNION ALL SELECT ",
            ended_name_columns!(),
            " FROM @dentry_old d WHERE d.parent = $1 AND ",
            $which,
            " AND d.epoch_from <= $4 AND d.epoch_to > $4) u ORDER BY name LIMIT $3) n LEFT JOIN LATERAL (SELECT false, ",
            stored_columns!(),
            " FROM @inode i WHERE i.number = n.inode AND i.epoch <= $4 UNION ALL SELECT ",
            ended_columns!(),
            " FROM @inode_old i WHERE i.number = n.inode AND i.epoch_from <= $4 AND i.epoch_to > $4 LIMIT 1) i ON true ORDER BY n.name"
        )
    };
}
const LOOKUP_AT: &str = at_epoch!("d.name = $2");
const READ_DIR_AT: &str = at_epoch!("d.name > $2");
const ENTRIES: &str = concat!(
    "SELECT ",
    name_columns!(),
    ", false, ",
    stored_columns!(),
    " FROM @dentry d JOIN @inode i ON i.number = d.inode WHERE d.parent = $1 AND d.name = ANY ($2)"
);
const ENTRIES_AT: &str = at_epoch!("d.name = ANY ($2)");
const NAMES_OF: &str = "SELECT name FROM @dentry WHERE parent = $1";
const NAMES_OF_AT: &str = "SELECT name FROM @dentry WHERE parent = $1 AND epoch <= $2 UNION ALL \
    SELECT name FROM @dentry_old WHERE parent = $1 AND epoch_from <= $2 AND epoch_to > $2";

/// For [`read_inode`].
pub(super) fn inode(at: At, number: u64) -> Query {
    match at {
        At::Now => Query::new(INODE).int(number as i64),
        At::Epoch(epoch) => Query::new(INODE_AT).int(number as i64).int(epoch as i64),
    }
}

/// For [`read_entries`].
pub(super) fn lookup(at: At, parent: u64, name: &[u8]) -> Query {
    let subject = Subject::Name { parent: parent as i64 };
    match at {
        At::Now => Query::new(LOOKUP).int(parent as i64).bytes(subject, name.to_vec()),
        At::Epoch(epoch) => {
            Query::new(LOOKUP_AT).int(parent as i64).bytes(subject, name.to_vec()).int(1).int(epoch as i64)
        }
    }
}

/// For [`read_entries`], where names are not sealed; else without `after`, and in no order.
pub(super) fn read_dir(at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Query {
    // No name is empty, so every name comes after the empty one.
    let after = Public(after.unwrap_or_default().to_vec());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    match at {
        At::Now => Query::new(READ_DIR).int(parent as i64).with(after, Type::BYTEA).int(limit),
        At::Epoch(epoch) => {
            Query::new(READ_DIR_AT).int(parent as i64).with(after, Type::BYTEA).int(limit).int(epoch as i64)
        }
    }
}

/// For [`read_entries`], in no order: the entries with these names.
pub(super) fn entries(at: At, parent: u64, names: Vec<Vec<u8>>) -> Query {
    let limit = names.len() as i64;
    let private = |name| Private::new(Subject::Name { parent: parent as i64 }, name);
    let names = names.into_iter().map(private).collect();
    match at {
        At::Now => Query::new(ENTRIES).int(parent as i64).each_bytes(names),
        At::Epoch(epoch) => {
            Query::new(ENTRIES_AT).int(parent as i64).each_bytes(names).int(limit).int(epoch as i64)
        }
    }
}

/// For [`read_name`]: every name of a directory.
pub(super) fn names_of(at: At, parent: u64) -> Query {
    match at {
        At::Now => Query::new(NAMES_OF).int(parent as i64),
        At::Epoch(epoch) => Query::new(NAMES_OF_AT).int(parent as i64).int(epoch as i64),
    }
}

/// A name of directory `parent`, which a row begins with.
pub(super) fn read_name(found: &Row, parent: u64) -> Outcome<Vec<u8>> {
    found.bytes(0, &Subject::Name { parent: parent as i64 })
}

pub(super) fn inode_of(found: &Row, first: usize) -> Outcome<Inode> {
    row::inode(row::read_either(found, first)?)
}

/// The inode that an answer has, if any.
pub(super) fn read_inode(answer: &Answer) -> Outcome<Option<Inode>> {
    answer.first().map(|found| inode_of(found, 0)).transpose()
}

/// The entries of directory `parent` that an answer has.
pub(super) fn read_entries(answer: &Answer, parent: u64) -> Outcome<Vec<DirEntry>> {
    answer.rows.iter().map(|found| read_entry(found, parent)).collect()
}

fn read_entry(found: &Row, parent: u64) -> Outcome<DirEntry> {
    let name = read_name(found, parent)?;
    let inode: i64 = found.try_get(1)?;
    let (epoch, epoch_to): (i64, Option<i64>) = (found.try_get(2)?, found.try_get(3)?);
    let sum = match epoch_to {
        None => row::name_sum(found.seals(), parent as i64, &name, inode, epoch),
        Some(epoch_to) => row::former_name_sum(found.seals(), parent as i64, &name, inode, (epoch, epoch_to)),
    };
    let what = || format!("a name in directory {parent} is not what was written");
    require(found.try_get(4)?, sum, what)?;
    Ok(DirEntry { name, inode: inode_of(found, 5)? })
}

/// Every name that directory `$1` has or had, with every state of its inode at the same time.
pub(super) const HISTORY: &str = concat!(
    "SELECT n.name, n.inode, n.epoch, n.epoch_to, n.sum, i.* FROM (SELECT ",
    name_columns!(),
    " FROM @dentry d WHERE d.parent = $1 UNION ALL SELECT ",
    former_name_columns!(),
    " FROM @dentry_old d WHERE d.parent = $1) n JOIN LATERAL (SELECT false, ",
    stored_columns!(),
    " FROM @inode i WHERE i.number = n.inode AND (n.epoch_to IS NULL OR i.epoch < n.epoch_to) UNION ALL SELECT true, ",
    former_columns!(),
    " FROM @inode_old i WHERE i.number = n.inode AND i.epoch_to > n.epoch AND (n.epoch_to IS NULL OR i.epoch_from < n.epoch_to)) i \
     ON true ORDER BY n.name, n.epoch, i.epoch"
);

/// Reads the answer of [`HISTORY`].
pub(super) fn read_history(answer: &Answer, directory: u64) -> Outcome<Vec<Era>> {
    let era = |found: &Row| -> Outcome<Era> {
        let (from, until): (i64, Option<i64>) = (found.try_get(2)?, found.try_get(3)?);
        let (since, is_former): (i64, bool) = (found.try_get(7)?, found.try_get(5)?);
        let to = if is_former { found.try_get::<_, i64>(8)? as u64 } else { u64::MAX };
        let until = until.map_or(u64::MAX, |until| until as u64);
        let entry = read_entry(found, directory)?;
        Ok(Era { entry, from: from.max(since) as u64, until: until.min(to) })
    };
    let mut eras: Vec<Era> = answer.rows.iter().map(era).collect::<Outcome<_>>()?;
    // Where names are sealed, the database has another order. States of a name stay in theirs.
    eras.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
    Ok(eras)
}

/// The parent of a directory.
pub(super) const PARENT_OF: &str = "SELECT parent, sum FROM @directory WHERE inode = $1";

/// Reads the answer of [`PARENT_OF`].
pub(super) fn read_parent(answer: &Answer, directory: u64) -> Outcome<Option<u64>> {
    let Some(found) = answer.first() else { return Ok(None) };
    let parent: i64 = found.try_get(0)?;
    let what = || format!("where directory {directory} hangs is not what was written");
    require(found.try_get(1)?, row::directory_sum(found.seals(), directory as i64, parent), what)?;
    Ok(Some(parent as u64))
}

/// The directories `$1` and those above them, each with its name.
pub(super) const HANGING: &str = concat!(
    "WITH RECURSIVE up AS (SELECT inode, parent FROM @directory WHERE inode = ANY($1) UNION \
     SELECT h.inode, h.parent FROM up JOIN @directory h ON h.inode = up.parent) SELECT ",
    name_columns!(),
    ", false, ",
    stored_columns!(),
    ", up.parent FROM up JOIN @dentry d ON d.parent = up.parent AND d.inode = up.inode JOIN @inode i ON i.number = d.inode \
     WHERE up.inode <> up.parent"
);

/// The names in `$1` (parents) and `$2`, each with its inode.
const NAMES: &str = concat!(
    "SELECT ",
    name_columns!(),
    ", false, ",
    stored_columns!(),
    ", d.parent FROM unnest($1, $2) AS wanted (parent, name) \
     JOIN @dentry d ON d.parent = wanted.parent AND d.name = wanted.name JOIN @inode i ON i.number = d.inode"
);

/// For [`read_hanging`]: of these names those that are there, each with its inode.
pub(super) fn names<'a>(names: impl Iterator<Item = (u64, &'a [u8])>) -> Query {
    by_names(NAMES, names.map(|(parent, name)| (parent as i64, name)))
}

/// A statement with the directories of names as `$1`, and the names as `$2`.
pub(super) fn by_names<'a>(sql: &'static str, names: impl Iterator<Item = (i64, &'a [u8])>) -> Query {
    let private =
        |(parent, name): (i64, &[u8])| (parent, Private::new(Subject::Name { parent }, name.to_vec()));
    let (parents, names): (Vec<i64>, Vec<Private<Vec<u8>>>) = names.map(private).unzip();
    Query::new(sql).ints(parents).each_bytes(names)
}

/// Reads the answer of [`HANGING`] or [`names`].
pub(super) fn read_hanging(answer: &Answer) -> Outcome<Vec<Hanging>> {
    let hanging = |found: &Row| -> Outcome<Hanging> {
        let parent = found.try_get::<_, i64>("parent")? as u64;
        Ok(Hanging { parent, entry: read_entry(found, parent)? })
    };
    answer.rows.iter().map(hanging).collect()
}

/// Earlier contents, newest first, for [`row::read_version`].
pub(super) const VERSIONS: &str = "SELECT inode, number, time, mtime_secs, mtime_nanos, sum, root FROM @version \
    WHERE inode = $1 ORDER BY number DESC";

/// Inserts earlier contents of a file, for a database that is being rebuilt.
pub(super) fn restore_versions(tx: &mut Tx<'_>, inode: u64, versions: &[VersionRow]) -> Outcome<()> {
    let number = inode as i64;
    let sql = concat!("SELECT ", stored_columns!(), " FROM @inode i WHERE i.number = $1 FOR UPDATE");
    let answer = tx.one(Query::new(sql).int(number))?;
    let found =
        answer.first().ok_or_else(|| refuse(ErrorKind::NotFound, format!("inode {inode} does not exist")))?;
    let mut stored = row::read_stored(found, 0)?;
    let columns = versions.iter().map(|version| VersionColumn {
        inode: number,
        number: version.number as i64,
        time: version.time as i64,
        mtime: version.mtime,
        root: root_column(&version.root),
    });
    let query = insert_versions(
        tx.seals(),
        columns,
        "INSERT INTO @version (inode, number, time, mtime_secs, mtime_nanos, sum, root) \
         SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int4[], $6::int4[], $7::bytea[]) \
         ON CONFLICT DO NOTHING",
    );
    tx.later(query);
    // The present content comes after all of them.
    let newest = versions.iter().map(|version| version.number as i64).max().unwrap_or(0);
    stored.version = stored.version.max(newest + 1);
    let sum = row::inode_sum(tx.seals(), &stored);
    let sql = "UPDATE @inode SET version = $2, sum = $3 WHERE number = $1";
    tx.later(Query::new(sql).int(number).int(stored.version).with(sum, Type::INT4));
    Ok(())
}

impl Tree for PostgresMeta {
    fn inode(&self, at: At, number: u64) -> Result<Option<Inode>> {
        self.read("reading an inode", &inode(at, number), read_inode)
    }

    fn lookup(&self, at: At, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        let query = lookup(at, parent, name);
        let entries = self.read("looking up a name", &query, |answer| read_entries(answer, parent))?;
        Ok(entries.into_iter().next().map(|entry| entry.inode))
    }

    fn lookup_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        if let [(parent, name)] = names {
            return Ok(vec![self.lookup(At::Now, *parent, name)?]);
        }
        let query = self::names(names.iter().copied());
        let found = self.read("looking up names", &query, read_hanging)?.into_iter();
        let found: HashMap<(u64, Vec<u8>), Inode> =
            found.map(|Hanging { parent, entry }| ((parent, entry.name), entry.inode)).collect();
        Ok(names.iter().map(|(parent, name)| found.get(&(*parent, name.to_vec())).cloned()).collect())
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        let query = Query::new(PARENT_OF).int(directory as i64);
        self.read("finding where a directory hangs", &query, |answer| read_parent(answer, directory))
    }

    fn hanging(&self, directories: &[u64]) -> Result<Vec<Hanging>> {
        let query = Query::new(HANGING).ints(directories.iter().map(|&inode| inode as i64).collect());
        self.read("finding where directories hang", &query, read_hanging)
    }

    fn read_dir(&self, at: At, parent: u64, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        if self.transactions.pool.seals.sealer().is_some() {
            return self.read_dir_in_order(at, parent, after, limit);
        }
        let query = read_dir(at, parent, after, limit);
        self.read("reading a directory", &query, |answer| read_entries(answer, parent))
    }

    fn history(&self, directory: u64) -> Result<Vec<Era>> {
        let query = Query::new(HISTORY).int(directory as i64);
        self.read("reading a directory's history", &query, |answer| read_history(answer, directory))
    }

    fn reserve_inodes(&self, count: u64) -> Result<Range<u64>> {
        let first =
            self.write("reserving inodes", Gate::Open, |tx| counters::advance(tx, "next_inode", count))?;
        self.cached.reserved(first + count);
        Ok(first..first + count)
    }

    fn commit(&self, session: SessionId, commit: &Commit) -> Result<Committed> {
        if let Some(done) = self.commit_speculatively(session, commit)? {
            self.listings.observe(commit, &done);
            return Ok(done);
        }
        let mut observed = ObservedRows::default();
        let done =
            self.write("committing", Gate::Shared, |tx| commit::commit(tx, session, commit, &mut observed))?;
        self.cached.observe(observed);
        self.listings.observe(commit, &done);
        Ok(done)
    }

    fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        self.transactions.has_happened(unanswered)
    }

    fn next_sequence(&self) -> Result<u64> {
        self.write("numbering a catalogue block", Gate::Open, |tx| counters::advance(tx, "next_sequence", 1))
    }

    fn totals(&self) -> Result<TreeTotals> {
        self.read("reading totals", &Query::new(counters::TOTALS), counters::read_totals)
    }
}
