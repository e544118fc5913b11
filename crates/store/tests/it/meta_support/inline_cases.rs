//! The documented rules of `InlineChunks` and of `Change::InlineChunks`.

use std::collections::HashSet;

use outrigger_format::{CodecChoice, Fingerprint, PackId, PackKind};
use outrigger_store::meta::inline::{InlineChange, InlineChunk, InlineChunks, InlineOwner};
use outrigger_store::meta::{At, Change, Commit, PackRow, PackState, ROOT_INODE as R, SessionId};
use outrigger_store::{Error, ErrorKind};

use super::{Fixture, commit, file, kind, writer};

fn name(seed: u8) -> Fingerprint {
    Fingerprint([seed; 32])
}

fn chunk(seed: u8) -> InlineChunk {
    let codec = CodecChoice::parse(if seed.is_multiple_of(2) { "auto:ratio" } else { "zstd:3" }).unwrap();
    InlineChunk { fingerprint: name(seed), codec, bytes: vec![seed; 100 + usize::from(seed)] }
}

fn add(seed: u8, owner: SessionId) -> Change {
    Change::InlineChunks(InlineChange::Add { chunk: chunk(seed), owner })
}

fn packed(seed: u8) -> Change {
    Change::InlineChunks(InlineChange::Packed { fingerprint: name(seed) })
}

fn inline(engine: &Fixture) -> &dyn InlineChunks {
    engine.meta.inline()
}

/// The names of a session's chunks, in order.
fn of(engine: &Fixture, session: SessionId) -> Vec<Fingerprint> {
    let rows = inline(engine).inline_of(session, 0, u64::MAX >> 1).unwrap();
    rows.into_iter().map(|row| row.chunk.fingerprint).collect()
}

fn sealed(engine: &Fixture, session: SessionId) -> PackId {
    let id = engine.meta.announce_packs(session, PackKind::Data, 1, 0).unwrap()[0];
    let row = engine.meta.packs().unwrap().into_iter().find(|row| row.id == id).unwrap();
    engine.meta.packs_sealed(session, &[PackRow { bytes: 10, raw_bytes: 20, chunks: 3, ..row }]).unwrap();
    id
}

fn state(engine: &Fixture, pack: PackId) -> PackState {
    engine.meta.packs().unwrap().into_iter().find(|row| row.id == pack).unwrap().state
}

pub fn inline_chunks_come_with_the_commit_that_needs_them(engine: &Fixture) {
    engine.meta.raise_counters(1, 10_000, 1).unwrap();
    let (one, two) = (engine.writer(), engine.writer());
    assert_eq!(inline(engine).inline_chunk(&name(1)).unwrap(), None);
    assert_eq!(inline(engine).inline_owners().unwrap(), []);
    // With a change that is refused nothing comes.
    let taken = Change::IfName { parent: R, name: b"f".to_vec(), inode: Some(7) };
    assert_eq!(kind(engine.commit(one, vec![add(1, one), taken])), ErrorKind::Changed);
    assert_eq!(inline(engine).inline_chunk(&name(1)).unwrap(), None);
    engine.commit(one, vec![file(R, "f", 10, 1), add(1, one), add(2, two), add(1, two)]).unwrap();
    assert!(engine.meta.lookup(At::Now, R, b"f").unwrap().is_some());
    for seed in [1, 2] {
        assert_eq!(inline(engine).inline_chunk(&name(seed)).unwrap(), Some(chunk(seed).bytes));
    }
    // A corrupt row, by a flipped bit or on purpose, is not used by a client that has the right
    // bytes.
    let mut lies = chunk(1);
    lies.bytes[3] ^= 1;
    engine.commit(two, vec![Change::InlineChunks(InlineChange::Add { chunk: lies, owner: two })]).unwrap();
    assert_ne!(inline(engine).inline_chunk(&name(1)).unwrap(), Some(chunk(1).bytes));
    engine.commit(two, vec![add(1, two)]).unwrap();
    assert_eq!(inline(engine).inline_chunk(&name(1)).unwrap(), Some(chunk(1).bytes));
    // An existing row keeps its owner and its bytes.
    engine.commit(two, vec![add(1, two), add(3, two)]).unwrap();
    assert_eq!((of(engine, one), of(engine, two)), (vec![name(1)], vec![name(2), name(3)]));
    let owners = [
        InlineOwner { session: one, chunks: 1, bytes: 101 },
        InlineOwner { session: two, chunks: 2, bytes: 102 + 103 },
    ];
    assert_eq!(inline(engine).inline_owners().unwrap(), owners);
    let among = inline(engine).inline_among(&[name(9), name(3), name(1), name(3)]).unwrap();
    assert_eq!(among, HashSet::from([name(1), name(3)]));
    assert_eq!(inline(engine).inline_among(&[]).unwrap(), HashSet::new());
    let mut visited = Vec::new();
    let visit = &mut |chunk| {
        visited.push(chunk);
        Ok(())
    };
    inline(engine).visit_inline(visit).unwrap();
    visited.sort_by_key(|chunk| chunk.fingerprint);
    assert_eq!(visited, [chunk(1), chunk(2), chunk(3)]);
    let stop = &mut |_| Err(Error::new(ErrorKind::Cancelled, "enough"));
    assert_eq!(kind(inline(engine).visit_inline(stop)), ErrorKind::Cancelled);
}

