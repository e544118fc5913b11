//! Moves packs between tiers (`backend/tiered`). Normally the oldest packs of a tier above its
//! bound go one tier down. On request the newest come up into a tier that has room.
//!
//! **The order, for each pack**, and what a crash after each step leaves:
//!
//! | step | after it |
//! | --- | --- |
//! | this run still is the collector (a transaction says so) | nothing |
//! | read from front to back, checked (header, every frame, footer), written to the other tier, sealed: durable there | an unfinished pack there, which nobody reads: below, because the one above is asked first; above, because it has no name yet ([`Backend::create_unseen`]). The next run takes it away and begins again |
//! | this run still is the collector; else what was written is taken away, if nobody needs it | the pack in both tiers; the next run in either direction goes on: down, it compares what is below and removes what is above, and up the other way round |
//! | removed where it was, durably | nothing |
//!
//! **Beside others.** Readers find a pack in its old tier until it is removed there, and in the
//! other tier from before that; packs that they have open stay open. Writers make packs of other
//! ids. A pack's row does not say where it lies, so a move needs no transaction, and neither
//! sessions nor pins are concerned (decision 0003). Only the collector removes packs, and it could
//! remove one while it is copied. So a run *is* the collector (rule 14): only one runs at a time,
//! and no `gc`, `check --repair` or `copy` goes on beside it. It takes packs of `live` rows only.
//! If a run stops for longer than its lease and another collector succeeds it, it notices at its
//! next step. It then removes what it wrote of a pack that was reclaimed meanwhile.
//!
//! **Up** come the packs that the caller names, or else the newest, until the tier's bound. Nothing
//! records which packs are read, and the newest are the last to go down. Only directories take
//! packs from below.
//!
//! A damaged pack is not moved: it stays where it is, and the report names it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::PackId;
use serde::Serialize;

use crate::backend::{Backend, Fill, Location, Place};
use crate::config::StoreConfig;
use crate::copy::{copy_before_readers, copy_one};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, PackRow, PackState};
use crate::read::whereabouts::packs_of;
use crate::sealed::sealed;
use crate::session::Session;
use crate::stale;
use crate::store::Store;
use crate::tree::{StorePath, require};

/// What to move.
#[derive(Clone, Debug, Default)]
pub struct RebalanceOptions {
    /// Move up instead of down: packs come from lower tiers into each directory that has room.
    pub up: bool,
    /// With `up`: only packs with data of this file, or of files below this directory.
    pub path: Option<StorePath>,
    /// Say what would be moved, and move nothing.
    pub dry_run: bool,
    /// Leave at most so many bytes of packs in each tier but the last, whatever their bounds are;
    /// with `up`: fill them so far.
    pub to_fill: Option<u64>,
    /// Bytes a second at most; 0: as fast as it goes.
    pub bytes_per_sec: u64,
}

/// Live counters.
#[derive(Debug, Default)]
pub struct RebalanceProgress {
    /// Bytes to move.
    pub bytes_expected: AtomicU64,
    /// Bytes moved.
    pub bytes_done: AtomicU64,
}

/// The contents of one tier.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TierReport {
    /// Where it is.
    pub tier: String,
    /// Bytes of packs before.
    pub bytes_before: u64,
    /// Bytes of packs after.
    pub bytes_after: u64,
}

/// What was moved.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RebalanceReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Packs that were moved.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The tiers, the first one first.
    pub tiers: Vec<TierReport>,
    /// Packs that could not be moved, and why.
    pub problems: Vec<String>,
}

