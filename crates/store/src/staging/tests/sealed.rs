//! A log with a key: what its disk reveals, what it refuses, and that no nonce is used twice.

use std::cell::RefCell;
use std::collections::BTreeSet;

use outrigger_format::staging::{Operation, RECORD_HEADER_LEN, SegmentHeader};

use super::memory::Memory;
use super::{append, assert_samples, header_len, open, small};
use crate::error::ErrorKind;
use crate::keys::Key;
use crate::staging::sealed::Sealing;
use crate::staging::{Appended, Log};

thread_local! {
    /// Keys and positions with which this thread has encrypted a message.
    static NONCES: RefCell<BTreeSet<([u8; 32], u64)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Called for each message, before it is encrypted.
pub fn note_nonce(key: &[u8; 32], position: u64) {
    assert!(NONCES.with_borrow_mut(|nonces| nonces.insert((*key, position))), "a nonce is used twice");
}

fn key() -> Option<Key> {
    Some(Key::new([9; 32]))
}

fn append_all(log: &Log, last: u64) {
    for sequence in 1..=last {
        append(log, sequence).unwrap();
    }
}

/// Bytes that do not repeat.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).flat_map(|at: u64| (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.take(len).collect()
}

#[test]
fn no_name_and_no_data_is_on_the_disk() {
    let contains = |bytes: &[u8], texts: &[Vec<u8>]| {
        let known: std::collections::HashSet<&[u8]> =
            texts.iter().flat_map(|text| text.windows(16)).collect();
        bytes.windows(16).any(|window| known.contains(window))
    };
    for key in [None, key()] {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = Log::open(dir.path(), small(&key), &mut |_| Ok(())).unwrap();
        let mut texts = Vec::new();
        for turn in 0..40 {
            let (name, data) = (text(2 * turn, 30), text(2 * turn + 1, 200));
            log.append(&Operation::Link { parent: 1, name: name.clone(), inode: 7 }, b"").unwrap();
            log.append(&Operation::Write { inode: 7, offset: 0 }, &data).unwrap();
            texts.extend([name, data]);
        }
        log.sync().unwrap();
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let found = files.filter(|path| contains(&std::fs::read(path).unwrap(), &texts)).count();
        assert_eq!(found > 1, key.is_none(), "{found} files");
    }
}

#[test]
fn another_key_or_none_is_refused_and_changes_nothing() {
    let keys = [None, key(), Some(Key::new([8; 32]))];
    for written in &keys {
        let memory = Memory::empty(written);
        let (log, ..) = open(&memory).unwrap();
        append_all(&log, 16);
        drop(log);
        let before = memory.disk().segments.clone();
        for other in keys.iter().filter(|other| *other != written) {
            let copy = Memory::new(other, before.clone());
            let error = open(&copy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert_eq!(copy.disk().segments, before);
        }
        assert_samples(&open(&memory).unwrap().2, 1..17);
    }
    assert!(!format!("{:?}", small(&key())).contains('9'), "the key is not printed");
}

/// Segments of one log in another order, or of two logs, never give a record another place.
#[test]
fn exchanged_segments_are_noticed() {
    let write = || {
        let memory = Memory::empty(&key());
        let (log, ..) = open(&memory).unwrap();
        append_all(&log, 16);
        drop(log);
        memory
    };
    let check = |memory: &Memory| match open(memory) {
        Ok((.., replayed)) => assert_samples(&replayed, 1..replayed.len() as u64 + 1),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid), "{error}"),
    };
    let (one, other) = (write(), write());
    let exchanged = one.copy();
    let segments = one.disk().segments.clone();
    let (first, second) = (segments[&1].clone(), segments[&2].clone());
    exchanged.disk().segments.extend([(1, second), (2, first)]);
    check(&exchanged);
    // A record of the other log at the same place.
    let mixed = one.copy();
    let from = header_len(&key());
    let stranger = other.disk().segments[&1][from..].to_vec();
    mixed.disk().segments.get_mut(&1).unwrap().splice(from.., stranger);
    let (_, report, replayed) = open(&mixed).unwrap();
    assert!(replayed.is_empty() && report.torn.is_some());
}

/// A log with one write of this data.
fn with_one_write(data: &[u8]) -> (Memory, Log, Appended) {
    let memory = Memory::empty(&key());
    let (log, ..) = open(&memory).unwrap();
    let appended = log.append(&Operation::Write { inode: 7, offset: 0 }, data).unwrap();
    (memory, log, appended)
}

#[test]
fn any_range_of_the_data_reads_back() {
    let data = text(1, 150);
    let (_, log, appended) = with_one_write(&data);
    for from in 0..data.len() {
        for to in from..=data.len() {
            let mut read = vec![0; to - from];
            log.read(appended.location.slice(from as u32..to as u32), &mut read).unwrap();
            assert_eq!(read, data[from..to], "{from} to {to}");
        }
    }
}

