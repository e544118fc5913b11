//! One connection to the server: statements, alone or several in one go.
//!
//! Each connection has a small runtime of its own, which runs only while the thread that borrowed
//! the connection waits for an answer. So no thread wakes another to pass an answer on, an engine
//! has no threads that a fork would lose, and callers simply block.
//!
//! **Statements** are prepared once per connection, by name, and then bound. A pooler may give
//! every transaction another server process ([`Location::pooled`]), so nothing may be kept there:
//! statements are then sent whole each time, and settings with each transaction.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::{join_all, join3};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error as SqlError, SimpleQueryMessage, Statement};

use super::guarded::{self, IN_CLEAR};
use super::location::{Address, Location, TlsMode};
pub(super) use super::query::{Answer, Query, Row};
use super::sealing::{Param, Seals, Sent};
use super::tls::Tls;
use crate::error::{Context as _, Error, ErrorKind, Result};

/// A server that does not answer at all is given up after about so long.
const SILENCE: Duration = Duration::from_secs(25);
/// How long a server may take to say that it is there.
const ANSWER: Duration = Duration::from_secs(5);
/// Idle time after which the server is asked whether it is there, and the interval of these
/// questions.
pub(super) const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// How many of these questions it may leave unanswered.
pub(super) const KEEPALIVE_TRIES: u32 = 3;
/// Statements that are sent in one go at most.
const TOGETHER: usize = 24;

/// Settings of every transaction that writes. Waiting for others has an end, and a transaction with
/// a silent client does not keep its locks. Rows are always found by keys, whatever the planner
/// believes of their number. It then believes that every statement is very expensive, and would
/// compile each, which takes far longer than running it; so that is off. Prepared statements are
/// planned once, as keys always fit.
pub(super) const SETTINGS: &str = "SET LOCAL lock_timeout = '30s'; SET LOCAL idle_in_transaction_session_timeout = '20s'; \
    SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off; SET LOCAL jit = off; \
    SET LOCAL plan_cache_mode = force_generic_plan";

/// Begins a transaction that writes. Each of its statements sees what was committed before,
/// whatever the server's default is. With one view for all statements, taken before it waited for
/// others, it would change what a snapshot taken meanwhile shows.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// A statement that this connection has prepared.
struct Known {
    text: String,
    prepared: Option<Statement>,
}

/// A connection.
pub(super) struct Connection {
    client: Client,
    line: Line,
    schema: String,
    /// Those of its engine.
    pub seals: Seals,
    pub pooled: bool,
    statements: HashMap<&'static str, Known>,
    /// A number of its own, in the table `lane`.
    pub lane: i64,
    /// Its row there has been made.
    pub lane_is_there: bool,
    /// It has a name of its own in the server's list.
    is_named: bool,
}

impl Connection {
    /// Connects to one of the store's servers, and logs in. `patience` bounds the time.
    ///
    /// # Errors
    /// `Io` when the server cannot be reached, or is a standby where a primary is wanted; `Denied`
    /// when it refuses; `Busy` when it is starting or has too many clients.
    pub fn open(location: &Location, server: &Address, tls: &Tls, patience: Duration) -> Result<Self> {
        let password = location.password(server)?;
        Self::open_as(location, server, tls, patience, password)
    }

