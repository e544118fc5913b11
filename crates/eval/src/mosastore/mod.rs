//! MosaStore with HashGPU and CrystalGPU: the gain by a runtime, and the cost of content addressing
//! for a writer and for others.

mod beside;
mod checkpoint;
mod stages;
mod write;

use outrigger_offload::op::{Digest, WindowFunction, WindowSpec};
use outrigger_offload::work::Request;

use crate::experiment::{Experiment, Paper};

const RUNTIME: &str = "Devices are models of the GTX 480 (bus by GHOST's table, kernels by this paper's speed-ups), so what is measured is our runtime: how much of the \
                       modelled time it hides. The baseline core hashes many windows or segments in its vector registers, so the same device is worth fewer times a core.";
/// The differences common to all of its figures on writing, and the figure's own.
macro_rules! write_differs {
    ($more:literal) => {
        concat!(
            "One machine writes to its own disk in one process, without FUSE and network, and hashes in non-CA too, because every read is verified. CA-device is \
             measured where there is a device, and drawn everywhere as the most that a model of one could bring; CA-Infinite, which is told all boundaries and fingerprints, bounds any. ",
            $more
        )
    };
}

/// The chunkers are different functions.
const GEAR: &str = write_differs!(
    "Chunks are cut by `gear32`, which rolls, where MosaStore hashes a window at each place: its processors' rate is that of its chunker, ours is not. A line has today's processor with MosaStore's chunker, too."
);
const OF_WINDOWS: &str = "CA-CPU, the paper's windows (lbfs-md5), largest files";

