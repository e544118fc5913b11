//! Tests of the staging log, most of them on segments in memory.

mod crash;
mod extents;
mod log;
mod memory;
pub(super) mod sealed;
mod torn;

use std::sync::Arc;

use outrigger_format::StoreId;
use outrigger_format::staging::{Operation, RECORD_TAG_LEN, SEALED_HEADER_LEN, SEGMENT_HEADER_LEN};

use super::{Log, Options, Report};
use crate::error::Result;
use crate::keys::Key;
use memory::Memory;

const STORE: StoreId = StoreId([5; 16]);

/// Runs a test with a plain log, and with an encrypted one.
fn both(test: impl Fn(&Option<Key>)) {
    for key in [None, Some(Key::new([9; 32]))] {
        test(&key);
    }
}

/// Bytes of a segment's header.
fn header_len(key: &Option<Key>) -> usize {
    if key.is_some() { SEALED_HEADER_LEN } else { SEGMENT_HEADER_LEN }
}

/// Segments of 448 bytes, a header, and the tags of two writes if there is a key.
fn small(key: &Option<Key>) -> Options {
    let tags = if key.is_some() { 4 * RECORD_TAG_LEN } else { 0 };
    let segment_len = (448 + header_len(key) + tags) as u64;
    Options { segment_len, capacity: 8 * segment_len, key: key.clone(), ..Options::new(STORE) }
}

/// A replayed record: its sequence, operation and data.
type Back = (u64, Operation, Vec<u8>);

/// Opens a log in memory; returns the replayed records, too.
fn open(memory: &Memory) -> Result<(Log, Report, Vec<Back>)> {
    let mut replayed = Vec::new();
    let (log, report) =
        Log::open_files(Box::new(memory.clone()), small(&memory.key), Arc::default(), &mut |record| {
            replayed.push((record.appended.sequence, record.operation, record.data.to_vec()));
            Ok(())
        })?;
    Ok((log, report, replayed))
}

/// Operation number `sequence` of a log that tests write: kinds and lengths vary, and each tells
/// its number.
fn sample(sequence: u64) -> (Operation, Vec<u8>) {
    let name = format!("name {sequence}").into_bytes();
    match sequence % 4 {
        0 => (Operation::Link { parent: 1, name, inode: sequence }, Vec::new()),
        1 => (Operation::Truncate { inode: sequence, len: sequence }, Vec::new()),
        _ => {
            let data = vec![sequence as u8; 1 + (sequence as usize * 37) % 150];
            (Operation::Write { inode: sequence, offset: sequence << 20 }, data)
        }
    }
}

/// Appends operation number `sequence`, and checks that it became that one.
fn append(log: &Log, sequence: u64) -> Result<()> {
    let (operation, data) = sample(sequence);
    let appended = log.append(&operation, &data)?;
    assert_eq!(appended.sequence, sequence);
    Ok(())
}

/// Checks that exactly the operations with these sequences came back.
fn assert_samples(replayed: &[Back], sequences: std::ops::Range<u64>) {
    let found: Vec<u64> = replayed.iter().map(|(sequence, ..)| *sequence).collect();
    assert_eq!(found, sequences.collect::<Vec<_>>());
    for (sequence, operation, data) in replayed {
        assert_eq!((operation, data), (&sample(*sequence).0, &sample(*sequence).1));
    }
}
