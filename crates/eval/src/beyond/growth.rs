//! One store that grows step by step.
//!
//! Each step puts a large file of new and repeated data, a directory of small files, and one file
//! of 4 KiB. Then it looks a path up, lists, renames, and measures the memory. A cost that wrongly
//! grows with the store rises from step to step.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use outrigger_store::Store;
use outrigger_store::meta::At;
use outrigger_store::ops::edit;
use outrigger_store::tree::{StorePath, listing, require};
use outrigger_workload::{StreamOptions, small_files, stream};

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Point, Series};
use crate::wrote::{Way, chunker, disk_rate, store, write};

/// The measurements of each step, by the data put so far.
struct Lines {
    rate: Series,
    small: Series,
    memory: [Series; 2],
    /// Look-up, listing, renaming, creating.
    latency: [Series; 4],
    metadata: Series,
}

impl Lines {
    fn new(small: u64) -> Self {
        Self {
            rate: Series::measured("put"),
            small: Series::measured("small files put"),
            memory: [
                Series::measured("all of the process"),
                Series::measured("of it, the index' filter and fences"),
            ],
            latency: [
                Series::measured("a path looked up"),
                Series::measured(format!("a directory of {small} listed")),
                Series::measured("a file renamed, durably"),
                Series::measured("a file of 4 KiB put, durably"),
            ],
            metadata: Series::measured("the database"),
        }
    }
}

/// Throughput, memory and latency by size.
pub fn steps(lab: &Lab) -> Result<Outcome, Failed> {
    let (step, most) = match lab.scale {
        Scale::Tiny => (1_u64 << 20, 4_u64 << 20),
        Scale::Short => (128 << 20, 2 << 30),
        Scale::Full => (1 << 30, largest(&lab.work)?),
    };
    let count = lab.scale.pick(20, 1000, 10_000);
    let room = lab.room()?;
    let place = room.path().join("store");
    let store = store(&place, "zstd:1")?;
    let options =
        StreamOptions { seed: 21, len: most, dedup_rate: 0.3, compressibility: 0.5, segment: 256 << 10 };
    let mut data =
        stream(options.seed, options.len, options.dedup_rate, options.compressibility, options.segment);
    let (source, tree, spec) =
        (room.path().join("source"), room.path().join("tree"), chunker("gear32:4K/16K/64K")?);
    std::fs::create_dir(&source)?;
    let mut lines = Lines::new(count.min(1000));
    let (mut at, mut new, mut steps) = (0, 0, 0);
    while at < most {
        let mut file = std::fs::File::create(source.join("part"))?;
        std::io::copy(&mut (&mut data).take(step), &mut file)?;
        // Without it the disk would still write this file while the store is measured.
        file.sync_all()?;
        drop(file);
        let put = write(lab, &store, &source, &format!("part{steps}"), spec, Way::Cpu, room.path())?;
        (at, new) = (at + step, new + put.new);
        let x = at as f64;
        lines.rate.exact(x, put.bytes as f64 / put.seconds / 1e6);
        // Never the same twice, because repeated files would be stored already. They are
        // overwritten: ext4 searches long for inodes that were not freed just now.
        small_files(&tree, steps, count)?;
        let put = write(lab, &store, &tree, &format!("small{steps}"), spec, Way::Cpu, room.path())?;
        std::fs::remove_dir_all(&tree)?;
        lines.small.exact(x, count as f64 / put.seconds);
        names(lab, &store, steps, count.min(1000), x, &mut lines)?;
        std::fs::write(source.join("part"), at.to_le_bytes().repeat(512))?;
        let tiny = write(lab, &store, &source, &format!("tiny{steps}"), spec, Way::Cpu, room.path())?;
        lines.latency[3].exact(x, tiny.seconds * 1e3);
        // Fingerprints in the recent table would not be in the filter yet.
        store.index.flush()?;
        lines.memory[0].exact(x, resident_bytes() as f64 / 1e6);
        lines.memory[1].exact(x, index_bytes(&store) as f64 / 1e6);
        steps += 1;
        lines.metadata.exact(x, database_bytes(&place)? as f64 / (steps * (count + 2)) as f64);
    }
    told(lab, lines, (most, new, step), count)
}

