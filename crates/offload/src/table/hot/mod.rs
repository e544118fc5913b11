//! The table cache (as in GHOST): the most often found fingerprints with their chunks' places, as a
//! table for devices.
//!
//! ```text
//!   every hit of deduplication ──▶ count ──▶ sketch: a bounded number of counters
//!   idle ──▶ refresh: the hottest ──▶ where are they now? ──▶ a new table, with its own summary vector ──▶ table()
//!   idle ──▶ save ──▶ bytes, which the store keeps ──▶ load, or recall, at the next start
//! ```
//!
//! Devices get the table of [`HotTable::table`], which never changes. A refresh replaces it by
//! another, and tasks that hold the old one continue with that. So a device copies each table once.
//! On a miss the host looks the fingerprint up. A hit says where the chunk was when the table was
//! made ([`PackPlace`]), and the host checks that the pack may still be relied on. So nothing has
//! to be removed from devices in time. The next refresh omits the chunks that are gone.
//!
//! A device may be wrong. [`HotTable::view`] is the table together with its entries by whole
//! fingerprints. The host compares a device's answers with those entries ([`HotView::confirms`]),
//! at the cost of a look into a map.
//!
//! The store decides when the machine is idle ([`crate::runtime::Runtime::is_idle`] is half of
//! that). [`HotTable::is_due`] says whether a refresh is worth it.

mod bytes;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_format::{Fingerprint, FingerprintMap, PackId};

use super::{Hot, HotSketch, LoadError, Table};

/// A chunk's place in 64 bits: the pack (40 bits) and the last 24 bits of the store's generation at
/// which the place was known. So few bits suffice to distinguish all generations that are still
/// remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackPlace {
    /// The pack.
    pub pack: PackId,
    /// The generation, modulo 2^24.
    pub generation: u32,
}

const GENERATION_BITS: u32 = 24;

impl PackPlace {
    /// The place as a table's number.
    ///
    /// ```
    /// use outrigger_format::PackId;
    /// use outrigger_offload::table::PackPlace;
    /// let place = PackPlace { pack: PackId::MAX, generation: 0x0100_0007 };
    /// assert_eq!(PackPlace::from_number(place.number()), PackPlace { generation: 7, ..place });
    /// ```
    pub fn number(self) -> u64 {
        self.pack.0 << GENERATION_BITS | u64::from(self.generation & ((1 << GENERATION_BITS) - 1))
    }

    /// The place in a table's number.
    pub fn from_number(number: u64) -> Self {
        let generation = (number & ((1 << GENERATION_BITS) - 1)) as u32;
        Self { pack: PackId(number >> GENERATION_BITS), generation }
    }
}

/// Tells a hot table where chunks are. Any function of this shape implements it.
pub trait Whereabouts {
    /// A chunk's present place, in the form of [`PackPlace::number`]. `None` if the chunk is gone,
    /// or its pack must not be relied on. `hot.place` is the last known place.
    fn place_of(&self, hot: &Hot) -> Option<u64>;

    /// The same for many chunks, in their order, for stores that answer many at once. `None`
    /// cancels the refresh.
    fn places_of(&self, hot: &[Hot]) -> Option<Vec<Option<u64>>> {
        Some(hot.iter().map(|hot| self.place_of(hot)).collect())
    }
}

impl<F: Fn(&Hot) -> Option<u64>> Whereabouts for F {
    fn place_of(&self, hot: &Hot) -> Option<u64> {
        self(hot)
    }
}

/// The size of a hot table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotOptions {
    /// The most entries of the table. Each takes about 60 bytes on every device, and 120 on the
    /// host.
    pub entries: usize,
    /// The counters of the sketch, of about 100 bytes each on the host. It should have more
    /// counters than entries, to count better.
    pub counters: usize,
    /// A refresh is due after so many hits.
    pub refresh_hits: u64,
}

impl Default for HotOptions {
    /// A quarter of a million entries, which cover 4 GiB of chunks of 16 KiB.
    fn default() -> Self {
        Self { entries: 1 << 18, counters: 1 << 19, refresh_hits: 1 << 16 }
    }
}

