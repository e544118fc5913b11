//! One commit: the session is live, its packs become live, the changes are applied; or nothing of
//! it.

use rusqlite::Connection;

use super::job_rows::SqliteJobs;
use super::policies::any_versions_policy;
use super::rows::SqliteRows;
use super::state::{add_totals, counter, retained};
use super::{Moment, inline, packs, sessions, snapshots};
use crate::error::ErrorKind;
use crate::meta::change::{Editor, Start, apply_all};
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::rules;
use crate::meta::{Change, Commit, Committed, SessionId, SessionKind};

/// Applies `commit` in the transaction that `connection` is in.
pub(super) fn commit(
    connection: &Connection,
    now: Moment,
    session: SessionId,
    commit: &Commit,
) -> Outcome<Committed> {
    if sessions::require_live(connection, now, session)? == SessionKind::Reader {
        return Err(refuse(ErrorKind::Invalid, format!("session {} only reads", session.0)));
    }
    packs::make_live(connection, session, &commit.packs)?;
    let generation = counter(connection, "generation")? as u64;
    if commit.changes.is_empty() {
        return Ok(Committed { generation, ..Committed::default() });
    }
    rules::apply(&mut SqliteJobs { db: connection, now }, session, &commit.changes)?;
    for change in &commit.changes {
        if let Change::InlineChunks(change) = change {
            inline::apply(connection, session, change)?;
        }
    }
    let start = Start {
        epoch: counter(connection, "epoch")?,
        next_inode: counter(connection, "next_inode")?,
        retained: retained(connection)?,
        any_versions_policy: any_versions_policy(connection)?,
        generation,
        time: commit.time,
    };
    let mut editor = Editor::new(SqliteRows::new(connection)?, start);
    apply_all(&mut editor, &commit.changes)?;
    let (_, totals, done) = editor.finish();
    add_totals(connection, totals)?;
    commit.pinned().try_for_each(|root| snapshots::pin_root(connection, session, root))?;
    Ok(done)
}
