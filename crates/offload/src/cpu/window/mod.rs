//! Sliding windows: MD5 and SHA-1 in lanes, Rabin and gear32 rolling or one by one.

mod rolling;

use self::rolling::{Gear, Rabin};
use super::lanes;
use crate::SimdLevel;
use crate::op::{Digest, WindowFunction, WindowSpec};

/// Appends to `out` the kept part of the hash of each window of `spec` in `data`, as
/// [`crate::op::WindowHash`] describes.
///
/// # Panics
/// Unless `spec` is [valid](WindowSpec::is_valid).
///
/// ```
/// use outrigger_offload::{op::{WindowFunction, WindowSpec}, reference, window_hash};
/// let spec = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
/// let (data, mut out) = (vec![7; 10_000], Vec::new());
/// window_hash(spec, &data, &mut out);
/// assert_eq!(out, reference::window_hash(spec, &data));
/// ```
pub fn window_hash(spec: WindowSpec, data: &[u8], out: &mut Vec<u8>) {
    window_hash_with(SimdLevel::current(), spec, data, out);
}

/// [`window_hash`] with the instructions of `level`, or of the best lower level that this processor
/// has.
///
/// # Panics
/// Unless `spec` is valid.
pub fn window_hash_with(level: SimdLevel, spec: WindowSpec, data: &[u8], out: &mut Vec<u8>) {
    assert!(spec.is_valid(), "{spec:?} is out of bounds");
    let before = out.len();
    out.resize(before + spec.count(data.len()) * spec.keep, 0);
    hash_into(level, spec, data, &mut out[before..]);
}

/// [`window_hash`] into `out`, which has room for exactly the kept bytes.
pub(super) fn hash_into(level: SimdLevel, spec: WindowSpec, data: &[u8], out: &mut [u8]) {
    match spec.function {
        WindowFunction::Md5 => lanes::windows(level, Digest::Md5, &spec, data, out),
        WindowFunction::Sha1 => lanes::windows(level, Digest::Sha1, &spec, data, out),
        WindowFunction::Rabin => rolling::hash(&Rabin::new(spec.window), spec, data, out),
        WindowFunction::Gear32 => rolling::hash(&Gear::new(spec.window), spec, data, out),
    }
}
