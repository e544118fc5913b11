//! Sessions: which may write, until when, and which generation each has acknowledged.
//!
//! A session may write while its row exists. Closing and fencing delete the row, with its pins. The
//! end of a lease does not end the session: it allows others to. Numbers come from a counter and
//! are never used twice.
//!
//! Leases are counted by the machine's steady clock, which cannot be set. It begins anew when the
//! machine starts: if a lease ends more than an hour later than one that begins now, it was given
//! before that, and is over. The hour is there because a transaction takes its time before it waits
//! for others, which may renew leases meanwhile. A dead session's lock file shows its end sooner.

use super::{SqliteMeta, state};
use crate::error::Result;
use crate::meta::Sessions;
use outrigger_format::PackId;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::state::{advance, counter};
use crate::error::ErrorKind;
use crate::meta::fault::{Fault, Outcome, pack_id, refuse};
use crate::meta::{Generation, Role, SessionId, SessionKind, SessionOwner, SessionRow};

const NANOS: u64 = 1_000_000_000;

/// The time of a transaction, nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// Since 1970, as it is noted of jobs.
    pub wall: u64,
    /// Time since the machine started, as in `lease_until`: all processes that use the database run
    /// on this machine. Neither setting the wall clock nor a sleep of the machine ends a lease.
    pub steady: u64,
}

/// SQL that is true for a session that only a client that finds its lock file free may end now.
macro_rules! lives {
    ($steady:literal) => {
        concat!("lease_until > ", $steady, " AND lease_until - (lease_secs + 3600) * 1000000000 <= ", $steady)
    };
}
pub(super) use lives;

fn lease_end(now: Moment, lease_secs: u32) -> i64 {
    i64::try_from(now.steady.saturating_add(u64::from(lease_secs) * NANOS)).unwrap_or(i64::MAX)
}

fn kind_of(byte: i64) -> Outcome<SessionKind> {
    Ok(match byte {
        0 => SessionKind::Writer,
        1 => SessionKind::Reader,
        2 => SessionKind::Collector,
        _ => return Err(refuse(ErrorKind::Damaged, format!("session kind {byte}"))),
    })
}

fn fenced(session: SessionId) -> Fault {
    refuse(
        ErrorKind::Fenced,
        format!("session {} is over: it was closed, or another client ended it", session.0),
    )
}

/// Checks that a session's row is there and renews its lease: every transaction of a session begins
/// with this.
pub(super) fn require_live(connection: &Connection, now: Moment, session: SessionId) -> Outcome<SessionKind> {
    let row = connection
        .prepare_cached("SELECT kind, lease_until, lease_secs FROM session WHERE id = ?1")?
        .query_row([session.0 as i64], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, u32>(2)?)))
        .optional()?;
    let (kind, until, lease_secs) = row.ok_or_else(|| fenced(session))?;
    extend(connection, session, until, lease_end(now, lease_secs))?;
    kind_of(kind)
}

/// Never shortens a lease.
fn extend(connection: &Connection, session: SessionId, until: i64, end: i64) -> rusqlite::Result<()> {
    if end > until {
        connection
            .prepare_cached("UPDATE session SET lease_until = ?2 WHERE id = ?1")?
            .execute((session.0 as i64, end))?;
    }
    Ok(())
}

/// What a writer may rely on; a reader relies on nothing.
fn generation(connection: &Connection, kind: SessionKind) -> Outcome<Generation> {
    let number = counter(connection, "generation")? as u64;
    if kind == SessionKind::Reader {
        return Ok(Generation { number, live: Vec::new(), mark: None });
    }
    let mut live = connection.prepare_cached("SELECT id FROM pack WHERE state = 2 ORDER BY id")?;
    let live = live.query_map([], |row| row.get(0))?;
    Ok(Generation { number, live: live.map(|id| pack_id(id?)).collect::<Outcome<_>>()?, mark: None })
}

/// Inserts a session.
pub(super) fn open(
    connection: &Connection,
    now: Moment,
    kind: SessionKind,
    owner: &SessionOwner,
    lease_secs: u32,
) -> Outcome<(SessionId, Generation)> {
    let id = SessionId(advance(connection, "next_session", 1)?);
    let generation = generation(connection, kind)?;
    // Readers and collectors rely on no hit when they write, so no collector ever waits for them.
    let acknowledged = if kind == SessionKind::Writer { generation.number as i64 } else { i64::MAX };
    connection.prepare_cached("INSERT INTO session VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?.execute(
        (
            id.0 as i64,
            kind as i64,
            acknowledged,
            lease_end(now, lease_secs),
            lease_secs,
            &owner.lock,
            &owner.host,
            owner.process,
            owner.role.to_column(),
        ),
    )?;
    Ok((id, generation))
}