/// Looks up in the store's first directories, and lists and renames in the newest.
fn names(lab: &Lab, store: &Store, step: u64, count: u64, x: f64, lines: &mut Lines) -> Result<(), Failed> {
    let timed = |work: &mut dyn FnMut() -> Result<bool, Failed>| -> Result<Spread, Failed> {
        let mut millis = Vec::new();
        for _ in 0..lab.scale.pick(2, 30, 100) {
            let begun = Instant::now();
            let right = work()?;
            millis.push(begun.elapsed().as_secs_f64() * 1e3);
            check(right, "names are not what was put")?;
        }
        Ok(Spread::of(millis))
    };
    let first = StorePath::parse(b"small0/d000/d000/f0000007")?;
    let looked = timed(&mut || Ok(require(&*store.meta, At::Now, &first).is_ok()))?;
    let newest = StorePath::parse(format!("small{step}/d000/d000").as_bytes())?;
    let directory = require(&*store.meta, At::Now, &newest)?.number;
    let listed = timed(&mut || {
        let mut found = 0;
        listing::walk::<Failed>(&*store.meta, At::Now, directory, false, &mut |_, _| {
            found += 1;
            Ok(())
        })?;
        Ok(found == count)
    })?;
    let (one, other) = (newest.join(b"f0000003"), newest.join(b"renamed"));
    let mut back = false;
    let renamed = timed(&mut || {
        let (from, to) = if back { (&other, &one) } else { (&one, &other) };
        back = !back;
        Ok(edit::rename(store, std::slice::from_ref(from), to, None)?.entries == 1)
    })?;
    for (line, spread) in lines.latency.iter_mut().zip([looked, listed, renamed]) {
        line.push(x, spread);
    }
    Ok(())
}

fn told(lab: &Lab, lines: Lines, (most, new, step): (u64, u64, u64), count: u64) -> Result<Outcome, Failed> {
    let Lines { rate, small, memory, latency, metadata } = lines;
    let mut outcome = Outcome::default();
    outcome.find("throughput, last quarter of the first", 100.0 * last_of_first(&rate), "%", None);
    outcome.find("small files, last quarter of the first", 100.0 * last_of_first(&small), "%", None);
    outcome.find("new, of what was put", 100.0 * new as f64 / most as f64, "%", None);
    outcome.find("memory of the process, first step", memory[0].points[0].y, "MB", None);
    outcome.find("memory of the process, last step", memory[0].last(), "MB", None);
    for line in &latency {
        let name = format!("{}, last quarter over the first", line.name);
        outcome.find(name, last_of_first(line), "x", None);
    }
    outcome.find("metadata for a small file, last step", metadata.last(), "bytes", Some(600.0));
    let plot = |title: &str, y: Axis, series: Vec<Series>, limits: Vec<Limit>| Plot {
        title: title.into(),
        form: Form::Lines,
        x: Axis::log("put so far", "bytes"),
        y,
        series,
        limits,
    };
    let limit = |name: &str, y: f64| Limit { name: name.into(), y };
    let (disk, read) = (disk_rate(lab)? / 1e6, crate::similarity::memory_rate(lab) / 1e6);
    outcome.plots.push(plot(
        "Throughput of each step",
        Axis::log("throughput", "MB/s"),
        vec![rate],
        vec![limit("the file system, for what is new", disk), limit("memory, read by all cores", read)],
    ));
    outcome.plots.push(plot(
        &format!("{count} small files at each step"),
        Axis::log("files", "/s"),
        vec![small],
        vec![limit(
            "the file system below: as many files written, then synced once",
            files_rate(lab, count)?,
        )],
    ));
    let sync = limit("4 KiB made durable by the file system", sync_ms(lab)?);
    outcome.plots.push(plot("Latency of names", Axis::log("latency", "ms"), latency.into(), vec![sync]));
    // The requirement for the index, at the largest of these sizes.
    let asked = limit("what was asked of the index: 100 MB a TB", 100.0 * most as f64 / 1e12);
    outcome.plots.push(plot("Memory", Axis::new("memory", "MB"), memory.into(), vec![asked]));
    outcome.plots.push(plot(
        "Metadata for a file, small ones among large ones",
        Axis::new("of the database, for each file", "bytes"),
        vec![metadata],
        vec![limit("what was asked: 600 bytes a file", 600.0)],
    ));
    outcome.note(format!(
        "Steps of {}; each is one file, put by one call that ends when it is durable, then {count} small files (300 bytes on average), then one of 4 KiB. Looked up is a path of the \
         first step, listed and renamed is in the newest. The index is flushed before its memory is read.",
        crate::plot::bytes(step as f64)
    ));
    Ok(outcome)
}

