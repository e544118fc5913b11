//! The documented rules of `Meta` for sessions, packs, the collector and upkeep.

use outrigger_format::{PackId, PackKind, Root};
use outrigger_store::meta::{
    At, Change, Commit, Counters, PackRow, PackState, PackSum, ROOT_INODE, SessionId, SessionKind,
    VersionRow, orphan_holder,
};
use outrigger_store::{Error, ErrorKind};

use super::{Fixture, LEASE, file, kind, root};

fn state(engine: &Fixture, pack: PackId) -> Option<PackState> {
    engine.meta.packs().unwrap().into_iter().find(|row| row.id == pack).map(|row| row.state)
}

fn sealed(engine: &Fixture, session: SessionId) -> PackId {
    let id = engine.meta.announce_packs(session, PackKind::Data, 1, 0).unwrap()[0];
    let rows = engine.meta.packs().unwrap();
    let row = rows.into_iter().find(|row| row.id == id).unwrap();
    engine.meta.packs_sealed(session, &[PackRow { bytes: 10, raw_bytes: 20, chunks: 3, ..row }]).unwrap();
    id
}

fn live(engine: &Fixture, session: SessionId) -> PackId {
    let pack = sealed(engine, session);
    engine.meta.commit(session, &Commit { packs: vec![pack], ..Commit::default() }).unwrap();
    pack
}

fn collector(engine: &Fixture) -> SessionId {
    let (session, _) = engine
        .meta
        .open_session(SessionKind::Collector, &outrigger_store::testing::owner("gc"), LEASE)
        .unwrap();
    engine.meta.take_collector(session).unwrap();
    session
}

pub fn sessions_have_leases_that_their_work_renews(engine: &Fixture) {
    let meta = &*engine.meta;
    let (one, _) =
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("one"), 10).unwrap();
    let (two, _) =
        meta.open_session(SessionKind::Reader, &outrigger_store::testing::owner("two"), 10).unwrap();
    assert!(two > one);
    engine.pass(9);
    engine.commit(one, Vec::new()).unwrap();
    engine.pass(9);
    meta.renew(one, 10).unwrap();
    let rows = meta.sessions().unwrap();
    let over: Vec<_> = rows.iter().map(|row| (row.id, row.lease_is_over)).collect();
    assert_eq!(over, [(one, false), (two, true)], "its lease is over, it is not");
    assert_eq!(
        (rows[0].owner.clone(), rows[1].acknowledged),
        (outrigger_store::testing::owner("one"), u64::MAX)
    );
    // A session that comes back before it is ended goes on, with any action.
    engine.pass(11);
    engine.commit(one, Vec::new()).unwrap();
    for session in [one, two] {
        meta.renew(session, 10).unwrap();
    }
    let rows = meta.sessions().unwrap();
    assert!(rows.iter().all(|row| !row.lease_is_over), "{rows:?}");
    engine.pass(11);
    meta.fence(one).unwrap();
    let pack = PackRow {
        id: PackId(1),
        kind: PackKind::Data,
        state: PackState::Writing,
        session: one,
        bytes: 0,
        raw_bytes: 0,
        chunks: 0,
        dead_since: 0,
        mark: 0,
    };
    let refused: [Result<(), Error>; 6] = [
        engine.commit(one, Vec::new()).map(drop),
        meta.renew(one, 10).map(drop),
        meta.acknowledge(one, &[]).map(drop),
        meta.announce_packs(one, PackKind::Data, 1, 0).map(drop),
        meta.packs_sealed(one, &[pack]),
        meta.pin(one, &outrigger_store::meta::PinTarget::Now).map(drop),
    ];
    assert!(refused.into_iter().all(|result| kind(result) == ErrorKind::Fenced));
    meta.close_session(two).unwrap();
    meta.close_session(two).unwrap();
    assert_eq!(meta.sessions().unwrap().len(), 0);
    assert!(engine.writer() > two, "numbers are never used twice");
}

