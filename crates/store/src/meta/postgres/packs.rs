//! Pack rows. A state changes only by a statement that names the state before, and the rows it
//! changed are counted.

use super::PostgresMeta;
use super::transaction::Gate;
use crate::error::Result;
use crate::meta::Packs;
use outrigger_format::{PackId, PackKind};
use tokio_postgres::types::Type;

use super::connection::{Answer, Query, Row};
use super::transaction::Tx;
use super::{counters, sessions};
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, pack_id, refuse, unsigned};
use crate::meta::{PackChanges, PackMark, PackRow, PackState, PackSum, SessionId, SessionKind};

macro_rules! columns {
    () => {
        "SELECT id, kind, state, session, bytes, raw_bytes, chunks, dead_since, generation FROM @pack"
    };
}

/// A mark, beside the row `s` of `state`: the oldest transaction that this statement may not see
/// yet, and what that number belongs to. Every change that the statement does not see is of a
/// transaction with this number or a later one, in whatever order they end.
macro_rules! mark {
    () => {
        "pg_snapshot_xmin(pg_current_snapshot())::text::bigint, \
         (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, s.tableoid::bigint"
    };
}

/// A mark alone.
pub(super) const MARK: &str = concat!("SELECT ", mark!(), " FROM @state s");
/// The generation, a mark, and the rows that have changed since the mark `$1`: one statement, so
/// one state. Where there are none, there is one row without a pack.
pub(super) const CHANGED: &str = concat!(
    "SELECT p.id, p.kind, p.state, p.session, p.bytes, p.raw_bytes, p.chunks, p.dead_since, p.generation, s.generation, ",
    mark!(),
    " FROM @state s LEFT JOIN @pack p ON p.changed >= $1"
);

/// A mark, from a column on.
pub(super) fn read_mark(row: &Row, column: usize) -> Outcome<PackMark> {
    let number = |at: usize| row.try_get::<_, i64>(column + at);
    Ok(PackMark { at: number(0)?, of: (number(1)?, number(2)?) })
}

/// Reads the answer of [`CHANGED`]; `None` when `since` is of another server, of one that was
/// restarted, or of another table.
pub(super) fn read_changes(answer: &Answer, since: PackMark) -> Outcome<Option<PackChanges>> {
    let first = counters::row(answer)?;
    let mark = read_mark(first, 10)?;
    if mark.of != since.of || mark.at < since.at {
        return Ok(None);
    }
    let mut rows = Vec::new();
    for row in &answer.rows {
        if row.try_get::<_, Option<i64>>(0)?.is_some() {
            rows.push(read(row)?);
        }
    }
    Ok(Some(PackChanges { generation: first.try_get::<_, i64>(9)? as u64, rows, mark }))
}

/// Every row, for [`read`].
pub(super) const EVERY: &str = concat!(columns!(), " ORDER BY id");
/// Some of those after the first parameter.
pub(super) const AFTER: &str = concat!(columns!(), " WHERE id > $1 ORDER BY id LIMIT $2");
/// Sums by state, for [`read_sum`].
pub(super) const SUMS: &str =
    "SELECT state, count(*), sum(bytes)::bigint FROM @pack GROUP BY state ORDER BY state";
/// Live packs and deletion candidates.
pub(super) const COMMITTED: &str = concat!(columns!(), " WHERE state IN (2, 3) ORDER BY id");
const SOME: &str = concat!(columns!(), " WHERE id = ANY ($1) ORDER BY id");

/// Ids as a parameter.
pub(super) fn ids(packs: &[PackId]) -> Vec<i64> {
    packs.iter().map(|pack| pack.0 as i64).collect()
}

/// A row of [`SUMS`].
pub(super) fn read_sum(row: &Row) -> Outcome<PackSum> {
    let number = |column: usize| unsigned(row.try_get(column)?, "a sum of packs");
    Ok(PackSum {
        state: PackState::from_row(row.try_get::<_, i32>(0)?.into())?,
        packs: number(1)?,
        bytes: number(2)?,
    })
}

/// A row.
pub(super) fn read(row: &Row) -> Outcome<PackRow> {
    let damaged = |what: String| refuse(ErrorKind::Damaged, what);
    let number = |column: usize| unsigned(row.try_get(column)?, "a number of a pack's row");
    let (kind, state): (i32, i32) = (row.try_get(1)?, row.try_get(2)?);
    let kind = u8::try_from(kind).map_err(|_| damaged(format!("pack kind {kind}")))?;
    let bytes = number(4)?;
    Ok(PackRow {
        id: pack_id(row.try_get(0)?)?,
        kind: PackKind::from_byte(kind).map_err(|error| damaged(error.to_string()))?,
        state: PackState::from_row(state.into())?,
        session: SessionId(number(3)?),
        bytes,
        raw_bytes: number(5)?,
        chunks: u32::try_from(number(6)?).map_err(|_| damaged("a pack's count of chunks".to_owned()))?,
        dead_since: number(7)?,
        mark: if bytes == 0 { row.try_get::<_, i64>(8)? as u64 } else { 0 },
    })
}

