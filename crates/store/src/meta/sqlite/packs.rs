//! Pack rows. A state changes only by a statement that names the state before, and the rows it
//! changed are counted.

use super::SqliteMeta;
use crate::error::Result;
use crate::meta::Packs;
use outrigger_format::{PackId, PackKind};
use rusqlite::{Connection, Params, Row};

use super::state::advance;
use super::sums::{self, pack_intact};
use super::{Moment, sessions, state};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, next_number, pack_id, refuse, unsigned};
use crate::meta::{PackRow, PackState, PackSum, SessionId, SessionKind};

/// For [`select`]: every row.
pub(super) const EVERY: &str = "1 = 1 ORDER BY id";
/// Live packs and deletion candidates.
pub(super) const COMMITTED: &str = "state IN (2, 3) ORDER BY id";
/// Some of those after the first parameter.
pub(super) const AFTER: &str = "id > ?1 ORDER BY id LIMIT ?2";

fn read(row: &Row<'_>) -> Outcome<PackRow> {
    sums::require(row, 9)?;
    let (state, bytes): (i64, i64) = (row.get(2)?, row.get(4)?);
    let number = |column: usize| unsigned(row.get(column)?, "a number of a pack's row");
    let damaged = |what: String| refuse(ErrorKind::Damaged, what);
    Ok(PackRow {
        id: pack_id(row.get(0)?)?,
        kind: PackKind::from_byte(row.get(1)?).map_err(|error| damaged(error.to_string()))?,
        state: PackState::from_row(state)?,
        session: SessionId(number(3)?),
        bytes: number(4)?,
        raw_bytes: number(5)?,
        chunks: row.get(6)?,
        dead_since: number(7)?,
        mark: if bytes == 0 { row.get::<_, i64>(8)? as u64 } else { 0 },
    })
}

/// Rows for which a condition holds.
pub(super) fn select(connection: &Connection, condition: &str, params: impl Params) -> Outcome<Vec<PackRow>> {
    let sql = format!(
        "SELECT id, kind, state, session, bytes, raw_bytes, chunks, dead_since, generation, {} FROM pack WHERE {condition}",
        pack_intact!()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params)?;
    let mut packs = Vec::new();
    while let Some(row) = rows.next()? {
        packs.push(read(row)?);
    }
    Ok(packs)
}

/// Sums by state.
pub(super) fn sum_up(connection: &Connection) -> Outcome<Vec<PackSum>> {
    let sql = concat!(
        "SELECT state, count(*), sum(bytes), min(",
        pack_intact!(),
        ") FROM pack GROUP BY state ORDER BY state"
    );
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        sums::require(row, 3)?;
        let number = |column: usize| unsigned(row.get(column)?, "a sum of packs");
        found.push(PackSum {
            state: PackState::from_row(row.get(0)?)?,
            packs: number(1)?,
            bytes: number(2)?,
        });
    }
    Ok(found)
}

fn insert(connection: &Connection, pack: &PackRow) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "INSERT INTO pack VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?9, ?8) ON CONFLICT DO NOTHING",
        )?
        .execute((
            pack.id.0 as i64,
            pack.kind as i64,
            pack.state as i64,
            pack.session.0 as i64,
            pack.bytes as i64,
            pack.raw_bytes as i64,
            pack.chunks,
            pack.dead_since as i64,
            pack.mark as i64,
        ))
}

/// Hands out ids and records the session that will write them.
pub(super) fn announce(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    kind: PackKind,
    (count, mark): (u32, u64),
) -> Outcome<Vec<PackId>> {
    if sessions::require_live(connection, now, session)? == SessionKind::Reader {
        return Err(refuse(ErrorKind::Invalid, format!("session {} only reads", session.0)));
    }
    let first = advance(connection, "next_pack", count.into())?;
    if first + u64::from(count) > PackId::MAX.0 + 1 {
        return Err(refuse(ErrorKind::Full, "all pack ids are used up"));
    }
    let ids: Vec<PackId> = (first..first + u64::from(count)).map(PackId).collect();
    for &id in &ids {
        let state = PackState::Writing;
        insert(
            connection,
            &PackRow { id, kind, state, session, bytes: 0, raw_bytes: 0, chunks: 0, dead_since: 0, mark },
        )?;
    }
    Ok(ids)
}

/// Takes intents back.
pub(super) fn withdraw(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    packs: &[PackId],
) -> Outcome<()> {
    sessions::require_live(connection, now, session)?;
    let sql = "DELETE FROM pack WHERE id = ?1 AND session = ?2 AND state = 0";
    let mut delete = connection.prepare_cached(sql)?;
    for &pack in packs {
        delete.execute((pack.0 as i64, session.0 as i64))?;
    }
    Ok(())
}

