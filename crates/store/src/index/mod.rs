//! The index: fingerprint → [`Place`], on the host.
//!
//! ```text
//!   fingerprint ─► locality cache ─► recent table ─► filters of the runs ─► one page of a run ─► footer
//!                  hits end here      packs no run     "never seen" ends      one pread           the full match,
//!                                     covers yet       here                                       cached for neighbours
//! ```
//!
//! The packs' footers are the truth; everything here is made from them and may be lost. A sealed
//! pack is added to the *recent table* in memory. When that is full, a flush writes it as a sorted
//! *run*, and a background thread merges runs. The filters in memory say which keys were never
//! seen, so that only a present chunk, and about one in a hundred absent ones, costs a disk read.
//! Runs keep 8 bytes of a fingerprint, or of its encryption (`prefix.rs`). The footer of the pack confirms a match, and the *locality
//! cache* then keeps that footer for the chunk's neighbours. So damage to a run can hide a chunk,
//! but not give a wrong place. A run that proves damaged is dropped, and [`Index::missing`] then
//! names the packs whose footers have to be added again.
//!
//! Threads: any number look up, add and remove at once. Lookups hold the state's read lock only
//! while they search the recent table; disk reads hold no lock. Writers of the state hold it for
//! the insertion of one footer, or the exchange of a list. Processes: each has its own recent
//! table; runs are shared through `directory.rs`. A flush waits for the flush of another process,
//! lookups for nobody.
//!
//! A pack whose id is *dead* (removed, or not live) never comes back, as ids are used once. From
//! [`Index::remove_packs`] on its entries are ignored. They leave the runs when these are merged.

mod cover;
mod directory;
mod filter;
mod locality;
mod lookup;
mod maintain;
mod merge;
mod prefetch;
mod prefix;
mod recent;
mod resolve;
mod run;
mod run_writer;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use outrigger_clock::Instant;
use outrigger_format::{Footer, PackId, Place, StoreId};

use crate::error::{ErrorKind, Result};
use crate::keys::Key;
use crate::meta::PackMark;
use directory::Directory;
use locality::PackSet;
use lookup::ProbeCounts;
use prefix::Prefixes;
use recent::Recent;
use run::Run;

pub use locality::{Footers, LoadFooter};
pub use resolve::Candidates;

/// Bounds of an index.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Entries of the recent table beyond which [`Index::flush_if_full`] writes a run.
    pub recent_entries_max: usize,
    /// Packs in the recent table beyond which it does so: each costs a footer read at the next
    /// open.
    pub recent_packs_max: usize,
    /// Bytes of the locality cache.
    pub footers_bytes_max: usize,
    /// Merge runs in a thread of their own, not in the one that flushes.
    pub merge_in_background: bool,
    /// Keeps what runs hold from saying which fingerprints there are. Runs that were written with
    /// another key, or none, are dropped as damaged ones are.
    pub key: Option<Key>,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            recent_entries_max: 512 << 10,
            recent_packs_max: 256,
            footers_bytes_max: 64 << 20,
            merge_in_background: true,
            key: None,
        }
    }
}

/// Bytes of memory an index takes, by part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexMemory {
    /// The runs' filters (the summary vector).
    pub filter: usize,
    /// The runs' fences and lists of packs.
    pub fences: usize,
    /// The recent table.
    pub recent: usize,
    /// The locality cache.
    pub locality: usize,
}

/// The contents of an index, and its counts since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexStats {
    /// Runs in use.
    pub runs: usize,
    /// Entries of the runs, those of dead packs included.
    pub run_entries: u64,
    /// Entries of the recent table.
    pub recent_entries: usize,
    /// Index pages read by lookups.
    pub probes: u64,
    /// Probes for keys that were not there.
    pub false_probes: u64,
    /// Footers brought into the locality cache.
    pub footers_loaded: u64,
    /// Footers that were found missing or damaged.
    pub footers_unreadable: u64,
    /// Runs written from the recent table.
    pub flushes: u64,
    /// Merges done.
    pub merges: u64,
    /// Merges that failed (they are tried again after the next flush).
    pub merges_failed: u64,
    /// Runs dropped because they were damaged or missing.
    pub runs_dropped: u64,
}

#[derive(Default)]
struct Counts {
    probe: ProbeCounts,
    flushes: AtomicU64,
    merges: AtomicU64,
    merges_failed: AtomicU64,
    runs_dropped: AtomicU64,
}

struct State {
    runs: Arc<Vec<Arc<Run>>>,
    /// Never shrinks, so that a lookup that began before a merge still knows what is dead.
    dead: Arc<PackSet>,
    recent: Recent,
}