pub fn packs_belong_to_their_session_until_they_are_live(engine: &Fixture) {
    let meta = &*engine.meta;
    let (one, two) = (engine.writer(), engine.writer());
    let ids = meta.announce_packs(one, PackKind::Meta, 3, u64::MAX - 6).unwrap();
    assert!(ids[0].0 > 0 && ids.is_sorted());
    let commit = |session, packs: &[PackId]| {
        meta.commit(session, &Commit { packs: packs.to_vec(), ..Commit::default() }).map(drop)
    };
    assert_eq!(kind(commit(one, &ids[..1])), ErrorKind::Invalid, "not sealed");
    let rows = meta.packs().unwrap();
    assert_eq!(
        (rows.len(), rows[0].kind, rows[0].state, rows[0].session, rows[0].mark),
        (3, PackKind::Meta, PackState::Writing, one, u64::MAX - 6)
    );
    let row = PackRow { bytes: 10, raw_bytes: 20, chunks: 3, mark: 0, ..rows[0].clone() };
    assert_eq!(kind(meta.packs_sealed(two, std::slice::from_ref(&row))), ErrorKind::Invalid);
    meta.packs_sealed(one, std::slice::from_ref(&row)).unwrap();
    assert_eq!(meta.packs().unwrap()[0], PackRow { state: PackState::Sealed, ..row });
    assert_eq!(kind(commit(two, &ids[..1])), ErrorKind::Invalid, "another's");
    assert_eq!(kind(commit(one, &ids[..2])), ErrorKind::Invalid, "one of them is not sealed");
    assert_eq!(state(engine, ids[0]), Some(PackState::Sealed));
    commit(one, &ids[..1]).unwrap();
    assert_eq!(state(engine, ids[0]), Some(PackState::Live));
    assert_eq!(kind(commit(one, &ids[..1])), ErrorKind::Invalid, "live already");
    let (reader, _) =
        meta.open_session(SessionKind::Reader, &outrigger_store::testing::owner("r"), LEASE).unwrap();
    assert_eq!(kind(commit(reader, &[])), ErrorKind::Invalid);
}

pub fn only_what_ended_sessions_left_is_swept(engine: &Fixture) {
    let meta = &*engine.meta;
    let (one, two) = (engine.writer(), engine.writer());
    let left = [meta.announce_packs(one, PackKind::Data, 1, 9).unwrap()[0], sealed(engine, one)];
    let (kept, committed) = (sealed(engine, two), live(engine, one));
    let withdrawn = meta.announce_packs(one, PackKind::Data, 2, 0).unwrap();
    meta.withdraw_packs(two, &withdrawn).unwrap();
    assert_eq!(meta.packs().unwrap().len(), 6, "another's intents are not taken back");
    meta.withdraw_packs(one, &[withdrawn[0], withdrawn[1], left[1], committed]).unwrap();
    assert_eq!(meta.sweep_packs(5).unwrap(), 0);
    meta.forget_packs(&left).unwrap();
    assert_eq!(meta.packs().unwrap().len(), 4, "only dead ones are forgotten");
    meta.fence(one).unwrap();
    assert_eq!(kind(meta.withdraw_packs(one, &left)), ErrorKind::Fenced);
    assert_eq!(meta.sweep_packs(5).unwrap(), 2);
    assert!(left.iter().all(|pack| state(engine, *pack) == Some(PackState::Dead)));
    let rows = meta.packs().unwrap();
    assert_eq!((rows[0].dead_since, rows[0].mark), (5, 9), "whose it would have been is known still");
    // A page at a time, and in sums.
    let page = |after: PackId| meta.packs_after(after, 3).unwrap();
    let pages = [page(PackId(0)), page(rows[2].id), page(rows[3].id)];
    assert_eq!(pages.each_ref().map(Vec::len), [3, 1, 0]);
    assert_eq!(pages.concat(), rows);
    let sum = |state, packs, bytes| PackSum { state, packs, bytes };
    let sums = [sum(PackState::Sealed, 1, 10), sum(PackState::Live, 1, 10), sum(PackState::Dead, 2, 10)];
    assert_eq!(meta.pack_sums().unwrap(), sums);
    assert_eq!(
        (state(engine, kept), state(engine, committed)),
        (Some(PackState::Sealed), Some(PackState::Live))
    );
    meta.forget_packs(&[left[0], left[1], kept, committed, PackId(99)]).unwrap();
    assert_eq!(meta.packs().unwrap().iter().map(|row| row.id).collect::<Vec<_>>(), [kept, committed]);
    let next = meta.announce_packs(two, PackKind::Data, 1, 0).unwrap()[0];
    assert!(next > committed, "ids are never used twice");
}

