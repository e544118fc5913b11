//! The registry in PostgreSQL.

use super::connection::{Answer, Query};
use super::transaction::{Gate, Tx};
use super::{PostgresMeta, jobs, sessions};
use crate::error::Result;
use crate::meta::fault::Outcome;
use crate::meta::records::{RecordRow, Records};

const ALL: &str =
    "SELECT name, value, changed, role, session_user::text FROM @record WHERE kind = $1 ORDER BY name";

fn read(answer: &Answer) -> Outcome<Vec<RecordRow>> {
    let record = |row: &tokio_postgres::Row| {
        let changed: i64 = row.try_get(2)?;
        let by = Some(jobs::made_by(row, 3)?);
        Ok(RecordRow { name: row.try_get(0)?, value: row.try_get(1)?, changed: changed as u64, by })
    };
    answer.rows.iter().map(record).collect()
}

/// Writes a record, or removes it, with what the transaction does later.
pub(super) fn set(tx: &mut Tx<'_>, kind: &str, name: &str, value: Option<&str>) {
    let Some(value) = value else {
        let sql = "DELETE FROM @record WHERE kind = $1 AND name = $2";
        return tx.later(Query::new(sql).text(kind).text(name));
    };
    let sql = concat!(
        "INSERT INTO @record (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, changed = excluded.changed"
    );
    tx.later(Query::new(sql).text(kind).text(name).text(value));
}

fn add(tx: &mut Tx<'_>, kind: &str, name: &str, value: &str) -> Outcome<bool> {
    let sql = concat!(
        "INSERT INTO @record (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT DO NOTHING"
    );
    Ok(tx.one(Query::new(sql).text(kind).text(name).text(value))?.affected == 1)
}

fn swap(tx: &mut Tx<'_>, (kind, name): (&str, &str), was: &str, to: Option<&str>) -> Outcome<bool> {
    let query = match to {
        None => Query::new("DELETE FROM @record WHERE kind = $1 AND name = $2 AND value = $3"),
        Some(_) => Query::new(concat!(
            "UPDATE @record SET value = $4, changed = ",
            sessions::now!(),
            " WHERE kind = $1 AND name = $2 AND value = $3"
        )),
    };
    let query = query.text(kind).text(name).text(was);
    let query = match to {
        None => query,
        Some(to) => query.text(to),
    };
    Ok(tx.one(query)?.affected == 1)
}

impl Records for PostgresMeta {
    fn records(&self, kind: &str) -> Result<Vec<RecordRow>> {
        self.read("reading the registry", &Query::new(ALL).text(kind), read)
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
