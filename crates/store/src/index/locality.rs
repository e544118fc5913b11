//! The locality cache: footers of recently hit packs, and a table of all fingerprints in them.
//!
//! Chunks that were written together are looked up together again. The first chunk of a duplicate
//! stream costs an index probe and the reading of one footer; the chunks after it are found here,
//! without index or disk. As this is in memory only, prefixes are plain here. The table maps prefixes to places in the cached packs only, so a search
//! takes the same time however many packs there are. The footer confirms the other 24 bytes.
//!
//! Lookups share a read lock; a batch takes it once. Loading a footer holds no lock: two threads
//! that miss the same pack at the same moment both load it, and the first one's footer is kept. The
//! least recently used footer leaves first, by a clock that counts batches, not time. A missing or
//! damaged footer is remembered for a while, so that each pack costs one attempt. It is not
//! remembered for ever, as it may have been damaged on its way here.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Fingerprint, Footer, PackId, Place};

use super::table::PlaceTable;
use crate::error::{ErrorKind, Result};

/// Reads the footer of a pack from where it lies; the store implements it over its backend.
pub trait LoadFooter: Send + Sync {
    /// Reads, checks and decodes the footer of `pack`; may block.
    ///
    /// # Errors
    /// `NotFound` when there is no such pack, `Damaged` when it has no valid footer: both are
    /// remembered. Any other kind fails the lookup that asked, and is tried again by the next.
    fn load(&self, pack: PackId) -> Result<Footer>;

    /// Announces that these packs, with so many chunks each, are about to be asked for.
    fn expect(&self, _packs: &[(PackId, u32)]) {}

    /// How many footers to ask for at once.
    fn at_once(&self) -> usize {
        1
    }

