//! The papers' devices as simulated ones: numbers from their tables, and where they have none,
//! conclusions from these.

use std::time::Duration;

use outrigger_offload::op::{Digest, WindowFunction};
use outrigger_offload::sim::Speed;
use outrigger_offload::work::Class;

use crate::record::Outcome;

/// StoreGPU's GeForce 8800 GTX with all of its optimisations. Bus and direct hashing are those of
/// [`Speed::GEFORCE_8800`]. Sliding windows are from the paper's tables 3 and 4 (255 MB/s with MD5
/// and 194 with SHA-1), without the copies of window hashes in both directions.
pub const GEFORCE_8800: Speed = Speed { kernel_rate_of: geforce_8800, ..Speed::GEFORCE_8800 };

fn geforce_8800(class: Class) -> Option<f64> {
    match class {
        Class::WindowHash(spec) => Some(windows(spec.function, 320e6, 230e6) * density(spec.step)),
        // SHA-1 by the ratio of the paper's tables 3 and 4 for direct hashing.
        Class::PmdHash(Digest::Sha1) => Some(6.5e9 * 1015.9 / 1101.6),
        _ => None,
    }
}

fn windows(function: WindowFunction, md5: f64, sha1: f64) -> f64 {
    if function == WindowFunction::Sha1 { sha1 } else { md5 }
}

/// Rates are for a window every four bytes; with fewer windows there is less to hash.
fn density(step: usize) -> f64 {
    step as f64 / 4.0
}

/// The same card without page-locked memory: 1.7 GB/s to it (section 4.1.3), nothing to lock.
pub const GEFORCE_8800_UNPINNED: Speed =
    Speed { in_rate: 1.7e9, out_rate: 1.7e9, lock: (Duration::ZERO, 0.0), ..GEFORCE_8800 };

/// The same card without its shared memory: kernels take 65 % of the time instead of 20 (section
/// 4.1.3, figure 16), which is about seven times as long.
pub const GEFORCE_8800_UNSHARED: Speed =
    Speed { kernel_rate: 0.9e9, kernel_rate_of: unshared, ..GEFORCE_8800 };

/// The same card with neither.
pub const GEFORCE_8800_BARE: Speed =
    Speed { kernel_rate: 0.9e9, kernel_rate_of: unshared, ..GEFORCE_8800_UNPINNED };

fn unshared(class: Class) -> Option<f64> {
    geforce_8800(class).map(|rate| rate / 7.0)
}

/// The GTX 480 of the papers on GPUs as storage accelerators and on GHOST. The bus is from GHOST's
/// table 1. Kernels for windows are from HashGPU's 125 times a core that does 16 MB/s. Kernels for
/// hashing limit neither paper (assumed 8 GB/s). Page-locking is as in StoreGPU.
pub const GTX_480: Speed = Speed {
    name: "GTX 480",
    launch: Duration::from_micros(10),
    in_rate: 2.756e9,
    out_rate: 3.198e9,
    kernel_rate: 8e9,
    kernel_rate_of: gtx_480,
    lock: (Duration::from_micros(200), 0.4e-9),
    memory_bytes: 1535 << 20,
    zero_copy: false,
};

fn gtx_480(class: Class) -> Option<f64> {
    match class {
        Class::WindowHash(spec) => Some(windows(spec.function, 2.1e9, 1.5e9) * density(spec.step)),
        // Table 2: 1,280,000 look-ups in 8 ms, 32 bytes each.
        Class::Lookup => Some(1.28e6 * 32.0 / 8e-3),
        _ => None,
    }
}

/// Adds notes about the models' sources, and about devices that were present.
pub fn note(outcome: &mut Outcome) {
    let found = outrigger_offload::discover().devices;
    let names: Vec<&str> = found.iter().map(|device| &*device.identity().model).collect();
    let there = if names.is_empty() {
        "No device was there to be measured.".to_string()
    } else {
        format!("Measured besides: {}.", names.join(", "))
    };
    outcome.note(format!(
        "Models are simulated devices with the papers' bandwidths and latencies (source `crates/eval/src/models.rs`); the one on PCIe 5.0 assumes 55 GB/s and kernels of 200 GB/s. {there}"
    ));
}
