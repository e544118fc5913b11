//! A run: an immutable sorted file of (prefix, place) entries, and the parts of it that are in
//! memory.
//!
//! The filter, the fences (the first prefix of every page) and the list of covered packs are in
//! memory; the pages stay on disk. A lookup that the filter lets through finds its page by the
//! fences, and reads just that page. Entries of one prefix never straddle two pages; if they need
//! more than a page, they fill pages of their own. Prefixes are evenly spread, so two
//! interpolations land within a few fences of the page. A galloping and then a binary search bound
//! the cost of uneven ones by log n.
//!
//! Any number of threads use a run at once: it never changes, and its file stays readable after it
//! was unlinked. Every section and every page has a checksum, so a damaged file gives an error,
//! never a wrong answer.
//!
//! ```text
//! header, 4096 bytes (the rest is zero)
//!   0 magic "OUTRRUN1"  8 version u32  12 entries per page u32  16 entries u64  24 pages u64  32 filter bytes u64
//!  40 packs u32  44 key check u32  48 store id  64 sum of packs  72 sum of fences  80 sum of filter  88 sum of 0..88
//! pages      4096 bytes each: 255 × (prefix u64, place u64), 4080 entries used u64, 4088 checksum of the
//!            whole page with these 8 bytes as zero
//! fences     u64 a page        filter  u64 words        packs  u64 each, rising
//! ```
//! A section's sum is the checksum of the checksums of its 1 MiB pieces, so that it can be made
//! while it streams.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_format::{Cursor, FormatError, PackId, Put, StoreId, checksum};
use rustix::fs::Advice;

use super::filter::Filter;
use crate::error::{Context, Error, Result};

pub(super) const PAGE_LEN: usize = 4096;
pub(super) const PAGE_ENTRIES: usize = 255;
pub(super) const PIECE_LEN: usize = 1 << 20;
const PAGE_SUM_AT: usize = PAGE_LEN - 8;
const PAGE_USED_AT: usize = PAGE_LEN - 16;
const WHAT: &str = "index run";
const MAGIC: [u8; 8] = *b"OUTRRUN1";
const VERSION: u32 = 1;

/// One page as it is on disk.
pub(super) type Page = [u8; PAGE_LEN];

/// Whose fingerprints a run has, and with which key their prefixes were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub store: StoreId,
    /// Derived from the key; 0 when prefixes are plain.
    pub key_check: u32,
}

/// The fixed fields at a run's beginning.
pub(super) struct Header {
    pub entries: u64,
    pub pages: u64,
    pub filter_len: u64,
    pub packs: u32,
    pub stamp: Stamp,
    pub packs_sum: u64,
    pub fences_sum: u64,
    pub filter_sum: u64,
}

impl Header {
    pub fn encode(&self) -> Page {
        let mut out = Vec::with_capacity(PAGE_LEN);
        out.extend_from_slice(&MAGIC);
        out.put_u32(VERSION);
        out.put_u32(PAGE_ENTRIES as u32);
        out.put_u64(self.entries);
        out.put_u64(self.pages);
        out.put_u64(self.filter_len);
        out.put_u32(self.packs);
        out.put_u32(self.stamp.key_check);
        out.extend_from_slice(&self.stamp.store.0);
        out.put_u64(self.packs_sum);
        out.put_u64(self.fences_sum);
        out.put_u64(self.filter_sum);
        out.put_u64(checksum(&[&out]));
        let mut page = [0; PAGE_LEN];
        page[..out.len()].copy_from_slice(&out);
        page
    }

    /// Decodes the header of a file of `file_len` bytes. All counts are bounded by that length.
    fn decode(page: &Page, file_len: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(WHAT, page);
        if cursor.array::<8>()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let (version, per_page) = (cursor.u32()?, cursor.u32()?);
        let (entries, pages, filter_len) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let (packs, key_check) = (cursor.u32()?, cursor.u32()?);
        let stamp = Stamp { store: StoreId(cursor.array()?), key_check };
        let (packs_sum, fences_sum, filter_sum) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        if cursor.u64()? != checksum(&[&page[..88]]) {
            return Err(FormatError::Checksum { what: WHAT });
        }
        if version != VERSION || per_page as usize != PAGE_ENTRIES {
            return Err(FormatError::Newer { what: WHAT, version, features: 0 });
        }
        let header = Self { entries, pages, filter_len, packs, stamp, packs_sum, fences_sum, filter_sum };
        if pages > file_len / PAGE_LEN as u64 || filter_len > file_len || header.file_len() != file_len {
            return Err(cursor.range("file length", file_len));
        }
        if pages == 0 || entries < pages || entries > pages * PAGE_ENTRIES as u64 {
            return Err(cursor.range("entries", entries));
        }
        if filter_len == 0 || filter_len % 64 != 0 {
            return Err(cursor.range("filter bytes", filter_len));
        }
        Ok(header)
    }

