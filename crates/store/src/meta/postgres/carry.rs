//! Rows into the database in which a state is frozen, and out of it (`meta/carry.rs`).
//!
//! **Taking over** changes only rows that differ: a replica that is updated every minute is not
//! rewritten every minute. All rows go into temporary tables first; then three statements a table
//! remove, change and add rows. All of it is one transaction, alone: a reader sees the copy as it
//! was or as it is.

mod rows;

use std::sync::LazyLock;

use tokio_postgres::types::Type;

use self::rows::{Batch, values, was};
use super::connection::{Answer, Connection, Query, Row};
use super::location::Location;
use super::pool::Pool;
use super::sealing::Seals;
use super::transaction::{Gate, Transactions};
use super::{PostgresMeta, counters, open, sessions, snapshots};
use crate::error::{ErrorKind, Result};
use crate::meta::SnapshotRow;
use crate::meta::carry::{Kind, Rest, TABLES, Table};
use crate::meta::fault::{Outcome, refuse};
use crate::meta::{Counters, Sealer, SqliteMeta};

/// For transactions that look at whole tables: there the planner knows best. Between two statements
/// rows are read of a file, which may take a while.
const SETTINGS: [&str; 4] = [
    "SET LOCAL enable_hashjoin = on",
    "SET LOCAL enable_mergejoin = on",
    "SET LOCAL enable_seqscan = on",
    "SET LOCAL idle_in_transaction_session_timeout = '5min'",
];

/// The statements about one table.
struct Statements {
    /// Every row, the checksum last.
    read: String,
    /// Makes the temporary table.
    stage: String,
    /// Puts rows there: columns as `$1` …, the checksum last.
    fill: String,
    count: String,
    /// Removes rows that are not there.
    gone: String,
    /// Changes those that differ.
    changed: String,
    /// Adds those that are new.
    new: String,
}

static STATEMENTS: LazyLock<Vec<Statements>> = LazyLock::new(|| TABLES.iter().map(Statements::of).collect());

fn array(kind: Kind) -> (&'static str, Type) {
    match kind {
        Kind::Big => ("int8[]", Type::INT8_ARRAY),
        Kind::Small | Kind::Bits => ("int4[]", Type::INT4_ARRAY),
        Kind::Bytes => ("bytea[]", Type::BYTEA_ARRAY),
        Kind::Text => ("text[]", Type::TEXT_ARRAY),
    }
}

impl Statements {
    fn of(table: &Table) -> Self {
        let name = table.name;
        let mut kinds: Vec<Kind> = table.columns.iter().map(|(_, kind)| *kind).collect();
        let mut given: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        if !table.summed.is_empty() {
            kinds.push(Kind::Small);
            given.push("sum");
        }
        let mut all = given.clone();
        let mut values: Vec<String> = given.iter().map(|column| format!("n.{column}")).collect();
        if let Some((column, clause)) = table.made {
            all.push(column);
            values.push(clause.to_owned());
        }
        let arrays = kinds.iter().zip(1..).map(|(kind, number)| format!("${number}::{}", array(*kind).0));
        let arrays = arrays.collect::<Vec<_>>().join(", ");
        let (given, filled, into) = (given.join(", "), values.join(", "), all.join(", "));
        let same: Vec<String> = table.key.iter().map(|column| format!("n.{column} = t.{column}")).collect();
        let same = same.join(" AND ");
        let others: Vec<&str> = all.iter().copied().filter(|column| !table.key.contains(column)).collect();
        let of = |row: &str, columns: &[&str]| {
            columns.iter().map(|column| format!("{row}.{column}")).collect::<Vec<_>>().join(", ")
        };
        let set: Vec<String> = others.iter().map(|column| format!("{column} = n.{column}")).collect();
        let numbered = if table.is_numbered { " OVERRIDING SYSTEM VALUE" } else { "" };
        Self {
            read: format!("SELECT {given}{} FROM @{name}", was(table)),
            stage: format!(
                "CREATE TEMPORARY TABLE taken_{name} ON COMMIT DROP AS SELECT {into} FROM @{name} WITH NO DATA"
            ),
            fill: format!(
                "INSERT INTO taken_{name} ({into}) SELECT {filled} FROM unnest({arrays}) AS n ({given})"
            ),
            count: format!("ANALYZE taken_{name}"),
            gone: format!(
                "DELETE FROM @{name} t WHERE NOT EXISTS (SELECT 1 FROM taken_{name} n WHERE {same})"
            ),
            changed: format!(
                "UPDATE @{name} t SET {} FROM taken_{name} n WHERE {same} AND ({}) IS DISTINCT FROM ({})",
                set.join(", "),
                of("t", &others),
                of("n", &others)
            ),
            new: format!(
                "INSERT INTO @{name} ({into}){numbered} SELECT {} FROM taken_{name} n \
                 WHERE NOT EXISTS (SELECT 1 FROM @{name} t WHERE {same})",
                of("n", &all)
            ),
        }
    }
}

