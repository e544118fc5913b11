//! What runners keep beside jobs.

use std::collections::HashMap;

use tokio_postgres::types::Type;

use super::super::connection::{Answer, Query};
use super::super::sessions;
use super::super::transaction::Tx;
use crate::error::ErrorKind;
use crate::meta::fault::{Outcome, refuse};
use crate::meta::jobs::{Note, Seen};

macro_rules! notes {
    ($which:literal) => {
        concat!(
            "SELECT n.name, n.value, n.changed, n.role, session_user::text FROM ",
            super::read::before_roles!(),
            "(SELECT name, value, changed, role FROM @job_note WHERE kind = $1",
            $which,
            ") n ORDER BY n.name"
        )
    };
}
pub(super) const ALL: &str = notes!("");
/// Notes whose names begin so.
pub(super) const BELOW: &str = notes!(" AND starts_with(name, $2)");
pub(super) const SEEN: &str = "SELECT inode, mark FROM @job_seen WHERE rule = $1";

pub(super) fn read(answer: &Answer) -> Outcome<Vec<Note>> {
    let note = |row: &tokio_postgres::Row| {
        let changed: i64 = row.try_get(2)?;
        let by = Some(super::read::made_by(row, 3)?);
        Ok(Note { name: row.try_get(0)?, value: row.try_get(1)?, changed: changed as u64, by })
    };
    answer.rows.iter().map(note).collect()
}

pub(super) fn read_seen(answer: &Answer) -> Outcome<HashMap<u64, String>> {
    let seen = |row: &tokio_postgres::Row| Ok((row.try_get::<_, i64>(0)? as u64, row.try_get(1)?));
    answer.rows.iter().map(seen).collect()
}

pub(super) fn set(tx: &mut Tx<'_>, kind: &str, name: &str, value: Option<&str>) {
    let Some(value) = value else {
        let sql = "DELETE FROM @job_note WHERE kind = $1 AND name = $2";
        return tx.later(Query::new(sql).text(kind).text(name));
    };
    let sql = concat!(
        "INSERT INTO @job_note (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, changed = excluded.changed"
    );
    tx.later(Query::new(sql).text(kind).text(name).text(value));
}

/// Removes notes whose names begin so.
pub(super) fn remove_below(tx: &mut Tx<'_>, kind: &str, prefix: &str) {
    let sql = "DELETE FROM @job_note WHERE kind = $1 AND starts_with(name, $2)";
    tx.later(Query::new(sql).text(kind).text(prefix));
}

/// Sets notes of one kind, by name.
pub(super) fn set_all(tx: &mut Tx<'_>, kind: &str, names: Vec<String>, values: Vec<String>) {
    let sql = concat!(
        "INSERT INTO @job_note (kind, name, value, changed) SELECT $1, n.name, n.value, ",
        sessions::now!(),
        " FROM unnest($2::text[], $3::text[]) AS n (name, value) \
         ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value, changed = excluded.changed"
    );
    tx.later(Query::new(sql).text(kind).with(names, Type::TEXT_ARRAY).with(values, Type::TEXT_ARRAY));
}

pub(super) fn add(tx: &mut Tx<'_>, kind: &str, name: &str, value: &str) -> Outcome<bool> {
    let sql = concat!(
        "INSERT INTO @job_note (kind, name, value, changed) VALUES ($1, $2, $3, ",
        sessions::now!(),
        ") ON CONFLICT DO NOTHING"
    );
    Ok(tx.one(Query::new(sql).text(kind).text(name).text(value))?.affected == 1)
}

pub(super) fn change(
    tx: &mut Tx<'_>,
    (kind, name): (&str, &str),
    was: &str,
    to: Option<&str>,
) -> Outcome<bool> {
    let query = match to {
        None => Query::new("DELETE FROM @job_note WHERE kind = $1 AND name = $2 AND value = $3"),
        Some(_) => Query::new(concat!(
            "UPDATE @job_note SET value = $4, changed = ",
            sessions::now!(),
            " WHERE kind = $1 AND name = $2 AND value = $3"
        )),
    };
    let query = query.text(kind).text(name).text(was);
    let query = match to {
        None => query,
        Some(to) => query.text(to),
    };
    Ok(tx.one(query)?.affected == 1)
}

/// Refuses with `Exists` unless what the rule has seen is what `seen` says it was. Two that see the same meet in the row.
pub(super) fn see(tx: &mut Tx<'_>, seen: &Seen) -> Outcome<()> {
    let query = match &seen.before {
        None => {
            let sql = "INSERT INTO @job_seen (rule, inode, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
            Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark)
        }
        Some(before) => {
            let sql = "UPDATE @job_seen SET mark = $3 WHERE rule = $1 AND inode = $2 AND mark = $4";
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
            let sql = "UPDATE @job_seen SET mark = $3 WHERE rule = $1 AND inode = $2 AND mark = $4";
            let query = Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark);
            tx.later(query.text(before));
            continue;
        }
        let sql = "INSERT INTO @job_seen (rule, inode, mark) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        tx.later(Query::new(sql).text(&seen.rule).int(seen.inode as i64).text(&seen.mark));
    }
}
