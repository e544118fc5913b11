//! The row of counters, and the epochs at which somebody may still look.

use outrigger_format::catalogue::FileKind;
use rusqlite::Connection;

use super::fault::{Outcome, refuse};
use super::row::kind_of;
use crate::error::ErrorKind;
use crate::meta::TreeTotals;

/// Reads one column of the row of counters.
pub(super) fn counter(connection: &Connection, column: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(&format!("SELECT {column} FROM state"))?.query_row([], |row| row.get(0))
}

/// Adds to one column of the row of counters; returns what it was before.
pub(super) fn advance(connection: &Connection, column: &str, by: u64) -> Outcome<u64> {
    let before = counter(connection, column)? as u64;
    let after = before.checked_add(by).and_then(|after| i64::try_from(after).ok());
    let after = after.ok_or_else(|| refuse(ErrorKind::Full, format!("counter {column} is used up")))?;
    connection.prepare_cached(&format!("UPDATE state SET {column} = ?1"))?.execute([after])?;
    Ok(before)
}

/// Raises columns of the row of counters to at least these values.
pub(super) fn raise(connection: &Connection, least: &[(&str, u64)]) -> Outcome<()> {
    for &(column, value) in least {
        let before = counter(connection, column)? as u64;
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

/// What a transaction adds to the totals.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct TotalsDelta {
    files: i64,
    directories: i64,
    others: i64,
    bytes: i64,
}

impl TotalsDelta {
    /// `by` (1 or −1) inodes with this mode column and length.
    pub fn count(&mut self, by: i64, mode: i64, length: u64) -> Outcome<()> {
        match kind_of(mode).map_err(|error| refuse(ErrorKind::Damaged, error.to_string()))? {
            FileKind::File => self.files += by,
            FileKind::Directory => self.directories += by,
            _ => self.others += by,
        }
        // Holes may sum up beyond 64 bits: the sum wraps, and wraps back when they go.
        self.bytes = self.bytes.wrapping_add((length as i64).wrapping_mul(by));
        Ok(())
    }

    /// Adds it to the row of counters.
    pub fn store(self, connection: &Connection) -> rusqlite::Result<()> {
        if self == Self::default() {
            return Ok(());
        }
        let now = totals(connection)?;
        connection
            .prepare_cached("UPDATE state SET files = ?1, directories = ?2, others = ?3, bytes = ?4")?
            .execute((
                now.files as i64 + self.files,
                now.directories as i64 + self.directories,
                now.others as i64 + self.others,
                (now.bytes as i64).wrapping_add(self.bytes),
            ))?;
        Ok(())
    }
}

/// Epochs of snapshots and pins, rising, as one transaction sees them.
pub(super) struct Retained(Vec<i64>);

impl Retained {
    /// Reads them.
    pub fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare_cached("SELECT epoch FROM retained ORDER BY epoch")?;
        let epochs = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        Ok(Self(epochs))
    }

    /// True when one of them lies in `from .. to`.
    pub fn sees(&self, from: i64, to: i64) -> bool {
        let at = self.0.partition_point(|&epoch| epoch < from);
        self.0.get(at).is_some_and(|&epoch| epoch < to)
    }
}