/// The last job's number; `$1` is its table. A role that only reads tables cannot read sequences.
const LAST_JOB: &str = "SELECT coalesce(CASE WHEN has_sequence_privilege(s.name, 'SELECT') \
    THEN pg_sequence_last_value(s.name::regclass) END, (SELECT max(id) FROM @job), 0)::bigint \
    FROM (SELECT pg_get_serial_sequence($1, 'id') AS name) s";
/// The next job gets a higher number than `$2`; without the right, than all that exist.
const RAISE_JOB: &str = "SELECT setval(s.name::regclass, greatest($2, coalesce(pg_sequence_last_value(s.name::regclass), 0))) \
    FROM (SELECT pg_get_serial_sequence($1, 'id') AS name) s \
    WHERE has_sequence_privilege(s.name, 'SELECT') AND has_sequence_privilege(s.name, 'UPDATE')";

/// A snapshot as a copy has it: roles are this server's.
fn copied(row: &Row) -> Outcome<SnapshotRow> {
    Ok(SnapshotRow { role: None, ..snapshots::read(row)? })
}

fn read_rest(connection: &mut Connection) -> Outcome<Rest> {
    let answer = connection.query(&Query::new("SELECT epoch, generation FROM @state"))?;
    let state = counters::row(&answer)?;
    let next = counters::read_next(&connection.query(&Query::new(counters::NEXT))?)?;
    let sessions = connection.query(&Query::new("SELECT value FROM @counter WHERE name = 'next_session'"))?;
    let totals = counters::read_totals(&connection.query(&Query::new(counters::TOTALS))?)?;
    let snapshots = connection.query(&Query::new(snapshots::ALL))?;
    let table = connection.text("@job");
    let last_job = counters::row(&connection.query(&Query::new(LAST_JOB).public(&table))?)?.try_get(0)?;
    Ok(Rest {
        epoch: state.try_get(0)?,
        generation: state.try_get(1)?,
        next_inode: next.next_inode as i64,
        next_pack: next.next_pack as i64,
        next_session: counters::row(&sessions)?.try_get(0)?,
        next_sequence: next.next_sequence as i64,
        totals: [totals.files, totals.directories, totals.others, totals.bytes].map(|total| total as i64),
        snapshots: snapshots.rows.iter().map(copied).collect::<Outcome<_>>()?,
        last_job,
    })
}

/// Runs statements in the transaction in which rows are taken over.
type Run<'r> = &'r mut dyn FnMut(Vec<Query>) -> Outcome<Vec<Answer>>;

/// Makes the tables equal to `from`.
fn take(run: Run<'_>, seals: &Seals, schema: &str, from: &SqliteMeta) -> Outcome<()> {
    run(SETTINGS.into_iter().map(Query::new).collect())?;
    for (table, sql) in TABLES.iter().zip(&*STATEMENTS) {
        run(vec![Query::new(&sql.stage)])?;
        let mut batch = Batch::new(seals, table);
        from.each_row(table, &mut |values| {
            batch.push(table, values)?;
            if batch.is_full() {
                let full = std::mem::replace(&mut batch, Batch::new(seals, table));
                run(vec![full.into_query(&sql.fill)])?;
            }
            Ok(())
        })?;
        if !batch.is_empty() {
            run(vec![batch.into_query(&sql.fill)])?;
        }
        run([&sql.count, &sql.gone, &sql.changed, &sql.new].map(|sql| Query::new(sql)).into())?;
    }
    take_rest(run, schema, &from.rest()?)
}

