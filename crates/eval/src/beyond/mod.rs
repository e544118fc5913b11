//! Questions that the papers do not ask: other programs, and growth.

mod cluster;
mod disk;
mod growth;
mod hooks;
mod index;
mod mounts;
mod peers;

use crate::experiment::{Experiment, Paper};

/// Our own experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::Beyond;
    vec![
        Experiment {
            id: "beyond-peers",
            paper,
            figure: "peers",
            title: "Beside restic, borg and rustic: put, put again, restore, stored",
            found: "How does it stand beside what people use today for versions of trees, images and archives?",
            said: &[],
            differs: "Drawn from the newest record of `bench/peers.py`, which ran all tools in turns on one machine; its own table has processor times and memory. None of the peers is \
                      a file system that can be written to, so it is the backup that is compared.",
            run: peers::drawn,
        },
        Experiment {
            id: "beyond-mounts",
            paper,
            figure: "mounts",
            title: "Mounted, beside a local file system that compresses",
            found: "What does it cost to work in it, beside btrfs and beside the file system that it lies on?",
            said: &[],
            differs: "Every file system is new, and all are on the same disk, btrfs in a file on it. A mount is a process of its own that names, cuts and keeps versions of what it gets, which \
                      kernel file systems do not.",
            run: mounts::side_by_side,
        },
        Experiment {
            id: "beyond-buckets",
            paper,
            figure: "buckets",
            title: "Mounted over an object store, beside s3fs and rclone",
            found: "What does it cost to work in it, beside what makes a file system of a bucket?",
            said: &[],
            differs: "Every file system is new; the bucket is Ceph's gateway on this machine, as `make cluster` makes it. A store packs small files together, where s3fs and rclone have an object \
                      and several requests for each.",
            run: mounts::over_a_bucket,
        },
        Experiment {
            id: "beyond-cluster",
            paper,
            figure: "cluster",
            title: "Shared mounts on a cluster: beside its own benchmark, s3fs and rclone, and its database",
            found: "Twice `rados bench` for what is stored already, 0.8 of it for new data, 0.7 of its reads; three times as fast as s3fs and rclone; 1,500 files made a second by one process.",
            said: &[],
            differs: "Drawn from the newest record of `bench/cluster.py`. Clients, servers and database are hosts in network namespaces that share \
                      two processors, so that ratios within a run mean something, and rates little beyond it.",
            run: cluster::drawn,
        },
        Experiment {
            id: "beyond-disk",
            paper,
            figure: "virtual machines",
            title: "A virtual machine's disk, stored day after day",
            found: "How much more than what its guest has changed is stored of a disk, by the way it is cut, and how fast?",
            said: &[],
            differs: "The disk and its guest are generated (`vm_image`), so that the same bytes come everywhere; guests write to a few hot places, which is kind to large chunks. Fixed blocks as \
                      large as the guest's find all that stays, at four times the names and index of the default.",
            run: disk::days,
        },
        Experiment {
            id: "beyond-growth",
            paper,
            figure: "growth",
            title: "A store that grows: throughput, memory, index, latency of names",
            found: "Does anything get slower or larger than in proportion, as a store grows?",
            said: &[],
            differs: "One store, written to in equal steps of a stream of which 30 % repeats and half compresses away, and of small files, in one process. The short form ends at 2 GB, the \
                      full one where the disk is three fifths full; the caches of the machine hold all of the metadata in both.",
            run: growth::steps,
        },
        Experiment {
            id: "beyond-index",
            paper,
            figure: "index",
            title: "The index up to what this machine holds, and from there to 1 PB",
            found: "At most 100 MB of memory for a TB in chunks of 16 KiB is asked; does it hold, and are look-ups still as fast?",
            said: &[],
            differs: "Indexes are real, filled with random fingerprints as the data of that size would have; the line beyond the last of them is bytes a key times keys, and \
                      is drawn as a model.",
            run: index::sizes,
        },
        Experiment {
            id: "beyond-petabyte",
            paper,
            figure: "sampled index",
            title: "An index for 1 PB that keeps only a sample of its fingerprints",
            found: "A few MB of memory for a TB, if a host keeps one fingerprint in so many and finds the rest by their neighbours: how much deduplication does that cost?",
            said: &[],
            differs: "Simulated: chunks are numbers and fingerprints functions of them, so that a petabyte takes no room. What real data's runs are like decides which of these numbers \
                      holds: versions of trees and images have runs of megabytes, mail has not.",
            run: hooks::sampled,
        },
    ]
}
