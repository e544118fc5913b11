//! A hint to load a cache line before it is needed: the only operation here that safe Rust lacks.
#![allow(unsafe_code)]

/// Starts loading the cache line in which `line` begins; returns at once. Does nothing where there
/// is no such hint.
#[inline(always)]
pub(super) fn prefetch<T>(line: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 is part of SSE, which every x86_64 processor has; it reads no value and cannot fault,
    // whatever the address, and this one comes from a valid reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every aarch64 processor has PRFM; it reads no value and cannot fault, whatever the
    // address, and this one comes from a valid reference.
    unsafe {
        let address = std::ptr::from_ref(line);
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