fn take_rest(run: Run<'_>, schema: &str, rest: &Rest) -> Outcome<()> {
    let answers = run(vec![Query::new(counters::TOTALS), Query::new(snapshots::ALL)])?;
    let [totals, there] = &answers[..] else {
        return Err(refuse(ErrorKind::Damaged, "two questions have two answers"));
    };
    let mut queries: Vec<Query> = [
        "DELETE FROM @session",
        "DELETE FROM @pin",
        "DELETE FROM @pin_root",
        "DELETE FROM @file_lock",
        "DELETE FROM @file_lock_wait",
        // The role that copies has not made them.
        "UPDATE @job SET role = NULL WHERE role IS NOT NULL",
        "UPDATE @record SET role = NULL WHERE role IS NOT NULL",
    ]
    .map(Query::new)
    .into();
    let sql = "UPDATE @state SET epoch = $1, generation = greatest(generation, $2), collector = NULL";
    queries.push(Query::new(sql).int(rest.epoch).int(rest.generation));
    for (name, value) in [
        ("next_inode", rest.next_inode),
        ("next_pack", rest.next_pack),
        ("next_session", rest.next_session),
        ("next_sequence", rest.next_sequence),
    ] {
        let sql = "UPDATE @counter SET value = greatest(value, $2) WHERE name = $1";
        queries.push(Query::new(sql).public(name).int(value));
    }
    let now = counters::read_totals(totals)?;
    if [now.files, now.directories, now.others, now.bytes].map(|total| total as i64) != rest.totals {
        queries.push(Query::new("UPDATE @total SET files = 0, directories = 0, others = 0, bytes = 0"));
        let [files, directories, others, bytes] = rest.totals;
        // Modulo 2^64, like the sums that commits make.
        let sql = "UPDATE @total SET files = $1, directories = $2, others = $3, bytes = $4 WHERE slot = 0";
        queries.push(Query::new(sql).int(files).int(directories).int(others).int(bytes));
    }
    let there: Vec<_> = there.rows.iter().map(snapshots::read).collect::<Outcome<_>>()?;
    if there != rest.snapshots {
        queries.push(Query::new("DELETE FROM @snapshot"));
        queries.extend(rest.snapshots.iter().map(snapshots::insert_copied));
    }
    if rest.last_job > 0 {
        // Not undone with the transaction, which does no harm.
        queries.push(Query::new(RAISE_JOB).public(&format!("\"{schema}\".job")).int(rest.last_job));
    }
    run(queries)?;
    Ok(())
}

impl PostgresMeta {
    /// Fails unless this role could make a store at `location`. Called before much is copied.
    ///
    /// # Errors
    /// `Denied`, `Invalid`; those of connecting.
    pub(crate) fn could_be_made(location: &Location) -> Result<()> {
        let transactions = Transactions::new(Pool::new(location.clone())?);
        open::require_room(&transactions)?;
        open::require_durable(&transactions)
    }

    /// Writes the state of one moment into a database that was just made; without sessions and
    /// their pins.
    ///
    /// # Errors
    /// Those of both; `Damaged` when a row has changed since it was written.
    pub(crate) fn carry_into(&self, to: &SqliteMeta) -> Result<()> {
        self.transactions.read_through("copying the metadata", |connection| {
            let rest = read_rest(connection)?;
            to.fill(|filler| {
                for (table, sql) in TABLES.iter().zip(&*STATEMENTS) {
                    let query = Query::new(&sql.read);
                    connection.stream(&query, |row| filler.row(table, values(table, row)?))?;
                }
                filler.rest(&rest)
            })?;
            Ok(())
        })
    }

    /// Makes a store at `location` with the state that `from` holds: it is there as a whole, or not
    /// at all. With the sealer of an encrypted store.
    ///
    /// # Errors
    /// As [`PostgresMeta::create`].
    pub(crate) fn create_from(
        location: Location,
        config: &str,
        from: &SqliteMeta,
        sealer: Option<Sealer>,
    ) -> Result<Self> {
        let schema = location.schema.clone();
        let transactions = Transactions::new(Pool::with(location, sealer)?);
        open::create(&transactions, config, &mut |connection| {
            let seals = connection.seals.clone();
            take(&mut |queries| Ok(connection.together(None, &queries, None)?), &seals, &schema, from)
        })?;
        Self::finish(transactions, false)
    }

    /// Replaces the store's state by that in `from`, all of it or nothing, if no client uses the
    /// store, and its counters are `expected`.
    ///
    /// # Errors
    /// `Busy` when a session is live, `Exists` when the counters differ.
    pub(crate) fn take_over(&self, from: &SqliteMeta, expected: &Counters) -> Result<()> {
        let schema = &self.location().schema;
        self.write("bringing the copy up to date", Gate::Alone, |tx| {
            for row in &tx.one(Query::new(sessions::ALL))?.rows {
                let session = sessions::read(row)?;
                if !session.lease_is_over {
                    let why = format!(
                        "the copy is in use (session {}: {}); end that, or read the copy as a role that may only read",
                        session.id.0, session.owner
                    );
                    return Err(refuse(ErrorKind::Busy, why));
                }
                sessions::end(tx, session.id);
            }
            let given_out = counters::read_next(&tx.one(Query::new(counters::NEXT))?)?;
            if given_out != *expected {
                return Err(refuse(ErrorKind::Exists, "the copy was written to by itself meanwhile"));
            }
            let seals = tx.seals().clone();
            take(&mut |queries| tx.run(queries), &seals, schema, from)
        })
    }
}

