//! Stage dedup: is a chunk stored already, on its way, or new?
//!
//! Chunks of this session that are not yet in a sealed pack are in the pending table, by the number of their frame; it
//! holds a few packs' worth. Everything else is asked of the index, a batch at a time. Of a file that is not deduplicated neither is asked: all
//! of its chunks are new, though others may find them later. Only hits in packs that the session
//! may rely on count, and it remembers that it relies on them until the files are committed (rule 4 of
//! `docs/decisions/0003-reclaim-protocol.md`).

use std::sync::{Arc, Mutex};

use outrigger_format::{Fingerprint, FingerprintMap};

use super::ingest::ChunkRef;
use crate::error::Result;
use crate::index::Index;
use crate::session::Session;

/// What is known of a chunk.
pub(super) enum Known {
    /// In a sealed pack.
    Stored,
    /// In a frame of this session that is not durable yet.
    Pending(u64),
    /// Nowhere.
    New,
}

pub(super) type PendingTable = Arc<Mutex<FingerprintMap<u64>>>;

pub(super) struct Dedup {
    pub pending: PendingTable,
    index: Arc<Index>,
    session: Arc<Session>,
    /// For each chunk of the batch: which of the questions below is about it, if any.
    asked: Vec<Option<usize>>,
    fingerprints: Vec<Fingerprint>,
    places: Vec<Option<outrigger_format::Place>>,
    was_pending: Vec<Option<u64>>,
}

impl Dedup {
    pub fn new(index: Arc<Index>, session: Arc<Session>) -> Self {
        let pending = PendingTable::default();
        Self {
            pending,
            index,
            session,
            asked: Vec::new(),
            fingerprints: Vec::new(),
            places: Vec::new(),
            was_pending: Vec::new(),
        }
    }

    /// Asks the index for a whole batch: runs of chunks, and whether they are to be deduplicated. `known` then answers chunk by chunk. `change` is
    /// the number of the last change that these chunks are for.
    pub fn resolve<'a>(
        &mut self,
        runs: impl Iterator<Item = (&'a [ChunkRef], bool)>,
        change: u64,
    ) -> Result<()> {
        self.asked.clear();
        self.fingerprints.clear();
        for (chunks, dedup) in runs {
            for chunk in chunks {
                self.asked.push(dedup.then_some(self.fingerprints.len()));
                if dedup {
                    self.fingerprints.push(chunk.fingerprint);
                }
            }
        }
        // Pending first: a sealed pack enters the index before it leaves the pending table, so a chunk that is in neither
        // when asked in this order is new.
        let pending = self.pending.lock().expect("no panic while held");
        self.was_pending.clear();
        self.was_pending
            .extend(self.fingerprints.iter().map(|fingerprint| pending.get(fingerprint).copied()));
        drop(pending);
        self.places.clear();
        self.session.rely(change, |usable| {
            self.index.resolve_batch(&self.fingerprints, usable, &mut self.places)?;
            Ok(self.places.iter().flatten().map(|place| place.pack))
        })
    }

    /// What is known of chunk `at` of the batch given to `resolve`. Of one that is not deduplicated nothing is.
    pub fn known(&self, at: usize) -> Known {
        let Some(at) = self.asked[at] else { return Known::New };
        if self.places[at].is_some() {
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
