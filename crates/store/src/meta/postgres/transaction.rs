//! Transactions: which of them run concurrently, and which are repeated after a failure.
//!
//! **Concurrency.** Transactions are READ COMMITTED, whatever the server's default: each statement
//! sees what was committed when it began. A transaction locks what it decides on: rows by `FOR
//! UPDATE` or `FOR KEY SHARE`, and the *gate*, a transaction advisory lock. Transactions that
//! change the tree, packs or pins hold the gate shared. Those that must run alone hold it
//! exclusively (snapshots, moves of directories, the collector's steps). A statement of its own
//! takes the gate before anything is read, so all later statements see what earlier holders left.
//!
//! **Repeats.** A transaction that failed before its COMMIT was sent has changed nothing. It is
//! repeated if another transaction or the connection caused the failure. Once COMMIT was sent and
//! no answer came, the transaction is in doubt: it may have happened, or happen yet. So each
//! transaction that writes first puts a number of its own into its connection's row of `lane`.
//! After a failure, another connection *closes* that row. This does three things: it waits until
//! the server is through with the lost transaction, tells by the number whether it was committed,
//! and stops a statement that is only just arriving (`speculative.rs`). Only if it was not
//! committed is it repeated. If the server does not come back in time, the error names the
//! transaction ([`Unanswered`]), so that the caller can ask later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;
use tokio_postgres::Error as SqlError;

use super::connection::{Answer, BEGIN, Connection, Query, SETTINGS};
use super::pool::{Lent, Pool};
use super::sealing::Seals;
use super::servers::CONNECT;
use crate::error::{Error, ErrorKind, Result, Unanswered};
use crate::latency;
use crate::meta::WriteCounts;
use crate::meta::fault::{Explain as _, Fault, Outcome, refuse, why};
use crate::note::{self, Level};

/// How a transaction uses the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// Neither waits for the gate nor holds it.
    Open,
    /// Runs together with others of its kind.
    Shared,
    /// Runs while no other transaction holds the gate.
    Alone,
}

/// The least time for which a server is tried that has been away for longer than its patience.
const GLANCE: Duration = Duration::from_secs(2);
/// After so many failures caused by others, a transaction runs alone, so that it succeeds.
const TRIES_SHARED: u32 = 4;
const TRIES: u32 = 40;

/// Rows over which the totals are spread.
const SLOTS: i64 = 64;

/// The row of totals that a connection adds to.
fn slot_of(lane: i64) -> i32 {
    lane.rem_euclid(SLOTS) as i32
}

/// The values that a statement needs if it is a transaction by itself.
pub(super) struct Ticket {
    pub gate: i64,
    /// Its connection's row of `lane`, and the number that it puts there.
    pub lane: i64,
    pub token: i64,
}

impl Ticket {
    pub fn slot(&self) -> i32 {
        slot_of(self.lane)
    }
}

/// The engine's means to make transactions.
pub(super) struct Transactions {
    pub pool: Pool,
    /// The advisory lock: derived from the schema's name, as a database may hold several stores.
    gate: i64,
    pub counts: Counts,
}

/// Costs of transactions that write.
#[derive(Default)]
pub(super) struct Counts {
    transactions: AtomicU64,
    again: AtomicU64,
    nanos: AtomicU64,
}

impl Counts {
    pub fn get(&self) -> WriteCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WriteCounts { transactions: of(&self.transactions), again: of(&self.again), nanos: of(&self.nanos) }
    }

    fn ended(&self, began: Instant) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let took = began.elapsed();
        latency::TRANSACTIONS.note(took);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn again(&self) {
        self.again.fetch_add(1, Ordering::Relaxed);
    }
}

/// A transaction that writes.
pub(super) struct Tx<'p> {
    connection: Lent<'p>,
    /// The statements that begin it, until they were sent.
    first: Option<String>,
    /// Statements whose answers nobody waits for yet.
    waiting: Vec<Query>,
    /// It runs while no other transaction holds the gate.
    pub alone: bool,
    /// The number in its connection's row of `lane` once it is committed.
    token: i64,
}

