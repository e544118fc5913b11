//! The memory of a process that serves a mount for months.
//!
//! The GNU C library gives threads heaps of their own, up to eight a processor, and what one thread has freed stays in its heap. The threads of a batch
//! come and go: while a source tree was unpacked on two processors, 100 MB were in use in the end, and the heaps had grown to 340 MB. With a heap for
//! each processor it was 158 MB in all, and no slower.
#![allow(unsafe_code)]

/// Lets threads share so many heaps. For a process that has just begun: those that are there stay.
#[cfg(target_env = "gnu")]
pub fn limit(count: usize) {
    let count = libc::c_int::try_from(count).unwrap_or(libc::c_int::MAX);
    // SAFETY: it takes two numbers and sets a limit within the allocator, under its own lock.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
}

/// Other C libraries have no such limit.
#[cfg(not(target_env = "gnu"))]
pub fn limit(_: usize) {}
