//! What rules have seen of files, in PostgreSQL.

use super::super::transaction::Gate;
use super::PostgresMeta;
use crate::error::Result;
use crate::meta::jobs::RuleMarks;
use std::collections::HashMap;

use super::super::connection::{Answer, Query, Row};
use super::super::sealing::Subject;
use super::super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::Seen;

pub(super) const SEEN: &str = "SELECT inode, mark FROM @rule_mark WHERE rule = $1";

pub(super) fn read_seen(answer: &Answer, rule: &str) -> Outcome<HashMap<u64, String>> {
    let seen = |row: &Row| {
        let inode = row.try_get::<_, i64>(0)? as u64;
        Ok((inode, row.text(1, &Subject::mark(rule, inode))?))
    };
    answer.rows.iter().map(seen).collect()
}

/// Every mark, for [`open`].
pub(in super::super) const MARKS: &str = "SELECT rule, inode, mark FROM @rule_mark";

/// Opens a row of [`MARKS`].
pub(in super::super) fn open(row: &Row) -> Outcome<()> {
    let (rule, inode) = (row.text(0, &Subject::RuleName)?, row.try_get::<_, i64>(1)?);
    row.text(2, &Subject::mark(&rule, inode as u64)).map(drop)
}

/// A statement about the marks of a rule, which is `$1`.
fn of_rule(sql: &'static str, rule: &str) -> Query {
    Query::new(sql).text(Subject::RuleName, rule)
}

/// Adds or replaces a mark, if the one before is as `seen` says.
fn mark(seen: &Seen) -> Query {
    let text = |query: Query, mark| query.text(Subject::mark(&seen.rule, seen.inode), mark);
    let query = |sql| text(of_rule(sql, &seen.rule).int(seen.inode as i64), &seen.mark);
    match &seen.before {
        None => {
            query("INSERT INTO @rule_mark (rule, inode, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        }
        Some(before) => {
            let sql = "UPDATE @rule_mark SET mark = $3 WHERE rule = $1 AND inode = $2 AND mark = $4";
            text(query(sql), before)
        }
    }
}

/// Refuses with `Exists` unless what the rule has seen is what `seen` says it was. Two that see the
/// same meet in the row.
pub(super) fn see(tx: &mut Tx<'_>, seen: &Seen) -> Outcome<()> {
    if tx.one(mark(seen))?.affected == 1 {
        return Ok(());
    }
    Err(refuse(ErrorKind::Exists, "another agent has seen this already"))
}

pub(super) fn see_all(tx: &mut Tx<'_>, seen: &[Seen]) {
    seen.iter().for_each(|seen| tx.later(mark(seen)));
}

impl RuleMarks for PostgresMeta {
    fn seen(&self, rule: &str) -> Result<HashMap<u64, String>> {
        let query = of_rule(SEEN, rule);
        self.read("reading what a rule has seen", &query, |answer| read_seen(answer, rule))
    }

    fn see(&self, seen: &[Seen]) -> Result<()> {
        self.write("recording what a rule has seen", Gate::Open, |tx| {
            see_all(tx, seen);
            Ok(())
        })
    }

    fn forget_seen(&self, rule: &str) -> Result<()> {
        self.write("forgetting what a rule has seen", Gate::Open, |tx| {
            tx.later(of_rule("DELETE FROM @rule_mark WHERE rule = $1", rule));
            Ok(())
        })
    }

    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()> {
        let mut inodes: Vec<i64> = inodes.iter().map(|inode| *inode as i64).collect();
        inodes.sort_unstable();
        self.write("forgetting files that are gone", Gate::Open, |tx| {
            let sql = "DELETE FROM @rule_mark WHERE rule = $1 AND inode = ANY ($2)";
            tx.later(of_rule(sql, rule).ints(inodes.clone()));
            Ok(())
        })
    }
}
