//! Sessions, as in SQLite (`sqlite/sessions.rs`), with leases by the server's clock: clients'
//! clocks mean nothing.
//!
//! A session may write while its row exists. The end of a lease does not end the session: it allows
//! others to, by deleting the row. A transaction of a session locks that row for key share. So
//! either the deletion comes first and the transaction is refused, or the deletion waits for the
//! transaction's end. If a client stops in the middle of a transaction, the row stays locked until
//! the server ends it, twenty seconds later (`connection.rs`).

use super::PostgresMeta;
use super::transaction::Gate;
use crate::error::Result;
use crate::meta::Sessions;
use outrigger_format::PackId;
use tokio_postgres::types::Type;

use super::connection::{Answer, Query, Row};
use super::counters;
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Fault, Outcome, pack_id, refuse};
use crate::meta::{Generation, Role, SessionId, SessionKind, SessionOwner, SessionRow};

/// The server's clock, nanoseconds since 1970.
macro_rules! now {
    () => {
        "((extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000)"
    };
}

/// The time until which others may not end a session, for a row of `@session`; the argument is the
/// prefix of its columns (`"s."`).
///
/// While the server was away no session could renew its lease. So every lease that had not ended
/// before lasts anew from the server's start.
macro_rules! lease_until {
    ($of:literal) => {
        concat!(
            "greatest(",
            $of,
            "lease_until, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint * 1000 + ",
            $of,
            "lease_secs * 1000000000::bigint)"
        )
    };
}

pub(super) use lease_until;
pub(super) use now;

/// Reads the server's clock.
pub(super) const NOW: &str = concat!("SELECT ", now!());

/// Reads a session's kind, and whether its lease should be renewed as little is left of it. For
/// [`live`].
pub(super) const REQUIRE_LIVE: &str = concat!(
    "SELECT kind, lease_until < ",
    now!(),
    " + lease_secs * 500000000::bigint FROM @session WHERE id = $1 FOR KEY SHARE"
);
/// Never shortens a lease.
const EXTEND: &str = concat!(
    "UPDATE @session SET lease_until = greatest(lease_until, ",
    now!(),
    " + lease_secs * 1000000000::bigint) WHERE id = $1"
);

fn kind_of(kind: i32) -> Outcome<SessionKind> {
    Ok(match kind {
        0 => SessionKind::Writer,
        1 => SessionKind::Reader,
        2 => SessionKind::Collector,
        _ => return Err(refuse(ErrorKind::Damaged, format!("session kind {kind}"))),
    })
}

fn fenced(session: SessionId) -> Fault {
    refuse(
        ErrorKind::Fenced,
        format!("session {} is over: it was closed, or another client ended it", session.0),
    )
}

/// Reads the answer of [`REQUIRE_LIVE`]: the session's kind, if its row exists. Every transaction
/// of a session begins with this. It renews the lease only when half of it has passed; if each did,
/// transactions of one session would wait for each other.
pub(super) fn live(tx: &mut Tx<'_>, session: SessionId, answer: &Answer) -> Outcome<SessionKind> {
    let row = answer.first().ok_or_else(|| fenced(session))?;
    if row.try_get(1)? {
        tx.later(Query::new(EXTEND).int(session.0 as i64));
    }
    kind_of(row.try_get(0)?)
}

/// Checks that a session is live.
pub(super) fn require_live(tx: &mut Tx<'_>, session: SessionId) -> Outcome<SessionKind> {
    let answer = tx.one(Query::new(REQUIRE_LIVE).int(session.0 as i64))?;
    live(tx, session, &answer)
}

/// Reads what a writer may rely on: in one statement, so of one state.
const GENERATION: &str = concat!(
    "SELECT generation, ARRAY (SELECT id FROM @pack WHERE state = 2 ORDER BY id), ",
    mark!(),
    " FROM @state s"
);
/// The same for a session that relies on nothing.
const NUMBER: &str = concat!("SELECT generation, ARRAY[]::bigint[], ", mark!(), " FROM @state s");

fn generation(tx: &mut Tx<'_>, kind: SessionKind) -> Outcome<Generation> {
    let answer = tx.one(Query::new(if kind == SessionKind::Reader { NUMBER } else { GENERATION }))?;
    let row = counters::row(&answer)?;
    let live: Vec<i64> = row.try_get(1)?;
    Ok(Generation {
        number: row.try_get::<_, i64>(0)? as u64,
        live: live.into_iter().map(pack_id).collect::<Outcome<_>>()?,
        mark: Some(super::packs::read_mark(row, 2)?),
    })
}

/// Inserts a session.
pub(super) fn open(
    tx: &mut Tx<'_>,
    kind: SessionKind,
    owner: &SessionOwner,
    lease_secs: u32,
) -> Outcome<(SessionId, Generation)> {
    let id = SessionId(counters::advance(tx, "next_session", 1)?);
    let generation = generation(tx, kind)?;
    // Readers and collectors rely on no hit when they write, so no collector ever waits for them.
    let acknowledged = if kind == SessionKind::Writer { generation.number as i64 } else { i64::MAX };
    let sql = concat!(
        "INSERT INTO @session (id, kind, acknowledged, lease_secs, lock, host, process, role, lease_until) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, ",
        now!(),
        " + $4 * 1000000000::bigint)"
    );
    let query = Query::new(sql).int(id.0 as i64).with(kind as i32, Type::INT4).int(acknowledged);
    let query = query.with(secs(lease_secs), Type::INT4).public(&owner.lock).public(&owner.host);
    tx.later(query.int(owner.process.into()).public(&owner.role.to_column()));
    Ok((id, generation))
}

