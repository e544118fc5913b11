//! Several processes on one database, for each engine. Scripts of two and three handles run in
//! every order, and then truly in parallel. Each result must equal that of the same steps done one
//! after the other on a plain model, and the database must pass its own check.

use crate::meta_support;

use std::collections::BTreeSet;
use std::sync::Barrier;

use meta_support::model::Model;
use meta_support::{
    Dump, ENGINES, Engine, Fixture, commit, dir, dump, file, link, remove, remove_all, rename, writer,
};
use outrigger_format::PackKind;
use outrigger_store::meta::{
    At, Change, Commit, Meta, PackRow, PackState, ROOT_INODE, SessionId, SessionKind,
};
use outrigger_store::{ErrorKind, Result};

const R: u64 = ROOT_INODE;

/// One step of a handle: a commit of these changes.
type Script = Vec<Vec<Change>>;

/// The result of a step.
type Verdict = std::result::Result<(), ErrorKind>;

/// A case: the state before, and the steps of each handle.
struct Case {
    name: &'static str,
    before: Vec<Change>,
    scripts: Vec<Script>,
}

/// The tree that most cases begin with: /a (10), /a/f (11), /b (12), /g (13).
fn two_directories() -> Vec<Change> {
    vec![dir(R, "a", 10), file(10, "f", 11, 1), dir(R, "b", 12), file(R, "g", 13, 2)]
}

fn one(change: Change) -> Script {
    vec![vec![change]]
}

fn cases() -> Vec<Case> {
    let case = |name, scripts| Case { name, before: two_directories(), scripts };
    vec![
        case(
            "renames that would make a cycle",
            vec![one(rename(R, "a", 12, "a")), one(rename(R, "b", 10, "b"))],
        ),
        case(
            "three renames that would make a longer one",
            vec![
                one(rename(R, "a", 12, "a")),
                vec![vec![dir(R, "c", 20)], vec![rename(R, "b", 20, "b")]],
                one(rename(R, "c", 10, "c")),
            ],
        ),
        case(
            "a directory removed while a file is made in it",
            vec![one(remove(R, "b")), one(file(12, "x", 20, 3))],
        ),
        case(
            "a directory emptied, removed, made again, and filled",
            vec![
                vec![vec![remove(10, "f")], vec![remove(R, "a")], vec![dir(R, "a", 20)]],
                vec![vec![file(10, "x", 30, 3)], vec![remove_all(R, "a")]],
            ],
        ),
        case(
            "links counted from three sides",
            vec![
                vec![vec![link(12, "l", 11)], vec![remove(10, "f")]],
                vec![vec![link(R, "m", 11)], vec![remove(12, "l")]],
                one(rename(R, "g", 10, "f")),
            ],
        ),
        case(
            "the last name goes while another comes",
            vec![one(remove(10, "f")), one(link(R, "l", 11)), one(file(R, "l", 20, 4))],
        ),
        case(
            "one name made by three: one inode stays",
            vec![one(file(R, "n", 20, 3)), one(file(R, "n", 21, 4)), one(file(R, "n", 22, 5))],
        ),
        case(
            "a link is made exclusively",
            vec![one(link(R, "n", 11)), one(link(R, "n", 13)), one(link(R, "n", 11))],
        ),
        case(
            "a file and a directory of one name",
            vec![
                vec![vec![dir(R, "n", 20), file(20, "x", 21, 3)]],
                vec![vec![file(R, "n", 30, 4)]],
                vec![vec![rename(R, "g", R, "n")]],
            ],
        ),
        case(
            "a commit that fails in its middle",
            vec![
                vec![vec![file(R, "x", 20, 3), remove(10, "f"), remove(R, "g")]],
                one(remove(R, "g")),
                one(remove(10, "f")),
            ],
        ),
    ]
}

/// Every order in which `lengths[i]` steps of script `i` can follow each other.
fn orders(lengths: &[usize]) -> Vec<Vec<usize>> {
    if lengths.iter().all(|&length| length == 0) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for first in (0..lengths.len()).filter(|&script| lengths[script] > 0) {
        let mut rest = lengths.to_vec();
        rest[first] -= 1;
        all.extend(orders(&rest).into_iter().map(|order| [vec![first], order].concat()));
    }
    all
}

fn lengths(case: &Case) -> Vec<usize> {
    case.scripts.iter().map(Vec::len).collect()
}

/// The handle of one script.
type Handle = (Box<dyn Meta>, SessionId);

