//! Writes a run front to back from a sorted stream of entries, in memory bounded by its filter and
//! fences.
//!
//! Entries gather in a page; a full page is sealed into a 1 MiB buffer that is written when it is
//! full. The entries of one prefix stay together: a group that does not fit into a page moves to
//! the next one. The header is written last, as its counts are only known at the end. Nothing
//! trusts the file before it was renamed, which happens after [`RunWriter::finish`] made it
//! durable.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use outrigger_format::PackId;

use super::filter::{Filter, bits_per_key};
use super::run::{
    Header, PAGE_ENTRIES, PAGE_LEN, PIECE_LEN, Page, Run, SectionSum, Stamp, check_page, entries, seal_page,
    word,
};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::owner;

/// A run being written, to a file that is its caller's to name or to remove.
pub(super) struct RunWriter {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    page: Box<Page>,
    used: usize,
    /// Where in the page the entries of `last`'s prefix begin.
    group: usize,
    last: Option<(u64, u64)>,
    pending: Vec<u8>,
    written: u64,
    entries: u64,
    expected: u64,
    fences: Vec<u64>,
    filter: Filter,
}

impl RunWriter {
    /// Begins a run in the new file `path`, of about `expected` entries.
    pub fn create(path: &Path, stamp: Stamp, expected: u64) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        owner::give_path(path);
        Ok(Self {
            path: path.to_path_buf(),
            file: file.context(|| format!("creating {}", path.display()))?,
            stamp,
            page: Box::new([0; PAGE_LEN]),
            used: 0,
            group: 0,
            last: None,
            pending: Vec::with_capacity(PIECE_LEN),
            written: PAGE_LEN as u64,
            entries: 0,
            expected,
            fences: Vec::new(),
            filter: Filter::new(expected),
        })
    }

    /// Appends an entry. One that equals the last is skipped; a smaller one is refused.
    pub fn push(&mut self, prefix: u64, place: u64) -> Result<()> {
        match self.last {
            Some(last) if last == (prefix, place) => return Ok(()),
            Some(last) if last > (prefix, place) => {
                return Err(Error::new(ErrorKind::Invalid, "index entries must come in rising order"));
            }
            Some((same, _)) if same == prefix => {}
            _ => {
                if self.used == PAGE_ENTRIES {
                    self.end_page(self.used)?;
                }
                self.group = self.used;
                self.filter.insert(prefix);
            }
        }
        if self.used == PAGE_ENTRIES {
            // The group goes on: it moves to a page of its own, or, if it has one already, into the
            // next.
            self.end_page(if self.group > 0 { self.group } else { self.used })?;
        }
        let at = self.used * 16;
        self.page[at..at + 8].copy_from_slice(&prefix.to_le_bytes());
        self.page[at + 8..at + 16].copy_from_slice(&place.to_le_bytes());
        self.used += 1;
        self.entries += 1;
        self.last = Some((prefix, place));
        Ok(())
    }

    /// Seals the first `count` entries as a page; the others begin the next one.
    fn end_page(&mut self, count: usize) -> Result<()> {
        let mut sealed = *self.page;
        self.fences.push(word(&sealed[..], 0));
        seal_page(&mut sealed, count);
        self.pending.extend_from_slice(&sealed);
        self.page.copy_within(count * 16..self.used * 16, 0);
        self.used -= count;
        self.group = 0;
        if self.pending.len() >= PIECE_LEN { self.write_pending() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> Result<()> {
        let what = || format!("writing {}", self.path.display());
        self.file.write_all_at(&self.pending, self.written).context(what)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes a section of words; returns its sum.
    fn write_words(&mut self, words: impl Iterator<Item = u64>) -> Result<u64> {
        let mut sum = SectionSum::default();
        for word in words {
            self.pending.extend_from_slice(&word.to_le_bytes());
            if self.pending.len() >= PIECE_LEN {
                sum.piece(&self.pending);
                self.write_pending()?;
            }
        }
        if !self.pending.is_empty() {
            sum.piece(&self.pending);
            self.write_pending()?;
        }
        Ok(sum.finish())
    }

    /// Ends the run, which covers `packs`, and makes its bytes durable; its name is the caller's to
    /// make so. The run has no number yet. `None`, and no file, when there were no entries.
    pub fn finish(mut self, mut packs: Vec<PackId>) -> Result<Option<Run>> {
        if self.entries == 0 {
            return Ok(None);
        }
        self.end_page(self.used)?;
        self.write_pending()?;
        packs.sort_unstable();
        packs.dedup();
        let mut filter = std::mem::replace(&mut self.filter, Filter::with_blocks(1));
        if self.entries * bits_per_key(self.entries) < self.expected * bits_per_key(self.expected) / 8 * 7 {
            filter = self.filter_again()?;
        }
        let fences = std::mem::take(&mut self.fences);
        let fences_sum = self.write_words(fences.iter().copied())?;
        let filter_sum = self.write_words(filter.words())?;
        let packs_sum = self.write_words(packs.iter().map(|pack| pack.0))?;
        let header = Header {
            entries: self.entries,
            pages: fences.len() as u64,
            filter_len: filter.memory() as u64,
            packs: packs.len() as u32,
            stamp: self.stamp,
            packs_sum,
            fences_sum,
            filter_sum,
        };
        let what = || format!("writing {}", self.path.display());
        self.file.write_all_at(&header.encode(), 0).context(what)?;
        self.file.sync_data().context(what)?;
        let file = self.file.try_clone().context(what)?;
        Ok(Some(Run::new(0, file, self.entries, fences, filter, packs)))
    }

    /// Fewer entries came than expected (a merge dropped dead packs): reads the pages back for a
    /// filter that fits.
    fn filter_again(&self) -> Result<Filter> {
        let mut filter = Filter::new(self.entries);
        let mut pages = vec![0; PIECE_LEN];
        let mut at = PAGE_LEN as u64;
        while at < self.written {
            let len = (self.written - at).min(PIECE_LEN as u64) as usize;
            let what = || format!("reading {} back", self.path.display());
            self.file.read_exact_at(&mut pages[..len], at).context(what)?;
            for page in pages[..len].as_chunks_mut::<PAGE_LEN>().0 {
                check_page(page).context(what)?;
                entries(page).iter().for_each(|entry| filter.insert(word(entry, 0)));
            }
            at += len as u64;
        }
        Ok(filter)
    }
}
