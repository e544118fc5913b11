//! The table cache: the fingerprints that are found most often, kept where devices look them up
//! (GHOST's in-GPU table cache).
//!
//! ```text
//!   writers: device says "in pack P" ─▶ confirmed ─▶ P may be relied on? ─▶ known         else ─▶ the index
//!            every chunk found, by whomever ─▶ counted
//!   keeper:  at first ─▶ recall the file's counts ─▶ refresh
//!            idle, enough was counted ─▶ refresh: the index says where the hottest are, confirmed by footers ─▶ a new table
//!            idle, at the end ─▶ save
//! ```
//!
//! It exists while a store has devices that cut and hash ([`crate::Store::use_devices`]), and one
//! thread, the keeper, maintains it. The tables are `offload`'s ([`HotTable`]). This module adds
//! the store's part: where fingerprints are, when there is time, and the file.
//!
//! **Why no hit can lose data.** A table makes a chunk count as stored in pack P only when all of
//! this holds:
//!
//! 1. The table that the device was asked with has this entry, whole fingerprint and place
//!    ([`HotView::confirms`]). A device that claims anything else is not believed, and
//!    [quarantined](outrigger_offload::runtime::Runtime::quarantine).
//! 2. A refresh of this process put the entry into the table, from the index, which believes
//!    nothing but P's own footer. Only counts are taken from the file. A pack is immutable and its
//!    id is never used again, so its footer stays true for as long as P exists.
//! 3. The session may rely on P, and notes in the same step that it does. It is the same test,
//!    under the same lock, as for answers of the index (rule 4 of
//!    `docs/decisions/0003-reclaim-protocol.md`).
//!
//! All other chunks are looked up in the index.

mod file;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Fingerprint, PackId, StoreId};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::table::{Hot, HotOptions, HotTable, HotView, PackPlace, Whereabouts};

use crate::index::Index;
use crate::keys::Key;
use crate::owner;

/// The file's name in the store's directory.
pub const TABLE_CACHE_FILE: &str = "table-cache";
/// How often the keeper looks whether there is time.
const TICK: Duration = Duration::from_millis(100);
/// Time between two savings.
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// If there is no idle moment, a refresh is due after so many times as many hits.
const OVERDUE: u64 = 16;
/// Fingerprints that the index is asked for at a time.
const BATCH: usize = 1024;

/// Whether the host's cache of footers also keeps what a device's table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// A hit of the table does not change the host's cache: its memory is for chunks that devices
    /// do not know. As in GHOST.
    #[default]
    Exclusive,
    /// A hit brings the pack's footer into the host's cache, as a hit of the index does, so
    /// neighbours are then found there.
    Shared,
}

/// How a table cache is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCacheOptions {
    /// Whether the host's cache has the same footers.
    pub sharing: Sharing,
    /// How much it remembers.
    pub hot: HotOptions,
}

/// How many chunks were looked up and found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Chunks that were looked up in a table.
    pub asked: u64,
    /// Chunks that were in it.
    pub found: u64,
    /// Found chunks in packs that could be relied on: the index was not asked about them.
    pub relied: u64,
    /// Answers that the table does not have: none was believed.
    pub denied: u64,
}

/// A table cache in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCacheStats {
    /// Entries of the present table.
    pub entries: usize,
    /// Fingerprints that are counted.
    pub counted: usize,
    /// Tables made by this process.
    pub refreshes: u64,
    /// By this process.
    pub now: Asked,
    /// By all processes, this one included, as far as they saved.
    pub ever: Asked,
}

