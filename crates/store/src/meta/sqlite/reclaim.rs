//! The collector's transactions; the rules are those of docs/decisions/0003-reclaim-protocol.md.

use super::SqliteMeta;
use crate::meta::{Holds, Reclaim};
use outrigger_format::{PackId, Root};
use rusqlite::{Connection, OptionalExtension as _};

use super::sessions::lives;
use super::state::advance;
use super::sums::{self, held_intact, inode_intact, inode_old_intact, version_intact};
use super::{Moment, packs, row, sessions};
use crate::error::{ErrorKind, Result};
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{PackRow, SessionId, SessionKind};

fn holder(connection: &Connection) -> rusqlite::Result<Option<SessionId>> {
    let holder: Option<i64> =
        connection.prepare_cached("SELECT collector FROM state")?.query_row([], |row| row.get(0))?;
    Ok(holder.map(|id| SessionId(id as u64)))
}

/// Rule 14. The session's id is the token: ids only grow, and a run is a session.
pub(super) fn take(connection: &Connection, now: Moment, session: SessionId) -> Outcome<()> {
    if sessions::require_live(connection, now, session)? != SessionKind::Collector {
        return Err(refuse(
            ErrorKind::Invalid,
            format!("session {} was not opened as a collector", session.0),
        ));
    }
    if let Some(other) = holder(connection)?.filter(|holder| *holder != session) {
        let lives = connection
            .prepare_cached(concat!("SELECT 1 FROM session WHERE id = ?1 AND ", lives!("?2")))?
            .exists((other.0 as i64, now.steady as i64))?;
        if lives {
            let what = format!(
                "session {}, a `gc` or `copy`, is collecting; try again when it has finished",
                other.0
            );
            return Err(refuse(ErrorKind::Busy, what));
        }
        sessions::end(connection, other)?;
    }
    connection.prepare_cached("UPDATE state SET collector = ?1")?.execute([session.0 as i64])?;
    reprieve_all(connection)
}

/// Unmarks the candidates of an interrupted run.
fn reprieve_all(connection: &Connection) -> Outcome<()> {
    connection.prepare_cached("UPDATE pack SET state = 2 WHERE state = 3")?.execute([])?;
    Ok(())
}

/// Checks that the session is live and still the collector.
fn require_collector(connection: &Connection, now: Moment, session: SessionId) -> Outcome<()> {
    sessions::require_live(connection, now, session)?;
    if holder(connection)? == Some(session) {
        return Ok(());
    }
    Err(refuse(ErrorKind::Fenced, format!("session {} is not the collector, or no longer", session.0)))
}

/// Ends a run.
pub(super) fn release(connection: &Connection, now: Moment, session: SessionId) -> Outcome<()> {
    require_collector(connection, now, session)?;
    connection.prepare_cached("UPDATE state SET collector = NULL")?.execute([])?;
    reprieve_all(connection)
}

/// Live → candidate (`Candidate`), under a new generation.
pub(super) fn mark_candidates(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    packs: &[PackId],
) -> Outcome<u64> {
    require_collector(connection, now, session)?;
    let generation = advance(connection, "generation", 1)? + 1;
    let mut update = connection
        .prepare_cached("UPDATE pack SET state = 3, generation = ?2 WHERE id = ?1 AND state = 2")?;
    for pack in packs {
        update.execute((pack.0 as i64, generation as i64))?;
    }
    Ok(generation)
}

/// Candidate (`Candidate`) → live.
pub(super) fn unmark(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    packs: &[PackId],
) -> Outcome<()> {
    require_collector(connection, now, session)?;
    let mut update = connection.prepare_cached("UPDATE pack SET state = 2 WHERE id = ?1 AND state = 3")?;
    for pack in packs {
        update.execute([pack.0 as i64])?;
    }
    Ok(())
}

/// Rule 18.
pub(super) fn all_acknowledged(connection: &Connection, generation: u64) -> Outcome<bool> {
    Ok(sessions::slowest(connection)? >= generation as i64)
}

/// Rule 21: copies live, victims dead.
pub(super) fn delete_packs(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    (copies, victims): (&[PackId], &[PackId]),
    time: u64,
) -> Outcome<()> {
    require_collector(connection, now, session)?;
    packs::make_live(connection, session, copies)?;
    let slowest = sessions::slowest(connection)?;
    let mut generation_of =
        connection.prepare_cached("SELECT generation FROM pack WHERE id = ?1 AND state = 3")?;
    let mut update = connection
        .prepare_cached("UPDATE pack SET state = 4, dead_since = ?2 WHERE id = ?1 AND state = 3")?;
    for &pack in victims {
        // The collector has waited for this (rule 18); where data would be lost it costs nothing to
        // make sure.
        let generation: Option<i64> =
            generation_of.query_row([pack.0 as i64], |row| row.get(0)).optional()?;
        if generation.is_some_and(|generation| generation > slowest) {
            let what = format!("a session has not acknowledged that it is a candidate: pack {pack}");
            return Err(refuse(ErrorKind::Busy, what));
        }
        update.execute((pack.0 as i64, time as i64))?;
    }
    Ok(())
}

