//! Memory that a thread's hashing uses again from call to call, so that in steady state it allocates nothing. It grows to what the
//! largest call has needed: about 4 % of that call's data.
//!
//! It is taken while it is used, so that a call within a call (an iterator of a caller's that hashes) finds none, and makes
//! its own.

use std::cell::Cell;
use std::ops::Range;
use std::thread::LocalKey;

use super::{blake3_many, pmd};

/// See the module.
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

/// Uses this thread's memory.
pub(super) fn with<T>(f: impl FnOnce(&mut Scratch) -> T) -> T {
    with_taken(&SCRATCH, f)
}

/// Uses `ranges` as a list.
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

/// Uses an empty list of numbers.
pub(super) fn with_order<T>(f: impl FnOnce(&mut Vec<u32>) -> T) -> T {
    with_taken(&ORDER, |list| {
        list.clear();
        f(list)
    })
}
