//! The contents of a database, table by table, so that another engine can take them over: for
//! `copy`.
//!
//! The state to copy is frozen in an SQLite database of its own, so that no client waits while
//! packs are copied. PostgreSQL writes its rows into that (`postgres/carry.rs`), and takes them
//! from it. A row is a list of SQLite's values, in PostgreSQL's columns. The two engines' tables
//! differ only in how they keep attributes and checksums.
//!
//! Not copied: sessions, their pins, state of connections, and the roles that made jobs and rules;
//! a copy has none. Snapshots, counters and totals are [`Rest`].

use rusqlite::types::Value;

use super::SnapshotRow;
use super::fault::{Outcome, refuse};
use crate::error::ErrorKind;

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::meta) enum Kind {
    /// A bigint.
    Big,
    /// An int.
    Small,
    /// An int with the bits of a u32.
    Bits,
    /// Bytes.
    Bytes,
    /// A text.
    Text,
}

/// A table that is copied.
pub(in crate::meta) struct Table {
    pub name: &'static str,
    /// All columns, but those that an engine makes of the others.
    pub columns: &'static [(&'static str, Kind)],
    /// PostgreSQL's primary key.
    pub key: &'static [&'static str],
    /// Columns in the order in which PostgreSQL's checksum takes them; none, if it has no checksum.
    pub summed: &'static [&'static str],
    /// A column that only PostgreSQL has, and its value as an expression over a row `n`.
    pub made: Option<(&'static str, &'static str)>,
    /// Numbered by PostgreSQL itself.
    pub is_numbered: bool,
}

use Kind::{Big, Bits, Bytes, Small, Text};

const PLAIN: Table = Table { name: "", columns: &[], key: &[], summed: &[], made: None, is_numbered: false };

/// All tables that are copied.
pub(in crate::meta) const TABLES: &[Table] = &[
    Table {
        name: "inode",
        columns: &[
            ("number", Big),
            ("epoch", Big),
            ("version", Big),
            ("mtime_secs", Big),
            ("time", Big),
            ("stamp", Big),
            ("mtime_nanos", Small),
            ("mode", Small),
            ("uid", Bits),
            ("gid", Bits),
            ("links", Small),
            ("device", Big),
            ("target", Bytes),
            ("xattrs", Bytes),
            ("root", Bytes),
            ("times", Bytes),
        ],
        key: &["number"],
        summed: &[
            "number",
            "epoch",
            "version",
            "time",
            "mtime_secs",
            "mtime_nanos",
            "stamp",
            "links",
            "mode",
            "uid",
            "gid",
            "device",
            "target",
            "xattrs",
            "root",
            "times",
        ],
        ..PLAIN
    },
    Table {
        name: "inode_old",
        columns: &[
            ("number", Big),
            ("epoch_from", Big),
            ("epoch_to", Big),
            ("mtime_secs", Big),
            ("stamp", Big),
            ("mtime_nanos", Small),
            ("mode", Small),
            ("uid", Bits),
            ("gid", Bits),
            ("links", Small),
            ("device", Big),
            ("target", Bytes),
            ("xattrs", Bytes),
            ("root", Bytes),
            ("times", Bytes),
        ],
        key: &["number", "epoch_from"],
        summed: &[
            "number",
            "epoch_from",
            "epoch_to",
            "mtime_secs",
            "mtime_nanos",
            "stamp",
            "links",
            "mode",
            "uid",
            "gid",
            "device",
            "target",
            "xattrs",
            "root",
            "times",
        ],
        ..PLAIN
    },
    Table {
        name: "dentry",
        columns: &[("parent", Big), ("name", Bytes), ("inode", Big), ("epoch", Big)],
        key: &["parent", "name"],
        summed: &["parent", "name", "inode", "epoch"],
        ..PLAIN
    },
    Table {
        name: "dentry_old",
        columns: &[("parent", Big), ("name", Bytes), ("epoch_from", Big), ("epoch_to", Big), ("inode", Big)],
        key: &["parent", "name", "epoch_from"],
        summed: &["parent", "name", "inode", "epoch_from", "epoch_to"],
        ..PLAIN
    },
    Table {
        name: "directory",
        columns: &[("inode", Big), ("parent", Big)],
        key: &["inode"],
        summed: &["inode", "parent"],
        ..PLAIN
    },
    Table {
        name: "version",
        columns: &[
            ("inode", Big),
            ("number", Big),
            ("time", Big),
            ("mtime_secs", Big),
            ("mtime_nanos", Small),
            ("root", Bytes),
        ],
        key: &["inode", "number"],
        summed: &["inode", "number", "time", "mtime_secs", "mtime_nanos", "root"],
        ..PLAIN
    },
    Table {
        name: "policy",
        columns: &[("inode", Big), ("key", Text), ("value", Text)],
        key: &["inode", "key"],
        ..PLAIN
    },
    Table {
        name: "held",
        columns: &[("holder", Text), ("root", Bytes)],
        key: &["holder", "digest"],
        summed: &["holder", "root"],
        made: Some(("digest", "sha256(n.root)")),
        ..PLAIN
    },
    Table {
        name: "pack",
        columns: &[
            ("id", Big),
            ("session", Big),
            ("bytes", Big),
            ("raw_bytes", Big),
            ("chunks", Big),
            ("generation", Big),
            ("dead_since", Big),
            ("kind", Small),
            ("state", Small),
        ],
        key: &["id"],
        ..PLAIN
    },
    Table {
        name: "job",
        columns: &[
            ("id", Big),
            ("created", Big),
            ("changed", Big),
            ("state", Small),
            ("spec", Text),
            ("why", Text),
            ("made", Text),
        ],
        key: &["id"],
        is_numbered: true,
        ..PLAIN
    },
    Table {
        name: "job_input",
        columns: &[("job", Big), ("number", Small), ("path", Bytes), ("root", Bytes)],
        key: &["job", "number"],
        summed: &["job", "number", "path", "root"],
        ..PLAIN
    },
    Table {
        name: "job_split",
        columns: &[
            ("job", Big),
            ("number", Big),
            ("first", Big),
            ("after", Big),
            ("attempt", Big),
            ("tries", Big),
            ("session", Big),
            ("input", Small),
            ("state", Small),
            ("why", Text),
            ("log", Bytes),
            ("primary_attempt", Big),
            ("primary_session", Big),
            ("measured", Text),
        ],
        key: &["job", "number"],
        ..PLAIN
    },
    Table {
        name: "job_output",
        columns: &[("job", Big), ("split", Big), ("attempt", Big), ("name", Bytes), ("root", Bytes)],
        key: &["job", "split", "attempt", "name"],
        summed: &["job", "split", "attempt", "name", "root"],
        ..PLAIN
    },
    Table {
        name: "record",
        columns: &[("kind", Text), ("name", Text), ("changed", Big), ("value", Text)],
        key: &["kind", "name"],
        ..PLAIN
    },
    Table {
        name: "rule_mark",
        columns: &[("rule", Text), ("inode", Big), ("mark", Text)],
        key: &["rule", "inode"],
        ..PLAIN
    },
    // A copy has no session of their owners' numbers, so the first client that looks packs them.
    Table {
        name: "inline_chunk",
        columns: &[("fingerprint", Bytes), ("session", Big), ("codec", Text), ("bytes", Bytes)],
        key: &["fingerprint"],
        ..PLAIN
    },
];

