//! A simulated index for a petabyte that keeps only a sample of its fingerprints (hooks).
//!
//! A petabyte cannot be stored here, and need not be. A chunk's fingerprint decides whether it is a
//! hook, and a fingerprint is as good as a random function of the chunk's number. Chunks with
//! numbers below the store's size count as stored. So chunks are numbers, and the only assumption
//! left is the length of the runs of known data. The rule is that of the locality cache: a hit
//! loads the fingerprints of its whole pack, and neighbours come together.

use std::collections::{HashMap, VecDeque};

use outrigger_workload::Rng;

use crate::lab::{Failed, Lab, check};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

/// Bytes of a chunk, on average.
const CHUNK: f64 = 16384.0;
/// Chunks of a pack of 64 MiB.
const PACK: u64 = 4096;
/// Bytes of a hook in a table that is four fifths full: eight for its fingerprint, eight for its
/// place.
const HOOK: f64 = 16.0 / 0.8;
/// Packs whose fingerprints are in the locality cache (64 MiB of them).
const CACHED: usize = 360;
/// Sampling rates: one fingerprint in so many is a hook.
const SAMPLES: [u64; 4] = [16, 64, 256, 1024];
/// The rate of the findings.
const CHOSEN: u64 = 256;

/// The packs that were hit last.
#[derive(Default)]
struct Cache {
    packs: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Cache {
    /// True if the pack is in the cache; makes it the newest.
    fn has(&mut self, pack: u64) -> bool {
        self.packs.contains_key(&pack) && {
            self.touch(pack);
            true
        }
    }

    fn touch(&mut self, pack: u64) {
        self.clock += 1;
        self.packs.insert(pack, self.clock);
        self.order.push_back((pack, self.clock));
        // A pack that was used again also has a later entry in the queue.
        while self.packs.len() > CACHED || self.order.len() > 64 * CACHED {
            let Some((pack, clock)) = self.order.pop_front() else { break };
            if self.packs.get(&pack) == Some(&clock) {
                self.packs.remove(&pack);
            }
        }
    }
}

/// The outcome for the known chunks of a stream.
#[derive(Clone, Copy, Default)]
struct Found {
    known: u64,
    found: u64,
    /// How many packs' fingerprints were read.
    loads: u64,
    /// The expected number of found chunks.
    expected: f64,
}

/// Simulates `known` chunks in runs of `run`, from anywhere among `stored`, with one fingerprint in
/// `sample` a hook.
fn simulate(seed: u64, stored: u64, known: u64, run: u64, sample: u64) -> Found {
    let (mut rng, mut cache, mut done) =
        (Rng::part(seed, run ^ sample << 32), Cache::default(), Found::default());
    let missed = 1.0 - 1.0 / sample as f64;
    while done.known < known {
        let from = rng.below(stored - run);
        let mut at = from;
        while at < from + run {
            let (pack, end) = (at / PACK, (at / PACK + 1) * PACK);
            let end = end.min(from + run);
            let piece = end - at;
            let mut is_here = cache.has(pack);
            done.expected += if is_here {
                piece as f64
            } else {
                // Chunks before the first hook are missed.
                piece as f64 - missed * (1.0 - missed.powf(piece as f64)) / (1.0 - missed)
            };
            for chunk in at..end {
                if !is_here && Rng::part(91, chunk).below(sample) == 0 {
                    cache.touch(pack);
                    (is_here, done.loads) = (true, done.loads + 1);
                }
                done.found += u64::from(is_here);
            }
            (done.known, at) = (done.known + piece, end);
        }
    }
    done
}

/// Duplicates found, footers read, memory.
pub fn sampled(lab: &Lab) -> Result<Outcome, Failed> {
    let stored = (1e15 / CHUNK) as u64;
    let known = lab.scale.pick(50_000, 2_000_000, 20_000_000);
    let runs: Vec<u64> = (4..=16).step_by(lab.scale.pick(6, 2, 1)).map(|power| 1 << power).collect();
    let mut outcome = Outcome::default();
    let (mut lines, mut reads) = (Vec::new(), Vec::new());
    for sample in SAMPLES {
        let mut line = Series::model(format!("one in {sample}"));
        let mut read = Series::model(format!("one in {sample}"));
        for &run in &runs {
            let found = simulate(7, stored, known, run, sample);
            let (share, expected) =
                (found.found as f64 / found.known as f64, found.expected / found.known as f64);
            // Five times the deviation of chance: pieces are independent, and none is longer than a
            // pack.
            let pieces = found.known as f64 / run.min(PACK) as f64;
            let slack = 5.0 * 0.5 / pieces.sqrt();
            check(
                (share - expected).abs() < slack,
                format!("one in {sample}, runs of {run}: {share} found, {expected} expected"),
            )?;
            let x = run as f64 * CHUNK;
            line.exact(x, 100.0 * share);
            read.exact(x, found.loads as f64 / (found.known as f64 * CHUNK / 1e9));
            if sample == CHOSEN && (x == f64::from(1 << 24) || run == runs[runs.len() - 1]) {
                outcome.find(
                    format!("one in {sample}: duplicates found in runs of {}", crate::plot::bytes(x)),
                    100.0 * share,
                    "%",
                    None,
                );
            }
        }
        outcome.find(
            format!("one in {sample}: memory for 1 PB"),
            stored as f64 / sample as f64 * HOOK / 1e9,
            "GB",
            None,
        );
        lines.push(line);
        reads.push(read);
    }
    let a_terabyte = 1e12 / CHUNK / CHOSEN as f64 * HOOK / 1e6;
    outcome.find(format!("one in {CHOSEN}: memory for a TB"), a_terabyte, "MB", None);
    outcome.plots.push(Plot {
        title: "Duplicates found in a petabyte, by the share of fingerprints that is kept".into(),
        form: Form::Lines,
        x: Axis::log("runs of known data", "bytes"),
        y: Axis::new("found, of what is known", "%"),
        series: lines,
        limits: vec![Limit { name: "all of them".into(), y: 100.0 }],
    });
    outcome.plots.push(Plot {
        title: "Fingerprints of packs read to find them".into(),
        form: Form::Lines,
        x: Axis::log("runs of known data", "bytes"),
        y: Axis::log("packs, for each GB of known data", "packs"),
        series: reads,
        limits: vec![Limit { name: "each pack of it once".into(), y: 1e9 / (PACK as f64 * CHUNK) }],
    });
    let sizes = [1e12, 1e13, 1e14, 1e15];
    let of = |bytes_a_chunk: f64| sizes.map(|data| (data, data / CHUNK * bytes_a_chunk / 1e6));
    let mut kept: Vec<Series> = SAMPLES
        .iter()
        .map(|sample| {
            let mut line = Series::model(format!("one in {sample}"));
            of(HOOK / *sample as f64).iter().for_each(|&(x, y)| line.exact(x, y));
            line
        })
        .collect();
    kept.push(Series::limit("asked: 100 MB a TB", &sizes.map(|data| (data, data / 1e12 * 100.0))));
    outcome.plots.push(Plot {
        title: "Memory of the hooks, by the data that they stand for".into(),
        form: Form::Lines,
        x: Axis::log("data", "bytes"),
        y: Axis::log("memory", "MB"),
        series: kept,
        limits: Vec::new(),
    });
    outcome.note(format!(
        "{stored} chunks of 16 KiB in packs of {PACK}, {CACHED} packs' fingerprints in memory (64 MiB), {known} known chunks for each point. Runs begin anywhere, so that hardly a pack is met twice: the \
         worst that can happen to a cache. Each point is compared with what arithmetic expects. Stores do not sample yet; this says what it would cost."
    ));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found_when_all_are_kept() {
        let found = simulate(1, 1 << 30, 10_000, 64, 1);
        assert_eq!(found.found, found.known);
    }

    /// A run that soon repeats is known by its packs, even without a hook.
    #[test]
    fn a_cache_forgets_what_was_hit_longest_ago() {
        let mut cache = Cache::default();
        (0..CACHED as u64).for_each(|pack| cache.touch(pack));
        assert!(cache.has(0));
        cache.touch(9999);
        assert!(cache.has(0) && !cache.has(1) && cache.has(9999));
    }
}
