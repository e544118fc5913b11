//! Mending what a check found, so that nothing becomes worse.
//!
//! A damaged pack is never changed. Its good chunks go into new packs, which become live in the
//! transaction that deletes the old one (rules 17 to 21 of
//! `docs/decisions/0003-reclaim-protocol.md`, under the collector's lease). Only then its object is
//! moved to `packs-damaged/`, where it stays. A pack with a missing object is left alone while
//! anything needs it: the object may come back, and a deleted pack cannot. When nothing needs it
//! (its data was stored again, or removed), it is given up, or every check would name it for ever.
//! An unreadable chunk leaves the index with its pack, so readers find another copy, if there is
//! one.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Fingerprint, PackId};

use super::manifests::{self, Followed};
use super::packs::PackFinding;
use super::report::{CheckProgress, Finding, FindingKind};
use super::salvage::{Salvage, rewrite};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::gc::{Otherwise, write_catalogue_anew};
use crate::meta::{PackRow, PackState, lives};
use crate::session::Session;
use crate::stale;
use crate::store::Store;

/// How long sessions are given to release a damaged pack; they answer once a second.
const PATIENCE: Duration = Duration::from_secs(75);

/// Rewrites every pack that a finding asks for; returns how far each could be read.
pub(super) fn rewrite_packs(
    store: &Store,
    session: &Session,
    findings: &[PackFinding],
) -> Result<BTreeMap<PackId, Salvage>> {
    let damaged: BTreeMap<PackId, &PackRow> =
        findings.iter().filter_map(|finding| finding.rewrite.as_ref()).map(|row| (row.id, row)).collect();
    if damaged.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (mut copies, mut salvaged) = (Vec::new(), BTreeMap::new());
    for (&id, row) in &damaged {
        let (sealed, salvage) = rewrite(store, &store.meta, session, id, row.kind, &mut |_| true)?;
        for pack in sealed {
            store.index.add_pack(pack.row.id, &pack.footer);
            copies.push(pack.row.id);
        }
        salvaged.insert(id, salvage);
    }
    let victims: Vec<PackId> = damaged.keys().copied().collect();
    let generation = store.meta.mark_candidates(session.id(), &victims)?;
    wait_for_sessions(store, generation)?;
    store.meta.delete_packs(session.id(), &copies, &victims, store.meta.now()?)?;
    let rows = store.meta.packs()?;
    let is_dead = |id: PackId| rows.iter().any(|row| row.id == id && row.state == PackState::Dead);
    for &id in &victims {
        // A writer that relies on it has unmarked it: its chunks are in the copies too, and the
        // next repair deletes it.
        if !is_dead(id) {
            salvaged.remove(&id);
            continue;
        }
        store.index.remove_packs(&[id]);
        store.backend.set_aside(id)?;
    }
    Ok(salvaged)
}

