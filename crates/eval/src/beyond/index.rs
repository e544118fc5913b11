//! Indexes of real sizes with random fingerprints, and a straight line for larger ones.

use std::path::Path;

use outrigger_format::{Fingerprint, PackId, Place, StoreId};
use outrigger_store::ErrorKind;
use outrigger_store::index::{Candidates, Index, IndexOptions};
use outrigger_workload::Rng;

use crate::lab::{Failed, Lab, check};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

const CHUNK: f64 = 16384.0;
/// Chunks of a pack.
const PACK: u64 = 4096;
const BATCH: usize = 1024;

fn fingerprint(prefix: u64) -> Fingerprint {
    let mut key = Fingerprint([0; 32]);
    key.0[..8].copy_from_slice(&prefix.to_be_bytes());
    Rng::new(prefix).fill(&mut key.0[8..16]);
    key
}

fn open(dir: &Path) -> Result<Index, Failed> {
    let load = |_| Err(outrigger_store::Error::new(ErrorKind::NotFound, "no such pack"));
    Ok(Index::open(Some(dir), StoreId([9; 16]), IndexOptions::default(), |_| true, load)?)
}

/// Keys in ascending order. They are evenly spaced with a random part, so each can be computed
/// again from its number.
fn prefix(number: u64, count: u64) -> u64 {
    let gap = u64::MAX / count;
    number * gap + Rng::part(3, number).below(gap)
}

/// Memory and look-ups by size.
pub fn sizes(lab: &Lab) -> Result<Outcome, Failed> {
    let counts: &[u64] = lab.scale.pick(
        &[50_000],
        &[1_000_000, 4_000_000, 16_000_000],
        &[1_000_000, 10_000_000, 64_000_000, 200_000_000],
    );
    let lookups = lab.scale.pick(10_000, 1_000_000, 2_000_000);
    let (mut memory, mut beyond) =
        (Series::measured("filter and fences"), Series::model("the same, in proportion"));
    let mut rates =
        [Series::measured("never seen"), Series::measured("stored already (pages in the page cache)")];
    let mut outcome = Outcome::default();
    let mut a_key = 0.0;
    for &count in counts {
        let (room, packs) = (lab.room()?, count / PACK + 1);
        let place =
            |number: u64| Place { pack: PackId(1 + number % packs), slot: (number / packs % PACK) as u32 };
        let keys = (0..count).map(|number| (prefix(number, count), place(number)));
        open(room.path())?.import(keys, count, (1..=packs).map(PackId).collect())?;
        let index = open(room.path())?;
        let used = index.memory();
        let x = count as f64 * CHUNK;
        a_key = (used.filter + used.fences) as f64 / count as f64;
        memory.exact(x, (used.filter + used.fences) as f64 / 1e6);
        let mut rng = Rng::new(count);
        let absent: Vec<Fingerprint> = (0..lookups).map(|_| fingerprint(rng.next_u64())).collect();
        let numbers: Vec<u64> = (0..lookups).map(|_| rng.below(count)).collect();
        let present: Vec<Fingerprint> =
            numbers.iter().map(|&number| fingerprint(prefix(number, count))).collect();
        let mut out: Vec<Candidates> = Vec::new();
        for (batch, numbers) in present.chunks(BATCH).zip(numbers.chunks(BATCH)) {
            index.lookup_batch(batch, &mut out);
            for (candidates, number) in out.iter().zip(numbers) {
                check(
                    candidates.iter().any(|found| found == place(*number)),
                    "a key is not found where it lies",
                )?;
            }
        }
        for (line, keys) in rates.iter_mut().zip([&absent, &present]) {
            let all = || keys.chunks(BATCH).for_each(|batch| index.lookup_batch(batch, &mut out));
            line.push(x, lab.seconds(all).map(|seconds| lookups as f64 / seconds / 1e6));
        }
    }
    for data in [memory.points.last().map_or(1e9, |point| point.x), 1e13, 1e14, 1e15] {
        beyond.exact(data, a_key * data / CHUNK / 1e6);
    }
    let a_terabyte = a_key * 1e12 / CHUNK / 1e6;
    check(lab.scale == crate::Scale::Tiny || a_terabyte <= 100.0, format!("{a_terabyte} MB for a TB"))?;
    outcome.find("memory for a TB in chunks of 16 KiB", a_terabyte, "MB", Some(100.0));
    outcome.find("memory for 1 PB, all of it indexed", a_terabyte * 1e3 / 1e3, "GB", None);
    outcome.find("never seen, largest index, one core", rates[0].last(), "million/s", None);
    outcome.find("stored already, largest index, one core", rates[1].last(), "million/s", None);
    outcome.note("Fingerprints are random; one run a size, as a merge leaves it.");
    let ends = [memory.points.first().map_or(1e9, |point| point.x), 1e15];
    let asked = Series::limit("asked: 100 MB a TB", &ends.map(|data| (data, data / 1e12 * 100.0)));
    outcome.plots.push(Plot {
        title: "Memory of the index, by the data that it covers".into(),
        form: Form::Lines,
        x: Axis::log("data", "bytes"),
        y: Axis::log("memory", "MB"),
        series: vec![memory, beyond, asked],
        limits: Vec::new(),
    });
    outcome.plots.push(Plot {
        title: "Look-ups on one core, by the data that the index covers".into(),
        form: Form::Lines,
        x: Axis::log("data", "bytes"),
        y: Axis::log("look-ups", "million/s"),
        series: rates.into(),
        limits: vec![Limit {
            name: "reading memory: one line of 64 B for each, all cores".into(),
            y: crate::similarity::memory_rate(lab) / 64.0 / 1e6,
        }],
    });
    Ok(outcome)
}