/// Adds roots to those that `holder` holds.
pub(super) fn hold(connection: &Connection, holder: &str, roots: &[Root]) -> Outcome<()> {
    if holder.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "who holds roots needs a name"));
    }
    let mut insert = connection
        .prepare_cached("INSERT INTO held (holder, root) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?;
    for root in roots.iter().filter_map(row::root_column) {
        insert.execute((holder, root))?;
    }
    Ok(())
}

/// Removes roots from those that `holder` holds.
pub(super) fn let_go(connection: &Connection, holder: &str, roots: Option<&[Root]>) -> Outcome<()> {
    let Some(roots) = roots else {
        connection.prepare_cached("DELETE FROM held WHERE holder = ?1")?.execute([holder])?;
        return Ok(());
    };
    let mut delete = connection.prepare_cached("DELETE FROM held WHERE holder = ?1 AND root = ?2")?;
    for root in roots.iter().filter_map(row::root_column) {
        delete.execute((holder, root))?;
    }
    Ok(())
}

/// Who holds anything.
pub(super) fn holders(connection: &Connection) -> Outcome<Vec<String>> {
    let mut statement = connection.prepare_cached("SELECT DISTINCT holder FROM held ORDER BY holder")?;
    let holders = statement.query_map([], |row| row.get(0))?;
    Ok(holders.collect::<rusqlite::Result<_>>()?)
}

/// What `holder` holds.
pub(super) fn held(connection: &Connection, holder: &str) -> Outcome<Vec<Root>> {
    let sql = concat!("SELECT root, ", held_intact!(), " FROM held WHERE holder = ?1 ORDER BY root");
    let mut statement = connection.prepare_cached(sql)?;
    let roots = statement.query_map([holder], |row| {
        sums::require(row, 1)?;
        row::root(row.get_ref(0)?, 0)
    })?;
    Ok(roots.collect::<rusqlite::Result<_>>()?)
}

/// Every retained root, and the committed packs of the same state of the database (rules 16 and
/// 19).
pub(super) fn visit_roots(
    connection: &Connection,
    visit: &mut dyn FnMut(Root) -> Result<()>,
) -> Outcome<Vec<PackRow>> {
    for source in [
        // Rows without a root are looked at too: they may have lost it.
        concat!("SELECT root, ", inode_intact!(), " FROM inode i"),
        concat!("SELECT root, ", version_intact!(), " FROM version"),
        "SELECT root, 1 FROM pin_root",
        concat!("SELECT root, ", held_intact!(), " FROM held"),
        concat!(
            "SELECT root, ",
            inode_old_intact!(),
            " FROM inode_old i WHERE \
             EXISTS (SELECT 1 FROM snapshot WHERE epoch >= epoch_from AND epoch < epoch_to) OR \
             EXISTS (SELECT 1 FROM pin WHERE epoch >= epoch_from AND epoch < epoch_to)"
        ),
    ] {
        let mut statement = connection.prepare_cached(source)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // A root that has changed is refused: the contents of the right one would be taken for
            // garbage.
            sums::require(row, 1)?;
            let root = row::root(row.get_ref(0)?, 0)?;
            if root != Root::Empty {
                visit(root)?;
            }
        }
    }
    packs::select(connection, packs::COMMITTED, [])
}

impl Holds for SqliteMeta {
    fn hold(&self, holder: &str, roots: &[Root]) -> Result<()> {
        self.write("holding roots", |db| hold(db, holder, roots))
    }

    fn release(&self, holder: &str, roots: Option<&[Root]>) -> Result<()> {
        self.write("releasing roots", |db| let_go(db, holder, roots))
    }

    fn holders(&self) -> Result<Vec<String>> {
        self.read_once("listing who holds roots", holders)
    }

    fn held(&self, holder: &str) -> Result<Vec<Root>> {
        self.read_once("listing held roots", |db| held(db, holder))
    }
}

impl Reclaim for SqliteMeta {
    fn take_collector(&self, session: SessionId) -> Result<()> {
        self.write("starting to collect", |db| take(db, self.moment(), session))
    }

    fn release_collector(&self, session: SessionId) -> Result<()> {
        self.write("ending a collector's run", |db| release(db, self.moment(), session))
    }

    fn visit_roots(&self, visit: &mut dyn FnMut(Root) -> Result<()>) -> Result<Vec<PackRow>> {
        self.read("listing what is retained", |db| visit_roots(db, visit))
    }

    fn mark_candidates(&self, session: SessionId, packs: &[PackId]) -> Result<u64> {
        self.write("marking packs", |db| mark_candidates(db, self.moment(), session, packs))
    }

    fn all_acknowledged(&self, generation: u64) -> Result<bool> {
        self.read_once("reading acknowledgements", |db| all_acknowledged(db, generation))
    }

    fn delete_packs(
        &self,
        session: SessionId,
        copies: &[PackId],
        victims: &[PackId],
        time: u64,
    ) -> Result<()> {
        self.write("deleting packs", |db| delete_packs(db, self.moment(), session, (copies, victims), time))
    }

    fn unmark(&self, session: SessionId, packs: &[PackId]) -> Result<()> {
        self.write("absolving packs", |db| unmark(db, self.moment(), session, packs))
    }
}
