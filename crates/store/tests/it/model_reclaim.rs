//! The reclaim protocol of `docs/decisions/0003-reclaim-protocol.md`, checked over every
//! interleaving of small worlds.
//!
//! A world has one or two writers, a remover, a reader, and one or two collectors, over two chunks
//! and at most six packs. Processes are killed at any step, or fenced while they go on. Connections
//! are lost with transactions in flight. Some writers' packs do not match their footers. There are
//! three kinds of checks. The rules hold in every world (`holds_*`). Each rule is needed, because a
//! world in which it alone is broken loses data (`every_rule_is_needed`, with the length of the
//! shortest way there). And what should be possible does happen (`nothing_is_vacuous`).
//!
//! The largest worlds (three minutes of two cores) are explored on request: `OUTRIGGER_MODEL=long
//! cargo test --release -p outrigger-store --test it model_reclaim -- holds_for_large --nocapture`.

use crate::model;

use std::time::Instant;

use model::state::seen;
use model::{AckStyle, Broken, Reclaim, Step};
use stateright::{Checker, HasDiscoveries, Model};

/// Explores all of a world, and fails with the steps that lead to a broken property.
fn explore(name: &str, world: Reclaim) {
    let start = Instant::now();
    let checker = world.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    println!(
        "{name}: {} states, {} steps between them, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{name}: not always: {property}\n{:#?}", path.into_actions());
    }
}

