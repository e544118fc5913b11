//! Stage dedup: is a chunk stored already, on its way, or new?
//!
//! The pending table has the chunks of this session that are not yet in a sealed pack, by the
//! number of their frame; it holds a few packs' worth. If a device has found a chunk in the table
//! cache, its pack is known, provided that the session may rely on it. The index answers for all
//! other chunks, a batch at a time. The chunks of a file that is not deduplicated are not looked
//! up: all are new, though others may find them later.
//!
//! Only hits in packs that the session may rely on count. The session remembers that it relies on
//! them until the files are committed (rule 4 of `docs/decisions/0003-reclaim-protocol.md`). Packs
//! of other clients count only as far as this host has compared them with their data (`verified/`).
//! The worker that names a batch has that done before the batch's turn comes, in
//! [`Verification::compare`].

use std::sync::{Arc, Mutex};

use outrigger_format::{Domain, Entry, Fingerprint, FingerprintMap, PackId, Place, Root};
use outrigger_offload::table::PackPlace;

use super::ingest::ChunkRef;
use crate::error::{Error, ErrorKind, Result};
use crate::index::Index;
use crate::packs::PackReader;
use crate::session::Session;
use crate::store::Store;
use crate::table_cache::{Sharing, TableCache};
use crate::verified::Verified;

/// The state of a chunk.
pub(super) enum Known {
    /// In a sealed pack.
    Stored,
    /// In a frame of this session that is not durable yet.
    Pending(u64),
    /// Nowhere.
    New,
}

pub(super) type PendingTable = Arc<Mutex<FingerprintMap<u64>>>;

/// Answers whether other clients' packs may be relied on.
#[derive(Clone)]
pub(crate) struct Verification {
    pub index: Arc<Index>,
    pub packs: Arc<PackReader>,
    verified: Option<Arc<Verified>>,
}

impl Verification {
    /// Uses the index, packs and verification of `store`.
    pub fn of(store: &Store) -> Self {
        let (index, packs) = (Arc::clone(&store.index), Arc::clone(&store.packs));
        Self { index, packs, verified: store.verified().cloned() }
    }

    /// Compares other clients' packs, as far as the index finds `fingerprints` in them, with their
    /// data, if that was not done yet.
    pub fn compare(&self, fingerprints: &mut dyn Iterator<Item = Fingerprint>) -> Result<()> {
        let Some(verified) = &self.verified else { return Ok(()) };
        verified.compare(&self.packs, &self.index, &fingerprints.collect::<Vec<_>>())
    }

    /// False if a lookup should skip a pack, because it is corrupt or cannot be read.
    pub fn is_trusted(&self, pack: PackId) -> bool {
        self.verified.as_ref().is_none_or(|verified| !verified.is_ruled_out(pack))
    }

    /// True if every chunk of a pack counts.
    pub fn is_whole(&self, pack: PackId) -> bool {
        self.verified.as_ref().is_none_or(|verified| verified.is_whole(pack))
    }

    /// True if the chunk that the index found at `place` counts.
    pub fn vouches(&self, place: Place) -> Result<bool> {
        self.verified.as_ref().map_or(Ok(true), |verified| verified.vouches(self.index.footers(), place))
    }
}

pub(super) struct Dedup {
    pub pending: PendingTable,
    verification: Verification,
    index: Arc<Index>,
    session: Arc<Session>,
    table_cache: Option<Arc<TableCache>>,
    /// For each chunk of the batch: its question below, if it has one.
    asked: Vec<Option<usize>>,
    fingerprints: Vec<Fingerprint>,
    /// The pack in which the table cache has it.
    hot: Vec<Option<PackId>>,
    packs: Vec<Option<PackId>>,
    was_pending: Vec<Option<u64>>,
    open: Open,
    found: Vec<(Fingerprint, PackId)>,
}

/// Questions that the table cache does not answer.
#[derive(Default)]
struct Open {
    at: Vec<usize>,
    fingerprints: Vec<Fingerprint>,
    places: Vec<Option<Place>>,
}

impl Dedup {
    pub fn new(verification: Verification, session: Arc<Session>) -> Self {
        Self {
            pending: PendingTable::default(),
            index: Arc::clone(&verification.index),
            verification,
            session,
            table_cache: None,
            asked: Vec::new(),
            fingerprints: Vec::new(),
            hot: Vec::new(),
            packs: Vec::new(),
            was_pending: Vec::new(),
            open: Open::default(),
            found: Vec::new(),
        }
    }

    /// From now on believes what devices find in this table cache, within the rules of
    /// `table_cache/mod.rs`.
    pub fn use_table_cache(&mut self, table_cache: Option<Arc<TableCache>>) {
        self.table_cache = table_cache;
    }

