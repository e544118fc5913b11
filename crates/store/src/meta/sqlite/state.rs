//! The row of counters, and the epochs that are still visible.

use rusqlite::Connection;

use crate::error::ErrorKind;
use crate::meta::change::totals::{Retained, TotalsDelta};
use crate::meta::fault::{Outcome, next_number, refuse};
use crate::meta::{Counters, TreeTotals};

/// Reads one column of the row of counters.
pub(super) fn counter(connection: &Connection, column: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(&format!("SELECT {column} FROM state"))?.query_row([], |row| row.get(0))
}

/// Reads the next values.
pub(super) fn counters(connection: &Connection) -> Outcome<Counters> {
    let next = |column| next_number(column, counter(connection, column)?);
    Ok(Counters {
        next_pack: next("next_pack")?,
        next_inode: next("next_inode")?,
        next_sequence: next("next_sequence")?,
    })
}

/// Adds to one column of the row of counters; returns its earlier value.
pub(super) fn advance(connection: &Connection, column: &str, by: u64) -> Outcome<u64> {
    let before = next_number(column, counter(connection, column)?)?;
    let after = before.checked_add(by).and_then(|after| i64::try_from(after).ok());
    // No store comes near the end of one.
    let after = after.ok_or_else(|| {
        let what = format!("the counter {column} is at its end, which no use of a store can bring about");
        refuse(ErrorKind::Damaged, what)
    })?;
    connection.prepare_cached(&format!("UPDATE state SET {column} = ?1"))?.execute([after])?;
    Ok(before)
}

/// Raises columns of the row of counters to at least these values.
pub(super) fn raise(connection: &Connection, least: &[(&str, u64)]) -> Outcome<()> {
    for &(column, value) in least {
        let before = next_number(column, counter(connection, column)?)?;
        advance(connection, column, value.saturating_sub(before))?;
    }
    Ok(())
}

/// The totals.
pub(super) fn totals(connection: &Connection) -> rusqlite::Result<TreeTotals> {
    connection.prepare_cached("SELECT files, directories, others, bytes FROM state")?.query_row([], |row| {
        let column = |n| row.get::<_, i64>(n).map(|value| value as u64);
        Ok(TreeTotals { files: column(0)?, directories: column(1)?, others: column(2)?, bytes: column(3)? })
    })
}

/// Adds to the totals.
pub(super) fn add_totals(connection: &Connection, more: TotalsDelta) -> rusqlite::Result<()> {
    if more == TotalsDelta::default() {
        return Ok(());
    }
    let now = totals(connection)?;
    connection
        .prepare_cached("UPDATE state SET files = ?1, directories = ?2, others = ?3, bytes = ?4")?
        .execute((
            now.files as i64 + more.files,
            now.directories as i64 + more.directories,
            now.others as i64 + more.others,
            (now.bytes as i64).wrapping_add(more.bytes),
        ))?;
    Ok(())
}

/// Epochs of snapshots and pins.
pub(super) fn retained(connection: &Connection) -> rusqlite::Result<Retained> {
    let mut statement = connection.prepare_cached("SELECT epoch FROM retained ORDER BY epoch")?;
    let epochs = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(Retained(epochs))
}
