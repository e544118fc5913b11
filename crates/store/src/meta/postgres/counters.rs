//! The row of state, the counters, the totals.

use super::connection::{Answer, Query, Row};
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, next_number, refuse};
use crate::meta::{Counters, TreeTotals};

/// The row that must be there.
pub(super) fn row(answer: &Answer) -> Outcome<&Row> {
    answer.first().ok_or_else(|| refuse(ErrorKind::Damaged, "a row that is always there is missing"))
}

/// Takes `by` numbers; returns the first one.
pub(super) fn advance(tx: &mut Tx<'_>, name: &'static str, by: u64) -> Outcome<u64> {
    // No store comes near the end of one.
    let full = || {
        let what = format!("the counter {name} is at its end, which no use of a store can bring about");
        refuse(ErrorKind::Damaged, what)
    };
    let by = i64::try_from(by).map_err(|_| full())?;
    // Nothing changes where the sum would not fit.
    let sql = "UPDATE @counter SET value = value + $2 WHERE name = $1 AND value <= 9223372036854775807 - $2 \
               RETURNING value - $2";
    let answer = tx.one(Query::new(sql).public(name).int(by))?;
    next_number(name, answer.first().ok_or_else(full)?.try_get(0)?)
}

/// The statement for [`read_next`].
pub(super) const NEXT: &str = "SELECT max(value) FILTER (WHERE name = 'next_pack'), \
    max(value) FILTER (WHERE name = 'next_inode'), max(value) FILTER (WHERE name = 'next_sequence') FROM @counter";

/// Reads the next values.
pub(super) fn read_next(answer: &Answer) -> Outcome<Counters> {
    let row = row(answer)?;
    let missing = || refuse(ErrorKind::Damaged, "a counter is missing");
    let next =
        |column: usize, name| next_number(name, row.try_get::<_, Option<_>>(column)?.ok_or_else(missing)?);
    Ok(Counters {
        next_pack: next(0, "next_pack")?,
        next_inode: next(1, "next_inode")?,
        next_sequence: next(2, "next_sequence")?,
    })
}

/// Raises counters to at least these values.
pub(super) fn raise(tx: &mut Tx<'_>, least: &[(&'static str, u64)]) -> Outcome<()> {
    for &(name, value) in least {
        let value = i64::try_from(value)
            .map_err(|_| refuse(ErrorKind::Full, format!("counter {name} would be used up")))?;
        let sql = "UPDATE @counter SET value = greatest(value, $2) WHERE name = $1";
        tx.later(Query::new(sql).public(name).int(value));
    }
    Ok(())
}

/// The current epoch, raised.
pub(super) fn end_epoch(tx: &mut Tx<'_>) -> Outcome<i64> {
    let answer = tx.one(Query::new("UPDATE @state SET epoch = epoch + 1 RETURNING epoch - 1"))?;
    Ok(row(&answer)?.try_get(0)?)
}

/// The statement for [`read_totals`].
pub(super) const TOTALS: &str = "SELECT sum(files)::bigint, sum(directories)::bigint, sum(others)::bigint, \
    mod(mod(sum(bytes), 18446744073709551616) + 18446744073709551616, 18446744073709551616)::text FROM @total";

/// Totals of the current tree.
pub(super) fn read_totals(answer: &Answer) -> Outcome<TreeTotals> {
    let row = row(answer)?;
    let count = |column: usize| row.try_get::<_, i64>(column).map(|count| count as u64);
    let bytes: &str = row.public(3)?;
    let bytes = bytes.parse().map_err(|_| refuse(ErrorKind::Damaged, "the sum of the files' lengths"))?;
    Ok(TreeTotals { files: count(0)?, directories: count(1)?, others: count(2)?, bytes })
}

/// Forgets the rows of lanes that were not used for a day: their connections are gone, or make them
/// again.
pub(super) fn forget_lanes(tx: &mut Tx<'_>) {
    tx.later(Query::new("DELETE FROM @lane WHERE used < now() - interval '1 day'"));
}
