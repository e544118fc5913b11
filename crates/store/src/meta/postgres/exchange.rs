//! Putting a recovered database in the place of the old one.
//!
//! A recovered store grows in a schema of its own, beside the one that it is for. When it is
//! complete, one transaction renames the old schema, which is kept, and the new one. Until then
//! nothing changes in the old schema, and clients that open the store find it. The transaction
//! exchanges the schemas' names, not rows, so damaged rows of the old one need not be readable.
//!
//! The old one must not be in use from the beginning of the recovery to its end: the new one would
//! lack what a client stored there meanwhile. A client that was stopped and goes on afterwards
//! finds the new store, in which no session has its number: numbers there begin with the
//! microseconds since 1970.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::connection::{BEGIN, Connection, Query};
use super::location::{Location, NAME_MAX};
use super::pool::Pool;
use super::sealing::Public;
use super::transaction::{Gate, Transactions};
use super::{PostgresMeta, counters, open, sessions};
use crate::config::StoreConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::fault::{Explain as _, Fault, Outcome, refuse};
use crate::meta::{Sealer, SessionRow, is_gone};

/// The present contents of a schema that is to have a recovered store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The schema, if there is one.
    schema: Option<i64>,
    /// The configuration of the store in it, if that can be read.
    pub config: Option<String>,
    /// The next session's number. If it is higher later, there was another session.
    next_session: Option<i64>,
    /// Sessions that are not over.
    sessions: Vec<SessionRow>,
}

impl Found {
    /// Fails while a session is live. A session does not count if its process is gone and its file
    /// among `locks` is unlocked.
    fn require_unused(&self, locks: &Path) -> Result<()> {
        let Some(session) = self.sessions.iter().find(|session| !is_gone(session, Some(locks))) else {
            return Ok(());
        };
        let why = format!("it is in use (session {}: {}); end that first", session.id.0, session.owner);
        Err(Error::new(ErrorKind::Busy, why))
    }

    /// True when no client has used it since `earlier`.
    fn is_as(&self, earlier: &Self) -> bool {
        (self.schema, &self.config, self.next_session)
            == (earlier.schema, &earlier.config, earlier.next_session)
    }
}

/// The name of a schema beside `schema`.
fn beside(schema: &str, suffix: &str) -> String {
    let name = format!("{schema}_{suffix}");
    if name.len() <= NAME_MAX {
        return name;
    }
    format!("outrigger_{:016x}_{suffix}", outrigger_format::checksum(&[schema.as_bytes()]))
}

fn schema_of(connection: &mut Connection, name: &str) -> Outcome<Option<i64>> {
    let sql = "SELECT oid::bigint FROM pg_namespace WHERE nspname = $1";
    let answer = connection.query(&Query::new(sql).with(Public(name.to_owned()), Type::NAME))?;
    Ok(answer.first().map(|row| row.try_get(0)).transpose()?)
}

fn has(connection: &mut Connection, table: &str) -> Outcome<bool> {
    let table = connection.text(table);
    let answer = connection.query(&Query::new("SELECT to_regclass($1) IS NOT NULL").public(&table))?;
    Ok(counters::row(&answer)?.try_get(0)?)
}

fn find(connection: &mut Connection, location: &Location) -> Outcome<Found> {
    let Some(schema) = schema_of(connection, &location.schema)? else { return Ok(Found::default()) };
    let sql = "SELECT count(*), count(*) FILTER (WHERE relname IN ('about', 'inode', 'dentry', 'pack')) FROM pg_class \
               WHERE relnamespace = $1::bigint::oid AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')";
    let answer = connection.query(&Query::new(sql).int(schema))?;
    let row = counters::row(&answer)?;
    let (all, ours): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if all > 0 && ours == 0 {
        let why = format!("schema {} has tables that are no store's; name another one", location.schema);
        return Err(refuse(ErrorKind::Exists, why));
    }
    let mut found = Found { schema: Some(schema), ..Found::default() };
    if let Some(about) = open::about(connection)? {
        about.require_known("the store in it").map_err(Fault::Store)?;
        found.config = Some(about.config);
    }
    if has(connection, "@session")? {
        let answer = connection.query(&Query::new(sessions::ALL))?;
        found.sessions = answer.rows.iter().map(sessions::read).collect::<Outcome<_>>()?;
    }
    if has(connection, "@counter")? {
        let sql = "SELECT value FROM @counter WHERE name = 'next_session'";
        let answer = connection.query(&Query::new(sql))?;
        found.next_session = answer.first().map(|row| row.try_get(0)).transpose()?;
    }
    Ok(found)
}

/// Looks at the schema at `location`.
///
/// # Errors
/// `Exists` when it has tables of another program, `Newer`; those of connecting.
pub(crate) fn look(location: &Location) -> Result<Found> {
    let transactions = Transactions::new(Pool::new(location.clone())?);
    let what = format!(
        "looking at {location}; if that cannot be read at all, `ALTER SCHEMA \"{0}\" RENAME TO \"{0}_damaged\"` takes it out of the way",
        location.schema
    );
    transactions.on_connection(&what, |connection| find(connection, location))
}