    /// Reads the one fingerprint at `place`; `None` when the pack or the slot does not exist, or
    /// its trailer is damaged. The caller compares all of it, so it needs no other check.
    ///
    /// # Errors
    /// As [`LoadFooter::load`], but for `NotFound` and `Damaged`.
    fn fingerprint_at(&self, place: Place) -> Result<Option<Fingerprint>> {
        match self.load(place.pack) {
            Ok(footer) => Ok(footer.fingerprints().get(place.slot as usize).copied()),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<F: Fn(PackId) -> Result<Footer> + Send + Sync> LoadFooter for F {
    fn load(&self, pack: PackId) -> Result<Footer> {
        self(pack)
    }
}

/// Pack ids come from a counter: one multiplication spreads them.
#[derive(Default)]
pub(super) struct PackHasher(u64);

impl Hasher for PackHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

pub(super) type PackMap<V> = HashMap<PackId, V, BuildHasherDefault<PackHasher>>;
pub(super) type PackSet = std::collections::HashSet<PackId, BuildHasherDefault<PackHasher>>;

struct Cached {
    /// `None`: at this time an attempt found the footer missing or damaged.
    footer: Option<Arc<Footer>>,
    tried: Instant,
    used: AtomicU64,
}

#[derive(Default)]
struct Cache {
    packs: PackMap<Cached>,
    places: PlaceTable,
    bytes: usize,
}

impl Cached {
    fn counts(&self) -> bool {
        self.footer.is_some() || self.tried.elapsed() < TRY_AGAIN
    }
}

/// Decoded footers by pack id; see the module's header.
pub struct Footers {
    cache: RwLock<Cache>,
    loader: Box<dyn LoadFooter>,
    bytes_max: usize,
    clock: AtomicU64,
    loads: AtomicU64,
    unreadable: AtomicU64,
    /// Hits in packs that are not cached, by pack.
    misses: Mutex<PackMap<u32>>,
}

/// A footer that was missing or damaged is read again after this.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Hits in a pack after which its whole footer is worth loading. Otherwise single chunks, scattered
/// over all packs, would evict the footers whose neighbours come together.
const MISSES_WORTH: u32 = 4;
/// Packs whose hits are counted at most; then counting begins anew.
const MISSES_MAX: usize = 4096;

impl Footers {
    /// An empty cache of at most about `bytes_max` bytes (the footer used last is kept whatever its
    /// size).
    pub fn new(loader: impl LoadFooter + 'static, bytes_max: usize) -> Self {
        Self {
            cache: RwLock::default(),
            loader: Box::new(loader),
            bytes_max,
            clock: AtomicU64::new(1),
            loads: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            misses: Mutex::default(),
        }
    }

    /// [`Footers::get`] if the footer is cached, or if hits in it have come often enough to load
    /// it; else `None`.
    ///
    /// # Errors
    /// As [`Footers::get`].
    pub fn get_if_worth(&self, pack: PackId) -> Result<Option<Option<Arc<Footer>>>> {
        if !self.read().packs.contains_key(&pack) {
            let mut misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
            if misses.len() >= MISSES_MAX {
                misses.clear();
            }
            let count = misses.entry(pack).or_default();
            *count += 1;
            if *count < MISSES_WORTH {
                return Ok(None);
            }
            *count = 0;
        }
        self.get(pack).map(Some)
    }

    /// The fingerprint at `place`, read alone.
    ///
    /// # Errors
    /// As [`LoadFooter::fingerprint_at`].
    pub fn fingerprint_at(&self, place: Place) -> Result<Option<Fingerprint>> {
        self.loader.fingerprint_at(place)
    }

    /// See [`LoadFooter::expect`].
    pub(super) fn expect(&self, packs: &[(PackId, u32)]) {
        self.loader.expect(packs);
    }

    /// See [`LoadFooter::at_once`].
    pub(super) fn at_once(&self) -> usize {
        self.loader.at_once()
    }

    /// The footer of `pack`, read if it is not cached; `None` when it is missing or damaged.
    ///
    /// # Errors
    /// What the loader returned, when that may be different next time.
    pub fn get(&self, pack: PackId) -> Result<Option<Arc<Footer>>> {
        if let Some(cached) = self.read().packs.get(&pack).filter(|cached| cached.counts()) {
            cached.used.store(self.tick(), Ordering::Relaxed);
            return Ok(cached.footer.clone());
        }
        match self.loader.load(pack) {
            Ok(footer) => Ok(Some(self.insert(pack, Arc::new(footer)))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) => {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                let cached =
                    Cached { footer: None, tried: Instant::now(), used: AtomicU64::new(self.tick()) };
                let mut cache = self.write();
                if cache.packs.get(&pack).is_none_or(|known| known.footer.is_none()) {
                    cache.packs.insert(pack, cached);
                }
                Ok(None)
            }
            Err(error) => Err(error.context(format!("footer of {pack:?}"))),
        }
    }

    /// Caches the footer of `pack`, and returns the one that is cached now.
    pub fn insert(&self, pack: PackId, footer: Arc<Footer>) -> Arc<Footer> {
        let mut cache = self.write();
        if let Some(known) = cache.packs.get(&pack).and_then(|cached| cached.footer.clone()) {
            return known;
        }
        self.loads.fetch_add(1, Ordering::Release);
        let used = AtomicU64::new(self.tick());
        cache.bytes += cost(&footer);
        cache.evict(self.bytes_max, pack);
        cache.places.reserve(footer.fingerprints().len());
        for (prefix, place) in entries(pack, &footer, Fingerprint::prefix) {
            cache.places.insert(prefix, place);
        }
        cache.packs.insert(pack, Cached { footer: Some(footer.clone()), tried: Instant::now(), used });
        footer
    }

    /// Forgets `pack`: it was removed, or repaired.
    pub fn forget(&self, pack: PackId) {
        self.write().forget(pack);
    }

    /// Where a full match lies among the cached packs that `usable` allows; the lowest pack if
    /// there are several.
    pub fn find(&self, fingerprint: &Fingerprint, usable: impl Fn(PackId) -> bool) -> Option<Place> {
        let mut found = [None];
        self.find_batch(std::slice::from_ref(fingerprint), usable, &mut found);
        found[0]
    }

    /// [`Footers::find`] for every fingerprint whose element of `found` is `None`; sets those it
    /// finds.
    ///
    /// # Panics
    /// When the slices differ in length.
    pub fn find_batch(
        &self,
        fingerprints: &[Fingerprint],
        usable: impl Fn(PackId) -> bool,
        found: &mut [Option<Place>],
    ) {
        assert_eq!(fingerprints.len(), found.len(), "a place for every fingerprint");
        let cache = self.read();
        if cache.places.len() == 0 {
            return;
        }
        let now = self.tick();
        const AHEAD: usize = 16;
        for (at, fingerprint) in fingerprints.iter().enumerate() {
            if let Some(later) = fingerprints.get(at + AHEAD) {
                cache.places.prefetch(later.prefix());
            }
            if found[at].is_none() {
                found[at] = cache.find(fingerprint, &usable, now);
            }
        }
    }

    /// Counts added footers: if it changes, a lookup that failed before may succeed now.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Acquire)
    }

    /// How many times a footer turned out to be missing or damaged.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Bytes of memory it takes.
    pub fn memory(&self) -> usize {
        let cache = self.read();
        let footers = cache.packs.values().filter_map(|cached| cached.footer.as_ref());
        footers.map(|footer| footer.memory()).sum::<usize>() + cache.places.memory()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Cache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    #[inline]
    fn find(&self, fingerprint: &Fingerprint, usable: impl Fn(PackId) -> bool, now: u64) -> Option<Place> {
        let mut best: Option<Place> = None;
        self.places.get(fingerprint.prefix(), |place| {
            let place = Place::from_u64(place);
            let Some(cached) = self.packs.get(&place.pack) else { return };
            let Some(footer) = &cached.footer else { return };
            let matches = footer.fingerprints().get(place.slot as usize) == Some(fingerprint);
            if matches && best.is_none_or(|best| place < best) && usable(place.pack) {
                if cached.used.load(Ordering::Relaxed) < now {
                    cached.used.store(now, Ordering::Relaxed);
                }
                best = Some(place);
            }
        });
        best
    }

    /// Evicts if the cache is larger than `bytes_max`; `bytes` already counts what `incoming`
    /// needs. Frees an eighth more than needed, so that packs are seldom sorted by age.
    fn evict(&mut self, bytes_max: usize, incoming: PackId) {
        if self.bytes <= bytes_max {
            return;
        }
        let others = self.packs.iter().filter(|(pack, cached)| **pack != incoming && cached.footer.is_some());
        let mut by_age: Vec<_> =
            others.map(|(pack, cached)| (cached.used.load(Ordering::Relaxed), *pack)).collect();
        by_age.sort_unstable();
        for (_, pack) in by_age {
            if self.bytes <= bytes_max / 8 * 7 {
                return;
            }
            self.forget(pack);
        }
    }

    fn forget(&mut self, pack: PackId) {
        let Some(Cached { footer: Some(footer), .. }) = self.packs.remove(&pack) else { return };
        self.bytes -= cost(&footer);
        for (prefix, place) in entries(pack, &footer, Fingerprint::prefix) {
            self.places.remove(prefix, place);
        }
    }
}

/// Bytes a footer takes here: itself, and at most 30 an entry in the table.
fn cost(footer: &Footer) -> usize {
    footer.memory() + footer.fingerprints().len() * 30
}

/// The index's entries for a footer: (prefix, place).
pub(super) fn entries<'a>(
    pack: PackId,
    footer: &'a Footer,
    prefix: impl Fn(&Fingerprint) -> u64 + 'a,
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let numbered = (0..).zip(footer.fingerprints());
    numbered.map(move |(slot, fingerprint)| (prefix(fingerprint), Place { pack, slot }.to_u64()))
}