/// A database with the case's beginning, and a handle for each script.
fn prepare(case: &Case, engine: Engine) -> Option<(Fixture, Vec<Handle>)> {
    let engine = engine()?;
    engine.meta.raise_counters(1, 100, 1).unwrap();
    engine.commit(engine.writer(), case.before.clone()).unwrap();
    let handles = case.scripts.iter().map(|_| {
        let handle = engine.another();
        let session = writer(&*handle);
        (handle, session)
    });
    let handles = handles.collect();
    Some((engine, handles))
}

/// The model's result for an order: the verdicts by script, and the tree.
fn serial(case: &Case, order: &[usize]) -> (Vec<Vec<Verdict>>, Dump) {
    let mut model = Model::new();
    model.next_inode = 100;
    model.commit(&case.before, 7).unwrap();
    let mut verdicts = vec![Vec::new(); case.scripts.len()];
    for &script in order {
        let step = verdicts[script].len();
        verdicts[script].push(model.commit(&case.scripts[script][step], 7).map(drop));
    }
    (verdicts, model.dump())
}

fn verdict<T>(result: Result<T>) -> Verdict {
    result.map(drop).map_err(|error| error.kind())
}

#[test]
fn every_order_of_steps_equals_the_model() {
    for (engine_name, engine) in ENGINES {
        for case in cases() {
            for order in orders(&lengths(&case)) {
                let Some((engine, handles)) = prepare(&case, engine) else { return };
                let mut verdicts = vec![Vec::new(); case.scripts.len()];
                for &script in &order {
                    let (handle, session) = &handles[script];
                    let step = verdicts[script].len();
                    let changes = case.scripts[script][step].clone();
                    verdicts[script].push(verdict(commit(&**handle, *session, changes, 7)));
                }
                let trees = (verdicts, dump(&*engine.meta, At::Now));
                let what = format!("{engine_name}: {}, order {order:?}", case.name);
                assert_eq!(trees, serial(&case, &order), "{what}");
                assert_eq!(engine.findings(), [""; 0], "{what}");
            }
        }
    }
}

#[test]
fn steps_at_the_same_time_equal_some_order() {
    for (engine_name, engine) in ENGINES {
        at_the_same_time(engine_name, engine);
    }
}