fn secs(lease_secs: u32) -> i32 {
    i32::try_from(lease_secs).unwrap_or(i32::MAX)
}

/// Extends a lease; returns the generation's number.
pub(super) fn renew(tx: &mut Tx<'_>, session: SessionId, lease_secs: u32) -> Outcome<u64> {
    let id = session.0 as i64;
    let queries = vec![Query::new(REQUIRE_LIVE).int(id), Query::new("SELECT generation FROM @state")];
    let answers = tx.run(queries)?;
    live(tx, session, &answers[0])?;
    let sql = concat!(
        "UPDATE @session SET lease_secs = $2, lease_until = ",
        now!(),
        " + $2 * 1000000000::bigint WHERE id = $1"
    );
    tx.later(Query::new(sql).int(id).with(secs(lease_secs), Type::INT4));
    Ok(counters::row(&answers[1])?.try_get::<_, i64>(0)? as u64)
}

/// Acknowledges the current generation, and unmarks the candidates that uncommitted work relies on
/// (rule 8).
pub(super) fn acknowledge(tx: &mut Tx<'_>, session: SessionId, relied: &[PackId]) -> Outcome<Generation> {
    let kind = require_live(tx, session)?;
    tx.later(
        Query::new("UPDATE @pack SET state = 2 WHERE id = ANY ($1) AND state = 3")
            .ints(super::packs::ids(relied)),
    );
    let generation = generation(tx, kind)?;
    tx.later(
        Query::new("UPDATE @session SET acknowledged = greatest(acknowledged, $2) WHERE id = $1")
            .int(session.0 as i64)
            .int(generation.number as i64),
    );
    Ok(generation)
}

/// Removes the locks of a session that is over, or that this transaction ends. Its row comes first,
/// which waits for its transactions.
pub(super) fn end_locks(tx: &mut Tx<'_>, session: SessionId) {
    tx.later(Query::new("DELETE FROM @file_lock WHERE session = $1").int(session.0 as i64));
}

/// Ends a session, if it is not over yet. Its uncommitted packs stay its own until they are swept,
/// and its locks until another owner wants one (locks.rs).
pub(super) fn end(tx: &mut Tx<'_>, session: SessionId) {
    for sql in [
        "DELETE FROM @session WHERE id = $1",
        "DELETE FROM @pin WHERE session = $1",
        "DELETE FROM @pin_root WHERE session = $1",
        "DELETE FROM @file_lock_wait WHERE session = $1",
        "UPDATE @state SET collector = NULL WHERE collector = $1",
    ] {
        tx.later(Query::new(sql).int(session.0 as i64));
    }
}

/// The oldest generation that a writer's decisions may still rest on.
pub(super) const SLOWEST: &str = "SELECT min(acknowledged) FROM @session";

/// Reads the answer of [`SLOWEST`].
pub(super) fn slowest(answer: &Answer) -> Outcome<i64> {
    Ok(counters::row(answer)?.try_get::<_, Option<i64>>(0)?.unwrap_or(i64::MAX))
}

/// Every session that is not over, for [`read`].
pub(super) const ALL: &str = concat!(
    "SELECT id, kind, acknowledged, ",
    lease_until!(""),
    ", lock, host, process, role, ",
    lease_until!(""),
    " <= ",
    now!(),
    ", (",
    lease_until!(""),
    " - ",
    now!(),
    ") / 1000000000 FROM @session ORDER BY id"
);

/// A row of [`ALL`].
pub(super) fn read(row: &Row) -> Outcome<SessionRow> {
    let acknowledged: i64 = row.try_get(2)?;
    Ok(SessionRow {
        id: SessionId(row.try_get::<_, i64>(0)? as u64),
        kind: kind_of(row.try_get(1)?)?,
        acknowledged: if acknowledged == i64::MAX { u64::MAX } else { acknowledged as u64 },
        lease_until: row.try_get::<_, i64>(3)? as u64,
        owner: SessionOwner {
            lock: row.public(4)?,
            host: row.public(5)?,
            process: row.try_get::<_, i64>(6)?.try_into().unwrap_or(0),
            role: Role::from_column(row.public(7)?),
        },
        lease_is_over: row.try_get(8)?,
        lease_left_secs: row.try_get::<_, i64>(9)?.try_into().unwrap_or(0),
    })
}

impl Sessions for PostgresMeta {
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)> {
        let opened = self.write("opening a session", Gate::Shared, |tx| open(tx, kind, owner, lease_secs))?;
        self.transactions.pool.call(format!("outrigger {}, session {}", owner.role, opened.0.0));
        Ok(opened)
    }

    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64> {
        // Not through the gate: a lease must not run out because others are slow.
        self.write("renewing a session's lease", Gate::Open, |tx| renew(tx, session, lease_secs))
    }

    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation> {
        self.write("acknowledging a generation", Gate::Shared, |tx| acknowledge(tx, session, relied))
    }

    fn generation(&self) -> Result<u64> {
        let query = Query::new("SELECT generation FROM @state");
        self.read("reading the generation", &query, |answer| {
            Ok(counters::row(answer)?.try_get::<_, i64>(0)? as u64)
        })
    }

    fn close_session(&self, session: SessionId) -> Result<()> {
        self.write("closing a session", Gate::Shared, |tx| {
            end(tx, session);
            end_locks(tx, session);
            Ok(())
        })
    }

    fn fence(&self, session: SessionId) -> Result<()> {
        self.write("fencing a session", Gate::Alone, |tx| {
            end(tx, session);
            Ok(())
        })
    }

    fn sessions(&self) -> Result<Vec<SessionRow>> {
        self.list("listing sessions", ALL, read)
    }
}
