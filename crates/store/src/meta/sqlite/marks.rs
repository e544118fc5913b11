//! What rules have seen of files, in SQLite.

use super::SqliteMeta;
use crate::error::Result;
use crate::meta::jobs::RuleMarks;
use std::collections::HashMap;

use rusqlite::Connection;

use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::Seen;

pub(super) fn seen(db: &Connection, rule: &str) -> Outcome<HashMap<u64, String>> {
    let mut statement = db.prepare_cached("SELECT inode, mark FROM rule_mark WHERE rule = ?1")?;
    let seen = statement.query_map([rule], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?)))?;
    Ok(seen.collect::<rusqlite::Result<_>>()?)
}

/// Refuses with `Exists` unless what the rule has seen is what `seen` says it was.
pub(super) fn see(db: &Connection, seen: &Seen) -> Outcome<()> {
    let Seen { rule, inode, before, mark } = seen;
    let inode = *inode as i64;
    let changed = match before {
        None => db
            .prepare_cached("INSERT OR IGNORE INTO rule_mark (rule, inode, mark) VALUES (?1, ?2, ?3)")?
            .execute((rule, inode, mark))?,
        Some(before) => db
            .prepare_cached("UPDATE rule_mark SET mark = ?3 WHERE rule = ?1 AND inode = ?2 AND mark = ?4")?
            .execute((rule, inode, mark, before))?,
    };
    if changed == 1 {
        return Ok(());
    }
    Err(refuse(ErrorKind::Exists, "another agent has seen this already"))
}

pub(super) fn see_all(db: &Connection, seen: &[Seen]) -> Outcome<()> {
    let mut insert =
        db.prepare_cached("INSERT OR IGNORE INTO rule_mark (rule, inode, mark) VALUES (?1, ?2, ?3)")?;
    let mut update =
        db.prepare_cached("UPDATE rule_mark SET mark = ?3 WHERE rule = ?1 AND inode = ?2 AND mark = ?4")?;
    for Seen { rule, inode, before, mark } in seen {
        match before {
            None => insert.execute((rule, *inode as i64, mark))?,
            Some(before) => update.execute((rule, *inode as i64, mark, before))?,
        };
    }
    Ok(())
}

pub(super) fn forget_seen(db: &Connection, rule: &str) -> Outcome<()> {
    db.prepare_cached("DELETE FROM rule_mark WHERE rule = ?1")?.execute([rule])?;
    Ok(())
}

pub(super) fn forget_inodes(db: &Connection, rule: &str, inodes: &[u64]) -> Outcome<()> {
    let mut delete = db.prepare_cached("DELETE FROM rule_mark WHERE rule = ?1 AND inode = ?2")?;
    for inode in inodes {
        delete.execute((rule, *inode as i64))?;
    }
    Ok(())
}

impl RuleMarks for SqliteMeta {
    fn seen(&self, rule: &str) -> Result<HashMap<u64, String>> {
        self.read("reading what a rule has seen", |db| seen(db, rule))
    }

    fn see(&self, seen: &[Seen]) -> Result<()> {
        self.write("recording what a rule has seen", |db| see_all(db, seen))
    }

    fn forget_seen(&self, rule: &str) -> Result<()> {
        self.write("forgetting what a rule has seen", |db| forget_seen(db, rule))
    }

    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()> {
        self.write("forgetting files that are gone", |db| forget_inodes(db, rule, inodes))
    }
}
