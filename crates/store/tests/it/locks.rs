//! The documented rules of `FileLocks`, on PostgreSQL: locks of several clients against a model of
//! bytes, concurrent clients, ended sessions, waits.

use crate::meta_support;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meta_support::{Fixture, kind, postgres, writer};
use outrigger_store::ErrorKind;
use outrigger_store::meta::locks::{
    Blocker, FileLocks, LOCK_END, Lock, LockFamily, LockMode, LockRange, Owned, OwnersLocks, Taken, Wait,
};
use outrigger_store::meta::{Meta, SessionId};
use outrigger_workload::Rng;

use LockMode::{Exclusive, Shared};

const INODE: u64 = 7;

fn locks(meta: &dyn Meta) -> &dyn FileLocks {
    meta.file_locks().expect("this engine has them")
}

fn lock(owner: u64, first: u64, last: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Ranges, owner, range: LockRange { first, last }, mode, process: 100 }
}

fn whole(owner: u64, mode: LockMode) -> Lock {
    Lock { family: LockFamily::Whole, ..lock(owner, 0, LOCK_END, mode) }
}

fn ticket(ticket: u64, gives_way: bool) -> Option<Wait> {
    Some(Wait { ticket, gives_way })
}

fn takes(meta: &dyn Meta, session: SessionId, lock: Lock) -> bool {
    match locks(meta).take_lock(session, INODE, &lock, None).unwrap() {
        Taken::Yes => true,
        Taken::No(blockers) => {
            assert_eq!(locks(meta).lock_blockers(session, INODE, &lock, None).unwrap(), blockers);
            assert!(blockers.iter().all(|blocker| blocker.lock.excludes(&lock)), "{blockers:?}");
            false
        }
        Taken::Deadlock => panic!("nobody waits"),
    }
}

fn releases(meta: &dyn Meta, session: SessionId, owner: u64, first: u64, last: u64) -> bool {
    let range = LockRange { first, last };
    locks(meta).release_lock(session, INODE, LockFamily::Ranges, owner, range).unwrap()
}

/// Counts the locks of each session.
fn rows(engine: &Fixture) -> Vec<(SessionId, u64)> {
    locks(&*engine.meta).lock_counts().unwrap()
}

#[test]
fn locks_of_several_owners_are_those_of_a_model_byte_by_byte() {
    const BYTES: u64 = 12;
    let Some(engine) = postgres() else { return };
    let handles: Vec<_> = (0..3).map(|_| engine.another()).collect();
    let sessions: Vec<_> = handles.iter().map(|handle| writer(&**handle)).collect();
    // The locks on each byte; the last byte stands for all from there on.
    let mut model: BTreeMap<(usize, u64), Vec<Option<LockMode>>> = BTreeMap::new();
    let mut rng = Rng::new(6);
    let (mut taken, mut refused) = (0, 0);
    for step in 0..400 {
        let (client, owner) = (rng.below(3) as usize, rng.below(2));
        let (one, other) = (rng.below(BYTES), rng.below(BYTES));
        let (first, last) = (one.min(other), one.max(other));
        let bytes = first as usize..=last as usize;
        let last = if last == BYTES - 1 { LOCK_END } else { last };
        let (handle, session) = (&*handles[client], sessions[client]);
        let own = (client, owner);
        if rng.below(3) == 0 {
            let state = model.entry(own).or_insert_with(|| vec![None; BYTES as usize]);
            state[bytes].fill(None);
            let left = state.iter().any(Option::is_some);
            assert_eq!(releases(handle, session, owner, first, last), left, "step {step}");
        } else {
            let mode = if rng.below(2) == 0 { Shared } else { Exclusive };
            let excludes =
                |held: &Option<LockMode>| held.is_some_and(|held| held == Exclusive || mode == Exclusive);
            let is_free = model
                .iter()
                .filter(|(whose, _)| **whose != own)
                .all(|(_, state)| !state[bytes.clone()].iter().any(excludes));
            assert_eq!(takes(handle, session, lock(owner, first, last, mode)), is_free, "step {step}");
            if is_free {
                let state = model.entry(own).or_insert_with(|| vec![None; BYTES as usize]);
                state[bytes].fill(Some(mode));
                taken += 1;
            } else {
                refused += 1;
            }
        }
        // There are no more rows than ranges.
        let mut counts = BTreeMap::new();
        for ((client, _), state) in &model {
            let begins = state.iter().enumerate().filter(|(at, mode)| {
                mode.is_some() && at.checked_sub(1).is_none_or(|before| state[before] != **mode)
            });
            *counts.entry(sessions[*client]).or_default() += begins.count() as u64;
        }
        counts.retain(|_, count: &mut u64| *count > 0);
        assert_eq!(rows(&engine), counts.into_iter().collect::<Vec<_>>(), "step {step}");
    }
    assert!(taken > 50 && refused > 50, "{taken} taken, {refused} refused");
    assert_eq!(engine.findings(), [""; 0]);
}

