//! Makes a store's schema, and refuses schemas of other programs.

use tokio_postgres::types::Type;

use super::connection::{BEGIN, Connection, Query, Row};
use super::row::{Stored, Traits, directory_sum, inode_sum};
use super::transaction::Transactions;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::ROOT_INODE;
use crate::meta::change::row::{Content, Special, root_attributes};
use crate::meta::fault::{Explain as _, Fault, Outcome, refuse};

/// The scripts that make the schema, in order.
const SCHEMA: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema_triggers.sql"),
    include_str!("schema_append_only.sql"),
    include_str!("schema_speculative.sql"),
    include_str!("schema_make_speculatively.sql"),
];
/// Of the schema.
const VERSION: i32 = 13;
/// Older servers lack what the statements use.
const SERVER_MIN: i32 = 130_000;

/// A store's own record.
pub(super) struct About {
    pub version: i32,
    pub config: String,
}

/// Reads the record; `None` when there is no store in the schema.
pub(super) fn about(connection: &mut Connection) -> Outcome<Option<About>> {
    let table = connection.text("@about");
    let there = connection.query(&Query::new("SELECT to_regclass($1) IS NOT NULL").public(&table))?;
    if !super::counters::row(&there)?.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let answer = connection.query(&Query::new("SELECT version, config FROM @about"))?;
    let read =
        |row: &Row| -> Outcome<About> { Ok(About { version: row.try_get(0)?, config: row.public(1)? }) };
    answer.first().map(read).transpose()
}

/// True when the schema has a store.
pub(super) fn is_there(transactions: &Transactions) -> Result<bool> {
    let what = format!("looking for a store in {}", transactions.pool.location);
    let mut connection = transactions.pool.get()?;
    Ok(about(&mut connection).explain(&what)?.is_some())
}

/// Makes the schema with an empty tree and the configuration, and runs `fill`: all of it or
/// nothing.
pub(super) fn create(
    transactions: &Transactions,
    config: &str,
    fill: &mut dyn FnMut(&mut Connection) -> Outcome<()>,
) -> Result<()> {
    let location = &transactions.pool.location;
    let what = format!("creating a store in {location}");
    let mut connection = transactions.pool.get().map_err(|error| error.context(&what))?;
    require_server(&mut connection).explain(&what)?;
    let exists = || Error::new(ErrorKind::Exists, format!("{what}: there is one already"));
    let mut make = || -> Outcome<bool> {
        if about(&mut connection)?.is_some() {
            return Ok(false);
        }
        connection.script(BEGIN)?;
        // Two creators wait for each other at the lock, and the second one finds the first one's
        // tables. A role that may not make schemas may have been given one.
        let there =
            Query::new("SELECT to_regnamespace($1) IS NOT NULL").public(&format!("\"{}\"", location.schema));
        let schema = match super::counters::row(&connection.query(&there)?)?.try_get(0)? {
            true => String::new(),
            false => format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", location.schema),
        };
        let lock = format!(
            "SELECT pg_advisory_xact_lock({})",
            outrigger_format::checksum(&[b"outrigger schema", location.schema.as_bytes()]) as i64
        );
        connection.script(&format!("{lock}; SET LOCAL client_min_messages = warning; {schema}"))?;
        if about(&mut connection)?.is_some() {
            connection.script("ROLLBACK")?;
            return Ok(false);
        }
        make_tables(&mut connection)?;
        connection.query(
            &Query::new("INSERT INTO @about (one, version, config) VALUES (1, $1, $2)")
                .with(VERSION, Type::INT4)
                .public(config),
        )?;
        make_root(&mut connection)?;
        fill(&mut connection)?;
        connection.script("COMMIT")?;
        Ok(true)
    };
    let made = make();
    if made.is_err() {
        // Undoes everything, whatever the error was.
        connection.discard();
    }
    if made.explain(&what)? { Ok(()) } else { Err(exists()) }
}

fn make_tables(connection: &mut Connection) -> Outcome<()> {
    for step in SCHEMA {
        // At signs in comments are not placeholders.
        let code: Vec<&str> = step.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
        let text = connection.text(&code.join("\n"));
        connection.script(&text)?;
    }
    Ok(())
}

/// Makes the root directory, which belongs to the user who makes the store.
fn make_root(connection: &mut Connection) -> Outcome<()> {
    let (mode, uid, gid) = root_attributes();
    let number = ROOT_INODE as i64;
    let root = Stored {
        number,
        epoch: 1,
        links: 1,
        version: 1,
        time: 0,
        stamp: 0,
        mode,
        content: Content {
            traits: Traits { mode, uid, gid, xattrs: None },
            mtime: Default::default(),
            special: Special::None,
            root: None,
            times: None,
        },
    };
    let sql = "INSERT INTO @inode (number, epoch, version, mtime_secs, time, stamp, mtime_nanos, mode, uid, gid, links, sum) \
               VALUES ($1, 1, 1, 0, 0, 0, 0, $2, $3, $4, 1, $5)";
    let small = |query: Query, value: i32| query.with(value, Type::INT4);
    let query = small(Query::new(sql).int(number), mode as i32);
    let query = small(small(query, (uid as u32).cast_signed()), (gid as u32).cast_signed());
    let sum = inode_sum(&connection.seals, &root);
    connection.query(&small(query, sum))?;
    let sql = "INSERT INTO @directory (inode, parent, sum) VALUES ($1, $1, $2)";
    let sum = directory_sum(&connection.seals, number, number);
    connection.query(&small(Query::new(sql).int(number), sum))?;
    Ok(())
}

