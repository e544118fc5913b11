//! Memory that a thread's hashing reuses from call to call, so that it allocates nothing in steady
//! state. It grows to the need of the largest call, about 4 % of that call's data.
//!
//! A call takes the memory out while it uses it. So a nested call (from a caller's iterator that
//! hashes) finds none, and allocates its own.

use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;

use super::{blake3_many, pmd};

/// A thread's memory, as the module describes.
#[derive(Default)]
pub(super) struct Scratch {
    pub blake3: blake3_many::Scratch,
    pub pmd: pmd::Scratch,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
    static RANGES: Cell<Vec<Range<usize>>> = const { Cell::new(Vec::new()) };
    static ORDER: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

fn with_taken<S: Default, T>(key: &'static LocalKey<Cell<S>>, f: impl FnOnce(&mut S) -> T) -> T {
    let mut taken = key.take();
    let result = f(&mut taken);
    key.set(taken);
    result
}

/// Runs `f` with this thread's memory.
pub(super) fn with<T>(f: impl FnOnce(&mut Scratch) -> T) -> T {
    with_taken(&SCRATCH, f)
}

/// Runs `f` with `ranges` as a list.
pub(super) fn with_ranges<T>(
    ranges: impl Iterator<Item = Range<usize>>,
    f: impl FnOnce(&[Range<usize>]) -> T,
) -> T {
    with_taken(&RANGES, |list| {
        list.clear();
        list.extend(ranges);
        f(list)
    })
}

/// Runs `f` with an empty list of numbers.
pub(super) fn with_order<T>(f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
    with_taken(&ORDER, |list| {
        list.clear();
        f(list)
    })
}
