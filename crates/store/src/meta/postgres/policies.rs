//! Policies of directories.

use super::PostgresMeta;
use super::transaction::Gate;
use crate::error::Result;
use crate::meta::Policies;
use std::collections::BTreeMap;

use super::connection::{Answer, Query};
use super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::change::keep::KeepVersions;
use crate::meta::fault::{Outcome, refuse};

/// Sets or unsets a policy of a directory.
pub(super) fn set(tx: &mut Tx<'_>, inode: u64, key: &str, value: Option<&str>) -> Outcome<()> {
    let inode = inode as i64;
    // Locked as for making an entry: a policy goes with its directory.
    let sql = "SELECT 1 FROM @directory WHERE inode = $1 FOR KEY SHARE";
    if tx.one(Query::new(sql).int(inode))?.first().is_none() {
        return Err(refuse(ErrorKind::NotFound, format!("inode {inode} is not a directory")));
    }
    if key.is_empty() {
        return Err(refuse(ErrorKind::Invalid, "a policy needs a name"));
    }
    let Some(value) = value else {
        tx.later(Query::new("DELETE FROM @policy WHERE inode = $1 AND key = $2").int(inode).public(key));
        return Ok(());
    };
    if key == "versions" {
        KeepVersions::parse(value)?;
    }
    let sql = "INSERT INTO @policy (inode, key, value) VALUES ($1, $2, $3) \
               ON CONFLICT (inode, key) DO UPDATE SET value = excluded.value";
    tx.later(Query::new(sql).int(inode).public(key).public(value));
    Ok(())
}

/// For [`read`].
pub(super) const ALL: &str = "SELECT inode, key, value FROM @policy";
/// For [`read`]: those of one directory.
pub(super) const OF: &str = "SELECT inode, key, value FROM @policy WHERE inode = $1";

/// Inode → key → value.
pub(super) fn read(answer: &Answer) -> Outcome<BTreeMap<u64, BTreeMap<String, String>>> {
    let mut policies: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
    for row in &answer.rows {
        let of = policies.entry(row.try_get::<_, i64>(0)? as u64).or_default();
        of.insert(row.public(1)?, row.public(2)?);
    }
    Ok(policies)
}

impl Policies for PostgresMeta {
    fn set_policy(&self, inode: u64, key: &str, value: Option<&str>) -> Result<()> {
        self.write("setting a policy", Gate::Shared, |tx| set(tx, inode, key, value))
    }

    fn policies(&self, inode: u64) -> Result<BTreeMap<String, String>> {
        let query = Query::new(OF).int(inode as i64);
        let mut of = self.read("reading policies", &query, read)?;
        Ok(of.remove(&inode).unwrap_or_default())
    }

    fn all_policies(&self) -> Result<BTreeMap<u64, BTreeMap<String, String>>> {
        self.read("reading policies", &Query::new(ALL), read)
    }
}
