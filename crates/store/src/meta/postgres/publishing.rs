//! The state of names and inodes at one instant, for the catalogue. The gate is held exclusively:
//! between the commits of all clients.

use std::collections::HashSet;

use super::connection::{Answer, Query, Row};
use super::row::stored_columns;
use super::sealing::Subject;
use super::transaction::Tx;
use super::{counters, records, sessions, snapshots, tree};
use crate::meta::fault::Outcome;
use crate::meta::publishing::{Anew, PUBLISHED, Published};
use crate::meta::{PinTarget, SessionId};

/// Inodes of the current tree.
const INODES: &str = concat!("SELECT false, ", stored_columns!(), " FROM @inode i WHERE i.number = ANY ($1)");

/// The sequence that was taken last, for [`read_last`].
pub(super) fn last() -> Query {
    records::named("SELECT value FROM @record WHERE kind = $1 AND name = $2", PUBLISHED, "")
}

/// Reads the answer of [`last`].
pub(super) fn read_last(answer: &Answer) -> Outcome<u64> {
    let text = |row: &Row| row.text(0, &Subject::record(PUBLISHED, ""));
    let value = answer.first().map(text).transpose()?;
    Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0))
}

fn take_sequence(tx: &mut Tx<'_>) -> Outcome<u64> {
    let sequence = counters::advance(tx, "next_sequence", 1)?;
    records::set(tx, PUBLISHED, "", Some(&sequence.to_string()));
    Ok(sequence)
}

/// Runs alone.
pub(super) fn tell(
    tx: &mut Tx<'_>,
    session: SessionId,
    names: &[(u64, Vec<u8>)],
    inodes: &[u64],
) -> Outcome<Published> {
    sessions::require_live(tx, session)?;
    let sequence = take_sequence(tx)?;
    let parents: Vec<i64> = names.iter().map(|(parent, _)| *parent as i64).collect();
    let numbers: Vec<i64> = inodes.iter().map(|&inode| inode as i64).collect();
    let directories: HashSet<i64> = parents.iter().chain(&numbers).copied().collect();
    let names = names.iter().map(|(parent, name)| (*parent, name.as_slice()));
    let answers = tx.run(vec![
        tree::names(names),
        Query::new(INODES).ints(numbers),
        Query::new(tree::HANGING).ints(directories.into_iter().collect()),
    ])?;
    Ok(Published {
        sequence,
        names: tree::read_hanging(&answers[0])?,
        inodes: answers[1].rows.iter().map(|row| tree::inode_of(row, 0)).collect::<Outcome<_>>()?,
        above: tree::read_hanging(&answers[2])?,
    })
}

/// Runs alone.
pub(super) fn begin_anew(tx: &mut Tx<'_>, session: SessionId) -> Outcome<Anew> {
    let sequence = take_sequence(tx)?;
    let (epoch, _) = snapshots::pin(tx, session, &PinTarget::Now)?;
    Ok(Anew { sequence, epoch })
}