fn insert(packs: &[PackRow]) -> Query {
    let column = |of: fn(&PackRow) -> u64| packs.iter().map(|pack| of(pack) as i64).collect::<Vec<_>>();
    let small = |of: fn(&PackRow) -> i32| packs.iter().map(of).collect::<Vec<_>>();
    Query::new(
        "INSERT INTO @pack (id, session, bytes, raw_bytes, chunks, dead_since, kind, state, generation) \
         SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int4[], $8::int4[], $9::int8[]) \
         ON CONFLICT DO NOTHING",
    )
    .ints(column(|pack| pack.id.0))
    .ints(column(|pack| pack.session.0))
    .ints(column(|pack| pack.bytes))
    .ints(column(|pack| pack.raw_bytes))
    .ints(column(|pack| pack.chunks.into()))
    .ints(column(|pack| pack.dead_since))
    .with(small(|pack| pack.kind as i32), Type::INT4_ARRAY)
    .with(small(|pack| pack.state as i32), Type::INT4_ARRAY)
    .ints(column(|pack| pack.mark))
}

/// Hands out ids and records the session that will write them.
pub(super) fn announce(
    tx: &mut Tx<'_>,
    session: SessionId,
    kind: PackKind,
    (count, mark): (u32, u64),
) -> Outcome<Vec<PackId>> {
    if sessions::require_live(tx, session)? == SessionKind::Reader {
        return Err(refuse(ErrorKind::Invalid, format!("session {} only reads", session.0)));
    }
    let first = counters::advance(tx, "next_pack", count.into())?;
    if first + u64::from(count) > PackId::MAX.0 + 1 {
        return Err(refuse(ErrorKind::Full, "all pack ids are used up"));
    }
    let ids: Vec<PackId> = (first..first + u64::from(count)).map(PackId).collect();
    let row = |id: &PackId| PackRow {
        id: *id,
        kind,
        state: PackState::Writing,
        session,
        bytes: 0,
        raw_bytes: 0,
        chunks: 0,
        dead_since: 0,
        mark,
    };
    tx.later(insert(&ids.iter().map(row).collect::<Vec<_>>()));
    Ok(ids)
}

/// Takes intents back.
pub(super) fn withdraw(tx: &mut Tx<'_>, session: SessionId, packs: &[PackId]) -> Outcome<()> {
    sessions::require_live(tx, session)?;
    let sql = "DELETE FROM @pack WHERE id = ANY ($2) AND session = $1 AND state = 0";
    tx.later(Query::new(sql).int(session.0 as i64).ints(ids(packs)));
    Ok(())
}

/// Refuses unless every pack's row changed.
fn expect_all(tx: &mut Tx<'_>, changed: &[Row], packs: &[PackId], wanted: &str) -> Outcome<()> {
    let changed: Vec<i64> = changed.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let Some(pack) = packs.iter().find(|pack| !changed.contains(&(pack.0 as i64))) else { return Ok(()) };
    let answer = tx.one(Query::new(SOME).ints(ids(&[*pack])))?;
    let is = match answer.first().map(read).transpose()? {
        Some(row) => format!("pack {pack} is {:?}, of session {}", row.state, row.session.0),
        None => format!("pack {pack} is unknown"),
    };
    Err(refuse(ErrorKind::Invalid, format!("{is}; it should be {wanted}")))
}

/// Writing → sealed.
pub(super) fn sealed(tx: &mut Tx<'_>, session: SessionId, packs: &[PackRow]) -> Outcome<()> {
    sessions::require_live(tx, session)?;
    let column = |of: fn(&PackRow) -> u64| packs.iter().map(|pack| of(pack) as i64).collect::<Vec<_>>();
    let query = Query::new(
        "UPDATE @pack p SET state = 1, bytes = n.bytes, raw_bytes = n.raw_bytes, chunks = n.chunks \
         FROM unnest($2::int8[], $3::int8[], $4::int8[], $5::int8[]) AS n (id, bytes, raw_bytes, chunks) \
         WHERE p.id = n.id AND p.session = $1 AND p.state = 0 RETURNING p.id",
    )
    .int(session.0 as i64)
    .ints(column(|pack| pack.id.0))
    .ints(column(|pack| pack.bytes))
    .ints(column(|pack| pack.raw_bytes))
    .ints(column(|pack| pack.chunks.into()));
    let answer = tx.one(query)?;
    let ids: Vec<PackId> = packs.iter().map(|pack| pack.id).collect();
    expect_all(tx, &answer.rows, &ids, "announced by this session and not sealed")
}