pub fn a_session_learns_which_packs_it_may_rely_on(engine: &Fixture) {
    let meta = &*engine.meta;
    let one = engine.writer();
    let packs = [live(engine, one), live(engine, one), live(engine, one)];
    sealed(engine, one);
    let (_, generation) =
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("two"), LEASE).unwrap();
    assert_eq!(generation.live, packs);
    let gc = collector(engine);
    let raised = meta.mark_candidates(gc, &packs[..2]).unwrap();
    assert_eq!(raised, generation.number + 1);
    assert_eq!(meta.renew(one, LEASE).unwrap(), raised);
    assert_eq!(engine.commit(one, Vec::new()).unwrap().generation, raised);
    let (three, seen) =
        meta.open_session(SessionKind::Writer, &outrigger_store::testing::owner("three"), LEASE).unwrap();
    assert_eq!((seen.number, seen.live), (raised, packs[2..].to_vec()));
    assert!(!meta.all_acknowledged(raised).unwrap());
    // The acknowledgement itself takes packs that uncommitted work relies on out of the run.
    let after = meta.acknowledge(one, &[packs[0], packs[2]]).unwrap();
    assert_eq!((after.number, after.live), (raised, vec![packs[0], packs[2]]));
    assert!(!meta.all_acknowledged(raised).unwrap(), "session two has not");
    let two = meta.sessions().unwrap()[1].id;
    meta.fence(two).unwrap();
    assert!(meta.all_acknowledged(raised).unwrap());
    meta.close_session(three).unwrap();
}

pub fn there_is_one_collector_and_its_session_is_the_token(engine: &Fixture) {
    let meta = &*engine.meta;
    let writer = engine.writer();
    let pack = live(engine, writer);
    let (one, _) =
        meta.open_session(SessionKind::Collector, &outrigger_store::testing::owner("gc"), 10).unwrap();
    assert_eq!(kind(meta.mark_candidates(one, &[pack])), ErrorKind::Fenced);
    assert_eq!(kind(meta.take_collector(writer)), ErrorKind::Invalid);
    meta.take_collector(one).unwrap();
    meta.mark_candidates(one, &[pack]).unwrap();
    let (two, _) =
        meta.open_session(SessionKind::Collector, &outrigger_store::testing::owner("gc"), LEASE).unwrap();
    assert_eq!(kind(meta.take_collector(two)), ErrorKind::Busy);
    engine.pass(11);
    meta.take_collector(two).unwrap();
    assert_eq!(state(engine, pack), Some(PackState::Live), "an interrupted run is undone");
    assert!(!meta.sessions().unwrap().iter().any(|row| row.id == one), "the old one is fenced");
    for refused in [
        meta.mark_candidates(one, &[]).map(drop),
        meta.delete_packs(one, &[], &[], 1),
        meta.unmark(one, &[]),
        meta.release_collector(one),
    ] {
        assert_eq!(kind(refused), ErrorKind::Fenced);
    }
    meta.mark_candidates(two, &[pack]).unwrap();
    meta.release_collector(two).unwrap();
    assert_eq!(state(engine, pack), Some(PackState::Live));
    assert_eq!(kind(meta.mark_candidates(two, &[pack])), ErrorKind::Fenced);
    let three = collector(engine);
    meta.close_session(three).unwrap();
    collector(engine);
}

