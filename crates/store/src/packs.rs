//! Fetches frames from packs (and footers: `packs/footers.rs`), checks them, and keeps decoded
//! frames for a while.
//!
//! The first thread that asks for a frame decodes it; others that want it meanwhile wait for that
//! thread (a slot holds either the frame or the promise of it). The cache is bounded in bytes, and
//! drops the least recently used frames first. A frame's memory goes back to a pool when its last
//! user drops it, since fresh memory costs more than decoding into old.

mod footers;
mod naming;

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use outrigger_clock::thread_time;
use outrigger_format::{Fingerprint, FingerprintKind, Footer, FrameHeader, PackId, StoreId};
use outrigger_offload::pool::Buffer;
use outrigger_offload::{Decoded, FrameDecoder, FrameDevices, Opening};

use crate::backend::{Backend, CacheCounts};
use crate::error::{Context, Error, Result};
use crate::latency;

pub(crate) use footers::load_footer;
pub(crate) use naming::Naming;

/// A frame's bytes.
enum Raw {
    Vector(Vec<u8>),
    /// A buffer that a device has written.
    Buffer(Buffer),
}

impl Deref for Raw {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Vector(bytes) => bytes,
            Self::Buffer(bytes) => bytes,
        }
    }
}

/// A decoded frame. Its bytes match the stored checksum; fingerprints are the reader's to verify.
pub struct Frame {
    raw: Raw,
    /// Where each chunk begins, and the end of the last.
    bounds: Vec<u32>,
    /// The frame's header.
    pub header: FrameHeader,
    naming: Naming,
    /// A bit for each chunk that matched its fingerprint; empty if that is not needed.
    matched: Box<[AtomicU64]>,
    pool: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Frame {
    /// Bytes of the chunk at `position`, unverified.
    pub(crate) fn chunk(&self, position: u16) -> Option<&[u8]> {
        let bounds = self.bounds.get(position as usize..position as usize + 2)?;
        self.raw.get(bounds[0] as usize..bounds[1] as usize)
    }

    /// Chunks in it.
    pub fn chunks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The name of a chunk with these bytes, if it is in this frame.
    pub(crate) fn name(&self, chunk: &[u8]) -> Fingerprint {
        self.naming.name(chunk)
    }

    /// Computes the names of its chunks.
    pub(crate) fn names(&self) -> Vec<Fingerprint> {
        let mut names = Vec::with_capacity(self.chunks());
        let ranges = self.bounds.windows(2).map(|bounds| bounds[0] as usize..bounds[1] as usize);
        outrigger_offload::hash_many(self.naming.kind, &self.raw, ranges, &mut names);
        names.iter_mut().for_each(|name| *name = self.naming.of(name));
        names
    }

    /// Remembers that the chunk at `position` matched its fingerprint. Returns true once: when with
    /// it all chunks have.
    pub(crate) fn note_matched(&self, position: u16) -> bool {
        let Some(word) = self.matched.get(usize::from(position) / 64) else { return false };
        let bit = 1 << (position % 64);
        let is_new = word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        let matched = || self.matched.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize);
        is_new && matched().sum::<usize>() == self.chunks()
    }
}

/// Buffers kept for reuse at most.
const POOL_MAX: usize = 64;

impl Drop for Frame {
    fn drop(&mut self) {
        // A device's buffer goes back to its own pool.
        let Raw::Vector(bytes) = &mut self.raw else { return };
        let mut pool = self.pool.lock().expect("no panic while held");
        if pool.len() < POOL_MAX {
            pool.push(std::mem::take(bytes));
        }
    }
}

enum Slot {
    Loading,
    Ready {
        frame: Arc<Frame>,
        used: u64,
        /// It was decoded ahead, and no read has come for it yet.
        awaited: bool,
    },
}

