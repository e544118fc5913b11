//! The recent table: entries of packs that no run covers yet.
//!
//! A removed pack's entries stay in the table until the next flush rebuilds it; lookups leave them
//! out as dead.

use std::collections::BTreeSet;

use outrigger_format::{Footer, PackId, Place};

use super::locality;
use super::prefix::Prefixes;
use super::table::PlaceTable;

#[derive(Default)]
pub(super) struct Recent {
    pub places: PlaceTable,
    pub packs: BTreeSet<PackId>,
}

impl Recent {
    /// Adds a pack's entries, once.
    pub fn add(&mut self, pack: PackId, footer: &Footer, prefixes: &Prefixes) {
        if self.packs.insert(pack) {
            self.places.reserve(footer.fingerprints().len());
            locality::entries(pack, footer, |fingerprint| prefixes.of(fingerprint))
                .for_each(|(prefix, place)| self.places.insert(prefix, place));
        }
    }

    /// Forgets that a pack is here.
    pub fn remove(&mut self, pack: PackId) {
        self.packs.remove(&pack);
    }

    /// The entries of the packs here, sorted.
    pub fn sorted(&self) -> Vec<(u64, u64)> {
        let here = |place: u64| self.packs.contains(&Place::from_u64(place).pack);
        let mut entries: Vec<_> = self.places.iter().filter(|&(_, place)| here(place)).collect();
        entries.sort_unstable();
        entries
    }

    /// Lets go of packs that runs cover now.
    pub fn retire(&mut self, covered: impl Fn(PackId) -> bool) {
        let before = self.packs.len();
        self.packs.retain(|&pack| !covered(pack));
        if self.packs.len() < before {
            let packs = &self.packs;
            self.places.retain(|place| packs.contains(&Place::from_u64(place).pack));
        }
    }

    /// Bytes of memory, roughly.
    pub fn memory(&self) -> usize {
        self.places.memory() + self.packs.len() * 16
    }
}