pub fn a_run_moves_and_buries_in_one_step(engine: &Fixture) {
    let meta = &*engine.meta;
    let writer = engine.writer();
    let packs = [live(engine, writer), live(engine, writer), live(engine, writer)];
    let (unsealed, gc) = (sealed(engine, writer), collector(engine));
    meta.mark_candidates(gc, &[packs[0], packs[1], unsealed]).unwrap();
    assert_eq!(state(engine, unsealed), Some(PackState::Sealed), "only live ones are marked");
    let copy = sealed(engine, gc);
    assert_eq!(kind(meta.delete_packs(gc, &[copy], &packs[..1], 8)), ErrorKind::Busy, "not acknowledged");
    assert_eq!(state(engine, copy), Some(PackState::Sealed), "nothing has happened");
    meta.acknowledge(writer, &[]).unwrap();
    meta.unmark(gc, &packs[1..2]).unwrap();
    assert_eq!(kind(meta.delete_packs(gc, &[unsealed], &packs[..1], 8)), ErrorKind::Invalid, "not its own");
    assert_eq!(state(engine, packs[0]), Some(PackState::Candidate));
    meta.delete_packs(gc, &[copy], &packs, 8).unwrap();
    let states = [packs[0], packs[1], packs[2], copy].map(|pack| state(engine, pack).unwrap());
    assert_eq!(states, [PackState::Dead, PackState::Live, PackState::Live, PackState::Live]);
    meta.release_collector(gc).unwrap();
    let committed = meta.visit_roots(&mut |_| Ok(())).unwrap();
    assert_eq!(committed.iter().map(|row| row.id).collect::<Vec<_>>(), [packs[1], packs[2], copy]);
    meta.forget_packs(&packs[..1]).unwrap();
    assert_eq!(state(engine, packs[0]), Some(PackState::Dead), "its session may still make the object");
    meta.close_session(writer).unwrap();
    meta.forget_packs(&packs[..1]).unwrap();
    assert_eq!(state(engine, packs[0]), None);
}

pub fn held_roots_outlive_sessions(engine: &Fixture) {
    let meta = &*engine.meta;
    let visited = || {
        let mut lengths = Vec::new();
        meta.visit_roots(&mut |root| {
            lengths.push(root.len());
            Ok(())
        })
        .unwrap();
        lengths.sort_unstable();
        lengths
    };
    assert_eq!(kind(meta.hold("", &[root(1)])), ErrorKind::Invalid);
    meta.hold("one", &[root(2), root(1), root(0)]).unwrap();
    meta.hold("one", &[root(2), root(3)]).unwrap();
    engine.another().hold("two", &[root(3)]).unwrap();
    assert_eq!(meta.held("one").unwrap(), [root(1), root(2), root(3)]);
    assert_eq!((meta.held("two").unwrap(), meta.held("three").unwrap()), (vec![root(3)], vec![]));
    assert_eq!(visited(), [101, 102, 103, 103]);
    // They belong to no session.
    let writer = engine.writer();
    meta.fence(writer).unwrap();
    meta.purge_history().unwrap();
    meta.release("one", Some(&[root(3), root(1), root(9), root(0)])).unwrap();
    meta.release("three", None).unwrap();
    assert_eq!((meta.held("one").unwrap(), visited()), (vec![root(2)], vec![102, 103]));
    meta.release("one", None).unwrap();
    assert_eq!(visited(), [103]);
    meta.release("two", Some(&[root(3)])).unwrap();
    assert_eq!(visited(), [0; 0]);
}

pub fn content_without_a_name_is_held_while_it_is_open(engine: &Fixture) {
    let meta = &*engine.meta;
    let writer = engine.writer();
    let commit = |inode, root| {
        let changes = vec![Change::Orphan { inode, holder: orphan_holder(inode), root }];
        meta.commit(writer, &Commit { packs: Vec::new(), changes, time: 5 }).unwrap();
    };
    commit(77, root(1));
    commit(78, root(1));
    assert_eq!(meta.holders().unwrap(), [orphan_holder(77), orphan_holder(78)]);
    // The later content takes the place of the earlier one; others may have the same.
    commit(77, root(2));
    assert_eq!(meta.held(&orphan_holder(77)).unwrap(), [root(2)]);
    assert_eq!(meta.held(&orphan_holder(78)).unwrap(), [root(1)]);
    commit(77, Root::Empty);
    assert_eq!(meta.holders().unwrap(), [orphan_holder(78)]);
    meta.release(&orphan_holder(78), None).unwrap();
    assert_eq!(meta.holders().unwrap(), [""; 0]);
}

