//! The table's memory: aligned elements, their plain words, and prefetching.
#![allow(unsafe_code)]

use super::Slot;

/// Two slots in one cache line.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Bucket(pub [Slot; 2]);

/// One block of the summary vector.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub(super) struct Block(pub [u32; 8]);

const _: () = assert!(size_of::<Bucket>() == 64 && size_of::<Block>() == 32);

/// All slots, as words.
pub(super) fn bucket_words(buckets: &[Bucket]) -> &[u64] {
    // SAFETY: a bucket is eight u64 without padding (64 bytes, asserted above), and more strictly
    // aligned than they are.
    unsafe { std::slice::from_raw_parts(buckets.as_ptr().cast(), buckets.len() * 8) }
}

/// All blocks, as words.
pub(super) fn block_words(blocks: &[Block]) -> &[u32] {
    // SAFETY: a block is eight u32 without padding (32 bytes, asserted above), and more strictly
    // aligned than they are.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * 8) }
}

/// Prefetches an element, without waiting for it.
#[inline]
pub(super) fn prefetch<T>(elements: &[T], at: usize) {
    let element: &T = &elements[at];
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has SSE; a prefetch reads nothing, and the address is a valid one
    // besides.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every processor has PRFM, which reads nothing, and the address is a valid one
    // besides.
    unsafe {
        let address = std::ptr::from_ref(element);
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = element;
}
