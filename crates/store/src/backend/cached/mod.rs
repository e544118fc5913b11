//! A cache for distant engines: keeps what was read nearby, and fetches ahead what will be read
//! next.
//!
//! ```text
//!  read_at ─▶ blocks.rs: in memory? ─▶ disk.rs: on local disk? ─▶ the engine, several blocks in one request, several requests at once
//!                  ▲                                                   │
//!                  └────────── and what follows, in the background ◀───┘
//! ```
//!
//! A pack is cached in blocks of [`BLOCK_LEN`]. Packs are immutable, so no cached block is ever out
//! of date. It may be damaged (a bad disk, a bad bit in memory). [`Backend::forget`] tells that
//! from damage in the store: the engine itself is then asked, so a cache never makes data
//! unreadable. `check` examines the store itself ([`Backend::use_cache`]), so it ignores blocks
//! that were cached before.
//!
//! **Read-ahead.** A read that begins where an earlier one ended doubles the window, from two
//! blocks to [`AHEAD_MAX`]. Threads of the process's runtime fetch the missing blocks of the
//! window, in at most [`FETCHES_MAX`] requests of at most [`REQUEST_BLOCKS`] blocks. A reader that
//! needs a block under way waits for it. So a sequential reader sees the engine's throughput, not
//! its latency.

mod blocks;
mod disk;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_clock::Instant;
use outrigger_format::{PACK_HEADER_LEN, PackId};

use super::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime;

use blocks::{Block, Blocks, Found};
use disk::Disk;

/// Bytes of a block.
pub(super) const BLOCK_LEN: usize = 1 << 20;
/// Blocks fetched by one request at most.
const REQUEST_BLOCKS: u64 = 4;
/// Blocks fetched ahead of a sequential reader at most.
const AHEAD_MAX: u64 = 8;
/// Requests made ahead of readers at once, over all packs.
const FETCHES_MAX: usize = 8;
/// Packs whose lengths and readers are remembered at most.
const PACKS_MAX: usize = 64 << 10;

/// Sizes of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Bytes in memory.
    pub memory: usize,
    /// Bytes on local disk; 0: none.
    pub disk: u64,
}

impl Default for CacheLimits {
    /// 32 MiB and 4 GiB; `OUTRIGGER_CACHE_BYTES` sets the disk's.
    fn default() -> Self {
        let disk = std::env::var("OUTRIGGER_CACHE_BYTES").ok();
        let disk = disk.and_then(|text| outrigger_format::parse_size(&text).ok()).unwrap_or(4 << 30);
        Self { memory: 32 << 20, disk }
    }
}

/// How well the cache has worked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounts {
    /// Blocks that readers found in memory, or on their way there.
    pub memory_hits: u64,
    /// Blocks found on disk.
    pub disk_hits: u64,
    /// Blocks fetched because a reader waited for them.
    pub fetched: u64,
    /// Blocks fetched ahead.
    pub ahead: u64,
    /// Requests to the engine for them …
    pub requests: u64,
    /// … how many of these failed …
    pub failures: u64,
    /// … and how long they took all together, nanoseconds.
    pub nanos: u64,
}

impl std::ops::Add for CacheCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            memory_hits: self.memory_hits + other.memory_hits,
            disk_hits: self.disk_hits + other.disk_hits,
            fetched: self.fetched + other.fetched,
            ahead: self.ahead + other.ahead,
            requests: self.requests + other.requests,
            failures: self.failures + other.failures,
            nanos: self.nanos + other.nanos,
        }
    }
}

/// The state of a pack.
#[derive(Clone, Copy, Default)]
struct Pack {
    /// Its length, once asked.
    len: Option<u64>,
    /// Where the last read ended.
    read_to: u64,
    /// Blocks to fetch ahead.
    window: u64,
}

/// State that the cache shares with the threads that fetch ahead.
struct Shared {
    inner: Arc<dyn Backend>,
    blocks: Blocks,
    disk: Option<Disk>,
    packs: Mutex<HashMap<PackId, Pack>>,
    fetching: AtomicUsize,
    /// False while blocks that were cached before are ignored.
    is_disk_used: AtomicBool,
}

/// See the module.
pub struct CachedBackend {
    shared: Arc<Shared>,
}

impl CachedBackend {
    /// Caches reads of `inner` in memory, and in `dir`, if that is given and no other process uses
    /// it.
    pub fn new(inner: Arc<dyn Backend>, dir: Option<&Path>, limits: CacheLimits) -> Self {
        let disk = dir.filter(|_| limits.disk > 0).and_then(|dir| Disk::open(dir, limits.disk));
        let shared = Shared {
            inner,
            blocks: Blocks::new(limits.memory),
            disk,
            packs: Mutex::default(),
            fetching: AtomicUsize::new(0),
            is_disk_used: AtomicBool::new(true),
        };
        Self { shared: Arc::new(shared) }
    }

