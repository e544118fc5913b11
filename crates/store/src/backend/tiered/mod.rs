//! Packs in an ordered list of places: new ones go to the first that has room, and `rebalance`
//! moves old ones on.
//!
//! ```text
//!   create ─▶ first tier below its bound ──full (no space, quota)──▶ the next, with what was appended so far
//!   read   ─▶ where it was found last ──not there──▶ all tiers, in order, several times
//!   move   ─▶ copied and durable in the one, then removed from the other          (crate::rebalance)
//! ```
//!
//! **No record says which tier has a pack.** Ids are used once and packs never change, so a pack is
//! where a read finds it, and a record could only be wrong. This host remembers places as hints.
//! Reads ask the first tier first: a pack that is being moved down is found above until the copy
//! below is durable. A pack that is being moved up is not visible above before the copy there is
//! whole ([`Backend::create_unseen`]). One pass over the tiers could miss a pack that is moved
//! meanwhile. So a pack is called missing only after several passes, and lists are made down and up
//! again.
//!
//! **A pack is in two tiers** between copy and removal, or when that was interrupted. Either both
//! copies are the same, or the lower one is unfinished, and is not read while the upper one is
//! there. `remove` takes the pack from all tiers, the lowest first: after a crash in between
//! readers find the upper one.
//!
//! **Spilling.** If a tier becomes full in the middle of a pack, it takes no more of that pack. The
//! writer keeps the appended bytes in memory until the pack is sealed (in all tiers but the last),
//! and writes them again to the next tier. Before that it removes the unfinished pack above, as
//! readers would find it there.

#[cfg(test)]
mod tests;
mod texts;
mod tier;
mod writer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::PackId;

use super::{Backend, CacheCounts, PackWriter};
use crate::error::{Error, ErrorKind, Result};

pub use tier::{Fill, Tier};

/// How long a count of a tier's bytes is believed, at least. Counting takes at most a twentieth of
/// the time.
const COUNTED: Duration = Duration::from_secs(5);
/// Passes over all tiers before a pack is called missing, and the pause before the third pass.
const PASSES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// Packs whose tier is remembered, at most.
const KNOWN_MAX: usize = 1 << 20;

/// An open tier.
pub struct Place {
    /// Its configuration.
    pub tier: Tier,
    /// Its engine.
    pub backend: Arc<dyn Backend>,
    counted: Mutex<Option<Counted>>,
}

#[derive(Clone, Copy)]
struct Counted {
    bytes: u64,
    at: Instant,
    took: Duration,
}

/// See the module.
pub struct TieredBackend {
    places: Arc<[Place]>,
    known: Mutex<HashMap<PackId, usize>>,
}

impl Place {
    /// A tier with its engine.
    pub fn new(tier: Tier, backend: Arc<dyn Backend>) -> Self {
        Self { tier, backend, counted: Mutex::new(None) }
    }

    /// Counts the bytes of all packs in it.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let began = Instant::now();
        let mut bytes = 0;
        for id in self.backend.list()? {
            bytes += self.backend.len(id)?.unwrap_or(0);
        }
        let counted = Counted { bytes, at: Instant::now(), took: began.elapsed() };
        *self.lock() = Some(counted);
        Ok(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Counted>> {
        self.counted.lock().expect("no panic while it is held")
    }

    /// True if a new pack may go there. A pack that is begun below the bound may go beyond it.
    fn has_room(&self) -> Result<bool> {
        match self.tier.fill {
            None => Ok(true),
            Some(fill) => {
                let counted = *self.lock();
                let fresh = counted.filter(|counted| counted.at.elapsed() < COUNTED.max(counted.took * 20));
                let used = match (fill, fresh) {
                    (Fill::Percent(_), _) => 0,
                    (Fill::Bytes(_), Some(counted)) => counted.bytes,
                    (Fill::Bytes(_), None) => self.bytes()?,
                };
                self.tier.is_below(fill, used)
            }
        }
    }

    /// Counts a pack that was sealed in it.
    fn add(&self, bytes: u64) {
        if let Some(counted) = &mut *self.lock() {
            counted.bytes += bytes;
        }
    }
}

impl TieredBackend {
    /// `places` are the tiers, the first one first. There are two at least.
    pub fn new(places: Vec<Place>) -> Self {
        assert!(places.len() > 1, "one tier is none");
        Self { places: places.into(), known: Mutex::default() }
    }

    /// The tiers.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    fn known(&self) -> MutexGuard<'_, HashMap<PackId, usize>> {
        self.known.lock().expect("no panic while it is held")
    }

    /// Forgets where a pack was found.
    pub(crate) fn look_again(&self, id: PackId) {
        self.known().remove(&id);
    }