/// True when all that is retained is found without the packs `gone`.
pub(super) fn needs_none(store: &Store, followed: &Followed, gone: &[PackId]) -> Result<bool> {
    if !followed.bad_nodes.is_empty() {
        return Ok(false);
    }
    let missing: Vec<Fingerprint> = followed.missing.iter().copied().collect();
    let mut found = Vec::new();
    store.index.resolve_batch(&missing, |pack| !gone.contains(&pack), &mut found)?;
    for place in found {
        let Some(place) = place else { return Ok(false) };
        if store.index.footers().get(place.pack)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the rows of packs with missing objects that nothing needed at the last look; returns
/// them. It follows the collector's rules: the packs are marked as candidates, so that no writer
/// relies on them any more; then checked again, since a writer may have until then; then deleted.
pub(super) fn give_up_missing(
    store: &Store,
    session: &Session,
    gone: &[PackId],
    threads: usize,
) -> Result<Vec<PackId>> {
    let generation = store.meta.mark_candidates(session.id(), gone)?;
    wait_for_sessions(store, generation)?;
    store.index.remove_packs(gone);
    let followed = manifests::follow(store, threads, &CheckProgress::default())?;
    let mut back = Vec::new();
    for &id in gone {
        // One that has come back meanwhile stays.
        if store.backend.len(id)?.is_some() {
            back.push(id);
        }
    }
    if !back.is_empty() || !needs_none(store, &followed, gone)? {
        store.meta.unmark(session.id(), gone)?;
        drop_index(store)?;
        return Ok(Vec::new());
    }
    store.meta.delete_packs(session.id(), &[], gone, store.meta.now()?)?;
    let rows = store.meta.packs()?;
    let dead = rows.iter().filter(|row| gone.contains(&row.id) && row.state == PackState::Dead);
    let given_up: Vec<PackId> = dead.map(|row| row.id).collect();
    store.meta.forget_packs(&given_up)?;
    Ok(given_up)
}

fn wait_for_sessions(store: &Store, generation: u64) -> Result<()> {
    let began = Instant::now();
    while !store.meta.all_acknowledged(generation)? {
        store.fence_gone()?;
        if began.elapsed() > PATIENCE {
            let why = "a session does not answer; end it, or wait until its lease is over, and repair again";
            return Err(Error::new(ErrorKind::Busy, why));
        }
        outrigger_clock::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Rewrites the catalogue when blocks of it are lost: the database still has their contents, and a
/// `recover` would miss them. `findings` begin with those of `found`.
pub(super) fn replace_lost_catalogue(
    store: &Store,
    session: &Arc<Session>,
    found: &[PackFinding],
    findings: &mut [Finding],
) -> Result<()> {
    // A meta pack that could not be read in full may have held unknown blocks.
    let lost = findings.iter().zip(found).any(|(finding, found)| found.is_meta && !finding.mended);
    if !lost {
        return Ok(());
    }
    match write_catalogue_anew(store, session, Otherwise::Accept) {
        Ok(()) => {
            let about = findings.iter_mut().filter(|finding| finding.kind == FindingKind::Catalogue);
            about.for_each(|finding| finding.mended = true);
            Ok(())
        }
        // A session is writing: the findings stay, and the next repair tries again.
        Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
        Err(error) => Err(error),
    }
}

/// Packs that were never committed, of sessions that are over.
pub(super) fn leftovers(store: &Store, rows: &[PackRow]) -> Result<Vec<PackRow>> {
    let sessions = store.meta.sessions()?;
    let locks = store.locks_dir();
    let uncommitted = |row: &&PackRow| matches!(row.state, PackState::Writing | PackState::Sealed);
    Ok(rows
        .iter()
        .filter(uncommitted)
        .filter(|row| !lives(&sessions, row.session, Some(&locks)))
        .cloned()
        .collect())
}

/// Sweeps leftovers and removes their objects: nothing has ever referred to them.
pub(super) fn remove_leftovers(store: &Store, leftovers: &[PackRow], findings: &mut [Finding]) -> Result<()> {
    if leftovers.is_empty() {
        return Ok(());
    }
    store.fence_gone()?;
    store.meta.sweep_packs(store.meta.now()?)?;
    let rows = store.meta.packs()?;
    let dead: HashSet<PackId> =
        rows.iter().filter(|row| row.state == PackState::Dead).map(|row| row.id).collect();
    for row in leftovers.iter().filter(|row| dead.contains(&row.id)) {
        if stale::is_anothers(store, row)? {
            continue;
        }
        store.backend.remove(row.id)?;
        store.meta.forget_packs(&[row.id])?;
        let name = row.id.to_string();
        let about = findings.iter_mut().filter(|finding| finding.kind == FindingKind::Leftover);
        about
            .filter(|finding| finding.pack.as_ref() == Some(&name))
            .for_each(|finding| finding.mended = true);
    }
    Ok(())
}

/// Makes the next open build the index from the footers.
pub(super) fn drop_index(store: &Store) -> Result<()> {
    let path = store.home().path().join("index").join("CURRENT");
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(|| "cannot remove index/CURRENT".to_owned())
        }
        _ => Ok(()),
    }
}
