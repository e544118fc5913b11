//! Checks the database: every row against its checksum, then the rules across tables.

use super::connection::{Connection, Query, Row};
use super::row::{self, ended_columns, require, stored_columns};
use super::sealing::Subject;
use super::{counters, inline, jobs, locks, packs, reclaim, records, snapshots};
use crate::meta::change::check_name;
use crate::meta::fault::{Fault, Outcome};

/// Findings of one kind that are listed; more are only counted.
const LISTED: usize = 20;

/// Queries whose rows are all findings, each described in its one column.
const RULES: &[&str] = &[
    // names
    "SELECT 'a name in directory ' || d.parent || ' stands for inode ' || d.inode || ', which does not exist' \
     FROM @dentry d LEFT JOIN @inode i ON i.number = d.inode WHERE i.number IS NULL",
    "SELECT DISTINCT 'names lie in directory ' || d.parent || ', which does not exist' \
     FROM @dentry d LEFT JOIN @directory p ON p.inode = d.parent WHERE p.inode IS NULL",
    // links; the root has no name
    "SELECT 'inode ' || i.number || ' says it has ' || i.links || ' names, and has ' || coalesce(d.names, 0) \
     FROM @inode i LEFT JOIN (SELECT inode, count(*) AS names FROM @dentry GROUP BY inode) d ON d.inode = i.number \
     WHERE i.links <> coalesce(d.names, CASE WHEN i.number = 1 THEN 1 ELSE 0 END)",
    // directories
    "SELECT 'inode ' || i.number || ' is a directory that hangs nowhere' \
     FROM @inode i LEFT JOIN @directory p ON p.inode = i.number WHERE i.mode >> 12 = 1 AND p.inode IS NULL",
    "SELECT 'inode ' || p.inode || ' is kept as a directory and is none' FROM @directory p \
     LEFT JOIN @inode i ON i.number = p.inode WHERE i.mode >> 12 IS DISTINCT FROM 1",
    "SELECT 'directory ' || d.inode || ' has a name in ' || d.parent || ', and is kept as one of ' || p.parent \
     FROM @directory p JOIN @dentry d ON d.inode = p.inode WHERE d.parent <> p.parent",
    "WITH RECURSIVE reached (inode) AS (SELECT 1::bigint UNION \
     SELECT p.inode FROM reached JOIN @dentry d ON d.parent = reached.inode JOIN @directory p ON p.inode = d.inode) \
     SELECT 'no path leads to directory ' || p.inode FROM @directory p WHERE p.inode NOT IN (SELECT inode FROM reached)",
    // epochs
    "SELECT 'inode ' || number || ' is from epoch ' || epoch || ', which has not come' \
     FROM @inode WHERE epoch NOT BETWEEN 1 AND (SELECT epoch FROM @state)",
    "SELECT 'a name in directory ' || parent || ' is from epoch ' || epoch || ', which has not come' \
     FROM @dentry WHERE epoch NOT BETWEEN 1 AND (SELECT epoch FROM @state)",
    "SELECT 'former inode ' || o.number || ' of epochs ' || o.epoch_from || ' to ' || o.epoch_to || ' overlaps the next' \
     FROM @inode_old o WHERE o.epoch_from >= o.epoch_to \
     OR EXISTS (SELECT 1 FROM @inode i WHERE i.number = o.number AND i.epoch < o.epoch_to) \
     OR EXISTS (SELECT 1 FROM @inode_old n WHERE n.number = o.number AND n.epoch_from > o.epoch_from AND n.epoch_from < o.epoch_to)",
    "SELECT 'a former name in directory ' || o.parent || ' of epochs ' || o.epoch_from || ' to ' || o.epoch_to || ' overlaps the next' \
     FROM @dentry_old o WHERE o.epoch_from >= o.epoch_to \
     OR EXISTS (SELECT 1 FROM @dentry d WHERE d.parent = o.parent AND d.name = o.name AND d.epoch < o.epoch_to) \
     OR EXISTS (SELECT 1 FROM @dentry_old n WHERE n.parent = o.parent AND n.name = o.name \
                AND n.epoch_from > o.epoch_from AND n.epoch_from < o.epoch_to)",
    "SELECT 'a name in directory ' || parent || ' stood for inode ' || inode || ' in epoch ' || seen || ', which did not exist' \
     FROM (SELECT o.parent, o.inode, (SELECT min(r.epoch) FROM @retained r WHERE r.epoch >= o.epoch_from AND r.epoch < o.epoch_to) \
           AS seen FROM @dentry_old o) s WHERE seen IS NOT NULL \
     AND NOT EXISTS (SELECT 1 FROM @inode i WHERE i.number = s.inode AND i.epoch <= seen) \
     AND NOT EXISTS (SELECT 1 FROM @inode_old i WHERE i.number = s.inode AND i.epoch_from <= seen AND i.epoch_to > seen)",
    "SELECT 'a name in directory ' || parent || ' stands for the root directory' FROM @dentry WHERE inode = 1",
    // versions, policies
    "SELECT 'version ' || v.number || ' is of inode ' || v.inode || ', which has no such version' \
     FROM @version v LEFT JOIN @inode i ON i.number = v.inode WHERE i.version IS NULL OR v.number NOT BETWEEN 1 AND i.version - 1",
    "SELECT 'policy ' || o.key || ' is set on inode ' || o.inode || ', which is no directory' \
     FROM @policy o LEFT JOIN @directory p ON p.inode = o.inode WHERE p.inode IS NULL",
    // packs, sessions, counters
    "SELECT 'pin of epoch ' || epoch || ' is of session ' || session || ', which is over' FROM @pin \
     WHERE session NOT IN (SELECT id FROM @session)",
    "SELECT 'counter of packs is behind' FROM @counter WHERE name = 'next_pack' AND value <= (SELECT max(id) FROM @pack)",
    "SELECT 'counter of inodes is behind' FROM @counter WHERE name = 'next_inode' AND value <= greatest(\
     (SELECT max(number) FROM @inode), (SELECT max(number) FROM @inode_old))",
    "SELECT 'counter of sessions is behind' FROM @counter WHERE name = 'next_session' AND value <= (SELECT max(id) FROM @session)",
    "SELECT 'epoch ' || r.epoch || ' is named, and has not ended' FROM @retained r \
     WHERE r.epoch NOT BETWEEN 1 AND (SELECT epoch FROM @state) - 1",
    "SELECT 'the root directory is missing' WHERE NOT EXISTS (SELECT 1 FROM @directory p JOIN @inode i ON i.number = p.inode \
     WHERE p.inode = 1 AND p.parent = 1 AND i.mode >> 12 = 1)",
    "SELECT 'the row of state is missing' WHERE (SELECT count(*) FROM @state) <> 1",
    "SELECT 'a counter is missing' WHERE (SELECT count(*) FROM @counter) <> 4",
];