#[test]
fn families_files_and_owners_are_apart() {
    let Some(engine) = postgres() else { return };
    let other = engine.another();
    let (one, two) = (engine.writer(), writer(&*other));
    assert!(takes(&*engine.meta, one, lock(1, 0, LOCK_END, Exclusive)));
    assert!(takes(&*engine.meta, one, whole(1, Exclusive)), "flock knows nothing of fcntl");
    let elsewhere = locks(&*other).take_lock(two, INODE + 1, &lock(1, 0, 9, Exclusive), None).unwrap();
    assert_eq!(elsewhere, Taken::Yes);
    // The same number is a different owner in a different session, and so is another number in the
    // same one.
    assert!(!takes(&*other, two, lock(1, 5, 5, Shared)));
    assert!(!takes(&*engine.meta, one, lock(2, 5, 5, Shared)));
    assert!(!takes(&*other, two, whole(1, Shared)));
    // A blocker is reported with its lock.
    let blockers = locks(&*other).lock_blockers(two, INODE, &lock(1, 5, 5, Shared), None).unwrap();
    let blocker =
        Blocker { session: one, lock: lock(1, 0, LOCK_END, Exclusive), is_over: false, is_waiting: false };
    assert_eq!(blockers, [blocker]);
    // An exclusive lock becomes a shared one in its middle, and lets others in there.
    assert!(takes(&*engine.meta, one, lock(1, 10, 19, Shared)));
    assert!(takes(&*other, two, lock(1, 12, 13, Shared)));
    assert!(!takes(&*engine.meta, one, lock(1, 10, 19, Exclusive)), "not while there is another one");
    assert!(!takes(&*other, two, lock(1, 19, 20, Shared)), "and what it had, it has still");
    for range in [(9, 8), (0, u64::MAX)] {
        let refused =
            locks(&*other).take_lock(two, INODE, &Lock { ..lock(1, range.0, range.1, Shared) }, None);
        assert_eq!(kind(refused), ErrorKind::Invalid);
    }
    assert_eq!(rows(&engine), [(one, 4), (two, 2)]);
}

/// Exclusive sections of three clients with two threads each never overlap, whatever they cover:
/// their changes are not lost.
#[test]
fn clients_that_come_at_the_same_time_exclude_each_other() {
    let Some(engine) = postgres() else { return };
    const ROUNDS: u64 = 12;
    let inside = [const { AtomicU64::new(0) }; 3];
    let (start, done) = (Barrier::new(6), AtomicU64::new(0));
    let handles: Vec<_> = (0..3).map(|_| engine.another()).collect();
    std::thread::scope(|scope| {
        for (client, handle) in handles.iter().enumerate() {
            let session = writer(&**handle);
            for owner in 0..2 {
                let (inside, start, done) = (&inside, &start, &done);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..ROUNDS {
                        // Parts of the file: one, or two adjacent ones.
                        let first = (round + owner + client as u64) % 3;
                        let last = (first + round % 2).min(2);
                        let wanted = lock(owner, first * 10, last * 10 + 9, Exclusive);
                        while !matches!(
                            locks(&**handle).take_lock(session, INODE, &wanted, None).unwrap(),
                            Taken::Yes
                        ) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        let parts = &inside[first as usize..=last as usize];
                        assert!(parts.iter().all(|part| part.fetch_add(1, Ordering::SeqCst) == 0));
                        std::thread::yield_now();
                        for part in parts {
                            part.fetch_sub(1, Ordering::SeqCst);
                        }
                        done.fetch_add(1, Ordering::SeqCst);
                        releases(&**handle, session, owner, first * 10, last * 10 + 9);
                    }
                });
            }
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 6 * ROUNDS);
    assert_eq!(rows(&engine), []);
    assert_eq!(engine.findings(), [""; 0]);
}

