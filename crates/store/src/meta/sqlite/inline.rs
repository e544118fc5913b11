//! Inline chunks in SQLite.

use std::collections::HashSet;

use outrigger_format::{CodecChoice, Fingerprint};
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{Moment, sessions};
use crate::error::{ErrorKind, Result};
use crate::meta::SessionId;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::inline::{InlineChange, InlineChunk, InlineOwner, InlineRow};

/// A row that cannot be one; for `check`.
pub(super) const RULE: &str = "SELECT 'inline chunk ' || number || ' is none' FROM inline_chunk \
     WHERE length(fingerprint) <> 32 OR length(bytes) = 0";

/// Applies a change in the transaction of its commit; the session is known to be live.
pub(super) fn apply(db: &Connection, session: SessionId, change: &InlineChange) -> Outcome<()> {
    match change {
        InlineChange::Add { chunk: InlineChunk { fingerprint, codec, bytes }, owner } => {
            let sql = "INSERT INTO inline_chunk (fingerprint, session, codec, bytes) VALUES (?1, ?2, ?3, ?4) \
                       ON CONFLICT (fingerprint) DO UPDATE SET codec = excluded.codec, bytes = excluded.bytes \
                       WHERE bytes <> excluded.bytes";
            db.prepare_cached(sql)?.execute((fingerprint.0, owner.0 as i64, codec.to_string(), bytes))?;
            Ok(())
        }
        InlineChange::Packed { fingerprint } => {
            let gone = db
                .prepare_cached("DELETE FROM inline_chunk WHERE fingerprint = ?1 AND session = ?2")?
                .execute((fingerprint.0, session.0 as i64))?;
            if gone == 1 {
                return Ok(());
            }
            let why = format!("chunk {fingerprint} is not one that session {} is to pack", session.0);
            Err(refuse(ErrorKind::Changed, why))
        }
    }
}

pub(super) fn chunk(db: &Connection, fingerprint: &Fingerprint) -> Outcome<Option<Vec<u8>>> {
    let mut statement = db.prepare_cached("SELECT bytes FROM inline_chunk WHERE fingerprint = ?1")?;
    Ok(statement.query_row([fingerprint.0], |row| row.get(0)).optional()?)
}

pub(super) fn among(db: &Connection, fingerprints: &[Fingerprint]) -> Outcome<HashSet<Fingerprint>> {
    let mut found = HashSet::new();
    let mut statement = db.prepare_cached("SELECT 1 FROM inline_chunk WHERE fingerprint = ?1")?;
    for fingerprint in fingerprints {
        if statement.exists([fingerprint.0])? {
            found.insert(*fingerprint);
        }
    }
    Ok(found)
}

/// A row with the columns number, fingerprint, codec, bytes.
fn read(row: &Row<'_>) -> Outcome<InlineRow> {
    let codec: String = row.get(2)?;
    let codec = CodecChoice::parse(&codec).map_err(|error| refuse(ErrorKind::Damaged, error.to_string()))?;
    let chunk = InlineChunk { fingerprint: Fingerprint(row.get(1)?), codec, bytes: row.get(3)? };
    Ok(InlineRow { number: row.get::<_, i64>(0)? as u64, chunk })
}

pub(super) fn of(db: &Connection, session: SessionId, after: u64, bytes: u64) -> Outcome<Vec<InlineRow>> {
    let mut found = Vec::new();
    let sql = "SELECT number, fingerprint, codec, bytes FROM inline_chunk WHERE session = ?1 AND number > ?2 ORDER BY number";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([session.0 as i64, after as i64])?;
    let mut sum = 0;
    while sum <= bytes
        && let Some(row) = rows.next()?
    {
        let row = read(row)?;
        sum += row.chunk.bytes.len() as u64;
        found.push(row);
    }
    Ok(found)
}

pub(super) fn owners(db: &Connection) -> Outcome<Vec<InlineOwner>> {
    let sql =
        "SELECT session, count(*), sum(length(bytes)) FROM inline_chunk GROUP BY session ORDER BY session";
    let mut statement = db.prepare_cached(sql)?;
    let owners = statement.query_map([], |row| {
        let number = |column: usize| row.get::<_, i64>(column).map(|value| value as u64);
        Ok(InlineOwner { session: SessionId(number(0)?), chunks: number(1)?, bytes: number(2)? })
    })?;
    Ok(owners.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn visit(db: &Connection, each: &mut dyn FnMut(InlineChunk) -> Result<()>) -> Outcome<()> {
    let mut statement = db.prepare_cached("SELECT number, fingerprint, codec, bytes FROM inline_chunk")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(read(row)?.chunk)?;
    }
    Ok(())
}

pub(super) fn adopt(db: &Connection, now: Moment, session: SessionId) -> Outcome<u64> {
    sessions::require_live(db, now, session)?;
    let sql = "UPDATE inline_chunk SET session = ?1 WHERE session NOT IN (SELECT id FROM session)";
    Ok(db.prepare_cached(sql)?.execute([session.0 as i64])? as u64)
}
