//! An open file: its bytes at any offset, from its manifest.
//!
//! A manifest of a large file has millions of entries in a tree of nodes. A read descends that tree
//! once and keeps the entries it found as a *window*: a run of consecutive entries with their
//! positions. Reads in order go through a window and then load the next; reads here and there load
//! small ones. Each file keeps some, all files together at most [`ENTRIES_KEPT_MAX`] entries:
//! beyond that a window serves one read and is dropped, which costs time, not memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_format::{Entry, Fingerprint, Root};
use outrigger_store::read::Reader;
use outrigger_store::{Error, Result};

use super::ahead::{POST_BYTES, ReadAhead};
use crate::fs::Seek;

/// Entries kept in all windows together: some 24 MB.
const ENTRIES_KEPT_MAX: usize = 512 << 10;
/// Entries in the windows that a file keeps: 64 small ones, so that reads here and there in some
/// 250 MB find theirs.
const ENTRIES_PER_FILE: usize = 16 << 10;
/// Entries of a window that goes on where another ended.
const WINDOW_IN_ORDER: usize = 2048;
/// Entries of any other window.
const WINDOW: usize = 256;

/// A file counts as read in order after so many reads that each began near the end of the one
/// before …
const STREAK_MIN: u32 = 3;
/// … where near is this many bytes: the kernel's own read-ahead sends several reads at once, which
/// overtake each other.
const NEAR: u64 = 2 << 20;
/// How far ahead frames are decoded, bytes.
const AHEAD_BYTES: u64 = 4 << 20;

/// Counts the entries in the windows of all open files.
#[derive(Default)]
pub struct Budget(AtomicUsize);

struct Window {
    start: u64,
    end: u64,
    /// Positions and entries, rising.
    entries: Vec<(u64, Entry)>,
    /// Its share of the budget.
    kept: Option<Arc<Budget>>,
}

