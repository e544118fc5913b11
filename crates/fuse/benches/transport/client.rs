//! The program that uses the mount, in a process of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use outrigger_workload::Rng;
use rustix::fs::{OFlags, Timestamps};

use crate::memory::{BLOCK, FILE_BYTES, FILE_NAME, value_at};

/// A pattern of system calls, over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// 4 KiB at random, past the page cache.
    Read,
    /// 4 KiB at random, sent on at once.
    Write,
    /// `fstat`.
    Getattr,
    /// A file of 10 KiB: created, written, given times, closed.
    Create,
    /// 1 MiB in order, past the page cache.
    ReadLarge,
    /// 1 MiB in order.
    WriteLarge,
}

impl Work {
    /// All, as the table has them.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Getattr, Self::Create, Self::ReadLarge, Self::WriteLarge];

    /// Bytes of one read or write.
    fn bytes(self) -> usize {
        match self {
            Self::Read | Self::Write => BLOCK as usize,
            Self::Getattr => 0,
            Self::Create => 10 << 10,
            Self::ReadLarge | Self::WriteLarge => 1 << 20,
        }
    }
}

/// Bytes as the file system has them at the beginning of a file.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(value_at).collect()
}

/// Does `work` for `time` with so many threads; returns operations per second.
pub fn run(work: Work, dir: &Path, threads: usize, time: Duration) -> io::Result<f64> {
    let started = Instant::now();
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || one(work, dir, thread, time))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<io::Result<u64>>()
    })?;
    Ok(counts as f64 / started.elapsed().as_secs_f64())
}

fn one(work: Work, dir: &Path, thread: usize, time: Duration) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if matches!(work, Work::Read | Work::ReadLarge) {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(dir.join(format!("{FILE_NAME}{thread}")))?;
    let mut rng = Rng::new(thread as u64 + 1);
    let source = pattern((1 << 20) + 252 * BLOCK as usize);
    let mut bytes = vec![0; work.bytes()];
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < time {
        let blocks = FILE_BYTES / bytes.len().max(1) as u64;
        let offset = match work {
            Work::Read | Work::Write => rng.index(blocks as usize) as u64 * BLOCK,
            _ => count % blocks * bytes.len() as u64,
        };
        match work {
            Work::Read | Work::ReadLarge => {
                file.read_exact_at(&mut bytes, offset)?;
                let last = offset + bytes.len() as u64 - 1;
                let right = bytes[0] == value_at(offset) && bytes[bytes.len() - 1] == value_at(last);
                if !right {
                    return Err(io::Error::other(format!("wrong bytes at {offset}")));
                }
            }
            Work::Write | Work::WriteLarge => {
                let from = (offset / BLOCK % 251 * BLOCK) as usize;
                file.write_all_at(&source[from..from + bytes.len()], offset)?;
            }
            Work::Getattr => {
                if file.metadata()?.len() != FILE_BYTES {
                    return Err(io::Error::other("wrong length"));
                }
            }
            Work::Create => create(
                &dir.join(format!("new-{}-{thread}-{count}", std::process::id())),
                &source[..bytes.len()],
            )?,
        }
        count += 1;
    }
    Ok(count)
}

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.write_all_at(bytes, 0)?;
    let time = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
    Ok(())
}
