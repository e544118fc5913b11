//! Chooses runs to merge, and merges them.
//!
//! A lookup asks every run's filter, so few runs matter more than few rewrites. A run stays as long
//! as it is at least twice as large as all smaller ones together; otherwise they are merged with
//! it. After n flushes there are at most about log3 n + 1 runs, and an entry of 16 bytes is
//! rewritten about 2 log3 n times. For 64 M entries that is some 150 bytes written for every 16 KiB
//! chunk. (Merging by fours writes half of that and leaves three times the runs.) If more than a
//! quarter of a run's packs are dead, it is merged as well, if need be alone: that is how deletions
//! leave the filters.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_format::{PackId, Place};

use super::locality::PackSet;
use super::run::{PAGE_LEN, PIECE_LEN, Page, Run, Stamp, check_page, entries, word};
use super::run_writer::RunWriter;
use crate::error::{Context, Error, ErrorKind, Result};

/// Picks the runs to merge now; empty when all may stay.
pub(super) fn choose(runs: &[Arc<Run>], dead: &PackSet) -> Vec<Arc<Run>> {
    let mut by_size: Vec<Arc<Run>> = runs.to_vec();
    by_size.sort_by_key(|run| std::cmp::Reverse((run.entries, run.number)));
    let mut smaller: u64 = by_size.iter().map(|run| run.entries).sum();
    for at in 0..by_size.len() {
        smaller -= by_size[at].entries;
        if by_size[at].entries < smaller.saturating_mul(2) {
            return by_size.split_off(at);
        }
    }
    by_size.retain(|run| {
        let gone = run.packs.iter().filter(|pack| dead.contains(pack)).count();
        gone * 4 > run.packs.len()
    });
    by_size.truncate(1);
    by_size
}

/// Streams a run's entries in order, a MiB at a time.
struct Reader {
    run: Arc<Run>,
    piece: Vec<u8>,
    next_page: usize,
    ready: VecDeque<(u64, u64)>,
    pages: std::ops::Range<usize>,
}

impl Reader {
    fn new(run: Arc<Run>) -> Self {
        Self { run, piece: Vec::new(), next_page: 0, ready: VecDeque::with_capacity(256), pages: 0..0 }
    }

    /// The next entry without taking it; `None` at the end.
    fn peek(&mut self) -> Result<Option<(u64, u64)>> {
        if self.ready.is_empty() {
            self.fill()?;
        }
        Ok(self.ready.front().copied())
    }

    fn fill(&mut self) -> Result<()> {
        let fail = |run: &Run| {
            run.failed.store(true, Ordering::Release);
            format!("merging index run {:08}", run.number)
        };
        if self.pages.is_empty() {
            let count = (self.run.pages() - self.next_page).min(PIECE_LEN / PAGE_LEN);
            if count == 0 {
                return Ok(());
            }
            self.piece.resize(count * PAGE_LEN, 0);
            let read = self.run.file.read_exact_at(&mut self.piece, Run::page_offset(self.next_page));
            read.context(|| fail(&self.run))?;
            self.next_page += count;
            self.pages = 0..count;
        }
        let Some(at) = self.pages.next() else { return Ok(()) };
        let pages: &mut [Page] = self.piece.as_chunks_mut().0;
        check_page(&mut pages[at]).context(|| fail(&self.run))?;
        self.ready.extend(entries(&pages[at]).iter().map(|entry| (word(entry, 0), word(entry, 8))));
        Ok(())
    }
}

/// Merges `inputs` into a new file at `path`, without the entries of `dropped` packs; `None` when
/// nothing is left. Takes about a MiB an input, and the new run's filter and fences. An input that
/// proves damaged is marked as failed.
///
/// # Errors
/// `Cancelled` once `stop` is set; damage; I/O.
pub(super) fn merge(
    inputs: &[Arc<Run>],
    dropped: &PackSet,
    path: &Path,
    stamp: Stamp,
    stop: &AtomicBool,
) -> Result<Option<Run>> {
    let expected = inputs.iter().map(|run| run.entries).sum();
    let mut writer = RunWriter::create(path, stamp, expected)?;
    let mut readers: Vec<Reader> = inputs.iter().map(|run| Reader::new(run.clone())).collect();
    let mut heads = Vec::with_capacity(readers.len());
    for reader in &mut readers {
        heads.push(reader.peek()?);
    }
    let least = |heads: &[Option<(u64, u64)>]| {
        (0..heads.len()).filter(|&at| heads[at].is_some()).min_by_key(|&at| heads[at])
    };
    let mut count = 0u64;
    while let Some(at) = least(&heads) {
        if let Some((prefix, place)) = heads[at]
            && (dropped.is_empty() || !dropped.contains(&Place::from_u64(place).pack))
        {
            writer.push(prefix, place)?;
        }
        readers[at].ready.pop_front();
        heads[at] = readers[at].peek()?;
        count += 1;
        if count.is_multiple_of(65_536) && stop.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "merging index runs"));
        }
    }
    let packs = inputs.iter().flat_map(|run| run.packs.iter().copied());
    writer.finish(packs.filter(|pack| !dropped.contains(pack)).collect::<Vec<PackId>>())
}
