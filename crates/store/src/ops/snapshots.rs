//! Snapshots: first into the catalogue, then into the database, so that a lost database has them
//! again.

use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_format::catalogue::Record;

use crate::error::{Error, ErrorKind, Result};
use crate::host::Identity;
use crate::meta::{At, ROOT_INODE, SessionKind, SnapshotRow};
use crate::policy::{AUTOMATIC, AUTOMATIC_DEFAULT, SOURCE, parse_age};
use crate::publish;
use crate::session::Session;
use crate::snapshot::BeforeSnapshot;
use crate::snapshot::facts::{Counts, Facts, Kind};
use crate::store::Store;
use crate::text::show;
use crate::tree::{StorePath, find};
use crate::write::append_records;

/// Longest name of a snapshot or tag, bytes.
pub const NAME_MAX: usize = 200;

/// Checks the name of a snapshot or tag: a command line must be able to tell it from paths and
/// times.
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

/// Like [`create_with`], without facts but the tags.
///
/// # Errors
/// Those of [`create_with`].
pub fn create(store: &Store, name: Option<&str>, fallback: &str, tags: &[String]) -> Result<SnapshotRow> {
    create_with(store, name, fallback, Facts { tags: tags.to_vec(), ..Facts::default() })
}

/// Takes a snapshot of the tree as it is now. Without a name it is named by `fallback`, with a
/// number added while that is taken.
///
/// # Errors
/// `Exists` when the name is taken, `Invalid`.
pub fn create_with(store: &Store, name: Option<&str>, fallback: &str, facts: Facts) -> Result<SnapshotRow> {
    create_at(store, name, fallback, facts, clock::now_nanos())
}