impl Window {
    /// The entries from the one that holds byte `at`.
    fn from(&self, at: u64) -> &[(u64, Entry)] {
        let after = self.entries.partition_point(|(start, _)| *start <= at);
        &self.entries[after.saturating_sub(1)..]
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(budget) = &self.kept {
            budget.0.fetch_sub(self.entries.len(), Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Order {
    /// Where the last read ended.
    next: u64,
    streak: u32,
    /// Posted up to here.
    posted: u64,
}

/// See the module.
pub struct StoredFile {
    root: Root,
    len: u64,
    budget: Arc<Budget>,
    /// The most recently used last.
    windows: Mutex<VecDeque<Arc<Window>>>,
    order: Mutex<Order>,
}

impl StoredFile {
    /// A file with the content `root`.
    pub fn new(root: Root, budget: &Arc<Budget>) -> Self {
        let (len, budget) = (root.len(), Arc::clone(budget));
        Self { root, len, budget, windows: Mutex::default(), order: Mutex::default() }
    }

    /// Appends the verified bytes `offset..offset + len` to `out`, as far as the file has them, and
    /// has what comes next decoded ahead.
    ///
    /// # Errors
    /// `Damaged`, with the position; and those of the backend.
    pub fn read(
        &self,
        reader: &Reader<'_>,
        ahead: &ReadAhead,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let end = offset.saturating_add(len as u64).min(self.len);
        if let Some((from, to)) = self.next_ahead(offset, end) {
            // An error further on is not this read's to report.
            let _ = self.post(reader, ahead, from, to);
        }
        let mut at = offset;
        while at < end {
            let window = self.window(reader, at)?;
            for (start, entry) in window.from(at) {
                if *start >= end {
                    break;
                }
                let skip = at - start;
                let want = (start + entry.len()).min(end) - at;
                append(reader, entry, skip as usize, want, out)
                    .map_err(|error| error.context(format!("at byte {start}")))?;
                at += want;
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`, which is below the file's length; the end of the
    /// file is a hole.
    ///
    /// # Errors
    /// When the manifest cannot be read.
    pub fn seek(&self, reader: &Reader<'_>, offset: u64, to: Seek) -> Result<Option<u64>> {
        let mut found = None;
        reader.entries(&self.root, offset, u64::MAX, &mut |at, entry| {
            let is_hole = matches!(entry, Entry::Hole { .. });
            if is_hole == (to == Seek::Hole) {
                found = Some(at.max(offset));
            }
            Ok(found.is_none())
        })?;
        Ok(found.or((to == Seek::Hole).then_some(self.len)))
    }

    /// The content.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The window that holds byte `at`, which is below the file's length.
    fn window(&self, reader: &Reader<'_>, at: u64) -> Result<Arc<Window>> {
        let mut windows = self.windows.lock().expect("no panic while held");
        if let Some(found) = windows.iter().rposition(|window| (window.start..window.end).contains(&at)) {
            let window = windows.remove(found).expect("it was just found");
            windows.push_back(Arc::clone(&window));
            return Ok(window);
        }
        let in_order = at == 0 || windows.iter().any(|window| window.end == at);
        drop(windows);
        let window = Arc::new(self.load(reader, at, if in_order { WINDOW_IN_ORDER } else { WINDOW })?);
        if window.kept.is_some() {
            let mut windows = self.windows.lock().expect("no panic while held");
            windows.push_back(Arc::clone(&window));
            let mut entries: usize = windows.iter().map(|window| window.entries.len()).sum();
            while entries > ENTRIES_PER_FILE
                && let Some(oldest) = windows.pop_front()
            {
                entries -= oldest.entries.len();
            }
        }
        Ok(window)
    }

    fn load(&self, reader: &Reader<'_>, at: u64, count: usize) -> Result<Window> {
        let mut entries: Vec<(u64, Entry)> = Vec::new();
        reader.entries(&self.root, at, u64::MAX, &mut |start, entry| {
            entries.push((start, entry));
            Ok(entries.len() < count)
        })?;
        let (Some((start, _)), Some((last, entry))) = (entries.first(), entries.last()) else {
            return Err(Error::damaged(format!("the manifest has nothing at byte {at}")));
        };
        let (start, end, len) = (*start, last + entry.len(), entries.len());
        let before = self.budget.0.fetch_add(len, Ordering::Relaxed);
        let kept = (before + len <= ENTRIES_KEPT_MAX).then(|| Arc::clone(&self.budget));
        if kept.is_none() {
            self.budget.0.fetch_sub(len, Ordering::Relaxed);
        }
        Ok(Window { start, end, entries, kept })
    }

    /// The range to decode ahead, now that `offset..end` is read. A new range is posted when half
    /// of the last one is used up, not at every read.
    fn next_ahead(&self, offset: u64, end: u64) -> Option<(u64, u64)> {
        let mut order = self.order.lock().expect("no panic while held");
        if offset.abs_diff(order.next) > NEAR {
            *order = Order { next: end, streak: 0, posted: end };
            return None;
        }
        order.streak += 1;
        order.next = order.next.max(end);
        if order.streak < STREAK_MIN || order.posted >= order.next + AHEAD_BYTES / 2 {
            return None;
        }
        let from = order.posted.max(order.next);
        let to = (order.next + AHEAD_BYTES).min(self.len);
        order.posted = to.max(order.posted);
        (from < to).then_some((from, to))
    }

    fn post(&self, reader: &Reader<'_>, ahead: &ReadAhead, from: u64, to: u64) -> Result<()> {
        let (mut chunks, mut bytes, mut at): (Vec<Fingerprint>, u64, u64) = (Vec::new(), 0, from);
        while at < to {
            let window = self.window(reader, at)?;
            for (start, entry) in window.from(at) {
                if *start >= to {
                    break;
                }
                if let Entry::Chunk { fingerprint, .. } = entry {
                    chunks.push(*fingerprint);
                    bytes += entry.len();
                }
                at = start + entry.len();
                if bytes >= POST_BYTES {
                    bytes = 0;
                    if !ahead.post(std::mem::take(&mut chunks)) {
                        return Ok(());
                    }
                }
            }
        }
        if !chunks.is_empty() {
            ahead.post(chunks);
        }
        Ok(())
    }
}

/// Appends `want` bytes of an entry from its byte `skip` on.
fn append(reader: &Reader<'_>, entry: &Entry, skip: usize, want: u64, out: &mut Vec<u8>) -> Result<()> {
    let before = out.len();
    if let Entry::Chunk { fingerprint, len } = entry {
        reader.append_chunk(fingerprint, *len, out)?;
        if skip > 0 {
            out.drain(before..before + skip);
        }
    }
    // A chunk is cut to the wanted bytes; a hole has given nothing yet.
    out.resize(before + want as usize, 0);
    Ok(())
}
