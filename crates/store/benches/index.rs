//! The index at 10, 100 and 300 million fingerprints: memory, absent, present and duplicate
//! lookups.
//!
//! `cargo bench -p outrigger-store --bench index -- --keys 10M,100M,300M [--dir DIR]`. Every answer
//! is checked. Without `--bench` among the arguments (`cargo test`) it runs a tiny size, so that it
//! never rots. Run files are made straight from a sorted stream: the gaps between n random 64-bit
//! numbers in order are exponential with mean 2^64 / n.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use outrigger_format::{ChunkKind, Fingerprint, Footer, FooterBuilder, PackId, Place, StoreId};
use outrigger_store::ErrorKind;
use outrigger_store::index::{Candidates, Index, IndexOptions};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const STORE: StoreId = StoreId([9; 16]);
const BATCH: usize = 1024;
/// Chunks of a pack: 64 MiB of 16 KiB chunks.
const PACK_CHUNKS: u64 = 4096;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in 0..1, never 0.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn fingerprint(prefix: u64) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&prefix.to_be_bytes());
    bytes[8..16].copy_from_slice(&mix(prefix).to_be_bytes());
    Fingerprint(bytes)
}

/// Where the key `prefix` lies, among `packs` packs: scattered.
fn place(prefix: u64, packs: u64) -> Place {
    let mixed = mix(prefix ^ 0x5555);
    Place { pack: PackId(1 + mixed % packs), slot: (mixed >> 40) as u32 % PACK_CHUNKS as u32 }
}

/// About `n` random keys in order, and with a given chance a copy of each in `sample`.
struct Keys<'a> {
    rng: Rng,
    last: u64,
    mean: f64,
    packs: u64,
    chance: f64,
    sample: &'a mut Vec<u64>,
}

impl Iterator for Keys<'_> {
    type Item = (u64, Place);

    fn next(&mut self) -> Option<Self::Item> {
        let gap = (-self.rng.unit().ln() * self.mean) as u64 + 1;
        self.last = self.last.checked_add(gap)?;
        if self.rng.unit() < self.chance {
            self.sample.push(self.last);
        }
        Some((self.last, place(self.last, self.packs)))
    }
}

/// Operations a second: by the clock on the wall, and by this thread's processor time, which says
/// more on a shared machine.
#[derive(Clone, Copy)]
struct Rate {
    wall: f64,
    cpu: f64,
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} M/s ({:.2} M per cpu second)", self.wall / 1e6, self.cpu / 1e6)
    }
}

/// Times `work`, which does `count` operations.
fn time(count: usize, work: impl FnOnce()) -> Rate {
    let cpu_seconds = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, start_cpu) = (Instant::now(), cpu_seconds());
    work();
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - start_cpu);
    Rate { wall: count as f64 / wall, cpu: count as f64 / cpu }
}

/// Times `work` on batches of `keys`.
fn rate(keys: &[Fingerprint], mut work: impl FnMut(&[Fingerprint])) -> Rate {
    time(keys.len(), || keys.chunks(BATCH).for_each(&mut work))
}

/// The machine's memory bound: (independent, dependent) reads a second of random lines among
/// `bytes` bytes.
fn memory_bound(bytes: usize, reads: usize) -> (Rate, Rate) {
    let lines = (bytes / 64).max(1);
    let words: Vec<u64> = (0..lines * 8).map(|at| mix(at as u64)).collect();
    let line = |key: u64| words[((u128::from(key) * lines as u128) >> 64) as usize * 8];
    let mut rng = Rng(1);
    let keys: Vec<u64> = (0..reads).map(|_| rng.next()).collect();
    let independent = time(reads, || {
        black_box(keys.iter().fold(0, |sum: u64, &key| sum.wrapping_add(line(key))));
    });
    let few = &keys[..reads / 4];
    let dependent = time(few.len(), || {
        black_box(few.iter().fold(0, |last: u64, &key| line(key ^ last)));
    });
    (independent, dependent)
}

