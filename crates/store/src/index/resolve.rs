//! Lookups: from fingerprints to candidates, and to places confirmed by a footer.
//!
//! [`Index::resolve_batch`] works in passes over the batch: locality cache, recent table, filters.
//! The keys that are left are probably present, and are taken in windows. Each window first asks
//! the locality cache again, as the footer that confirmed the last key usually knows this one, too.
//! As long as it does, windows are of one key, so that no page is read in vain. When it does not,
//! they double up to 64, so that disk reads overlap.

use std::sync::Arc;

use outrigger_format::{Fingerprint, PackId, Place};

use super::locality::PackSet;
use super::lookup::{Passed, Prober, filter};
use super::run::Run;
use super::{Index, alive};
use crate::error::Result;

const WINDOW_MAX: usize = 64;

/// Places where a chunk may lie, by 8 bytes of its fingerprint; the lowest pack first.
/// Usually none or one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Candidates {
    first: Option<Place>,
    more: Vec<Place>,
}

impl Candidates {
    /// True when there are none: the chunk is in no pack that the index covers.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The places.
    pub fn iter(&self) -> impl Iterator<Item = Place> + '_ {
        self.first.iter().chain(&self.more).copied()
    }

    /// Adds a place where it belongs in the order; once.
    fn add(&mut self, place: Place) {
        match self.first {
            None => self.first = Some(place),
            Some(first) if first == place => {}
            Some(first) => {
                let other = first.max(place);
                self.first = Some(first.min(place));
                if let Err(at) = self.more.binary_search(&other) {
                    self.more.insert(at, other);
                }
            }
        }
    }
}

/// The index as one lookup sees it from beginning to end.
struct View {
    runs: Arc<Vec<Arc<Run>>>,
    dead: Arc<PackSet>,
    /// Places in the recent table, by key, rising by key.
    recent: Vec<(u32, Place)>,
}

impl Index {
    /// Candidates for one fingerprint; see [`Index::lookup_batch`].
    pub fn lookup(&self, fingerprint: &Fingerprint) -> Candidates {
        let mut out = Vec::with_capacity(1);
        self.lookup_batch(std::slice::from_ref(fingerprint), &mut out);
        out.pop().unwrap_or_default()
    }

    /// Replaces `out` by the candidates of each fingerprint, from the recent table and the runs,
    /// not confirmed by any footer. Reads one page of a run for each key that its filter lets
    /// through; may block on that.
    pub fn lookup_batch(&self, fingerprints: &[Fingerprint], out: &mut Vec<Candidates>) {
        out.clear();
        out.resize(fingerprints.len(), Candidates::default());
        let prefixes: Vec<u64> =
            fingerprints.iter().map(|fingerprint| self.shared.prefixes.of(fingerprint)).collect();
        let view = self.view(&prefixes);
        view.recent.iter().for_each(|&(key, place)| out[key as usize].add(place));
        let mut passed = Vec::new();
        filter(&view.runs, &prefixes, &mut passed);
        let mut prober = Prober::new(&view.runs, &self.shared.counts.probe);
        for window in passed.chunks(WINDOW_MAX) {
            prober.probe(window, &prefixes, |key, place| {
                if let Some(place) = alive(place, &view.dead) {
                    out[key as usize].add(place);
                }
            });
        }
        self.shared.drop_failed(&view.runs);
    }

    /// Where a chunk lies, confirmed by its pack's footer; see [`Index::resolve_batch`].
    ///
    /// # Errors
    /// As [`Index::resolve_batch`].
    pub fn resolve(
        &self,
        fingerprint: &Fingerprint,
        usable: impl Fn(PackId) -> bool,
    ) -> Result<Option<Place>> {
        let mut found = Vec::with_capacity(1);
        self.resolve_batch(std::slice::from_ref(fingerprint), usable, &mut found)?;
        Ok(found.pop().flatten())
    }

    /// Replaces `found` by the place of each chunk. The full fingerprint in its pack's footer
    /// confirms it, and the pack is not dead and allowed by `usable`. If there are several copies,
    /// it is the one in the lowest pack, unless a cached footer answered first: then the lowest of
    /// the cached packs. Packs without a readable footer are ignored. May block on index pages and
    /// footers.
    ///
    /// # Errors
    /// When a footer cannot be read for now.
    pub fn resolve_batch(
        &self,
        fingerprints: &[Fingerprint],
        usable: impl Fn(PackId) -> bool,
        found: &mut Vec<Option<Place>>,
    ) -> Result<()> {
        found.clear();
        found.resize(fingerprints.len(), None);
        let dead = self.shared.read().dead.clone();
        self.footers().find_batch(fingerprints, |pack| !dead.contains(&pack) && usable(pack), found);
        let open: Vec<u32> =
            (0..).zip(&*found).filter(|(_, found)| found.is_none()).map(|(key, _)| key).collect();
        if open.is_empty() {
            return Ok(());
        }
        self.resolve_open(fingerprints, &open, &usable, true, found)
    }

