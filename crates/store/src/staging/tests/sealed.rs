//! A log with a key: what its disk reveals, what it refuses, and that no position is encrypted
//! twice.

use std::io::IoSlice;

use outrigger_format::staging::Operation;

use super::memory::Memory;
use super::{append, assert_samples, header_len, open, small};
use crate::error::ErrorKind;
use crate::keys::Key;
use crate::staging::Log;
use crate::staging::files::{Files as _, SegmentFile as _};
use crate::staging::sealed::{SealedFile, Sealing};

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

#[test]
fn a_sealed_file_takes_each_position_once() {
    let memory = Memory::empty(&key());
    let sealing = Sealing::new(super::STORE, memory.key.as_ref());
    let (header, keys) = sealing.begin(1, 1).unwrap();
    let file = memory.create(1).unwrap();
    file.write(&[IoSlice::new(&header.encode())], 0).unwrap();
    let file = SealedFile::begun(file, keys.unwrap());
    let start = sealing.header_len();
    assert!(!file.takes(start - 1) && file.takes(start));
    assert_eq!(file.write(&[IoSlice::new(b"some"), IoSlice::new(b"thing")], start).unwrap(), 9);
    assert!(file.write(&[IoSlice::new(b"other")], start + 8).is_err());
    let mut read = [0; 4];
    assert_eq!(file.read(&mut read, start + 3).unwrap(), 4);
    assert_eq!(&read, b"ethi");
    // Nobody knows how much of a failed write was encrypted.
    memory.disk().room = Some(3);
    assert!(file.write(&[IoSlice::new(b"longer")], start + 9).is_err());
    memory.disk().room = None;
    file.truncate(start + 9).unwrap();
    assert!(!file.takes(start + 14) && file.takes(start + 15));
    assert!(file.write(&[IoSlice::new(b"longer")], start + 9).is_err());
    let keys = sealing.open(&header, "it").unwrap().unwrap();
    let opened = SealedFile::opened(memory.open(1).unwrap(), keys);
    assert!(!opened.takes(start + 9) && opened.write(&[IoSlice::new(b"x")], start + 9).is_err());
}

/// The disk in memory panics when a position is encrypted twice: see `Disk::see`.
#[test]
fn no_position_is_encrypted_twice_whatever_fails() {
    let mut bits = 7u64;
    let mut below = |n: u64| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33) % n
    };
    let memory = Memory::empty(&key());
    let (mut log, mut next) = (open(&memory).unwrap().0, 1);
    let (mut failed, mut reopened, mut torn) = (0, 0, 0);
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
                Ok(_) => next += 1,
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Io), "{error}");
                    failed += 1;
                }
            },
        }
    }
    let bytes: usize = memory.disk().sealed.values().map(|sealed| sealed.len()).sum();
    assert!(failed > 100 && reopened > 50 && torn > 10, "{failed} failed, {reopened} opened, {torn} torn");
    assert!(memory.disk().sealed.len() > 100 && bytes > 100_000, "{bytes} bytes");
}