#[test]
fn a_read_of_all_data_of_a_record_notices_changes() {
    let data = text(1, 150);
    let (memory, log, appended) = with_one_write(&data);
    let begin = appended.location.offset as usize;
    let mut read = vec![0; data.len()];
    for at in [begin, begin + 75, begin + 149, begin + 150, begin + 165] {
        let flip = || memory.disk().segments.get_mut(&1).unwrap()[at] ^= 4;
        flip();
        let error = log.read(appended.location, &mut read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        // A part is not verified: only these bits differ.
        log.read(appended.location.slice(0..149), &mut read[..149]).unwrap();
        let differ = read[..149].iter().zip(&data).filter(|(read, byte)| read != byte).count();
        assert_eq!(differ, usize::from(at < begin + 149));
        flip();
        log.read(appended.location, &mut read).unwrap();
        assert_eq!(read, data);
    }
    memory.disk().segments.get_mut(&1).unwrap().truncate(begin + 160);
    assert_eq!(log.read(appended.location, &mut read).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn heads_are_found_anywhere() {
    let memory = Memory::empty(&key());
    let (log, ..) = open(&memory).unwrap();
    append_all(&log, 4);
    drop(log);
    let mut bytes = memory.disk().segments[&1].clone();
    let header = SegmentHeader::decode(&bytes).unwrap();
    let keys = Sealing::new(super::STORE, key().as_ref()).open(&header, "it").unwrap().unwrap();
    let found = |bytes: &[u8], from| -> Vec<u64> {
        keys.headers(bytes, from).iter().map(|header| header.sequence).collect()
    };
    let start = header_len(&key());
    let all = found(&bytes, 0);
    assert!(all.len() >= 2 && all == (1..=all.len() as u64).collect::<Vec<_>>(), "{all:?}");
    assert_eq!((found(&bytes, start), found(&bytes, start + 1)), (all.clone(), all[1..].to_vec()));
    // Without its fields a header is no evidence, nor is one elsewhere.
    assert!(found(&bytes[..start + 16 + RECORD_HEADER_LEN], 0).is_empty());
    bytes.insert(start, 0);
    assert!(found(&bytes, 0).is_empty());
}

/// [`note_nonce`] panics when a nonce is used twice, and the disk in memory when a position gets two texts:
/// see `Disk::see`.
#[test]
fn no_nonce_is_used_twice_whatever_fails() {
    let mut bits = 7u64;
    let mut below = |n: u64| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33) % n
    };
    let memory = Memory::empty(&key());
    let (mut log, mut next) = (open(&memory).unwrap().0, 1);
    let (mut failed, mut reopened, mut torn, mut messages) = (0, 0, 0, 0);
    NONCES.with_borrow_mut(BTreeSet::clear);
    for _ in 0..4000 {
        match below(40) {
            0 => memory.disk().room = Some(below(600)),
            1 => memory.disk().write_max = Some(1 + below(60) as usize),
            2 => memory.disk().fail_truncate = true,
            3 => drop(log.restart(0, 0)),
            // The process dies, or power fails and the end of the log is lost.
            4 => {
                drop(log);
                let mut disk = memory.disk();
                (disk.room, disk.write_max, disk.fail_truncate) = (None, None, false);
                let mut last = disk.segments.last_entry().unwrap();
                if below(3) > 0 {
                    let len = last.get().len() as u64;
                    last.get_mut().truncate(below(len + 1) as usize);
                }
                drop(disk);
                let (opened, report, replayed) = open(&memory).unwrap();
                assert!(report.last < next);
                let first = replayed.first().map_or(report.last + 1, |(sequence, ..)| *sequence);
                assert_samples(&replayed, first..report.last + 1);
                torn += u64::from(report.torn.is_some());
                (log, next, reopened) = (opened, report.last + 1, reopened + 1);
            }
            5..9 => {
                let mut disk = memory.disk();
                (disk.room, disk.write_max, disk.fail_truncate) = (None, None, false);
            }
            _ => match append(&log, next) {
                Ok(()) => {
                    messages += if super::sample(next).1.is_empty() { 1 } else { 2 };
                    next += 1;
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Io), "{error}");
                    failed += 1;
                }
            },
        }
    }
    let bytes: usize = memory.disk().sealed.values().map(|sealed| sealed.len()).sum();
    assert!(failed > 100 && reopened > 50 && torn > 10, "{failed} failed, {reopened} opened, {torn} torn");
    // Some more were encrypted for appends that failed.
    let nonces = NONCES.with_borrow(BTreeSet::len);
    assert!(messages > 3000 && (messages..messages + 2 * failed).contains(&nonces), "{nonces} of {messages}");
    assert!(memory.disk().sealed.len() > 100 && bytes > 100_000, "{bytes} bytes");
}