/// The state that the index shares with its merging thread.
struct Shared {
    directory: Option<Directory>,
    prefixes: Prefixes,
    options: IndexOptions,
    live: Box<dyn Fn(PackId) -> bool + Send + Sync>,
    footers: Footers,
    state: RwLock<State>,
    counts: Counts,
    stop: AtomicBool,
    /// Entries of the merge that is running.
    merging: AtomicU64,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of one store on one host; see the module's header.
pub struct Index {
    shared: Arc<Shared>,
    merger: Mutex<Option<JoinHandle<()>>>,
    followed: Mutex<Option<Followed>>,
}

/// How far the index has followed the database's rows of packs, and when it last looked at all of
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    pub mark: PackMark,
    pub looked: Instant,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Index {
    /// Opens the index in `dir`, and makes it if it is not there. Without `dir`, or if that may not
    /// even be read, the whole index is in memory. Damaged parts are dropped: ask
    /// [`Index::missing`] afterwards, or let [`Index::cover`] read what is missing.
    ///
    /// `live` returns false only for packs that are dead for good, never for those that are still
    /// to be committed. It is asked about the packs of runs, when these are opened and merged, and
    /// must not call the index. `loader` reads the footer of a pack.
    ///
    /// # Errors
    /// When the directory cannot be opened for another reason than permission.
    pub fn open(
        dir: Option<&Path>,
        store: StoreId,
        options: IndexOptions,
        live: impl Fn(PackId) -> bool + Send + Sync + 'static,
        loader: impl LoadFooter + 'static,
    ) -> Result<Self> {
        let prefixes = Prefixes::new(store, options.key.as_ref());
        let directory = match dir.map(|path| Directory::open(path, prefixes.stamp())).transpose() {
            Err(error) if error.kind() == ErrorKind::Denied => None,
            other => other?,
        };
        let shared = Shared {
            directory,
            prefixes,
            footers: Footers::new(loader, options.footers_bytes_max),
            options,
            live: Box::new(live),
            state: RwLock::new(State {
                runs: Arc::default(),
                dead: Arc::default(),
                recent: Recent::default(),
            }),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            merging: AtomicU64::new(0),
        };
        shared.clean()?;
        Ok(Self { shared: Arc::new(shared), merger: Mutex::new(None), followed: Mutex::new(None) })
    }

    /// All packs whose fingerprints the index knows, rising.
    pub fn covered_packs(&self) -> Vec<PackId> {
        let state = self.shared.read();
        let runs = state.runs.iter().flat_map(|run| run.packs.iter());
        let mut packs: Vec<PackId> = runs.chain(state.recent.packs.iter()).copied().collect();
        packs.retain(|pack| !state.dead.contains(pack));
        packs.sort_unstable();
        packs.dedup();
        packs
    }

    /// Those of `packs` that the index does not know: new packs of other processes, or packs whose
    /// run was dropped.
    pub fn missing(&self, packs: &[PackId]) -> Vec<PackId> {
        let state = self.shared.read();
        let is_known = |pack: PackId| {
            state.recent.packs.contains(&pack) || state.runs.iter().any(|run| run.covers(pack))
        };
        let is_missing = |pack: &PackId| state.dead.contains(pack) || !is_known(*pack);
        packs.iter().filter(|pack| is_missing(pack)).copied().collect()
    }

    /// How far it has followed the database. A thread holds this while it brings the index up to
    /// date.
    pub(crate) fn followed(&self) -> MutexGuard<'_, Option<Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sealed pack; one that is known, or dead, is left alone. Its footer is cached, too.
    ///
    /// # Panics
    /// When the id is 0 or too large: such a pack cannot exist.
    pub fn add_pack(&self, id: PackId, footer: &Arc<Footer>) {
        assert!(id.0 != 0 && id <= PackId::MAX, "{id:?} is no pack id");
        {
            let mut state = self.shared.write();
            if state.dead.contains(&id) || state.runs.iter().any(|run| run.covers(id)) {
                return;
            }
            state.recent.add(id, footer, &self.shared.prefixes);
        }
        self.footers().insert(id, footer.clone());
    }

    /// Records dead packs: no lookup that begins after this returns them.
    pub fn remove_packs(&self, packs: &[PackId]) {
        {
            let mut state = self.shared.write();
            Arc::make_mut(&mut state.dead).extend(packs);
            packs.iter().for_each(|pack| state.recent.remove(*pack));
        }
        packs.iter().for_each(|pack| self.footers().forget(*pack));
    }

    /// The locality cache: readers take footers from it.
    pub fn footers(&self) -> &Footers {
        &self.shared.footers
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> IndexMemory {
        let state = self.shared.read();
        IndexMemory {
            filter: state.runs.iter().map(|run| run.filter.memory()).sum(),
            fences: state.runs.iter().map(|run| (run.pages() + run.packs.len()) * 8).sum(),
            recent: state.recent.memory(),
            locality: self.footers().memory(),
        }
    }

    /// Its contents and counts.
    pub fn stats(&self) -> IndexStats {
        let (state, counts) = (self.shared.read(), &self.shared.counts);
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        IndexStats {
            runs: state.runs.len(),
            run_entries: state.runs.iter().map(|run| run.entries).sum(),
            recent_entries: state.recent.places.len(),
            probes: get(&counts.probe.probes),
            false_probes: get(&counts.probe.false_probes),
            footers_loaded: self.footers().loads(),
            footers_unreadable: self.footers().unreadable(),
            flushes: get(&counts.flushes),
            merges: get(&counts.merges),
            merges_failed: get(&counts.merges_failed),
            runs_dropped: get(&counts.runs_dropped),
        }
    }
}

/// The place as runs and tables keep it, unless its pack is dead.
fn alive(place: u64, dead: &PackSet) -> Option<Place> {
    let place = Place::from_u64(place);
    (dead.is_empty() || !dead.contains(&place.pack)).then_some(place)
}
