//! What the papers do not ask: peers, and growing.

mod growth;
mod index;
mod mounts;
mod peers;

use crate::experiment::{Experiment, Paper};

/// Ours.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::Beyond;
    vec![
        Experiment {
            id: "beyond-peers",
            paper,
            figure: "peers",
            title: "Beside restic, borg and rustic: put, put again, restore, stored",
            found: "How does it stand beside what people use today for versions of trees, images and archives?",
            differs: "Drawn from the newest record of `bench/peers.py`, which ran all tools in turns on one machine; its own table has processor times and memory. None of the peers is \
                      a file system that can be written to, so it is the backup that is compared.",
            run: peers::drawn,
        },
        Experiment {
            id: "beyond-mounts",
            paper,
            figure: "mounts",
            title: "Mounted, beside btrfs, and over an object store beside s3fs and rclone",
            found: "What does it cost to work in it, beside a local file system that compresses, and beside what makes a file system of a bucket?",
            differs: "Every file system is new, and all are on the same disk. What a bucket's file systems acknowledge differs: ours and s3fs have uploaded after fsync, rclone \
                      uploads whole files behind, and forgets nothing only while its cache lives.",
            run: mounts::side_by_side,
        },
        Experiment {
            id: "beyond-growth",
            paper,
            figure: "growth",
            title: "A store that grows: throughput, memory, index, latency of names",
            found: "Does anything get slower or larger than in proportion, as a store grows?",
            differs: "One store, written to in equal steps of a stream of which 30 % repeats and half compresses away, in one process. The short form ends at some GB, so \
                      the caches of the machine hold all of the metadata.",
            run: growth::steps,
        },
        Experiment {
            id: "beyond-index",
            paper,
            figure: "index",
            title: "The index up to what this machine holds, and from there to 1 PB",
            found: "At most 100 MB of memory for a TB in chunks of 16 KiB is asked; does it hold, and are look-ups still as fast?",
            differs: "Indexes are real, filled with random fingerprints as the data of that size would have; the line beyond the last of them is bytes a key times keys, and \
                      is drawn as a model. Of a PB a host would keep only sampled hooks, which this does not measure.",
            run: index::sizes,
        },
    ]
}
