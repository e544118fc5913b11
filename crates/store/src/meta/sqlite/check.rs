//! Checks the database: SQLite's own structures first, then our rules.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _};

use super::{inline, jobs, row, sums};
use crate::meta::ROOT_INODE;
use crate::meta::fault::Outcome;

/// Findings of one kind that are listed; more are only counted.
const LISTED: usize = 20;

/// Queries whose rows are all findings, each described in its one column.
const RULES: &[&str] = &[
    // names
    "SELECT 'a name in directory ' || d.parent || ' stands for inode ' || d.inode || ', which does not exist' \
     FROM dentry d LEFT JOIN inode i ON i.number = d.inode WHERE i.number IS NULL",
    "SELECT DISTINCT 'names lie in directory ' || d.parent || ', which does not exist' \
     FROM dentry d LEFT JOIN directory p ON p.inode = d.parent WHERE p.inode IS NULL",
    "SELECT 'directory ' || d.parent || ' has a name that cannot be one' FROM dentry d \
     WHERE length(d.name) NOT BETWEEN 1 AND 255 OR d.name IN (x'2e', x'2e2e') \
     OR instr(d.name, x'2f') OR instr(d.name, x'00')",
    // links; the root has no name
    "SELECT 'inode ' || i.number || ' says it has ' || i.links || ' names, and has ' || coalesce(d.names, 0) \
     FROM inode i LEFT JOIN (SELECT inode, count(*) AS names FROM dentry GROUP BY inode) d ON d.inode = i.number \
     WHERE i.links <> coalesce(d.names, i.number = 1)",
    // inodes
    "SELECT 'inode ' || i.number || ' refers to missing traits ' || i.traits \
     FROM inode i LEFT JOIN traits t ON t.id = i.traits WHERE t.id IS NULL",
    "SELECT 'former inode ' || i.number || ' refers to missing traits ' || i.traits \
     FROM inode_old i LEFT JOIN traits t ON t.id = i.traits WHERE t.id IS NULL",
    "SELECT 'traits ' || id || ' are not those of any file' FROM traits \
     WHERE mode NOT BETWEEN 0 AND 28671 OR uid NOT BETWEEN 0 AND 4294967295 OR gid NOT BETWEEN 0 AND 4294967295",
    // directories
    "SELECT 'inode ' || i.number || ' is a directory that hangs nowhere' \
     FROM traits t CROSS JOIN inode i ON i.traits = t.id LEFT JOIN directory p ON p.inode = i.number \
     WHERE t.mode >> 12 = 1 AND p.inode IS NULL",
    "SELECT 'inode ' || p.inode || ' is kept as a directory and is none' FROM directory p \
     LEFT JOIN inode i ON i.number = p.inode LEFT JOIN traits t ON t.id = i.traits WHERE t.mode >> 12 IS NOT 1",
    "SELECT 'directory ' || d.inode || ' has a name in ' || d.parent || ', and is kept as one of ' || p.parent \
     FROM directory p CROSS JOIN dentry d ON d.inode = p.inode WHERE d.parent <> p.parent",
    // epochs
    "SELECT 'inode ' || number || ' is from epoch ' || epoch || ', which has not come' \
     FROM inode WHERE epoch NOT BETWEEN 1 AND (SELECT epoch FROM state)",
    "SELECT 'a name in directory ' || parent || ' is from epoch ' || epoch || ', which has not come' \
     FROM dentry WHERE epoch NOT BETWEEN 1 AND (SELECT epoch FROM state)",
    "SELECT 'former inode ' || o.number || ' of epochs ' || o.epoch_from || ' to ' || o.epoch_to || ' overlaps the next' \
     FROM inode_old o WHERE o.epoch_from >= o.epoch_to \
     OR EXISTS (SELECT 1 FROM inode i WHERE i.number = o.number AND i.epoch < o.epoch_to) \
     OR EXISTS (SELECT 1 FROM inode_old n WHERE n.number = o.number AND n.epoch_from > o.epoch_from AND n.epoch_from < o.epoch_to)",
    "SELECT 'a former name in directory ' || o.parent || ' of epochs ' || o.epoch_from || ' to ' || o.epoch_to || ' overlaps the next' \
     FROM dentry_old o WHERE o.epoch_from >= o.epoch_to \
     OR EXISTS (SELECT 1 FROM dentry d WHERE d.parent = o.parent AND d.name = o.name AND d.epoch < o.epoch_to) \
     OR EXISTS (SELECT 1 FROM dentry_old n WHERE n.parent = o.parent AND n.name = o.name \
                AND n.epoch_from > o.epoch_from AND n.epoch_from < o.epoch_to)",
    "SELECT 'a name in directory ' || parent || ' stood for inode ' || inode || ' in epoch ' || seen || ', which did not exist' \
     FROM (SELECT parent, inode, (SELECT min(epoch) FROM retained WHERE epoch >= epoch_from AND epoch < epoch_to) AS seen \
           FROM dentry_old) WHERE seen IS NOT NULL \
     AND NOT EXISTS (SELECT 1 FROM inode i WHERE i.number = inode AND i.epoch <= seen) \
     AND NOT EXISTS (SELECT 1 FROM inode_old i WHERE i.number = inode AND i.epoch_from <= seen AND i.epoch_to > seen)",
    "SELECT 'a name in directory ' || parent || ' stands for the root directory' FROM dentry WHERE inode = 1",
    // versions, policies
    "SELECT 'version ' || v.number || ' is of inode ' || v.inode || ', which has no such version' \
     FROM version v LEFT JOIN inode i ON i.number = v.inode WHERE i.version IS NULL OR v.number NOT BETWEEN 1 AND i.version - 1",
    "SELECT 'policy ' || o.key || ' is set on inode ' || o.inode || ', which is no directory' \
     FROM policy o LEFT JOIN directory p ON p.inode = o.inode WHERE p.inode IS NULL",
    // packs, sessions, counters
    "SELECT 'pack ' || id || ' is in state ' || state || ', of kind ' || kind FROM pack \
     WHERE state NOT BETWEEN 0 AND 4 OR kind NOT BETWEEN 0 AND 1",
    "SELECT 'pin of epoch ' || epoch || ' is of session ' || session || ', which is over' FROM pin \
     WHERE session NOT IN (SELECT id FROM session)",
    "SELECT 'counter of packs is behind' FROM state WHERE next_pack <= (SELECT max(id) FROM pack)",
    "SELECT 'counter of inodes is behind' FROM state WHERE next_inode <= max(\
     (SELECT max(number) FROM inode), coalesce((SELECT max(number) FROM inode_old), 0))",
    "SELECT 'counter of sessions is behind' FROM state WHERE next_session <= (SELECT max(id) FROM session)",
    "SELECT 'epoch ' || r.epoch || ' is named, and has not ended' FROM retained r \
     WHERE r.epoch NOT BETWEEN 1 AND (SELECT epoch FROM state) - 1",
    "SELECT 'the root directory is missing' WHERE NOT EXISTS (SELECT 1 FROM directory WHERE inode = 1 AND parent = 1)",
    "SELECT 'the row of counters is missing' WHERE (SELECT count(*) FROM state) <> 1",
];

