//! Writes one pack file.
//!
//! Appended bytes gather in a page-aligned stage of [`STAGE_LEN`]; a full stage is written at once, past the page cache
//! (`O_DIRECT`), into room reserved for [`RESERVE_LEN`] at a time. The thread that appends waits for the device: it is
//! the pipeline's pack stage, with nothing else to do. A pack that fits into one stage (most packs of manifest nodes)
//! is written through the page cache in one piece, since it will be read again soon and one device write less counts
//! more there than the copy.
//!
//! Why not simply buffered writes: measured in November 2026 on ext4, a virtio disk and two cores (40 packs of 64 MiB in
//! appends of 100 kB, each pack sealed). Three runs, each the median of 3 to 5, while other builds used the machine, the
//! third at a load of 11: compare within a run.
//!
//! | way | wall, GB/s | thread's CPU, s/GB | seal, ms |
//! | --- | --- | --- | --- |
//! | buffered | 0.36, 0.70, 0.45 | 1.31, 0.55, 0.51 | 30, 39, 50 |
//! | buffered, reserved | 0.56, 1.09, 0.50 | 0.50, 0.43, 0.42 | 36, 34, 46 |
//! | buffered, reserved, write-back begun every 8 MiB | 0.91, 1.55, 0.58 | 0.65, 0.44, 0.42 | 17, 8, 25 |
//! | direct by 1 MiB, reserved | 0.85, 1.45, 0.69 | 0.45, 0.21, 0.22 | 5, 4, 6 |
//! | direct by 4 MiB | 1.11, 1.32, 0.82 | 0.30, 0.25, 0.18 | 5, 0, 5 |
//! | **direct by 4 MiB, reserved** | 1.31, 1.35, 0.81 | 0.25, 0.21, 0.19 | 6, 0, 5 |
//! | direct by 8 MiB, reserved | 0.98, 1.00, 0.70 | 0.28, 0.25, 0.21 | 4, 3, 8 |
//!
//! Direct writes take half the thread's processor time in every run, and leave the kernel no write-back to do, which is
//! not in these figures. They were faster in two runs; in the quietest, buffered writes with early write-back were, by
//! 15 %. Reserving is not told from noise with direct writes; it keeps a pack in one piece. The page cache is left to
//! what is read.
//!
//! Where the file system has no direct I/O, stages are written through the page cache, and their write-back is begun at
//! once, so that the final sync is short.

use std::io::IoSlice;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};

use outrigger_format::PackId;
use rustix::fd::OwnedFd;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

use super::Shared;
use crate::backend::PackWriter;
use crate::error::{Context, Error, ErrorKind, Result};

/// Bytes gathered before they are written.
pub(super) const STAGE_LEN: usize = 4 << 20;

/// Room reserved at a time once a pack outgrows one stage: a usual pack.
const RESERVE_LEN: u64 = 64 << 20;

/// Alignment of memory, offset and length that direct I/O wants on any device we know.
const ALIGN: usize = 4096;

/// Stages kept for the next pack: their memory has been touched already, which costs more than zeroing it.
const SPARE_STAGES: usize = 4;

/// Stages that wait for a writer.
#[derive(Default)]
pub(super) struct StagePool(Mutex<Vec<Stage>>);

/// `STAGE_LEN` bytes, aligned.
struct Stage {
    bytes: Vec<u8>,
    start: usize,
}

impl Stage {
    fn new() -> Self {
        let bytes = vec![0; STAGE_LEN + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..STAGE_LEN]
    }
}

impl StagePool {
    fn take(&self) -> Stage {
        self.0.lock().expect("no panic while it is held").pop().unwrap_or_else(Stage::new)
    }

    fn give(&self, stage: Stage) {
        let mut spare = self.0.lock().expect("no panic while it is held");
        if spare.len() < SPARE_STAGES {
            spare.push(stage);
        }
    }
}

/// How full stages get to the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    /// No stage has been written yet.
    Undecided,
    /// Past the page cache.
    Direct,
    /// Through it.
    Buffered,
}

/// One pack being written.
pub(super) struct PackFile {
    file: OwnedFd,
    id: PackId,
    shared: Arc<Shared>,
    /// `None` only while it is being dropped.
    stage: Option<Stage>,
    /// Bytes in the stage.
    staged: usize,
    /// Bytes in the file.
    written: u64,
    /// Bytes reserved for the file; 0 where that does not work.
    reserved: u64,
    path: Path,
    /// A write failed: the file's content is not what was appended.
    failed: bool,
}

