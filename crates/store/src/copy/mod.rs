//! `copy`: a store into another place, its packs and its database on any engine each. For moving out of one machine, and for replicas.
//!
//! ```text
//!  hold the collector off ─▶ the database of one moment, frozen ─▶ its packs, several at once ─▶ the database takes its place
//!                            frozen.rs, meta/carry.rs              packs.rs, journal.rs          destination.rs: it is a store
//! ```
//!
//! Packs go over as they are: nothing is cut, hashed or compressed again, and versions, snapshots and policies are what they were. Each is
//! checked on its way (header, every frame's checksum, footer), written, and counted only when the other engine has acknowledged it. Packs are
//! immutable and never change their names, so a copy that was interrupted goes on where it was, and a copy of what has changed since is short.
//! Writers of the source go on meanwhile: what they commit after that moment is the next copy's.
//!
//! The copy has the source's id: it is the same store elsewhere, or a replica of it. Written to on its own, it is one no more: the next copy
//! into it is refused, since two histories cannot be joined.

mod destination;
mod frozen;
mod journal;
mod note;
mod packs;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_clock as clock;
use outrigger_format::PackId;
use serde::Serialize;

use crate::backend::Location;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{Meta as _, PackRow};
use crate::note::{Level, note};
use crate::older;
use crate::session::{LEASE_SECS, Session};
use crate::store::Store;

use destination::{Destination, reconcile};
use journal::Journal;
pub use note::CopyNote;
pub(crate) use packs::{copy_before_readers, copy_one};

/// The database's name until all it refers to is there.
const UNFINISHED: &str = "meta.db.copying";

/// What to copy, and where to.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The copy's directory, or the URL of a PostgreSQL database.
    pub to: PathBuf,
    /// Where its packs are to lie; `None`: where they lie if the copy is there already, else in its directory, if it has one.
    pub packs: Option<Location>,
    /// Packs copied at once.
    pub threads: usize,
    /// Read all packs of the copy again when done, as the engine returns them.
    pub verify: bool,
}

/// Live counters of a copy.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Packs there are.
    pub packs_expected: AtomicU64,
    /// Packs that are there.
    pub packs_done: AtomicU64,
    /// Bytes to copy.
    pub bytes_expected: AtomicU64,
    /// Bytes copied.
    pub bytes_done: AtomicU64,
}

/// What a copy did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CopyReport {
    /// Packs that were copied.
    pub packs_copied: u64,
    /// Their bytes.
    pub bytes_copied: u64,
    /// Packs that were there already.
    pub packs_kept: u64,
    /// Packs removed, since the source has them no more.
    pub packs_removed: u64,
    /// Packs read again and found whole.
    pub packs_verified: u64,
    /// Snapshots in the copy.
    pub snapshots: u64,
    /// Files in the copy.
    pub files: u64,
    /// The moment whose state the copy has, nanoseconds since 1970.
    pub as_of: u64,
    /// How long ago that was when the copy was done, milliseconds.
    pub behind_ms: u64,
    /// Packs that the source had got by then that the copy does not have.
    pub packs_behind: u64,
    /// Their bytes.
    pub bytes_behind: u64,
    /// What could not be copied, in sentences. The copy is not whole then, and was not made a store.
    pub problems: Vec<String>,
}

/// Copies `store`, as it is at one moment from now on.
///
/// # Errors
/// `Exists` when something else is in the way, or the copy was changed by itself; `Busy` when either is in use in a way that does not allow
/// it; `Damaged` when the source's database is; whatever the engines say.
pub fn copy(store: &Store, options: &CopyOptions, progress: &CopyProgress) -> Result<CopyReport> {
    let to = Destination::open(store, options)?;
    // While this session is the collector, no pack of the source can go away, and no other copy of it is at work in the same place.
    let session = if store.is_read_only() { None } else { Some(store.collector("copy")?.0) };
    let copied = copy_to(store, &to, session.as_deref(), options, progress);
    if let Some(session) = session {
        let _ = store.meta.release_collector(session.id());
    }
    copied
}

fn copy_to(
    store: &Store,
    to: &Destination,
    session: Option<&Session>,
    options: &CopyOptions,
    progress: &CopyProgress,
) -> Result<CopyReport> {
    // What its database has forgotten would be removed from the copy.
    older::refuse(store)?;
    let mut journal = Journal::open(&to.dir, &to.config)?;
    let known = to.require_copy(&journal)?;
    let backend = to.packs(&mut journal)?;
    let mut report = CopyReport { as_of: clock::now_nanos(), ..CopyReport::default() };
    let state = frozen::freeze(store, &to.unfinished(), report.as_of)?;
    let rows: Vec<PackRow> = state.packs()?.into_iter().filter(PackRow::is_committed).collect();
    note(Level::Info, "step", || {
        let counts = vec![("packs", rows.len().to_string()), ("there", known.len().to_string())];
        ("copying packs".to_owned(), counts)
    });
    reconcile(&mut journal, &rows, &known, &backend.list()?);
    packs::copy(store, &*backend, &rows, &mut journal, options, progress, &mut report)?;
    if options.verify {
        packs::verify(&*backend, &to.config, &rows, options.threads, &mut report);
    }
    require_hold(store, session, &rows, &report)?;
    if !report.problems.is_empty() {
        return Ok(report);
    }
    (report.files, report.snapshots) = (state.totals()?.files, state.snapshots()?.len() as u64);
    note(Level::Info, "step", || ("taking the rows over".to_owned(), Vec::new()));
    to.take(state)?;
    // What the source has given up since the last copy.
    let known: HashSet<PackId> = rows.iter().map(|row| row.id).collect();
    for id in backend.list()?.into_iter().filter(|id| !known.contains(id)) {
        backend.remove(id)?;
        report.packs_removed += 1;
    }
    journal.retain(&known)?;
    let newer = store.meta.packs()?.into_iter().filter(|row| row.is_committed() && !known.contains(&row.id));
    for row in newer {
        report.packs_behind += 1;
        report.bytes_behind += row.bytes;
    }
    report.behind_ms = clock::now_nanos().saturating_sub(report.as_of) / 1_000_000;
    Ok(report)
}

/// Fails when packs may have been reclaimed while they were copied: because this session has lost its hold on the source, or because the source may only
/// be read, so that there is none.
fn require_hold(
    store: &Store,
    session: Option<&Session>,
    rows: &[PackRow],
    report: &CopyReport,
) -> Result<()> {
    if let Some(session) = session {
        // Asks the database: a lease that has run out is noticed before the next second.
        store.meta.renew(session.id(), LEASE_SECS)?;
        return session.check();
    }
    if report.problems.is_empty() {
        return Ok(());
    }
    let there: HashSet<PackId> =
        store.meta.packs()?.iter().filter(|row| row.is_committed()).map(|row| row.id).collect();
    let Some(gone) = rows.iter().find(|row| !there.contains(&row.id)) else { return Ok(()) };
    let why = format!(
        "pack {} was reclaimed meanwhile, as {} may only be read here, and so the collector cannot be held off; run the same command again",
        gone.id,
        store.name().display()
    );
    Err(Error::new(ErrorKind::Busy, why))
}

/// Adds to a counter.
fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
