//! The collector's transactions, and held roots; the rules are those of
//! docs/decisions/0003-reclaim-protocol.md. All but `visit_roots` run alone, as that page demands.

use super::PostgresMeta;
use super::transaction::Gate;
use crate::meta::{Holds, Reclaim};
use outrigger_format::{PackId, Root};

use super::connection::{Answer, Connection, Query, Row};
use super::row::{self, ended_columns, held_sum, require, stored_columns};
use super::sealing::{Seals, Subject};
use super::sessions::{self, SLOWEST};
use super::transaction::Tx;
use super::{counters, packs, snapshots};
use crate::error::{ErrorKind, Result};
use crate::meta::change::row::root_column;
use crate::meta::fault::{Fault, Outcome, refuse};
use crate::meta::{PackRow, SessionId, SessionKind};

fn holder(tx: &mut Tx<'_>) -> Outcome<Option<SessionId>> {
    let answer = tx.one(Query::new("SELECT collector FROM @state"))?;
    let holder: Option<i64> = counters::row(&answer)?.try_get(0)?;
    Ok(holder.map(|id| SessionId(id as u64)))
}

/// Rule 14. The session's id is the token: ids only grow, and a run is a session.
pub(super) fn take(tx: &mut Tx<'_>, session: SessionId) -> Outcome<()> {
    if sessions::require_live(tx, session)? != SessionKind::Collector {
        return Err(refuse(
            ErrorKind::Invalid,
            format!("session {} was not opened as a collector", session.0),
        ));
    }
    if let Some(other) = holder(tx)?.filter(|holder| *holder != session) {
        let rows = tx.one(Query::new(sessions::ALL))?.rows;
        for row in &rows {
            let row = sessions::read(row)?;
            if row.id == other && !row.lease_is_over {
                let what = format!(
                    "session {}, a `gc` or `copy`, is collecting; try again when it has finished",
                    other.0
                );
                return Err(refuse(ErrorKind::Busy, what));
            }
        }
        sessions::end(tx, other);
    }
    tx.later(Query::new("UPDATE @state SET collector = $1").int(session.0 as i64));
    reprieve_all(tx);
    Ok(())
}

/// Unmarks the candidates of an interrupted run.
fn reprieve_all(tx: &mut Tx<'_>) {
    tx.later(Query::new("UPDATE @pack SET state = 2 WHERE state = 3"));
}

/// Checks that the session is live and still the collector.
fn require_collector(tx: &mut Tx<'_>, session: SessionId) -> Outcome<()> {
    sessions::require_live(tx, session)?;
    if holder(tx)? == Some(session) {
        return Ok(());
    }
    Err(refuse(ErrorKind::Fenced, format!("session {} is not the collector, or no longer", session.0)))
}

/// Ends a run.
pub(super) fn release(tx: &mut Tx<'_>, session: SessionId) -> Outcome<()> {
    require_collector(tx, session)?;
    tx.later(Query::new("UPDATE @state SET collector = NULL"));
    reprieve_all(tx);
    Ok(())
}

/// Live → candidate (`Candidate`), under a new generation.
pub(super) fn mark_candidates(tx: &mut Tx<'_>, session: SessionId, packs: &[PackId]) -> Outcome<u64> {
    require_collector(tx, session)?;
    let answer = tx.one(Query::new("UPDATE @state SET generation = generation + 1 RETURNING generation"))?;
    let generation: i64 = counters::row(&answer)?.try_get(0)?;
    let sql = "UPDATE @pack SET state = 3, generation = $2 WHERE id = ANY ($1) AND state = 2";
    tx.later(Query::new(sql).ints(packs::ids(packs)).int(generation));
    Ok(generation as u64)
}

/// Candidate (`Candidate`) → live.
pub(super) fn unmark(tx: &mut Tx<'_>, session: SessionId, packs: &[PackId]) -> Outcome<()> {
    require_collector(tx, session)?;
    let sql = "UPDATE @pack SET state = 2 WHERE id = ANY ($1) AND state = 3";
    tx.later(Query::new(sql).ints(packs::ids(packs)));
    Ok(())
}

/// Rule 21: copies live, victims dead.
pub(super) fn delete_packs(
    tx: &mut Tx<'_>,
    session: SessionId,
    (copies, victims): (&[PackId], &[PackId]),
    time: u64,
) -> Outcome<()> {
    require_collector(tx, session)?;
    packs::make_live(tx, session, copies)?;
    let victims = packs::ids(victims);
    let late = "SELECT min(id) FROM @pack WHERE id = ANY ($1) AND state = 3 AND generation > $2";
    let slowest = sessions::slowest(&tx.one(Query::new(SLOWEST))?)?;
    // The collector has waited for this (rule 18); where data would be lost it costs nothing to
    // make sure.
    let answer = tx.one(Query::new(late).ints(victims.clone()).int(slowest))?;
    if let Some(pack) = counters::row(&answer)?.try_get::<_, Option<i64>>(0)? {
        let what =
            format!("a session has not acknowledged that it is a candidate: pack {}", PackId(pack as u64));
        return Err(refuse(ErrorKind::Busy, what));
    }
    let sql = "UPDATE @pack SET state = 4, dead_since = $2 WHERE id = ANY ($1) AND state = 3";
    tx.later(Query::new(sql).ints(victims).int(time as i64));
    Ok(())
}

/// The statement that adds one root to those that `holder` holds.
pub(super) fn hold_one(seals: &Seals, holder: &str, root: Vec<u8>) -> Query {
    let sum = held_sum(seals, holder, &root);
    let sql = "INSERT INTO @held (holder, digest, sum, root) VALUES ($1, sha256($2), $3, $2) ON CONFLICT DO NOTHING";
    let query = Query::new(sql).public(holder).bytes(Subject::held(holder), root);
    query.with(sum, tokio_postgres::types::Type::INT4)
}