    /// How well the cache has worked.
    pub fn counts(&self) -> CacheCounts {
        self.shared.blocks.counts()
    }

    /// Waits until cached blocks are on disk: for tests, which open it again.
    pub fn settle(&self) {
        if let Some(disk) = &self.shared.disk {
            disk.settle();
        }
    }
}

impl Shared {
    fn packs(&self) -> std::sync::MutexGuard<'_, HashMap<PackId, Pack>> {
        self.packs.lock().expect("no panic while it is held")
    }

    fn with_pack<T>(&self, id: PackId, with: impl FnOnce(&mut Pack) -> T) -> T {
        let mut packs = self.packs();
        if packs.len() >= PACKS_MAX && !packs.contains_key(&id) {
            packs.clear();
        }
        with(packs.entry(id).or_default())
    }

    /// The pack's length. The same request reads the last block, which callers need next.
    fn len(&self, id: PackId) -> Result<Option<u64>> {
        if let Some(len) = self.packs().get(&id).and_then(|pack| pack.len) {
            return Ok(Some(len));
        }
        let Some((end, len)) = self.inner.read_end(id, BLOCK_LEN)? else { return Ok(None) };
        if len > 0 {
            let last = (len - 1) / BLOCK_LEN as u64;
            let tail = (len - last * BLOCK_LEN as u64) as usize;
            self.keep(id, last, Arc::from(&end[end.len() - tail..]));
        }
        self.with_pack(id, |pack| pack.len = Some(len));
        Ok(Some(len))
    }

    fn on_disk(&self, id: PackId, number: u64) -> Option<Block> {
        let disk = self.disk.as_ref().filter(|_| self.is_disk_used.load(Ordering::Relaxed))?;
        disk.find(id, number)
    }

    fn keep(&self, id: PackId, number: u64, block: Block) {
        if let Some(disk) = &self.disk {
            disk.keep(id, number, &block);
        }
        self.blocks.put(id, number, block);
    }

    /// Fetches blocks `first..end` of a pack of `len` bytes, which the caller has promised to
    /// others, into the cache.
    fn fetch(&self, id: PackId, first: u64, end: u64, len: u64) -> Result<()> {
        let start = first * BLOCK_LEN as u64;
        let mut bytes = vec![0; (len.min(end * BLOCK_LEN as u64) - start) as usize];
        let began = Instant::now();
        let read = self.inner.read_at(id, start, &mut bytes);
        let took = began.elapsed().as_nanos() as u64;
        self.blocks.count(|counts| {
            counts.requests += 1;
            counts.failures += u64::from(read.is_err());
            counts.nanos += took;
        });
        if read.is_ok() {
            for (number, block) in (first..end).zip(bytes.chunks(BLOCK_LEN)) {
                self.keep(id, number, block.into());
            }
        } else {
            (first..end).for_each(|number| self.blocks.give_up(id, number));
        }
        read
    }

    /// Block `number` of pack `id`, wherever it is.
    fn block(self: &Arc<Self>, id: PackId, number: u64, until: u64, len: u64) -> Result<Block> {
        loop {
            match self.blocks.find(id, number) {
                Found::Here(block) => return Ok(block),
                // The thread that had promised it has failed: this reader tries itself, and reports
                // what is wrong.
                Found::Failed => {}
                Found::Promised => {
                    if let Some(block) = self.on_disk(id, number) {
                        self.blocks.count(|counts| counts.disk_hits += 1);
                        self.blocks.put(id, number, Arc::clone(&block));
                        return Ok(block);
                    }
                    // The same request fetches the next blocks of this read.
                    let mut end = number + 1;
                    while end < until && end < number + REQUEST_BLOCKS && self.blocks.promise(id, end) {
                        end += 1;
                    }
                    self.blocks.count(|counts| counts.fetched += end - number);
                    self.fetch(id, number, end, len)?;
                }
            }
        }
    }

    /// Fetches the blocks that a sequential reader will need, in the background.
    fn read_ahead(self: &Arc<Self>, id: PackId, from: u64, window: u64, len: u64) {
        let blocks = len.div_ceil(BLOCK_LEN as u64);
        let (mut at, end) = (from, (from + window).min(blocks));
        while at < end {
            if !self.blocks.promise(id, at) {
                at += 1;
                continue;
            }
            let first = at;
            at += 1;
            while at < end && at - first < REQUEST_BLOCKS && self.blocks.promise(id, at) {
                at += 1;
            }
            let give_up = || (first..at).for_each(|number| self.blocks.give_up(id, number));
            let Ok(handle) = runtime::handle() else { return give_up() };
            if self.fetching.fetch_add(1, Ordering::Relaxed) >= FETCHES_MAX {
                self.fetching.fetch_sub(1, Ordering::Relaxed);
                return give_up();
            }
            let (shared, upto) = (Arc::clone(self), at);
            handle.spawn_blocking(move || {
                shared.bring(id, first, upto, len);
                shared.fetching.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Brings promised blocks from disk or from the engine. After a failure the reader asks again,
    /// and sees the error.
    fn bring(&self, id: PackId, mut first: u64, end: u64, len: u64) {
        while first < end {
            let Some(block) = self.on_disk(id, first) else { break };
            self.blocks.put(id, first, block);
            first += 1;
        }
        if first < end {
            self.blocks.count(|counts| counts.ahead += end - first);
            let _ = self.fetch(id, first, end, len);
        }
    }
}

impl Backend for CachedBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.shared.inner.create(id)
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let shared = &self.shared;
        if buf.is_empty() {
            return shared.inner.read_at(id, offset, buf);
        }
        let is_new = || shared.packs().get(&id).is_none_or(|pack| pack.read_to == 0);
        if offset == 0 && buf.len() <= PACK_HEADER_LEN && is_new() {
            // A read of the header only tells whose pack it is; other parts may never be read.
            return shared.inner.read_at(id, offset, buf);
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no pack {id}"));
        let len = shared.len(id)?.ok_or_else(missing)?;
        let end = offset.saturating_add(buf.len() as u64);
        if end > len {
            // The length may be outdated. The engine knows it, and its error names the place.
            return shared.inner.read_at(id, offset, buf);
        }
        let window = shared.with_pack(id, |pack| {
            let is_sequential = pack.read_to > 0 && offset.abs_diff(pack.read_to) <= BLOCK_LEN as u64 / 4;
            pack.window = if is_sequential { (pack.window * 2).clamp(2, AHEAD_MAX) } else { 0 };
            pack.read_to = end;
            pack.window
        });
        let until = end.div_ceil(BLOCK_LEN as u64);
        if window > 0 {
            shared.read_ahead(id, until, window, len);
        }
        let mut at = offset;
        while at < end {
            let number = at / BLOCK_LEN as u64;
            let block = shared.block(id, number, until, len)?;
            let from = (at - number * BLOCK_LEN as u64) as usize;
            let n = (block.len().saturating_sub(from)).min((end - at) as usize);
            if n == 0 {
                return shared.inner.read_at(id, offset, buf);
            }
            let to = (at - offset) as usize;
            buf[to..to + n].copy_from_slice(&block[from..from + n]);
            at += n as u64;
        }
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        self.shared.inner.len(id)
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.forget(id);
        self.shared.inner.remove(id)
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.shared.inner.list()
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.shared.inner.list_parity()
    }

    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        let shared = &self.shared;
        if shared.packs().get(&id).is_none_or(|pack| pack.len.is_none()) {
            // As for the header: every host reads the footers of all packs, and the data of few.
            let end = shared.inner.read_end(id, max)?;
            if let Some((_, len)) = end {
                shared.with_pack(id, |pack| pack.len = Some(len));
            }
            return Ok(end);
        }
        let Some(len) = shared.len(id)? else { return Ok(None) };
        let wanted = len.min(max as u64);
        let mut bytes = vec![0; wanted as usize];
        self.read_at(id, len - wanted, &mut bytes)?;
        Ok(Some((bytes, len)))
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.forget(id);
        self.shared.inner.set_aside(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.shared.inner.put_text(name, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.shared.inner.text(name)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        self.shared.inner.texts(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.shared.inner.remove_text(name)
    }

    fn place(&self) -> Option<String> {
        self.shared.inner.place()
    }

    fn lock_days(&self) -> Option<u32> {
        self.shared.inner.lock_days()
    }

    fn lock(&self, ids: &[PackId]) -> Result<u64> {
        self.shared.inner.lock(ids)
    }

    fn tend(&self) {
        self.shared.inner.tend();
    }

    fn lists_cheaply(&self) -> bool {
        self.shared.inner.lists_cheaply()
    }

    fn uploads_max(&self) -> usize {
        self.shared.inner.uploads_max()
    }

    fn forget(&self, id: PackId) -> bool {
        self.shared.packs().remove(&id);
        let was_kept = self.shared.blocks.forget(id);
        let was_on_disk = self.shared.disk.as_ref().is_some_and(|disk| disk.forget(id));
        self.shared.inner.forget(id) || was_kept || was_on_disk
    }

    fn use_cache(&self, on: bool) {
        self.shared.is_disk_used.store(on, Ordering::Relaxed);
        if !on {
            self.shared.packs().clear();
            self.shared.blocks.clear();
        }
    }

    fn cache_counts(&self) -> Option<CacheCounts> {
        Some(self.counts())
    }

    fn trouble(&self) -> Option<String> {
        self.shared.inner.trouble()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        self.shared.inner.hosts()
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        self.shared.inner.locate(id)
    }
}

#[cfg(test)]
mod tests;