    /// As [`Index::resolve`], but always the copy in the lowest pack: asks the runs even when a
    /// cached footer knows one.
    ///
    /// # Errors
    /// As [`Index::resolve_batch`].
    pub fn resolve_lowest(
        &self,
        fingerprint: &Fingerprint,
        usable: impl Fn(PackId) -> bool,
    ) -> Result<Option<Place>> {
        let mut found = [None];
        self.resolve_open(std::slice::from_ref(fingerprint), &[0], &usable, false, &mut found)?;
        Ok(found[0])
    }

    /// [`Index::resolve_lowest`] for a batch: replaces `found`.
    ///
    /// # Errors
    /// As [`Index::resolve_batch`].
    pub fn resolve_lowest_batch(
        &self,
        fingerprints: &[Fingerprint],
        usable: impl Fn(PackId) -> bool,
        found: &mut Vec<Option<Place>>,
    ) -> Result<()> {
        found.clear();
        found.resize(fingerprints.len(), None);
        let open: Vec<u32> = (0..fingerprints.len() as u32).collect();
        self.resolve_open(fingerprints, &open, &usable, false, found)
    }

    /// Resolves the fingerprints numbered `open` by the recent table and the runs. With `cached`,
    /// the locality cache is asked between probes.
    fn resolve_open(
        &self,
        fingerprints: &[Fingerprint],
        open: &[u32],
        usable: &impl Fn(PackId) -> bool,
        cached: bool,
        found: &mut [Option<Place>],
    ) -> Result<()> {
        let prefix = |at: &u32| self.shared.prefixes.of(&fingerprints[*at as usize]);
        let prefixes: Vec<u64> = open.iter().map(prefix).collect();
        let view = self.view(&prefixes);
        let mut passed = Vec::new();
        filter(&view.runs, &prefixes, &mut passed);
        let mut keys: Vec<u32> =
            view.recent.iter().map(|(key, _)| *key).chain(passed.iter().map(|passed| passed.key)).collect();
        keys.sort_unstable();
        keys.dedup();

        let mut prober = Prober::new(&view.runs, &self.shared.counts.probe);
        let mut candidates: Vec<(u32, Place)> = Vec::new();
        let (mut rest, mut window, mut loads) = (&keys[..], 1, None);
        let usable = |pack| !view.dead.contains(&pack) && usable(pack);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(window.min(rest.len()));
            rest = later;
            let mut asked = now.to_vec();
            if cached && loads.is_some_and(|loads| loads != self.footers().loads()) {
                asked.retain(|&key| {
                    let at = open[key as usize] as usize;
                    found[at] = self.footers().find(&fingerprints[at], usable);
                    found[at].is_none()
                });
            }
            window = if asked.len() < now.len() { 1 } else { (window * 2).min(WINDOW_MAX) };
            loads.get_or_insert(self.footers().loads());

            candidates.clear();
            let probes: Vec<Passed> = of_keys(&passed, &asked, |passed| passed.key).collect();
            prober.probe(&probes, &prefixes, |key, place| {
                candidates.extend(alive(place, &view.dead).map(|place| (key, place)));
            });
            candidates.extend(of_keys(&view.recent, &asked, |(key, _)| *key));
            candidates.sort_unstable();
            candidates.dedup();
            for &(key, place) in &candidates {
                let at = open[key as usize] as usize;
                if found[at].is_none() && usable(place.pack) && self.confirms(&fingerprints[at], place)? {
                    found[at] = Some(place);
                }
            }
        }
        self.shared.drop_failed(&view.runs);
        Ok(())
    }

    /// True when the footer has `fingerprint` at `place`.
    fn confirms(&self, fingerprint: &Fingerprint, place: Place) -> Result<bool> {
        match self.footers().get_if_worth(place.pack)? {
            Some(footer) => Ok(footer
                .is_some_and(|footer| footer.fingerprints().get(place.slot as usize) == Some(fingerprint))),
            None => Ok(self.footers().fingerprint_at(place)? == Some(*fingerprint)),
        }
    }

    fn view(&self, prefixes: &[u64]) -> View {
        const AHEAD: usize = 16;
        let state = self.shared.read();
        let mut recent = Vec::new();
        for (key, &prefix) in (0..).zip(prefixes) {
            if let Some(&later) = prefixes.get(key as usize + AHEAD) {
                state.recent.places.prefetch(later);
            }
            state.recent.places.get(prefix, |place| {
                recent.extend(alive(place, &state.dead).map(|place| (key, place)));
            });
        }
        View { runs: state.runs.clone(), dead: state.dead.clone(), recent }
    }
}

/// Those of `all` whose key is among `keys`; both rise by key.
fn of_keys<'a, T: Copy>(
    all: &'a [T],
    keys: &'a [u32],
    key_of: impl Fn(&T) -> u32 + 'a,
) -> impl Iterator<Item = T> + 'a {
    let (first, last) = (keys.first().copied().unwrap_or(u32::MAX), keys.last().copied().unwrap_or(0));
    let start = all.partition_point(|item| key_of(item) < first);
    let end = all.partition_point(|item| key_of(item) <= last);
    let some = if start < end { &all[start..end] } else { &[] };
    some.iter().filter(move |item| keys.binary_search(&key_of(item)).is_ok()).copied()
}
