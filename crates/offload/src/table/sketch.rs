//! Counts the most frequent fingerprints in bounded memory, by the *space-saving* sketch (Metwally,
//! Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! 2005).
//!
//! The number of counters is fixed. If a fingerprint has a counter, the sketch raises it. Otherwise
//! the fingerprint takes over the smallest counter together with its count, which bounds the error
//! of the new count. So every fingerprint with more hits than the total divided by the number of
//! counters has one. The counters form a heap with the smallest on top.

use outrigger_format::{Fingerprint, FingerprintMap};

/// A fingerprint with its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hot {
    /// The fingerprint.
    pub fingerprint: Fingerprint,
    /// Its last known place, as the table's number.
    pub place: u64,
    /// An upper bound of its hits.
    pub count: u64,
    /// By how much `count` may be too high.
    pub error: u64,
}

/// Counts deduplication hits and finds the hottest fingerprints, for a device's table.
///
/// ```
/// use outrigger_format::Fingerprint;
/// use outrigger_offload::table::HotSketch;
/// let mut sketch = HotSketch::new(2);
/// for byte in [1, 2, 1, 3, 1] {
///     sketch.count(Fingerprint([byte; 32]), byte.into());
/// }
/// let hottest = sketch.hottest(1)[0];
/// assert_eq!((hottest.place, hottest.count, hottest.error), (1, 3, 0));
/// ```
#[derive(Clone, Debug)]
pub struct HotSketch {
    counters: Vec<Hot>,
    /// A heap of counters' indices by rising count, and the position of each counter in it.
    heap: Vec<u32>,
    at: Vec<u32>,
    of: FingerprintMap<u32>,
    limit: usize,
}

impl HotSketch {
    /// A sketch with `counters` counters, of about 100 bytes each.
    ///
    /// # Panics
    /// If `counters` is 0, or 2^32 or more.
    pub fn new(counters: usize) -> Self {
        assert!(counters > 0 && u32::try_from(counters).is_ok(), "{counters} counters");
        Self {
            counters: Vec::new(),
            heap: Vec::new(),
            at: Vec::new(),
            of: FingerprintMap::default(),
            limit: counters,
        }
    }

    /// A sketch with these counts, in the order of [`HotSketch::hottest`]. Those beyond `counters`
    /// are left out.
    ///
    /// # Panics
    /// As [`HotSketch::new`].
    pub fn of(counters: usize, counted: &[Hot]) -> Self {
        let mut sketch = Self::new(counters);
        for hot in counted {
            if sketch.counters.len() == counters {
                break;
            }
            if !sketch.of.contains_key(&hot.fingerprint) {
                sketch.push(*hot);
            }
        }
        sketch
    }

    /// Adds another sketch's counts. A fingerprint without a counter is left out if none is free.
    pub fn absorb(&mut self, counted: &[Hot]) {
        for hot in counted {
            if let Some(&counter) = self.of.get(&hot.fingerprint) {
                let own = &mut self.counters[counter as usize];
                own.count = own.count.saturating_add(hot.count);
                own.error = own.error.saturating_add(hot.error);
                self.sink(self.at[counter as usize] as usize);
            } else if self.counters.len() < self.limit {
                self.push(Hot { error: hot.error.min(hot.count), ..*hot });
            }
        }
    }

    fn push(&mut self, hot: Hot) {
        let counter = self.counters.len() as u32;
        self.counters.push(hot);
        self.of.insert(hot.fingerprint, counter);
        self.at.push(self.heap.len() as u32);
        self.heap.push(counter);
        self.rise(self.heap.len() - 1);
    }

    /// Counts a hit of `fingerprint`, which is now at `place`.
    pub fn count(&mut self, fingerprint: Fingerprint, place: u64) {
        if let Some(&counter) = self.of.get(&fingerprint) {
            let hot = &mut self.counters[counter as usize];
            hot.count = hot.count.saturating_add(1);
            hot.place = place;
            self.sink(self.at[counter as usize] as usize);
        } else if self.counters.len() < self.limit {
            self.push(Hot { fingerprint, place, count: 1, error: 0 });
        } else {
            let counter = self.heap[0];
            let hot = &mut self.counters[counter as usize];
            self.of.remove(&hot.fingerprint);
            *hot = Hot { fingerprint, place, count: hot.count.saturating_add(1), error: hot.count };
            self.of.insert(fingerprint, counter);
            self.sink(0);
        }
    }

    /// The `n` hottest fingerprints, by falling certain count ([`Hot::count`] − [`Hot::error`]).
    pub fn hottest(&self, n: usize) -> Vec<Hot> {
        let mut hottest = self.counters.clone();
        // Equal counts are sorted by fingerprint, so that equal histories give equal tables.
        hottest.sort_by_key(|hot| (std::cmp::Reverse(hot.count - hot.error), hot.fingerprint));
        hottest.truncate(n);
        hottest
    }

    /// Halves all counts, so that old hits lose weight.
    pub fn age(&mut self) {
        // Rounding down keeps the order of any two counts, and so the heap.
        for hot in &mut self.counters {
            hot.count /= 2;
            hot.error /= 2;
        }
    }

    /// Records a fingerprint's new place, without counting a hit.
    pub fn moved(&mut self, fingerprint: &Fingerprint, place: u64) {
        if let Some(&counter) = self.of.get(fingerprint) {
            self.counters[counter as usize].place = place;
        }
    }

    /// Forgets a fingerprint and frees its counter.
    pub fn forget(&mut self, fingerprint: &Fingerprint) {
        let Some(counter) = self.of.remove(fingerprint) else { return };
        // Removes it from the heap: the last element takes its position, and is then moved to where
        // it belongs.
        let place = self.at[counter as usize] as usize;
        let last = self.heap.len() - 1;
        self.swap(place, last);
        self.heap.pop();
        if place < last {
            self.rise(place);
            self.sink(place);
        }
        // Removes it from the counters in the same way.
        self.counters.swap_remove(counter as usize);
        self.at.swap_remove(counter as usize);
        if let Some(moved) = self.counters.get(counter as usize) {
            self.of.insert(moved.fingerprint, counter);
            self.heap[self.at[counter as usize] as usize] = counter;
        }
    }

    /// The number of fingerprints that have a counter.
    pub fn len(&self) -> usize {
        self.counters.len()
    }

    /// True if no hit was counted.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    fn count_at(&self, place: usize) -> u64 {
        self.counters[self.heap[place] as usize].count
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.at[self.heap[a] as usize] = a as u32;
        self.at[self.heap[b] as usize] = b as u32;
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.count_at(place) < self.count_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.count_at(child)) else { return };
            if self.count_at(place) <= self.count_at(least) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}