    fn fences_at(&self) -> u64 {
        (1 + self.pages) * PAGE_LEN as u64
    }

    fn filter_at(&self) -> u64 {
        self.fences_at() + self.pages * 8
    }

    fn packs_at(&self) -> u64 {
        self.filter_at() + self.filter_len
    }

    fn file_len(&self) -> u64 {
        self.packs_at() + u64::from(self.packs) * 8
    }
}

/// The sum of a section: see the module's header.
#[derive(Default)]
pub(super) struct SectionSum(Vec<u8>);

impl SectionSum {
    /// Adds the next piece: 1 MiB, or less at the section's end.
    pub fn piece(&mut self, bytes: &[u8]) {
        self.0.put_u64(checksum(&[bytes]));
    }

    pub fn finish(self) -> u64 {
        checksum(&[&self.0])
    }
}

/// An open run; see the module's header.
pub(super) struct Run {
    pub number: u64,
    pub entries: u64,
    /// The packs whose footers it covers, rising.
    pub packs: Vec<PackId>,
    pub filter: Filter,
    /// Set by the first failed probe: the run is then to be dropped, and answers nothing.
    pub failed: AtomicBool,
    pub(super) file: File,
    pub(super) fences: Vec<u64>,
}

impl Run {
    /// Opens run `number` at `path`, and checks all of it but its pages.
    pub fn open(path: &Path, number: u64, stamp: Stamp) -> Result<Self> {
        let what = || format!("index run {}", path.display());
        let file = File::open(path).context(what)?;
        let file_len = file.metadata().context(what)?.len();
        if file_len < PAGE_LEN as u64 {
            return Err(Error::damaged(format!("{}: {file_len} bytes are no run", what())));
        }
        let mut page = [0; PAGE_LEN];
        file.read_exact_at(&mut page, 0).context(what)?;
        let header = Header::decode(&page, file_len).context(what)?;
        if header.stamp != stamp {
            return Err(Error::damaged(format!("{} is of another store or key", what())));
        }
        let mut fences = Vec::with_capacity(header.pages as usize);
        read_words(&file, header.fences_at(), header.pages, header.fences_sum, |_, word| fences.push(word))
            .map_err(|error| error.context(what()))?;
        let mut filter = Filter::with_blocks((header.filter_len / 64) as usize);
        read_words(&file, header.filter_at(), header.filter_len / 8, header.filter_sum, |at, word| {
            filter.set_word(at, word);
        })
        .map_err(|error| error.context(what()))?;
        let mut packs = Vec::with_capacity(header.packs as usize);
        read_words(&file, header.packs_at(), header.packs.into(), header.packs_sum, |_, word| {
            packs.push(PackId(word));
        })
        .map_err(|error| error.context(what()))?;
        if !fences.is_sorted() || !packs.is_sorted() {
            return Err(Error::damaged(format!("{}: not in order", what())));
        }
        Ok(Self::new(number, file, header.entries, fences, filter, packs))
    }

    pub(super) fn new(
        number: u64,
        file: File,
        entries: u64,
        fences: Vec<u64>,
        filter: Filter,
        packs: Vec<PackId>,
    ) -> Self {
        // Probes are scattered: reading ahead of them would only push other pages out of memory.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        Self { number, entries, packs, filter, failed: AtomicBool::new(false), file, fences }
    }

    /// Pages of entries.
    pub fn pages(&self) -> usize {
        self.fences.len()
    }

    /// True when the run covers `pack`.
    pub fn covers(&self, pack: PackId) -> bool {
        self.packs.binary_search(&pack).is_ok()
    }

    /// True once a probe failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The page where entries of `prefix` begin if there are any; `None` when all prefixes are
    /// larger.
    pub fn first_page(&self, prefix: u64) -> Option<usize> {
        let at = self.fences_below(prefix);
        if self.fences.get(at) == Some(&prefix) { Some(at) } else { at.checked_sub(1) }
    }