/// The result of a refresh.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refreshed {
    /// Entries of the new table.
    pub entries: usize,
    /// Hot fingerprints that the store no longer has.
    pub gone: usize,
}

/// A table together with its entries. It never changes.
pub struct HotView {
    table: Arc<Table>,
    entries: FingerprintMap<u64>,
}

impl HotView {
    /// A view of these distinct entries.
    fn of(entries: impl ExactSizeIterator<Item = (Fingerprint, u64)>) -> Self {
        // As small as possible, because every device copies all of it.
        let mut table = Table::with_capacity(entries.len().max(ENTRIES_MIN));
        let mut all = FingerprintMap::default();
        all.reserve(entries.len());
        for entry in entries {
            // If the table cannot distinguish two fingerprints, only the first is inserted. A hit
            // of the other is then not confirmed.
            if table.get(&entry.0).is_none() && table.insert_many(&[entry]).is_ok() {
                all.insert(entry.0, entry.1);
            }
        }
        Self { table: Arc::new(table), entries: all }
    }

    /// The table, for a task.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// True if the view maps exactly this fingerprint, compared in all bytes, to this number.
    pub fn confirms(&self, fingerprint: &Fingerprint, number: u64) -> bool {
        self.entries.get(fingerprint) == Some(&number)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl std::fmt::Debug for HotView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HotView({:?})", self.table)
    }
}

/// The capacity of the smallest table.
const ENTRIES_MIN: usize = 64;

/// Counts hits and holds the current table, as the module describes. All threads may use it.
///
/// ```
/// use outrigger_format::{Fingerprint, PackId};
/// use outrigger_offload::table::{Hot, HotOptions, HotTable, PackPlace};
/// let hot = HotTable::new(HotOptions { entries: 1, counters: 10, refresh_hits: 2 });
/// let (often, once) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
/// let place = PackPlace { pack: PackId(5), generation: 1 }.number();
/// hot.count(&[(often, place), (once, place), (often, place)]);
/// assert!(hot.is_due());
/// hot.refresh(&|hot: &Hot| Some(hot.place));
/// assert_eq!((hot.table().get(&often), hot.table().get(&once)), (Some(place), None));
/// ```
pub struct HotTable {
    options: HotOptions,
    counts: Mutex<Counts>,
    view: Mutex<Arc<HotView>>,
    /// One refresh at a time.
    refreshing: AtomicBool,
}

struct Counts {
    sketch: HotSketch,
    /// Hits since the last refresh, and whether some counts are not saved.
    since_refresh: u64,
    unsaved: bool,
}

impl HotTable {
    /// An empty hot table.
    ///
    /// # Panics
    /// If the number of counters is 0, or 2^32 or more.
    pub fn new(options: HotOptions) -> Self {
        Self::with_sketch(options, HotSketch::new(options.counters))
    }