    /// Looks up a whole batch: runs of chunks, each with a flag for deduplication. `known` then
    /// answers chunk by chunk. `change` is the number of the last change that these chunks are for.
    pub fn resolve<'a>(
        &mut self,
        runs: impl Iterator<Item = (&'a [ChunkRef], bool)>,
        change: u64,
    ) -> Result<()> {
        self.asked.clear();
        self.fingerprints.clear();
        self.hot.clear();
        for (chunks, dedup) in runs {
            for chunk in chunks {
                self.asked.push(dedup.then_some(self.fingerprints.len()));
                if dedup {
                    self.fingerprints.push(chunk.fingerprint);
                    self.hot.push(chunk.hot.map(|number| PackPlace::from_number(number.get()).pack));
                }
            }
        }
        // Pending first: a sealed pack enters the index before it leaves the pending table, so a
        // chunk that is in neither when asked in this order is new.
        let pending = self.pending.lock().expect("no panic while held");
        self.was_pending.clear();
        self.was_pending
            .extend(self.fingerprints.iter().map(|fingerprint| pending.get(fingerprint).copied()));
        drop(pending);
        let Self { index, verification, fingerprints, hot, packs, open, .. } = self;
        self.session.rely(change, |usable| {
            let usable = |pack| usable(pack) && verification.is_trusted(pack);
            packs.clear();
            let counts = |pack: &PackId| usable(*pack) && verification.is_whole(*pack);
            packs.extend(hot.iter().map(|pack| pack.filter(counts)));
            open.at.clear();
            open.at.extend((0..packs.len()).filter(|&at| packs[at].is_none()));
            if open.at.len() == packs.len() {
                // The table cache answered none, so all are looked up directly.
                index.resolve_batch(fingerprints, usable, &mut open.places)?;
            } else {
                open.fingerprints.clear();
                open.fingerprints.extend(open.at.iter().map(|&at| fingerprints[at]));
                index.resolve_batch(&open.fingerprints, usable, &mut open.places)?;
            }
            for (&at, place) in open.at.iter().zip(&open.places) {
                packs[at] = match place {
                    Some(place) if verification.vouches(*place)? => Some(place.pack),
                    _ => None,
                };
            }
            Ok(packs.iter().flatten().copied())
        })?;
        self.count()
    }

    /// Tells the table cache which chunks were found, and where.
    fn count(&mut self) -> Result<()> {
        let Some(cache) = &self.table_cache else { return Ok(()) };
        self.found.clear();
        let mut relied = 0;
        for ((fingerprint, pack), hot) in self.fingerprints.iter().zip(&self.packs).zip(&self.hot) {
            let Some(pack) = *pack else { continue };
            self.found.push((*fingerprint, pack));
            if *hot == Some(pack) {
                relied += 1;
                if cache.sharing() == Sharing::Shared {
                    self.index.footers().get(pack)?;
                }
            }
        }
        cache.note_found(&self.found, relied, self.session.generation());
        Ok(())
    }

    /// Fails unless a stored content is of this domain: all of it is, so its first chunk tells.
    ///
    /// # Errors
    /// `Invalid`; those of the index.
    pub fn require_domain(&self, root: &Root, domain: Domain) -> Result<()> {
        let first = match root {
            Root::Empty => None,
            Root::Inline(entries) => entries.iter().find_map(|entry| match entry {
                Entry::Chunk { fingerprint, .. } => Some(*fingerprint),
                Entry::Hole { .. } => None,
            }),
            Root::Tree { fingerprint, .. } => Some(*fingerprint),
        };
        let Some(first) = first else { return Ok(()) };
        // Inline chunks are in no domain.
        let found = match self.index.resolve(&first, |_| true)? {
            Some(place) => self.verification.packs.domain_of(place.pack)?,
            None => Domain::COMMON,
        };
        if found == domain {
            return Ok(());
        }
        let why =
            "contents of directories with different keys cannot be joined or shared: copy them by reading";
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// The state of chunk `at` of the batch given to `resolve`; [`Known::New`] if it is not
    /// deduplicated.
    pub fn known(&self, at: usize) -> Known {
        let Some(at) = self.asked[at] else { return Known::New };
        if self.packs[at].is_some() {
            return Known::Stored;
        }
        if let Some(frame) = self.was_pending[at] {
            return Known::Pending(frame);
        }
        // An earlier chunk of the same batch may have become pending since.
        match self.pending.lock().expect("no panic while held").get(&self.fingerprints[at]) {
            Some(&frame) => Known::Pending(frame),
            None => Known::New,
        }
    }
}