impl PackFile {
    pub(super) fn new(file: OwnedFd, id: PackId, shared: Arc<Shared>) -> Self {
        let stage = Some(shared.stages.take());
        let path = Path::Undecided;
        Self { file, id, shared, stage, staged: 0, written: 0, reserved: 0, path, failed: false }
    }

    fn name(&self) -> String {
        format!("pack {}", self.shared.full(self.id).display())
    }

    /// Writes a full stage.
    fn flush(&mut self) -> Result<()> {
        if self.path == Path::Undecided {
            self.path = if self.set_direct(true) { Path::Direct } else { Path::Buffered };
        }
        let end = self.written + STAGE_LEN as u64;
        if end > self.reserved {
            // Reserving is an optimisation: where it fails, for want of room too, the writes themselves will tell.
            let flags = FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.file, flags, self.written, RESERVE_LEN).is_ok() {
                self.reserved = self.written + RESERVE_LEN;
            }
        }
        let begin = self.written;
        self.write_staged(STAGE_LEN)?;
        if self.path == Path::Buffered {
            // Begins the write-back of dirty pages, and does not wait for it.
            let _ =
                rustix::fs::fadvise(&self.file, begin, NonZeroU64::new(STAGE_LEN as u64), Advice::DontNeed);
        }
        Ok(())
    }

    /// Writes the first `len` staged bytes to the end of the file, and moves the rest to the front of the stage.
    fn write_staged(&mut self, len: usize) -> Result<()> {
        let mut done = 0;
        while done < len {
            let stage = self.stage.as_mut().expect("there until dropped").bytes();
            match rustix::io::pwrite(&self.file, &stage[done..len], self.written) {
                Ok(0) => {
                    self.failed = true;
                    return Err(Error::new(ErrorKind::Io, format!("{} takes no more bytes", self.name())));
                }
                Ok(n) => {
                    done += n;
                    self.written += n as u64;
                    // A short direct write (the disk is filling up) can leave the rest unaligned.
                    if self.path == Path::Direct && done < len && n % ALIGN != 0 {
                        self.leave_direct();
                    }
                }
                Err(Errno::INTR) => {}
                // A device that wants more alignment than ours.
                Err(Errno::INVAL) if self.path == Path::Direct => self.leave_direct(),
                Err(error) => {
                    self.failed = true;
                    let at = self.written;
                    return Err(error).context(|| format!("cannot write at offset {at} of {}", self.name()));
                }
            }
        }
        self.stage.as_mut().expect("there until dropped").bytes().copy_within(len..self.staged, 0);
        self.staged -= len;
        Ok(())
    }

    fn leave_direct(&mut self) {
        self.set_direct(false);
        self.path = Path::Buffered;
    }

    /// Turns direct I/O on or off; whether that worked.
    fn set_direct(&self, on: bool) -> bool {
        rustix::fs::fcntl_getfl(&self.file)
            .and_then(|flags| {
                let mut flags = flags;
                flags.set(OFlags::DIRECT, on);
                rustix::fs::fcntl_setfl(&self.file, flags)
            })
            .is_ok()
    }

    fn refuse_failed(&self) -> Result<()> {
        if !self.failed {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Io, format!("an earlier write to {} failed", self.name())))
    }
}

impl PackWriter for PackFile {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.refuse_failed()?;
        for part in parts {
            let mut rest: &[u8] = part;
            while !rest.is_empty() {
                if self.staged == STAGE_LEN {
                    self.flush()?;
                }
                let staged = self.staged;
                let n = rest.len().min(STAGE_LEN - staged);
                let stage = self.stage.as_mut().expect("there until dropped").bytes();
                stage[staged..staged + n].copy_from_slice(&rest[..n]);
                self.staged += n;
                rest = &rest[n..];
            }
        }
        Ok(())
    }

    fn seal(mut self: Box<Self>) -> Result<()> {
        self.refuse_failed()?;
        if self.path == Path::Direct {
            self.write_staged(self.staged - self.staged % ALIGN)?;
            self.leave_direct();
        }
        self.write_staged(self.staged)?;
        if self.reserved > self.written {
            // To the length it has: gives back what was reserved beyond.
            rustix::fs::ftruncate(&self.file, self.written)
                .context(|| format!("cannot give back room of {}", self.name()))?;
        }
        rustix::fs::fdatasync(&self.file).context(|| format!("cannot sync {}", self.name()))?;
        self.shared.sync_directory(self.id)
    }
}

impl Drop for PackFile {
    fn drop(&mut self) {
        if let Some(stage) = self.stage.take() {
            self.shared.stages.give(stage);
        }
    }
}
