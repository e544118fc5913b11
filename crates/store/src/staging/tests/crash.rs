//! Power fails at every step: synced records come back, and no others but appended ones.

use std::collections::BTreeMap;

use super::memory::Memory;
use super::{append, assert_samples, both, open};
use crate::keys::Key;
use crate::staging::usage::Usage;
use crate::testing::crash::{Exploration, Mode, Recording, Trace};

/// Writes from `first` on, and sometimes syncs and reports it; removes unneeded segments on
/// request.
fn record(memory: &Memory, last: u64, removing: bool) -> Trace {
    let say = |text: String| memory.disk().recording.as_mut().unwrap().acknowledge(text.as_bytes());
    let (log, ..) = open(memory).unwrap();
    for sequence in 1..=last {
        append(&log, sequence).unwrap();
        if sequence % 5 == 0 {
            log.sync().unwrap();
            say(format!("synced {sequence}\n"));
        }
        if removing && sequence % 4 == 0 {
            give_up(log.usage(), memory);
            log.remove_dead(sequence).unwrap();
        }
    }
    drop(log);
    let recording = memory.disk().recording.take().unwrap();
    recording.finish()
}

/// Gives up all that a test has appended, as if it had been flushed.
fn give_up(usage: &Usage, memory: &Memory) {
    let segments: Vec<u32> = memory.disk().segments.keys().copied().collect();
    for segment in segments {
        let bytes = usage.live_bytes(segment);
        usage.release_bytes(segment, bytes);
        while !usage.is_dead(segment, u64::MAX) {
            usage.unpin(segment);
        }
    }
}

fn explore(key: &Option<Key>, trace: &Trace, last: u64, mode: Mode) -> usize {
    let mut count = 0;
    for state in trace.crash_states(Exploration { mode, budget: 3000, seed: 1 }) {
        let content = |number: u32| state.content(format!("{number:08}.log")).map(<[u8]>::to_vec);
        let segments: BTreeMap<u32, Vec<u8>> =
            (1..40).filter_map(|number| Some((number, content(number)?))).collect();
        let synced = state.acknowledged_lines().last().map_or(0, |line| line[7..].parse().unwrap());
        let memory = Memory::new(key, segments);
        let (log, report, replayed) =
            open(&memory).unwrap_or_else(|error| panic!("{error}\n  in {}", state.label()));
        let first = replayed.first().map_or(report.last + 1, |(sequence, ..)| *sequence);
        assert_samples(&replayed, first..report.last + 1);
        assert!((synced..=last).contains(&report.last), "{synced}, {report:?}\n  in {}", state.label());
        // And it goes on from there.
        append(&log, report.last + 1).unwrap();
        drop(log);
        assert_eq!(open(&memory).unwrap().1.last, report.last + 1, "in {}", state.label());
        count += 1;
    }
    count
}

#[test]
fn what_was_synced_is_replayed_from_every_crash_state() {
    both(|key| {
        for removing in [false, true] {
            let memory = Memory::empty(key);
            memory.disk().recording = Some(Recording::empty());
            let trace = record(&memory, 24, removing);
            for mode in [Mode::Strict, Mode::Ordered] {
                let count = explore(key, &trace, 24, mode);
                assert!(count > 100, "{count} states");
            }
        }
    });
}

#[test]
fn a_crash_while_a_torn_log_is_mended_leaves_one_that_can_be() {
    both(|key| {
        // A log whose second segment lost its middle, with two more behind it.
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        for sequence in 1..=24 {
            append(&log, sequence).unwrap();
        }
        drop(log);
        memory.disk().segments.get_mut(&2).unwrap()[200..].fill(0);
        let mut recording = Recording::empty();
        for (number, content) in &memory.disk().segments {
            let name = format!("{number:08}.log");
            let path = std::path::Path::new(&name);
            recording.create(path).unwrap();
            recording.write(path, 0, content).unwrap();
            recording.sync(path, false).unwrap();
        }
        recording.sync(std::path::Path::new(""), false).unwrap();
        let before = recording.steps();
        memory.disk().recording = Some(recording);
        let (log, report, _) = open(&memory).unwrap();
        assert!(report.torn.is_some());
        let next = report.last + 1;
        append(&log, next).unwrap();
        append(&log, next + 1).unwrap();
        log.sync().unwrap();
        memory.disk().recording.as_mut().unwrap().acknowledge(format!("synced {}\n", next + 1).as_bytes());
        drop(log);
        let trace = memory.disk().recording.take().unwrap().finish();
        for state in trace.crash_states(Exploration { mode: Mode::Strict, budget: 3000, seed: 3 }) {
            if state.at() < before {
                continue;
            }
            let content = |number: u32| state.content(format!("{number:08}.log")).map(<[u8]>::to_vec);
            let segments = (1..40).filter_map(|number| Some((number, content(number)?))).collect();
            let (_, report, replayed) = open(&Memory::new(key, segments)).unwrap();
            assert_samples(&replayed, 1..report.last + 1);
            let synced =
                state.acknowledged_lines().last().map_or(next - 1, |line| line[7..].parse().unwrap());
            assert!(report.last >= synced, "{report:?} in {}", state.label());
        }
    });
}