impl Tx<'_> {
    pub fn run(&mut self, queries: Vec<Query>) -> Outcome<Vec<Answer>> {
        let first = self.first.take();
        let mut all = std::mem::take(&mut self.waiting);
        let before = all.len();
        all.extend(queries);
        let mut answers = self.connection.together(first.as_deref(), &all, None)?;
        if first.is_some() && answers[0].affected != 1 {
            // The row was tidied away.
            self.connection.lane_is_there = false;
            return Err(Fault::Again { alone: false });
        }
        Ok(answers.split_off(before))
    }

    pub fn one(&mut self, query: Query) -> Outcome<Answer> {
        Ok(self.run(vec![query])?.pop().expect("one query has one answer"))
    }

    /// Runs a statement with the next ones, or with COMMIT.
    pub fn later(&mut self, query: Query) {
        self.waiting.push(query);
    }

    /// Its engine's, for checksums.
    pub fn seals(&self) -> &Seals {
        &self.connection.seals
    }

    /// The row of totals that it adds to.
    pub fn slot(&self) -> i32 {
        slot_of(self.connection.lane)
    }

    fn commit(&mut self) -> Outcome<()> {
        if self.first.is_some() {
            // COMMIT is never sent before the row of `lane` is known to be locked. Otherwise
            // another connection could read the row too early.
            let later = self.waiting.split_off(1);
            self.run(Vec::new())?;
            self.waiting = later;
        }
        let all = std::mem::take(&mut self.waiting);
        self.connection.together(None, &all, Some("COMMIT"))?;
        Ok(())
    }
}

/// The outcome of a statement that is a transaction by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Once {
    /// It has happened, and answered with this number; `None` if the answer was lost.
    Done(Option<u64>),
    Nothing,
}

/// How to go on after a failure.
#[derive(PartialEq, Eq, Debug)]
enum Remedy {
    /// The transaction has not happened; repeat it once the server is back.
    Reconnect,
    /// The transaction has not happened, because of another one.
    Again {
        alone: bool,
    },
    None,
}

fn code(error: &SqlError) -> &str {
    error.code().map_or("", |state| state.code())
}

/// True when the connection is gone, or goes.
fn is_lost(error: &SqlError) -> bool {
    match error.as_db_error() {
        Some(db) => matches!(db.severity(), "FATAL" | "PANIC") || code(error).starts_with("57P0"),
        None => std::error::Error::source(error)
            .is_none_or(|source| !source.is::<tokio_postgres::types::WrongType>()),
    }
}

fn remedy(fault: &Fault) -> Remedy {
    match fault {
        Fault::Again { alone } => Remedy::Again { alone: *alone },
        Fault::Postgres(error) if is_lost(error) => Remedy::Reconnect,
        Fault::Postgres(error) => match code(error) {
            // Serialization, deadlock, a row that another one inserted at the same time.
            "40001" | "40P01" | "23505" => Remedy::Again { alone: false },
            // Prepared statements that the server no longer has, or that a changed schema has
            // outdated.
            "26000" | "42P05" | "0A000" => Remedy::Reconnect,
            _ => Remedy::None,
        },
        Fault::Sqlite(_) | Fault::Store(_) => Remedy::None,
    }
}

impl Transactions {
    pub fn new(pool: Pool) -> Self {
        let name = pool.location.schema.as_bytes();
        let gate = outrigger_format::checksum(&[b"outrigger gate", name]) as i64;
        Self { pool, gate, counts: Counts::default() }
    }

    fn patience(&self) -> Duration {
        self.pool.location.patience
    }

    /// Until when a transaction that begins now waits for a server that is away. Patience counts
    /// from the first failure, whichever transaction had it.
    fn until(&self) -> Instant {
        let left = self.patience().saturating_sub(self.pool.health.failing_for());
        Instant::now() + left.max(GLANCE)
    }

    /// Returns a connection, and waits for a server that is away.
    fn connect(&self, until: Instant) -> Result<Lent<'_>> {
        let (mut pause, mut tries) = (Duration::from_millis(20), 1);
        loop {
            let left = until.saturating_duration_since(Instant::now()).max(GLANCE);
            match self.pool.get_within(CONNECT.min(left)) {
                Ok(connection) => return Ok(connection),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Io | ErrorKind::Busy) && Instant::now() < until =>
                {
                    note::again("connecting to the database", tries, &error.to_string());
                    tries += 1;
                    outrigger_clock::sleep(pause);
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn begin<'p>(&self, connection: Lent<'p>, gate: Gate) -> Result<Tx<'p>> {
        let mut first = String::from(BEGIN);
        if connection.pooled {
            first = format!("{first}; {SETTINGS}");
        }
        match gate {
            Gate::Open => {}
            Gate::Shared => first = format!("{first}; SELECT pg_advisory_xact_lock_shared({})", self.gate),
            Gate::Alone => first = format!("{first}; SELECT pg_advisory_xact_lock({})", self.gate),
        }
        let token = i64::from_le_bytes(outrigger_clock::random()?);
        let mark = Query::new("UPDATE @lane SET token = $2, used = now() WHERE id = $1");
        let mark = mark.int(connection.lane).int(token);
        let alone = gate == Gate::Alone;
        Ok(Tx { connection, first: Some(first), waiting: vec![mark], alone, token })
    }

