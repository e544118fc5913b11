//! Checksums of rows: SQLite has none, and a flipped bit in a name, a time or a root would be
//! believed.
//!
//! SQLite itself computes each table's last column, `sum`, from all the others whenever a row is
//! written. It uses the function `row_sum` that every connection gets here. Statements that read
//! names, inodes, versions, snapshots, policies and packs compare it; `check` compares every row of
//! every table.

use std::cell::Cell;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use crate::meta::fault::Outcome;

/// A row that has changed since it was written.
#[derive(Debug, thiserror::Error)]
#[error("a row does not match its checksum")]
struct Changed;

/// Registers `row_sum` with a connection: CRC-32 over its arguments' types, lengths and values. It
/// guards against disks and memory, not against people, and runs several times for every file that
/// is looked up.
pub(crate) fn register(connection: &Connection) -> rusqlite::Result<()> {
    // Innocuous: it may be used by a schema that is not trusted.
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    let buffer = Cell::new(Vec::new());
    connection.create_scalar_function("row_sum", -1, flags, move |context| {
        let mut bytes = buffer.take();
        let sum = row_sum(context, &mut bytes);
        buffer.set(bytes);
        Ok(sum)
    })
}

fn row_sum(context: &Context<'_>, bytes: &mut Vec<u8>) -> i64 {
    bytes.clear();
    for column in 0..context.len() {
        let mut add = |kind: u8, value: &[u8]| {
            bytes.push(kind);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        };
        match context.get_raw(column) {
            ValueRef::Null => add(0, &[]),
            ValueRef::Integer(number) => add(1, &number.to_le_bytes()),
            ValueRef::Real(number) => add(2, &number.to_le_bytes()),
            ValueRef::Text(text) => add(3, text),
            ValueRef::Blob(blob) => add(4, blob),
        }
    }
    // Signed, so that it takes four bytes in a row and not five.
    i64::from(crc32fast::hash(bytes).cast_signed())
}

/// Refuses a row whose checksum the statement found wrong, in `column`.
pub(super) fn require(row: &Row<'_>, column: usize) -> rusqlite::Result<()> {
    if row.get(column)? {
        return Ok(());
    }
    let kind = rusqlite::types::Type::Integer;
    Err(rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(Changed)))
}

/// True for a row of `inode` as `i`.
macro_rules! inode_intact {
    () => {
        "i.sum IS row_sum(i.number, i.epoch, i.traits, i.links, i.version, i.mtime_secs, i.mtime_nanos, i.time, i.stamp, \
         i.special, i.root, i.times)"
    };
}
/// True for a row of `inode_old` as `i`.
macro_rules! inode_old_intact {
    () => {
        "i.sum IS row_sum(i.number, i.epoch_from, i.epoch_to, i.traits, i.links, i.mtime_secs, i.mtime_nanos, i.stamp, \
         i.special, i.root, i.times)"
    };
}
/// True for a row of `traits` as `t`.
macro_rules! traits_intact {
    () => {
        "t.sum IS row_sum(t.digest, t.mode, t.uid, t.gid, t.xattrs)"
    };
}
/// True for a row of `dentry` as `d`.
macro_rules! dentry_intact {
    () => {
        "d.sum IS row_sum(d.parent, d.name, d.inode, d.epoch)"
    };
}
/// True for a row of `dentry_old` as `d`.
macro_rules! dentry_old_intact {
    () => {
        "d.sum IS row_sum(d.parent, d.name, d.epoch_from, d.epoch_to, d.inode)"
    };
}
/// True for a row of `directory`.
macro_rules! directory_intact {
    () => {
        "sum IS row_sum(inode, parent)"
    };
}
/// True for a row of `version`.
macro_rules! version_intact {
    () => {
        "sum IS row_sum(inode, number, time, mtime_secs, mtime_nanos, root)"
    };
}
/// True for a row of `policy`.
macro_rules! policy_intact {
    () => {
        "sum IS row_sum(inode, key, value)"
    };
}
/// True for a row of `snapshot`.
macro_rules! snapshot_intact {
    () => {
        "sum IS row_sum(epoch, name, time)"
    };
}
/// True for a row of `snapshot_tag`.
macro_rules! snapshot_tag_intact {
    () => {
        "sum IS row_sum(epoch, position, tag)"
    };
}
/// True for a row of `held`.
macro_rules! held_intact {
    () => {
        "sum IS row_sum(holder, root)"
    };
}
/// True for a row of `pack`.
macro_rules! pack_intact {
    () => {
        "sum IS row_sum(id, kind, state, session, bytes, raw_bytes, chunks, generation, dead_since)"
    };
}
pub(super) use dentry_intact;
pub(super) use dentry_old_intact;
pub(super) use directory_intact;
pub(super) use held_intact;
pub(super) use inode_intact;
pub(super) use inode_old_intact;
pub(super) use pack_intact;
pub(super) use policy_intact;
pub(super) use snapshot_intact;
pub(super) use snapshot_tag_intact;
pub(super) use traits_intact;
pub(super) use version_intact;

/// A query for each table, whose rows describe the changed rows.
const CHANGED: &[&str] = &[
    concat!(
        "SELECT 'inode ' || i.number || ' is not what was written' FROM inode i WHERE NOT (",
        inode_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a former state of inode ' || i.number || ' is not what was written' FROM inode_old i WHERE NOT (",
        inode_old_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'traits ' || t.id || ' are not what was written' FROM traits t WHERE NOT (",
        traits_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a name in directory ' || d.parent || ' is not what was written' FROM dentry d WHERE NOT (",
        dentry_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a former name in directory ' || d.parent || ' is not what was written' FROM dentry_old d WHERE NOT (",
        dentry_old_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'version ' || number || ' of inode ' || inode || ' is not what was written' FROM version WHERE NOT (",
        version_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a policy of inode ' || inode || ' is not what was written' FROM policy WHERE NOT (",
        policy_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'the snapshot of epoch ' || epoch || ' is not what was written' FROM snapshot WHERE NOT (",
        snapshot_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a tag of the snapshot of epoch ' || epoch || ' is not what was written' FROM snapshot_tag WHERE NOT (",
        snapshot_tag_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'a root that ' || holder || ' holds is not what was written' FROM held WHERE NOT (",
        held_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'the row of pack ' || id || ' is not what was written' FROM pack WHERE NOT (",
        pack_intact!(),
        ")"
    ),
    concat!(
        "SELECT 'where directory ' || inode || ' hangs is not what was written' FROM directory WHERE NOT (",
        directory_intact!(),
        ")"
    ),
    "SELECT 'the row of counters is not what was written' FROM state WHERE sum IS NOT row_sum(one, epoch, generation, \
     next_inode, next_pack, next_session, next_sequence, collector, files, directories, others, bytes)",
];

/// Compares every row with its checksum; `findings` runs a query whose rows are findings.
pub(super) fn check(mut findings: impl FnMut(&str) -> Outcome<()>) -> Outcome<()> {
    CHANGED.iter().try_for_each(|query| findings(query))
}
