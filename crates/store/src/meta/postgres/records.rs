//! The registry in PostgreSQL.

use super::connection::{Answer, Query, Row};
use super::sealing::Subject;
use super::transaction::{Gate, Tx};
use super::{PostgresMeta, jobs, sessions};
use crate::error::Result;
use crate::meta::fault::Outcome;
use crate::meta::records::{RecordRow, Records};

const ALL: &str =
    "SELECT name, value, changed, role, session_user::text FROM @record WHERE kind = $1 ORDER BY name";

fn read(answer: &Answer, kind: &str) -> Outcome<Vec<RecordRow>> {
    let record = |row: &Row| {
        let name = row.text(0, &Subject::record_name(kind))?;
        let value = row.text(1, &Subject::record(kind, &name))?;
        let changed: i64 = row.try_get(2)?;
        let by = Some(jobs::made_by(row, 3)?);
        Ok(RecordRow { name, value, changed: changed as u64, by })
    };
    let mut records: Vec<RecordRow> = answer.rows.iter().map(record).collect::<Outcome<_>>()?;
    if answer.first().is_some_and(|row| row.seals().sealer().is_some()) {
        records.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(records)
}

/// Every record, for [`open`].
pub(super) const EVERY: &str = "SELECT kind, name, value FROM @record";

/// Opens a row of [`EVERY`].
pub(super) fn open(row: &Row) -> Outcome<()> {
    let kind: &str = row.public(0)?;
    let name = row.text(1, &Subject::record_name(kind))?;
    row.text(2, &Subject::record(kind, &name)).map(drop)
}

/// A statement with a record's kind as `$1`, and its name as `$2`.
pub(super) fn named(sql: &'static str, kind: &str, name: &str) -> Query {
    Query::new(sql).public(kind).text(Subject::record_name(kind), name)
}

/// Writes a record, or removes it, with what the transaction does later.
pub(super) fn set(tx: &mut Tx<'_>, kind: &str, name: &str, value: Option<&str>) {
    let Some(value) = value else {
        let sql = "DELETE FROM @record WHERE kind = $1 AND name = $2";
        return tx.later(named(sql, kind, name));
    };
    let sql = concat!(
        "INSERT INTO @record (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, changed = excluded.changed"
    );
    tx.later(named(sql, kind, name).text(Subject::record(kind, name), value));
}

fn add(tx: &mut Tx<'_>, kind: &str, name: &str, value: &str) -> Outcome<bool> {
    let sql = concat!(
        "INSERT INTO @record (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT DO NOTHING"
    );
    Ok(tx.one(named(sql, kind, name).text(Subject::record(kind, name), value))?.affected == 1)
}

fn swap(tx: &mut Tx<'_>, (kind, name): (&str, &str), was: &str, to: Option<&str>) -> Outcome<bool> {
    let sql = match to {
        None => "DELETE FROM @record WHERE kind = $1 AND name = $2 AND value = $3",
        Some(_) => concat!(
            "UPDATE @record SET value = $4, changed = ",
            sessions::now!(),
            " WHERE kind = $1 AND name = $2 AND value = $3"
        ),
    };
    let query = named(sql, kind, name).text(Subject::record(kind, name), was);
    let query = match to {
        None => query,
        Some(to) => query.text(Subject::record(kind, name), to),
    };
    Ok(tx.one(query)?.affected == 1)
}

impl Records for PostgresMeta {
    fn records(&self, kind: &str) -> Result<Vec<RecordRow>> {
        self.read("reading the registry", &Query::new(ALL).public(kind), |answer| read(answer, kind))
    }

    fn set_record(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()> {
        self.write("writing a record", Gate::Open, |tx| {
            set(tx, kind, name, value);
            Ok(())
        })
    }

    fn add_record(&self, kind: &str, name: &str, value: &str) -> Result<bool> {
        self.write("adding a record", Gate::Open, |tx| add(tx, kind, name, value))
    }

    fn swap_record(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool> {
        self.write("replacing a record", Gate::Open, |tx| swap(tx, (kind, name), was, to))
    }
}
