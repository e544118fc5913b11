//! Tables of fingerprints: on media, in memory, and behind a cache and a summary vector.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Instant;

use outrigger_format::Fingerprint;
use outrigger_offload::pool::Buffer;
use outrigger_offload::table::Table;
use outrigger_offload::work::Request;
use outrigger_workload::Rng;

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::models;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::rig::{Buffers, Rig};

/// Fingerprint number `n`.
fn key(n: u64) -> Fingerprint {
    let mut key = Fingerprint([0; 32]);
    Rng::part(5, n).fill(&mut key.0[..16]);
    key
}

/// A table of fingerprints `0..entries`.
fn table_of(entries: u64) -> Result<Table, Failed> {
    let mut table = Table::with_capacity(entries as usize);
    for start in (0..entries).step_by(10_000) {
        let batch: Vec<_> = (start..entries.min(start + 10_000)).map(|n| (key(n), n)).collect();
        table.insert_many(&batch).map_err(|full| Failed::Wrong(full.to_string()))?;
    }
    Ok(table)
}

/// `count` questions to a table of so many entries; it has `permille` of them.
fn questions(entries: u64, count: usize, permille: u64) -> Vec<Fingerprint> {
    let mut rng = Rng::new(9);
    let ask = |rng: &mut Rng| {
        if rng.permille(permille) { key(rng.below(entries)) } else { key(rng.next_u64() | 1 << 63) }
    };
    (0..count).map(|_| ask(&mut rng)).collect()
}

fn answered(table: &Table, keys: &[Fingerprint], permille: u64) -> Result<(), Failed> {
    let mut places = Vec::new();
    table.lookup_many(keys, &mut places);
    let right = keys.iter().zip(&places).all(|(key, place)| *place == table.get(key));
    let share = 1000.0 * places.iter().flatten().count() as f64 / keys.len() as f64;
    check(right, "batches and single questions differ")?;
    check(
        (share - permille as f64).abs() < 100.0,
        format!("{share} of 1000 are answered instead of {permille}"),
    )
}

/// Milliseconds for a batch on so many threads.
fn batch_ms(lab: &Lab, table: &Table, keys: &[Fingerprint], threads: usize) -> Spread {
    let part = keys.len().div_ceil(threads.max(1));
    let all = || {
        if threads == 1 {
            let mut out = Vec::with_capacity(keys.len());
            table.lookup_many(keys, &mut out);
            black_box(out);
            return;
        }
        std::thread::scope(|scope| {
            for part in keys.chunks(part) {
                scope.spawn(move || {
                    let mut out = Vec::with_capacity(part.len());
                    table.lookup_many(part, &mut out);
                    black_box(out);
                });
            }
        });
    };
    lab.seconds(all).map(|seconds| seconds * 1e3)
}

/// A modelled device's milliseconds.
fn device_ms(lab: &Lab, table: &Arc<Table>, keys: &[Fingerprint]) -> Spread {
    rig_ms(lab, &Rig::modelled(&[models::GTX_480], 1, Buffers::Reused), 1, table, keys)
}

/// A device's milliseconds by its own clock, without the host's copy of a million questions.
fn rig_ms(lab: &Lab, rig: &Rig, device: usize, table: &Arc<Table>, keys: &[Fingerprint]) -> Spread {
    let request = Request::Lookup { table: Arc::clone(table), keys: keys.to_vec() };
    let nothing: Arc<Buffer> = rig.buffer(&[]);
    rig.once(device, &request, &nothing);
    lab.spread(lab.rounds(), || device_seconds(rig, device, &request, &nothing) * 1e3)
}

/// The time that the device took for all of its stages.
fn device_seconds(rig: &Rig, device: usize, request: &Request, nothing: &Arc<Buffer>) -> f64 {
    rig.once(device, request, nothing).1.report().stages.sum().as_secs_f64()
}

