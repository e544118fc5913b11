//! `copy`: a store into another place, its packs and its database on any engine each. For moving
//! out of one machine, and for replicas.
//!
//! ```text
//!  hold the collector off ─▶ the database of one moment, frozen ─▶ its packs, several at once ─▶ the database takes its place
//!                            frozen.rs, meta/carry.rs              packs.rs, journal.rs          destination.rs: it is a store
//! ```
//!
//! Packs are copied as they are: nothing is cut, hashed or compressed again, and versions,
//! snapshots and policies do not change. Each pack is checked on its way (header, every frame's
//! checksum, footer), written, and counted only when the other engine has acknowledged it. Packs
//! are immutable and never change their names, so an interrupted copy goes on where it was, and a
//! copy of recent changes is short. Writers of the source go on meanwhile: the next copy has their
//! later commits.
//!
//! The copy has the source's id: it is the same store elsewhere, or a replica of it. If it is
//! written to on its own, it stops being a replica: the next copy into it is refused, since two
//! histories cannot be joined.

mod destination;
mod frozen;
mod journal;
mod packs;
mod texts;

use crate::meta::{Packs, Snapshots, Tree};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_clock as clock;
use outrigger_format::PackId;
use serde::Serialize;

use crate::backend::Location;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{NewKeys, domains};
use crate::meta::PackRow;
use crate::note::{Level, note};
use crate::session::{LEASE_SECS, Session};
use crate::stale;
use crate::store::Store;

pub use crate::meta::CopyNote;
use destination::{Destination, reconcile};
use journal::Journal;
pub(crate) use packs::{copy_before_readers, copy_one};

/// The database's name until all its packs are there.
const UNFINISHED: &str = "meta.db.copying";

/// Options of a copy: its destination, and how to copy.
#[derive(Debug)]
pub struct CopyOptions {
    /// The copy's directory, or the URL of a PostgreSQL database.
    pub to: PathBuf,
    /// The place for its packs. `None`: their present place if the copy exists, else its directory,
    /// if it has one.
    pub packs: Option<Location>,
    /// Packs copied at once.
    pub threads: usize,
    /// Read all packs of the copy again when done, as the engine returns them.
    pub verify: bool,
    /// How a new copy is encrypted; a copy that is there already stays as it is.
    pub encryption: CopyEncryption,
}

/// How a new copy is encrypted.
#[derive(Debug, Default)]
pub enum CopyEncryption {
    /// As the source: with its keys, or not.
    #[default]
    Same,
    /// With new keys; the source is not encrypted.
    New(NewKeys),
    /// Not.
    Plain,
}

/// Live counters of a copy.
#[derive(Debug, Default)]
pub struct CopyProgress {
    /// Packs to copy.
    pub packs_expected: AtomicU64,
    /// Packs that are there now.
    pub packs_done: AtomicU64,
    /// Bytes to copy.
    pub bytes_expected: AtomicU64,
    /// Bytes copied.
    pub bytes_done: AtomicU64,
}

/// The outcome of a copy.
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
    /// Snapshots that an earlier copy had there, and the source has no more.
    pub snapshots_removed: u64,
    /// By how many the copy has fewer files than before; 0 if it has more.
    pub files_fewer: u64,
    /// The moment whose state the copy has, nanoseconds since 1970.
    pub as_of: u64,
    /// The age of that state when the copy was done, milliseconds.
    pub behind_ms: u64,
    /// Newer packs of the source that the copy does not have.
    pub packs_behind: u64,
    /// Their bytes.
    pub bytes_behind: u64,
    /// Packs that could not be copied, in sentences. The copy is then incomplete, and was not made
    /// a store.
    pub problems: Vec<String>,
}

/// Copies `store`, in its state at one moment from now on.
///
/// # Errors
/// `Exists` when something else is in the way, or the copy was changed by itself; `Busy` when the
/// source or the copy is in use; `Damaged` when the source's database is; errors of the engines.
pub fn copy(store: &Store, options: &CopyOptions, progress: &CopyProgress) -> Result<CopyReport> {
    store.require_all_contents()?;
    let to = Destination::open(store, options)?;
    // While this session is the collector, no pack of the source can go away, and no other copy of
    // it runs to the same place.
    let holds = !store.is_read_only() && store.meta.only_adds().is_none();
    let session = if holds { Some(store.collector("copy")?.0) } else { None };
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
    // A stale database would remove packs from the copy that it has forgotten.
    stale::refuse(store)?;
    let mut journal = Journal::open(&to.dir, &to.config)?;
    let known = to.require_copy(&journal)?;
    let backend = to.packs(options, &mut journal)?;
    let mut report = CopyReport { as_of: clock::now_nanos(), ..CopyReport::default() };
    let state = frozen::freeze(store, &to.unfinished(), to.database_key(), report.as_of)?;
    // Slots go with packs of the same keys, never elsewhere.
    let is_same = to.config.ring_id().is_some() && to.config.ring_id() == store.config.ring_id();
    // Says of a text with a domain's key: it opens, or was destroyed.
    let domain_state = |text: &str| match domains::of_key(text).map(|domain| store.packs.domain_key(domain)) {
        Some(Err(error)) if error.kind() == ErrorKind::Destroyed => Ok(false),
        Some(key) => key.map(|_| true),
        None => Err(Error::damaged(format!("{text} is no name of a domain's key"))),
    };
    if is_same {
        texts::carry(&*store.backend, &*backend, &domain_state)?;
    }
    let rows: Vec<PackRow> = state.packs()?.into_iter().filter(PackRow::is_committed).collect();
    if !is_same {
        texts::require_no_domains(store, &rows)?;
    }
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
    if let Some((files, snapshots)) = to.before()? {
        let kept: HashSet<String> = state.snapshots()?.into_iter().map(|row| row.name).collect();
        report.snapshots_removed = snapshots.iter().filter(|name| !kept.contains(*name)).count() as u64;
        report.files_fewer = files.saturating_sub(report.files);
    }
    note(Level::Info, "step", || ("taking the rows over".to_owned(), Vec::new()));
    to.take(state)?;
    // Packs that the source has removed since the last copy.
    let known: HashSet<PackId> = rows.iter().map(|row| row.id).collect();
    for id in backend.list()?.into_iter().filter(|id| !known.contains(id)) {
        backend.remove(id)?;
        report.packs_removed += 1;
    }
    journal.retain(&known)?;
    if is_same {
        texts::retire(&*store.backend, &*backend, &domain_state)?;
    }
    let newer = store.meta.packs()?.into_iter().filter(|row| row.is_committed() && !known.contains(&row.id));
    for row in newer {
        report.packs_behind += 1;
        report.bytes_behind += row.bytes;
    }
    report.behind_ms = clock::now_nanos().saturating_sub(report.as_of) / 1_000_000;
    Ok(report)
}

/// Fails when packs may have been reclaimed while they were copied: because this session is no
/// longer the collector, or because the source is read-only, so that there is no session.
fn require_hold(
    store: &Store,
    session: Option<&Session>,
    rows: &[PackRow],
    report: &CopyReport,
) -> Result<()> {
    if let Some(session) = session {
        // Asks the database, so an expired lease is noticed at once.
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
