//! Locality, if the packs' engine knows which host holds which pack: which splits of a job lie on
//! this host, whether outputs can be placed here, and how much of the programs' input lay here.
//!
//! A split's score is the part of its bytes whose packs this host holds. It is estimated from
//! samples spread over the split: neighbouring chunks nearly always lie in one pack. Engines that
//! do not know (directories, S3) are asked once, and no sample is taken.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::{Entry, PackId, Root};
use outrigger_store::backend::{is_same_host, place_on};
use outrigger_store::host;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::read::whereabouts::{Hosts, whereabouts_while};
use outrigger_store::read::{Reader, Told};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::delay_scheduling::{Far, Placed};
use super::launch::Inputs;
use crate::job::spec::Spec;
use crate::progress::Counters;

/// Chunks of a split that are sampled, about.
const SAMPLES: u64 = 16;
/// Splits that are sampled; the rest of a larger job is taken in order.
const SPLITS_MAX: usize = 10_000;
/// How long a job may wait for this.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// The splits of which a host holds more than half, as far as that can be found out soon. It is
/// only a preference: splits whose place is unknown or takes too long are taken in order.
pub(super) fn placed(store: &Arc<Store>, job: JobId, spec: &Spec, roots: &[Arc<Root>]) -> Placed {
    let host = host::name();
    let Ok(splits) = store.jobs().splits(job) else { return Placed::default() };
    // What another host has just stored would be nowhere, else.
    if store.is_shared() && store.follow_packs().is_err() {
        return Placed::default();
    }
    let mut look = Look { store, hosts: Hosts::default(), until: Instant::now() + LOOK_MAX };
    let (mut local, mut far) = (Vec::new(), Vec::new());
    for split in splits.iter().take(SPLITS_MAX) {
        let own = split.range.input.map(|input| vec![(input, split.range.from, split.range.to)]);
        let held = spec.by_host.get(split.number as usize).map(|held| held.ranges.clone());
        let Some(ranges) = held.or(own) else { continue };
        match look.most(roots, &ranges) {
            Ok(Some(most)) if is_same_host(&most, &host) => local.push(split.number),
            Ok(Some(most)) => {
                let bytes = ranges.iter().map(|(_, from, to)| to.saturating_sub(*from)).sum();
                far.push(Far { split: split.number, host: most, bytes });
            }
            Ok(None) => {}
            // The engine does not know, or the time is over.
            Err(error) if error.kind() == ErrorKind::Cancelled => break,
            Err(_) => {}
        }
    }
    // Not all splits were sampled: a claim would have to name each of the others.
    if splits.len() > SPLITS_MAX {
        far.clear();
    }
    Placed::new(local, far, splits.len() as u64)
}

/// This host's name in the packs' engine, if the engine holds packs on hosts and lets writers
/// choose. Then a split's output lies where it was made, and the next program finds it there. It is
/// only an optimisation: otherwise packs lie anywhere.
pub(super) fn own_place(store: &Store) -> Option<Arc<str>> {
    place_on(&*store.backend, &host::name()).ok().map(Arc::from)
}

/// Where the inputs of a job lie: on the hosts that reads of them are sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nearby {
    /// Bytes of inputs.
    pub bytes: u64,
    /// Bytes of sampled inputs: all of them, if that did not take long.
    pub bytes_looked_at: u64,
    /// Sampled bytes on this host.
    pub bytes_here: u64,
    /// Sampled bytes on hosts that have an agent.
    pub bytes_with_agents: u64,
}

/// Where the inputs of a job lie; `None` if the packs' engine does not know, or none lies in a
/// pack.
///
/// # Errors
/// Those of the store and of the packs' engine.
pub fn nearby(store: &Store, job: JobId, spec: &Spec) -> Result<Option<Nearby>> {
    let (inputs, until) =
        (Inputs::load(store, job, spec, store.jobs().inputs(job)?)?, Instant::now() + LOOK_MAX);
    let agents = crate::node::nodes(store)?;
    if store.is_shared() {
        store.follow_packs()?;
    }
    let found = whereabouts_while(store, inputs.roots.iter().map(|root| &**root), &|said| {
        let engine_knows = said.bytes_unknown == 0 || !said.hosts.is_empty();
        engine_knows && Instant::now() < until
    })?;
    if found.hosts.is_empty() {
        return Ok(None);
    }
    let on = |is: &dyn Fn(&str) -> bool| {
        found.hosts.iter().filter(|(host, _)| is(host)).map(|(_, share)| share.bytes_first).sum()
    };
    let own = host::name();
    Ok(Some(Nearby {
        bytes: inputs.bytes(),
        bytes_looked_at: found.bytes,
        bytes_here: on(&|host| is_same_host(host, &own)),
        bytes_with_agents: on(&|host| agents.iter().any(|agent| is_same_host(host, &agent.host))),
    }))
}

