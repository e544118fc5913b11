//! Policies of directories. The engine itself obeys one: `versions`.

use super::SqliteMeta;
use crate::error::Result;
use crate::meta::Policies;
use std::collections::BTreeMap;

use rusqlite::Connection;

use super::sums::{self, policy_intact};
use crate::error::ErrorKind;
use crate::meta::change::keep::KeepVersions;
use crate::meta::fault::{Outcome, refuse};

/// True when `versions` is set anywhere.
pub(super) fn any_versions_policy(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM policy WHERE key = 'versions' LIMIT 1")?.exists([])
}

/// Sets or unsets a policy of a directory.
pub(super) fn set(connection: &Connection, inode: u64, key: &str, value: Option<&str>) -> Outcome<()> {
    let is_directory =
        connection.prepare_cached("SELECT 1 FROM directory WHERE inode = ?1")?.exists([inode as i64])?;
    if !is_directory {
        return Err(refuse(ErrorKind::NotFound, format!("inode {inode} is not a directory")));
    }
    if key.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "a policy needs a name"));
    }
    match value {
        None => {
            connection
                .prepare_cached("DELETE FROM policy WHERE inode = ?1 AND key = ?2")?
                .execute((inode as i64, key))?;
        }
        Some(value) => {
            if key == "versions" {
                KeepVersions::parse(value)?;
            }
            connection
                .prepare_cached(
                    "INSERT INTO policy VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET value = excluded.value",
                )?
                .execute((inode as i64, key, value))?;
        }
    }
    Ok(())
}

/// Policies set on exactly this directory.
pub(super) fn of(connection: &Connection, inode: u64) -> Outcome<BTreeMap<String, String>> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT key, value, ",
        policy_intact!(),
        " FROM policy WHERE inode = ?1"
    ))?;
    let rows = statement.query_map([inode as i64], |row| {
        sums::require(row, 2)?;
        Ok((row.get(0)?, row.get(1)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// All of them.
pub(super) fn all(connection: &Connection) -> Outcome<BTreeMap<u64, BTreeMap<String, String>>> {
    let mut statement =
        connection.prepare_cached(concat!("SELECT inode, key, value, ", policy_intact!(), " FROM policy"))?;
    let mut rows = statement.query([])?;
    let mut policies: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        sums::require(row, 3)?;
        policies.entry(row.get::<_, i64>(0)? as u64).or_default().insert(row.get(1)?, row.get(2)?);
    }
    Ok(policies)
}

impl Policies for SqliteMeta {
    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()> {
        self.write("setting a policy", |db| set(db, inode, key, value))
    }

    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>> {
        self.read_once("reading policies", |db| of(db, inode))
    }

    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>> {
        self.read_once("reading policies", all)
    }
}
