//! StoreGPU: hashing of large blocks and of sliding windows, on one core, all cores, and devices.

mod blocks;
mod equation;
mod similar;
mod stages;

use outrigger_format::FingerprintKind;
use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::sim::Speed;
use outrigger_offload::work::Request;
use outrigger_workload::Rng;

use crate::experiment::{Experiment, Paper};
use crate::lab::{Lab, Scale};

/// StoreGPU's experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::StoreGpu;
    vec![
        Experiment {
            id: "storegpu-4",
            paper,
            figure: "figure 4",
            title: "Direct hashing with MD5: device against all cores, by block size",
            found: "A GeForce 8800 overtakes two and four cores from about 1 MB on and reaches 6 times one core of a Core2 at 96 MB; for small blocks the \
                    processor wins.",
            said: &[("one core, ordinary function", "234 (table 4)"), ("GeForce 8800, largest block", "6")],
            differs: "The baseline is today's core running the ordinary function of the `md-5` crate, two to three times what the paper's core did, so equal speed-ups are \
                      higher rates. One core of today hashes up to sixteen segments side by side in its vector registers, which is what the paper needed a GPU for; devices \
                      are models of the bus and the kernels, and those that are there.",
            run: blocks::devices,
        },
        Experiment {
            id: "storegpu-5",
            paper,
            figure: "figure 5",
            title: "Direct hashing with MD5: each optimisation on and off",
            found: "With page-locked and shared memory, faster than a core from 700 KB on and up to 6 times; without them up to 37 times slower for 4 KB. Shared \
                    memory matters most.",
            said: &[("one core, ordinary function", "234 (table 4)"), ("8800, both, largest block", "6")],
            differs: "On a processor the counterpart of the card's shared memory are vector registers: the line without them is the plain loop. The model's bandwidths are \
                      the paper's with and without each optimisation; it makes and locks a buffer for each block, which costs it more than faster copies save.",
            run: |lab| blocks::optimisations(lab, Digest::Md5),
        },
        Experiment {
            id: "storegpu-6",
            paper,
            figure: "figure 6",
            title: "Direct hashing with SHA-1: each optimisation on and off",
            found: "As MD5, up to 6 times a core.",
            said: &[("one core, ordinary function", "156 (table 3)"), ("8800, both, largest block", "6")],
            differs: "As for MD5, but SHA-1 has instructions of its own on today's processors: the ordinary function does ten times what the paper's core did, so the same \
                      card is no gain, and vectors have less to add.",
            run: |lab| blocks::optimisations(lab, Digest::Sha1),
        },
        Experiment {
            id: "storegpu-7",
            paper,
            figure: "figure 7",
            title: "Sliding windows with MD5: 20 bytes, every 4",
            found: "Up to 20 times a core.",
            said: &[
                ("one core, ordinary function", "11.1 (table 4)"),
                ("GeForce 8800, largest block", "about 20"),
            ],
            differs: "Each window is one block of MD5 for four bytes of progress, so the processor is bound by arithmetic, and the paper's card won most here. Up to sixteen \
                      windows side by side in vector registers take most of that gain or all of it; the model's kernels are the rates of the paper's tables 3 and 4.",
            run: |lab| blocks::windows(lab, WindowFunction::Md5, 20, 4),
        },
        Experiment {
            id: "storegpu-8",
            paper,
            figure: "figure 8",
            title: "Sliding windows with SHA-1: 20 bytes, every 4",
            found: "Up to 25 times a core, the paper's largest gain.",
            said: &[("one core, ordinary function", "8.06 (table 3)"), ("GeForce 8800, largest block", "25")],
            differs: "As for MD5. Instructions for SHA-1 make the ordinary function six to nine times what the paper's core did, so that neither vectors nor the card's \
                      model gain as much over it.",
            run: |lab| blocks::windows(lab, WindowFunction::Sha1, 20, 4),
        },
        Experiment {
            id: "storegpu-9",
            paper,
            figure: "figure 9",
            title: "Sliding windows with MD5: 52 bytes, every 52",
            found: "A little less than with small windows.",
            said: &[("GeForce 8800, largest block", "under 20")],
            differs: "With a step as long as the window there is a thirteenth of figure 7's windows for each byte, so rates are high, and copies count for more of a \
                      device's time. The paper's text gives a bound only, and the baseline is today's core.",
            run: |lab| blocks::windows(lab, WindowFunction::Md5, 52, 52),
        },
        Experiment {
            id: "storegpu-10",
            paper,
            figure: "figure 10",
            title: "Sliding windows with SHA-1: 52 bytes, every 52",
            found: "A little less than with small windows; SHA-1 gains more than MD5.",
            said: &[("GeForce 8800, largest block", "under 25")],
            differs: "As figure 9, with SHA-1 and its instructions in the baseline. The paper says only that it stays below figure 8.",
            run: |lab| blocks::windows(lab, WindowFunction::Sha1, 52, 52),
        },
        Experiment {
            id: "storegpu-table-2",
            paper,
            figure: "table 2",
            title: "Sliding windows: every combination of function, window, step and bytes kept, on 1 MiB",
            found: "The factors of its experiments: windows of 20 or 52 bytes, steps of 4, 20 or 52, whole or reduced hashes; the plots above are some of them.",
            said: &[
                ("MD5: vectors over the ordinary function, most", "20 (its card)"),
                ("SHA1: vectors over the ordinary function, most", "25 (its card)"),
            ],
            differs: "The paper lists its factors and no rates for most of the combinations; here all of them are measured on one core, at one size that stays in its \
                      caches, so that only the function counts. Devices are in the figures.",
            run: blocks::factors,
        },
        Experiment {
            id: "storegpu-11-17",
            paper,
            figure: "figures 11 to 17",
            title: "Where the time goes: allocation, copy in, kernel, copy out, the rest",
            found: "Allocation takes 3 to 30 ms; copies reach 2.5 GB/s page-locked and 1.7 without, of 4 in theory. Without optimisations kernels take 65 % of the \
                    time, with all of them 20 %, and allocation and copy the most.",
            said: &[],
            differs: "These are stages of modelled devices; there is none here to be timed, and the model's bandwidths are the paper's, so shares agree by \
                      construction, and what is new is the second device. On the processor there are no such stages: nothing is allocated or copied.",
            run: stages::shares,
        },
        Experiment {
            id: "storegpu-tables-3-4",
            paper,
            figure: "tables 3 and 4",
            title: "Similarity between checkpoint images: fixed and variable blocks, and how fast it is found",
            found: "On images of a BLAST search, blocks of 20 MB find 23 % similarity and window hashes 80 to 82 %. Fixed blocks: 156 MB/s (SHA-1) and 234 (MD5) on a \
                    core, 1016 and 1102 on the GPU. Variable ones: 8 and 11 MB/s on a core, 194 and 255 on the GPU.",
            said: &[],
            differs: "Images are taken of another run of BLAST (or of a program that this project ships), seconds apart instead of five minutes, and are 55 MB \
                      instead of 279, so similarities are of this series: in three blocks of 20 MiB nothing stays as it was, where the paper's fourteen find 23 %. The \
                      model leaves out the host's part, and so does 1700 MB/s where the paper's card did 1016 to 1102. Vector registers make both ways many times as fast on one core as it was, and \
                      `gear32`, which rolls instead of hashing each window, faster again.",
            run: similar::tables,
        },
        Experiment {
            id: "storegpu-model",
            paper,
            figure: "equation 1",
            title: "The performance model's predictions against measurements",
            found: "T = initialisation + allocation + copy in + processing + copy out + post-processing, each from a latency and a bandwidth; offered to decide whether \
                    a GPU is worth the effort.",
            said: &[],
            differs: "Terms are fitted to the smallest and the largest size and predict those between. A modelled device follows it by construction but for \
                      the runtime's own time; the processor does not have to, and what it is off by is caches and shared work.",
            run: equation::predictions,
        },
    ]
}

