//! QZFS: compression in the file system, and its cost on the processor.

mod apart;
mod bottleneck;
mod codecs;
mod data;
mod fio;
mod genomes;
mod hosts;
mod mounted;
mod neck;
mod tiers;

use crate::experiment::{Experiment, Paper};

const HERE: &str = "There is no QAT card here, so its column is the paper's, and what stands against it are the codecs that a processor of today does cheaply (zstd, lz4), which \
                    the paper did not have in ZFS. QZFS compresses on the storage servers; Outrigger does it on the client that writes.";

const MOUNT: &str = "One client on one machine with two cores does everything, FUSE and hashing included, where the paper had 16 threads on each of two clients and servers of 44 cores. \
                     What stands against its card is zstd in software; fio's data compress to a quarter, as its do, with every codec: text and genomic reads stand beside them.";

/// QZFS's experiments.
pub fn experiments() -> Vec<Experiment> {
    let paper = Paper::Qzfs;
    vec![
        Experiment {
            id: "qzfs-1",
            paper,
            figure: "figure 1",
            title: "Write throughput by the size of the data set, over fast storage that fills up and slow storage behind it",
            found: "Without compression throughput collapses when the 1.6 TB SSD is full; with lz4 (ratio 1.9) at 3 TB and with gzip (3.8) at 6.1 TB. Until then lz4 is \
                    faster, from 4.5 TB on gzip is.",
            said: &[],
            differs: "Storage is throttled to 400 MB/s, behind a first part, to 40 MB/s, and the sizes are thousands of times smaller; data are genomic reads, compressed for real by all \
                      cores. zstd has nearly gzip's ratio at many times its speed, so the crossing of the paper goes away.",
            run: tiers::capacity,
        },
        Experiment {
            id: "qzfs-2",
            paper,
            figure: "figure 2",
            title: "Sorting aligned reads: time for storage, sorting and codec",
            found: "150 GB with samtools. Off: 117 s for storage, 232 s for sorting. gzip (3.56): 35, 232 and 278 s for the codec. lz4 (2.41): 48, 232 and 25 s.",
            said: &[("none: ratio", "1")],
            differs: "Our own sort of generated SAM on one core, each part timed apart; storage is throttled to 400 MB/s. zstd:1 has nine tenths of gzip's ratio at half of \
                      its time. Our sort is so quick that every codec's share is larger than the paper's, and copying counts as the codec of `none`.",
            run: genomes::shares,
        },
        Experiment {
            id: "qzfs-7a",
            paper,
            figure: "figure 7a",
            title: "Codecs by access pattern, blocks of 128 KiB: throughput and cost efficiency",
            found: "Four nodes, two of them servers of 44 cores. Off: up to 3937 MB/s. gzip: reads 4.5 times as fast as writes. The card: 5 times gzip's writes with ratio 3.65 against 3.78, \
                    and four times the cost efficiency (ratio over processor use).",
            said: &[("zstd:1: ratio", "3.65 (its card)"), ("auto: ratio", "3.65 (its card)")],
            differs: HERE,
            run: codecs::patterns,
        },
        Experiment {
            id: "qzfs-7b",
            paper,
            figure: "figure 7b",
            title: "Codecs by block size, reading and writing as much",
            found: "Off rises from 1899 MB/s at 4 KB to 3213 at 1 MB; the card stays ahead of gzip everywhere.",
            said: &[],
            differs: HERE,
            run: codecs::blocks,
        },
        Experiment {
            id: "qzfs-7c",
            paper,
            figure: "figure 7c",
            title: "gzip by card against the fast codecs in software",
            found: "The card writes 12.7 % and reads 4.8 % faster than lz4, lzjb and zle on the average, at 2.25 and 1.62 times their cost efficiency.",
            said: &[
                ("gzip:6: ratio", "3.78 (figure 7a)"),
                ("zstd:1: ratio", "3.65 (its card)"),
                ("auto: ratio", "3.65 (its card)"),
            ],
            differs: HERE,
            run: codecs::fast,
        },
        Experiment {
            id: "qzfs-7-mount",
            paper,
            figure: "figure 7a, through the mount",
            title: "fio through the mount, by codec and pattern",
            found: "As figure 7a: the comparison through the whole file system. The card writes 28 % and reads 10 % faster than no codec.",
            said: &[],
            differs: MOUNT,
            run: fio::patterns,
        },
        Experiment {
            id: "qzfs-7b-mount",
            paper,
            figure: "figure 7b, through the mount",
            title: "fio through the mount, by block size, reading and writing as much",
            found: "As figure 7b: without codec throughput rises by 70 % from blocks of 4 KB to 1 MB.",
            said: &[],
            differs: MOUNT,
            run: fio::blocks,
        },
        Experiment {
            id: "qzfs-7c-mount",
            paper,
            figure: "figure 7c, through the mount",
            title: "fio through the mount, by the fast codecs",
            found: "As figure 7c: the card writes 12.7 % and reads 4.8 % faster than lz4, lzjb and zle on the average, at 2.25 and 1.62 times their cost efficiency.",
            said: &[
                ("gzip:6: ratio", "3.78 (figure 7a)"),
                ("zstd:1: ratio", "3.65 (its card)"),
                ("auto: ratio", "3.65 (its card)"),
            ],
            differs: MOUNT,
            run: fio::fast,
        },
        Experiment {
            id: "qzfs-bottleneck",
            paper,
            figure: "section 5, bottleneck",
            title: "What holds random writes up",
            found: "At 4680 MB/s (RandW, ratio 3.55) servers' processors are 20 % busy, SSDs take 1318 of 3314 MB/s, the network half and the card 80 % of what they could: it is the software \
                    of ZFS, whose threads wait for the card one request each.",
            said: &[],
            differs: "Two cores are client and server, and the client's file system is the mount itself. What is the bottleneck is said by a rule, from what was in use (in the notes). Nothing waits for \
                      a codec request by request: frames are compressed by all threads, and devices get several at once (`mosastore-batch`).",
            run: bottleneck::bottleneck,
        },
        Experiment {
            id: "qzfs-8",
            paper,
            figure: "figure 8",
            title: "Converting compressed reads: decompressed by the application first, or by the file system",
            found: "Eight conversions of 9.5 GB: 161 s without any codec; decompressing first adds time on 4 or 8 cores and on each accelerator; in the file system with the card 157 s.",
            said: &[("gzip in the file system, over gzip in the application", "under 0.97 (its card)")],
            differs: "FASTQ to FASTA by our own converter, one core; storage is throttled to 400 MB/s. Uncompressed data is not written and read once more, as in the paper; but in the file system what comes out is \
                      compressed with gzip, which on one core without the card takes longer than that saves. zstd:1 is near no codec at all.",
            run: genomes::layers,
        },
        Experiment {
            id: "qzfs-9a",
            paper,
            figure: "figure 9a",
            title: "Sorting by threads",
            found: "gzip: 426 s with one thread; the card takes 30 % less, with 16 threads 60 % less, at 6 to 12 % processor use instead of 64 to 83 %.",
            said: &[],
            differs: "Our own sort of generated reads, which come compressed and are stored compressed, on as many threads as said. Two cores are all there are.",
            run: genomes::threads,
        },
        Experiment {
            id: "qzfs-9b",
            paper,
            figure: "figure 9b",
            title: "Five genomic operations with samtools in the mount, by codec",
            found: "The card takes 73 % off converting and 63 % off merging with gzip in software, about half off viewing, sorting and indexing, at 3.9 times the cost efficiency.",
            said: &[("zstd:1 over gzip, all five", "about 0.43")],
            differs: "One machine with two cores, so client and server share the processor, and generated reads of some MB. A mount compresses behind what it has acknowledged, so that a \
                      slow codec shows here only when it holds up what comes next: with `qzfs-10` it counts until all is stored.",
            run: mounted::samtools,
        },
        Experiment {
            id: "qzfs-10",
            paper,
            figure: "figures 9 and 10",
            title: "The five operations and sorting by threads: one machine, and one and two clients with two storage servers",
            found: "With clients apart the card takes 63 % off gzip's time (69 % off converting), at six times the cost efficiency, for one client and for two; as much as on one machine, where it \
                    was 3.9 times.",
            said: &[],
            differs: "QZFS compresses on the storage servers, whose processors its card relieves; Outrigger's clients compress, so that servers have little to do with any codec, and fewer \
                      bytes cross the network. All hosts are network namespaces of one machine and share its two processors, metadata are in PostgreSQL, packs in Ceph.",
            run: hosts::drawn,
        },
    ]
}