/// Held by the thread that decodes a frame. Dropping it, also after an error or a panic, wakes the
/// threads that wait. A slot that is still [`Slot::Loading`] is then empty again, so that the next
/// thread tries for itself.
struct Promise<'a> {
    reader: &'a PackReader,
    key: (PackId, u16),
    is_kept: bool,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            // Another thread may have filled the slot by now.
            return;
        }
        // No panic happens while the lock is held, but this may run during one.
        let mut cache = self.reader.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Slot::Loading) = cache.slots.get(&self.key) {
            cache.slots.remove(&self.key);
        }
        drop(cache);
        self.reader.loaded.notify_all();
    }
}

/// Why a frame is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A read.
    Now,
    /// A read that is expected.
    Ahead,
}

/// How well the cache of decoded frames has worked since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameCounts {
    /// Reads that found their frame decoded, or being decoded.
    pub hits: u64,
    /// Reads that had to decode it.
    pub misses: u64,
    /// Frames decoded ahead of reads.
    pub ahead: u64,
    /// Frames decoded ahead that a read then used.
    pub ahead_hits: u64,
}

#[derive(Default)]
struct Cache {
    slots: HashMap<(PackId, u16), Slot>,
    bytes: usize,
    clock: u64,
    counts: FrameCounts,
}

/// See the module.
pub struct PackReader {
    backend: Arc<dyn Backend>,
    store: StoreId,
    fingerprint: FingerprintKind,
    cache: Mutex<Cache>,
    loaded: Condvar,
    cache_bytes: AtomicUsize,
    pool: Arc<Mutex<Vec<Vec<u8>>>>,
    stored_pool: Mutex<Vec<(FrameDecoder, Vec<u8>)>>,
    /// Bytes of a pack's end that are read for its footer at first …
    footer_guess: usize,
    /// … unless the number of its chunks is known, for packs that are about to be asked for.
    expected: Mutex<HashMap<PackId, usize>>,
    /// Pack → where its fingerprints begin, and how many they are.
    tables: Mutex<HashMap<PackId, (u64, u32)>>,
    devices: OnceLock<Arc<Opening>>,
    /// Frames remember which of their chunks were found to match their fingerprints.
    remembers_matches: bool,
}

/// How a frame's bytes are verified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// By the frame's checksum.
    Nothing,
    /// By the fingerprints of its chunks, later.
    Chunks,
}

/// Decoded frames kept by default, bytes.
const CACHE_BYTES: usize = 48 << 20;

impl PackReader {
    /// Says what is wrong with the packs' place just now ([`Backend::trouble`]).
    pub fn trouble(&self) -> Option<String> {
        self.backend.trouble()
    }

    /// How often reads found pack data nearby, and what the other reads cost
    /// ([`Backend::cache_counts`]).
    pub fn cache_counts(&self) -> Option<CacheCounts> {
        self.backend.cache_counts()
    }

    /// A reader with a cache of the default size.
    pub fn new(backend: Arc<dyn Backend>, store: StoreId, fingerprint: FingerprintKind) -> Self {
        Self {
            footer_guess: footers::guess(&*backend),
            expected: Mutex::default(),
            backend,
            store,
            fingerprint,
            cache: Mutex::default(),
            loaded: Condvar::new(),
            cache_bytes: AtomicUsize::new(CACHE_BYTES),
            pool: Arc::default(),
            stored_pool: Mutex::default(),
            tables: Mutex::default(),
            devices: OnceLock::new(),
            remembers_matches: false,
        }
    }

    /// Makes frames remember which of their chunks matched their fingerprints.
    pub(crate) fn remember_matches(&mut self) {
        self.remembers_matches = true;
    }

    /// Decompresses on these devices where they are predicted to be faster, once they are open.
    /// Only the first call counts.
    pub fn use_devices(&self, devices: Arc<Opening>) {
        let _ = self.devices.set(devices);
    }

    /// The devices that were given, once they are open.
    pub fn devices(&self) -> Option<&Arc<FrameDevices>> {
        self.devices.get()?.frame_devices()
    }

