//! Ingestion in one pass gives the same result as cutting, fingerprinting and looking up
//! separately.

use std::collections::HashMap;

use outrigger_format::{ChunkerSpec, FingerprintKind};

use super::{contents, run};
use crate::op::{Ingest, Ingested, Stream};
use crate::table::Table;
use crate::{Device, Task, TaskError, reference};

pub(super) fn check_ingest(device: &mut dyn Device) {
    let data: Vec<u8> = contents(200_000).into_iter().flat_map(|(_, content)| content).collect();
    let batches = batches(data.len());
    for chunker in
        ["gear32:256/1K/4K", "gear32:4K/16K/64K", "fixed:512", "rabin:256/1K/4K", "lbfs-sha1:2K/4K/64K"]
    {
        let chunker = ChunkerSpec::parse(chunker).expect("a chunker");
        for (number, streams) in batches.iter().enumerate() {
            let kind = FingerprintKind::ALL[number % FingerprintKind::ALL.len()];
            let case = format!("{}: {chunker}, {}, batch {number}", device.name(), kind.name());
            let (all, counts) = reference::ingest(&data, streams, chunker, kind, &HashMap::new());
            // Every other chunk is known.
            let known: HashMap<_, _> =
                (0..).zip(&all).step_by(2).map(|(n, chunk)| (chunk.fingerprint, n)).collect();
            let mut table = Table::with_capacity(known.len());
            let entries: Vec<_> = known.iter().map(|(&fingerprint, &place)| (fingerprint, place)).collect();
            table.insert_many(&entries).expect("room");
            for table in [None, Some(&table)] {
                let expected: Vec<Ingested> = all
                    .iter()
                    .map(|chunk| Ingested {
                        place: table.and_then(|_| known.get(&chunk.fingerprint).copied()),
                        ..*chunk
                    })
                    .collect();
                let (mut out, mut got_counts) = (Vec::new(), vec![77]);
                let task = Ingest {
                    data: &data,
                    streams,
                    chunker,
                    kind,
                    table,
                    out: &mut out,
                    counts: &mut got_counts,
                };
                run(device, Task::Ingest(task)).expect("ingest");
                assert_eq!(got_counts, [&[77][..], &counts].concat(), "{case}: chunks of each stream");
                let differ = out.iter().zip(&expected).position(|(got, expected)| got != expected);
                assert!(
                    out == expected,
                    "{case}: {} chunks, the first that differs is {differ:?}",
                    out.len()
                );
            }
        }
    }
    let (mut out, mut counts) = (Vec::new(), Vec::new());
    let chunker = ChunkerSpec::Gear32 { min: 1, avg: 3, max: 2 };
    let kind = FingerprintKind::Blake3;
    let task =
        Ingest { data: &data, streams: &[], chunker, kind, table: None, out: &mut out, counts: &mut counts };
    let answer = run(device, Task::Ingest(task));
    assert!(matches!(answer, Err(TaskError::Unsupported { .. })), "no such chunker: {answer:?}");
}

fn batches(len: usize) -> [Vec<Stream>; 6] {
    let streams = |lens: &[usize]| {
        let mut start = 0;
        let ranges = lens.iter().map(|&len| {
            let range = start as u32..(start + len) as u32;
            start += len;
            range
        });
        ranges.enumerate().map(|(n, range)| Stream { range, last: n % 3 != 2 }).collect::<Vec<_>>()
    };
    [
        vec![],
        streams(&[0]),
        streams(&[1, 0, 0, 63, 64, 65, 255, 256, 257, 511, 512, 1023, 1024, 1025, 4096, 70_000, 100_000]),
        // Small files, one after the other.
        streams(&(0..300).map(|n| n * 37 % 3000).collect::<Vec<_>>()),
        // Longer than every piece in which it may be scanned.
        streams(&[len]),
        // Out of order, overlapping, open.
        vec![
            Stream { range: 500_000..900_001, last: false },
            Stream { range: 100..600_000, last: true },
            Stream { range: 7..7, last: false },
        ],
    ]
}