/// Findings of one kind.
#[derive(Default)]
struct Kind {
    listed: Vec<String>,
    count: usize,
}

impl Kind {
    fn add(&mut self, finding: String) {
        self.count += 1;
        if self.count <= LISTED {
            self.listed.push(finding);
        }
    }

    fn end(self, found: &mut Vec<String>) {
        found.extend(self.listed);
        if self.count > LISTED {
            found.push(format!("… and {} more like that", self.count - LISTED));
        }
    }
}

/// Runs a query and checks each row. A bad row is a finding, other failures are errors.
fn rows(
    connection: &mut Connection,
    sql: &'static str,
    found: &mut Vec<String>,
    mut look: impl FnMut(&Row) -> Outcome<()>,
) -> Outcome<()> {
    let mut kind = Kind::default();
    connection.stream(&Query::new(sql), |row| {
        match look(row) {
            Ok(()) => {}
            Err(Fault::Store(error)) => kind.add(error.to_string()),
            Err(fault) => return Err(fault),
        }
        Ok::<(), Fault>(())
    })?;
    kind.end(found);
    Ok(())
}

/// Opens what has no checksum, and is authentic if it opens.
fn check_sealed(connection: &mut Connection, found: &mut Vec<String>) -> Outcome<()> {
    rows(connection, inline::EVERY, found, |row| inline::read(row).map(drop))?;
    rows(connection, snapshots::ALL, found, |row| snapshots::read(row).map(drop))?;
    rows(connection, records::EVERY, found, records::open)?;
    rows(connection, jobs::JOB_TEXTS, found, jobs::open_job)?;
    rows(connection, jobs::SPLIT_TEXTS, found, jobs::open_split)?;
    rows(connection, jobs::MARKS, found, jobs::open_mark)
}