    /// Keeps so many bytes of decoded frames from now on: for callers that read at random.
    pub fn set_cache_bytes(&self, bytes: usize) {
        self.cache_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The function that names the store's chunks.
    pub fn fingerprint_kind(&self) -> FingerprintKind {
        self.fingerprint
    }

    /// Drops all copies of a pack here and in caches below; true if there was a copy that may be
    /// wrong while the store is right.
    pub(crate) fn forget(&self, pack: PackId) -> bool {
        let cache = &mut *self.cache.lock().expect("no panic while held");
        let bytes = &mut cache.bytes;
        cache.slots.retain(|(of, _), slot| match slot {
            Slot::Ready { frame, .. } if *of == pack => {
                *bytes -= frame.raw.len();
                false
            }
            _ => true,
        });
        self.backend.forget(pack)
    }

    /// The decoded frame `number` of `pack`, whose footer is `footer`.
    ///
    /// # Errors
    /// `NotFound` when the pack is gone, `Damaged`.
    pub fn frame(&self, pack: PackId, footer: &Footer, number: u16, wanted: Wanted) -> Result<Arc<Frame>> {
        let key = (pack, number);
        let mut guard = self.cache.lock().expect("no panic while held");
        loop {
            let cache = &mut *guard;
            cache.clock += 1;
            match cache.slots.get_mut(&key) {
                Some(Slot::Ready { frame, used, awaited }) => {
                    *used = cache.clock;
                    if wanted == Wanted::Now {
                        cache.counts.hits += 1;
                        cache.counts.ahead_hits += u64::from(std::mem::take(awaited));
                    }
                    let frame = Arc::clone(frame);
                    drop(guard);
                    return self.while_it_has_its_key(frame);
                }
                Some(Slot::Loading) => guard = self.loaded.wait(guard).expect("no panic while held"),
                None => break,
            }
        }
        match wanted {
            Wanted::Now => guard.counts.misses += 1,
            Wanted::Ahead => guard.counts.ahead += 1,
        }
        guard.slots.insert(key, Slot::Loading);
        drop(guard);
        let mut promise = Promise { reader: self, key, is_kept: false };
        // Each chunk is verified before it is returned, so the frame's own checksum would add
        // nothing.
        let frame = self.load_as(pack, footer, number, Trust::Chunks)?;
        let mut cache = self.cache.lock().expect("no panic while held");
        cache.bytes += frame.raw.len();
        let awaited = wanted == Wanted::Ahead;
        let slot = Slot::Ready { frame: Arc::clone(&frame), used: cache.clock, awaited };
        cache.slots.insert(key, slot);
        cache.evict(self.cache_bytes.load(Ordering::Relaxed));
        promise.is_kept = true;
        drop(cache);
        self.loaded.notify_all();
        Ok(frame)
    }

    /// A frame from the cache, unless its domain's key was destroyed since it was decoded.
    fn while_it_has_its_key(&self, frame: Arc<Frame>) -> Result<Arc<Frame>> {
        if let Some(domain) = &frame.naming.domain {
            self.backend.domain_key(domain.id)?;
        }
        Ok(frame)
    }

    /// How well the cache has worked.
    pub fn frame_counts(&self) -> FrameCounts {
        self.cache.lock().expect("no panic while held").counts
    }

    /// Reads and decodes a frame without the cache: for callers that read everything once.
    ///
    /// # Errors
    /// As [`PackReader::frame`].
    pub fn load(&self, pack: PackId, footer: &Footer, number: u16) -> Result<Arc<Frame>> {
        self.load_as(pack, footer, number, Trust::Nothing)
    }

    fn load_as(&self, pack: PackId, footer: &Footer, number: u16, trust: Trust) -> Result<Arc<Frame>> {
        let range = footer
            .frame_range(number)
            .ok_or_else(|| Error::damaged(format!("pack {pack} has no frame {number}")))?;
        let (mut decoder, mut bytes) =
            self.stored_pool.lock().expect("no panic while held").pop().unwrap_or_default();
        let frame = self.decode(pack, range, trust, &mut decoder, &mut bytes);
        self.stored_pool.lock().expect("no panic while held").push((decoder, bytes));
        frame.map(Arc::new)
    }

    fn decode(
        &self,
        pack: PackId,
        range: Range<u32>,
        trust: Trust,
        decoder: &mut FrameDecoder,
        bytes: &mut Vec<u8>,
    ) -> Result<Frame> {
        let at = || format!("pack {pack}, frame at byte {}", range.start);
        if let Some(opening) = self.devices.get() {
            opening.note(range.len());
        }
        let devices = self.devices();
        // Devices, if there are any, need it in memory that they can reach.
        let mut lent = devices.map(|devices| {
            let mut buffer = devices.runtime().pool().alloc(range.len());
            buffer.set_len(range.len());
            buffer
        });
        let read: &mut [u8] = match &mut lent {
            Some(buffer) => buffer,
            None => {
                bytes.resize(range.len(), 0);
                bytes
            }
        };
        latency::PACK_READS.timed(|| self.backend.read_at(pack, range.start.into(), read))?;
        let naming = self.naming(pack)?;
        let header = FrameHeader::decode(read).context(at)?;
        let (start, raw_len) = (header.encoded_len(), header.raw_len());
        let stored_len = read.len() - start;
        let device = devices
            .and_then(|devices| Some((devices, devices.decoder_for(header.encoding, stored_len, raw_len)?)));
        // Bytes that do not match their checksum never get to a device.
        if trust == Trust::Nothing || device.is_some() {
            header.verify_stored(&read[start..]).context(at)?;
        }
        let mut vector = self.pool.lock().expect("no panic while held").pop().unwrap_or_default();
        let mut decoded = None;
        match (device, lent) {
            (Some((devices, device)), Some(buffer)) => {
                let buffer = Arc::new(buffer);
                let stored = (Arc::clone(&buffer), start..start + stored_len);
                decoded = devices.decode(device, header.encoding, stored, raw_len, &mut vector);
                if decoded.is_none() {
                    self.decode_here(decoder, &header, &buffer[start..], &mut vector)
                        .map_err(|error| error.context(at()))?;
                }
            }
            (_, lent) => {
                let stored = match &lent {
                    Some(buffer) => &buffer[start..],
                    None => &bytes[start..],
                };
                self.decode_here(decoder, &header, stored, &mut vector)
                    .map_err(|error| error.context(at()))?;
            }
        }
        let raw = match decoded {
            Some(Decoded::Buffer(buffer)) => Raw::Buffer(buffer),
            Some(Decoded::Vector) | None => Raw::Vector(vector),
        };
        let mut bounds = Vec::with_capacity(header.lengths.len() + 1);
        let mut end = 0;
        bounds.push(0);
        for len in &header.lengths {
            end += len;
            bounds.push(end);
        }
        let words = if self.remembers_matches { header.lengths.len().div_ceil(64) } else { 0 };
        let matched = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Frame { raw, bounds, header, naming, matched, pool: Arc::clone(&self.pool) })
    }

