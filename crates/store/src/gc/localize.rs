//! Gathering: brings the data of a file or a tree into packs that lie on one host.
//!
//! It is a collector's run (`mod.rs`) that also empties packs that lie elsewhere and hold some of
//! that data. It copies as always what is in use, but the tree's chunks go into packs of their own,
//! with ids chosen so that these lie on the host. The other chunks go to any pack. So contents and
//! versions do not change, writers and readers go on meanwhile, and every rule is the collector's.
//! A run that is killed loses at most the group that it was copying.
//!
//! Manifests are small and stay where they are. Chunks that other files share with the tree move
//! with it. Inline chunks are left alone until they are packed.
//!
//! Like recompressing, a run takes only a part of the packs. If packs cannot be made on the host,
//! runs would go on for ever. So gathering ends after [`IN_VAIN_MAX`] runs that left no less data
//! elsewhere.

use std::collections::HashSet;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{Entry, Fingerprint, PackId};

use super::bits::Bits;
use super::recompress::{live_data, unless_destroyed};
use super::{GcOptions, GcProgress, GcReport, collect};
use crate::backend::place_on;
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, PackRow};
use crate::read::Nodes;
use crate::read::manifest::walk_entries;
use crate::read::whereabouts::{Hosts, Whereabouts, whereabouts};
use crate::store::Store;
use crate::tree::{StorePath, listing, require};

/// Which data is gathered, and where.
#[derive(Clone, Debug)]
pub struct Localize {
    /// A file, or a directory with all below it.
    pub path: StorePath,
    /// The host, by the name that the engine has for it ([`place_on`]).
    pub host: Arc<str>,
    /// Raw bytes a second at most; 0: as fast as it goes.
    pub bytes_per_sec: u64,
    /// Packs that a run takes at most; 0: an eighth of them, at least 16.
    pub packs_max: usize,
}