/// Moves packs down until each tier is within its bound, or up until each is as full as it may be.
/// Others may read and write meanwhile. After an interruption the next run goes on.
///
/// # Errors
/// `Invalid` when there are no tiers, or none that takes packs from below; `NotFound` when nothing
/// is at the path; `Busy` while a collector is at work; `Full` when the tier below is; failures of
/// the engines. Packs that were moved before stay moved.
pub fn rebalance(
    store: &Store,
    options: &RebalanceOptions,
    progress: &RebalanceProgress,
) -> Result<RebalanceReport> {
    let Some(tiered) = store.backend.tiers() else {
        let why = "this store's packs lie in one place; only a store made with several (`init --packs A --packs B`) has something to move";
        return Err(Error::new(ErrorKind::Invalid, why));
    };
    let takes = |place: &Place| matches!(place.tier.location, Location::Directory(_));
    if options.up && !tiered.places().split_last().is_some_and(|(_, above)| above.iter().any(takes)) {
        let why = "none of this store's tiers takes packs from below: only a directory does";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let mut report = RebalanceReport { dry_run: options.dry_run, ..RebalanceReport::default() };
    for (place, bytes) in tiered.places().iter().zip(bytes_of(store, tiered.places())?) {
        let tier = place.tier.to_string();
        report.tiers.push(TierReport { tier, bytes_before: bytes, bytes_after: bytes });
    }
    let moved = if options.dry_run {
        Run { store, options, progress, session: None, began: Instant::now() }
            .all(tiered.places(), &mut report)
    } else {
        let (session, _) = store.collector("rebalance")?;
        let run = Run { store, options, progress, session: Some(&session), began: Instant::now() };
        // If there is a lost history, the packs that it needs stay where they are.
        let moved = stale::refuse(store).and_then(|_| run.all(tiered.places(), &mut report));
        let released = store.meta.release_collector(session.id());
        moved.and(released)
    };
    moved?;
    if !options.dry_run {
        for (bytes, told) in bytes_of(store, tiered.places())?.into_iter().zip(&mut report.tiers) {
            told.bytes_after = bytes;
        }
    }
    Ok(report)
}

/// Sums the bytes of packs in each tier, from their rows.
fn bytes_of(store: &Store, places: &[Place]) -> Result<Vec<u64>> {
    let rows = store.meta.packs()?;
    let bytes: HashMap<PackId, u64> = rows.iter().map(|row| (row.id, row.bytes)).collect();
    let of = |id: &PackId| bytes.get(id).copied().unwrap_or(0);
    places.iter().map(|place| Ok(place.backend.list()?.iter().map(of).sum())).collect()
}

/// Copies a pack into another tier; false when it was there already.
type CopyPack = fn(&dyn Backend, &StoreConfig, &dyn Backend, &PackRow) -> Result<bool>;

struct Run<'a> {
    store: &'a Store,
    options: &'a RebalanceOptions,
    progress: &'a RebalanceProgress,
    /// `None` if nothing is to be changed.
    session: Option<&'a Session>,
    began: Instant,
}