pub fn visiting_sees_one_state_and_stops_at_an_error(engine: &Fixture) {
    let meta = &*engine.meta;
    let writer = engine.writer();
    meta.raise_counters(1, 100, 1).unwrap();
    let files = (10..20).map(|inode| file(ROOT_INODE, &inode.to_string(), inode, inode as u8)).collect();
    engine.commit(writer, files).unwrap();
    let (mut seen, other) = (0, engine.another());
    meta.visit_roots(&mut |_| {
        seen += 1;
        // Writers are not blocked, and their changes are not seen.
        super::commit(&*other, writer, vec![file(ROOT_INODE, "late", 20 + seen, 99)], 1).map(drop)
    })
    .unwrap();
    assert_eq!(seen, 10);
    let stop = meta.visit_roots(&mut |_| Err(Error::new(ErrorKind::Cancelled, "enough")));
    assert_eq!(kind(stop), ErrorKind::Cancelled);
}

pub fn counters_rise_and_never_fall(engine: &Fixture) {
    let meta = &*engine.meta;
    let first = meta.next_sequence().unwrap();
    assert_eq!(engine.another().next_sequence().unwrap(), first + 1);
    meta.raise_counters(50, 60, 70).unwrap();
    meta.raise_counters(1, 1, 1).unwrap();
    let wanted = Counters { next_pack: 50, next_inode: 60, next_sequence: 70 };
    assert_eq!(meta.counters().unwrap(), wanted);
    assert_eq!(meta.counters().unwrap(), wanted, "asking gives nothing out");
    assert_eq!(meta.announce_packs(engine.writer(), PackKind::Data, 1, 0).unwrap(), [PackId(50)]);
    assert_eq!(meta.reserve_inodes(1).unwrap(), 60..61);
    assert_eq!(meta.next_sequence().unwrap(), 70);
}

pub fn a_lost_database_is_filled_again(engine: &Fixture) {
    let meta = &*engine.meta;
    let row = PackRow {
        id: PackId(7),
        kind: PackKind::Data,
        state: PackState::Sealed,
        session: SessionId(0),
        bytes: 1,
        raw_bytes: 2,
        chunks: 3,
        dead_since: 4,
        mark: 5,
    };
    let wanted = PackRow { state: PackState::Live, dead_since: 0, mark: 0, ..row.clone() };
    meta.adopt_packs(std::slice::from_ref(&row)).unwrap();
    meta.adopt_packs(&[PackRow { bytes: 9, ..row.clone() }]).unwrap();
    assert_eq!(meta.packs().unwrap(), [wanted]);
    assert_eq!(kind(meta.adopt_packs(&[PackRow { id: PackId(0), ..row }])), ErrorKind::Invalid);
    let writer = engine.writer();
    assert_eq!(meta.announce_packs(writer, PackKind::Data, 1, 0).unwrap(), [PackId(8)]);
    meta.raise_counters(1, 20, 1).unwrap();
    engine.commit(writer, vec![file(ROOT_INODE, "f", 10, 3)]).unwrap();
    let version =
        |number| VersionRow { number, time: number, mtime: Default::default(), root: root(number as u8) };
    meta.restore_versions(10, &[version(4), version(5)]).unwrap();
    assert_eq!(kind(meta.restore_versions(11, &[version(4)])), ErrorKind::NotFound);
    engine.commit(writer, vec![file(ROOT_INODE, "f", 10, 4)]).unwrap();
    let kept: Vec<u64> = meta.versions(10).unwrap().iter().map(|version| version.number).collect();
    assert_eq!(kept, [6, 5, 4]);
}

pub fn upkeep_changes_nothing_that_can_be_seen(engine: &Fixture) {
    let meta = &*engine.meta;
    let writer = engine.writer();
    meta.raise_counters(1, 100, 1).unwrap();
    engine.commit(writer, vec![file(ROOT_INODE, "f", 10, 3)]).unwrap();
    let before = super::dump(meta, At::Now);
    meta.tidy().unwrap();
    meta.tidy().unwrap();
    assert_eq!(super::dump(meta, At::Now), before);
}