impl Localize {
    /// Gathers the data at `path` on `host`; without `host`, on the host that is the first place of
    /// most of it.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` where packs cannot be placed, there is no such host, or none has any
    /// of it.
    pub fn new(store: &Store, path: &StorePath, host: Option<&str>) -> Result<Self> {
        // With several tiers no host can be chosen for good: the tier that chooses may not be the
        // one where new packs go.
        if store.backend.tiers().is_some() || store.backend.hosts()?.is_empty() {
            let why = match &store.config.packs {
                None => {
                    let packs = store.dir().join("packs");
                    format!(
                        "all data of this store lies in {}, on this host: there is nothing to gather, and nothing was moved",
                        packs.display()
                    )
                }
                Some(place) => format!(
                    "the packs lie at {place}, and on which hosts that keeps them is not for their writer to choose: nothing was moved"
                ),
            };
            let why = format!("{why}; `localize` is for stores whose packs lie in a Ceph pool (rados://)");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let named = match host {
            Some(host) => host.to_owned(),
            None => {
                let has =
                    where_now(store, path)?.hosts.into_iter().map(|(host, share)| (share.bytes_first, host));
                let all = store.backend.hosts()?.into_iter().next();
                has.max().map(|(_, host)| host).or(all).unwrap_or_else(|| "one host".to_owned())
            }
        };
        let host = place_on(&*store.backend, &named)?.into();
        Ok(Self { path: path.clone(), host, bytes_per_sec: 0, packs_max: 0 })
    }
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalizeReport {
    /// Nothing was changed.
    pub dry_run: bool,
    /// The host.
    pub host: String,
    /// Where the data lay.
    pub before: Whereabouts,
    /// Where it lies now.
    pub after: Whereabouts,
    /// Collector runs.
    pub runs: u64,
    /// Packs that lay elsewhere and were emptied.
    pub packs: u64,
    /// Bytes of the packs that were written.
    pub bytes_copied: u64,
    /// Packs that still lie elsewhere: they could not be read, writers came to rely on them, or no
    /// pack could be made on the host.
    pub packs_left: u64,
    /// Packs that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// Runs without progress after which it gives up.
const IN_VAIN_MAX: u32 = 2;
/// Chunks looked up at once.
const LOOKUPS: usize = 512;

fn where_now(store: &Store, path: &StorePath) -> Result<Whereabouts> {
    whereabouts(store, At::Now, &require(&*store.meta, At::Now, path)?)
}

/// Brings the data of a tree to one host, run by run, until all of it is there. Others may read and
/// write meanwhile.
///
/// # Errors
/// As [`collect`]; what was done before stays done, and another call goes on from there.
pub fn localize(
    store: &Store,
    how: &Localize,
    options: &GcOptions,
    progress: &GcProgress,
) -> Result<LocalizeReport> {
    let options = GcOptions { localize: Some(how.clone()), ..options.clone() };
    let before = where_now(store, &how.path)?;
    let (host, dry_run) = (how.host.to_string(), options.dry_run);
    let mut report = LocalizeReport { dry_run, host, before, ..LocalizeReport::default() };
    let (mut least, mut in_vain) = (u64::MAX, 0);
    loop {
        let run = collect(store, &options, progress)?;
        report.add(&run);
        in_vain = if run.bytes_elsewhere < least { 0 } else { in_vain + 1 };
        least = least.min(run.bytes_elsewhere);
        if run.packs_elsewhere == 0 || options.dry_run || in_vain == IN_VAIN_MAX {
            report.after = where_now(store, &how.path)?;
            report.packs_left = Gather::load(store, how)?.elsewhere.len() as u64;
            return Ok(report);
        }
    }
}

impl LocalizeReport {
    fn add(&mut self, run: &GcReport) {
        self.runs += 1;
        self.packs += run.packs_elsewhere.min(run.packs_buried);
        self.bytes_copied += run.bytes_copied;
        self.unreadable.clone_from(&run.unreadable);
    }
}

/// The data that a run gathers.
pub(super) struct Gather {
    pub host: Arc<str>,
    pub bytes_per_sec: u64,
    /// The chunks of the tree, in the packs in which they count.
    bits: Bits,
    /// Packs that hold some of them, and lie elsewhere.
    elsewhere: HashSet<PackId>,
    /// Raw bytes of chunks in these.
    pub bytes_elsewhere: u64,
    packs_max: usize,
}

impl Gather {
    /// Finds the chunks of the tree as it is now.
    pub fn load(store: &Store, how: &Localize) -> Result<Self> {
        // The tree may have chunks in other clients' packs.
        store.refresh_index()?;
        let mut gather = Self {
            host: Arc::clone(&how.host),
            bytes_per_sec: how.bytes_per_sec,
            bits: Bits::default(),
            elsewhere: HashSet::new(),
            bytes_elsewhere: 0,
            packs_max: how.packs_max,
        };
        let rows: Vec<PackRow> = live_data(&store.meta.packs()?).cloned().collect();
        gather.bits.admit(&rows);
        let (nodes, mut hosts, mut chunks) = (Nodes::new(store), Hosts::default(), Vec::new());
        let mut file = |root: &outrigger_format::Root| {
            let walked = walk_entries(&nodes, root, 0, u64::MAX, &mut |_, entry| {
                if let Entry::Chunk { fingerprint, len } = entry {
                    chunks.push((fingerprint, len));
                }
                if chunks.len() == LOOKUPS {
                    gather.claim(store, &mut hosts, &mut chunks)?;
                }
                Ok(true)
            });
            unless_destroyed(walked)?;
            gather.claim(store, &mut hosts, &mut chunks)
        };
        let top = require(&*store.meta, At::Now, &how.path)?;
        match top.attributes.kind {
            FileKind::File => file(&top.root)?,
            FileKind::Directory => {
                listing::walk::<Error>(&*store.meta, At::Now, top.number, true, &mut |_, entry| match entry
                    .inode
                    .attributes
                    .kind
                {
                    FileKind::File => file(&entry.inode.root),
                    _ => Ok(()),
                })?;
            }
            _ => {}
        }
        Ok(gather)
    }

    fn claim(
        &mut self,
        store: &Store,
        hosts: &mut Hosts,
        chunks: &mut Vec<(Fingerprint, u32)>,
    ) -> Result<()> {
        let names: Vec<Fingerprint> = chunks.iter().map(|(name, _)| *name).collect();
        let mut places = Vec::new();
        store.index.resolve_lowest_batch(&names, |pack| self.bits.has(pack), &mut places)?;
        for (place, (_, len)) in places.into_iter().zip(chunks.drain(..)) {
            let Some(place) = place else { continue };
            let first = hosts.of(store, place.pack)?.first();
            let is_there = first.is_some_and(|first| **first == *self.host);
            if self.bits.set(place)? && !is_there {
                self.elsewhere.insert(place.pack);
                self.bytes_elsewhere += u64::from(len);
            }
        }
        Ok(())
    }

    /// True if the chunk in a slot of a pack is one of the tree's.
    pub fn has(&self, pack: PackId, slot: u32) -> bool {
        self.bits.pack(pack).is_some_and(|bits| bits.get(slot))
    }

    /// The packs among `rows` that lie elsewhere, as many as one run takes.
    pub fn scattered(&self, rows: &[PackRow]) -> Vec<PackId> {
        let all = live_data(rows).count();
        let most = if self.packs_max > 0 { self.packs_max } else { (all / 8).max(16) };
        let scattered = live_data(rows).map(|row| row.id).filter(|id| self.elsewhere.contains(id));
        scattered.take(most).collect()
    }
}
