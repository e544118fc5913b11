//! Locks on files.
//!
//! **Concurrency.** A transaction that decides on a file's locks holds an advisory lock on that
//! file until it ends. A statement of its own takes it before the rows are read. The inode's row
//! would not do: commits lock it, and a lock must not wait for a commit; and a file that has lost
//! its last name has no row. A transaction that begins a wait for a range takes a second advisory
//! lock after the first. All such transactions share it, so if several would close a cycle, each
//! sees the earlier ones.
//!
//! A transaction that takes or releases a lock has its session's row locked, like every transaction
//! of a session, commits included. An expired session is fenced before its locks go to others, and
//! fencing waits for both.

use std::collections::{HashMap, HashSet};

use tokio_postgres::types::Type;

use super::connection::{Answer, Query, Row};
use super::counters;
use super::sessions::{self, lease_until, now};
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::SessionId;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::locks::{
    Blocker, LOCK_END, Lock, LockFamily, LockMode, LockRange, Owned, OwnersLocks, Taken, Wait,
};

/// Keys of advisory locks. A database may hold several stores.
pub(super) struct Keys<'s> {
    pub schema: &'s str,
}

impl Keys<'_> {
    fn file(&self, inode: u64) -> Query {
        let key = [b"outrigger file lock".as_slice(), self.schema.as_bytes(), &inode.to_le_bytes()];
        Self::lock(outrigger_format::checksum(&key))
    }

    fn waits(&self) -> Query {
        Self::lock(outrigger_format::checksum(&[b"outrigger lock waits", self.schema.as_bytes()]))
    }

    fn lock(key: u64) -> Query {
        Query::new("SELECT pg_advisory_xact_lock($1)").int(key as i64)
    }
}

/// Finds impossible rows, for `check`. Rows of ended sessions are none of these: they wait for the
/// next owner or the collector.
pub(super) const RULES: &[&str] =
    &["SELECT 'lock of session ' || session || ' on inode ' || inode || ' cannot be one' FROM @file_lock \
     WHERE first < 0 OR last < first OR family NOT IN (0, 1) OR mode NOT IN (0, 1)"];

/// Finds the locks and waits that touch a range. Of the waits, only those that are older than
/// ticket `$6` of session `$5`. For [`read`].
const AROUND: &str = concat!(
    "SELECT l.session, l.owner, l.first, l.last, l.process, l.mode, coalesce(",
    lease_until!("s."),
    " <= ",
    now!(),
    ", true), false FROM @file_lock l LEFT JOIN @session s ON s.id = l.session \
     WHERE l.inode = $1 AND l.family = $2 AND l.first <= $4 AND l.last >= $3 \
     UNION ALL \
     SELECT w.session, w.owner, w.first, w.last, w.process, w.mode, false, true FROM @file_lock_wait w \
     JOIN @session s ON s.id = w.session AND ",
    lease_until!("s."),
    " > ",
    now!(),
    " WHERE w.inode = $1 AND w.family = $2 AND w.first <= $4 AND w.last >= $3 AND w.number < \
     coalesce((SELECT number FROM @file_lock_wait WHERE session = $5 AND ticket = $6), 9223372036854775807)"
);