    /// Asks the tier that has the pack; `None` when none has.
    fn ask<T>(
        &self,
        id: PackId,
        mut ask: impl FnMut(&dyn Backend) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let known = self.known().get(&id).copied();
        if let Some(at) = known {
            if let Some(said) = ask(&*self.places[at].backend)? {
                return Ok(Some(said));
            }
            self.look_again(id);
        }
        for pass in 0..PASSES {
            // The first two passes follow at once: one pass misses a pack that is moved down
            // meanwhile. Later ones find a pack that was moved down and up again, or the other way
            // round.
            outrigger_clock::sleep(PAUSE * pass.saturating_sub(1));
            for (at, place) in self.places.iter().enumerate() {
                if let Some(said) = ask(&*place.backend)? {
                    let mut known = self.known();
                    if known.len() >= KNOWN_MAX {
                        known.clear();
                    }
                    known.insert(id, at);
                    return Ok(Some(said));
                }
            }
        }
        Ok(None)
    }
}

impl Backend for TieredBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        let last = self.places.len() - 1;
        let mut first = last;
        // Parity is read only after a loss.
        let may_be_above = id.parity().is_none();
        for (at, place) in self.places.iter().enumerate() {
            if place.backend.len(id)?.is_some() {
                return Err(Error::new(ErrorKind::Exists, format!("cannot create pack {id}: it exists")));
            }
            if may_be_above && at < first && place.has_room()? {
                first = at;
            }
        }
        writer::Spilling::create(id, &self.places, first)
            .map(|writer| Box::new(writer) as Box<dyn PackWriter>)
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.ask(id, |backend| match backend.read_at(id, offset, buf) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        })?;
        read.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("pack {id} is in none of the tiers")))
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        self.ask(id, |backend| backend.len(id))
    }

    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        self.ask(id, |backend| backend.read_end(id, max))
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.look_again(id);
        // The lowest first: see the module.
        self.places.iter().rev().try_for_each(|place| place.backend.remove(id))
    }

    fn list(&self) -> Result<Vec<PackId>> {
        // Down for packs that are moved down meanwhile, and up again for those that are moved up: a
        // pack may be seen twice, but is not missed.
        let mut ids = Vec::new();
        for place in self.places.iter().chain(self.places.iter().rev().skip(1)) {
            ids.extend(place.backend.list()?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        let mut ids = Vec::new();
        for place in &*self.places {
            ids.extend(place.backend.list_parity()?);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.look_again(id);
        self.places.iter().rev().try_for_each(|place| place.backend.set_aside(id))
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.put_text_everywhere(name, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.text_anywhere(name)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        self.texts_of_all(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.places.iter().rev().try_for_each(|place| place.backend.remove_text(name))
    }

    /// Tier by tier: the error names the one that is another store's.
    fn claim(&self, config: &str) -> Result<()> {
        self.places.iter().try_for_each(|place| place.backend.claim(config))
    }

    fn uploads_max(&self) -> usize {
        self.places.iter().map(|place| place.backend.uploads_max()).max().unwrap_or(1)
    }

    fn lock_days(&self) -> Option<u32> {
        self.places.iter().filter_map(|place| place.backend.lock_days()).min()
    }

    fn lock(&self, ids: &[PackId]) -> Result<u64> {
        self.places.iter().map(|place| place.backend.lock(ids)).sum()
    }

    fn tend(&self) {
        self.places.iter().for_each(|place| place.backend.tend());
    }

    fn lists_cheaply(&self) -> bool {
        self.places.iter().all(|place| place.backend.lists_cheaply())
    }

    fn forget(&self, id: PackId) -> bool {
        self.look_again(id);
        // Every tier forgets, whatever the first one answers.
        let mut any = false;
        for place in &*self.places {
            any |= place.backend.forget(id);
        }
        any
    }

    fn use_cache(&self, on: bool) {
        self.places.iter().for_each(|place| place.backend.use_cache(on));
    }

    fn cache_counts(&self) -> Option<CacheCounts> {
        self.places.iter().filter_map(|place| place.backend.cache_counts()).reduce(std::ops::Add::add)
    }

    fn trouble(&self) -> Option<String> {
        let of = |place: &Place| Some(format!("{}: {}", place.tier.location, place.backend.trouble()?));
        self.places.iter().find_map(of)
    }

    /// The hosts of the first tier whose packs lie where their ids say.
    fn hosts(&self) -> Result<Vec<String>> {
        for place in &*self.places {
            let hosts = place.backend.hosts()?;
            if !hosts.is_empty() {
                return Ok(hosts);
            }
        }
        Ok(Vec::new())
    }

    /// Asks the pack's tier. If the pack is not there yet, answers for the tier that
    /// [`Backend::hosts`] speaks of: the pack may have to come down to that first.
    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        let located = self.ask(id, |backend| match backend.len(id)? {
            Some(_) => backend.locate(id).map(Some),
            None => Ok(None),
        })?;
        if let Some(hosts) = located {
            return Ok(hosts);
        }
        for place in &*self.places {
            if !place.backend.hosts()?.is_empty() {
                return place.backend.locate(id);
            }
        }
        Ok(Vec::new())
    }

    fn tiers(&self) -> Option<&TieredBackend> {
        Some(self)
    }
}