impl Run<'_> {
    fn all(&self, places: &[Place], report: &mut RebalanceReport) -> Result<()> {
        if self.session.is_some() {
            places.iter().try_for_each(|place| place.backend.clear_unseen())?;
        }
        let mut rows = self.store.meta.packs()?;
        rows.retain(|row| row.state == PackState::Live);
        rows.sort_unstable_by_key(|row| row.id);
        if self.options.up {
            self.all_up(places, &rows, report)
        } else {
            self.all_down(places, &rows, report)
        }
    }

    fn all_down(&self, places: &[Place], rows: &[PackRow], report: &mut RebalanceReport) -> Result<()> {
        for (at, pair) in places.windows(2).enumerate() {
            let (above, below) = (&pair[0], &pair[1]);
            let ids = above.backend.list()?;
            let here = |row: &&PackRow| ids.binary_search(&row.id).is_ok();
            let here: Vec<&PackRow> = rows.iter().filter(here).collect();
            let chosen = self.choose(above, &here, below)?;
            let bytes: u64 = chosen.iter().map(|row| row.bytes).sum();
            self.progress.bytes_expected.fetch_add(bytes, Ordering::Relaxed);
            for row in chosen {
                if self.session.is_none() || self.move_one(row, above, below, copy_one, report)? {
                    report.packs += 1;
                    report.bytes += row.bytes;
                    if self.session.is_none() {
                        report.tiers[at].bytes_after -= row.bytes;
                        report.tiers[at + 1].bytes_after += row.bytes;
                    }
                }
            }
        }
        Ok(())
    }

    fn all_up(&self, places: &[Place], rows: &[PackRow], report: &mut RebalanceReport) -> Result<()> {
        let wanted = match &self.options.path {
            Some(path) => {
                let inode = require(&*self.store.meta, At::Now, path)?;
                Some(packs_of(self.store, At::Now, &inode)?)
            }
            None => None,
        };
        let mut held = Vec::new();
        for place in places {
            held.push(place.backend.list()?.into_iter().collect::<HashSet<_>>());
        }
        let takes = |at: &usize| matches!(places[*at].tier.location, Location::Directory(_));
        for at in (0..places.len() - 1).filter(takes) {
            let chosen = self.choose_up(at, places, &held, rows, wanted.as_ref(), report)?;
            let bytes: u64 = chosen.iter().map(|(row, _)| row.bytes).sum();
            self.progress.bytes_expected.fetch_add(bytes, Ordering::Relaxed);
            for (row, from) in chosen {
                if self.session.is_some() {
                    match self.move_one(row, &places[from], &places[at], copy_before_readers, report) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        // The tier is fuller than its bound or the last count said.
                        Err(error) if error.kind() == ErrorKind::Full => break,
                        Err(error) => return Err(error),
                    }
                }
                held[from].remove(&row.id);
                held[at].insert(row.id);
                report.packs += 1;
                report.bytes += row.bytes;
            }
        }
        Ok(())
    }

    /// Chooses packs to bring into tier `at`, and the tier of each: the newest, as many as there is
    /// room for. Packs that are there and below too come first, as an earlier run was interrupted
    /// there.
    fn choose_up<'r>(
        &self,
        at: usize,
        places: &[Place],
        held: &[HashSet<PackId>],
        rows: &'r [PackRow],
        wanted: Option<&HashSet<PackId>>,
        report: &mut RebalanceReport,
    ) -> Result<Vec<(&'r PackRow, usize)>> {
        let below = |row: &&'r PackRow| {
            let from = (at + 1..places.len()).find(|from| held[*from].contains(&row.id))?;
            Some((*row, from))
        };
        let newest = || rows.iter().rev().collect::<Vec<_>>();
        let is_here = |row: &PackRow| held[at].contains(&row.id);
        let mut chosen: Vec<_> = newest().iter().filter(|row| is_here(row)).filter_map(below).collect();
        let tiers = &mut report.tiers;
        chosen.iter().for_each(|(row, from)| tiers[*from].bytes_after -= row.bytes);
        let mut added = 0;
        let candidates = newest().into_iter().filter(|row| !is_here(row));
        for row in candidates.filter(|row| wanted.is_none_or(|wanted| wanted.contains(&row.id))) {
            let Some((row, from)) = below(&row) else { continue };
            if !self.has_room(&places[at], tiers[at].bytes_after + row.bytes, added + row.bytes)? {
                break;
            }
            added += row.bytes;
            tiers[at].bytes_after += row.bytes;
            tiers[from].bytes_after -= row.bytes;
            chosen.push((row, from));
        }
        Ok(chosen)
    }

    /// True if a tier may hold `bytes` of packs after `added` of them were added.
    fn has_room(&self, place: &Place, bytes: u64, added: u64) -> Result<bool> {
        if let Some(most) = self.options.to_fill {
            return Ok(bytes <= most);
        }
        match place.tier.fill {
            None => Ok(true),
            Some(Fill::Bytes(most)) => Ok(bytes <= most),
            Some(Fill::Percent(most)) => Ok(!place.tier.is_above(most, added as i64)?),
        }
    }

    /// Chooses the packs to move: the oldest, until the tier is within its bound. Packs that are
    /// below already, whole or not, come first, as an earlier run was interrupted there.
    fn choose<'r>(&self, above: &Place, here: &[&'r PackRow], below: &Place) -> Result<Vec<&'r PackRow>> {
        let begun = below.backend.list()?;
        let is_begun = |row: &PackRow| begun.binary_search(&row.id).is_ok();
        let mut chosen: Vec<&PackRow> = here.iter().copied().filter(|row| is_begun(row)).collect();
        let mut bytes: u64 = here.iter().filter(|row| !is_begun(row)).map(|row| row.bytes).sum();
        for row in here.iter().filter(|row| !is_begun(row)) {
            if !self.is_too_much(above, bytes, here)? {
                break;
            }
            bytes -= row.bytes;
            chosen.push(row);
        }
        Ok(chosen)
    }

    /// True if a tier that is left with `bytes` of packs has too many.
    fn is_too_much(&self, place: &Place, bytes: u64, here: &[&PackRow]) -> Result<bool> {
        if let Some(most) = self.options.to_fill {
            return Ok(bytes > most);
        }
        match place.tier.fill {
            None => Ok(false),
            Some(Fill::Bytes(most)) => Ok(bytes > most),
            Some(Fill::Percent(most)) => {
                let all: u64 = here.iter().map(|row| row.bytes).sum();
                place.tier.is_above(most, -(all.saturating_sub(bytes) as i64))
            }
        }
    }

    /// Moves one pack, in the order that the module's text gives; false when it stays.
    fn move_one(
        &self,
        row: &PackRow,
        from: &Place,
        to: &Place,
        copy: CopyPack,
        report: &mut RebalanceReport,
    ) -> Result<bool> {
        self.require_collector()?;
        let plain = |place: &Place| sealed(Arc::clone(&place.backend), self.store.keys());
        match copy(&*plain(from), &self.store.config, &*plain(to), row) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Damaged => {
                report.problems.push(format!(
                    "not moved: {error}; run `outrigger check --repair` to find and repair damage"
                ));
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        if let Err(error) = self.require_collector() {
            // The next collector may have reclaimed the pack. Then the copy must not stay, as no
            // row names it.
            if !self.is_live(row.id)? {
                to.backend.remove(row.id)?;
            }
            return Err(error);
        }
        from.backend.remove(row.id)?;
        if let Some(tiered) = self.store.backend.tiers() {
            tiered.look_again(row.id);
        }
        let done = self.progress.bytes_done.fetch_add(row.bytes, Ordering::Relaxed) + row.bytes;
        self.keep_pace(done);
        Ok(true)
    }

    /// Rule 14: called before every step.
    fn require_collector(&self) -> Result<()> {
        let Some(session) = self.session else { return Ok(()) };
        self.store.meta.unmark(session.id(), &[])
    }

    fn is_live(&self, id: PackId) -> Result<bool> {
        Ok(self.store.committed_packs()?.binary_search(&id).is_ok())
    }

    /// Sleeps if the run is ahead of its rate.
    fn keep_pace(&self, bytes: u64) {
        if self.options.bytes_per_sec > 0 {
            let due = Duration::from_secs_f64(bytes as f64 / self.options.bytes_per_sec as f64);
            outrigger_clock::sleep(due.saturating_sub(self.began.elapsed()));
        }
    }
}