    /// Like [`Connection::open`], with this password.
    pub(super) fn open_as(
        location: &Location,
        server: &Address,
        tls: &Tls,
        patience: Duration,
        password: Option<String>,
    ) -> Result<Self> {
        let what = || format!("connecting to {location}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context(what)?;
        let mut config = Config::new();
        config
            .user(&location.user)
            .dbname(&location.database)
            .port(server.port)
            .application_name("outrigger")
            .connect_timeout(patience)
            .tcp_user_timeout(SILENCE)
            .keepalives_idle(KEEPALIVE.0)
            .keepalives_interval(KEEPALIVE.1)
            .keepalives_retries(KEEPALIVE_TRIES)
            .ssl_mode(match location.tls {
                _ if server.is_socket() => SslMode::Disable,
                TlsMode::Disable => SslMode::Disable,
                TlsMode::Prefer => SslMode::Prefer,
                TlsMode::Require | TlsMode::VerifyFull => SslMode::Require,
            });
        if server.is_socket() {
            config.host_path(&server.host);
        } else {
            config.host(&server.host);
        }
        if location.primary {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let mut tells_secret = false;
        if let Some(password) = password {
            crate::note::secret(&password);
            config.password(password);
            tells_secret = location.tls == TlsMode::Prefer && !server.is_socket();
        }
        // The configured limit is for reaching the server, which may be silent after that.
        let greet = async {
            if tells_secret {
                return greet_guarded(&config, server, tls, location).await;
            }
            let (client, driver) =
                config.connect(tls.clone()).await.map_err(|error| refused(location, error))?;
            Ok((client, tokio::spawn(driver).abort_handle()))
        };
        let greeting = runtime.block_on(async { timeout(patience, greet).await });
        let silent = |_| {
            let why = format!("{}: it does not answer within {} s", what(), patience.as_secs());
            Error::new(ErrorKind::Io, why)
        };
        let (client, driver) = greeting.map_err(silent)??;
        let silence = SILENCE.min(location.patience / 2);
        let line = Line { runtime, driver, server: server.clone(), silence };
        let lane = i64::from_le_bytes(outrigger_clock::random()?);
        let mut connection = Self {
            client,
            line,
            schema: format!("\"{}\".", location.schema),
            seals: Seals::default(),
            pooled: location.pooled,
            statements: HashMap::new(),
            lane,
            lane_is_there: false,
            is_named: false,
        };
        if !connection.pooled {
            // Functions find the tables by this path; all other statements name the schema.
            let path = format!("SET search_path TO \"{}\"", location.schema);
            // A statement by itself is a transaction, too.
            let isolation = "SET default_transaction_isolation TO 'read committed'";
            let settings = format!("{}; {isolation}; {path}", SETTINGS.replace(" LOCAL", ""));
            connection.script(&settings).map_err(|error| refused(location, error))?;
        }
        Ok(connection)
    }

    /// The number of this primary among all that the database has had: each one that takes over
    /// counts one more.
    ///
    /// # Errors
    /// The connection's.
    pub fn timeline(&mut self, location: &Location) -> Result<i64> {
        let sql =
            "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint";
        let read = self.query(&Query::new(sql)).and_then(|answer| answer.rows[0].try_get(0));
        read.map_err(|error| refused(location, error))
    }

    /// True when it can no longer be used.
    pub fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    /// Sets its name in the server's list of activities. Not behind a pooler, where the process
    /// soon serves another client.
    pub fn bear(&mut self, name: &str) {
        if self.pooled || self.is_named {
            return;
        }
        // The name only helps people. A lost connection shows with its next use.
        let _ = self.script(&format!("SET application_name TO '{}'", name.replace('\'', "")));
        self.is_named = true;
    }

    /// Makes its row of `lane`, which must be committed before any transaction locks it.
    pub fn ensure_lane(&mut self) -> Result<(), SqlError> {
        if !self.lane_is_there {
            let insert = "INSERT INTO @lane (id, token) VALUES ($1, 0) ON CONFLICT DO NOTHING";
            self.query(&Query::new(insert).int(self.lane))?;
            self.lane_is_there = true;
        }
        Ok(())
    }

    /// Inserts the schema's name.
    pub fn text(&self, sql: &str) -> String {
        sql.replace('@', &self.schema)
    }

    /// Runs statements without parameters, divided by semicolons.
    pub fn script(&mut self, text: &str) -> Result<(), SqlError> {
        self.line.wait(self.client.batch_execute(text))
    }

    /// Runs one statement.
    pub fn query(&mut self, query: &Query) -> Result<Answer, SqlError> {
        self.observe(std::slice::from_ref(query))?;
        self.line.wait(ask(&self.client, &self.seals, &self.statements[query.sql], query))
    }

    /// Sends a script (if there is one), statements, and a last script, before it waits for their
    /// answers.
    ///
    /// # Errors
    /// The first error. The server refuses everything sent after it, as the transaction has failed.
    pub fn together(
        &mut self,
        first: Option<&str>,
        queries: &[Query],
        last: Option<&str>,
    ) -> Result<Vec<Answer>, SqlError> {
        self.observe(queries)?;
        let Self { client, statements, line, seals, .. } = self;
        line.wait(async {
            let mut answers = Vec::with_capacity(queries.len());
            let mut parts = queries.chunks(TOGETHER).peekable();
            let mut first = first;
            loop {
                let part = parts.next().unwrap_or_default();
                let last = if parts.peek().is_none() { last } else { None };
                // Polled in this order: each sends its part before it first waits.
                let script = async {
                    match first.take() {
                        Some(first) => client.batch_execute(first).await,
                        None => Ok(()),
                    }
                };
                let some =
                    join_all(part.iter().map(|query| ask(client, seals, &statements[query.sql], query)));
                let end = async {
                    match last {
                        Some(last) => client.batch_execute(last).await,
                        None => Ok(()),
                    }
                };
                let (script, some, end) = join3(script, some, end).await;
                script?;
                for answer in some {
                    answers.push(answer?);
                }
                end?;
                if parts.peek().is_none() {
                    return Ok(answers);
                }
            }
        })
    }

    /// Runs one statement, and hands out its rows as they come.
    pub fn stream<E: From<SqlError>>(
        &mut self,
        query: &Query,
        mut each: impl FnMut(&Row) -> Result<(), E>,
    ) -> Result<(), E> {
        self.observe(std::slice::from_ref(query))?;
        let Self { client, statements, line, seals, .. } = self;
        let known = &statements[query.sql];
        let mut rows = line.wait(start(client, seals, known, query)).map(Box::pin)?;
        while let Some(row) = line.wait(rows.try_next())? {
            each(&Row::new(row, seals))?;
        }
        Ok(())
    }

    /// Prepares the statements that are new.
    fn observe(&mut self, queries: &[Query]) -> Result<(), SqlError> {
        for query in queries {
            if self.statements.contains_key(query.sql) {
                continue;
            }
            let text = self.text(query.sql);
            let prepared = if self.pooled {
                None
            } else {
                let types: Vec<Type> = query.params.iter().map(Param::kind).collect();
                Some(self.line.wait(self.client.prepare_typed(&text, &types))?)
            };
            self.statements.insert(query.sql, Known { text, prepared });
        }
        Ok(())
    }
}

/// The source of answers.
struct Line {
    runtime: Runtime,
    /// Reads and writes the connection's socket.
    driver: AbortHandle,
    server: Address,
    /// A server that is silent for so long is asked whether it is there.
    silence: Duration,
}

impl Line {
    /// Waits for an answer. A statement may take long, so another connection asks a silent server
    /// whether it is there. A server that stands still acknowledges packets, and one would wait for
    /// it for ever. If it gives no answer, this connection is given up.
    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            let mut answer = pin!(answer);
            loop {
                match timeout(self.silence, &mut answer).await {
                    Ok(answer) => return answer,
                    Err(_) if self.server.answers(ANSWER.min(self.silence)) => {}
                    Err(_) => self.driver.abort(),
                }
            }
        })
    }
}