    /// Runs `work` in a transaction: all of it or, on any error, nothing. `work` may run several
    /// times, and only one run counts.
    pub fn write<T>(&self, what: &str, gate: Gate, work: impl FnMut(&mut Tx<'_>) -> Outcome<T>) -> Result<T> {
        let began = Instant::now();
        let done = self.make(what, gate, work);
        self.counts.ended(began);
        done
    }

    fn make<T>(&self, what: &str, gate: Gate, mut work: impl FnMut(&mut Tx<'_>) -> Outcome<T>) -> Result<T> {
        let (began, until) = (Instant::now(), self.until());
        let (mut gate, mut tries) = (gate, 0);
        loop {
            let mut lent = self.connect(until).map_err(|error| error.context(what))?;
            if let Err(error) = lent.ensure_lane() {
                let again = is_lost(&error) && Instant::now() < until;
                lent.discard();
                self.pool.forget_idle();
                if again {
                    note::again(what, tries + 1, &why(&error));
                    self.counts.again();
                    continue;
                }
                return Err(Fault::from(error)).explain(what);
            }
            let mut tx = self.begin(lent, gate)?;
            let fault = match work(&mut tx) {
                Ok(value) => match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(Fault::Postgres(error)) if is_lost(&error) => {
                        let unanswered = Unanswered { lane: tx.connection.lane, token: tx.token };
                        tx.connection.discard();
                        self.pool.forget_idle();
                        if self.was_committed(unanswered, until).map_err(|error| error.context(what))? {
                            note::note(Level::Warning, "lost", || {
                                let said =
                                    format!("{what}: {}, while it was being committed; it was", why(&error));
                                (said, vec![("what", what.to_owned())])
                            });
                            return Ok(value);
                        }
                        note::again(
                            what,
                            tries + 1,
                            &format!("{}, while it was being committed; it was not", why(&error)),
                        );
                        self.counts.again();
                        continue;
                    }
                    Err(fault) => fault,
                },
                Err(fault) => fault,
            };
            tries += 1;
            let remedy = remedy(&fault);
            let Tx { mut connection, .. } = tx;
            if remedy == Remedy::Reconnect || connection.script("ROLLBACK").is_err() {
                connection.discard();
                // The others have most likely been lost with it.
                self.pool.forget_idle();
                self.pool.health.fails_since(began, &fault.why());
                if tries > 1 {
                    outrigger_clock::sleep(Duration::from_millis(50));
                }
            }
            match remedy {
                Remedy::Reconnect if Instant::now() < until => {}
                Remedy::Again { alone } if tries < TRIES => {
                    if (alone || tries >= TRIES_SHARED) && gate == Gate::Shared {
                        gate = Gate::Alone;
                    }
                }
                _ => return Err(fault).explain(what),
            }
            note::again(what, tries, &fault.why());
            self.counts.again();
        }
    }

    /// Sends one statement that is a transaction by itself, and returns the number that it answers
    /// with. [`Once::Nothing`] if that is negative, or the statement was refused: then nothing has
    /// changed.
    ///
    /// # Errors
    /// When the answer was lost, and it cannot be found out what became of it.
    pub fn at_once(&self, what: &str, statement: impl FnOnce(&Ticket) -> Query) -> Result<Once> {
        // A pooler has no prepared statements, and this statement is long.
        let Ok(mut connection) = self.pool.get() else { return Ok(Once::Nothing) };
        if connection.pooled || connection.ensure_lane().is_err() {
            return Ok(Once::Nothing);
        }
        let token = i64::from_le_bytes(outrigger_clock::random()?);
        let ticket = Ticket { gate: self.gate, lane: connection.lane, token };
        let began = Instant::now();
        let until = self.until();
        let fault = match connection.query(&statement(&ticket)) {
            Ok(answer) => {
                let read = || -> Outcome<i64> { Ok(super::counters::row(&answer)?.try_get(0)?) };
                let answer = read().explain(what)?;
                self.counts.ended(began);
                return Ok(u64::try_from(answer).map_or(Once::Nothing, |answer| Once::Done(Some(answer))));
            }
            Err(error) => Fault::from(error),
        };
        if remedy(&fault) == Remedy::Reconnect {
            connection.discard();
            self.pool.forget_idle();
        }
        let is_unknown = matches!(&fault, Fault::Postgres(error) if is_lost(error));
        let unanswered = Unanswered { lane: ticket.lane, token };
        if is_unknown && self.was_committed(unanswered, until).map_err(|error| error.context(what))? {
            self.counts.ended(began);
            return Ok(Once::Done(None));
        }
        note::again(what, 1, &fault.why());
        self.counts.again();
        Ok(Once::Nothing)
    }

    /// True if a transaction has happened whose COMMIT was sent and never answered. If it has not,
    /// it never will.
    ///
    /// # Errors
    /// When that cannot be found out by `until`. The error names the transaction, so that the
    /// caller can ask again later.
    fn was_committed(&self, unanswered: Unanswered, until: Instant) -> Result<bool> {
        let Unanswered { lane, token } = unanswered;
        let unknown = |error: Error| {
            error
                .context(
                    "the connection was lost while a transaction was being committed, and whether it was could not be found out",
                )
                .without_answer(unanswered)
        };
        // This wait gets time of its own, as the server may just be starting again.
        let until = until.max(Instant::now() + self.patience() / 2);
        loop {
            let mut connection = self.connect(until).map_err(unknown)?;
            // Waits for the transaction that has the row locked. A repetition gives the same
            // answer.
            let query = Query::new("UPDATE @lane SET closed = true WHERE id = $1 RETURNING token").int(lane);
            match connection.query(&query) {
                Ok(answer) => {
                    let found = answer.first().map(|row| row.try_get::<_, i64>(0)).transpose();
                    let found = found.map_err(Fault::from).explain("reading a lane").map_err(unknown)?;
                    return Ok(found == Some(token));
                }
                Err(_) if Instant::now() < until => {
                    connection.discard();
                    self.pool.forget_idle();
                    outrigger_clock::sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    return Err(Fault::from(error)).explain("reading a lane").map_err(unknown);
                }
            }
        }
    }

    /// As [`Transactions::was_committed`], later.
    ///
    /// # Errors
    /// As there.
    pub fn has_happened(&self, unanswered: Unanswered) -> Result<bool> {
        self.was_committed(unanswered, Instant::now())
    }

    /// Runs `work`, which changes nothing, on a connection; repeats it if the connection is lost.
    pub fn on_connection<T>(
        &self,
        what: &str,
        mut work: impl FnMut(&mut Connection) -> Outcome<T>,
    ) -> Result<T> {
        let (began, until) = (Instant::now(), self.until());
        loop {
            let mut connection = self.connect(until).map_err(|error| error.context(what))?;
            let fault = match work(&mut connection) {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let again = remedy(&fault) == Remedy::Reconnect;
            if again || connection.script("ROLLBACK").is_err() {
                connection.discard();
                self.pool.forget_idle();
                self.pool.health.fails_since(began, &fault.why());
            }
            if !again || Instant::now() >= until {
                return Err(fault).explain(what);
            }
            note::again(what, 1, &fault.why());
            outrigger_clock::sleep(Duration::from_millis(50));
        }
    }

    /// Runs one statement that reads.
    pub fn read_once(&self, what: &str, query: &Query) -> Result<Answer> {
        self.on_connection(what, |connection| Ok(connection.query(query)?))
    }

    /// Runs `work` on one consistent state of the database. It may run several times.
    pub fn read<T>(&self, what: &str, mut work: impl FnMut(&mut Connection) -> Outcome<T>) -> Result<T> {
        self.on_connection(what, |connection| {
            // For many rows the planner chooses best.
            connection.script(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_hashjoin = on; \
                 SET LOCAL enable_mergejoin = on; SET LOCAL enable_seqscan = on; SET LOCAL plan_cache_mode = auto; \
                 SET LOCAL idle_in_transaction_session_timeout = 0",
            )?;
            let value = work(connection)?;
            connection.script("COMMIT")?;
            Ok(value)
        })
    }

    /// As [`Transactions::read`], for `work` that tells others what it sees, and so cannot run
    /// twice.
    pub fn read_through<T>(&self, what: &str, work: impl FnOnce(&mut Connection) -> Outcome<T>) -> Result<T> {
        let mut work = Some(work);
        self.read(what, |connection| match work.take() {
            Some(work) => work(connection),
            None => Err(refuse(ErrorKind::Io, "the connection was lost; try again")),
        })
    }

    /// The statement by which a transaction takes the gate for itself alone.
    pub fn lock(&self) -> String {
        format!("SELECT pg_advisory_xact_lock({})", self.gate)
    }

    /// Waits until all transactions that hold the gate now have ended.
    pub fn barrier(&self, what: &str) -> Result<()> {
        let script = format!("{BEGIN}; {}; COMMIT", self.lock());
        self.on_connection(what, |connection| Ok(connection.script(&script)?))
    }
}