/// MosaStore's experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::MosaStore;
    vec![
        Experiment {
            id: "mosastore-4",
            paper,
            figure: "figure 4",
            title: "Stages of sliding-window hashing without a runtime",
            found: "Allocation and copying in take 80 to 96 % of the time.",
            said: &[("allocation and copy in, largest block", "80 to 96")],
            differs: "A model of the GTX 480, whose allocation costs what StoreGPU measured on an earlier card: 0.2 ms and 2.5 GB/s. The paper's takes longer, by how much it does not say, so that our \
                      share is about half of its; what is saved by reuse (`mosastore-5`) is smaller for the same reason.",
            run: stages::shares,
        },
        Experiment {
            id: "mosastore-5",
            paper,
            figure: "figure 5",
            title: "Sliding windows: buffer reuse, overlap, a second device",
            found: "27 times a core without the runtime, 100 with reused buffers, 125 with overlap, 190 with two cards; two sockets of four cores reach 8 (129 MB/s).",
            said: &[],
            differs: RUNTIME,
            run: |lab| stages::gains(lab, windows(), "sliding windows", [27.0, 100.0, 125.0, 190.0]),
        },
        Experiment {
            id: "mosastore-6",
            paper,
            figure: "figure 6",
            title: "Direct hashing: buffer reuse, overlap, a second device",
            found: "7 times a core without the runtime, 28 with reuse and overlap, 45 with two cards; two sockets reach 8.",
            said: &[],
            differs: RUNTIME,
            run: |lab| stages::gains(lab, direct(), "direct hashing", [7.0, 0.0, 28.0, 45.0]),
        },
        Experiment {
            id: "mosastore-batch",
            paper,
            figure: "section 4.1",
            title: "Tasks in flight, 1 to 10",
            found: "At least three blocks in a batch are needed for nearly all of the gain.",
            said: &[("GTX 480: three in flight, of the most", "near 100")],
            differs: RUNTIME,
            run: stages::in_flight,
        },
        Experiment {
            id: "mosastore-7",
            paper,
            figure: "figure 7",
            title: "Writing different files, fixed blocks of 1 MB",
            found: "Without similarity, non-CA is fastest; both content-addressed ways lag for small files.",
            said: &[],
            differs: write_differs!(
                "Blocks are named by BLAKE3 at several GB/s, so that naming hides behind the disk."
            ),
            run: |lab| write::by_size(lab, false, "fixed:1M"),
        },
        Experiment {
            id: "mosastore-8",
            paper,
            figure: "figure 8",
            title: "Writing different files, content-defined chunks",
            found: "Hashing windows on two processors caps writing at 46 MB/s (the text prints Mbps, which cannot be meant beside its 49 MBps in figure 11); both content-addressed ways lag behind non-CA at nearly all sizes.",
            said: &[("CA-CPU, largest files", "46 (printed Mbps)"), (OF_WINDOWS, "46 (printed Mbps)")],
            differs: GEAR,
            run: |lab| write::by_size(lab, false, "gear32:256K/1M/4M"),
        },
        Experiment {
            id: "mosastore-9",
            paper,
            figure: "figure 9",
            title: "Writing the same file again and again, fixed blocks of 1 MB",
            found: "The GPU more than doubles CA-CPU from 64 MB on and nearly reaches CA-Infinite.",
            said: &[
                ("CA-Infinite over CA-CPU: the most that any offloading could bring", "over 2"),
                ("CA-device, GTX 480 on PCIe 2, at most (model), over CA-CPU", "over 2"),
                ("CA-device, GTX 480 on PCIe 2, at most (model), short of CA-Infinite", "nearly 0"),
            ],
            differs: write_differs!(
                "Reading and naming are all that is left to do of a copy, and both are near the rate of memory."
            ),
            run: |lab| write::by_size(lab, true, "fixed:1M"),
        },
        Experiment {
            id: "mosastore-10",
            paper,
            figure: "figure 10",
            title: "Writing the same file again and again, content-defined chunks",
            found: "CA-CPU stays below non-CA; the GPU is 4.4 times CA-CPU and 2.1 times non-CA, within 25 % of CA-Infinite from 16 MB on.",
            said: &[
                ("CA-CPU, largest files", "46 (printed Mbps)"),
                ("CA-CPU over non-CA", "about 0.48"),
                ("CA-Infinite over CA-CPU: the most that any offloading could bring", "over 4.4"),
                (OF_WINDOWS, "46 (printed Mbps)"),
                ("CA-CPU, the paper's windows (lbfs-md5), over non-CA", "about 0.48"),
                (
                    "CA-device, GTX 480 on PCIe 2, at most (model), over CA-CPU, the paper's windows (lbfs-md5)",
                    "over 4.4",
                ),
                ("CA-device, GTX 480 on PCIe 2, at most (model), over non-CA", "over 2.1"),
                ("CA-device, GTX 480 on PCIe 2, at most (model), short of CA-Infinite", "under 25"),
            ],
            differs: GEAR,
            run: |lab| write::by_size(lab, true, "gear32:256K/1M/4M"),
        },
        Experiment {
            id: "mosastore-11",
            paper,
            figure: "figure 11",
            title: "Writing checkpoint images, by block size, with the similarity found",
            found: "Fixed blocks find 21 to 23 %, content 76 to 90 %. With content-defined chunks the GPU writes up to 5 times as fast as two processors (49 MB/s) and 2.3 \
                    times as fast as non-CA, best near 1 MB.",
            said: &[
                ("similarity, fixed:1M", "21 to 23"),
                ("similarity, gear32:256K/1M/4M", "76 to 90"),
                ("similarity, lbfs-md5:256K/1M/4M", "76 to 90"),
                ("CA-Infinite over CA-CPU, gear32:256K/1M/4M", "up to 5 (its GPU)"),
                ("CA-Infinite over CA-CPU, lbfs-md5:256K/1M/4M", "up to 5 (its GPU)"),
                ("CA-device, GTX 480 on PCIe 2, at most (model), over CA-CPU, fixed:1M", "about 1.3"),
                (
                    "CA-device, GTX 480 on PCIe 2, at most (model), over CA-CPU, lbfs-md5:256K/1M/4M",
                    "up to 5",
                ),
                (
                    "CA-device, GTX 480 on PCIe 2, at most (model), over non-CA, gear32:256K/1M/4M",
                    "up to 2.3",
                ),
                ("content-defined, best, CA-CPU", "49"),
            ],
            differs: write_differs!(
                "Chunks are cut by `gear32`, which rolls, where MosaStore hashes windows, as `lbfs-md5` does. Images are 8 seconds apart instead of five minutes, and of a smaller search: they share less that is as long as a chunk of 1 MB."
            ),
            run: checkpoint::by_block,
        },
        Experiment {
            id: "mosastore-12-14",
            paper,
            figure: "figures 12 to 14",
            title: "Beside a compute-bound program (a prime search): its slow-down and ours",
            found: "Non-CA slows the program down by 80 to 225 %; offloading halves the slow-down of CA-CPU with different files and takes 10 to 20 % off with the others, and \
                    writes 2 to 2.5 times as fast; it loses less than 18 % itself.",
            said: &[
                ("slow-down beside non-CA, different", "80 to 225"),
                ("slow-down beside non-CA, similar", "80 to 225"),
                ("slow-down beside non-CA, checkpoint", "80 to 225"),
                ("the writer's loss, CA-Infinite, different", "under 18 (its GPU)"),
                ("the writer's loss, CA-Infinite, similar", "under 18 (its GPU)"),
                ("the writer's loss, CA-Infinite, checkpoint", "under 18 (its GPU)"),
            ],
            differs: write_differs!(
                "Nothing goes over a network, whose work in the kernel the paper names as the cause of non-CA's slow-down, so all ways take about their share of two cores."
            ),
            run: beside::compute,
        },
        Experiment {
            id: "mosastore-15-17",
            paper,
            figure: "figures 15 to 17",
            title: "Beside a program bound by files (a compilation): its slow-down and ours",
            found: "Offloading takes 5 to 15 % off the program's slow-down and writes 1.7 to 2 times as fast; it loses less than 6 % itself.",
            said: &[
                ("the writer's loss, CA-Infinite, different", "under 6 (its GPU)"),
                ("the writer's loss, CA-Infinite, similar", "under 6 (its GPU)"),
                ("the writer's loss, CA-Infinite, checkpoint", "under 6 (its GPU)"),
            ],
            differs: write_differs!("Program and writer share two cores and one disk."),
            run: beside::files_bound,
        },
    ]
}

fn windows() -> Request {
    Request::WindowHash { spec: WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 } }
}

fn direct() -> Request {
    Request::PmdHash { digest: Digest::Md5 }
}