/// A database that is being rebuilt.
pub(crate) struct Unfinished {
    /// The database, in a schema of its own.
    pub meta: Arc<PostgresMeta>,
    schema: i64,
    /// Its final location.
    location: Location,
    found: Found,
    locks: PathBuf,
}

impl Unfinished {
    /// Makes the database, for the store `config` at `location`, where [`look`] has `found` the
    /// present schema. `locks` has the lock files of this host's sessions. Removes what an
    /// interrupted recovery has left. With the sealer of an encrypted store.
    ///
    /// # Errors
    /// `Busy` when a client uses the present schema, or another recovery is at work, `Exists` when
    /// the schema's name is taken, `Denied`; those of connecting.
    pub fn begin(
        location: &Location,
        found: Found,
        config: &StoreConfig,
        locks: &Path,
        sealer: Option<Sealer>,
    ) -> Result<Self> {
        found.require_unused(locks).map_err(|error| error.context(location))?;
        let there = Location { schema: beside(&location.schema, "recovering"), ..location.clone() };
        let left = look(&there)?;
        if let Some(text) = &left.config {
            let is_ours = StoreConfig::from_text(text).is_ok_and(|left| left.id == config.id);
            if !is_ours {
                let why = format!("schema {} has another store; rename it first", there.schema);
                return Err(Error::new(ErrorKind::Exists, why));
            }
            left.require_unused(locks).map_err(|error| error.context(&there))?;
            let what = format!("removing what an interrupted recovery has left in {there}");
            let transactions = Transactions::new(Pool::new(there.clone())?);
            let script = format!("DROP SCHEMA \"{}\" CASCADE", there.schema);
            transactions.on_connection(&what, |connection| Ok(connection.script(&script)?))?;
        }
        let meta = PostgresMeta::create_with(there.clone(), &config.to_text(), sealer)?;
        let first = (outrigger_clock::now_nanos() / 1000).max(found.next_session.unwrap_or(0) as u64);
        meta.write("raising counters", Gate::Alone, |tx| counters::raise(tx, &[("next_session", first)]))?;
        let what = format!("making {there}");
        let schema =
            meta.transactions.on_connection(&what, |connection| schema_of(connection, &there.schema))?;
        let schema = schema.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{what}: it is gone")))?;
        let (meta, location, locks) = (Arc::new(meta), location.clone(), locks.to_path_buf());
        Ok(Self { meta, schema, location, found, locks })
    }

    /// Puts the complete database in its place. The old one gets another name, which is returned.
    ///
    /// # Errors
    /// `Busy` when a client has used the old one meanwhile: then nothing has changed.
    pub fn take_place(&self) -> Result<Option<String>> {
        let location = &self.location;
        let what = format!("putting the recovered database in its place at {location}");
        let transactions = Transactions::new(Pool::new(location.clone())?);
        let mut connection = transactions.pool.get().map_err(|error| error.context(&what))?;
        let mut exchange = || -> Outcome<Option<String>> {
            // A client that opens a session now waits for this; one that opened it before is found.
            connection.script(&format!("{BEGIN}; {}", transactions.lock()))?;
            let found = find(&mut connection, location)?;
            found.require_unused(&self.locks)?;
            if !found.is_as(&self.found) {
                let why = "another client has used it meanwhile, and the recovered database lacks its changes; run `recover` again";
                return Err(refuse(ErrorKind::Busy, why));
            }
            let new = &self.meta.location().schema;
            if schema_of(&mut connection, new)? != Some(self.schema) {
                return Err(refuse(ErrorKind::Busy, "another recovery has begun meanwhile"));
            }
            let mut aside = None;
            if self.found.schema.is_some() {
                let name = free_name(&mut connection, &location.schema)?;
                connection.script(&format!("ALTER SCHEMA \"{}\" RENAME TO \"{name}\"", location.schema))?;
                aside = Some(name);
            }
            connection
                .script(&format!("ALTER SCHEMA \"{new}\" RENAME TO \"{}\"; COMMIT", location.schema))?;
            Ok(aside)
        };
        let exchanged = exchange();
        if exchanged.is_err() {
            connection.discard();
        }
        exchanged.explain(&what)
    }
}

/// A free name for the schema that is set aside.
fn free_name(connection: &mut Connection, schema: &str) -> Outcome<String> {
    let now = outrigger_clock::now_nanos() / 1_000_000_000;
    for number in now.. {
        let name = beside(schema, &format!("damaged_{number}"));
        if schema_of(connection, &name)?.is_none() {
            return Ok(name);
        }
    }
    Err(refuse(ErrorKind::Exists, "no free name for a schema"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_are_not_too_long() {
        assert_eq!(beside("team", "recovering"), "team_recovering");
        let long = "ä".repeat(NAME_MAX / 2);
        let names = [
            beside(&long, "recovering"),
            beside(&long, "damaged_1700000000"),
            beside(&"b".repeat(63), "recovering"),
        ];
        for name in &names {
            assert!(name.len() <= NAME_MAX, "{name}");
        }
        assert_ne!(names[0], names[2]);
    }
}