#[test]
fn locks_end_with_their_session_and_not_before_its_lease() {
    let Some(engine) = postgres() else { return };
    let other = engine.another();
    let gone = engine
        .meta
        .open_session(outrigger_store::meta::SessionKind::Writer, &outrigger_store::testing::owner("w"), 60)
        .unwrap()
        .0;
    let two = writer(&*other);
    assert!(takes(&*engine.meta, gone, lock(1, 0, 9, Exclusive)));
    assert!(takes(&*engine.meta, gone, lock(2, 20, 29, Exclusive)));
    assert!(takes(&*engine.meta, gone, whole(1, Shared)));
    engine.pass(59);
    assert!(!takes(&*other, two, lock(1, 5, 5, Shared)));
    engine.pass(2);
    // Asking ends no session.
    let blockers = locks(&*other).lock_blockers(two, INODE, &lock(1, 5, 5, Shared), None).unwrap();
    assert!(blockers[0].is_over && rows(&engine) == [(gone, 3)]);
    assert_eq!(
        locks(&*other).take_lock(two, INODE, &lock(1, 5, 5, Shared), None).unwrap(),
        Taken::Yes,
        "its lease is over"
    );
    // All its locks go, and the session, which can do nothing any more.
    assert_eq!(rows(&engine), [(two, 1)]);
    assert!(engine.meta.sessions().unwrap().iter().all(|row| row.id != gone));
    let late = locks(&*engine.meta).take_lock(gone, INODE, &lock(1, 50, 59, Shared), None);
    assert_eq!(kind(late), ErrorKind::Fenced);
    let late = locks(&*engine.meta).release_lock(gone, INODE, LockFamily::Ranges, 1, LockRange::ALL);
    assert_eq!(kind(late), ErrorKind::Fenced);
    // A closed session leaves no locks.
    engine.meta.close_session(two).unwrap();
    assert_eq!(rows(&engine), []);
    assert_eq!(engine.findings(), [""; 0]);
}

#[test]
fn the_locks_of_a_session_that_was_ended_can_be_taken_over_until_somebody_wants_one() {
    let Some(engine) = postgres() else { return };
    let (other, range) = (engine.another(), |first, last| LockRange { first, last });
    let left = |locks: &[Lock]| {
        let session = engine.writer();
        locks.iter().for_each(|lock| assert!(takes(&*engine.meta, session, *lock)));
        engine.meta.fence(session).unwrap();
        session
    };
    let take_over = |from, owner, ranges: &[(LockRange, LockMode)]| {
        let (session, owned) = (writer(&*other), Owned::new(ranges.to_vec()));
        let of_owner = OwnersLocks { inode: INODE, family: LockFamily::Ranges, owner, owned };
        (locks(&*other).take_over_locks(session, from, &of_owner).unwrap(), session)
    };
    let both = [(range(0, 9), Exclusive), (range(20, 29), Shared)];
    let [first, second] = both.map(|(range, mode)| lock(1, range.first, range.last, mode));
    // As it was.
    let (taken, session) = take_over(left(&[first, second]), 1, &both);
    assert!(taken && !takes(&*engine.meta, engine.writer(), lock(5, 9, 9, Shared)));
    assert_eq!(rows(&engine), [(session, 2)]);
    other.close_session(session).unwrap();
    // Another owner's locks, or fewer than there were: then none are left.
    for (owner, ranges) in [(2, &both[..]), (1, &both[..1]), (1, &[])] {
        let from = left(&[first, second]);
        assert!(!take_over(from, owner, ranges).0);
        locks(&*other).sweep_locks().unwrap();
        assert!(!take_over(from, 1, &both).0, "swept");
    }
    // A client that wants one of them ends them all, even if it releases its own again.
    let from = left(&[first, second, lock(2, 50, 59, Exclusive)]);
    let wants = engine.writer();
    assert!(takes(&*engine.meta, wants, lock(1, 5, 5, Shared)));
    releases(&*engine.meta, wants, 1, 5, 5);
    assert!(!take_over(from, 1, &both).0);
    assert!(!take_over(from, 2, &[(range(50, 59), Exclusive)]).0);
    // A lock that excludes none of them leaves them alone, and so does a run of the collector that
    // ends the session.
    let from = left(&[first]);
    assert!(takes(&*engine.meta, wants, lock(1, 10, 19, Exclusive)));
    let (taken, session) = take_over(from, 1, &both[..1]);
    assert!(taken);
    locks(&*other).sweep_locks().unwrap();
    assert!(rows(&engine).contains(&(session, 1)));
    assert_eq!(
        kind(locks(&*other).take_over_locks(
            from,
            session,
            &OwnersLocks { inode: INODE, family: LockFamily::Ranges, owner: 1, owned: Owned::default() }
        )),
        ErrorKind::Fenced
    );
    assert_eq!(engine.findings(), [""; 0]);
}

