//! Helpers for tests of devices that compress.

mod frames;
mod policy;
mod standin;

pub use frames::{assert_right, compression, data, decompression, noise, spec};
pub use policy::{device, impatient, run_until, strict};
pub use standin::{Copy, built, compute};
