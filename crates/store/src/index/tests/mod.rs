//! Tests of the index as a whole: against a model, over damaged files, with several handles, with
//! equal prefixes. Here are the packs that they index, kept in memory beside what is known of them.

mod damage;
mod keyed;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outrigger_format::{ChunkKind, Fingerprint, Footer, FooterBuilder, PackId, Place, StoreId};

use super::{Index, IndexOptions};
use crate::error::{Error, ErrorKind};
use crate::keys::Key;

/// SplitMix64: small, seeded, good enough.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A fingerprint that differs with `n`; its prefix is one of `prefixes` many.
fn fingerprint(n: u64, prefixes: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&Rng(n % prefixes).next().to_be_bytes());
    // Behind the 16 bytes that a key makes a prefix of.
    bytes[16..24].copy_from_slice(&n.to_be_bytes());
    Fingerprint(bytes)
}

fn footer(id: PackId, fingerprints: &[Fingerprint]) -> Arc<Footer> {
    let mut builder = FooterBuilder::default();
    for (at, frame) in fingerprints.chunks(50).enumerate() {
        builder.push(64 + at as u32 * 100, ChunkKind::Data, frame);
    }
    Arc::new(builder.finish(id, 1 << 30).0)
}

/// The packs of a store, as its backend and database would know them.
#[derive(Clone, Default)]
struct Packs {
    live: Arc<Mutex<BTreeMap<PackId, Arc<Footer>>>>,
    dead: Arc<Mutex<BTreeSet<PackId>>>,
}

impl Packs {
    fn add(&self, id: u64, fingerprints: &[Fingerprint]) -> Arc<Footer> {
        let footer = footer(PackId(id), fingerprints);
        self.live.lock().unwrap().insert(PackId(id), footer.clone());
        footer
    }

    fn remove(&self, id: PackId) {
        self.live.lock().unwrap().remove(&id);
        self.dead.lock().unwrap().insert(id);
    }

    fn ids(&self) -> Vec<PackId> {
        self.live.lock().unwrap().keys().copied().collect()
    }

    /// Where `fingerprint` lies, lowest pack first.
    fn places(&self, fingerprint: &Fingerprint) -> Vec<Place> {
        let live = self.live.lock().unwrap();
        live.iter()
            .filter_map(|(&pack, footer)| Some(Place { pack, slot: footer.find(fingerprint)? }))
            .collect()
    }

    fn open(&self, dir: Option<&Path>, options: IndexOptions) -> Index {
        let (live, dead) = (self.live.clone(), self.dead.clone());
        let load = move |pack| {
            let footer = live.lock().unwrap().get(&pack).map(|footer| Footer::clone(footer));
            footer.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such pack"))
        };
        Index::open(dir, STORE, options, move |pack| !dead.lock().unwrap().contains(&pack), load).unwrap()
    }

    /// Every fingerprint below `count`, looked up in several ways, is found where it is and nowhere
    /// else.
    fn check(&self, index: &Index, count: u64, prefixes: u64) {
        let all: Vec<Fingerprint> = (0..count).map(|n| fingerprint(n, prefixes)).collect();
        let (mut found, mut candidates) = (Vec::new(), Vec::new());
        index.resolve_batch(&all, |_| true, &mut found).unwrap();
        index.lookup_batch(&all, &mut candidates);
        for ((fingerprint, found), candidates) in all.iter().zip(&found).zip(&candidates) {
            let places = self.places(fingerprint);
            assert_eq!(
                found.is_some(),
                !places.is_empty(),
                "{fingerprint:?}: {found:?}, expected {places:?}"
            );
            assert!(found.is_none_or(|found| places.contains(&found)));
            let candidates: Vec<Place> = candidates.iter().collect();
            assert!(candidates.is_sorted_by(|a, b| a < b));
            assert!(
                places.iter().all(|place| candidates.contains(place)),
                "{candidates:?} lack some of {places:?}"
            );
            let odd = |pack: PackId| pack.0 % 2 == 1;
            let lowest = index.resolve_lowest(fingerprint, odd).unwrap();
            assert_eq!(lowest, places.into_iter().find(|place| odd(place.pack)));
        }
    }
}

/// A directory in memory where there is such a thing: these tests sync thousands of times.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

const STORE: StoreId = StoreId([7; 16]);

/// A small locality cache, so that most answers come from the index itself.
fn small() -> IndexOptions {
    IndexOptions {
        recent_entries_max: 200,
        recent_packs_max: 20,
        footers_bytes_max: 20_000,
        merge_in_background: false,
        key: None,
    }
}

/// The same, with a key.
fn keyed() -> IndexOptions {
    IndexOptions { key: Some(Key::new([9; 32])), ..small() }
}

fn runs_in(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "run")).collect()
}

/// A directory with two runs of some pages each; returns the packs they were made from.
fn two_runs(dir: &Path, options: &IndexOptions) -> Packs {
    let packs = Packs::default();
    let index = packs.open(Some(dir), options.clone());
    for (id, chunks) in [(1, 0..1200), (2, 1000..1300)] {
        let some: Vec<_> = chunks.map(|n| fingerprint(n, u64::MAX)).collect();
        index.add_pack(PackId(id), &packs.add(id, &some));
        index.flush().unwrap();
    }
    assert_eq!(index.stats().runs, 2);
    packs
}
