//! GHOST: deduplication of data on its way to primary storage, on the processor and on a device.

mod cache;
mod compute;
mod lookup;
mod staged;
mod whole;

use crate::experiment::{Experiment, Paper};

const DEVICE: &str = "The device is a model of the paper's GTX 480 by its table 1, copies included; the processor runs the same operations with its vectors, which the paper's single thread \
                      did not. Fingerprints and tables are of the paper's kind (SHA-1 of 4 KB; keys of 16 bytes in a table in memory).";

/// GHOST's experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::Ghost;
    vec![
        Experiment {
            id: "ghost-2",
            paper,
            figure: "figure 2",
            title: "Looking segments up, by their size and the medium of the table",
            found: "Computed for 20 TB: a table on a hard disk (10 ms) with 8 GB of memory against one on an SSD (12.5 µs) with 16 GB; the SSD reaches about 1 GB/s at \
                    8 KB.",
            said: &[],
            differs: "The paper's formula with its numbers is drawn, and beside it what this machine does: its disk's latency put into the same formula, and our table \
                      in memory measured. Our index reads one page for what its summary vector does not end, so its rate is the disk's only for duplicates.",
            run: lookup::media,
        },
        Experiment {
            id: "ghost-table-2",
            paper,
            figure: "table 2",
            title: "Looking up in a table in memory: processor and device",
            found: "1,280,000 look-ups in a table of 500 MB: 1452 ms on a Xeon of 3 GHz, 8 ms on the GTX 480.",
            said: &[],
            differs: "Questions are asked in batches whose memory reads overlap, where the paper's processor waited for each; the summary vector ends most of those that \
                      miss. The paper's keys lay in the GPU's memory already, here they are copied to the modelled device, which is why it takes three to four \
                      times as long.",
            run: lookup::table,
        },
        Experiment {
            id: "ghost-3",
            paper,
            figure: "figure 3",
            title: "Segmentation (4 KB on average), by the amount of data",
            found: "25 MB/s on one thread, up to 2.6 GB/s on the GTX 480 from some 128 MB on, where its bus is the limit.",
            said: &[("GTX 480 (model), most data", "2600")],
            differs: "One line computes a Rabin fingerprint of 63 bytes anew at each byte, as a device's threads do; the others roll it (over 48 bytes), or are `gear32`, which the store uses. The paper's thread lies between \
                      the first two. Rolled, two cores are still far behind the paper's card; only `gear32`'s vector kernels, another function, go beyond its bus.",
            run: compute::segmentation,
        },
        Experiment {
            id: "ghost-4",
            paper,
            figure: "figure 4",
            title: "Fingerprinting segments of 4 KB, by the amount of data",
            found: "The GTX 480 reaches 2.6 GB/s (its bus) from 128 MB on, seven times one CPU.",
            said: &[],
            differs: DEVICE,
            run: compute::fingerprinting,
        },
        Experiment {
            id: "ghost-8",
            paper,
            figure: "figure 8",
            title: "The amount of data offloaded at once",
            found: "Best at 128 MB; more makes the device wait for data to come. The text gives no rate.",
            said: &[("one batch at a time: 90 % of the best from", "128 (its best)")],
            differs: "The model's latencies are those of launches and copies, some 30 µs, so a few MB are enough; the paper's prototype had to fill its threads with one batch. \
                      Several batches in flight here replace one large one.",
            run: whole::batch,
        },
        Experiment {
            id: "ghost-9",
            paper,
            figure: "figure 9",
            title: "Which data is deduplicated first: what was written longest ago, or the reverse, by the rewrite ratio",
            found: "With the destage order of the cache (least recently written first) throughput rises with the share of rewrites, since what is rewritten in the cache need \
                    not be deduplicated; in the reverse order it stays where it was.",
            said: &[("throughput, 80 % rewrites, over the reverse order", "over 1")],
            differs: "The cache is simulated with the paper's sizes and its segments really hashed, so the count of hashed bytes is exact and the rate is this \
                      processor's. Writes that hit what is being hashed are not simulated, though the paper's device loses most by them. The same requests also go through the \
                      staging log and the flusher of a mount (`mount --staging-order`), which offload an eighth of the log at once, not a half.",
            run: cache::order,
        },
        Experiment {
            id: "ghost-10",
            paper,
            figure: "figure 10",
            title: "A table cache of the most deduplicated segments, by the deduplication rate",
            found: "Time for look-ups falls in proportion to the share found in the cache; at 0 % the cache costs a little.",
            said: &[
                ("time with a table cache, at 0 %", "over 1"),
                ("time with a table cache, at 100 %", "under 1"),
            ],
            differs: "On the processor a table cache is a smaller table that stays in its caches; what it saves is the wait for memory. On the modelled device it is a \
                      transfer of keys that replaces a look-up on the host.",
            run: lookup::cache,
        },
        Experiment {
            id: "ghost-11",
            paper,
            figure: "figure 11",
            title: "A summary vector in front of the table cache, by the deduplication rate",
            found: "At 0 % deduplication it cuts the look-up from 5.6 to 1.6 ms; at high rates it saves nothing. Its answers are within 10 % of the true rate.",
            said: &[],
            differs: "A blocked Bloom filter of one read of 32 bytes instead of four reads. It saves the read of a bucket, which on a processor costs about as much, so the gain is \
                      smaller than on the paper's GPU.",
            run: lookup::summary,
        },
        Experiment {
            id: "ghost-12",
            paper,
            figure: "figure 12",
            title: "The whole (cut, fingerprint, look up) against the processor alone, by segment size and deduplication rate",
            found: "GHOST reaches 1.5 GB/s, six times the processor's 250 to 300 MB/s; without hits in its table cache it falls for small segments.",
            said: &[("all cores, most", "300"), ("GTX 480 (model), most", "about 1500")],
            differs: "The model has the bus and kernels of the paper's GTX 480 but not its host's part in the work, so that it does 2.0 GB/s where the paper's did 1.5. The processor \
                      hashes with its vectors, which the paper's single thread did not.",
            run: whole::throughput,
        },
    ]
}
