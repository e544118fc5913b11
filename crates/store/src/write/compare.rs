//! In stores whose fingerprints prove nothing, compares bytes before a match counts.
//!
//! Anybody can make two chunks with the same MD5 or SHA-1 fingerprint, and such a store would
//! return the first for the second. So it compares every chunk and manifest node with whatever has
//! its fingerprint already. It compares the stored bytes or, if those are still on their way and
//! cannot be read, the BLAKE3 of both. Different bytes under one fingerprint stop the writer. This
//! also holds for chunks that are not deduplicated: two copies of one fingerprint must be equal, as
//! a reader may find either.
//!
//! Chunks that another process has in flight cannot be compared. So such a store has one writer at
//! a time: the lock file `sessions/one-writer` makes others wait. (Collector and repair only copy
//! existing chunks.) Stores with trusted fingerprints pay nothing.

use std::fs::File;
use std::sync::{Arc, Mutex};

use outrigger_format::{Fingerprint, FingerprintKind, FingerprintMap};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::index::Index;
use crate::read::Nodes;
use crate::read::manifest::NodeSource;
use crate::store::Store;

/// See the module.
#[derive(Default)]
pub(super) struct Compare(Option<Untrusted>);

struct Untrusted {
    kind: FingerprintKind,
    index: Arc<Index>,
    stored: Nodes,
    /// Chunks and nodes that are not in a sealed pack yet, with their BLAKE3.
    pending: Mutex<FingerprintMap<Fingerprint>>,
    _alone: File,
}

impl Compare {
    /// Makes it for a writer of `store`. Waits until no other process writes, if the store's
    /// fingerprints are not trusted.
    ///
    /// # Errors
    /// When the lock cannot be taken, or the index not be updated.
    pub fn new(store: &Store) -> Result<Self> {
        let kind = store.config.fingerprint;
        if kind.is_trusted() {
            return Ok(Self(None));
        }
        let path = store.locks_dir().join("one-writer");
        let context = || format!("cannot lock {}", path.display());
        let alone = File::options().create(true).truncate(false).write(true).open(&path).context(context)?;
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).context(context)?;
        // The comparison needs what others have written meanwhile.
        store.refresh_index()?;
        let (index, stored) = (Arc::clone(&store.index), Nodes::new(store));
        Ok(Self(Some(Untrusted { kind, index, stored, pending: Mutex::default(), _alone: alone })))
    }

    /// Fails when other bytes than `bytes` have this fingerprint.
    ///
    /// # Errors
    /// `Invalid`, naming the fingerprint function; those of reading the stored bytes.
    pub fn check(&self, fingerprint: &Fingerprint, bytes: &[u8]) -> Result<()> {
        let Some(untrusted) = &self.0 else { return Ok(()) };
        // Pending first: a sealed pack enters the index before its chunks leave the table.
        let pending = untrusted.pending.lock().expect("no panic while held").get(fingerprint).copied();
        let same = match pending {
            Some(known) => known == trusted(bytes),
            None => untrusted.is_stored_as(fingerprint, bytes)?,
        };
        if same {
            return Ok(());
        }
        let kind = untrusted.kind.name();
        let why = format!(
            "two different chunks have the {kind} fingerprint {fingerprint}; a store with {kind} cannot keep both: \
             use blake3"
        );
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// Records bytes that are on their way into a pack.
    pub fn note(&self, fingerprint: &Fingerprint, bytes: &[u8]) {
        if let Some(untrusted) = &self.0 {
            let mut pending = untrusted.pending.lock().expect("no panic while held");
            pending.insert(*fingerprint, trusted(bytes));
        }
    }

    /// Forgets chunks that are now in a sealed pack, and in the index.
    pub fn sealed(&self, fingerprints: &[Fingerprint]) {
        if let Some(untrusted) = &self.0 {
            let mut pending = untrusted.pending.lock().expect("no panic while held");
            for fingerprint in fingerprints {
                pending.remove(fingerprint);
            }
        }
    }
}

impl Untrusted {
    /// True if `bytes` are stored under `fingerprint`, or nothing is.
    fn is_stored_as(&self, fingerprint: &Fingerprint, bytes: &[u8]) -> Result<bool> {
        if self.index.resolve(fingerprint, |_| true)?.is_none() {
            return Ok(true);
        }
        match self.stored.read_node(fingerprint) {
            Ok(stored) => Ok(stored == bytes),
            // The index was outdated. It is up to date now, and the pack is gone.
            Err(_) if self.index.resolve(fingerprint, |_| true)?.is_none() => Ok(true),
            Err(error) => Err(error.context("comparing with what is stored")),
        }
    }
}

/// A fingerprint that proves its bytes.
fn trusted(bytes: &[u8]) -> Fingerprint {
    outrigger_offload::hash(FingerprintKind::Blake3, bytes)
}