/// A fence and a lock come one after the other: the lock is refused, or goes with the session.
#[test]
fn a_session_that_is_fenced_while_it_takes_a_lock_has_none() {
    let Some(engine) = postgres() else { return };
    let other = engine.another();
    for _ in 0..20 {
        let session = engine.writer();
        let taken = std::thread::scope(|scope| {
            let take =
                scope.spawn(|| locks(&*other).take_lock(session, INODE, &lock(1, 0, 9, Exclusive), None));
            engine.meta.fence(session).unwrap();
            take.join().unwrap()
        });
        assert!(matches!(taken, Ok(Taken::Yes)) || kind(taken) == ErrorKind::Fenced);
        assert_eq!(rows(&engine), []);
    }
    assert_eq!(engine.findings(), [""; 0]);
}

#[test]
fn who_has_waited_for_longer_goes_first_before_those_who_give_way() {
    let Some(engine) = postgres() else { return };
    let (other, third) = (engine.another(), engine.another());
    let (one, two, three) = (engine.writer(), writer(&*other), writer(&*third));
    let wanted = lock(1, 0, 9, Exclusive);
    let take = |meta: &dyn Meta, session, wait| locks(meta).take_lock(session, INODE, &wanted, wait).unwrap();
    assert_eq!(take(&*engine.meta, one, ticket(1, true)), Taken::Yes);
    assert!(matches!(take(&*other, two, ticket(1, true)), Taken::No(_)));
    assert!(matches!(take(&*third, three, ticket(1, true)), Taken::No(_)));
    releases(&*engine.meta, one, 1, 0, 9);
    // The first one asks again at once, and the third one came after the second one.
    let Taken::No(blockers) = take(&*engine.meta, one, ticket(2, true)) else { panic!("two are waiting") };
    assert_eq!(
        blockers.iter().map(|blocker| (blocker.session, blocker.is_waiting)).collect::<Vec<_>>(),
        [(two, true), (three, true)]
    );
    let Taken::No(blockers) = take(&*third, three, ticket(1, true)) else { panic!("the second one") };
    assert_eq!(blockers.len(), 1);
    assert_eq!(take(&*other, two, ticket(1, true)), Taken::Yes);
    releases(&*other, two, 1, 0, 9);
    // Not for ever: an owner that has waited for a while does not give way, nor does one that does
    // not wait.
    assert_eq!(take(&*engine.meta, one, ticket(2, false)), Taken::Yes);
    releases(&*engine.meta, one, 1, 0, 9);
    assert_eq!(take(&*other, two, None), Taken::Yes);
    // An owner that already has a lock there does not wait for others, which may be waiting for
    // that lock.
    let more = lock(1, 10, 19, Exclusive);
    assert!(matches!(
        locks(&*third).take_lock(three, INODE, &lock(1, 5, 14, Exclusive), ticket(3, true)).unwrap(),
        Taken::No(_)
    ));
    assert_eq!(locks(&*other).take_lock(two, INODE, &more, ticket(2, true)).unwrap(), Taken::Yes);
    releases(&*other, two, 1, 0, LOCK_END);
    // A wait that was given up blocks no one.
    locks(&*third).stop_waiting(three, 1).unwrap();
    locks(&*third).stop_waiting(three, 3).unwrap();
    assert_eq!(take(&*engine.meta, one, ticket(3, true)), Taken::Yes);
    // Nor does a wait of a session that is over.
    assert!(matches!(take(&*other, two, ticket(9, true)), Taken::No(_)));
    other.close_session(two).unwrap();
    releases(&*engine.meta, one, 1, 0, 9);
    assert_eq!(take(&*third, three, ticket(4, true)), Taken::Yes);
}

#[test]
fn a_circle_of_waits_is_seen_by_the_last_one() {
    let Some(engine) = postgres() else { return };
    let handles: Vec<_> = (0..3).map(|_| engine.another()).collect();
    let sessions: Vec<_> = handles.iter().map(|handle| writer(&**handle)).collect();
    let want = |client: usize, file: u64, wait| {
        locks(&*handles[client]).take_lock(sessions[client], file, &lock(1, 0, 9, Exclusive), wait).unwrap()
    };
    for client in 0..3 {
        assert_eq!(want(client, client as u64, None), Taken::Yes);
    }
    assert!(matches!(want(0, 1, ticket(1, true)), Taken::No(_)));
    assert!(matches!(want(1, 2, ticket(1, true)), Taken::No(_)));
    assert!(matches!(want(2, 0, None), Taken::No(_)), "who does not wait closes no circle");
    assert_eq!(want(2, 0, ticket(1, true)), Taken::Deadlock);
    // It waits for nothing, and when it releases its lock the next one gets it.
    assert!(matches!(want(1, 2, ticket(1, true)), Taken::No(_)));
    locks(&*handles[2]).release_lock(sessions[2], 2, LockFamily::Ranges, 1, LockRange::ALL).unwrap();
    assert_eq!(want(1, 2, ticket(1, true)), Taken::Yes);
    // Two of one session, on one file.
    let (meta, session) = (&*handles[2], sessions[2]);
    let range = |owner, first| lock(owner, first, first, Exclusive);
    let take =
        |lock: Lock, wait| locks(meta).take_lock(session, 50, &Lock { process: 1, ..lock }, wait).unwrap();
    assert_eq!((take(range(1, 1), None), take(range(2, 2), None)), (Taken::Yes, Taken::Yes));
    assert!(matches!(take(range(1, 2), ticket(5, false)), Taken::No(_)));
    assert_eq!(take(range(2, 1), ticket(6, false)), Taken::Deadlock);
}

