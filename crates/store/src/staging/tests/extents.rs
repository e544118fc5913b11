//! The extent map, compared with a file that is a plain vector of bytes, each of which says where
//! it comes from; and the result of replaying any part of a log over any state.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_format::catalogue::Time;
use outrigger_format::staging::Operation;
use outrigger_format::{Entry, Root};
use proptest::prelude::*;

use crate::staging::{Age, Appended, Due, ExtentMap, Location, Piece, Ranges, Usage};

/// A byte of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    Zero,
    /// From the content that was there at the beginning.
    Old(u64),
    /// From the write with this sequence.
    Written(u64, u64),
    /// From the root with this length.
    Cloned(u64, u64),
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Clone { offset: u64, len: u64, from: u64 },
    Truncate { len: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (offset, len) = (|| 0u64..60, || 1u64..30);
    prop_oneof![
        4 => (offset(), len()).prop_map(|(offset, len)| Step::Write { offset, len }),
        2 => (offset(), len()).prop_map(|(offset, len)| Step::Zero { offset, len }),
        1 => (offset(), len(), 0u64..9).prop_map(|(offset, len, from)| Step::Clone { offset, len, from }),
        2 => (0u64..90).prop_map(|len| Step::Truncate { len }),
    ]
}

fn operation(step: &Step) -> Operation {
    let root = Root::Empty;
    match *step {
        Step::Write { offset, .. } => Operation::Write { inode: 1, offset },
        Step::Zero { offset, len } => Operation::Zero { inode: 1, offset, len },
        Step::Clone { offset, len, from } => {
            Operation::Clone { from: 1, root, from_offset: from, inode: 1, offset, len }
        }
        Step::Truncate { len } => Operation::Truncate { inode: 1, len },
    }
}

/// Applies the step to a file.
fn model(file: &mut Vec<Byte>, sequence: u64, step: &Step) {
    let (offset, bytes): (u64, Vec<Byte>) = match *step {
        Step::Write { offset, len } => (offset, (0..len).map(|at| Byte::Written(sequence, at)).collect()),
        Step::Zero { offset, len } => (offset, vec![Byte::Zero; len as usize]),
        Step::Clone { offset, len, from } => {
            (offset, (from..from + len).map(|at| Byte::Cloned(1000 + sequence, at)).collect())
        }
        Step::Truncate { len } => return file.resize(len as usize, Byte::Zero),
    };
    let end = offset as usize + bytes.len();
    if file.len() < end {
        file.resize(end, Byte::Zero);
    }
    file[offset as usize..end].copy_from_slice(&bytes);
}

/// Applies the step to a map. Each record lies in a segment of its own, with its sequence as
/// number.
fn apply(map: &mut ExtentMap, usage: &Usage, sequence: u64, step: &Step) {
    let len = if let Step::Write { len, .. } = step { *len as u32 } else { 0 };
    let location = Location::whole(sequence as u32, 0, len);
    let appended = Appended { sequence, location, time: Time::from_nanos(0) };
    usage.appended(&operation(step), &appended);
    match *step {
        Step::Write { offset, .. } => map.write(offset, &appended),
        Step::Zero { offset, len } => map.zero(offset, len, &appended),
        Step::Clone { offset, len, from } => {
            let root = Arc::new(Root::Inline(vec![Entry::Hole { len: 1000 + sequence }]));
            map.clone_range(offset, len, root, from, &appended);
        }
        Step::Truncate { len } => map.truncate(len, &appended),
    }
}

/// The bytes that a map yields over a committed content.
fn read(map: &ExtentMap, committed: &[Byte], range: std::ops::Range<u64>) -> Vec<Byte> {
    let mut file = Vec::new();
    let mut at = range.start;
    for (piece, what) in map.pieces(range) {
        assert!(piece.start == at && piece.end > at, "no gap");
        at = piece.end;
        let len = piece.end - piece.start;
        match what {
            Piece::Zero => file.extend((0..len).map(|_| Byte::Zero)),
            Piece::Committed => file.extend_from_slice(&committed[piece.start as usize..piece.end as usize]),
            Piece::Clone(root, from) => {
                file.extend((from..from + len).map(|at| Byte::Cloned(root.len(), at)))
            }
            Piece::Data(Location { segment, offset, len: data_len, whole }) => {
                assert_eq!(u64::from(data_len), len);
                assert!(whole.0 <= offset && offset + data_len <= whole.0 + whole.1, "a part of its record");
                file.extend((0..len).map(|at| Byte::Written(segment.into(), u64::from(offset) + at)));
            }
        }
    }
    file
}