    fn decode_here(
        &self,
        decoder: &mut FrameDecoder,
        header: &FrameHeader,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let codec = header.encoding.codec;
        let compared = self.devices().filter(|devices| devices.may_decode(codec));
        let began = compared.map(|_| thread_time());
        decoder
            .decode(header.encoding, stored, header.raw_len(), out)
            .map_err(|error| Error::damaged("the frame cannot be decoded").caused_by(error))?;
        if let (Some(devices), Some(began)) = (compared, began) {
            devices.observe_decoding(codec, stored.len(), thread_time() - began);
        }
        Ok(())
    }
}

impl Cache {
    fn evict(&mut self, limit: usize) {
        if self.bytes <= limit {
            return;
        }
        // A quarter goes at once, so that the scan over all slots is rare.
        let mut ages: Vec<(u64, (PackId, u16), usize)> = self
            .slots
            .iter()
            .filter_map(|(key, slot)| match slot {
                Slot::Ready { frame, used, .. } => Some((*used, *key, frame.raw.len())),
                Slot::Loading => None,
            })
            .collect();
        ages.sort_unstable();
        for (_, key, len) in ages {
            if self.bytes <= limit / 4 * 3 {
                return;
            }
            self.slots.remove(&key);
            self.bytes -= len;
        }
    }
}