/// Makes the kernel forget the pages of the runs in `dir`.
fn drop_pages(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let file = std::fs::File::open(entry?.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn open(dir: &Path) -> Result<Index> {
    let load = |_| Err(outrigger_store::Error::new(ErrorKind::NotFound, "no such pack"));
    Ok(Index::open(Some(dir), STORE, IndexOptions::default(), |_| true, load)?)
}

/// One run of `count` keys. Returns the rate of absent lookups.
fn scattered(dir: &Path, count: u64, lookups: usize) -> Result<Rate> {
    let dir = &dir.join(format!("index-{count}"));
    let _ = std::fs::remove_dir_all(dir);
    let packs = count / PACK_CHUNKS + 1;
    let mut sample = Vec::new();
    let start = Instant::now();
    {
        let keys = Keys {
            rng: Rng(count),
            last: 0,
            mean: 2f64.powi(64) / count as f64,
            packs,
            chance: lookups as f64 / 8.0 / count as f64,
            sample: &mut sample,
        };
        open(dir)?.import(keys, count, (1..=packs).map(PackId).collect())?;
    }
    let built = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let index = open(dir)?;
    let opened = start.elapsed().as_secs_f64();
    let (stats, memory) = (index.stats(), index.memory());
    let bytes = memory.filter + memory.fences;
    let per_64m = bytes as f64 / stats.run_entries as f64 * 64.0 * 1.048_576;
    println!("{:>11} keys: written in {built:.1} s, opened in {opened:.2} s", stats.run_entries);
    println!(
        "  memory          {:.1} MB filter + {:.1} MB fences and packs = {per_64m:.1} MB per 64 Mi keys",
        memory.filter as f64 / 1e6,
        memory.fences as f64 / 1e6
    );
    assert!(count < 32 << 20 || per_64m <= 100.0, "more than 100 MB per 64 Mi keys");

    let mut rng = Rng(count ^ 0xabc);
    let absent: Vec<Fingerprint> = (0..lookups).map(|_| fingerprint(rng.next())).collect();
    let (independent, dependent) = memory_bound(memory.filter, lookups);
    let mut out: Vec<Candidates> = Vec::new();
    let mut found = Vec::new();
    let mut wrong = 0;
    rate(&absent, |batch| index.lookup_batch(batch, &mut out));
    let before = index.stats().probes;
    let absent_rate = rate(&absent, |batch| {
        index.lookup_batch(batch, &mut out);
        wrong += out.iter().filter(|candidates| !candidates.is_empty()).count();
    });
    let passed = (index.stats().probes - before) as f64 / lookups as f64;
    let resolved =
        rate(&absent, |batch| index.resolve_batch(batch, |_| true, &mut found).expect("absent keys"));
    assert_eq!(wrong, 0, "absent keys found");
    println!("  absent          {absent_rate}, {:.2} % false positives", passed * 100.0);
    println!("  absent, resolve {resolved}");
    println!(
        "  memory bound    independent random lines {independent}: {:.0} % reached",
        absent_rate.cpu / independent.cpu * 100.0
    );
    println!(
        "                  dependent random lines   {dependent}: {:.1} x reached",
        absent_rate.cpu / dependent.cpu
    );

    // The sample is in order; lookups come in none.
    (1..sample.len()).rev().for_each(|at| sample.swap(at, (rng.next() % (at as u64 + 1)) as usize));
    let present: Vec<Fingerprint> = sample.iter().map(|&prefix| fingerprint(prefix)).collect();
    let mut check = |keys: &[Fingerprint]| {
        let before = index.stats().probes;
        let rate = rate(keys, |batch| {
            index.lookup_batch(batch, &mut out);
            for (key, candidates) in batch.iter().zip(&out) {
                assert!(
                    candidates.iter().any(|found| found == place(key.prefix(), packs)),
                    "{key:?} not found"
                );
            }
        });
        let probes = index.stats().probes - before;
        assert_eq!(probes, keys.len() as u64, "one probe a present key");
        (rate, probes as f64 / keys.len() as f64)
    };
    let (cold_keys, warm_keys) = present.split_at(present.len() / 10);
    drop_pages(dir)?;
    let (cold, _) = check(cold_keys);
    check(warm_keys);
    let (warm, probes) = check(warm_keys);
    println!("  present, warm   {warm}, {probes:.3} probes a key");
    println!("  present, cold   {cold}");
    drop(index);
    std::fs::remove_dir_all(dir)?;
    Ok(absent_rate)
}

/// A stream of duplicates of `packs` packs: first from the runs, then from the locality cache.
fn duplicates(dir: &Path, packs: u64) -> Result<()> {
    let dir = &dir.join("index-duplicates");
    let _ = std::fs::remove_dir_all(dir);
    let footers: Arc<Mutex<HashMap<PackId, Arc<Footer>>>> = Arc::default();
    let mut rng = Rng(5);
    let mut stream = Vec::new();
    for id in (1..=packs).map(PackId) {
        let mut builder = FooterBuilder::default();
        for frame in 0..PACK_CHUNKS / 16 {
            let chunks: Vec<_> = (0..16).map(|_| fingerprint(rng.next())).collect();
            builder.push(64 + frame as u32 * 256, ChunkKind::Data, &chunks);
            stream.extend(chunks);
        }
        footers.lock().expect("one thread").insert(id, Arc::new(builder.finish(id, 1 << 30).0));
    }
    let load = {
        let footers = footers.clone();
        move |pack: PackId| Ok(Footer::clone(&footers.lock().expect("one thread")[&pack]))
    };
    let fill = Index::open(Some(dir), STORE, IndexOptions::default(), |_| true, load.clone())?;
    fill.cover(&(1..=packs).map(PackId).collect::<Vec<_>>())?;
    fill.flush()?;
    drop(fill);
    let index = Index::open(Some(dir), STORE, IndexOptions::default(), |_| true, load)?;
    let mut found = Vec::new();
    let mut resolve = |batch: &[Fingerprint]| {
        index.resolve_batch(batch, |_| true, &mut found).expect("footers in memory");
        assert!(found.iter().all(Option::is_some), "a duplicate was not found");
    };
    let first = rate(&stream, &mut resolve);
    let probes = index.stats().probes;
    let cached = rate(&stream, &mut resolve);
    println!(
        "duplicate stream of {packs} packs: cached {cached}, at first {first} with {probes} probes, {} footers",
        index.stats().footers_loaded
    );
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

fn parse_count(text: &str) -> Result<u64> {
    let (digits, unit) = text.split_at(text.trim_end_matches(['K', 'M']).len());
    Ok(digits.parse::<u64>()?
        * if unit == "M" {
            1_000_000
        } else if unit == "K" {
            1000
        } else {
            1
        })
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut keys, mut full) = (None, false);
    let mut dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => full = true,
            "--keys" => keys = args.next(),
            "--dir" => dir = args.next().ok_or("--dir needs a directory")?.into(),
            _ => {}
        }
    }
    let keys = keys.unwrap_or_else(|| if full { "10M,100M".into() } else { "100K".into() });
    let lookups = if full { 2 << 20 } else { 20_000 };
    duplicates(&dir, if full { 100 } else { 4 })?;
    let mut rates = Vec::new();
    for count in keys.split(',') {
        rates.push(scattered(&dir, parse_count(count)?, lookups)?);
    }
    if let (true, [first, .., last]) = (full, &rates[..]) {
        println!("cost of an absent lookup, last over first: {:.2} x of cpu time", first.cpu / last.cpu);
    }
    Ok(())
}