/// Seconds for a random read of 4 KiB past the page cache; `None` if the file system does not
/// support that.
fn disk_latency(lab: &Lab) -> Result<Option<f64>, Failed> {
    let room = lab.room()?;
    let (path, bytes) = (room.path().join("pages"), lab.scale.pick(1_u64 << 20, 512 << 20, 4 << 30));
    let mut block = vec![0; 1 << 20];
    Rng::new(2).fill(&mut block);
    let file = File::create(&path)?;
    for at in (0..bytes).step_by(1 << 20) {
        file.write_all_at(&block, at)?;
    }
    file.sync_all()?;
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(direct).open(&path) else { return Ok(None) };
    // Direct reads need aligned memory.
    let mut memory = vec![0; 8192];
    let skip = memory.as_ptr().align_offset(4096);
    let mut rng = Rng::new(7);
    let mut times = Vec::new();
    for _ in 0..lab.scale.pick(10, 3000, 20_000) {
        let at = rng.below(bytes / 4096) * 4096;
        let begun = Instant::now();
        if file.read_exact_at(&mut memory[skip..skip + 4096], at).is_err() {
            return Ok(None);
        }
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(Some(Spread::of(times).median))
}

/// Figure 2.
pub fn media(lab: &Lab) -> Result<Outcome, Failed> {
    const MEMORY: f64 = 1e-6;
    const STORED: f64 = 20e12;
    /// Bytes of table per entry: 10 GB for 4 TB in 8 KB (section 3.1).
    const ENTRY: f64 = 20.0;
    // The summary vector answers 19 % of the look-ups that would go to the disk.
    let rate = |segment: f64, memory: f64, latency: f64| {
        let on_disk = (1.0 - memory / (STORED / segment * ENTRY)).max(0.0);
        segment / (MEMORY + 0.81 * on_disk * latency)
    };
    let mut outcome = Outcome::default();
    let latency = disk_latency(lab)?;
    let (entries, count) = lab.scale.pick((10_000, 5000), (8_000_000, 1_280_000), (16_000_000, 1_280_000));
    let table = table_of(entries)?;
    let keys = questions(entries, count, 500);
    answered(&table, &keys, 500)?;
    let one = batch_ms(lab, &table, &keys, 1).map(|ms| count as f64 / ms * 1e3);
    let mut series = vec![
        Series::model("hard disk, 8 GB memory"),
        Series::model("SSD, 16 GB memory"),
        Series::model("this disk, 16 GB memory"),
        Series::measured("our table in memory, one core"),
        Series::limit("a line of memory for each, all cores", &[]),
    ];
    for log in 11..=17 {
        let segment = f64::from(1 << log);
        series[0].exact(segment, rate(segment, 8e9, 10e-3) / 1e6);
        series[1].exact(segment, rate(segment, 16e9, 12.5e-6) / 1e6);
        if let Some(latency) = latency {
            series[2].exact(segment, rate(segment, 16e9, latency) / 1e6);
        }
        series[3].push(segment, one.map(|rate| rate * segment / 1e6));
        series[4].exact(segment, crate::similarity::memory_rate(lab) / 64.0 * segment / 1e6);
    }
    outcome.find("SSD at 8 KiB, by the formula", rate(8192.0, 16e9, 12.5e-6) / 1e6, "MB/s", Some(1000.0));
    match latency {
        Some(latency) => outcome.find("random read of 4 KiB from this disk", latency * 1e6, "µs", Some(12.5)),
        None => {
            outcome.note("This file system has no reads past the page cache: its disk's latency is left out.")
        }
    }
    outcome.find("look-ups in memory, one core", one.median / 1e6, "million/s", None);
    outcome.plots.push(Plot {
        title: "Data whose segments are looked up in a second".into(),
        form: Form::Lines,
        x: Axis::log("segment", "bytes"),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits: Vec::new(),
    });
    Ok(outcome)
}

/// Table 2.
pub fn table(lab: &Lab) -> Result<Outcome, Failed> {
    // 34 bytes a slot; 500 MB of them.
    let entries = lab.scale.pick(10_000, 10_000_000, 10_000_000);
    let table = Arc::new(table_of(entries)?);
    let counts: &[usize] = lab.scale.pick(
        &[4000],
        &[40_000, 160_000, 640_000, 1_280_000],
        &[40_000, 80_000, 160_000, 320_000, 640_000, 1_280_000],
    );
    let mut series =
        vec![Series::measured("one core"), Series::measured("all cores"), Series::model("GTX 480")];
    let real = Rig::real(lab);
    series.extend(real.lines());
    for &count in counts {
        let keys = questions(entries, count, 500);
        answered(&table, &keys, 500)?;
        series[0].push(count as f64, batch_ms(lab, &table, &keys, 1));
        series[1].push(count as f64, batch_ms(lab, &table, &keys, lab.threads));
        series[2].push(count as f64, device_ms(lab, &table, &keys));
        for (device, _) in real.devices() {
            series[2 + device].push(count as f64, rig_ms(lab, &real, device, &table, &keys));
        }
    }
    let mut outcome = Outcome::default();
    let last = *counts.last().unwrap_or(&1) as f64;
    for (line, paper) in
        series.iter().zip([Some(1452.0), None, Some(8.0)].into_iter().chain(std::iter::repeat(None)))
    {
        outcome.find(format!("{last} look-ups, {}", line.name), line.last(), "ms", paper);
    }
    outcome.duel(
        "looking up in a table in memory",
        last / series[1].last() / 1e3,
        last / 8.0 / 1e3,
        "the paper's GTX 480, keys in its memory already",
        "million/s",
    );
    let slots = table.slot_words().len() * 8;
    outcome.note(format!(
        "The table has {:.0} MB of slots; half of the questions are answered.",
        slots as f64 / 1e6
    ));
    models::note(&mut outcome);
    let bus = |count: &usize| (*count as f64, *count as f64 * 32.0 / models::GTX_480.in_rate * 1e3);
    let bus: Vec<(f64, f64)> = counts.iter().map(bus).collect();
    outcome.plots.push(Plot {
        title: "Time for a batch of look-ups".into(),
        form: Form::Lines,
        x: Axis::log("look-ups", "at once"),
        y: Axis::log("time", "ms"),
        series: series
            .into_iter()
            .chain([Series::limit("copying the keys over the paper's bus, for a device", &bus)])
            .collect(),
        limits: Vec::new(),
    });
    Ok(outcome)
}

const RATES: [u64; 5] = [0, 250, 500, 750, 1000];

/// Figure 10: a batch asks the host's table alone, or first a small table with the hot entries and
/// then the host's table for the rest.
pub fn cache(lab: &Lab) -> Result<Outcome, Failed> {
    let (entries, hot, count) = lab.scale.pick(
        (20_000, 1000, 4000),
        (10_000_000, 100_000, 320_000),
        (10_000_000, 100_000, 1_280_000),
    );
    let (host, small) = (table_of(entries)?, Arc::new(table_of(hot)?));
    let mut series = vec![
        Series::measured("host table only"),
        Series::measured("table cache first"),
        Series::model("GTX 480's table cache first"),
    ];
    let rig = Rig::modelled(&[models::GTX_480], 1, Buffers::Reused);
    let real = Rig::real(lab);
    series.extend(real.names.iter().map(|name| Series::measured(format!("{name}'s table cache first"))));
    for permille in RATES {
        // Duplicates are hot entries; the rest is new.
        let keys = questions(hot, count, permille);
        answered(&host, &keys, permille)?;
        let x = permille as f64 / 10.0;
        series[0].push(x, batch_ms(lab, &host, &keys, 1));
        let rest = |places: &[Option<u64>]| -> Vec<Fingerprint> {
            keys.iter().zip(places).filter(|(_, place)| place.is_none()).map(|(key, _)| *key).collect()
        };
        let ask_host = |keys: &[Fingerprint]| {
            let mut out = Vec::with_capacity(keys.len());
            host.lookup_many(keys, &mut out);
            black_box(out);
        };
        let both = lab.seconds(|| {
            let mut places = Vec::with_capacity(keys.len());
            small.lookup_many(&keys, &mut places);
            ask_host(&rest(&places));
        });
        series[1].push(x, both.map(|seconds| seconds * 1e3));
        let (request, nothing) =
            (Request::Lookup { table: Arc::clone(&small), keys: keys.clone() }, rig.buffer(&[]));
        // The model repeats its first answer for the same number of keys: only its time counts
        // here.
        let mut places = Vec::new();
        small.lookup_many(&keys, &mut places);
        rig.once(1, &request, &nothing);
        let device = lab.spread(lab.rounds(), || {
            let on_device = device_seconds(&rig, 1, &request, &nothing);
            let begun = Instant::now();
            ask_host(&rest(&places));
            (on_device + begun.elapsed().as_secs_f64()) * 1e3
        });
        series[2].push(x, device);
        for (device, _) in real.devices() {
            let answers = real.once(device, &request, &real.buffer(&[])).1;
            check(answers.output().places == places, "a device's table answers otherwise than the host's")?;
            let taken = lab.spread(lab.rounds(), || {
                let on_device = device_seconds(&real, device, &request, &nothing);
                let begun = Instant::now();
                ask_host(&rest(&places));
                (on_device + begun.elapsed().as_secs_f64()) * 1e3
            });
            series[2 + device].push(x, taken);
        }
    }
    let mut outcome = Outcome::default();
    let ratio = |at: usize| series[1].points[at].y / series[0].points[at].y;
    outcome.find("time with a table cache, at 0 %", ratio(0), "of without", None);
    outcome.find("time with a table cache, at 100 %", ratio(4), "of without", None);
    outcome.note(format!("{count} look-ups; {entries} entries on the host, {hot} hot ones. New segments are mostly ended by the summary vectors of both."));
    models::note(&mut outcome);
    outcome.plots.push(by_rate(lab, "Looking a batch up, with and without a table cache", series, count));
    Ok(outcome)
}

fn by_rate(lab: &Lab, title: &str, series: Vec<Series>, count: usize) -> Plot {
    let least = count as f64 * 64.0 / crate::similarity::memory_rate(lab) * 1e3;
    Plot {
        title: title.into(),
        form: Form::Lines,
        x: Axis::new("deduplication rate", "%"),
        y: Axis::new("time", "ms"),
        series,
        limits: vec![Limit { name: "a line of memory for each, all cores".into(), y: least }],
    }
}

/// Figure 11: a table with its summary vector, and with one that lets everything pass, like none.
pub fn summary(lab: &Lab) -> Result<Outcome, Failed> {
    let (entries, count) = lab.scale.pick((10_000, 4000), (5_000_000, 320_000), (10_000_000, 1_280_000));
    let table = table_of(entries)?;
    let mut series = vec![Series::measured("with the summary vector"), Series::measured("without")];
    let (mut shares, mut furthest) = (Series::measured("let pass by the summary vector"), 0.0_f64);
    for permille in RATES {
        let keys = questions(entries, count, permille);
        answered(&table, &keys, permille)?;
        // A removed entry stays in the summary vector until the next refresh, so after this all of
        // these questions pass.
        let mut blind = Table::with_capacity(entries as usize + count);
        let absent: Vec<_> =
            keys.iter().filter(|key| table.get(key).is_none()).map(|key| (*key, 0)).collect();
        let mut known = Vec::with_capacity(entries as usize);
        for start in (0..entries).step_by(10_000) {
            known.clear();
            known.extend((start..entries.min(start + 10_000)).map(|n| (key(n), n)));
            blind.insert_many(&known).map_err(|full| Failed::Wrong(full.to_string()))?;
        }
        blind.insert_many(&absent).map_err(|full| Failed::Wrong(full.to_string()))?;
        let names: Vec<_> = absent.iter().map(|(key, _)| *key).collect();
        blind.remove_many(&names);
        check(keys.iter().all(|key| blind.may_hold(key)), "a removed key does not pass")?;
        let x = permille as f64 / 10.0;
        series[0].push(x, batch_ms(lab, &table, &keys, 1));
        series[1].push(x, batch_ms(lab, &blind, &keys, 1));
        let passed = 100.0 * keys.iter().filter(|key| table.may_hold(key)).count() as f64 / keys.len() as f64;
        shares.exact(x, passed);
        furthest = furthest.max(passed - x);
    }
    let mut outcome = Outcome::default();
    outcome.find("at 0 %, with it", series[0].points[0].y, "ms", Some(1.6));
    outcome.find("at 0 %, without", series[1].points[0].y, "ms", Some(5.6));
    outcome.find(
        "questions let pass beyond the deduplication rate, most",
        furthest,
        "percentage points",
        Some(10.0),
    );
    outcome.note(format!("{count} look-ups in a table of {entries}, one core."));
    outcome.plots.push(by_rate(lab, "Looking a batch up, with and without a summary vector", series, count));
    let mut exact = Series::model("no mistakes");
    RATES.iter().for_each(|&permille| exact.exact(permille as f64 / 10.0, permille as f64 / 10.0));
    outcome.plots.push(Plot {
        title: "Questions that the summary vector lets pass".into(),
        form: Form::Lines,
        x: Axis::new("deduplication rate", "%"),
        y: Axis::new("let pass", "%"),
        series: vec![shares, exact],
        limits: vec![Limit { name: "all".into(), y: 100.0 }],
    });
    Ok(outcome)
}