/// The shortest way to a broken property: its name and the steps.
fn shortest(world: &Reclaim) -> Option<(&'static str, Vec<Step>)> {
    let mut best: Option<(&'static str, Vec<Step>)> = None;
    loop {
        // The checker works in blocks and reports the last discovery of a block; so ask again for a
        // shorter one.
        let mut builder = world.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        if let Some((_, steps)) = &best {
            builder = builder.target_max_depth(steps.len() + 1);
        }
        let found = builder.spawn_bfs().join().discoveries();
        let found = found.into_iter().map(|(name, path)| (name, path.into_actions()));
        match found.min_by_key(|(_, steps)| steps.len()) {
            Some(shorter) => best = Some(shorter),
            None => return best,
        }
    }
}

/// A put that commits files in groups: the second file relies on a pack that the first one's commit
/// made public.
#[test]
fn holds_for_group_commits() {
    explore(
        "group commits",
        Reclaim {
            packs: vec![],
            old: [0, 0],
            plans: [[0b01, 0b11], [0, 0]],
            removable: 0b1100,
            refresh: true,
            kill_writers: true,
            kill_collectors: true,
            fence_running: true,
            generations: 2,
            leases: 3,
            drain: true,
            ..Reclaim::default()
        },
    );
}

/// Two writers that want the same chunk, which is garbage at first; one of them wants the chunk in
/// use, too.
#[test]
#[ignore = "slow: a large model"]
fn holds_for_two_writers() {
    let world = Reclaim {
        plans: [[0b10, 0], [0b11, 0]],
        removable: 0b01_0001,
        refresh: true,
        kill_writers: true,
        fence_running: true,
        drain: true,
        ..Reclaim::default()
    };
    explore("two writers", world);
    let world = Reclaim {
        plans: [[0b10, 0], [0b10, 0]],
        removable: 0b01_0001,
        refresh: true,
        generations: 2,
        leases: 2,
        ..Reclaim::default()
    };
    explore("two writers, two runs", world);
}

/// Two collectors that are killed, or overtake each other while both go on.
#[test]
fn holds_for_two_collectors() {
    let world = Reclaim {
        removable: 0b0001,
        refresh: true,
        kill_collectors: true,
        collectors: 2,
        drain: true,
        ..Reclaim::default()
    };
    explore("two collectors, two runs", Reclaim { generations: 2, leases: 3, ..world.clone() });
    let world = Reclaim { removable: 0b0101, kill_writers: true, fence_running: true, ..world };
    explore("two collectors, fencing", Reclaim { leases: 3, ..world });
}

/// A reader whose index may be older than its pin.
#[test]
#[ignore = "slow: a large model"]
fn holds_for_a_reader() {
    explore(
        "reader",
        Reclaim {
            removable: 0b0101,
            reader: true,
            fence_running: true,
            kill_collectors: true,
            generations: 2,
            leases: 3,
            drain: true,
            ..Reclaim::default()
        },
    );
}

/// Two copies of a chunk from the beginning, and lookups that may miss stored chunks and so make
/// more.
#[test]
fn holds_for_duplicates() {
    explore(
        "duplicates",
        Reclaim {
            packs: vec![0b11, 0b10],
            false_miss: true,
            removable: 0b0101,
            kill_writers: true,
            kill_collectors: true,
            fence_running: true,
            generations: 2,
            leases: 3,
            drain: true,
            ..Reclaim::default()
        },
    );
}

/// Manifest subtrees inherited from pinned versions that are removed meanwhile.
#[test]
fn holds_for_inheritance() {
    explore(
        "inheritance",
        Reclaim {
            old: [0b01, 0b10],
            plans: [[0b10, 0b11], [0, 0]],
            removable: 0b0111,
            inherit: true,
            kill_writers: true,
            fence_running: true,
            generations: 2,
            leases: 2,
            drain: true,
            ..Reclaim::default()
        },
    );
}

/// Small files are closed with rows for their chunks, removed, and closed again. Packers find a
/// chunk in a pack, or pack it, and are killed, fenced and succeeded.
#[test]
#[ignore = "slow: a large model"]
fn holds_for_rows() {
    let world = Reclaim {
        old: [0b01, 0b10],
        closed: 0b10,
        plans: [[0b10, 0b10], [0, 0]],
        packers: 0b01,
        removable: 0b11,
        refresh: true,
        kill_writers: true,
        kill_collectors: true,
        fence_running: true,
        generations: 2,
        leases: 2,
        ..Reclaim::default()
    };
    explore("rows, one packer, two runs", world.clone());
    explore(
        "rows of two files, one packer",
        Reclaim {
            packs: vec![],
            closed: 0b11,
            plans: [[0b11, 0b01], [0, 0]],
            generations: 1,
            ..world.clone()
        },
    );
    let two = Reclaim {
        plans: [[0b10, 0], [0b10, 0]],
        packers: 0b11,
        kill_collectors: false,
        generations: 1,
        leases: 1,
        ..world.clone()
    };
    explore("rows, two packers", two);
    // One that packs, and one that stores the same.
    explore(
        "rows, a packer and a writer",
        Reclaim {
            plans: [[0b10, 0], [0b10, 0]],
            removable: 0b01_0010,
            kill_collectors: false,
            generations: 1,
            leases: 1,
            ..world
        },
    );
}

/// Connections that are lost with a commit or an acknowledgement: it has happened, happens while
/// its sender is fenced or dead, or never does.
#[test]
fn holds_for_lost_connections() {
    let world = Reclaim {
        packs: vec![],
        old: [0, 0],
        plans: [[0b01, 0b11], [0, 0]],
        lossy: 0b01,
        removable: 0b1100,
        kill_writers: true,
        fence_running: true,
        generations: 2,
        leases: 2,
        drain: true,
        ..Reclaim::default()
    };
    explore("lost answers: group commits", world.clone());
    let world = Reclaim {
        packs: vec![0b11],
        old: [0b01, 0],
        plans: [[0b10, 0], [0b10, 0]],
        removable: 0b01_0001,
        generations: 1,
        leases: 1,
        ..world
    };
    explore("lost answers: two writers", world.clone());
    explore(
        "lost answers: rows",
        Reclaim {
            old: [0b01, 0b10],
            closed: 0b10,
            plans: [[0b10, 0], [0, 0]],
            packers: 0b01,
            removable: 0b11,
            generations: 2,
            leases: 2,
            drain: false,
            ..world
        },
    );
}

/// Clients that do not trust each other's footers, beside a writer of corrupt packs, and with
/// corrupt packs from the beginning.
#[test]
#[ignore = "slow: a large model"]
fn holds_for_packs_of_others() {
    let world = Reclaim {
        packs: vec![0b10, 0b11],
        lies: vec![0b10],
        old: [0b01, 0],
        verification: true,
        removable: 0b0101,
        refresh: true,
        kill_writers: true,
        kill_collectors: true,
        fence_running: true,
        generations: 2,
        leases: 2,
        ..Reclaim::default()
    };
    explore("packs of others, one of them false", world.clone());
    explore(
        "packs of others, one client lies",
        Reclaim {
            packs: vec![0b01],
            lies: vec![],
            plans: [[0b10, 0], [0b10, 0]],
            liars: 0b10,
            removable: 0b01_0001,
            kill_collectors: false,
            generations: 1,
            leases: 1,
            ..world.clone()
        },
    );
    explore(
        "packs of others, connections lost",
        Reclaim { lossy: 0b01, refresh: false, kill_collectors: false, generations: 1, leases: 1, ..world },
    );
}

/// The other way to acknowledge: wait for chunks in flight, or resolve them again. It holds as
/// well, and costs more.
#[test]
fn holds_for_waiting_acknowledgements() {
    explore(
        "waiting: group commits",
        Reclaim {
            ack: AckStyle::Wait,
            packs: vec![],
            old: [0, 0],
            plans: [[0b01, 0b11], [0, 0]],
            removable: 0b0100,
            kill_writers: true,
            fence_running: true,
            generations: 2,
            leases: 2,
            drain: true,
            ..Reclaim::default()
        },
    );
    explore(
        "waiting: two writers",
        Reclaim {
            ack: AckStyle::Wait,
            plans: [[0b10, 0], [0b11, 0]],
            removable: 0b0001,
            fence_running: true,
            drain: true,
            ..Reclaim::default()
        },
    );
}

/// The largest worlds; on request only.
#[test]
fn holds_for_large_worlds() {
    if std::env::var("OUTRIGGER_MODEL").is_ok_and(|v| v == "long") {
        let world = Reclaim {
            plans: [[0b10, 0], [0b10, 0]],
            removable: 0b01_0001,
            reader: true,
            kill_writers: true,
            kill_collectors: true,
            fence_running: true,
            drain: true,
            ..Reclaim::default()
        };
        let two = Reclaim {
            plans: [[0b10, 0], [0, 0]],
            removable: 0b0101,
            reader: false,
            refresh: true,
            ..world.clone()
        };
        explore("two collectors", Reclaim { collectors: 2, generations: 2, leases: 3, ..two });
        let lost = Reclaim { reader: false, lossy: 0b11, leases: 2, ..world.clone() };
        explore("two writers, connections lost, all killed and fenced", lost.clone());
        explore(
            "two writers, one lies, connections lost",
            Reclaim {
                packs: vec![0b10, 0b11],
                lies: vec![0b10],
                verification: true,
                liars: 0b10,
                drain: false,
                lossy: 0b01,
                ..lost
            },
        );
        explore("two writers, a reader, one run", Reclaim { leases: 2, ..world.clone() });
        explore(
            "two writers, all killed and fenced, two runs",
            Reclaim { reader: false, generations: 2, leases: 2, ..world },
        );
    }
}

/// Everything that the rules should allow is reached.
#[test]
#[ignore = "slow: a large model"]
fn nothing_is_vacuous() {
    let start = Instant::now();
    let world = Reclaim {
        removable: 0b0001,
        reader: true,
        kill_writers: true,
        kill_collectors: true,
        fence_running: true,
        collectors: 2,
        generations: 2,
        leases: 3,
        witness: true,
        ..Reclaim::default()
    };
    let wanted = world.properties().into_iter().filter(|p| !p.expectation.discovery_is_failure());
    let wanted = HasDiscoveries::AllOf(wanted.map(|p| p.name).collect());
    let checker =
        world.checker().threads(2).finish_when(wanted).target_state_count(20_000_000).spawn_bfs().join();
    println!("witnesses: {} states, {:.1} s", checker.unique_state_count(), start.elapsed().as_secs_f64());
    checker.assert_properties();
}

/// The same for lost connections and corrupt packs.
#[test]
fn nothing_about_loss_and_lies_is_vacuous() {
    let world = Reclaim {
        packs: vec![0b10, 0b11, 0b10],
        lies: vec![0b10],
        old: [0b01, 0b10],
        lossy: 0b01,
        verification: true,
        kill_writers: true,
        fence_running: true,
        ..Reclaim::default()
    };
    let wanted = [
        (seen::LOST_AND_DONE, "a commit that was lost is found to be done"),
        (seen::LOST_AND_VOID, "a commit that was lost is found not to be done"),
        (seen::POSTHUMOUS, "what a dead process had sent happens"),
        (seen::FENCED_ON_THE_WAY, "what was sent is refused, as the session is over"),
        (seen::GIVEN_UP, "what became of an acknowledgement cannot be found out"),
        (seen::VOUCHED, "another one's pack is relied on, as it was compared"),
        (seen::DOUBTED, "a copy stays, as the one that counts is none"),
    ];
    for (bit, what) in wanted {
        let looking = Reclaim { witness: true, looked_for: bit, ..world.clone() };
        let found = HasDiscoveries::AnyOf(["what is looked for is seen"].into());
        let checker =
            looking.checker().threads(2).finish_when(found).target_state_count(5_000_000).spawn_bfs().join();
        assert!(checker.discovery("what is looked for is seen").is_some(), "never: {what}");
    }
}

/// Breaks one rule at a time, in a world that is just large enough; the decision record tells these
/// stories.
#[test]
fn every_rule_is_needed() {
    let base = Reclaim::default;
    let garbage_only = || Reclaim { packs: vec![0b01], ..base() };
    let two_runs = || Reclaim { generations: 2, leases: 2, ..base() };
    let inheriting = || Reclaim { inherit: true, old: [0b01, 0b10], removable: 0b10, ..base() };
    let lost = "no committed data is lost";
    let swept = "no pack of a live session is swept";
    let unread = "a pinned reader can read";
    let group = || Reclaim { packs: vec![], old: [0, 0], plans: [[0b01, 0b11], [0, 0]], ..base() };
    let rows = || Reclaim {
        old: [0b01, 0b10],
        closed: 0b10,
        plans: [[0b10, 0], [0, 0]],
        packers: 0b01,
        removable: 0b10,
        ..base()
    };
    let lossy = || Reclaim { lossy: 0b01, ..base() };
    let doubting = || Reclaim { verification: true, ..base() };
    let stories = [
        (Broken::NoAckWait, lost, 12, base()),
        (Broken::NoRemark, lost, 13, base()),
        (Broken::CommitUnchecked, lost, 13, Reclaim { fence_running: true, ..base() }),
        (Broken::CandidateHitsCount, lost, 13, base()),
        (Broken::AckWithoutReprieve, lost, 13, base()),
        (Broken::OwnPacksForgotten, lost, 17, group()),
        (
            Broken::OwnPacksInstalledLate,
            lost,
            16,
            Reclaim {
                packs: vec![],
                old: [0, 0],
                plans: [[0b01, 0b01], [0, 0]],
                removable: 0b0100,
                ..base()
            },
        ),
        (Broken::OpenBlind, lost, 12, base()),
        (
            Broken::RefreshUnchecked,
            lost,
            19,
            Reclaim { refresh: true, plans: [[0b10, 0], [0b10, 0]], removable: 0b01_0000, ..garbage_only() },
        ),
        (Broken::DenyList, lost, 17, Reclaim { removable: 0b01, ..two_runs() }),
        (Broken::SweepLive, swept, 4, garbage_only()),
        (Broken::MarkUncommitted, swept, 11, garbage_only()),
        (Broken::InheritUnpinned, lost, 15, inheriting()),
        (Broken::PinUnchecked, lost, 12, inheriting()),
        (Broken::PinsIgnored, lost, 13, inheriting()),
        (Broken::TokenUnchecked, lost, 11, Reclaim { collectors: 2, ..two_runs() }),
        (Broken::AnyCopyCounts, lost, 6, Reclaim { packs: vec![0b11, 0b11], ..base() }),
        (
            Broken::UncommittedCopyCounts,
            lost,
            20,
            Reclaim {
                false_miss: true,
                kill_writers: true,
                old: [0b01, 0b10],
                removable: 0b01,
                ..two_runs()
            },
        ),
        (
            Broken::DeadCopyCounts,
            lost,
            16,
            Reclaim { packs: vec![0b11, 0b10], old: [0b01, 0b10], removable: 0b01, ..two_runs() },
        ),
        (Broken::DeadBeforeCopies, lost, 6, base()),
        (Broken::UnlinkBeforeDead, "a live pack has its object", 9, base()),
        (Broken::ReadUnpinned, unread, 13, Reclaim { reader: true, removable: 0b01, ..base() }),
        (Broken::ReadOnce, unread, 14, Reclaim { reader: true, ..base() }),
        (Broken::RowSeenBefore, lost, 16, rows()),
        (Broken::AckWithoutReprieve, lost, 16, rows()),
        (Broken::CandidateHitsCount, lost, 14, rows()),
        (Broken::LostTakenForDone, "what is taken for committed is", 4, lossy()),
        (Broken::LostMadeAgain, "a commit happens once", 6, lossy()),
        (Broken::AskedTooEarly, "a commit happens once", 6, lossy()),
        (Broken::CheckedWhenSent, lost, 14, Reclaim { fence_running: true, ..lossy() }),
        (Broken::AckWhileUnsure, lost, 18, Reclaim { lossy: 0b01, removable: 0b0100, ..group() }),
        (Broken::HitsWhileUnsure, lost, 15, Reclaim { lossy: 0b01, ..base() }),
        (Broken::GivenUpAndForgotten, lost, 15, Reclaim { lossy: 0b01, ..base() }),
        (Broken::FootersBelieved, lost, 3, Reclaim { lies: vec![0b10], ..doubting() }),
        (Broken::ComparedForEver, lost, 14, doubting()),
        (
            Broken::CopiesBelieved,
            lost,
            9,
            Reclaim { packs: vec![0b10, 0b11], lies: vec![0b10], old: [0b01, 0b10], ..doubting() },
        ),
    ];
    let mut wrong = Vec::new();
    for (broken, property, length, world) in stories {
        let found = shortest(&Reclaim { broken: Some(broken), ..world });
        let Some((violated, steps)) = found else {
            wrong.push(format!("{broken:?}: no counter-example"));
            continue;
        };
        println!("{broken:?}: {violated}, {} steps", steps.len());
        for step in &steps {
            println!("    {step:?}");
        }
        if (violated, steps.len()) != (property, length) {
            wrong.push(format!("{broken:?}: {violated} after {} steps", steps.len()));
        }
    }
    assert!(wrong.is_empty(), "not as written down: {wrong:#?}");
}