/// Extends a lease; returns the generation's number.
pub(super) fn renew(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    lease_secs: u32,
) -> Outcome<u64> {
    require_live(connection, now, session)?;
    connection
        .prepare_cached("UPDATE session SET lease_until = ?2, lease_secs = ?3 WHERE id = ?1")?
        .execute((session.0 as i64, lease_end(now, lease_secs), lease_secs))?;
    Ok(counter(connection, "generation")? as u64)
}

/// Acknowledges the current generation, and unmarks the candidates that uncommitted work relies on
/// (rule 8).
pub(super) fn acknowledge(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    relied: &[PackId],
) -> Outcome<Generation> {
    let kind = require_live(connection, now, session)?;
    let mut rescue = connection.prepare_cached("UPDATE pack SET state = 2 WHERE id = ?1 AND state = 3")?;
    for pack in relied {
        rescue.execute([pack.0 as i64])?;
    }
    let generation = generation(connection, kind)?;
    connection
        .prepare_cached("UPDATE session SET acknowledged = max(acknowledged, ?2) WHERE id = ?1")?
        .execute((session.0 as i64, generation.number as i64))?;
    Ok(generation)
}

/// Ends a session, if it is not over yet. Its uncommitted packs stay its own until they are swept.
pub(super) fn end(connection: &Connection, session: SessionId) -> Outcome<()> {
    let id = [session.0 as i64];
    connection.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute(id)?;
    connection.prepare_cached("DELETE FROM pin WHERE session = ?1")?.execute(id)?;
    connection.prepare_cached("DELETE FROM pin_root WHERE session = ?1")?.execute(id)?;
    connection.prepare_cached("UPDATE state SET collector = NULL WHERE collector = ?1")?.execute(id)?;
    Ok(())
}

/// The oldest generation that a writer's decisions may still rest on.
pub(super) fn slowest(connection: &Connection) -> rusqlite::Result<i64> {
    let slowest: Option<i64> = connection
        .prepare_cached("SELECT min(acknowledged) FROM session")?
        .query_row([], |row| row.get(0))?;
    Ok(slowest.unwrap_or(i64::MAX))
}

fn read(row: &Row<'_>, now: Moment) -> Outcome<SessionRow> {
    let (acknowledged, until, lives): (i64, i64, bool) = (row.get(2)?, row.get(3)?, row.get(8)?);
    Ok(SessionRow {
        id: SessionId(row.get::<_, i64>(0)? as u64),
        kind: kind_of(row.get(1)?)?,
        acknowledged: if acknowledged == i64::MAX { u64::MAX } else { acknowledged as u64 },
        lease_until: until as u64,
        owner: SessionOwner {
            lock: row.get(4)?,
            host: row.get(5)?,
            process: row.get(6)?,
            role: Role::from_column(row.get(7)?),
        },
        lease_is_over: !lives,
        lease_left_secs: if lives { (until as u64).saturating_sub(now.steady) / NANOS } else { 0 },
    })
}

/// Every session that is not over.
pub(super) fn all(connection: &Connection, now: Moment) -> Outcome<Vec<SessionRow>> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT id, kind, acknowledged, lease_until, lock, host, process, role, ",
        lives!("?1"),
        " FROM session ORDER BY id"
    ))?;
    let mut rows = statement.query([now.steady as i64])?;
    let mut sessions = Vec::new();
    while let Some(row) = rows.next()? {
        sessions.push(read(row, now)?);
    }
    Ok(sessions)
}

impl Sessions for SqliteMeta {
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)> {
        self.write("opening a session", |db| open(db, self.moment(), kind, owner, lease_secs))
    }

    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        self.write("renewing a session's lease", |db| renew(db, self.moment(), session, lease_secs))
    }

    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation> {
        self.write("acknowledging a generation", |db| acknowledge(db, self.moment(), session, relied))
    }

    fn still_there(&self) -> Result<()> {
        self.source.still_there()
    }

    fn generation(&self) -> Result<u64> {
        self.read_once("reading the generation", |db| Ok(state::counter(db, "generation")? as u64))
    }

    fn close_session(&self, session: SessionId) -> Result<()> {
        self.write("closing a session", |db| end(db, session))
    }

    fn fence(&self, session: SessionId) -> Result<()> {
        self.write("fencing a session", |db| end(db, session))
    }

    fn sessions(&self) -> Result<Vec<SessionRow>> {
        self.read_once("listing sessions", |db| all(db, self.moment()))
    }
}
