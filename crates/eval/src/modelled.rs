//! CA-device on a machine without a device: an upper bound for a device of known speed.
//!
//! A run of the oracle really does everything that a write does, except hashing. A device that
//! hashes meanwhile needs copies to it, kernels and copies back. These three and the host work side
//! by side on different batches. So a batch takes as long as the slowest of them, and only the
//! first one waits for each in turn:
//!
//! ```text
//! host      h h h h          time = (batches - 1) x max(host, in, kernel, out)
//! copy in   i  i  i  i              + host + in + kernel + out
//! kernel       k  k  k  k
//! copy out        o  o  o  o
//! ```
//!
//! This is a bound. It leaves out the host's time for driving the device, and that a card of the
//! papers' day copies in one direction at a time. It is never faster than the oracle's run, and
//! equals it where the device hides.

use std::time::Duration;

use outrigger_format::ChunkerSpec;
use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::sim::Speed;
use outrigger_offload::work::Class;

use crate::models::GTX_480;
use crate::wrote::Put;

/// A device, and the name of its line.
pub struct Card {
    /// For example "CA-device, GTX 480 on PCIe 2, at most".
    pub name: &'static str,
    speed: Speed,
}

/// The papers' card on its bus, and one on a bus of today.
pub const CARDS: [Card; 2] = [
    Card { name: "CA-device, GTX 480 on PCIe 2, at most", speed: GTX_480 },
    Card { name: "CA-device, GPU on PCIe 5, at most", speed: Speed::PCIE5_GPU },
];

/// The explanation of these lines, for the notes of a record.
pub const NOTE: &str = "`CA-device … at most` is a model: the runs of CA-Infinite, whose answers are known beforehand, and what the device takes to copy and hash where the host is \
                        not slower (`crates/eval/src/modelled.rs`). The device does what MosaStore has it do: content-defined, one task for the hashes of windows, which come \
                        back, and one for those of chunks; else the latter alone.";

/// Windows as HashGPU hashes them: one at every fourth byte, and four bytes of each hash are copied
/// back.
const WINDOWS: Class =
    Class::WindowHash(WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 });
/// Bytes of a digest for each segment of 4096.
const DIGESTS: Class = Class::PmdHash(Digest::Md5);

/// Seconds of each of the device's engines for a batch: copy in, kernel, copy out.
fn stages(speed: &Speed, chunker: ChunkerSpec, bytes: usize) -> [f64; 3] {
    let digests = (DIGESTS, bytes.div_ceil(4096) * 16);
    let tasks: &[(Class, usize)] = match chunker {
        ChunkerSpec::Fixed { .. } => &[digests],
        _ => &[(WINDOWS, bytes), digests],
    };
    let mut sums = [Duration::ZERO; 3];
    for (class, out) in tasks {
        let times = speed.times(*class, bytes, *out);
        for (sum, time) in sums.iter_mut().zip([times.copy_in, times.kernel, times.copy_out]) {
            *sum += time;
        }
    }
    sums.map(|sum| sum.as_secs_f64())
}

/// Bytes that the write pipeline hands on together: four of the longest chunks, at least a MiB.
fn batch(chunker: ChunkerSpec) -> usize {
    (4 * chunker.max_len()).max(1 << 20)
}

impl Card {
    /// Seconds that the work of the oracle's run `put` takes with this card.
    pub fn seconds(&self, put: &Put, chunker: ChunkerSpec) -> f64 {
        let batches = (put.bytes as usize).div_ceil(batch(chunker)).max(1);
        let device = stages(&self.speed, chunker, put.bytes as usize / batches);
        pipelined(put.seconds, batches, device)
    }
}

/// The formula above. `host` is the time of all batches, `device` that of one.
fn pipelined(host: f64, batches: usize, device: [f64; 3]) -> f64 {
    let host = host / batches as f64;
    let slowest = device.into_iter().fold(host, f64::max);
    (batches - 1) as f64 * slowest + host + device.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_costs_nothing_and_the_slowest_stage_all() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        // The device has nothing to do: the oracle's own time.
        near(pipelined(10.0, 5, [0.0; 3]), 10.0);
        // Hidden, except for the first batch's way through.
        near(pipelined(10.0, 5, [1.0, 2.0, 0.5]), 10.0 + 3.5);
        // The bus is the slowest.
        near(pipelined(10.0, 5, [4.0, 1.0, 1.0]), 4.0 * 4.0 + 2.0 + 6.0);
        // One batch hides nothing.
        near(pipelined(2.0, 1, [1.0, 1.0, 1.0]), 5.0);
    }

    #[test]
    fn a_card_is_bound_by_its_bus_and_never_quicker_than_the_oracle() {
        let spec = |text: &str| ChunkerSpec::parse(text).unwrap();
        let put = |seconds: f64| Put { seconds, bytes: 4 << 30, new: 0 };
        for chunker in ["fixed:1M", "gear32:256K/1M/4M", "lbfs-md5:256K/1M/4M"].map(spec) {
            for card in &CARDS {
                for seconds in [1e-3, 0.1, 1.0, 100.0] {
                    assert!(card.seconds(&put(seconds), chunker) > seconds, "{}", card.name);
                }
            }
            // With a host that takes no time the slowest engine remains. With content-defined
            // chunks, data crosses the bus twice.
            let times = if chunker == spec("fixed:1M") { 1.0 } else { 2.0 };
            let least = times * (4_u64 << 30) as f64 / GTX_480.in_rate;
            let bound = CARDS[0].seconds(&put(1e-3), chunker);
            assert!((least..1.1 * least).contains(&bound), "{chunker}: {bound} {least}");
            assert!(CARDS[1].seconds(&put(1e-3), chunker) < bound / 5.0, "the bus decides");
        }
    }
}
