//! Buffers for inputs and outputs: aligned, page-locked if a device has such memory, and reused.
//!
//! Page-locking 16 MiB takes longer than sending them to a device, so the pool keeps returned
//! buffers. It has a list for each size class (powers of two from 4 KiB), and a bound on all kept
//! bytes. [`Pool::alloc`] takes a buffer from the list, else asks the device's [`HostMemory`], and
//! if that has no more, the allocator. In steady state it only takes a list's lock.
//!
//! The bytes of a buffer are initialised, but keep whatever value they had.

mod buffer;
mod plain;

pub use buffer::Buffer;
pub(crate) use plain::allocate as allocate_plain;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{HostMemory, HostRegion};

/// The smallest buffer.
const SMALLEST: usize = 4 << 10;
/// Classes of 4 KiB to 2 GiB.
const CLASSES: usize = 20;

/// A pool of buffers. A clone is another handle of the same pool.
///
/// ```
/// use outrigger_offload::pool::Pool;
/// let pool = Pool::new(None, 64 << 20);
/// let mut buffer = pool.alloc(100_000);
/// buffer.extend_from_slice(b"some bytes");
/// assert_eq!((buffer.len(), buffer.capacity()), (10, 128 << 10));
/// drop(buffer);
/// assert_eq!(pool.counts().kept_bytes, 128 << 10);
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// Counters of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounts {
    /// Buffers that were handed out.
    pub handed_out: u64,
    /// How many of them were new, page-locked or allocated.
    pub fresh: u64,
    /// How many of the new ones are not page-locked, as the device had no memory.
    pub not_locked: u64,
    /// Bytes of unused buffers in the pool.
    pub kept_bytes: u64,
}

struct Shared {
    memory: Option<Arc<dyn HostMemory>>,
    keep_bytes: u64,
    kept: [Mutex<Vec<Region>>; CLASSES],
    kept_bytes: AtomicU64,
    handed_out: AtomicU64,
    fresh: AtomicU64,
    not_locked: AtomicU64,
}

/// The memory of a buffer of one class.
struct Region {
    memory: Box<dyn HostRegion>,
    class: usize,
    locked: bool,
}

fn class_of(bytes: usize) -> usize {
    (bytes.max(SMALLEST).next_power_of_two() / SMALLEST).trailing_zeros() as usize
}

fn class_bytes(class: usize) -> usize {
    SMALLEST << class
}

impl Pool {
    /// A pool that asks `memory` for new buffers and keeps at most `keep_bytes` of unused ones.
    pub fn new(memory: Option<Arc<dyn HostMemory>>, keep_bytes: u64) -> Self {
        let shared = Shared {
            memory,
            keep_bytes,
            // With capacity for the lists, so that returning a buffer does not allocate before
            // there are very many.
            kept: std::array::from_fn(|_| Mutex::new(Vec::with_capacity(128))),
            kept_bytes: AtomicU64::new(0),
            handed_out: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            not_locked: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// An empty buffer with room for at least `bytes`, page-locked if the device has such memory.
    /// It returns to the pool when dropped. Blocks only while a new buffer is made.
    ///
    /// # Panics
    /// If `bytes` is more than 2 GiB.
    pub fn alloc(&self, bytes: usize) -> Buffer {
        let class = class_of(bytes);
        assert!(class < CLASSES, "a buffer has at most 2 GiB");
        self.shared.handed_out.fetch_add(1, Ordering::Relaxed);
        let kept = self.shared.kept[class].lock().unwrap_or_else(PoisonError::into_inner).pop();
        let region = match kept {
            Some(region) => {
                self.shared.kept_bytes.fetch_sub(class_bytes(class) as u64, Ordering::Relaxed);
                region
            }
            None => self.fresh(class),
        };
        Buffer::new(region, self.clone())
    }

    /// The counters so far.
    pub fn counts(&self) -> PoolCounts {
        let shared = &self.shared;
        PoolCounts {
            handed_out: shared.handed_out.load(Ordering::Relaxed),
            fresh: shared.fresh.load(Ordering::Relaxed),
            not_locked: shared.not_locked.load(Ordering::Relaxed),
            kept_bytes: shared.kept_bytes.load(Ordering::Relaxed),
        }
    }

    fn fresh(&self, class: usize) -> Region {
        let (shared, bytes) = (&self.shared, class_bytes(class));
        shared.fresh.fetch_add(1, Ordering::Relaxed);
        if let Some(memory) = &shared.memory {
            match memory.allocate(bytes) {
                Some(memory) if memory.bytes().len() >= bytes => {
                    return Region { memory, class, locked: true };
                }
                _ => shared.not_locked.fetch_add(1, Ordering::Relaxed),
            };
        }
        Region { memory: plain::allocate(bytes), class, locked: false }
    }

    fn give_back(&self, region: Region) {
        let (shared, bytes) = (&self.shared, class_bytes(region.class) as u64);
        // Counted first, so that concurrent returns cannot exceed the bound together.
        let kept = shared.kept_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A buffer that should be page-locked and is not is freed, as the device may have memory
        // again.
        let second_best = shared.memory.is_some() && !region.locked;
        if kept > shared.keep_bytes || second_best {
            shared.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        shared.kept[region.class].lock().unwrap_or_else(PoisonError::into_inner).push(region);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({:?})", self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_is_asked_for() {
        for bytes in [0, 1, 4095, 4096, 4097, 8192, 8193, 1 << 20, (1 << 20) + 1, 2 << 30] {
            let class = class_of(bytes);
            assert!(class < CLASSES && class_bytes(class) >= bytes);
            assert!(class == 0 || class_bytes(class - 1) < bytes);
        }
    }

    #[test]
    fn what_comes_back_is_used_again_up_to_the_bound() {
        let pool = Pool::new(None, 1 << 20);
        let held: Vec<Buffer> = (0..3).map(|_| pool.alloc(400_000)).collect();
        drop(held);
        assert_eq!(pool.counts().kept_bytes, 1 << 20);
        let again: Vec<Buffer> = (0..3).map(|_| pool.alloc(300_000)).collect();
        assert_eq!(pool.counts().fresh, 4);
        assert!(again.iter().all(|buffer| buffer.is_empty() && buffer.as_ptr().addr().is_multiple_of(4096)));
    }

    /// A device with room for `.0` more buffers.
    struct Scarce(AtomicU64);

    impl HostMemory for Scarce {
        fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>> {
            let take = |left: u64| left.checked_sub(1);
            self.0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .ok()
                .map(|_| plain::allocate(bytes))
        }
    }

    #[test]
    fn without_page_locked_memory_any_other_does() {
        let pool = Pool::new(Some(Arc::new(Scarce(AtomicU64::new(1)))), 1 << 20);
        let (one, two) = (pool.alloc(5000), pool.alloc(5000));
        assert!(one.is_locked() && !two.is_locked());
        assert_eq!(pool.counts().not_locked, 1);
        drop((one, two));
        // Only the page-locked one was kept.
        assert_eq!(pool.counts().kept_bytes, 8192);
    }
}