/// Returns the findings, in words.
pub(super) fn check(connection: &mut Connection) -> Outcome<Vec<String>> {
    use outrigger_format::catalogue::FileKind;
    let mut found = Vec::new();
    let (mut kinds, mut bytes) = ([0u64; 3], 0u64);
    let sql = concat!("SELECT ", stored_columns!(), " FROM @inode i");
    rows(connection, sql, &mut found, |row| {
        let inode = row::inode(row::read_stored(row, 0)?)?;
        bytes = bytes.wrapping_add(inode.root.len());
        kinds[match inode.attributes.kind {
            FileKind::File => 0,
            FileKind::Directory => 1,
            _ => 2,
        }] += 1;
        Ok(())
    })?;
    let sql = concat!("SELECT ", ended_columns!(), " FROM @inode_old i");
    rows(connection, sql, &mut found, |row| row::inode(row::read_either(row, 0)?).map(drop))?;
    let mut impossible = Kind::default();
    rows(connection, "SELECT parent, name, inode, epoch, sum FROM @dentry", &mut found, |row| {
        let parent: i64 = row.try_get(0)?;
        let name = row.bytes(1, &Subject::Name { parent })?;
        if check_name(&name).is_err() {
            impossible.add(format!("directory {parent} has a name that cannot be one"));
        }
        let sum = row::name_sum(row.seals(), parent, &name, row.try_get(2)?, row.try_get(3)?);
        require(row.try_get(4)?, sum, || format!("a name in directory {parent} is not what was written"))
    })?;
    impossible.end(&mut found);
    let sql = "SELECT parent, name, inode, epoch_from, epoch_to, sum, was_sum FROM @dentry_old";
    rows(connection, sql, &mut found, |row| {
        let parent: i64 = row.try_get(0)?;
        let name = row.bytes(1, &Subject::Name { parent })?;
        let (inode, epochs): (_, (i64, i64)) = (row.try_get(2)?, (row.try_get(3)?, row.try_get(4)?));
        let what = || format!("a former name in directory {parent} is not what was written");
        match row.try_get::<_, Option<i32>>(6)? {
            Some(was) => require(was, row::name_sum(row.seals(), parent, &name, inode, epochs.0), what),
            None => {
                let sum = row::former_name_sum(row.seals(), parent, &name, inode, epochs);
                require(row.try_get(5)?, sum, what)
            }
        }
    })?;
    rows(connection, "SELECT inode, parent, sum FROM @directory", &mut found, |row| {
        let (inode, parent): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let what = || format!("where directory {inode} hangs is not what was written");
        require(row.try_get(2)?, row::directory_sum(row.seals(), inode, parent), what)
    })?;
    let sql = "SELECT inode, number, time, mtime_secs, mtime_nanos, sum, root FROM @version";
    rows(connection, sql, &mut found, |row| row::read_version(row).map(drop))?;
    let sql = "SELECT holder, sum, root FROM @held";
    rows(connection, sql, &mut found, |row| reclaim::read_held(row).map(drop))?;
    rows(connection, snapshots::PINNED, &mut found, |row| snapshots::read_pinned(row).map(drop))?;
    rows(connection, packs::EVERY, &mut found, |row| packs::read(row).map(drop))?;
    let mut kind = Kind::default();
    jobs::check(connection, &mut |finding| kind.add(finding))?;
    kind.end(&mut found);
    if connection.seals.sealer().is_some() {
        check_sealed(connection, &mut found)?;
    }
    let rules = RULES.iter().chain(locks::RULES).map(|sql| Query::new(sql));
    for rule in rules.chain([inline::rule()]) {
        let mut kind = Kind::default();
        connection.stream(&rule, |row| {
            kind.add(row.public(0)?);
            Ok::<(), Fault>(())
        })?;
        kind.end(&mut found);
    }
    let kept = counters::read_totals(&connection.query(&Query::new(counters::TOTALS))?)?;
    if ([kept.files, kept.directories, kept.others], kept.bytes) != (kinds, bytes) {
        found.push(format!("totals are kept as {kept:?}, and are {kinds:?} with {bytes} bytes"));
    }
    Ok(found)
}
