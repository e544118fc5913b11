//! Inline chunks.
//!
//! **Concurrency.** If two commits add the same chunk, the second one waits for the first. A commit
//! that finds the chunk relies on its row until the end of the transaction, without locking it. If
//! the row's owner packs it meanwhile, the pack is live when the row is gone. No collector can
//! choose its candidates between the two, as both hold the gate. Rows are added in the order of
//! their fingerprints, so that commits do not deadlock.
//!
//! **A corrupt row** has other bytes under a chunk's name, by a flipped bit or on purpose. A client
//! that adds the chunk has the right bytes, and corrects the row in the same statement.

use std::collections::{BTreeMap, HashSet};

use outrigger_format::{CodecChoice, Fingerprint};

use super::columns::InlineColumns;
use super::connection::{Answer, Connection, Query, Row};
use super::sealing::{Private, Subject};
use super::sessions;
use super::transaction::Tx;
use crate::error::{ErrorKind, Result};
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::inline::{InlineChange, InlineChunk, InlineOwner, InlineRow};
use crate::meta::{Change, SessionId};

/// Rows that are read for one answer, at most.
const ROWS_MAX: i64 = 16 << 10;

/// Finds impossible rows, for `check`.
pub(super) fn rule() -> Query {
    let sql = "SELECT 'inline chunk ' || number || ' is none' FROM @inline_chunk \
               WHERE octet_length(fingerprint) <> 32 + $1 OR octet_length(bytes) = $1";
    Query::new(sql).excess()
}

/// Every row, for [`read`].
pub(super) const EVERY: &str = "SELECT number, fingerprint, codec, bytes FROM @inline_chunk";

fn names<'a>(fingerprints: impl Iterator<Item = &'a Fingerprint>) -> Vec<Private<Vec<u8>>> {
    fingerprints.map(|fingerprint| Private::new(Subject::Fingerprint, fingerprint.0.to_vec())).collect()
}

/// Applies the changes of a commit; the session is known to be live.
pub(super) fn apply(tx: &mut Tx<'_>, session: SessionId, changes: &[Change]) -> Outcome<()> {
    let (mut packed, mut added) = (HashSet::new(), BTreeMap::new());
    for change in changes {
        match change {
            Change::InlineChunks(InlineChange::Packed { fingerprint }) => drop(packed.insert(*fingerprint)),
            Change::InlineChunks(InlineChange::Add { chunk, owner }) => {
                added.entry(chunk.fingerprint.0).or_insert((chunk, *owner));
            }
            _ => {}
        }
    }
    if !packed.is_empty() {
        let sql = "DELETE FROM @inline_chunk WHERE fingerprint = ANY ($2) AND session = $1";
        let query = Query::new(sql).int(session.0 as i64).each_bytes(names(packed.iter()));
        let gone = tx.one(query)?.affected;
        if gone != packed.len() as u64 {
            let why = format!(
                "{} of {} chunks are not ones that session {} is to pack",
                packed.len() as u64 - gone,
                packed.len(),
                session.0
            );
            return Err(refuse(ErrorKind::Changed, why));
        }
    }
    if added.is_empty() {
        return Ok(());
    }
    // The map is in the order of the fingerprints, and rows are locked in that order.
    let mut columns = InlineColumns::default();
    added.into_values().for_each(|(chunk, owner)| columns.push(chunk, owner));
    // Corrupt rows are found by look-ups in the index, and then by their places. A join of the
    // table with the chunks may be planned as a scan of all rows.
    let sql = "WITH added (fingerprint, session, codec, bytes) AS \
               (SELECT * FROM unnest($1::bytea[], $2::int8[], $3::text[], $4::bytea[])), \
               mended AS (UPDATE @inline_chunk l SET (codec, bytes) = \
               (SELECT a.codec, a.bytes FROM added a WHERE a.fingerprint = l.fingerprint) WHERE l.ctid = ANY (ARRAY( \
               SELECT lies.place FROM added a CROSS JOIN LATERAL (SELECT o.ctid AS place FROM @inline_chunk o \
               WHERE o.fingerprint = a.fingerprint AND o.bytes <> a.bytes OFFSET 0) lies))) \
               INSERT INTO @inline_chunk (fingerprint, session, codec, bytes) SELECT * FROM added ON CONFLICT DO NOTHING";
    tx.later(columns.with_all(Query::new(sql)));
    Ok(())
}

