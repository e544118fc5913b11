//! Registry records.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};

use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::{Note, Seen};

pub(super) fn notes(db: &Connection, kind: &str) -> Outcome<Vec<Note>> {
    let sql = "SELECT name, value, changed FROM job_note WHERE kind = ?1 ORDER BY name";
    let mut statement = db.prepare_cached(sql)?;
    let notes = statement.query_map([kind], |row| {
        let changed: i64 = row.get(2)?;
        Ok(Note { name: row.get(0)?, value: row.get(1)?, changed: changed as u64, by: None })
    })?;
    Ok(notes.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn set(db: &Connection, now: u64, kind: &str, name: &str, value: Option<&str>) -> Outcome<()> {
    match value {
        None => {
            db.prepare_cached("DELETE FROM job_note WHERE kind = ?1 AND name = ?2")?.execute((kind, name))?
        }
        Some(value) => db
            .prepare_cached(
                "INSERT OR REPLACE INTO job_note (kind, name, value, changed) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute((kind, name, value, now as i64))?,
    };
    Ok(())
}

/// A note's text.
pub(super) fn one(db: &Connection, kind: &str, name: &str) -> Outcome<Option<String>> {
    let mut statement = db.prepare_cached("SELECT value FROM job_note WHERE kind = ?1 AND name = ?2")?;
    Ok(statement.query_row((kind, name), |row| row.get(0)).optional()?)
}

/// Records whose names begin with `prefix`, which ends with `/`.
pub(super) fn below(db: &Connection, kind: &str, prefix: &str) -> Outcome<Vec<(String, String)>> {
    // `0` follows `/`, so the key's order finds them, however many others there are.
    let after = format!("{}0", prefix.trim_end_matches('/'));
    let sql = "SELECT name, value FROM job_note WHERE kind = ?1 AND name >= ?2 AND name < ?3";
    let mut statement = db.prepare_cached(sql)?;
    let notes = statement.query_map((kind, prefix, after), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(notes.collect::<rusqlite::Result<_>>()?)
}

/// Removes a note, if there is one.
pub(super) fn remove(db: &Connection, kind: &str, name: &str) -> Outcome<()> {
    db.prepare_cached("DELETE FROM job_note WHERE kind = ?1 AND name = ?2")?.execute((kind, name))?;
    Ok(())
}

/// Removes records whose names begin with `prefix`.
pub(super) fn remove_below(db: &Connection, kind: &str, prefix: &str) -> Outcome<()> {
    db.prepare_cached("DELETE FROM job_note WHERE kind = ?1 AND substr(name, 1, length(?2)) = ?2")?
        .execute((kind, prefix))?;
    Ok(())
}

pub(super) fn add(db: &Connection, now: u64, kind: &str, name: &str, value: &str) -> Outcome<bool> {
    let made = db
        .prepare_cached(
            "INSERT OR IGNORE INTO job_note (kind, name, value, changed) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute((kind, name, value, now as i64))?;
    Ok(made == 1)
}

pub(super) fn change(
    db: &Connection,
    now: u64,
    (kind, name): (&str, &str),
    was: &str,
    to: Option<&str>,
) -> Outcome<bool> {
    let changed = match to {
        None => db
            .prepare_cached("DELETE FROM job_note WHERE kind = ?1 AND name = ?2 AND value = ?3")?
            .execute((kind, name, was))?,
        Some(to) => db
            .prepare_cached(
                "UPDATE job_note SET value = ?4, changed = ?5 WHERE kind = ?1 AND name = ?2 AND value = ?3",
            )?
            .execute((kind, name, was, to, now as i64))?,
    };
    Ok(changed == 1)
}

pub(super) fn seen(db: &Connection, rule: &str) -> Outcome<HashMap<u64, String>> {
    let mut statement = db.prepare_cached("SELECT inode, mark FROM job_seen WHERE rule = ?1")?;
    let seen = statement.query_map([rule], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?)))?;
    Ok(seen.collect::<rusqlite::Result<_>>()?)
}

/// Refuses with `Exists` unless what the rule has seen is what `seen` says it was.
pub(super) fn see(db: &Connection, seen: &Seen) -> Outcome<()> {
    let Seen { rule, inode, before, mark } = seen;
    let inode = *inode as i64;
    let changed = match before {
        None => db
            .prepare_cached("INSERT OR IGNORE INTO job_seen (rule, inode, mark) VALUES (?1, ?2, ?3)")?
            .execute((rule, inode, mark))?,
        Some(before) => db
            .prepare_cached("UPDATE job_seen SET mark = ?3 WHERE rule = ?1 AND inode = ?2 AND mark = ?4")?
            .execute((rule, inode, mark, before))?,
    };
    if changed == 1 {
        return Ok(());
    }
    Err(refuse(ErrorKind::Exists, "another agent has seen this already"))
}

pub(super) fn see_all(db: &Connection, seen: &[Seen]) -> Outcome<()> {
    let mut insert =
        db.prepare_cached("INSERT OR IGNORE INTO job_seen (rule, inode, mark) VALUES (?1, ?2, ?3)")?;
    let mut update =
        db.prepare_cached("UPDATE job_seen SET mark = ?3 WHERE rule = ?1 AND inode = ?2 AND mark = ?4")?;
    for Seen { rule, inode, before, mark } in seen {
        match before {
            None => insert.execute((rule, *inode as i64, mark))?,
            Some(before) => update.execute((rule, *inode as i64, mark, before))?,
        };
    }
    Ok(())
}

pub(super) fn forget_seen(db: &Connection, rule: &str) -> Outcome<()> {
    db.prepare_cached("DELETE FROM job_seen WHERE rule = ?1")?.execute([rule])?;
    Ok(())
}

pub(super) fn forget_inodes(db: &Connection, rule: &str, inodes: &[u64]) -> Outcome<()> {
    let mut delete = db.prepare_cached("DELETE FROM job_seen WHERE rule = ?1 AND inode = ?2")?;
    for inode in inodes {
        delete.execute((rule, *inode as i64))?;
    }
    Ok(())
}