/// Returns the findings, in words.
pub(super) fn check(connection: &Connection) -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    findings(connection, "PRAGMA integrity_check", &mut found)?;
    found.retain(|line| line != "ok");
    // Queries over broken pages would only repeat what was found.
    if found.is_empty() {
        schema(connection, &mut found)?;
    }
    if found.is_empty() {
        sums::check(|query| findings(connection, query, &mut found))?;
        for query in jobs::CHANGED.iter().chain([&inline::RULE]).chain(RULES) {
            findings(connection, query, &mut found)?;
        }
        unreachable_directories(connection, &mut found)?;
        contents(connection, &mut found)?;
    }
    Ok(found)
}

fn findings(connection: &Connection, query: &str, found: &mut Vec<String>) -> Outcome<()> {
    let mut statement = connection.prepare(query)?;
    let mut rows = statement.query([])?;
    let mut count = 0usize;
    while let Some(row) = rows.next()? {
        count += 1;
        if count <= LISTED {
            found.push(row.get(0)?);
        }
    }
    if count > LISTED {
        found.push(format!("… and {} more like that", count - LISTED));
    }
    Ok(())
}

/// Objects that a database may have, by name. Statistics are SQLite's own.
fn objects(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    connection
        .prepare(
            "SELECT name, coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

fn schema(connection: &Connection, found: &mut Vec<String>) -> Outcome<()> {
    let wanted = Connection::open_in_memory()?;
    sums::register(&wanted)?;
    wanted.execute_batch(include_str!("schema.sql"))?;
    let (wanted, have) = (objects(&wanted)?, objects(connection)?);
    for (name, sql) in &wanted {
        if have.get(name) != Some(sql) {
            found.push(format!("`{name}` is missing in the schema, or different"));
        }
    }
    found.extend(
        have.keys()
            .filter(|name| !wanted.contains_key(*name))
            .map(|name| format!("`{name}` is in the schema and does not belong there")),
    );
    Ok(())
}

/// Directories that no path leads to: each is in a cycle, or below one, or below a lost one.
fn unreachable_directories(connection: &Connection, found: &mut Vec<String>) -> Outcome<()> {
    findings(
        connection,
        "WITH RECURSIVE reached (inode) AS (SELECT 1 UNION \
         SELECT directory.inode FROM reached CROSS JOIN dentry ON dentry.parent = reached.inode \
         CROSS JOIN directory ON directory.inode = dentry.inode) \
         SELECT 'no path leads to directory ' || inode FROM directory WHERE inode NOT IN (SELECT inode FROM reached)",
        found,
    )
}

/// Decodes every root and every set of attributes, and sums up the totals.
fn contents(connection: &Connection, found: &mut Vec<String>) -> Outcome<()> {
    for (table, key) in [
        ("inode", "number"),
        ("inode_old", "number"),
        ("version", "inode"),
        ("pin_root", "session"),
        ("held", "holder"),
    ] {
        let mut statement = connection.prepare(&format!("SELECT CAST({key} AS TEXT), root FROM {table}"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Err(error) = row::root(row.get_ref(1)?, 1) {
                found.push(format!("{table} {}: {error}", row.get::<_, String>(0)?));
            }
        }
    }
    let sql = concat!(
        "SELECT ",
        row::inode_columns!(inode_intact),
        " FROM inode i CROSS JOIN traits t ON t.id = i.traits"
    );
    let (mut kinds, mut bytes) = ([0u64; 3], 0u64);
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        match row::inode(row, 0) {
            Ok(inode) => {
                use outrigger_format::catalogue::FileKind;
                bytes = bytes.wrapping_add(inode.root.len());
                kinds[match inode.attributes.kind {
                    FileKind::File => 0,
                    FileKind::Directory => 1,
                    _ => 2,
                }] += 1;
            }
            Err(error) => found.push(format!("inode {}: {error}", row.get::<_, i64>(0)?)),
        }
    }
    let kept = super::state::totals(connection)?;
    if ([kept.files, kept.directories, kept.others], kept.bytes) != (kinds, bytes) {
        found.push(format!(
            "the totals say {} files with {} bytes, {} directories and {} others; there are {} with {bytes} bytes, {} and {}",
            kept.files, kept.bytes, kept.directories, kept.others, kinds[0], kinds[1], kinds[2]
        ));
    }
    let root = connection.query_row(
        "SELECT 1 FROM inode i JOIN traits t ON t.id = i.traits WHERE i.number = ?1 AND t.mode >> 12 = 1",
        [ROOT_INODE as i64],
        |_| Ok(()),
    );
    if root.optional()?.is_none() {
        found.push("inode 1 is not a directory".to_owned());
    }
    Ok(())
}