#[derive(Default)]
struct Counters {
    asked: AtomicU64,
    found: AtomicU64,
    relied: AtomicU64,
    denied: AtomicU64,
    refreshes: AtomicU64,
    hits: AtomicU64,
    generation: AtomicU64,
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// See the module. All threads may use it.
pub struct TableCache {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    hot: HotTable,
    options: TableCacheOptions,
    path: Option<PathBuf>,
    store: StoreId,
    key: Option<Key>,
    index: Arc<Index>,
    runtime: Arc<Runtime>,
    counters: Counters,
    /// The counts that earlier processes saved.
    before: Mutex<Asked>,
    /// Why the file was not used; taken by the first caller that asks.
    complaint: Mutex<Option<String>>,
    stop: Mutex<bool>,
    stopping: AtomicBool,
    stopped: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TableCache {
    /// Begins empty, and recalls the file in the background. Without `path` nothing is saved. With
    /// `key` the file is encrypted.
    pub(crate) fn start(
        path: Option<PathBuf>,
        store: StoreId,
        key: Option<Key>,
        index: Arc<Index>,
        runtime: Arc<Runtime>,
        options: TableCacheOptions,
    ) -> Self {
        let shared = Arc::new(Shared {
            hot: HotTable::new(options.hot),
            options,
            path,
            store,
            key,
            index,
            runtime,
            counters: Counters::default(),
            before: Mutex::default(),
            complaint: Mutex::default(),
            stop: Mutex::new(false),
            stopping: AtomicBool::new(false),
            stopped: Condvar::new(),
        });
        let keeping = Arc::clone(&shared);
        let keeper = std::thread::Builder::new().name("table-cache".into()).spawn(move || keeping.keep());
        // Without its thread the cache stays empty.
        Self { shared, keeper: keeper.ok() }
    }

    /// The table for asking devices and for checking their answers.
    pub fn view(&self) -> Arc<HotView> {
        self.shared.hot.view()
    }

    /// Says whether hits bring footers into the host's cache.
    pub fn sharing(&self) -> Sharing {
        self.shared.options.sharing
    }

    /// Counts a batch that was looked up: its chunks, those that were found, and the wrong answers.
    pub(crate) fn note_asked(&self, asked: u64, found: u64, denied: u64) {
        let counters = &self.shared.counters;
        add(&counters.asked, asked);
        add(&counters.found, found);
        add(&counters.denied, denied);
    }

    /// Counts chunks that were found in these packs, by a table (`relied` of them) or by the index,
    /// in this generation.
    pub(crate) fn note_found(&self, found: &[(Fingerprint, PackId)], relied: u64, generation: u64) {
        let counters = &self.shared.counters;
        add(&counters.relied, relied);
        counters.generation.store(generation, Ordering::Relaxed);
        if found.is_empty() {
            return;
        }
        add(&counters.hits, found.len() as u64);
        let hits: Vec<_> =
            found.iter().map(|&(fingerprint, pack)| (fingerprint, self.shared.number(pack))).collect();
        self.shared.hot.count(&hits);
    }

    /// Its numbers.
    pub fn stats(&self) -> TableCacheStats {
        let Shared { hot, counters, before, .. } = &*self.shared;
        let now = Asked {
            asked: get(&counters.asked),
            found: get(&counters.found),
            relied: get(&counters.relied),
            denied: get(&counters.denied),
        };
        let before = *lock(before);
        TableCacheStats {
            entries: hot.view().len(),
            counted: hot.counted(),
            refreshes: get(&counters.refreshes),
            now,
            ever: Asked {
                asked: before.asked + now.asked,
                found: before.found + now.found,
                relied: before.relied + now.relied,
                denied: now.denied,
            },
        }
    }

    /// Why the saved file is not used; answers once.
    pub fn take_complaint(&self) -> Option<String> {
        lock(&self.shared.complaint).take()
    }

    /// Makes a table of what was counted so far, and waits for it: for tests and experiments.
    /// Otherwise refreshes happen in idle moments.
    pub fn refresh_now(&self) {
        while self.shared.refresh().is_none() && !self.shared.stopping.load(Ordering::Relaxed) {
            outrigger_clock::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for TableCache {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        self.shared.save();
    }
}

impl std::fmt::Debug for TableCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TableCache").field(&self.stats()).finish()
    }
}

impl Shared {
    /// The keeper's loop.
    fn keep(&self) {
        self.recall();
        let (mut refreshed_at, mut saved) = (0, Instant::now());
        let mut stop = lock(&self.stop);
        while !*stop {
            drop(stop);
            let (idle, hits) = (self.runtime.is_idle(), get(&self.counters.hits));
            let overdue = hits - refreshed_at >= OVERDUE.saturating_mul(self.options.hot.refresh_hits);
            if self.hot.is_due() && (idle || overdue) && self.refresh().is_some() {
                refreshed_at = hits;
            }
            if idle && saved.elapsed() >= SAVE_EVERY {
                self.save();
                saved = Instant::now();
            }
            stop = lock(&self.stop);
            if !*stop {
                stop = self.stopped.wait_timeout(stop, TICK).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn refresh(&self) -> Option<()> {
        self.hot.refresh(self)?;
        add(&self.counters.refreshes, 1);
        Some(())
    }

    fn number(&self, pack: PackId) -> u64 {
        // Only the low bits of the generation are kept.
        PackPlace { pack, generation: get(&self.counters.generation) as u32 }.number()
    }

    fn recall(&self) {
        let Some(path) = &self.path else { return };
        let why = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => error.to_string(),
            Ok(bytes) => match self.recall_from(bytes) {
                Ok(()) => return,
                Err(why) => why,
            },
        };
        *lock(&self.complaint) =
            Some(format!("{} is not used ({why}): what is found most often is counted anew", path.display()));
    }

    fn recall_from(&self, bytes: Vec<u8>) -> Result<(), String> {
        let bytes = file::unseal(bytes, self.store, self.key.as_ref())?;
        let (asked, counted) = file::parse(&bytes, self.store)?;
        *lock(&self.before) = asked;
        self.hot.recall(counted).map_err(|why| why.to_string())
    }

    /// If this fails, the next process has no counts to recall; nothing else is lost.
    fn save(&self) {
        let (Some(path), true) = (&self.path, self.hot.is_unsaved()) else { return };
        let (before, counters) = (*lock(&self.before), &self.counters);
        let ever = Asked {
            asked: before.asked + get(&counters.asked),
            found: before.found + get(&counters.found),
            relied: before.relied + get(&counters.relied),
            denied: 0,
        };
        let mut bytes = file::header(self.store, &ever);
        self.hot.save(&mut bytes);
        let Ok(bytes) = file::seal(bytes, self.store, self.key.as_ref()) else { return };
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let written = owner::write(&temporary, &bytes).and_then(|()| std::fs::rename(&temporary, path));
        match written {
            Ok(()) => owner::give_path(path),
            Err(_) => drop(std::fs::remove_file(&temporary)),
        }
    }
}

impl Whereabouts for Shared {
    fn place_of(&self, hot: &Hot) -> Option<u64> {
        self.places_of(std::slice::from_ref(hot))?.pop().flatten()
    }

    /// Asks the index, which reads footers. Sorted by their last known packs, so that each footer
    /// is read once.
    fn places_of(&self, hot: &[Hot]) -> Option<Vec<Option<u64>>> {
        let mut order: Vec<usize> = (0..hot.len()).collect();
        order.sort_unstable_by_key(|&at| hot[at].place);
        let (mut places, mut asked, mut found) = (vec![None; hot.len()], Vec::new(), Vec::new());
        for batch in order.chunks(BATCH) {
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            asked.clear();
            asked.extend(batch.iter().map(|&at| hot[at].fingerprint));
            self.index.resolve_batch(&asked, |_| true, &mut found).ok()?;
            for (&at, place) in batch.iter().zip(&found) {
                places[at] = place.map(|place| self.number(place.pack));
            }
        }
        Some(places)
    }
}

/// Reads the table cache's numbers from a store's file, which was written with `key` if there is
/// one, without opening the store: `None` if there is no file, or it cannot be used.
pub fn saved(dir: &std::path::Path, store: StoreId, key: Option<&Key>) -> Option<Asked> {
    let bytes = std::fs::read(dir.join(TABLE_CACHE_FILE)).ok()?;
    let bytes = file::unseal(bytes, store, key).ok()?;
    file::parse(&bytes, store).ok().map(|(asked, _)| asked)
}