/// Tables that are not copied, that are in [`Rest`], or that are made anew.
#[cfg(test)]
pub(in crate::meta) const OTHERS: &[&str] = &[
    "about",
    "state",
    "counter",
    "total",
    "lane",
    "traits",
    "snapshot",
    "snapshot_tag",
    "session",
    "pin",
    "pin_root",
    "file_lock",
    "file_lock_wait",
];

/// Columns that each engine fills in when a row comes, and that need not be the same.
#[cfg(test)]
const OWN: &[(&str, &str)] =
    &[("inline_chunk", "number"), ("job", "role"), ("record", "role"), ("pack", "changed")];

impl Table {
    /// Where a column is in a row.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|(name, _)| *name == column)
    }
}

/// A value that cannot be in a column.
pub(in crate::meta) fn misplaced(table: &Table, column: usize) -> super::fault::Fault {
    let name = table.columns.get(column).map_or("?", |(name, _)| name);
    refuse(ErrorKind::Damaged, format!("column {name} of table {} holds what cannot be there", table.name))
}

/// The rows, one after the other: table by table, in the order of [`TABLES`].
pub(in crate::meta) type Each<'a> = &'a mut dyn FnMut(Vec<Value>) -> Outcome<()>;

/// State outside the rows of copied tables.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::meta) struct Rest {
    pub epoch: i64,
    pub generation: i64,
    pub next_inode: i64,
    pub next_pack: i64,
    pub next_session: i64,
    pub next_sequence: i64,
    /// Files, directories, others, and the sum of the files' lengths (its bits).
    pub totals: [i64; 4],
    /// Oldest first.
    pub snapshots: Vec<SnapshotRow>,
    /// The number of the job made last.
    pub last_job: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables that a schema makes.
    fn made(schema: &str) -> impl Iterator<Item = &str> {
        let lines = schema.lines().filter_map(|line| line.strip_prefix("CREATE TABLE "));
        lines.filter_map(|rest| rest.trim_start_matches('@').split([' ', '(']).next())
    }

    #[test]
    fn every_table_is_carried_or_left_on_purpose() {
        let schemas = [include_str!("postgres/schema.sql"), include_str!("sqlite/schema.sql")];
        for name in schemas.into_iter().flat_map(made) {
            let is_carried = TABLES.iter().any(|table| table.name == name);
            assert!(is_carried != OTHERS.contains(&name), "table {name}");
        }
    }

    #[test]
    fn every_column_is_carried() {
        let schema = include_str!("postgres/schema.sql");
        for table in TABLES {
            let (_, rest) = schema.split_once(&format!("CREATE TABLE @{} (", table.name)).unwrap();
            let (body, _) = rest.split_once("\n)").unwrap();
            let columns = body.lines().map(str::trim).filter(|line| !line.is_empty());
            let columns: Vec<&str> = columns
                .filter(|line| !["PRIMARY KEY", "--", "was_"].iter().any(|other| line.starts_with(other)))
                .map(|line| line.split(' ').next().unwrap())
                .collect();
            for column in &columns {
                let is_made = table.made.is_some_and(|(name, _)| name == *column);
                let is_own = OWN.contains(&(table.name, column));
                let is_known = table.position(column).is_some() || is_made || is_own || *column == "sum";
                assert!(is_known, "{}.{column}", table.name);
            }
            let wanted = table.columns.len()
                + OWN.iter().filter(|(of, _)| *of == table.name).count()
                + usize::from(table.made.is_some())
                + usize::from(!table.summed.is_empty());
            assert_eq!(columns.len(), wanted, "{}", table.name);
            assert!(table.summed.is_empty() || table.summed.len() == table.columns.len(), "{}", table.name);
            assert!(table.summed.iter().all(|column| table.position(column).is_some()), "{}", table.name);
        }
    }
}