/// Sealed → live.
pub(super) fn make_live(tx: &mut Tx<'_>, session: SessionId, packs: &[PackId]) -> Outcome<()> {
    if packs.is_empty() {
        return Ok(());
    }
    let sql = "UPDATE @pack SET state = 2 WHERE id = ANY ($2) AND session = $1 AND state = 1 RETURNING id";
    let answer = tx.one(Query::new(sql).int(session.0 as i64).ints(ids(packs)))?;
    expect_all(tx, &answer.rows, packs, "sealed by this session and not committed")
}

/// Uncommitted packs of sessions that are over → dead.
pub(super) fn sweep(tx: &mut Tx<'_>, time: u64) -> Outcome<u64> {
    let sql = "UPDATE @pack SET state = 4, dead_since = $1 \
               WHERE state < 2 AND session NOT IN (SELECT id FROM @session)";
    Ok(tx.one(Query::new(sql).int(time as i64))?.affected)
}

/// Drops rows of dead packs. A session that is not over may still make an object under its id, so
/// those rows stay.
pub(super) fn forget(tx: &mut Tx<'_>, packs: &[PackId]) {
    let sql =
        "DELETE FROM @pack WHERE id = ANY ($1) AND state = 4 AND session NOT IN (SELECT id FROM @session)";
    tx.later(Query::new(sql).ints(ids(packs)));
}

/// Records packs that were found as objects, for a database that is being rebuilt.
pub(super) fn adopt(tx: &mut Tx<'_>, packs: &[PackRow]) -> Outcome<()> {
    if let Some(pack) = packs.iter().find(|pack| pack.id.0 == 0 || pack.id > PackId::MAX) {
        return Err(refuse(ErrorKind::Invalid, format!("{} cannot be a pack id", pack.id.0)));
    }
    let Some(newest) = packs.iter().map(|pack| pack.id.0).max() else { return Ok(()) };
    let live = |pack: &PackRow| PackRow { state: PackState::Live, dead_since: 0, mark: 0, ..pack.clone() };
    let live: Vec<PackRow> = packs.iter().map(live).collect();
    tx.later(insert(&live));
    counters::raise(tx, &[("next_pack", newest + 1)])
}

impl Packs for PostgresMeta {
    fn announce_packs(
        &self,
        session: SessionId,
        kind: PackKind,
        count: u32,
        mark: u64,
    ) -> Result<Vec<PackId>> {
        self.write("announcing packs", Gate::Shared, |tx| announce(tx, session, kind, (count, mark)))
    }

    fn withdraw_packs(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("withdrawing packs", Gate::Shared, |tx| withdraw(tx, session, packs))
    }

    fn packs_sealed(&self, session: SessionId, packs: &[PackRow]) -> Result<()> {
        self.write("recording sealed packs", Gate::Shared, |tx| sealed(tx, session, packs))
    }

    fn packs(&self) -> Result<Vec<PackRow>> {
        self.list("listing packs", EVERY, read)
    }

    fn packs_after(&self, after: PackId, limit: usize) -> Result<Vec<PackRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query = Query::new(AFTER).int(after.0 as i64).int(limit);
        self.read("listing packs", &query, |answer| answer.rows.iter().map(read).collect())
    }

    fn pack_sums(&self) -> Result<Vec<PackSum>> {
        self.transactions.read("summing up packs", |connection| {
            connection.query(&Query::new(SUMS))?.rows.iter().map(read_sum).collect()
        })
    }

    fn pack_mark(&self) -> Result<Option<PackMark>> {
        let read = |answer: &Answer| read_mark(counters::row(answer)?, 0);
        self.read("asking from where on to follow packs", &Query::new(MARK), read).map(Some)
    }

    fn changed_packs(&self, mark: PackMark) -> Result<Option<PackChanges>> {
        let query = Query::new(CHANGED).int(mark.at);
        self.read("following packs", &query, |answer| read_changes(answer, mark))
    }

    fn sweep_packs(&self, time: u64) -> Result<u64> {
        self.write("sweeping packs", Gate::Alone, |tx| sweep(tx, time))
    }

    fn forget_packs(&self, packs: &[PackId]) -> Result<()> {
        self.write("forgetting packs", Gate::Alone, |tx| {
            forget(tx, packs);
            Ok(())
        })
    }

    fn adopt_packs(&self, packs: &[PackRow]) -> Result<()> {
        self.write("adopting packs", Gate::Shared, |tx| adopt(tx, packs))
    }
}