/// Fails unless this role could make a store here, on a server that is new enough.
pub(super) fn require_room(transactions: &Transactions) -> Result<()> {
    let location = &transactions.pool.location;
    let what = format!("creating a store in {location}");
    // Tables of a copy are taken over by way of temporary tables.
    let sql = "SELECT has_database_privilege(current_database(), 'TEMPORARY'), \
               CASE WHEN to_regnamespace($1) IS NULL THEN has_database_privilege(current_database(), 'CREATE') \
               ELSE has_schema_privilege(to_regnamespace($1)::oid, 'CREATE') END";
    let schema = format!("\"{}\"", location.schema);
    let (temporary, create) = transactions.on_connection(&what, |connection| {
        require_server(connection)?;
        let answer = connection.query(&Query::new(sql).public(&schema))?;
        let row = super::counters::row(&answer)?;
        Ok((row.try_get::<_, bool>(0)?, row.try_get::<_, bool>(1)?))
    })?;
    if temporary && create {
        return Ok(());
    }
    let right = if create { "TEMPORARY" } else { "CREATE" };
    let why = format!(
        "{what}: {0} may not do that; grant it (GRANT {right} ON DATABASE {1} TO {0})",
        location.user, location.database
    );
    Err(Error::new(ErrorKind::Denied, why))
}

fn require_server(connection: &mut Connection) -> Outcome<()> {
    let answer = connection.query(&Query::new(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version')",
    ))?;
    let row = super::counters::row(&answer)?;
    if row.try_get::<_, i32>(0)? < SERVER_MIN {
        let version: &str = row.public(1)?;
        return Err(refuse(ErrorKind::Invalid, format!("PostgreSQL {version} is too old: 13 is needed")));
    }
    Ok(())
}

/// Checks that there is a store of a known version, and returns its configuration.
pub(super) fn recognise(transactions: &Transactions) -> Result<String> {
    let location = &transactions.pool.location;
    let what = format!("metadata in {location}");
    let found = transactions.on_connection(&what, |connection| {
        require_server(connection)?;
        about(connection)
    })?;
    let found = found.ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{location} has no store; make one with `outrigger -s '{location}' init --packs URL`; if it had one, `recover --packs URL` rebuilds \
                 that from its packs"
            ),
        )
    })?;
    found.require_known(&what)?;
    Ok(found.config)
}

impl About {
    /// Fails for a schema of another version.
    pub fn require_known(&self, what: &str) -> Result<()> {
        if self.version == VERSION {
            return Ok(());
        }
        let kind = if self.version > VERSION { ErrorKind::Newer } else { ErrorKind::Invalid };
        let why =
            format!("{what}: its schema has version {}, this program knows version {VERSION}", self.version);
        Err(Error::new(kind, why))
    }
}

/// The rights of this role.
pub(super) struct May {
    /// Change the store, on a server that accepts changes.
    pub write: bool,
    /// Delete snapshots, and so all else.
    pub remove: bool,
}

/// Asks what this role may do here.
pub(super) fn may(transactions: &Transactions) -> Result<May> {
    let what = format!("metadata in {}", transactions.pool.location);
    // If there is no store yet, the caller should report that instead.
    let sql = "SELECT NOT pg_is_in_recovery() AND coalesce(has_table_privilege(to_regclass($1)::oid, 'INSERT'), true), \
               coalesce(has_table_privilege(session_user, to_regclass($2)::oid, 'DELETE'), true)";
    let table = |name| format!("\"{}\".{name}", transactions.pool.location.schema);
    let query = Query::new(sql).public(&table("session")).public(&table("snapshot"));
    let answer = transactions.read_once(&what, &query)?;
    let read = || -> Outcome<May> {
        let row = super::counters::row(&answer)?;
        Ok(May { write: row.try_get(0)?, remove: row.try_get(1)? })
    };
    read().explain(&what)
}

/// Makes commits durable when they return. Stronger settings are kept.
pub(super) fn require_durable(transactions: &Transactions) -> Result<()> {
    let what = format!("metadata in {}", transactions.pool.location);
    let query = Query::new("SELECT current_setting('synchronous_commit')");
    let answer = transactions.read_once(&what, &query)?;
    let read = || -> Outcome<String> { Ok(super::counters::row(&answer)?.public(0)?) };
    let setting = read().explain(&what)?;
    if setting == "off" {
        let why = "synchronous_commit is off for this user or database: what is acknowledged could be lost; set it to on \
                   (ALTER ROLE … SET synchronous_commit = on)";
        return Err(Fault::Store(Error::new(ErrorKind::Invalid, why))).explain(&what);
    }
    Ok(())
}
