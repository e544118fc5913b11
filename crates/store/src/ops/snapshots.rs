//! Snapshots: first into the catalogue, then into the database, so that a lost database has them again.

use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::catalogue::Record;

use crate::error::{Error, ErrorKind, Result};
use crate::meta::{SessionKind, SnapshotRow};
use crate::session::Session;
use crate::store::Store;
use crate::tell;
use crate::tree::show;
use crate::write::append_records;

/// Longest name of a snapshot or tag, bytes.
pub const NAME_MAX: usize = 200;

/// Checks the name of a snapshot or tag: it must be told from paths and times on a command line.
///
/// # Errors
/// `Invalid`, saying why.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_MAX {
        "is longer than 200 bytes"
    } else if name.starts_with('-') {
        "begins with a dash"
    } else if name.contains(['/', ':', ',']) || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "has a slash, a colon, a comma, a blank or a control character"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Invalid, format!("the {what} `{}` {why}", show(name.as_bytes()))))
}

/// Takes a snapshot of the tree as it is now. Without a name it is named by `fallback`, with a number added while that is taken.
///
/// # Errors
/// `Exists` when the name is taken, `Invalid`.
pub fn create(store: &Store, name: Option<&str>, fallback: &str, tags: &[String]) -> Result<SnapshotRow> {
    tags.iter().try_for_each(|tag| check_name("tag", tag))?;
    let session = store.session(SessionKind::Writer, "snapshot")?;
    let mut chosen = name.unwrap_or(fallback).to_string();
    check_name("snapshot name", &chosen)?;
    let mut number = 2;
    loop {
        let taken = store.meta.snapshots()?.iter().any(|snapshot| snapshot.name == chosen);
        let created =
            if taken { Err(exists(&chosen)) } else { append_and_create(store, &session, &chosen, tags) };
        match created {
            // Taken by another process since it was asked for, perhaps.
            Err(error) if error.kind() == ErrorKind::Exists && name.is_none() => {
                chosen = format!("{fallback}-{number}");
                number += 1;
            }
            Err(error) if error.kind() == ErrorKind::Exists => return Err(exists(&chosen)),
            created => return created,
        }
    }
}

fn exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("snapshot `{}` exists already", show(name.as_bytes())))
}

fn append_and_create(store: &Store, session: &Session, name: &str, tags: &[String]) -> Result<SnapshotRow> {
    let time = clock::now_nanos();
    let bytes = |text: &str| text.as_bytes().to_vec();
    let record =
        Record::Snapshot { name: bytes(name), time, tags: tags.iter().map(|tag| bytes(tag)).collect() };
    // What mounts have not told yet comes behind this record, though the snapshot has it: only a catalogue that is written anew says what was in it.
    let was_untold = tell::is_untold(&*store.meta)?;
    let sequence = append_records(store, session, std::iter::once(Ok(record)))?;
    let row = store.meta.create_snapshot(name, time, tags)?;
    if was_untold || tell::is_untold(&*store.meta)? {
        tell::note_due(&*store.meta, "snapshot")?;
    }
    tell::settle(&*store.meta, sequence, "snapshot")?;
    Ok(row)
}

/// Forgets snapshots. What only they could see goes with the next reclaiming.
///
/// # Errors
/// `NotFound`; then nothing was deleted.
pub fn delete(store: &Store, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return store.require_writable();
    }
    let session: Arc<Session> = store.session(SessionKind::Writer, "snapshot")?;
    let known = store.meta.snapshots()?;
    for name in names {
        if !known.iter().any(|snapshot| snapshot.name == *name) {
            let why = format!("there is no snapshot `{}`", show(name.as_bytes()));
            return Err(Error::new(ErrorKind::NotFound, why));
        }
    }
    // The other way round than when one is made: one that is forgotten in the catalogue alone would be missing after `recover`.
    for name in names {
        store.meta.delete_snapshot(name)?;
    }
    let forget = |name: &String| Ok(Record::Forget { name: name.as_bytes().to_vec() });
    let sequence = append_records(store, &session, names.iter().map(forget))?;
    tell::settle(&*store.meta, sequence, "snapshot")
}