/// Reads the bytes of one chunk.
pub(super) fn chunk(fingerprint: &Fingerprint) -> Query {
    let sql = "SELECT bytes FROM @inline_chunk WHERE fingerprint = $1";
    Query::new(sql).bytes(Subject::Fingerprint, fingerprint.0.to_vec())
}

/// Reads the answer of [`chunk`].
pub(super) fn read_chunk(answer: &Answer, fingerprint: &Fingerprint) -> Outcome<Option<Vec<u8>>> {
    answer.first().map(|row| row.bytes(0, &Subject::inline(&fingerprint.0))).transpose()
}

/// Finds those of `fingerprints` that are inline.
pub(super) fn among(fingerprints: &[Fingerprint]) -> Query {
    let sql = "SELECT fingerprint FROM @inline_chunk WHERE fingerprint = ANY ($1)";
    Query::new(sql).each_bytes(names(fingerprints.iter()))
}

fn fingerprint(row: &Row, column: usize) -> Outcome<Fingerprint> {
    let bytes = row.bytes(column, &Subject::Fingerprint)?;
    let name = bytes[..].try_into().map_err(|_| refuse(ErrorKind::Damaged, "the name of a inline chunk"))?;
    Ok(Fingerprint(name))
}

/// Reads the answer of [`among`].
pub(super) fn read_among(answer: &Answer) -> Outcome<HashSet<Fingerprint>> {
    answer.rows.iter().map(|row| fingerprint(row, 0)).collect()
}

/// Reads the oldest rows of `session` above number `after`.
pub(super) fn of(session: SessionId, after: u64, bytes: u64) -> Query {
    let sql = "SELECT number, fingerprint, codec, bytes FROM (SELECT number, fingerprint, codec, bytes, \
               sum(octet_length(bytes) - $5) OVER (ORDER BY number) - (octet_length(bytes) - $5) AS before FROM \
               (SELECT * FROM @inline_chunk WHERE session = $1 AND number > $2 ORDER BY number LIMIT $4) o) n \
               WHERE before <= $3 ORDER BY number";
    Query::new(sql).int(session.0 as i64).int(after as i64).int(bytes as i64).int(ROWS_MAX).excess()
}

pub(super) fn read(row: &Row) -> Outcome<InlineRow> {
    let codec: &str = row.public(2)?;
    let codec = CodecChoice::parse(codec).map_err(|error| refuse(ErrorKind::Damaged, error.to_string()))?;
    let fingerprint = fingerprint(row, 1)?;
    let chunk = InlineChunk { fingerprint, codec, bytes: row.bytes(3, &Subject::inline(&fingerprint.0))? };
    Ok(InlineRow { number: row.try_get::<_, i64>(0)? as u64, chunk })
}

/// Reads the answer of [`of`].
pub(super) fn read_of(answer: &Answer) -> Outcome<Vec<InlineRow>> {
    answer.rows.iter().map(read).collect()
}

/// Lists the sessions with rows, for [`read_owner`].
pub(super) fn owners() -> Query {
    let sql = "SELECT session, count(*), sum(octet_length(bytes) - $1)::bigint FROM @inline_chunk \
               GROUP BY session ORDER BY session";
    Query::new(sql).excess()
}

/// A row of [`owners`].
pub(super) fn read_owner(row: &Row) -> Outcome<InlineOwner> {
    let number = |column: usize| row.try_get::<_, i64>(column).map(|value| value as u64);
    Ok(InlineOwner { session: SessionId(number(0)?), chunks: number(1)?, bytes: number(2)? })
}

/// Every row.
pub(super) fn visit(
    connection: &mut Connection,
    each: &mut dyn FnMut(InlineChunk) -> Result<()>,
) -> Outcome<()> {
    connection.stream(&Query::new(EVERY), |row| Ok::<(), Fault>(each(read(row)?.chunk)?))
}

/// Gives rows of ended sessions to this one.
pub(super) fn adopt(tx: &mut Tx<'_>, session: SessionId) -> Outcome<u64> {
    sessions::require_live(tx, session)?;
    // Fencing a session waits for its transactions. So once its row is gone, its last packing was
    // committed, or never will be.
    let sql = "UPDATE @inline_chunk SET session = $1 WHERE session NOT IN (SELECT id FROM @session)";
    Ok(tx.one(Query::new(sql).int(session.0 as i64))?.affected)
}