/// The mean of the last quarter divided by that of the first.
fn last_of_first(line: &Series) -> f64 {
    let quarter = (line.points.len() / 4).max(1);
    let mean = |points: &[Point]| points.iter().map(|point| point.y).sum::<f64>() / points.len() as f64;
    mean(&line.points[line.points.len() - quarter..]) / mean(&line.points[..quarter])
}

fn index_bytes(store: &Store) -> usize {
    let memory = store.index.memory();
    memory.filter + memory.fences
}

/// Bytes of the embedded database. Its write-ahead log is bounded and left out: with few files it
/// would be most of the total.
fn database_bytes(store: &Path) -> Result<u64, Failed> {
    let bytes = std::fs::metadata(store.join(outrigger_store::DATABASE_FILE))?.len();
    check(bytes > 0, "the store's database is empty")?;
    Ok(bytes)
}

/// A size that leaves two fifths of the disk's free space: 30 % of the data repeats, and half of
/// the rest compresses away.
fn largest(work: &Path) -> Result<u64, Failed> {
    let system = rustix::fs::statvfs(work).map_err(std::io::Error::from)?;
    let free = system.f_bavail * system.f_frsize;
    let most = ((free as f64 * 0.6 / 0.4) as u64).min(256 << 30) >> 30;
    check(most >= 2, "the disk has no room for a store that grows")?;
    Ok(most << 30)
}

/// The rate at which the file system takes the same small files, synced together at the end, per
/// second.
fn files_rate(lab: &Lab, count: u64) -> Result<f64, Failed> {
    let room = lab.room()?;
    let (from, to) = (room.path().join("from"), room.path().join("to"));
    small_files(&from, 0, count)?;
    std::fs::create_dir(&to)?;
    let mut files = Vec::new();
    for directory in std::fs::read_dir(from.join("d000"))?.flatten() {
        for file in std::fs::read_dir(directory.path())?.flatten() {
            files.push((file.file_name(), std::fs::read(file.path())?));
        }
    }
    let begun = Instant::now();
    files.iter().try_for_each(|(name, data)| std::fs::write(to.join(name), data))?;
    let root = std::fs::File::open(&to)?;
    rustix::fs::syncfs(&root).map_err(std::io::Error::from)?;
    Ok(files.len() as f64 / begun.elapsed().as_secs_f64())
}

/// Milliseconds until 4 KiB more of a file are durable.
fn sync_ms(lab: &Lab) -> Result<f64, Failed> {
    use std::io::Write;
    let room = lab.room()?;
    let mut file = std::fs::File::create(room.path().join("file"))?;
    let mut times = Vec::new();
    for _ in 0..lab.scale.pick(1, 31, 101) {
        file.write_all(&[7; 4096])?;
        let begun = Instant::now();
        file.sync_all()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(times).median)
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
