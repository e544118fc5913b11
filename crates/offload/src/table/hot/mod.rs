//! The table that goes to devices: the fingerprints that are found most often, with where their chunks are (GHOST's table cache).
//!
//! ```text
//!   every hit of deduplication ──▶ count ──▶ sketch: a bounded number of counters
//!   idle ──▶ refresh: the hottest ──▶ where are they now? ──▶ a new table, with its own summary vector ──▶ table()
//!   idle ──▶ save ──▶ bytes, which the store keeps ──▶ load, or recall, at the next start
//! ```
//!
//! A device is asked with what [`HotTable::table`] gives, which never changes: a refresh puts another one in its place, and who
//! still has the old one goes on with that. So a device copies each once. A miss means "ask the host"; a hit says where the chunk was
//! when the table was made ([`PackPlace`]), and the host checks that the pack may still be relied on: nothing has to be
//! removed from devices in time, and what is gone is left out at the next refresh.
//!
//! A device may be wrong. [`HotTable::view`] is the table together with what was put into it, by whole fingerprints: who has asked a device
//! with the one holds its answers against the other ([`HotView::confirms`]), which takes a look into a map.
//!
//! When the machine is idle is for the store to say ([`crate::runtime::Runtime::is_idle`] is one half of it); [`HotTable::is_due`]
//! says whether a refresh is worth it.

mod bytes;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_format::{Fingerprint, FingerprintMap, PackId};

use super::{Hot, HotSketch, LoadError, Table};

/// Where a chunk is, in the 64 bits that a table has for it: the pack (40 bits), and the generation of the store in which that was known
/// (its last 24 bits, which is enough to be told from any that is still remembered).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackPlace {
    /// The pack.
    pub pack: PackId,
    /// The generation, modulo 2^24.
    pub generation: u32,
}

const GENERATION_BITS: u32 = 24;

impl PackPlace {
    /// As a table's number.
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

    /// From a table's number.
    pub fn from_number(number: u64) -> Self {
        let generation = (number & ((1 << GENERATION_BITS) - 1)) as u32;
        Self { pack: PackId(number >> GENERATION_BITS), generation }
    }
}

/// What a hot table needs to know of the store. Any function of this shape is one.
pub trait Whereabouts {
    /// Where a chunk is now: a number as [`PackPlace::number`] gives it. `None` if it is gone, or in a pack that is not to be relied on.
    /// `hot.place` is what was last known.
    fn place_of(&self, hot: &Hot) -> Option<u64>;

    /// The same of many, in their order: for stores that answer many at once. `None` gives the refresh up.
    fn places_of(&self, hot: &[Hot]) -> Option<Vec<Option<u64>>> {
        Some(hot.iter().map(|hot| self.place_of(hot)).collect())
    }
}

impl<F: Fn(&Hot) -> Option<u64>> Whereabouts for F {
    fn place_of(&self, hot: &Hot) -> Option<u64> {
        self(hot)
    }
}

/// How much a hot table remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotOptions {
    /// Entries of the table at most, about 60 bytes each on every device, and 120 on the host.
    pub entries: usize,
    /// Counters of the sketch, about 100 bytes each, on the host. More of them than entries count better.
    pub counters: usize,
    /// So many hits make a refresh worth it.
    pub refresh_hits: u64,
}

impl Default for HotOptions {
    /// A quarter of a million entries, which is 4 GiB of chunks of 16 KiB.
    fn default() -> Self {
        Self { entries: 1 << 18, counters: 1 << 19, refresh_hits: 1 << 16 }
    }
}

/// What a refresh has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refreshed {
    /// Entries of the new table.
    pub entries: usize,
    /// Hot ones that the store no longer has.
    pub gone: usize,
}

/// A table as it is at some moment, and what was put into it. It never changes.
pub struct HotView {
    table: Arc<Table>,
    entries: FingerprintMap<u64>,
}

impl HotView {
    /// Of these, which differ.
    fn of(entries: impl ExactSizeIterator<Item = (Fingerprint, u64)>) -> Self {
        // No larger than it has to be: every device copies all of it.
        let mut table = Table::with_capacity(entries.len().max(ENTRIES_MIN));
        let mut all = FingerprintMap::default();
        all.reserve(entries.len());
        for entry in entries {
            // Of two that a table cannot tell apart, the first: a hit of the other is then not confirmed.
            if table.get(&entry.0).is_none() && table.insert_many(&[entry]).is_ok() {
                all.insert(entry.0, entry.1);
            }
        }
        Self { table: Arc::new(table), entries: all }
    }