#[test]
fn who_has_let_go_of_what_others_wait_for_is_in_no_circle_with_them() {
    let Some(engine) = postgres() else { return };
    let other = engine.another();
    let (one, two) = (engine.writer(), writer(&*other));
    let want = |meta: &dyn Meta, session, file: u64, wait| {
        locks(meta).take_lock(session, file, &lock(1, 0, 9, Exclusive), wait).unwrap()
    };
    assert_eq!(want(&*engine.meta, one, 1, None), Taken::Yes);
    assert_eq!(want(&*other, two, 2, None), Taken::Yes);
    assert!(matches!(want(&*other, two, 1, ticket(1, true)), Taken::No(_)));
    locks(&*engine.meta).release_lock(one, 1, LockFamily::Ranges, 1, LockRange::ALL).unwrap();
    // The other one has not asked again yet.
    assert!(matches!(want(&*engine.meta, one, 2, ticket(1, true)), Taken::No(_)));
    assert_eq!(want(&*other, two, 1, ticket(1, true)), Taken::Yes);
    // A lock that the first one takes while it waits closes a cycle as soon as it is waited for.
    assert_eq!(want(&*engine.meta, one, 3, None), Taken::Yes);
    assert_eq!(want(&*other, two, 3, ticket(2, true)), Taken::Deadlock);
}

/// If clients close a cycle at the same moment, exactly one of them is told.
#[test]
fn of_those_who_close_a_circle_at_once_one_is_told() {
    let Some(engine) = postgres() else { return };
    for clients in [2, 3] {
        let handles: Vec<_> = (0..clients).map(|_| engine.another()).collect();
        let sessions: Vec<_> = handles.iter().map(|handle| writer(&**handle)).collect();
        for round in 0..6 {
            let file = |at: usize| 10_000 * clients as u64 + 100 * round + (at % clients) as u64;
            let want = |at: usize, file, wait| {
                locks(&*handles[at]).take_lock(sessions[at], file, &lock(1, 0, 9, Exclusive), wait).unwrap()
            };
            (0..clients).for_each(|at| assert_eq!(want(at, file(at), None), Taken::Yes));
            let start = Barrier::new(clients);
            let told: Vec<Taken> = std::thread::scope(|scope| {
                let waits = (0..clients).map(|at| {
                    let (start, want) = (&start, &want);
                    scope.spawn(move || {
                        start.wait();
                        want(at, file(at + 1), ticket(round + 1, true))
                    })
                });
                waits.collect::<Vec<_>>().into_iter().map(|wait| wait.join().unwrap()).collect()
            });
            assert_eq!(told.iter().filter(|told| **told == Taken::Deadlock).count(), 1, "{told:?}");
            for at in 0..clients {
                locks(&*handles[at]).stop_waiting(sessions[at], round + 1).unwrap();
            }
        }
    }
}

#[test]
fn who_waits_to_change_a_lock_on_a_whole_file_has_let_go_of_it() {
    let Some(engine) = postgres() else { return };
    let other = engine.another();
    let (one, two) = (engine.writer(), writer(&*other));
    assert!(takes(&*engine.meta, one, whole(1, Shared)) && takes(&*other, two, whole(1, Shared)));
    // Without waiting nothing changes.
    assert!(!takes(&*engine.meta, one, whole(1, Exclusive)));
    assert!(!takes(&*other, two, whole(1, Exclusive)));
    let take = |meta: &dyn Meta, session, wait| {
        locks(meta).take_lock(session, INODE, &whole(1, Exclusive), wait).unwrap()
    };
    assert!(matches!(take(&*engine.meta, one, ticket(1, true)), Taken::No(_)));
    assert_eq!(take(&*other, two, ticket(1, true)), Taken::Yes);
    assert_eq!(rows(&engine), [(two, 1)]);
}
