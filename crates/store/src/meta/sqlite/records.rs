//! The registry in SQLite.

use rusqlite::Connection;

use super::SqliteMeta;
use crate::error::Result;
use crate::meta::fault::Outcome;
use crate::meta::records::{RecordRow, Records};

fn list(db: &Connection, kind: &str) -> Outcome<Vec<RecordRow>> {
    let sql = "SELECT name, value, changed FROM record WHERE kind = ?1 ORDER BY name";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([kind], |row| {
        let changed: i64 = row.get(2)?;
        Ok(RecordRow { name: row.get(0)?, value: row.get(1)?, changed: changed as u64, by: None })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn set(db: &Connection, now: u64, kind: &str, name: &str, value: Option<&str>) -> Outcome<()> {
    match value {
        None => {
            db.prepare_cached("DELETE FROM record WHERE kind = ?1 AND name = ?2")?.execute((kind, name))?
        }
        Some(value) => db
            .prepare_cached(
                "INSERT OR REPLACE INTO record (kind, name, value, changed) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute((kind, name, value, now as i64))?,
    };
    Ok(())
}

fn add(db: &Connection, now: u64, kind: &str, name: &str, value: &str) -> Outcome<bool> {
    let made = db
        .prepare_cached("INSERT OR IGNORE INTO record (kind, name, value, changed) VALUES (?1, ?2, ?3, ?4)")?
        .execute((kind, name, value, now as i64))?;
    Ok(made == 1)
}

fn swap(db: &Connection, now: u64, (kind, name): (&str, &str), was: &str, to: Option<&str>) -> Outcome<bool> {
    let changed = match to {
        None => db
            .prepare_cached("DELETE FROM record WHERE kind = ?1 AND name = ?2 AND value = ?3")?
            .execute((kind, name, was))?,
        Some(to) => db
            .prepare_cached(
                "UPDATE record SET value = ?4, changed = ?5 WHERE kind = ?1 AND name = ?2 AND value = ?3",
            )?
            .execute((kind, name, was, to, now as i64))?,
    };
    Ok(changed == 1)
}

impl Records for SqliteMeta {
    fn records(&self, kind: &str) -> Result<Vec<RecordRow>> {
        self.read("reading the registry", |db| list(db, kind))
    }

    fn set_record(&self, kind: &str, name: &str, value: Option<&str>) -> Result<()> {
        self.write("writing a record", |db| set(db, self.moment().wall, kind, name, value))
    }

    fn add_record(&self, kind: &str, name: &str, value: &str) -> Result<bool> {
        self.write("adding a record", |db| add(db, self.moment().wall, kind, name, value))
    }

    fn swap_record(&self, kind: &str, name: &str, was: &str, to: Option<&str>) -> Result<bool> {
        self.write("replacing a record", |db| swap(db, self.moment().wall, (kind, name), was, to))
    }
}
