//! One commit: two round trips to the server, unless it can be made in one (`speculative.rs`). The
//! first one locks and reads (the session, the counters, all rows that the changes name), the
//! second one writes and commits.

use tokio_postgres::types::Type;

use super::connection::Query;
use super::jobs::PostgresJobs;
use super::sessions::{self, now};
use super::speculative::ObservedRows;
use super::transaction::Tx;
use super::working::Working;
use super::{counters, inline, packs, snapshots};
use crate::error::ErrorKind;
use crate::meta::change::totals::{Retained, TotalsDelta};
use crate::meta::change::{Editor, Start, apply_all};
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::rules;
use crate::meta::{Change, Commit, Committed, SessionId, SessionKind};

/// The session, as in [`sessions::REQUIRE_LIVE`], and the state that every commit starts from,
/// which changes behind the gate only.
const START: &str = concat!(
    "SELECT x.kind, x.lease_until < ",
    now!(),
    " + x.lease_secs * 500000000::bigint, s.epoch, s.generation, c.value, \
     ARRAY (SELECT r.epoch FROM @retained r ORDER BY r.epoch), \
     EXISTS (SELECT 1 FROM @policy p WHERE p.key = 'versions') \
     FROM @session x, @state s, @counter c WHERE x.id = $1 AND c.name = 'next_inode' FOR KEY SHARE OF x"
);

/// Applies `commit` in a transaction, and collects the rows to cache if it succeeds.
pub(super) fn commit(
    tx: &mut Tx<'_>,
    session: SessionId,
    commit: &Commit,
    observed: &mut ObservedRows,
) -> Outcome<Committed> {
    let (wanted, load) = Working::load(&commit.changes);
    let mut queries = vec![Query::new(START).int(session.0 as i64)];
    if !commit.changes.is_empty() {
        queries.extend(load);
    }
    let answers = tx.run(queries)?;
    if sessions::live(tx, session, &answers[0])? == SessionKind::Reader {
        return Err(refuse(ErrorKind::Invalid, format!("session {} only reads", session.0)));
    }
    packs::make_live(tx, session, &commit.packs)?;
    rules::apply(&mut PostgresJobs(tx), session, &commit.changes)?;
    if commit.changes.iter().any(|change| matches!(change, Change::InlineChunks(_))) {
        inline::apply(tx, session, &commit.changes)?;
    }
    let row = counters::row(&answers[0])?;
    let start = Start {
        epoch: row.try_get(2)?,
        generation: row.try_get::<_, i64>(3)? as u64,
        next_inode: row.try_get(4)?,
        retained: Retained(row.try_get(5)?),
        any_versions_policy: row.try_get(6)?,
        time: commit.time,
    };
    if commit.changes.is_empty() {
        return Ok(Committed { generation: start.generation, ..Committed::default() });
    }
    let slot = tx.slot();
    let mut working = Working::new(tx);
    working.loaded(wanted, &answers[1..])?;
    let mut editor = Editor::new(working, start.clone());
    apply_all(&mut editor, &commit.changes)?;
    let (mut working, totals, done) = editor.finish();
    *observed = ObservedRows::of(&start, &working);
    working.flush();
    drop(working);
    commit.pinned().for_each(|root| snapshots::later_pin_root(tx, session, root));
    if totals != TotalsDelta::default() {
        let sql = "UPDATE @total SET files = files + $2, directories = directories + $3, others = others + $4, \
                   bytes = bytes + $5 WHERE slot = $1";
        let query = Query::new(sql).with(slot, Type::INT4).int(totals.files).int(totals.directories);
        tx.later(query.int(totals.others).int(totals.bytes));
    }
    Ok(done)
}