    /// How many fences are smaller than `prefix`.
    fn fences_below(&self, prefix: u64) -> usize {
        let fences = &self.fences[..];
        let spread = u64::MAX / fences.len() as u64;
        let guess = ((u128::from(prefix) * fences.len() as u128) >> 64) as usize;
        let guess = if fences[guess] < prefix {
            guess.saturating_add(((prefix - fences[guess]) / spread) as usize).min(fences.len() - 1)
        } else {
            guess.saturating_sub(((fences[guess] - prefix) / spread) as usize)
        };
        let (mut low, mut high, mut step) = (guess, guess, 1);
        while high < fences.len() && fences[high] < prefix {
            low = high + 1;
            high = high.saturating_add(step);
            step *= 2;
        }
        step = 1;
        while low > 0 && fences[low - 1] >= prefix {
            high = low - 1;
            low = low.saturating_sub(step);
            step *= 2;
        }
        let high = high.min(fences.len());
        low + fences[low..high].partition_point(|&fence| fence < prefix)
    }

    /// Byte offset of page `at` in the file.
    pub fn page_offset(at: usize) -> u64 {
        (1 + at as u64) * PAGE_LEN as u64
    }

    /// Reads page `at` and checks it.
    pub fn read_page(&self, at: usize, page: &mut Page) -> Result<()> {
        let what = || format!("index run {:08}, page {at}", self.number);
        self.file.read_exact_at(page, Self::page_offset(at)).context(what)?;
        check_page(page).context(what)
    }

    /// Calls `found` with every place of `prefix`, given the checked page where its entries begin.
    /// Reads further pages only when entries of this one prefix fill more than one.
    pub fn search(
        &self,
        mut at: usize,
        page: &mut Page,
        prefix: u64,
        mut found: impl FnMut(u64),
    ) -> Result<()> {
        loop {
            let entries = entries(page);
            let start = entries.partition_point(|entry| word(entry, 0) < prefix);
            entries[start..].iter().take_while(|entry| word(*entry, 0) == prefix).for_each(|entry| {
                found(word(entry, 8));
            });
            at += 1;
            if self.fences.get(at) != Some(&prefix) {
                return Ok(());
            }
            self.read_page(at, page)?;
        }
    }
}

/// Checks a page's checksum, which it sets to zero, and its count of entries, so that [`entries`]
/// can rely on it. The sum is over all 4096 bytes because BLAKE3 hashes four whole KiB side by
/// side, and a shorter last one by itself.
pub(super) fn check_page(page: &mut Page) -> Result<(), FormatError> {
    let sum = word(page, PAGE_SUM_AT);
    page[PAGE_SUM_AT..].fill(0);
    if sum != checksum(&[&page[..]]) {
        return Err(FormatError::Checksum { what: WHAT });
    }
    let used = word(page, PAGE_USED_AT);
    if used == 0 || used > PAGE_ENTRIES as u64 {
        return Err(FormatError::Range { what: WHAT, field: "entries of a page", value: used });
    }
    Ok(())
}

/// The entries of a checked page.
pub(super) fn entries(page: &Page) -> &[[u8; 16]] {
    let (all, _) = page[..PAGE_USED_AT].as_chunks::<16>();
    &all[..(word(page, PAGE_USED_AT) as usize).min(PAGE_ENTRIES)]
}

/// Ends a page whose first `used` entries are set.
pub(super) fn seal_page(page: &mut Page, used: usize) {
    page[used * 16..PAGE_USED_AT].fill(0);
    page[PAGE_USED_AT..PAGE_SUM_AT].copy_from_slice(&(used as u64).to_le_bytes());
    page[PAGE_SUM_AT..].fill(0);
    let sum = checksum(&[&page[..]]);
    page[PAGE_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

/// The number at byte `at` of an entry or a page.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Streams a section of `count` words to `each` and checks its sum.
fn read_words(file: &File, at: u64, count: u64, sum: u64, mut each: impl FnMut(usize, u64)) -> Result<()> {
    let (mut left, mut offset, mut number) = (count * 8, at, 0);
    let mut piece = vec![0; left.min(PIECE_LEN as u64) as usize];
    let mut made = SectionSum::default();
    while left > 0 {
        let len = left.min(PIECE_LEN as u64) as usize;
        file.read_exact_at(&mut piece[..len], offset).context(|| "reading".into())?;
        made.piece(&piece[..len]);
        for bytes in piece[..len].chunks_exact(8) {
            each(number, word(bytes, 0));
            number += 1;
        }
        offset += len as u64;
        left -= len as u64;
    }
    if made.finish() == sum { Ok(()) } else { Err(Error::damaged("checksum of a section")) }
}
