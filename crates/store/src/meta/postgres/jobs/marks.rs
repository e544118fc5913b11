//! What rules have seen of files, in PostgreSQL.

use super::super::transaction::Gate;
use super::PostgresMeta;
use crate::error::Result;
use crate::meta::jobs::RuleMarks;
use std::collections::HashMap;

use super::super::connection::{Answer, Query};
use super::super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::Seen;

pub(super) const SEEN: &str = "SELECT inode, mark FROM @rule_mark WHERE rule = $1";

pub(super) fn read_seen(answer: &Answer) -> Outcome<HashMap<u64, String>> {
    let seen = |row: &tokio_postgres::Row| Ok((row.try_get::<_, i64>(0)? as u64, row.try_get(1)?));
    answer.rows.iter().map(seen).collect()
}

/// Refuses with `Exists` unless what the rule has seen is what `seen` says it was. Two that see the
/// same meet in the row.
pub(super) fn see(tx: &mut Tx<'_>, seen: &Seen) -> Outcome<()> {
    let query = match &seen.before {
        None => {
            let sql = "INSERT INTO @rule_mark (rule, inode, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
            Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark)
        }
        Some(before) => {
            let sql = "UPDATE @rule_mark SET mark = $3 WHERE rule = $1 AND inode = $2 AND mark = $4";
            Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark).text(before)
        }
    };
    if tx.one(query)?.affected == 1 {
        return Ok(());
    }
    Err(refuse(ErrorKind::Exists, "another agent has seen this already"))
}

pub(super) fn see_all(tx: &mut Tx<'_>, seen: &[Seen]) {
    for seen in seen {
        if let Some(before) = &seen.before {
            let sql = "UPDATE @rule_mark SET mark = $3 WHERE rule = $1 AND inode = $2 AND mark = $4";
            let query = Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark);
            tx.later(query.text(before));
            continue;
        }
        let sql = "INSERT INTO @rule_mark (rule, inode, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        tx.later(Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark));
    }
}

impl RuleMarks for PostgresMeta {
    fn seen(&self, rule: &str) -> Result<HashMap<u64, String>> {
        self.read("reading what a rule has seen", &Query::new(SEEN).text(rule), read_seen)
    }

    fn see(&self, seen: &[Seen]) -> Result<()> {
        self.write("recording what a rule has seen", Gate::Open, |tx| {
            see_all(tx, seen);
            Ok(())
        })
    }

    fn forget_seen(&self, rule: &str) -> Result<()> {
        self.write("forgetting what a rule has seen", Gate::Open, |tx| {
            tx.later(Query::new("DELETE FROM @rule_mark WHERE rule = $1").text(rule));
            Ok(())
        })
    }

    fn forget_inodes(&self, rule: &str, inodes: &[u64]) -> Result<()> {
        let mut inodes: Vec<i64> = inodes.iter().map(|inode| *inode as i64).collect();
        inodes.sort_unstable();
        self.write("forgetting files that are gone", Gate::Open, |tx| {
            let sql = "DELETE FROM @rule_mark WHERE rule = $1 AND inode = ANY ($2)";
            tx.later(Query::new(sql).text(rule).ints(inodes.clone()));
            Ok(())
        })
    }
}
