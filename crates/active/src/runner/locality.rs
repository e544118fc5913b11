//! Which splits of a job lie on this host, where the packs' engine says who holds what.
//!
//! A split's score is the part of its bytes of which this host holds the pack. It is estimated from samples spread over the split: neighbouring
//! chunks nearly always lie in one pack. Engines that do not know (directories, S3) are asked once, and nothing else is looked at.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_format::{Entry, PackId, Root};
use outrigger_store::meta::jobs::{JobId, NewSplit};
use outrigger_store::read::Reader;
use outrigger_store::{Result, Store};

/// Chunks of a split that are looked up, about.
const SAMPLES: u64 = 16;
/// Splits that are looked at; of a job with more, the rest is taken as it comes.
const SPLITS_MAX: usize = 10_000;

/// The splits of which this host holds more than half, rising.
///
/// # Errors
/// Those of the database and of reading manifests.
pub(super) fn local_splits(store: &Arc<Store>, job: JobId, roots: &[Arc<Root>]) -> Result<Vec<u64>> {
    let Some(pack) = store.committed_packs()?.first().copied() else { return Ok(Vec::new()) };
    if store.backend.locate(pack)?.is_empty() {
        return Ok(Vec::new());
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let splits: Vec<NewSplit> =
        store.jobs()?.splits(job)?.into_iter().take(SPLITS_MAX).map(|split| split.range).collect();
    let locate = |pack| store.backend.locate(pack);
    splits_on(store, &splits, roots, &host, &locate)
}

/// As [`local_splits`], for `host`, by what `locate` says.
///
/// # Errors
/// Those of `locate` and of reading manifests.
fn splits_on(
    store: &Store,
    splits: &[NewSplit],
    roots: &[Arc<Root>],
    host: &str,
    locate: &dyn Fn(PackId) -> Result<Vec<String>>,
) -> Result<Vec<u64>> {
    let mut known: HashMap<PackId, bool> = HashMap::new();
    let mut here = |pack: PackId| -> Result<bool> {
        if let Some(here) = known.get(&pack) {
            return Ok(*here);
        }
        // The first one is who reads are sent to.
        let first = locate(pack)?.into_iter().next();
        let is = first.is_some_and(|first| is_same_host(&first, host));
        known.insert(pack, is);
        Ok(is)
    };
    let reader = Reader::new(store);
    let mut local = Vec::new();
    for (number, split) in splits.iter().enumerate() {
        let Some(root) = split.input.and_then(|input| roots.get(input as usize)) else { continue };
        let (mut bytes, mut bytes_here) = (0u64, 0u64);
        let step = (split.to.saturating_sub(split.from) / SAMPLES).max(1);
        let mut at = split.from;
        while at < split.to {
            reader.entries(root, at, at + 1, &mut |_, entry| {
                if let Entry::Chunk { fingerprint, len } = entry
                    && let Some(place) = store.index.resolve(&fingerprint, |_| true)?
                {
                    bytes += u64::from(len);
                    bytes_here += if here(place.pack)? { u64::from(len) } else { 0 };
                }
                Ok(false)
            })?;
            at += step;
        }
        if bytes_here * 2 > bytes {
            local.push(number as u64);
        }
    }
    Ok(local)
}

/// Hosts are named with or without their domains.
fn is_same_host(one: &str, other: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    one == other || (short(one) == short(other) && !one.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::is_same_host;

    #[test]
    fn hosts_are_known_by_either_name() {
        assert!(is_same_host("osd1.example.org", "osd1") && is_same_host("a", "a"));
        assert!(!is_same_host("osd1", "osd2") && !is_same_host("10.0.0.1", "10.0.0.2"));
    }
}