fn at_the_same_time(engine_name: &str, engine: Engine) {
    for case in cases() {
        let allowed: Vec<_> = orders(&lengths(&case)).iter().map(|order| serial(&case, order)).collect();
        for _ in 0..6 {
            let Some((engine, handles)) = prepare(&case, engine) else { return };
            let start = Barrier::new(handles.len());
            let verdicts: Vec<Vec<Verdict>> = std::thread::scope(|scope| {
                let threads: Vec<_> = handles
                    .iter()
                    .zip(&case.scripts)
                    .map(|((handle, session), script)| {
                        let start = &start;
                        scope.spawn(move || {
                            start.wait();
                            let run = |changes: &Vec<Change>| {
                                verdict(commit(&**handle, *session, changes.clone(), 7))
                            };
                            script.iter().map(run).collect()
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let result = (verdicts, dump(&*engine.meta, At::Now));
            assert!(allowed.contains(&result), "{engine_name}: {}: {result:#?}", case.name);
            assert_eq!(engine.findings(), [""; 0], "{engine_name}: {}", case.name);
        }
    }
}

/// A snapshot taken while others write is one of the states that the tree went through, and stays
/// that for ever.
#[test]
fn a_snapshot_is_a_state_between_two_commits() {
    let engines = |at| ENGINES.map(|(_, engine)| (at, engine));
    for (at, engine) in (0..=3).flat_map(engines) {
        let Some(engine) = engine() else { continue };
        let (other, session) = (engine.another(), engine.writer());
        engine.meta.raise_counters(1, 100, 1).unwrap();
        let steps =
            [two_directories(), vec![rename(R, "a", 12, "a"), file(R, "g", 13, 9)], vec![remove_all(R, "b")]];
        let mut wanted = None;
        for step in 0..=steps.len() {
            if step == at {
                let row = other.create_snapshot("s", 1, &[]).unwrap();
                wanted = Some((row.epoch, dump(&*engine.meta, At::Now)));
            }
            if let Some(changes) = steps.get(step) {
                engine.commit(session, changes.clone()).unwrap();
            }
        }
        let (epoch, tree) = wanted.unwrap();
        assert_eq!(dump(&*other, At::Epoch(epoch)), tree);
    }
}

/// Two writers move one file to and fro between two directories; snapshots and readers see it
/// exactly once.
#[test]
fn readers_and_snapshots_beside_writers_see_whole_commits() {
    ENGINES.into_iter().filter_map(|(_, engine)| engine()).for_each(|engine| see_whole_commits(&engine));
}

fn see_whole_commits(engine: &Fixture) {
    engine.meta.raise_counters(1, 100, 1).unwrap();
    engine.commit(engine.writer(), two_directories()).unwrap();
    let seen = |meta: &dyn Meta, at| {
        dump(meta, at)
            .into_values()
            .filter(|inode| inode.number == 11)
            .map(|inode| inode.links)
            .collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        for (parent, new_parent) in [(10, 12), (12, 10)] {
            let handle = engine.another();
            scope.spawn(move || {
                let session = writer(&*handle);
                for _ in 0..60 {
                    // Refused when it is on the other side already.
                    let _ = commit(&*handle, session, vec![rename(parent, "f", new_parent, "f")], 7);
                }
            });
        }
        let handle = engine.another();
        scope.spawn(move || {
            for number in 0..20 {
                let row = handle.create_snapshot(&format!("s{number}"), number, &[]).unwrap();
                assert_eq!(seen(&*handle, At::Epoch(row.epoch)), [1]);
            }
        });
    });
    for row in engine.meta.snapshots().unwrap() {
        assert_eq!(seen(&*engine.meta, At::Epoch(row.epoch)), [1]);
    }
    assert_eq!(engine.findings(), [""; 0]);
}

/// A commit is before the fence, and counts, or after it, and nothing of it does.
#[test]
fn a_commit_and_a_fence_follow_each_other() {
    ENGINES.into_iter().for_each(|(_, engine)| commit_and_fence(engine));
}

fn commit_and_fence(engine: Engine) {
    if engine().is_none() {
        return;
    }
    let run = |commit_first: Option<bool>| {
        let engine = engine().expect("it was there just now");
        engine.meta.raise_counters(1, 100, 1).unwrap();
        let (handle, session) = (engine.another(), engine.writer());
        let pack = engine.meta.announce_packs(session, PackKind::Data, 1, 0).unwrap()[0];
        let row = engine.meta.packs().unwrap()[0].clone();
        engine.meta.packs_sealed(session, &[PackRow { bytes: 1, ..row }]).unwrap();
        let work = Commit { packs: vec![pack], changes: two_directories(), time: 7 };
        let work = || verdict(engine.meta.commit(session, &work));
        let fence = || {
            handle.fence(session).unwrap();
            handle.sweep_packs(1).unwrap()
        };
        let (done, swept) = match commit_first {
            Some(true) => (work(), fence()),
            Some(false) => {
                let swept = fence();
                (work(), swept)
            }
            None => std::thread::scope(|scope| {
                let (work, fence) = (scope.spawn(work), scope.spawn(fence));
                (work.join().unwrap(), fence.join().unwrap())
            }),
        };
        let (files, state) = (engine.meta.totals().unwrap().files, engine.meta.packs().unwrap()[0].state);
        assert_eq!(engine.findings(), [""; 0]);
        (done, swept, files, state)
    };
    let before = (Ok(()), 0, 2, PackState::Live);
    let after = (Err(ErrorKind::Fenced), 1, 0, PackState::Dead);
    assert_eq!(run(Some(true)), before);
    assert_eq!(run(Some(false)), after);
    for _ in 0..10 {
        let result = run(None);
        assert!(result == before || result == after, "{result:?}");
    }
}

/// Only one of two collectors gets the lease, and no two announcements get the same id.
#[test]
fn counters_and_the_collector_are_handed_out_once() {
    ENGINES.into_iter().filter_map(|(_, engine)| engine()).for_each(|engine| handed_out_once(&engine));
}

fn handed_out_once(engine: &Fixture) {
    let sessions = [0, 1].map(|_| {
        engine
            .meta
            .open_session(SessionKind::Collector, &outrigger_store::testing::owner("gc"), 100)
            .unwrap()
            .0
    });
    let handles = [0, 1].map(|_| engine.another());
    let taken: Vec<(Verdict, Vec<u64>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = handles
            .iter()
            .zip(sessions)
            .map(|(handle, session)| {
                scope.spawn(move || {
                    let taken = verdict(handle.take_collector(session));
                    let mut ids = Vec::new();
                    for _ in 0..20 {
                        let packs = handle.announce_packs(session, PackKind::Data, 2, 0).unwrap();
                        ids.extend(packs.iter().map(|pack| pack.0));
                        ids.push(1 << 50 | handle.next_sequence().unwrap());
                        ids.push(1 << 60 | handle.reserve_inodes(1).unwrap().start);
                    }
                    (taken, ids)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let verdicts: BTreeSet<bool> = taken.iter().map(|(taken, _)| taken.is_ok()).collect();
    assert_eq!(verdicts, BTreeSet::from([false, true]));
    let all: Vec<u64> = taken.into_iter().flat_map(|(_, ids)| ids).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}