#[cfg(test)]
mod tests {
    use outrigger_workload::postgres::Server;

    use super::*;
    use crate::keys::Key;
    use crate::meta::{At, Change, Commit, Meta as _, OpenMode, ROOT_INODE, SessionKind, SessionOwner};
    use crate::meta::{Holds as _, Role, Sessions as _, Snapshots as _, Tree as _};
    use outrigger_format::Root;
    use outrigger_format::catalogue::{Attributes, FileKind};

    fn make(meta: &PostgresMeta, name: &str, inode: u64) {
        let owner = SessionOwner::this(String::new(), Role::Mount);
        let session = meta.open_session(SessionKind::Writer, &owner, 1000).unwrap().0;
        let attributes = Attributes {
            kind: FileKind::Symlink,
            mode: 0o777,
            uid: 1,
            gid: 2,
            mtime: Default::default(),
            rdev: 0,
            target: b"target".to_vec(),
            xattrs: vec![(b"user.a".to_vec(), b"b".to_vec())],
            times: None,
        };
        let (parent, name) = (ROOT_INODE, name.into());
        let put =
            Change::Put { parent, name, inode, attributes, root: Root::Empty, stamp: 0, replace: false };
        meta.commit(session, &Commit { changes: vec![put], ..Commit::default() }).unwrap();
        meta.close_session(session).unwrap();
    }

    /// A copy has the same under a key of its own, and is brought up to date.
    #[test]
    fn an_encrypted_database_is_copied_under_another_key() {
        let Some(server) = Server::shared() else { return };
        let directory = tempfile::tempdir().unwrap();
        let freeze = |meta: &PostgresMeta, name: &str| {
            let frozen = SqliteMeta::open(&directory.path().join(name), OpenMode::Create).unwrap();
            meta.carry_into(&frozen).unwrap();
            frozen
        };
        let [from, to] = [1, 2].map(|_| Location::parse(&server.url(&server.fresh())).unwrap());
        let sealer = |byte| Some(Sealer::new(&Key::new([byte; 32])));
        let source = PostgresMeta::create_with(from, "a test", sealer(1)).unwrap();
        source.raise_counters(1, 100, 1).unwrap();
        make(&source, "first", 10);
        let fingerprint = outrigger_format::Fingerprint([7; 32]);
        let held = Root::Inline(vec![outrigger_format::Entry::Chunk { fingerprint, len: 9 }]);
        source.hold("mount", &[held]).unwrap();
        source.create_snapshot("snapshot", 1, &["tag".into()]).unwrap();
        source.records().set_record("kind", "name", Some("value")).unwrap();
        let frozen = freeze(&source, "one");
        assert!(frozen.lookup(At::Now, ROOT_INODE, b"first").unwrap().is_some(), "it is plain there");
        let copy = PostgresMeta::create_from(to, "a test", &frozen, sealer(2)).unwrap();
        let is_same = |copy: &PostgresMeta| {
            assert_eq!((source.check().unwrap(), copy.check().unwrap()), (Vec::new(), Vec::new()));
            let list = |meta: &PostgresMeta| meta.read_dir(At::Now, ROOT_INODE, None, 9).unwrap();
            assert_eq!(list(copy), list(&source));
            let taken = source.snapshots().unwrap().into_iter().map(|row| SnapshotRow { role: None, ..row });
            assert_eq!(copy.snapshots().unwrap(), taken.collect::<Vec<_>>());
            assert_eq!(copy.held("mount").unwrap(), source.held("mount").unwrap());
            let values = |meta: &PostgresMeta| meta.records().records("kind").unwrap().pop().unwrap().value;
            assert_eq!(values(copy), values(&source));
        };
        is_same(&copy);
        make(&source, "second", 11);
        let counters = copy.counters().unwrap();
        copy.take_over(&freeze(&source, "two"), &counters).unwrap();
        is_same(&copy);
    }
}
