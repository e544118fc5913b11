//! The staging log beside plain writes of the same sizes to a file of the same directory, in turn.
//!
//! `cargo bench -p outrigger-store --bench staging -- [--dir DIR] [--rounds N]`. Each figure is the
//! best of the rounds. Appended data is read back and compared. Without `--bench` among the
//! arguments (`cargo test`) it runs a tiny size, so that it never rots.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::error::Error;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::time::Instant;

use outrigger_format::StoreId;
use outrigger_format::staging::Operation;
use outrigger_store::staging::{Appended, Log, Options};
use rustix::fs::{Mode, OFlags};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// How much a run does.
#[derive(Clone, Copy)]
struct Size {
    /// Bytes of all writes of one length.
    bytes: usize,
    /// Syncs of each thread.
    syncs: usize,
}

fn open(dir: &Path) -> Result<Log> {
    let options = Options { capacity: 4 << 30, ..Options::new(StoreId([1; 16])) };
    Ok(Log::open(dir, options, &mut |_| Ok(()))?.0)
}

fn write(log: &Log, inode: u64, offset: u64, data: &[u8]) -> Result<Appended> {
    let _room = log.reserve(data.len() as u64 + 256, None)?;
    Ok(log.append(&Operation::Write { inode, offset }, data)?)
}

/// Bytes that differ from block to block.
fn block(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let word = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(word).collect()
}

/// A plain file, written through the page cache.
struct Plain(rustix::fd::OwnedFd);

impl Plain {
    fn create(dir: &Path) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        Ok(Self(rustix::fs::open(dir.join("plain"), flags, Mode::RUSR | Mode::WUSR)?))
    }

    fn write(&self, data: &[u8], at: u64) -> Result<()> {
        let written = rustix::io::pwritev(&self.0, &[IoSlice::new(data)], at)?;
        assert_eq!(written, data.len(), "the disk is full");
        Ok(())
    }
}

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

/// A fresh directory for one measurement. Data of earlier ones is on disk and removed, so their
/// write-back is not in this one's time.
fn fresh(dir: &Path) -> Result<PathBuf> {
    let dir = dir.join("staging-bench");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    rustix::fs::syncfs(rustix::fs::open(&dir, OFlags::RDONLY, Mode::empty())?)?;
    Ok(dir)
}

/// Appends of `len` bytes, not synced: seconds of the log, and of plain writes.
fn appends(dir: &Path, len: usize, size: Size) -> Result<(f64, f64)> {
    let (data, count) = (block(len), size.bytes / len);
    let log = open(&fresh(dir)?)?;
    let mut places = Vec::with_capacity(count);
    let ours = seconds(|| {
        for at in 0..count {
            places.push(write(&log, 2, (at * len) as u64, &data)?);
        }
        Ok(())
    })?;
    let mut back = vec![0; len];
    for appended in places.iter().step_by(count / 16 + 1) {
        log.read(appended.location, &mut back)?;
        assert_eq!(back, data, "the log gives back what was written");
    }
    drop(log);
    let plain = Plain::create(&fresh(dir)?)?;
    let theirs = seconds(|| (0..count).try_for_each(|at| plain.write(&data, (at * len) as u64)))?;
    Ok((ours, theirs))
}

/// Each thread writes 4 KiB and waits until that is on disk, again and again: seconds of the log,
/// and of plain files, one a thread.
fn syncs(dir: &Path, threads: usize, size: Size) -> Result<(f64, f64)> {
    let data = block(4096);
    let log = open(&fresh(dir)?)?;
    let failed = "the benchmark's disk fails";
    let ours = seconds(|| {
        std::thread::scope(|scope| {
            for inode in 0..threads {
                let (log, data) = (&log, &data);
                scope.spawn(move || {
                    for at in 0..size.syncs {
                        let appended = write(log, inode as u64, at as u64 * 4096, data).expect(failed);
                        log.sync_to(appended.sequence).expect(failed);
                    }
                });
            }
        });
        Ok(())
    })?;
    assert_eq!(log.durable(), (threads * size.syncs) as u64);
    drop(log);
    let dir = fresh(dir)?;
    let files = (0..threads).map(|thread| {
        let dir = dir.join(thread.to_string());
        std::fs::create_dir(&dir)?;
        Plain::create(&dir)
    });
    let files: Vec<Plain> = files.collect::<Result<_>>()?;
    let theirs = seconds(|| {
        std::thread::scope(|scope| {
            for file in &files {
                let data = &data;
                scope.spawn(move || {
                    for at in 0..size.syncs {
                        file.write(data, at as u64 * 4096).expect(failed);
                        rustix::fs::fdatasync(&file.0).expect(failed);
                    }
                });
            }
        });
        Ok(())
    })?;
    Ok((ours, theirs))
}

/// Seconds to read back a log of `size.bytes` in records of 64 KiB.
fn replay(dir: &Path, size: Size) -> Result<f64> {
    let dir = fresh(dir)?;
    let data = block(64 << 10);
    let log = open(&dir)?;
    let count = size.bytes / data.len();
    (0..count).try_for_each(|at| write(&log, 2, (at * data.len()) as u64, &data).map(drop))?;
    drop(log);
    seconds(|| {
        let options = Options { capacity: 4 << 30, ..Options::new(StoreId([1; 16])) };
        let (_, report) = Log::open(&dir, options, &mut |_| Ok(()))?;
        assert_eq!(report.last, count as u64);
        Ok(())
    })
}

/// The least of each, over some rounds.
fn best(rounds: usize, mut measure: impl FnMut() -> Result<(f64, f64)>) -> Result<(f64, f64)> {
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        let (ours, theirs) = measure()?;
        best = (best.0.min(ours), best.1.min(theirs));
    }
    Ok(best)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut full, mut rounds) = (false, 3);
    let mut dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => full = true,
            "--dir" => dir = args.next().ok_or("--dir needs a directory")?.into(),
            "--rounds" => rounds = args.next().ok_or("--rounds needs a number")?.parse()?,
            _ => {}
        }
    }
    let (size, rounds) = if full {
        (Size { bytes: 512 << 20, syncs: 300 }, rounds)
    } else {
        (Size { bytes: 1 << 20, syncs: 2 }, 1)
    };
    let print = |what: &str, unit: &str, amount: f64, (ours, theirs): (f64, f64)| {
        let (ours, theirs) = (amount / ours, amount / theirs);
        println!("{what:<24} {ours:>10.0} {unit:<5} plain {theirs:>10.0} {unit:<5} {:.2} x", ours / theirs);
    };
    let count = (size.bytes / 4096) as f64;
    print("append 4 KiB", "/s", count, best(rounds, || appends(&dir, 4096, size))?);
    let megabytes = size.bytes as f64 / 1e6;
    print("append 1 MiB", "MB/s", megabytes, best(rounds, || appends(&dir, 1 << 20, size))?);
    for threads in [1, 8] {
        let count = (threads * size.syncs) as f64;
        let what = format!("4 KiB and sync, {threads} thr.");
        print(&what, "/s", count, best(rounds, || syncs(&dir, threads, size))?);
    }
    let seconds = best(rounds, || Ok((replay(&dir, size)?, 0.0)))?.0;
    println!("{:<24} {:>10.0} MB/s", "replay", megabytes / seconds);
    std::fs::remove_dir_all(dir.join("staging-bench"))?;
    Ok(())
}
