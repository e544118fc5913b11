//! Rows for another engine, and from one (`meta/carry.rs`): here attributes are interned, targets
//! and devices share a column, and the database itself makes the checksums.

use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params_from_iter};

use super::rows::SqliteRows;
use super::{SqliteMeta, snapshots};
use crate::error::Result;
use crate::meta::carry::{Each, Kind, Rest, Table, misplaced};
use crate::meta::change::Rows as _;
use crate::meta::change::row::TraitsKey;
use crate::meta::fault::{Explain as _, Outcome};

/// Columns that are a row of `traits` here.
const TRAITS: [&str; 4] = ["mode", "uid", "gid", "xattrs"];
/// Columns that are the column `special` here.
const SPECIAL: [&str; 2] = ["device", "target"];

fn is_of_inodes(table: &Table) -> bool {
    table.position("mode").is_some()
}

/// The statement that reads the rows of `table`.
fn select(table: &Table) -> String {
    let column = |(name, _): &(&'static str, Kind)| match *name {
        name if TRAITS.contains(&name) && is_of_inodes(table) => format!("t.{name}"),
        "device" => "CASE typeof(i.special) WHEN 'integer' THEN i.special END".to_owned(),
        "target" => "CASE typeof(i.special) WHEN 'blob' THEN i.special END".to_owned(),
        name => format!("i.{name}"),
    };
    let columns = table.columns.iter().map(column).collect::<Vec<_>>().join(", ");
    let traits = if is_of_inodes(table) { " CROSS JOIN traits t ON t.id = i.traits" } else { "" };
    format!("SELECT {columns} FROM {} i{traits}", table.name)
}

impl SqliteMeta {
    /// Passes on the rows of a table. Their checksums were checked when this state was frozen.
    pub(in crate::meta) fn each_row(&self, table: &Table, each: Each<'_>) -> Outcome<()> {
        let db = self.reader()?;
        let mut statement = db.prepare(&select(table))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = (0..table.columns.len()).map(|column| row.get(column));
            each(values.collect::<rusqlite::Result<_>>()?)?;
        }
        Ok(())
    }

    /// Reads the state outside the tables' rows.
    pub(in crate::meta) fn rest(&self) -> Outcome<Rest> {
        let db = self.reader()?;
        let sql = "SELECT epoch, generation, next_inode, next_pack, next_session, next_sequence, files, directories, others, bytes \
                   FROM state";
        let mut rest = db.query_row(sql, [], |row| {
            Ok(Rest {
                epoch: row.get(0)?,
                generation: row.get(1)?,
                next_inode: row.get(2)?,
                next_pack: row.get(3)?,
                next_session: row.get(4)?,
                next_sequence: row.get(5)?,
                totals: [row.get(6)?, row.get(7)?, row.get(8)?, row.get(9)?],
                ..Rest::default()
            })
        })?;
        rest.snapshots = snapshots::all(&db)?;
        let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'job'";
        rest.last_job = db.query_row(sql, [], |row| row.get(0)).optional()?.unwrap_or(0);
        Ok(rest)
    }

    /// Fills a database that was just made: all of it or nothing.
    pub(in crate::meta) fn fill(&self, fill: impl FnOnce(&mut Filler<'_>) -> Outcome<()>) -> Result<()> {
        let what = "copying the metadata";
        let mut connection = self.lock_writer(what)?;
        let transact = || -> Outcome<()> {
            let transaction = connection.transaction()?;
            // The root directory comes with the others.
            transaction.execute_batch("DELETE FROM inode; DELETE FROM directory; DELETE FROM traits")?;
            fill(&mut Filler { db: &transaction, rows: SqliteRows::new(&transaction)?, filling: None })?;
            transaction.commit()?;
            Ok(())
        };
        transact().explain(what)
    }
}

/// Inserts rows.
pub(in crate::meta) struct Filler<'c> {
    db: &'c Connection,
    rows: SqliteRows<'c>,
    /// The table that rows came for last, and the statement for it.
    filling: Option<(&'static str, CachedStatement<'c>)>,
}

