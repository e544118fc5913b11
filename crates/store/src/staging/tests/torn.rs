//! A log that ends anywhere, and one with any bit flipped.

use std::collections::BTreeMap;

use outrigger_format::staging::{Operation, SegmentHeader};

use super::memory::Memory;
use super::{STORE, append, assert_samples, both, header_len, open};
use crate::error::ErrorKind;
use crate::keys::Key;
use crate::staging::log::Log;
use crate::staging::sealed::Sealing;

/// The place of a record, and the sequence that it says is durable.
struct Place {
    segment: u32,
    end: usize,
    durable: u64,
}

/// Operations 1 to `last`, with a sync after each sequence for which `syncs` is true.
fn write(key: &Option<Key>, last: u64, syncs: impl Fn(u64) -> bool) -> (BTreeMap<u32, Vec<u8>>, Vec<Place>) {
    let memory = Memory::empty(key);
    let (log, ..) = open(&memory).unwrap();
    let mut places = Vec::new();
    for sequence in 1..=last {
        let durable = log.durable();
        append(&log, sequence).unwrap();
        let disk = memory.disk();
        let (segment, content) = disk.segments.last_key_value().unwrap();
        places.push(Place { segment: *segment, end: content.len(), durable });
        drop(disk);
        if syncs(sequence) {
            assert_eq!(log.sync().unwrap(), sequence);
        }
    }
    let segments = memory.disk().segments.clone();
    assert!(segments.len() >= 3, "{} segments", segments.len());
    (segments, places)
}

/// Appends after the replayed records, and replays again.
fn goes_on(memory: &Memory, log: Log, next: u64) {
    append(&log, next).unwrap();
    append(&log, next + 1).unwrap();
    drop(log);
    let (_, report, replayed) = open(memory).unwrap();
    assert_samples(&replayed, 1..next + 2);
    assert_eq!((report.torn, report.last), (None, next + 1));
}

#[test]
fn a_log_cut_anywhere_keeps_its_whole_records() {
    both(|key| {
        let (segments, places) = write(key, 16, |_| false);
        let (&last, content) = segments.last_key_value().unwrap();
        for cut in 0..=content.len() {
            let memory = Memory::new(key, segments.clone());
            memory.disk().segments.get_mut(&last).unwrap().truncate(cut);
            let (log, report, replayed) = open(&memory).unwrap();
            let whole = places.iter().filter(|place| place.segment < last || place.end <= cut).count() as u64;
            assert_samples(&replayed, 1..whole + 1);
            let clean = cut == header_len(key)
                || places.iter().any(|place| place.segment == last && place.end == cut);
            assert_eq!(report.torn.is_none(), clean, "cut at {cut}");
            if let Some(torn) = report.torn {
                assert_eq!(torn.sequence, whole + 1);
                assert!(cut == 0 || torn.bytes > 0 && torn.bytes <= cut as u64);
            }
            goes_on(&memory, log, whole + 1);
        }
    });
}

#[test]
fn a_flipped_bit_never_makes_a_wrong_record() {
    both(|key| {
        for (syncs, name) in [(0, "never"), (1, "always"), (5, "every five")] {
            let (segments, places) = write(key, 16, |sequence| syncs != 0 && sequence % syncs == 0);
            let mut outcomes = [0, 0];
            for (&segment, content) in &segments {
                for bit in 0..content.len() * 8 {
                    let memory = Memory::new(key, segments.clone());
                    memory.disk().segments.get_mut(&segment).unwrap()[bit / 8] ^= 1 << (bit % 8);
                    // The damaged record, or the first one of a segment with a damaged header.
                    let hit = places.iter().filter(|place| place.segment < segment);
                    let hit = hit.count()
                        + places
                            .iter()
                            .filter(|place| place.segment == segment && place.end <= bit / 8)
                            .count();
                    let broken = hit as u64 + 1;
                    let durable = places[hit + 1..].iter().map(|place| place.durable).max();
                    match open(&memory) {
                        Ok((log, report, replayed)) => {
                            assert!(
                                durable.is_none_or(|durable| durable < broken),
                                "{name}: bit {bit} of {segment}"
                            );
                            assert_samples(&replayed, 1..broken);
                            assert_eq!(report.torn.unwrap().sequence, broken);
                            goes_on(&memory, log, broken);
                            outcomes[0] += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Damaged);
                            // Nothing tells what an encrypted segment without its header had.
                            let unreadable = key.is_some() && bit / 8 < header_len(key);
                            let text = if unreadable {
                                format!("Record {broken} and those after it")
                            } else {
                                format!("record {broken} is damaged")
                            };
                            assert!(error.to_string().contains(&text), "{error}");
                            assert!(
                                unreadable || durable.is_some_and(|durable| durable >= broken),
                                "{name}: bit {bit} of {segment}"
                            );
                            assert_eq!(memory.disk().segments.len(), segments.len(), "nothing is changed");
                            outcomes[1] += 1;
                        }
                    }
                }
            }
            assert!(
                outcomes[0] > 0 && (key.is_some() || (syncs == 0) == (outcomes[1] == 0)),
                "{name}: {outcomes:?}"
            );
        }
    });
}