/// Adds roots to those that `holder` holds.
pub(super) fn hold(tx: &mut Tx<'_>, holder: &str, roots: &[Root]) -> Outcome<()> {
    if holder.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "who holds roots needs a name"));
    }
    for root in roots.iter().filter_map(root_column) {
        let hold = hold_one(tx.seals(), holder, root);
        tx.later(hold);
    }
    Ok(())
}

/// Removes roots from those that `holder` holds.
pub(super) fn let_go(tx: &mut Tx<'_>, holder: &str, roots: Option<&[Root]>) {
    match roots {
        None => tx.later(Query::new("DELETE FROM @held WHERE holder = $1").public(holder)),
        Some(roots) => {
            for root in roots.iter().filter_map(root_column) {
                let sql = "DELETE FROM @held WHERE holder = $1 AND digest = sha256($2)";
                tx.later(Query::new(sql).public(holder).bytes(Subject::held(holder), root));
            }
        }
    }
}

/// A row of `held`: holder, sum, root.
pub(super) fn read_held(row: &Row) -> Outcome<Root> {
    let holder: &str = row.public(0)?;
    let root = row.bytes(2, &Subject::held(holder))?;
    let what = || format!("a root that {holder} holds is not what was written");
    require(row.try_get(1)?, held_sum(row.seals(), holder, &root), what)?;
    row::root_of(Some(&root))
}

/// Every retained root, and the committed packs of the same state of the database (rules 16 and
/// 19).
pub(super) fn visit_roots(
    connection: &mut Connection,
    visit: &mut dyn FnMut(Root) -> Result<()>,
) -> Outcome<Vec<PackRow>> {
    let mut pass = |root: Root| -> Outcome<()> {
        if root != Root::Empty {
            visit(root)?;
        }
        Ok(())
    };
    // Rows without a root are looked at, too: they may have lost it.
    let query = Query::new(concat!("SELECT ", stored_columns!(), " FROM @inode i"));
    connection
        .stream(&query, |found| pass(row::root_of(row::read_stored(found, 0)?.content.root.as_deref())?))?;
    let query = Query::new("SELECT inode, number, time, mtime_secs, mtime_nanos, sum, root FROM @version");
    connection.stream(&query, |found| pass(row::read_version(found)?.root))?;
    connection.stream(&Query::new(snapshots::PINNED), |found| pass(snapshots::read_pinned(found)?))?;
    let query = Query::new("SELECT holder, sum, root FROM @held");
    connection.stream(&query, |found| pass(read_held(found)?))?;
    let query = Query::new(concat!(
        "SELECT ",
        ended_columns!(),
        " FROM @inode_old i WHERE EXISTS (SELECT 1 FROM @retained r WHERE r.epoch >= i.epoch_from AND r.epoch < i.epoch_to)"
    ));
    connection
        .stream(&query, |found| pass(row::root_of(row::read_either(found, 0)?.content.root.as_deref())?))?;
    let answer = connection.query(&Query::new(packs::COMMITTED))?;
    answer.rows.iter().map(packs::read).collect::<std::result::Result<_, Fault>>()
}

impl Holds for PostgresMeta {
    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()> {
        self.write("holding roots", Gate::Shared, |tx| hold(tx, holder, roots))
    }

    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()> {
        self.write("releasing roots", Gate::Shared, |tx| {
            let_go(tx, holder, roots);
            Ok(())
        })
    }

    fn holders(&self) -> Result<Vec<String>> {
        let sql = "SELECT DISTINCT holder FROM @held ORDER BY holder";
        self.list("listing who holds roots", sql, |row| Ok(row.public(0)?))
    }

    fn held(&self, holder: &str) -> Result<Vec<Root>> {
        let sql = "SELECT holder, sum, root FROM @held WHERE holder = $1 ORDER BY root";
        let query = Query::new(sql).public(holder);
        let read = |answer: &Answer| answer.rows.iter().map(read_held).collect();
        let mut roots: Vec<Root> = self.read("listing held roots", &query, read)?;
        // Where roots are sealed, the database has another order.
        roots.sort_by_cached_key(root_column);
        Ok(roots)
    }
}

impl Reclaim for PostgresMeta {
    fn take_collector(&self, session: SessionId) -> Result<()> {
        self.write("starting to collect", Gate::Alone, |tx| take(tx, session))
    }

    fn release_collector(&self, session: SessionId) -> Result<()> {
        self.write("ending a collector's run", Gate::Alone, |tx| release(tx, session))
    }

    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>> {
        let what = "listing what is retained";
        // Waits for all present commits before it chooses the state that it reads.
        self.transactions.barrier(what)?;
        self.transactions.read_through(what, |connection| visit_roots(connection, visit))
    }

    fn mark_candidates(&self, session: SessionId, packs: &[PackId]) -> Result<u64> {
        self.write("marking packs", Gate::Alone, |tx| mark_candidates(tx, session, packs))
    }

    fn all_acknowledged(&self, generation: u64) -> Result<bool> {
        let query = Query::new(sessions::SLOWEST);
        let slowest = self.read("reading acknowledgements", &query, sessions::slowest)?;
        Ok(slowest >= generation as i64)
    }

    fn delete_packs(
        &self,
        session: SessionId,
        copies: &[PackId],
        victims: &[PackId],
        time: u64,
    ) -> Result<()> {
        self.write("deleting packs", Gate::Alone, |tx| delete_packs(tx, session, (copies, victims), time))
    }

    fn unmark(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("absolving packs", Gate::Alone, |tx| unmark(tx, session, packs))
    }
}
