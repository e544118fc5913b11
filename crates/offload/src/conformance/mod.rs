//! The function that every device must pass. It compares the device's results with the references,
//! where devices are prone to errors.
//!
//! Lengths lie around every lane count and load width in use. Buffers are unaligned. Contents are
//! random, constant, short periods, text, and such that every position is a candidate.

mod codec;
mod hash;
mod ingest;
mod lookup;
mod scan;
mod window;

use outrigger_format::boundary::GEAR;

use crate::{Device, Operation, Task, TaskError};

/// Checks every operation that `device` supports.
///
/// # Panics
/// On the first result that differs from the reference's, with its input.
///
/// ```
/// outrigger_offload::conformance::check(&mut outrigger_offload::CpuDevice::new());
/// ```
pub fn check(device: &mut dyn Device) {
    for operation in Operation::ALL {
        match operation {
            _ if !device.supports(operation) => {}
            Operation::Scan => scan::check_scan(device),
            Operation::HashMany => hash::check_hash_many(device),
            Operation::Compress => codec::check_compress(device),
            Operation::Decompress => codec::check_decompress(device),
            Operation::WindowHash => window::check_window_hash(device),
            Operation::PmdHash => hash::check_pmd_hash(device),
            Operation::Lookup => lookup::check_lookup(device),
            Operation::Ingest => ingest::check_ingest(device),
        }
    }
}

/// Lengths around the loads of kernels, the shares of lanes, and the sizes of blocks.
const LENGTHS: [usize; 42] = [
    0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 223, 224, 225, 255, 256, 257, 287,
    288, 289, 511, 512, 513, 800, 1023, 1024, 1025, 4095, 4097, 5000, 16_384, 65_537, 131_104, 196_641,
    400_003,
];

/// Named contents of `len` bytes.
fn contents(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut state = 0x0123_4567_89ab_cdef ^ (len as u64) << 32;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    })
    .take(len)
    .collect();
    let text = b"the outrigger takes load, so that the hull can go fast; ".iter().copied().cycle().take(len);
    let words =
        random.chunks(6).flat_map(|word| [b' ', b'a' + word[0] % 26, b'e', b'a' + word[0] % 7, b't', b's']);
    // The constant byte whose hash, -g, has the most leading zeros makes every position a candidate
    // of some average.
    let dense = (0..=255u8).min_by_key(|&byte| GEAR[byte as usize].wrapping_neg()).unwrap_or(0);
    vec![
        ("zeros", vec![0; len]),
        ("dense", vec![dense; len]),
        ("periodic", (0..len).map(|at| (at % 37) as u8).collect()),
        ("text", text.collect()),
        ("words", words.take(len).collect()),
        (
            "random then zeros",
            random.iter().enumerate().map(|(at, &b)| if at < len / 2 { b } else { 0 }).collect(),
        ),
        ("random", random),
    ]
}

fn run(device: &mut dyn Device, mut task: Task<'_>) -> Result<(), TaskError> {
    device.run(&mut task)
}