pub fn a_inline_chunk_is_packed_by_its_owner_and_once(engine: &Fixture) {
    let (one, two) = (engine.writer(), engine.writer());
    engine.commit(one, vec![add(1, one), add(2, one), add(3, two)]).unwrap();
    let pack = sealed(engine, one);
    let commit = |session, packs: &[PackId], seeds: &[u8]| {
        let changes = seeds.iter().map(|&seed| packed(seed)).collect();
        engine.meta.commit(session, &Commit { packs: packs.to_vec(), changes, time: 7 })
    };
    // Neither another session's rows, nor missing ones; and then nothing else happens.
    for seeds in [&[1, 3][..], &[1, 9]] {
        assert_eq!(kind(commit(one, &[pack], seeds)), ErrorKind::Changed);
        assert_eq!((of(engine, one).len(), state(engine, pack)), (2, PackState::Sealed));
    }
    assert_eq!(kind(commit(two, &[], &[1])), ErrorKind::Changed);
    commit(one, &[pack], &[1]).unwrap();
    assert_eq!((of(engine, one), state(engine, pack)), (vec![name(2)], PackState::Live));
    assert_eq!(inline(engine).inline_chunk(&name(1)).unwrap(), None);
    // A second time is refused: the pack that another commit would have made live for it does not
    // become so.
    let again = sealed(engine, one);
    assert_eq!(kind(commit(one, &[again], &[1])), ErrorKind::Changed);
    assert_eq!(state(engine, again), PackState::Sealed);
    // It may come again, as it may have been reclaimed meanwhile.
    engine.commit(two, vec![add(1, two)]).unwrap();
    assert_eq!(of(engine, two), [name(3), name(1)]);
}

pub fn what_sessions_that_are_over_have_left_is_taken_over(engine: &Fixture) {
    let (one, two) = (engine.writer(), engine.writer());
    engine.commit(one, vec![add(1, one), add(2, one), add(3, two)]).unwrap();
    assert_eq!(inline(engine).adopt_inline(two).unwrap(), 0, "it is live");
    engine.meta.fence(one).unwrap();
    assert_eq!(kind(engine.commit(one, vec![packed(1)])), ErrorKind::Fenced);
    assert_eq!(kind(inline(engine).adopt_inline(one)), ErrorKind::Fenced);
    // A row that came for an ended session belongs to no live one, too.
    engine.commit(two, vec![add(4, one)]).unwrap();
    assert_eq!(inline(engine).adopt_inline(two).unwrap(), 3);
    assert_eq!(HashSet::from_iter(of(engine, two)), HashSet::from([name(1), name(2), name(3), name(4)]));
    engine.commit(two, vec![packed(1), packed(4)]).unwrap();
    engine.meta.close_session(two).unwrap();
    let three = engine.writer();
    assert_eq!(inline(engine).adopt_inline(three).unwrap(), 2);
    assert_eq!(of(engine, three).len(), 2);
}

pub fn inline_chunks_are_listed_in_parts(engine: &Fixture) {
    let one = engine.writer();
    for seed in 1..=9 {
        engine.commit(one, vec![add(seed, one)]).unwrap();
    }
    let (mut after, mut parts) = (0, Vec::new());
    loop {
        let rows = inline(engine).inline_of(one, after, 250).unwrap();
        let Some(last) = rows.last() else { break };
        after = last.number;
        parts.push(rows.into_iter().map(|row| row.chunk).collect::<Vec<_>>());
    }
    assert_eq!(
        parts,
        [[chunk(1), chunk(2), chunk(3)], [chunk(4), chunk(5), chunk(6)], [chunk(7), chunk(8), chunk(9)]]
    );
    assert_eq!(inline(engine).inline_of(one, 0, 0).unwrap().len(), 1, "one at least");
}

pub fn commits_that_add_the_same_chunks_at_once_both_have_them(engine: &Fixture) {
    for round in 0..8_u8 {
        let seeds = 1 + round * 10..9 + round * 10;
        std::thread::scope(|scope| {
            for turned in [false, true] {
                let (meta, mut seeds) = (engine.another(), seeds.clone().collect::<Vec<_>>());
                scope.spawn(move || {
                    if turned {
                        seeds.reverse();
                    }
                    let session = writer(&*meta);
                    commit(&*meta, session, seeds.into_iter().map(|seed| add(seed, session)).collect(), 7)
                        .unwrap();
                });
            }
        });
        let names: Vec<_> = seeds.map(name).collect();
        assert_eq!(inline(engine).inline_among(&names).unwrap().len(), names.len());
    }
}