    /// For a task.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Whether the table says this of this very fingerprint, all bytes of which count.
    pub fn confirms(&self, fingerprint: &Fingerprint, number: u64) -> bool {
        self.entries.get(fingerprint) == Some(&number)
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl std::fmt::Debug for HotView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HotView({:?})", self.table)
    }
}

/// Room of the smallest table.
const ENTRIES_MIN: usize = 64;

/// See the module. All threads may use it.
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
    /// Hits since the last refresh, and whether anything is not saved.
    since_refresh: u64,
    unsaved: bool,
}

impl HotTable {
    /// Without entries.
    ///
    /// # Panics
    /// When there are no counters, or 2^32 and more.
    pub fn new(options: HotOptions) -> Self {
        Self::with_sketch(options, HotSketch::new(options.counters))
    }

    /// With what was counted, and a table of the hottest where they were last.
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

    /// The table as it is now, for a task.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(self.view().table())
    }

    /// The table as it is now, and what is in it.
    pub fn view(&self) -> Arc<HotView> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fingerprints that have a counter.
    pub fn counted(&self) -> usize {
        self.counts().sketch.len()
    }

    /// Counts hits of deduplication, with where each was found: by the device or by the host, once a chunk. Many at once: it takes a
    /// lock.
    pub fn count(&self, hits: &[(Fingerprint, u64)]) {
        let mut counts = self.counts();
        hits.iter().for_each(|&(fingerprint, place)| counts.sketch.count(fingerprint, place));
        counts.since_refresh += hits.len() as u64;
        counts.unsaved |= !hits.is_empty();
    }

    /// Whether enough was counted since the last refresh for another one.
    pub fn is_due(&self) -> bool {
        self.counts().since_refresh >= self.options.refresh_hits
    }

    /// Puts a table of the hottest fingerprints in the place of the present one, each at the place that `store` says, and none that it does not
    /// have; and halves all counts, so that what was hot long ago cools down. For when there is nothing else to do: it
    /// asks for every entry. Counting goes on meanwhile. While another thread does this, or when `store` gives it up, nothing happens: `None`.
    pub fn refresh(&self, store: &(impl Whereabouts + ?Sized)) -> Option<Refreshed> {
        if self.refreshing.swap(true, Ordering::Acquire) {
            return None;
        }
        let _turn = Turn(&self.refreshing);
        let (candidates, hits) = {
            let counts = self.counts();
            // Some may be gone: those after them move up.
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

    /// Whether anything has changed since [`HotTable::save`].
    pub fn is_unsaved(&self) -> bool {
        self.counts().unsaved
    }

    /// Appends what was counted, and where, to `out`: for when there is nothing else to do.
    pub fn save(&self, out: &mut Vec<u8>) {
        let hottest = {
            let mut counts = self.counts();
            counts.unsaved = false;
            counts.sketch.hottest(self.options.counters)
        };
        bytes::write(&hottest, out);
    }

    /// Adds what was counted in an earlier life to what was counted in this: [`HotTable::save`] wrote it. Only counts are believed, places are
    /// not: the table is what it was until the next refresh, for which this makes it due.
    ///
    /// # Errors
    /// [`LoadError`]: the bytes are something else, not all of it, or not what was written. Nothing has changed.
    pub fn recall(&self, bytes: &[u8]) -> Result<(), LoadError> {
        let counters = bytes::read(bytes)?;
        let mut counts = self.counts();
        counts.sketch.absorb(&counters);
        if !counters.is_empty() {
            counts.since_refresh += self.options.refresh_hits;
        }
        Ok(())
    }

    /// What [`HotTable::save`] wrote, and the table that comes of it; what does not fit in `options` is left out, the coldest first. Places
    /// are those of that time: as with any hit, the host checks them.
    ///
    /// # Errors
    /// [`LoadError`]: the bytes are something else, not all of it, or not what was written.
    ///
    /// # Panics
    /// As [`HotTable::new`].
    pub fn load(bytes: &[u8], options: HotOptions) -> Result<Self, LoadError> {
        let sketch = HotSketch::of(options.counters, &bytes::read(bytes)?);
        Ok(Self::with_sketch(options, sketch))
    }

    /// [`HotTable::load`], or an empty one and why.
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

/// A refresh under way.
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