impl<'c> Filler<'c> {
    /// Inserts a row of `table`.
    pub fn row(&mut self, table: &Table, values: Vec<Value>) -> Outcome<()> {
        if self.filling.as_ref().is_none_or(|(name, _)| *name != table.name) {
            self.filling = Some((table.name, self.statement(table)?));
        }
        let mut row = Vec::with_capacity(values.len());
        if is_of_inodes(table) {
            let traits = self.rows.traits(traits(table, &values)?)?;
            let at = |name: &str| table.position(name).and_then(|at| values.get(at)).cloned();
            let special = SPECIAL.into_iter().filter_map(at).find(|value| *value != Value::Null);
            row.extend([Value::Integer(traits), special.unwrap_or(Value::Null)]);
        }
        let plain = table.columns.iter().zip(values).filter(|((name, _), _)| !is_folded(table, name));
        row.extend(plain.map(|(_, value)| value));
        if let Some((_, statement)) = &mut self.filling {
            statement.execute(params_from_iter(row))?;
        }
        Ok(())
    }

    /// The statement that inserts the values of [`Filler::row`] into a table.
    fn statement(&self, table: &Table) -> Outcome<CachedStatement<'c>> {
        let db: &'c Connection = self.db;
        let mut columns = if is_of_inodes(table) { vec!["traits", "special"] } else { Vec::new() };
        columns.extend(table.columns.iter().map(|(name, _)| *name).filter(|name| !is_folded(table, name)));
        let places: Vec<String> = (1..=columns.len()).map(|number| format!("?{number}")).collect();
        let (columns, places) = (columns.join(", "), places.join(", "));
        let sql = format!("INSERT INTO {} ({columns}) VALUES ({places})", table.name);
        Ok(db.prepare_cached(&sql)?)
    }

    /// Sets the state outside the tables' rows.
    pub fn rest(&mut self, rest: &Rest) -> Outcome<()> {
        self.db.execute(
            "UPDATE state SET epoch = ?1, generation = ?2, next_inode = ?3, next_pack = ?4, next_session = ?5, next_sequence = ?6, \
             files = ?7, directories = ?8, others = ?9, bytes = ?10",
            (
                rest.epoch,
                rest.generation,
                rest.next_inode,
                rest.next_pack,
                rest.next_session,
                rest.next_sequence,
                rest.totals[0],
                rest.totals[1],
                rest.totals[2],
                rest.totals[3],
            ),
        )?;
        for snapshot in &rest.snapshots {
            let epoch = snapshot.epoch as i64;
            let values = (epoch, &snapshot.name, snapshot.time as i64);
            self.db.prepare_cached("INSERT INTO snapshot VALUES (?1, ?2, ?3)")?.execute(values)?;
            snapshots::insert_tags(self.db, epoch, &snapshot.tags)?;
        }
        if rest.last_job > 0 {
            let sql = "DELETE FROM sqlite_sequence WHERE name = 'job'";
            self.db.execute(sql, [])?;
            self.db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', ?1)", [rest.last_job])?;
        }
        Ok(())
    }
}

/// True for a column that is part of another one here.
fn is_folded(table: &Table, column: &str) -> bool {
    is_of_inodes(table) && (TRAITS.contains(&column) || SPECIAL.contains(&column))
}

/// The attributes in a row that are interned.
fn traits(table: &Table, values: &[Value]) -> Outcome<TraitsKey> {
    let find = |name: &str| table.position(name).unwrap_or(usize::MAX);
    let number = |name: &str| match values.get(find(name)) {
        Some(Value::Integer(value)) => Ok(*value),
        _ => Err(misplaced(table, find(name))),
    };
    let xattrs = match values.get(find("xattrs")) {
        Some(Value::Null) => None,
        Some(Value::Blob(bytes)) => Some(bytes.clone()),
        _ => return Err(misplaced(table, find("xattrs"))),
    };
    Ok((number("mode")?, number("uid")?, number("gid")?, xattrs))
}
