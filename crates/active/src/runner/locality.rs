//! Which splits of a job lie on this host, where the packs' engine says who holds what; and whether what is made of them can.
//!
//! A split's score is the part of its bytes of which this host holds the pack. It is estimated from samples spread over the split: neighbouring
//! chunks nearly always lie in one pack. Engines that do not know (directories, S3) are asked once, and nothing else is looked at.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_format::{Entry, PackId, Root};
use outrigger_store::backend::{is_same_host, place_on};
use outrigger_store::meta::jobs::{JobId, NewSplit};
use outrigger_store::ops::whereabouts::Hosts;
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result, Store};

/// Chunks of a split that are looked up, about.
const SAMPLES: u64 = 16;
/// Splits that are looked at; of a job with more, the rest is taken as it comes.
const SPLITS_MAX: usize = 10_000;
/// How long a job may be kept waiting for this.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// The splits of which this host holds more than half, rising, as far as that can be found out soon: it is only an order, so what fails or takes long is left
/// out, and these splits are taken as they come.
pub(super) fn local_splits(store: &Arc<Store>, job: JobId, roots: &[Arc<Root>]) -> Vec<u64> {
    let host = crate::node::host();
    let Ok(splits) = store.jobs().and_then(|jobs| jobs.splits(job)) else { return Vec::new() };
    // What another host has just stored would be nowhere, else.
    if store.is_shared() && store.refresh_index().is_err() {
        return Vec::new();
    }
    let mut look = Look { store, host: &host, hosts: Hosts::default(), until: Instant::now() + LOOK_MAX };
    let mut local = Vec::new();
    for split in splits.iter().take(SPLITS_MAX) {
        let Some(root) = split.range.input.and_then(|input| roots.get(input as usize)) else { continue };
        match look.has_most(root, split.range) {
            Ok(true) => local.push(split.number),
            Ok(false) => {}
            // The engine does not know, or time is up.
            Err(error) if error.kind() == ErrorKind::Cancelled => break,
            Err(_) => {}
        }
    }
    local
}

/// What the packs' engine calls this host, if it holds packs and who makes one can choose: so that what comes of a split lies where it was made, and the next program finds it there. It is
/// an advantage, no more: where that cannot be found out, packs lie anywhere.
pub(super) fn own_place(store: &Store) -> Option<Arc<str>> {
    place_on(&*store.backend, &crate::node::host()).ok().map(Arc::from)
}

struct Look<'a> {
    store: &'a Store,
    host: &'a str,
    /// Who holds packs that were asked for.
    hosts: Hosts,
    until: Instant,
}

impl Look<'_> {
    /// Whether this host has more than half of a split.
    fn has_most(&mut self, root: &Root, split: NewSplit) -> Result<bool> {
        let reader = Reader::new(self.store);
        let (mut bytes, mut bytes_here) = (0u64, 0u64);
        let step = (split.to.saturating_sub(split.from) / SAMPLES).max(1);
        let mut at = split.from;
        while at < split.to {
            if Instant::now() >= self.until {
                return Err(Error::new(ErrorKind::Cancelled, "that took long enough"));
            }
            reader.entries(root, at, at + 1, &mut |_, entry| {
                if let Entry::Chunk { fingerprint, len } = entry
                    && let Some(place) = self.store.index.resolve(&fingerprint, |_| true)?
                {
                    bytes += u64::from(len);
                    bytes_here += if self.has(place.pack)? { u64::from(len) } else { 0 };
                }
                Ok(false)
            })?;
            at += step;
        }
        Ok(bytes_here * 2 > bytes)
    }

    fn has(&mut self, pack: PackId) -> Result<bool> {
        // The first one is who reads are sent to.
        match self.hosts.of(self.store, pack)?.first() {
            Some(first) => Ok(is_same_host(first, self.host)),
            None => Err(Error::new(ErrorKind::Cancelled, "this engine does not know who holds what")),
        }
    }
}