/// Tells which packs lie on this host, for all attempts of a runner: the engine is asked once a
/// pack.
pub(crate) struct Tally {
    store: Arc<Store>,
    host: String,
    hosts: Mutex<Hosts>,
    /// The engine does not know.
    is_silent: AtomicBool,
    counters: Arc<Counters>,
}

impl Tally {
    pub fn new(store: &Arc<Store>, counters: &Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            host: host::name(),
            hosts: Mutex::default(),
            is_silent: AtomicBool::new(false),
            counters: Arc::clone(counters),
        })
    }

    /// `None` if that is unknown.
    fn is_here(&self, pack: PackId) -> Option<bool> {
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let mut hosts = self.hosts.lock().expect("no panic while held");
        // This only counts: an engine that does not answer now must not fail a read that has
        // succeeded.
        let first = hosts.of(&self.store, pack).ok()?.first().map(|first| is_same_host(first, &self.host));
        self.is_silent.store(first.is_none(), Ordering::Relaxed);
        first
    }
}

/// Bytes that were read for one attempt.
pub(crate) struct Seen {
    tally: Arc<Tally>,
    here: AtomicU64,
    elsewhere: AtomicU64,
}

impl Seen {
    pub fn new(tally: &Arc<Tally>) -> Arc<Self> {
        Arc::new(Self { tally: Arc::clone(tally), here: AtomicU64::new(0), elsewhere: AtomicU64::new(0) })
    }

    /// A callback that counts each chunk.
    pub fn counter(self: &Arc<Self>) -> Arc<Told> {
        let seen = Arc::clone(self);
        Arc::new(move |pack, len| {
            let Some(is_here) = pack.and_then(|pack| seen.tally.is_here(pack)) else { return };
            let all = &seen.tally.counters;
            let (own, all) =
                if is_here { (&seen.here, &all.bytes_here) } else { (&seen.elsewhere, &all.bytes_elsewhere) };
            Counters::add(own, len);
            Counters::add(all, len);
        })
    }

    /// Bytes from packs on this host, and from others; `None` if that is unknown.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let (here, elsewhere) = (self.here.load(Ordering::Relaxed), self.elsewhere.load(Ordering::Relaxed));
        (here + elsewhere > 0).then_some((here, elsewhere))
    }
}

struct Look<'a> {
    store: &'a Store,
    /// Holders of the packs that were asked for.
    hosts: Hosts,
    until: Instant,
}

impl Look<'_> {
    /// The host that has more than half of a split, which is these ranges of inputs.
    fn most(&mut self, roots: &[Arc<Root>], ranges: &[(u32, u64, u64)]) -> Result<Option<String>> {
        let reader = Reader::new(self.store);
        let (mut bytes, mut held) = (0u64, BTreeMap::<String, u64>::new());
        let all: u64 = ranges.iter().map(|(_, from, to)| to.saturating_sub(*from)).sum();
        let step = (all / SAMPLES).max(1);
        // Offset of the next sample within a range.
        let mut into = 0;
        for &(input, from, to) in ranges {
            let Some(root) = roots.get(input as usize) else { continue };
            let mut at = from + into;
            while at < to {
                if Instant::now() >= self.until {
                    return Err(Error::new(ErrorKind::Cancelled, "that took long enough"));
                }
                reader.entries(root, at, at + 1, &mut |_, entry| {
                    if let Entry::Chunk { fingerprint, len } = entry
                        && let Some(place) = self.store.index.resolve(&fingerprint, |_| true)?
                    {
                        bytes += u64::from(len);
                        *held.entry(self.first(place.pack)?).or_default() += u64::from(len);
                    }
                    Ok(false)
                })?;
                at += step;
            }
            into = at - to;
        }
        Ok(held.into_iter().find(|(_, own)| own * 2 > bytes).map(|(host, _)| host))
    }

    /// The host that serves reads of a pack.
    fn first(&mut self, pack: PackId) -> Result<String> {
        match self.hosts.of(self.store, pack)?.first() {
            Some(first) => Ok(first.clone()),
            None => Err(Error::new(ErrorKind::Cancelled, "this engine does not know who holds what")),
        }
    }
}