    /// A hot table with the sketch's counts. Its table has the hottest fingerprints at their last
    /// known places.
    fn with_sketch(options: HotOptions, sketch: HotSketch) -> Self {
        let hottest = sketch.hottest(options.entries);
        let view = HotView::of(hottest.iter().map(|hot| (hot.fingerprint, hot.place)));
        let counts = Counts { sketch, since_refresh: 0, unsaved: false };
        Self {
            options,
            counts: Mutex::new(counts),
            view: Mutex::new(Arc::new(view)),
            refreshing: AtomicBool::new(false),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current table, for a task.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(self.view().table())
    }

    /// The current table with its entries.
    pub fn view(&self) -> Arc<HotView> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of fingerprints that have a counter.
    pub fn counted(&self) -> usize {
        self.counts().sketch.len()
    }

    /// Counts hits of deduplication, each with the place where the device or the host found the
    /// chunk, once a chunk. Takes a lock, so callers pass many hits at once.
    pub fn count(&self, hits: &[(Fingerprint, u64)]) {
        let mut counts = self.counts();
        hits.iter().for_each(|&(fingerprint, place)| counts.sketch.count(fingerprint, place));
        counts.since_refresh += hits.len() as u64;
        counts.unsaved |= !hits.is_empty();
    }

    /// True if enough hits were counted since the last refresh.
    pub fn is_due(&self) -> bool {
        self.counts().since_refresh >= self.options.refresh_hits
    }

    /// Replaces the table by one of the hottest fingerprints, each at the place that `store`
    /// returns, without those that it no longer has. Halves all counts, so that old hits lose
    /// weight. Meant for idle times, as it asks for the place of every entry. Other threads can
    /// count meanwhile. `None`: another thread is refreshing, or `store` cancelled, and nothing has
    /// changed.
    pub fn refresh(&self, store: &(impl Whereabouts + ?Sized)) -> Option<Refreshed> {
        if self.refreshing.swap(true, Ordering::Acquire) {
            return None;
        }
        let _turn = Turn(&self.refreshing);
        let (candidates, hits) = {
            let counts = self.counts();
            // More candidates than entries, as some may be gone.
            (counts.sketch.hottest(self.options.entries + self.options.entries / 4), counts.since_refresh)
        };
        let (mut entries, mut gone, mut rest) = (Vec::new(), Vec::new(), &candidates[..]);
        while entries.len() < self.options.entries && !rest.is_empty() {
            let (now, later) = rest.split_at((self.options.entries - entries.len()).min(rest.len()));
            for (hot, place) in now.iter().zip(store.places_of(now)?) {
                match place {
                    Some(place) => entries.push((hot.fingerprint, place)),
                    None => gone.push(hot.fingerprint),
                }
            }
            rest = later;
        }
        let new = HotView::of(entries.iter().copied());
        let done = Refreshed { entries: entries.len(), gone: gone.len() };
        {
            let mut counts = self.counts();
            counts.since_refresh -= hits;
            counts.sketch.age();
            gone.iter().for_each(|fingerprint| counts.sketch.forget(fingerprint));
            entries.iter().for_each(|(fingerprint, place)| counts.sketch.moved(fingerprint, *place));
            counts.unsaved |= !candidates.is_empty();
        }
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Some(done)
    }

    /// True if anything has changed since [`HotTable::save`].
    pub fn is_unsaved(&self) -> bool {
        self.counts().unsaved
    }

    /// Appends all counters to `out`. Meant for idle times.
    pub fn save(&self, out: &mut Vec<u8>) {
        let hottest = {
            let mut counts = self.counts();
            counts.unsaved = false;
            counts.sketch.hottest(self.options.counters)
        };
        bytes::write(&hottest, out);
    }

    /// Adds the counts that an earlier process wrote by [`HotTable::save`]. It does not trust their
    /// places: the table stays as it is until the next refresh, which becomes due.
    ///
    /// # Errors
    /// [`LoadError`] if the bytes are something else, incomplete, or changed. Then nothing has
    /// changed here.
    pub fn recall(&self, bytes: &[u8]) -> Result<(), LoadError> {
        let counters = bytes::read(bytes)?;
        let mut counts = self.counts();
        counts.sketch.absorb(&counters);
        if !counters.is_empty() {
            counts.since_refresh += self.options.refresh_hits;
        }
        Ok(())
    }

    /// A hot table from the bytes of [`HotTable::save`]. If `options` have less room, the coldest
    /// are left out. The places are those of the time of saving, and the host checks them as for
    /// any hit.
    ///
    /// # Errors
    /// [`LoadError`] if the bytes are something else, incomplete, or changed.
    ///
    /// # Panics
    /// As [`HotTable::new`].
    pub fn load(bytes: &[u8], options: HotOptions) -> Result<Self, LoadError> {
        let sketch = HotSketch::of(options.counters, &bytes::read(bytes)?);
        Ok(Self::with_sketch(options, sketch))
    }

    /// [`HotTable::load`]. If it fails, an empty table, and the reason.
    ///
    /// # Panics
    /// As [`HotTable::new`].
    pub fn load_or_empty(bytes: &[u8], options: HotOptions) -> (Self, Option<LoadError>) {
        match Self::load(bytes, options) {
            Ok(hot) => (hot, None),
            Err(why) => (Self::new(options), Some(why)),
        }
    }
}

/// The flag of a refresh in progress.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for HotTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HotTable({:?}, {} counted)", self.table(), self.counts().sketch.len())
    }
}