/// A parameter as it is sent.
fn value<'q>((param, sealed): (&'q Param, &'q Option<Sent>)) -> &'q (dyn ToSql + Sync) {
    match sealed {
        Some(value) => &**value,
        None => param.plain(),
    }
}

async fn start(
    client: &Client,
    seals: &Seals,
    known: &Known,
    query: &Query,
) -> Result<tokio_postgres::RowStream, SqlError> {
    let sealed: Vec<_> = query.params.iter().map(|param| seals.sealed(param)).collect();
    let params = query.params.iter().zip(&sealed);
    match &known.prepared {
        Some(statement) => client.query_raw(statement, params.map(value)).await,
        None => {
            let params = params.map(|(param, sealed)| (value((param, sealed)), param.kind()));
            client.query_typed_raw(&known.text, params).await
        }
    }
}

async fn ask(client: &Client, seals: &Seals, known: &Known, query: &Query) -> Result<Answer, SqlError> {
    let mut stream = pin!(start(client, seals, known, query).await?);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await? {
        rows.push(Row::new(row, seals));
    }
    let affected = stream.rows_affected().unwrap_or(0);
    Ok(Answer { rows, affected })
}

/// Connects over TCP, secured if the server can, and never sends a password in clear.
async fn greet_guarded(
    config: &Config,
    server: &Address,
    tls: &Tls,
    location: &Location,
) -> Result<(Client, AbortHandle)> {
    let mut tls = tls.clone();
    let handshake =
        MakeTlsConnect::<guarded::Guarded<tokio::net::TcpStream>>::make_tls_connect(&mut tls, &server.host)
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("connecting to {location}: {error}")))?;
    let stream = guarded::connect(&server.host, server.port, SILENCE).await;
    let stream = stream.context(|| format!("connecting to {location}"))?;
    let (client, driver) =
        config.connect_raw(stream, handshake).await.map_err(|error| refused(location, error))?;
    let driver = tokio::spawn(driver).abort_handle();
    if location.primary {
        let shown = client.simple_query("SHOW transaction_read_only").await;
        let is_standby = shown
            .map_err(|error| refused(location, error))?
            .iter()
            .any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("on")));
        if is_standby {
            let why = format!("connecting to {location}: database does not allow writes");
            return Err(Error::new(ErrorKind::Io, why));
        }
    }
    Ok((client, driver))
}

/// Says why there is no connection, and what the user can do.
fn refused(location: &Location, error: SqlError) -> Error {
    use std::error::Error as _;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if !text.contains(&cause.to_string()) {
            text = format!("{text}: {cause}");
        }
        source = cause.source();
    }
    let (kind, hint) = match error.code().map(|state| state.code()) {
        Some("28P01" | "28000") => {
            (ErrorKind::Denied, "; set PGPASSWORD, or write the password to ~/.pgpass (mode 600)")
        }
        Some("3D000") => (ErrorKind::NotFound, "; make it with `createdb`"),
        Some("57P03" | "53300") => (ErrorKind::Busy, ""),
        Some(_) => (ErrorKind::Denied, ""),
        None if text.contains(IN_CLEAR) => (
            ErrorKind::Denied,
            "; anybody who listens there could: have the server ask for scram-sha-256. sslmode=verify-full sends it to a server with a \
             certificate, and sslmode=disable to any",
        ),
        None if text.contains("password missing") => {
            (ErrorKind::Denied, "; set PGPASSWORD, or write the password to ~/.pgpass (mode 600)")
        }
        None if text.contains("does not support TLS") || text.contains("certificate") => (
            ErrorKind::Denied,
            "; the connection is to be secured, as sslmode=verify-full is the default beyond this machine: give the server a \
             certificate (sslrootcert=FILE names its authority), or say sslmode=require (encrypt, trust anybody) or sslmode=disable",
        ),
        None => (ErrorKind::Io, ""),
    };
    Error::new(kind, format!("connecting to {location}: {text}{hint}"))
}