fn around(session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Query {
    let range = lock.range.with_neighbours();
    // No wait has this number.
    let ticket = wait.map_or(-1, |wait| wait.ticket as i64);
    let query = Query::new(AROUND).int(inode as i64).with(lock.family as i32, Type::INT4);
    query.int(range.first as i64).int(range.last as i64).int(session.0 as i64).int(ticket)
}

fn read(row: &Row, family: LockFamily) -> Outcome<Blocker> {
    let number = |column: usize| row.try_get::<_, i64>(column).map(|value| value as u64);
    let mode = mode(row.try_get(5)?)?;
    let range = LockRange { first: number(2)?, last: number(3)? };
    let lock = Lock { family, owner: number(1)?, range, mode, process: number(4)? as u32 };
    let session = SessionId(number(0)?);
    Ok(Blocker { session, lock, is_over: row.try_get(6)?, is_waiting: row.try_get(7)? })
}

fn mode(mode: i32) -> Outcome<LockMode> {
    match mode {
        0 => Ok(LockMode::Shared),
        1 => Ok(LockMode::Exclusive),
        mode => Err(refuse(ErrorKind::Damaged, format!("mode {mode} of a lock"))),
    }
}

/// Divides rows into the owner's locks around the range, and what is in the way of others'.
fn divide(
    session: SessionId,
    lock: &Lock,
    wait: Option<Wait>,
    rows: &[Row],
) -> Outcome<(Vec<Lock>, Vec<Blocker>)> {
    let all = rows.iter().map(|row| read(row, lock.family)).collect::<Outcome<Vec<_>>>()?;
    let (mine, mut others): (Vec<Blocker>, Vec<Blocker>) =
        all.into_iter().partition(|one| (one.session, one.lock.owner) == (session, lock.owner));
    let mine: Vec<Lock> = mine.into_iter().filter(|one| !one.is_waiting).map(|one| one.lock).collect();
    // An owner that already has a lock here goes before all waits: they may be waiting for that
    // lock.
    let gives_way = wait.is_some_and(|wait| wait.gives_way) && mine.is_empty();
    others.retain(|other| other.lock.excludes(lock) && (gives_way || !other.is_waiting));
    // Callers compare answers over time, so the order must be stable.
    others.sort_unstable_by_key(|other| {
        (other.is_waiting, other.lock.range.first, other.session, other.lock.owner)
    });
    Ok((mine, others))
}

fn check(range: LockRange) -> Outcome<()> {
    if range.first > range.last || range.last > LOCK_END {
        return Err(refuse(ErrorKind::Invalid, format!("no lock can be on bytes {range:?}")));
    }
    Ok(())
}

/// Reads what is in the way of a lock.
pub(super) fn blockers(session: SessionId, inode: u64, lock: &Lock, wait: Option<Wait>) -> Query {
    around(session, inode, lock, wait)
}

/// Reads the answer of [`blockers`].
pub(super) fn read_blockers(
    session: SessionId,
    lock: &Lock,
    wait: Option<Wait>,
    answer: &Answer,
) -> Outcome<Vec<Blocker>> {
    Ok(divide(session, lock, wait, &answer.rows)?.1)
}

/// Takes a lock, if nothing is in its way. Does not end expired sessions: that takes a transaction
/// of its own.
pub(super) fn take(
    tx: &mut Tx<'_>,
    keys: &Keys<'_>,
    session: SessionId,
    inode: u64,
    lock: &Lock,
    wait: Option<Wait>,
) -> Outcome<Taken> {
    check(lock.range)?;
    let queries = vec![
        Query::new(sessions::REQUIRE_LIVE).int(session.0 as i64),
        keys.file(inode),
        around(session, inode, lock, wait),
    ];
    let answers = tx.run(queries)?;
    sessions::live(tx, session, &answers[0])?;
    let (mine, others) = divide(session, lock, wait, &answers[2].rows)?;
    if others.is_empty() {
        exchange(tx, session, inode, lock, &mine, Some(lock.mode));
        if let Some(wait) = wait {
            forget_wait(tx, session, wait.ticket);
        }
        return Ok(Taken::Yes);
    }
    let Some(wait) = wait else { return Ok(Taken::No(others)) };
    if others.iter().any(|other| other.is_over) {
        return Ok(Taken::No(others));
    }
    match lock.family {
        // The owner releases its lock while it waits to change it. Otherwise two owners that do the
        // same would wait for each other for ever.
        LockFamily::Whole => {
            exchange(tx, session, inode, lock, &mine, None);
        }
        LockFamily::Ranges => {
            let held = others.iter().filter(|other| !other.is_waiting);
            let holders = held.map(|other| (other.session.0 as i64, other.lock.owner as i64)).collect();
            if closes_circle(tx, keys, session, lock.owner, holders)? {
                forget_wait(tx, session, wait.ticket);
                return Ok(Taken::Deadlock);
            }
        }
    }
    record_wait(tx, session, inode, lock, wait.ticket);
    Ok(Taken::No(others))
}

/// Writes the owner's rows so that the lock's range has this mode, or none. `mine` are its present
/// locks around the range.
fn exchange(
    tx: &mut Tx<'_>,
    session: SessionId,
    inode: u64,
    lock: &Lock,
    mine: &[Lock],
    mode: Option<LockMode>,
) -> usize {
    let before = Owned::new(mine.iter().map(|held| (held.range, held.mode)).collect());
    let mut after = before.clone();
    after.set(lock.range, mode);
    let (before, after) = (before.ranges(), after.ranges());
    let gone = before.iter().filter(|held| !after.contains(held)).map(|(range, _)| range.first as i64);
    let gone: Vec<i64> = gone.collect();
    let whose = |query: Query| {
        let query = query.int(inode as i64).with(lock.family as i32, Type::INT4);
        query.int(session.0 as i64).int(lock.owner as i64)
    };
    if !gone.is_empty() {
        let sql = "DELETE FROM @file_lock WHERE inode = $1 AND family = $2 AND session = $3 AND owner = $4 AND first = ANY ($5)";
        tx.later(whose(Query::new(sql)).ints(gone));
    }
    let new: Vec<_> = after.iter().filter(|held| !before.contains(held)).collect();
    if !new.is_empty() {
        let sql = "INSERT INTO @file_lock (inode, family, session, owner, process, first, last, mode) \
                   SELECT $1, $2, $3, $4, $5, n.* FROM unnest($6::int8[], $7::int8[], $8::int4[]) n";
        let query = whose(Query::new(sql)).int(i64::from(lock.process));
        let query = query.ints(new.iter().map(|(range, _)| range.first as i64).collect());
        let query = query.ints(new.iter().map(|(range, _)| range.last as i64).collect());
        let modes: Vec<i32> = new.iter().map(|(_, mode)| *mode as i32).collect();
        tx.later(query.with(modes, Type::INT4_ARRAY));
    }
    after.len()
}

/// Finds the present waits. The blockers are read anew: an owner that was in the way at the last
/// attempt may have released its lock, and be waiting itself.
const WAITS: &str = concat!(
    "SELECT w.session, w.owner, l.session, l.owner FROM @file_lock_wait w \
     JOIN @session s ON s.id = w.session AND ",
    lease_until!("s."),
    " > ",
    now!(),
    " JOIN @file_lock l ON l.inode = w.inode AND l.family = w.family AND l.first <= w.last AND l.last >= w.first \
     WHERE w.family = 0 AND (l.mode = 1 OR w.mode = 1) AND (l.session, l.owner) <> (w.session, w.owner)"
);

/// True if one of `holders` waits, directly or through others, for this owner.
fn closes_circle(
    tx: &mut Tx<'_>,
    keys: &Keys<'_>,
    session: SessionId,
    owner: u64,
    holders: Vec<(i64, i64)>,
) -> Outcome<bool> {
    let answers = tx.run(vec![keys.waits(), Query::new(WAITS)])?;
    let mut waits: HashMap<(i64, i64), Vec<(i64, i64)>> = HashMap::new();
    for row in &answers[1].rows {
        let for_whom = (row.try_get(2)?, row.try_get(3)?);
        waits.entry((row.try_get(0)?, row.try_get(1)?)).or_default().push(for_whom);
    }
    let own = (session.0 as i64, owner as i64);
    let (mut seen, mut next) = (HashSet::new(), holders);
    while let Some(who) = next.pop() {
        if who == own {
            return Ok(true);
        }
        if seen.insert(who) {
            next.extend(waits.get(&who).into_iter().flatten());
        }
    }
    Ok(false)
}

fn record_wait(tx: &mut Tx<'_>, session: SessionId, inode: u64, lock: &Lock, ticket: u64) {
    // An existing wait keeps its row, and so its place in the queue.
    let sql = "INSERT INTO @file_lock_wait (session, ticket, inode, owner, first, last, process, family, mode) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING";
    let query = Query::new(sql).int(session.0 as i64).int(ticket as i64).int(inode as i64);
    let query = query.int(lock.owner as i64).int(lock.range.first as i64).int(lock.range.last as i64);
    let query = query.int(i64::from(lock.process)).with(lock.family as i32, Type::INT4);
    tx.later(query.with(lock.mode as i32, Type::INT4));
}

fn forget_wait(tx: &mut Tx<'_>, session: SessionId, ticket: u64) {
    let sql = "DELETE FROM @file_lock_wait WHERE session = $1 AND ticket = $2";
    tx.later(Query::new(sql).int(session.0 as i64).int(ticket as i64));
}

/// Releases an owner's locks in `lock`'s range. Returns whether it has others.
pub(super) fn release(
    tx: &mut Tx<'_>,
    keys: &Keys<'_>,
    session: SessionId,
    inode: u64,
    lock: &Lock,
) -> Outcome<bool> {
    check(lock.range)?;
    let sql =
        "SELECT count(*) FROM @file_lock WHERE inode = $1 AND family = $2 AND session = $3 AND owner = $4";
    let count = Query::new(sql).int(inode as i64).with(lock.family as i32, Type::INT4);
    let queries = vec![
        Query::new(sessions::REQUIRE_LIVE).int(session.0 as i64),
        keys.file(inode),
        around(session, inode, lock, None),
        count.int(session.0 as i64).int(lock.owner as i64),
    ];
    let answers = tx.run(queries)?;
    sessions::live(tx, session, &answers[0])?;
    let (mine, _) = divide(session, lock, None, &answers[2].rows)?;
    let count: i64 = counters::row(&answers[3])?.try_get(0)?;
    let left = exchange(tx, session, inode, lock, &mine, None);
    Ok(count as usize - mine.len() + left > 0)
}

/// Removes the record of a wait.
pub(super) fn stop_waiting(tx: &mut Tx<'_>, session: SessionId, ticket: u64) {
    forget_wait(tx, session, ticket);
}

/// Gives a session the locks that an owner had in an ended one, if all of them are still there.
pub(super) fn take_over(
    tx: &mut Tx<'_>,
    keys: &Keys<'_>,
    session: SessionId,
    from: SessionId,
    locks: &OwnersLocks,
) -> Outcome<bool> {
    let whose = |sql| {
        let query = Query::new(sql).int(locks.inode as i64).with(locks.family as i32, Type::INT4);
        query.int(from.0 as i64).int(locks.owner as i64)
    };
    let sql = "SELECT first, last, mode FROM @file_lock WHERE inode = $1 AND family = $2 AND session = $3 AND owner = $4 FOR UPDATE";
    let answers = tx.run(vec![
        Query::new(sessions::REQUIRE_LIVE).int(session.0 as i64),
        keys.file(locks.inode),
        whose(sql),
    ])?;
    sessions::live(tx, session, &answers[0])?;
    let found = answers[2].rows.iter().map(|row| {
        let range =
            LockRange { first: row.try_get::<_, i64>(0)? as u64, last: row.try_get::<_, i64>(1)? as u64 };
        Ok((range, mode(row.try_get(2)?)?))
    });
    let is_whole = Owned::new(found.collect::<Outcome<_>>()?) == locks.owned;
    tx.later(match is_whole {
        true => whose("UPDATE @file_lock SET session = $5 WHERE inode = $1 AND family = $2 AND session = $3 AND owner = $4")
            .int(session.0 as i64),
        false => whose("DELETE FROM @file_lock WHERE inode = $1 AND family = $2 AND session = $3 AND owner = $4"),
    });
    Ok(is_whole)
}

/// Removes the locks of ended sessions. Their numbers are read first, so a row that another session
/// takes over meanwhile is spared.
pub(super) fn sweep(tx: &mut Tx<'_>) -> Outcome<()> {
    let sql = "SELECT DISTINCT session FROM @file_lock WHERE session NOT IN (SELECT id FROM @session)";
    let over = tx.one(Query::new(sql))?.rows;
    let over = over.iter().map(|row| Ok(row.try_get(0)?)).collect::<Outcome<Vec<i64>>>()?;
    tx.later(Query::new("DELETE FROM @file_lock WHERE session = ANY ($1)").ints(over));
    Ok(())
}

/// Counts the locks of each session, for [`read_count`].
pub(super) const COUNTS: &str = "SELECT session, count(*) FROM @file_lock WHERE session IN (SELECT id FROM @session) \
     GROUP BY session ORDER BY session";

/// A row of [`COUNTS`].
pub(super) fn read_count(row: &Row) -> Outcome<(SessionId, u64)> {
    let number = |column: usize| row.try_get::<_, i64>(column).map(|value| value as u64);
    Ok((SessionId(number(0)?), number(1)?))
}