/// The same bytes for all experiments, of any length.
fn data(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(3).fill(&mut data);
    data
}

/// Sizes of blocks, up to the paper's 96 MB.
fn sizes(lab: &Lab) -> Vec<usize> {
    const K: usize = 1 << 10;
    match lab.scale {
        Scale::Tiny => vec![4 * K, 64 * K],
        Scale::Short => vec![4 * K, 32 * K, 256 * K, 1024 * K, 4096 * K, 16384 * K, 98304 * K],
        Scale::Full => (2..17).map(|log| K << log).chain([98304 * K]).collect(),
    }
}

/// The device of the paper and one of today.
fn devices() -> [(&'static str, Speed); 2] {
    [("GeForce 8800", crate::models::GEFORCE_8800), ("GPU on PCIe 5.0", Speed::PCIE5_GPU)]
}

fn direct(digest: Digest) -> Request {
    Request::PmdHash { digest }
}

/// The ordinary function over a whole block.
fn ordinary(digest: Digest) -> FingerprintKind {
    match digest {
        Digest::Md5 => FingerprintKind::Md5,
        Digest::Sha1 => FingerprintKind::Sha1,
        Digest::Sha256 => FingerprintKind::Sha256,
        Digest::Blake3 => FingerprintKind::Blake3,
    }
}

fn window(function: WindowFunction, window: usize, step: usize, keep: usize) -> WindowSpec {
    WindowSpec { function, window, step, keep }
}