/// Describes a pack, for messages.
fn describe(connection: &Connection, pack: PackId) -> Outcome<String> {
    let found = select(connection, "id = ?1", [pack.0 as i64])?;
    Ok(match found.first() {
        Some(row) => format!("pack {pack} is {:?}, of session {}", row.state, row.session.0),
        None => format!("pack {pack} is unknown"),
    })
}

/// Refuses unless exactly one row changed.
fn expect_one(connection: &Connection, rows: usize, pack: PackId, wanted: &str) -> Outcome<()> {
    if rows == 1 {
        return Ok(());
    }
    let is = describe(connection, pack)?;
    Err(refuse(ErrorKind::Invalid, format!("{is}; it should be {wanted}")))
}

/// Writing → sealed.
pub(super) fn sealed(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    packs: &[PackRow],
) -> Outcome<()> {
    sessions::require_live(connection, now, session)?;
    let mut update = connection.prepare_cached(
        "UPDATE pack SET state = 1, bytes = ?3, raw_bytes = ?4, chunks = ?5 WHERE id = ?1 AND session = ?2 AND state = 0",
    )?;
    for pack in packs {
        let values =
            (pack.id.0 as i64, session.0 as i64, pack.bytes as i64, pack.raw_bytes as i64, pack.chunks);
        expect_one(connection, update.execute(values)?, pack.id, "announced by this session and not sealed")?;
    }
    Ok(())
}

/// Sealed → live.
pub(super) fn make_live(connection: &Connection, session: SessionId, packs: &[PackId]) -> Outcome<()> {
    let mut update = connection
        .prepare_cached("UPDATE pack SET state = 2 WHERE id = ?1 AND session = ?2 AND state = 1")?;
    for &pack in packs {
        let rows = update.execute((pack.0 as i64, session.0 as i64))?;
        expect_one(connection, rows, pack, "sealed by this session and not committed")?;
    }
    Ok(())
}

/// Uncommitted packs of sessions that are over → dead.
pub(super) fn sweep(connection: &Connection, time: u64) -> Outcome<u64> {
    let sql = "UPDATE pack SET state = 4, dead_since = ?1 \
               WHERE state < 2 AND session NOT IN (SELECT id FROM session)";
    Ok(connection.prepare_cached(sql)?.execute([time as i64])? as u64)
}

/// Drops rows of dead packs. A session that is not over may still make an object under its id, so
/// those rows stay.
pub(super) fn forget(connection: &Connection, packs: &[PackId]) -> Outcome<()> {
    let sql = "DELETE FROM pack WHERE id = ?1 AND state = 4 AND session NOT IN (SELECT id FROM session)";
    let mut delete = connection.prepare_cached(sql)?;
    for &pack in packs {
        delete.execute([pack.0 as i64])?;
    }
    Ok(())
}

/// Records packs that were found as objects, for a database that is being rebuilt.
pub(super) fn adopt(connection: &Connection, packs: &[PackRow]) -> Outcome<()> {
    for pack in packs {
        if pack.id.0 == 0 || pack.id > PackId::MAX {
            return Err(refuse(ErrorKind::Invalid, format!("{} cannot be a pack id", pack.id.0)));
        }
        insert(connection, &PackRow { state: PackState::Live, dead_since: 0, mark: 0, ..pack.clone() })?;
        let next = next_number("next_pack", state::counter(connection, "next_pack")?)?;
        if next <= pack.id.0 {
            advance(connection, "next_pack", pack.id.0 + 1 - next)?;
        }
    }
    Ok(())
}

impl Packs for SqliteMeta {
    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>> {
        self.write("announcing packs", |db| announce(db, self.moment(), session, kind, (count, mark)))
    }

    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("withdrawing packs", |db| withdraw(db, self.moment(), session, packs))
    }

    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()> {
        self.write("recording sealed packs", |db| sealed(db, self.moment(), session, packs))
    }

    fn packs(&self) -> Result<Vec<PackRow>> {
        self.read_once("listing packs", |db| select(db, EVERY, []))
    }

    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>> {
        let page = (after.0 as i64, i64::try_from(limit).unwrap_or(i64::MAX));
        self.read_once("listing packs", |db| select(db, AFTER, page))
    }

    fn pack_sums(&self) -> Result<Vec<PackSum>> {
        self.read_once("summing up packs", sum_up)
    }

    fn sweep_packs(&self, time: u64) -> Result<u64> {
        self.write("sweeping packs", |db| sweep(db, time))
    }

    fn forget_packs(&self, packs: &[PackId]) -> Result<()> {
        self.write("forgetting packs", |db| forget(db, packs))
    }

    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()> {
        self.write("adopting packs", |db| adopt(db, packs))
    }
}