fn old(len: u64) -> Vec<Byte> {
    (0..len).map(Byte::Old).collect()
}

/// The states of a file: before the first step, and after each.
fn history(base: u64, steps: &[Step]) -> Vec<Vec<Byte>> {
    let mut states = vec![old(base)];
    for (step, sequence) in steps.iter().zip(1..) {
        let mut file = states[states.len() - 1].clone();
        model(&mut file, sequence, step);
        states.push(file);
    }
    states
}

fn check_usage(map: &ExtentMap, usage: &Usage, segments: u64) {
    let mut live: HashMap<u32, u64> = HashMap::new();
    for (_, piece) in map.pieces(0..u64::MAX) {
        if let Piece::Data(location) = piece {
            *live.entry(location.segment).or_default() += u64::from(location.len);
        }
    }
    for segment in 1..=segments as u32 {
        assert_eq!(usage.live_bytes(segment), live.get(&segment).copied().unwrap_or(0), "segment {segment}");
    }
    assert_eq!((usage.staged_bytes(), map.staged_bytes()), (live.values().sum(), live.values().sum()));
    let first = (1..=segments as u32).find(|segment| !usage.is_dead(*segment, 0));
    assert_eq!(first, map.oldest_segment());
    assert_eq!(map.is_clean(), first.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn it_reads_as_a_plain_file(base in 0u64..80, steps in prop::collection::vec((step(), prop::option::weighted(0.2, 0usize..6)), 1..30)) {
        let plain: Vec<Step> = steps.iter().map(|(step, _)| step.clone()).collect();
        let states = history(base, &plain);
        let usage = Arc::new(Usage::default());
        let mut map = ExtentMap::new(Arc::clone(&usage), base);
        let (mut committed, mut settled) = (0, 0);
        for (now, (step, settle)) in steps.iter().enumerate() {
            apply(&mut map, &usage, now as u64 + 1, step);
            // A flusher has stored the state of some steps ago, and now says so.
            if let Some(ago) = settle {
                committed = (now + 1).saturating_sub(*ago).max(committed);
                let before = map.staged_bytes();
                let released = map.settle(committed as u64, states[committed].len() as u64);
                prop_assert_eq!(map.staged_bytes() + released, before);
                settled = committed;
            }
            let file = &states[now + 1];
            prop_assert_eq!(map.len(), file.len() as u64);
            prop_assert_eq!(&read(&map, &states[settled], 0..u64::MAX), file);
            let (from, to) = (file.len() / 3, file.len() * 2 / 3);
            prop_assert_eq!(&read(&map, &states[settled], from as u64..to as u64), &file[from..to]);
            check_usage(&map, &usage, now as u64 + 1);
        }
        map.settle(u64::MAX, map.len());
        prop_assert!(map.is_clean());
        drop(map);
        prop_assert!((1..=steps.len() as u32).all(|segment| usage.is_dead(segment, 0)));
    }

    /// Only the beginning of a file was stored, as it was some steps ago.
    #[test]
    fn what_is_behind_the_part_that_was_stored_stays(steps in prop::collection::vec((step(), prop::option::weighted(0.3, 0u64..100)), 1..30)) {
        let plain: Vec<Step> = steps.iter().map(|(step, _)| step.clone()).collect();
        let states = history(0, &plain);
        let usage = Arc::new(Usage::default());
        let mut map = ExtentMap::new(Arc::clone(&usage), 0);
        let (mut seen, mut committed): (Option<(usize, u64)>, _) = (None, Vec::new());
        for (now, (step, part)) in steps.iter().enumerate() {
            apply(&mut map, &usage, now as u64 + 1, step);
            let Some(part) = part else { continue };
            if let Some((at, len)) = seen.take() {
                committed = states[at][..len as usize].to_vec();
                let before = map.staged_bytes();
                let released = map.settle_first(at as u64, len);
                prop_assert_eq!(map.staged_bytes() + released, before);
            }
            let file = &states[now + 1];
            prop_assert_eq!(map.len(), file.len() as u64);
            prop_assert_eq!(&read(&map, &committed, 0..u64::MAX), file);
            prop_assert!(!map.is_clean() || *file == committed);
            check_usage(&map, &usage, now as u64 + 1);
            let len = map.len() * part / 100;
            if map.pieces(len..u64::MAX).all(|(_, piece)| piece != Piece::Committed) {
                seen = Some((now + 1, len));
            }
        }
        map.settle(u64::MAX, map.len());
        prop_assert!(map.is_clean());
        drop(map);
        prop_assert!((1..=steps.len() as u32).all(|segment| usage.is_dead(segment, 0)));
    }

    /// The database may be ahead of the log: replaying operations again leads to the same state.
    #[test]
    fn replaying_over_any_later_state_converges(base in 0u64..80, steps in prop::collection::vec(step(), 1..25), at in 0usize..25) {
        let states = history(base, &steps);
        let at = at.min(steps.len());
        let usage = Arc::new(Usage::default());
        let mut map = ExtentMap::new(Arc::clone(&usage), states[at].len() as u64);
        for (step, sequence) in steps.iter().zip(1..) {
            apply(&mut map, &usage, sequence, step);
        }
        prop_assert_eq!(&read(&map, &states[at], 0..u64::MAX), &states[steps.len()]);
    }

    /// Unneeded segments at the front may be gone: the rest of the log leads to the same state.
    #[test]
    fn dead_segments_are_not_missed(base in 0u64..80, steps in prop::collection::vec(step(), 1..25), at in 0usize..25) {
        let states = history(base, &steps);
        let at = at.min(steps.len());
        let usage = Arc::new(Usage::default());
        let mut map = ExtentMap::new(Arc::clone(&usage), base);
        for (step, sequence) in steps.iter().zip(1..) {
            apply(&mut map, &usage, sequence, step);
        }
        map.settle(at as u64, states[at].len() as u64);
        let dead = (1..=steps.len() as u32).take_while(|segment| usage.is_dead(*segment, 0)).count();
        let usage = Arc::new(Usage::default());
        let mut again = ExtentMap::new(Arc::clone(&usage), states[at].len() as u64);
        for (step, sequence) in steps.iter().zip(1..).skip(dead) {
            apply(&mut again, &usage, sequence, step);
        }
        prop_assert_eq!(&read(&again, &states[at], 0..u64::MAX), &states[steps.len()]);
    }
}

/// The content of a map as if bytes were staged in these ranges only.
fn read_in(map: &ExtentMap, committed: &[Byte], ranges: &Ranges) -> Vec<Byte> {
    let mut file = Vec::new();
    for (range, what) in map.pieces_in(ranges) {
        assert!(range.start == file.len() as u64 && range.end > range.start, "no gap");
        file.extend(match what {
            Piece::Committed => committed[range.start as usize..range.end as usize].to_vec(),
            Piece::Zero => vec![Byte::Zero; (range.end - range.start) as usize],
            Piece::Data(_) | Piece::Clone(..) => read(map, committed, range),
        });
    }
    file
}

fn due(until: u32, newest: u32, first: bool) -> Due {
    let by = if first { Age::FirstWritten } else { Age::LastWritten };
    Due { until, from: until.saturating_add(newest), by }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Batches store what is due, as it was some steps ago, and the rest stays. The file reads the
    /// same, and the oldest segments can go. Replaying the rest of the log over a batch's content
    /// leads to the same file.
    #[test]
    fn storing_what_is_due_changes_nothing_and_frees_the_oldest_segments(
        base in 0u64..80,
        steps in prop::collection::vec((step(), prop::option::weighted(0.3, (0u32..4, 1u32..9, any::<bool>()))), 1..30),
        block in 1u64..20,
    ) {
        let plain: Vec<Step> = steps.iter().map(|(step, _)| step.clone()).collect();
        let states = history(base, &plain);
        let usage = Arc::new(Usage::default());
        let mut map = ExtentMap::new(Arc::clone(&usage), base);
        let mut committed = old(base);
        let mut cut: Option<(u64, u32, Ranges, Vec<Byte>)> = None;
        for (now, (step, batch)) in steps.iter().enumerate() {
            let now = now as u64 + 1;
            apply(&mut map, &usage, now, step);
            let Some((keeps, newest, first)) = batch else { continue };
            if let Some((sequence, until, ranges, content)) = cut.take() {
                let before = map.staged_bytes();
                committed = content;
                let released = map.settle_in(sequence, committed.len() as u64, &ranges);
                prop_assert_eq!(map.staged_bytes() + released, before);
                prop_assert!(map.oldest_segment().is_none_or(|oldest| oldest > until));
            }
            prop_assert_eq!(&read(&map, &committed, 0..u64::MAX), &states[now as usize]);
            check_usage(&map, &usage, now);
            let again = Arc::new(Usage::default());
            let mut replayed = ExtentMap::new(Arc::clone(&again), committed.len() as u64);
            let oldest = u64::from(map.oldest_segment().unwrap_or(u32::MAX));
            for (step, sequence) in plain.iter().zip(1..=now).skip_while(|(_, sequence)| *sequence < oldest) {
                apply(&mut replayed, &again, sequence, step);
            }
            prop_assert_eq!(&read(&replayed, &committed, 0..u64::MAX), &states[now as usize]);
            let until = (now as u32).saturating_sub(*keeps);
            if let Some(ranges) = map.due(&due(until, *newest, *first), block) {
                let content = read_in(&map, &committed, &ranges);
                prop_assert_eq!(content.len() as u64, map.len());
                cut = Some((now, until, ranges, content));
            }
        }
        map.settle_in(u64::MAX, map.len(), &Ranges::all());
        prop_assert!(map.is_clean());
        let written: u64 = plain.iter().map(|step| if let Step::Write { len, .. } = step { *len } else { 0 }).sum();
        prop_assert!(usage.superseded_bytes() <= written);
    }
}

#[test]
fn bytes_that_were_written_again_are_as_old_as_their_last_write_or_their_first() {
    let usage = Arc::new(Usage::default());
    let mut map = ExtentMap::new(Arc::clone(&usage), 0);
    let write = |offset| Step::Write { offset, len: 10 };
    for (step, sequence) in [write(0), write(10), write(20), write(0)].iter().zip(1..) {
        apply(&mut map, &usage, sequence, step);
    }
    assert_eq!(usage.superseded_bytes(), 10);
    let bytes = |map: &ExtentMap, due: &Due| {
        let pieces = map.pieces_in(&map.due(due, 10).unwrap());
        let staged = pieces.into_iter().filter(|(_, piece)| matches!(piece, Piece::Data(_)));
        staged.map(|(range, _)| (range.start, range.end)).collect::<Vec<_>>()
    };
    assert_eq!(map.due(&due(1, 9, false), 10), None, "segment 1 holds nothing that is needed");
    assert_eq!(bytes(&map, &due(2, 9, false)), [(10, 20)]);
    assert_eq!(bytes(&map, &due(1, 9, true)), [(0, 10)]);
    assert_eq!(bytes(&map, &due(2, 2, false)), [(0, 10), (10, 20)], "the newest, too");
    // Once they are stored, they are young again.
    map.settle_in(4, 30, &map.due(&due(1, 9, true), 10).unwrap());
    apply(&mut map, &usage, 5, &write(0));
    assert_eq!(map.due(&due(1, 9, true), 10), None);
    // Due bytes take those along that lie in the same block.
    assert_eq!(bytes(&map, &due(2, 9, false)), [(10, 20)]);
    assert!(map.due(&due(2, 9, false), 30).unwrap().is_all());
}