/// Like [`create_with`], with the time that the snapshot is of, in nanoseconds since 1970: an
/// imported one has that of its original.
///
/// # Errors
/// Those of [`create_with`].
pub fn create_at(
    store: &Store,
    name: Option<&str>,
    fallback: &str,
    facts: Facts,
    time: u64,
) -> Result<SnapshotRow> {
    facts.tags.iter().try_for_each(|tag| check_name("tag", tag))?;
    let kind = if name.is_some() { Kind::Named } else { Kind::Dated };
    let tags = Facts { kind, ..facts }.sized(&*store.meta)?.to_tags();
    let session = store.session(SessionKind::Writer, "snapshot")?;
    let mut chosen = name.unwrap_or(fallback).to_string();
    check_name("snapshot name", &chosen)?;
    let mut number = 2;
    loop {
        let taken = store.meta.snapshots()?.iter().any(|snapshot| snapshot.name == chosen);
        let created = if taken {
            Err(exists(&chosen))
        } else {
            append_and_create(store, &session, &chosen, &tags, time)
        };
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

fn append_and_create(
    store: &Store,
    session: &Session,
    name: &str,
    tags: &[String],
    time: u64,
) -> Result<SnapshotRow> {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let record = Record::Snapshot { name: bytes(name), time, tags: as_bytes(tags) };
    // The snapshot has changes that mounts have not published yet, and their records come behind
    // this one. Only a rewritten catalogue can record them as part of it.
    let was_unpublished = publish::is_unpublished(&*store.meta)?;
    let sequence = append_records(store, session, std::iter::once(Ok(record)))?;
    let row = store.meta.create_snapshot(name, time, tags)?;
    if was_unpublished || publish::is_unpublished(&*store.meta)? {
        publish::set_due(&*store.meta, "snapshot")?;
    }
    publish::settle(&*store.meta, sequence, "snapshot")?;
    Ok(row)
}

fn as_bytes(tags: &[String]) -> Vec<Vec<u8>> {
    tags.iter().map(|tag| tag.as_bytes().to_vec()).collect()
}

/// The snapshots of these names.
fn require(store: &Store, names: &[String]) -> Result<Vec<SnapshotRow>> {
    let known = store.meta.snapshots()?;
    let row = |name: &String| {
        known.iter().find(|row| row.name == *name).cloned().ok_or_else(|| {
            let shown = show(name.as_bytes());
            let tagged = known.iter().rev().find(|row| Facts::of(row).tags.contains(name));
            let hint =
                tagged.map(|row| format!("; it is a tag, which `{}` has", row.name)).unwrap_or_default();
            Error::new(ErrorKind::NotFound, format!("there is no snapshot `{shown}`{hint}"))
        })
    };
    names.iter().map(row).collect()
}

/// Holds snapshots, so that nothing deletes them, or releases them.
///
/// # Errors
/// `NotFound`; then nothing was changed.
pub fn hold(store: &Store, names: &[String], held: bool) -> Result<()> {
    store.require_may_remove("hold or release snapshots")?;
    let rows = require(store, names)?;
    let session = store.session(SessionKind::Writer, "snapshot")?;
    for row in rows {
        let tags = Facts { held, ..Facts::of(&row) }.to_tags();
        let record = Record::Tags { name: row.name.as_bytes().to_vec(), tags: as_bytes(&tags) };
        let sequence = append_records(store, &session, std::iter::once(Ok(record)))?;
        store.meta.set_snapshot_tags(&row.name, &tags)?;
        publish::settle(&*store.meta, sequence, "snapshot")?;
    }
    Ok(())
}

/// How long automatic snapshots stay, as it was set or by default.
///
/// # Errors
/// When the database cannot be read.
pub fn automatic_age(store: &Store) -> Result<String> {
    let set = store.meta.policies(ROOT_INODE)?.remove(AUTOMATIC);
    Ok(set.filter(|age| parse_age(age).is_some()).unwrap_or_else(|| AUTOMATIC_DEFAULT.to_string()))
}

/// Automatic snapshots that are older than `age` (by default, their configured age), and that are
/// not held. Age is measured from the newest snapshot of all: if the clock was wrong for once,
/// snapshots taken since do not become old.
///
/// # Errors
/// When the database cannot be read.
pub fn expired(store: &Store, age: Option<&str>) -> Result<Vec<String>> {
    let age = age.map_or_else(|| automatic_age(store), |age| Ok(age.to_string()))?;
    let Some(age) = parse_age(&age).flatten() else { return Ok(Vec::new()) };
    let snapshots = store.meta.snapshots()?;
    let newest = snapshots.iter().map(|row| row.time).max().unwrap_or(0);
    let until = store.meta.now()?.min(newest).saturating_sub(age.as_nanos().min(u64::MAX.into()) as u64);
    let is_over = |row: &SnapshotRow| {
        let facts = Facts::of(row);
        facts.kind == Kind::Automatic && !facts.held && row.time <= until
    };
    Ok(snapshots.into_iter().filter(is_over).map(|row| row.name).collect())
}

/// The snapshot to take before `command` replaces or removes something below `targets`: it is taken
/// once that happens, and [`settle`] ends it. `time` is text that tells it from others.
///
/// # Errors
/// When the database cannot be read.
pub fn before(
    store: &Store,
    command: &str,
    time: &str,
    sources: Vec<Vec<u8>>,
    targets: &[StorePath],
) -> Result<Arc<BeforeSnapshot>> {
    let mut mirrored = Vec::new();
    for target in targets {
        let inode = find(&*store.meta, At::Now, target)?;
        let policies = inode.map(|inode| store.meta.policies(inode.number)).transpose()?;
        mirrored.extend(policies.and_then(|mut own| own.remove(SOURCE)).map(|text| (target.clone(), text)));
    }
    let facts = Facts {
        host: Some(Identity::this().name),
        command: Some(command.to_string()),
        sources,
        targets: targets.to_vec(),
        mirrored,
        ..Facts::default()
    };
    Ok(Arc::new(BeforeSnapshot::new(format!("before-{command}-{time}"), facts)))
}

/// Completes a command that had `before`: records the counts in the snapshot, or deletes it if
/// nothing was removed or replaced. Returns its name if it stays.
///
/// # Errors
/// Those of the store; the snapshot stays then.
pub fn settle(store: &Store, before: &BeforeSnapshot, counts: Counts) -> Result<Option<String>> {
    let Some((name, facts, destroys)) = before.outcome() else { return Ok(None) };
    if store.meta.only_adds().is_some() {
        return Ok(Some(name));
    }
    if counts == Counts::default() || !destroys {
        remove(store, std::slice::from_ref(&name))?;
        before.forget();
        return Ok(None);
    }
    // Not in the catalogue: that costs a pack, and a recovered store does without.
    let facts = Facts { counts: Some(counts), ..facts };
    store.meta.set_snapshot_tags(&name, &facts.to_tags())?;
    Ok(Some(name))
}

/// Forgets snapshots. The next reclaiming frees contents that only they had.
///
/// # Errors
/// `NotFound`, `Invalid` for a held one; then nothing was deleted.
pub fn delete(store: &Store, names: &[String]) -> Result<()> {
    store.require_all_rights()?;
    remove(store, names)
}

fn remove(store: &Store, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return store.require_writable();
    }
    store.require_may_remove("delete snapshots")?;
    let session: Arc<Session> = store.session(SessionKind::Writer, "snapshot")?;
    if let Some(held) = require(store, names)?.iter().find(|row| Facts::of(row).held) {
        let name = show(held.name.as_bytes());
        let why =
            format!("snapshot `{name}` is held; `outrigger snapshot release {name}` lets it be deleted");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    // The other way round than when one is made: one that is forgotten in the catalogue alone would
    // be missing after `recover`.
    for name in names {
        store.meta.delete_snapshot(name)?;
    }
    let forget = |name: &String| Ok(Record::Forget { name: name.as_bytes().to_vec() });
    let sequence = append_records(store, &session, names.iter().map(forget))?;
    publish::settle(&*store.meta, sequence, "snapshot")
}