#[test]
fn a_missing_segment_is_damage_if_it_was_durable() {
    both(|key| {
        let (mut segments, _) = write(key, 16, |sequence| sequence == 15);
        segments.remove(&2);
        assert_eq!(open(&Memory::new(key, segments)).unwrap_err().kind(), ErrorKind::Damaged);
        let (mut segments, places) = write(key, 16, |_| false);
        segments.remove(&2);
        let memory = Memory::new(key, segments);
        let (log, report, replayed) = open(&memory).unwrap();
        let first = places.iter().filter(|place| place.segment == 1).count() as u64;
        assert_samples(&replayed, 1..first + 1);
        assert!(report.torn.unwrap().why.contains("segment 2 is missing"));
        assert_eq!(memory.disk().segments.len(), 1);
        goes_on(&memory, log, first + 1);
    });
}

#[test]
fn a_copy_of_the_log_as_data_is_no_evidence() {
    both(|key| {
        let (segments, _) = write(key, 16, |_| true);
        let memory = Memory::new(key, segments.clone());
        let (log, ..) = open(&memory).unwrap();
        let mut offset = 0;
        for piece in segments[&1].chunks(300) {
            let write = outrigger_format::staging::Operation::Write { inode: 2, offset };
            log.append(&write, piece).unwrap();
            offset += piece.len() as u64;
        }
        let appended = log.append(&outrigger_format::staging::Operation::Forget { inode: 2 }, b"").unwrap();
        drop(log);
        // The first of those records is broken: the ones within its data, and within those after it,
        // are older.
        let mut disk = memory.disk();
        let number = appended.location.segment - 1;
        let content = disk.segments.get_mut(&number).unwrap();
        let end = content.len();
        content[end - 1] ^= 1;
        drop(disk);
        let (_, report, replayed) = open(&memory).unwrap();
        assert!(report.torn.is_some() && replayed.len() >= 16);
    });
}

#[test]
fn a_record_that_is_whole_and_makes_no_sense_is_damage() {
    let write = |offset| Operation::Write { inode: 7, offset };
    for (operation, data) in [
        // Its end lies beyond all offsets.
        (write(u64::MAX - 2), &b"data"[..]),
        (write(0), b""),
        (Operation::Truncate { inode: 7, len: 9 }, b"data"),
    ] {
        for key in [None, Some(Key::new([9; 32]))] {
            let memory = Memory::empty(&key);
            let (log, ..) = open(&memory).unwrap();
            append(&log, 1).unwrap();
            log.sync().unwrap();
            drop(log);
            let mut disk = memory.disk();
            let segment = disk.segments.get_mut(&1).unwrap();
            let header = SegmentHeader::decode(segment).unwrap();
            let sealing = Sealing::new(STORE, key.as_ref());
            let head = sealing.prepare(&operation, data).head(2, 1, 3);
            match sealing.open(&header, "it").unwrap() {
                None => segment.extend_from_slice(&[&head, data].concat()),
                Some(keys) => {
                    let end = segment.len() as u64;
                    segment.extend_from_slice(keys.seal(&head, data, end, &mut Vec::new()));
                }
            }
            drop(disk);
            let error = open(&memory).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{operation:?}: {error}");
            assert!(error.to_string().contains("makes no sense"), "{error}");
        }
    }
}
