//! Histories that the checkers must accept, and faults that they must notice: each is planted into
//! a history that is right without it.

use super::linear::{Span, is_linearizable};
use super::*;

/// `CLIENT/NUMBER CALLED-RETURNED KEY ACTION OUTCOME`, where `?` stands for an unknown return and
/// an unknown outcome.
fn ops(lines: &str) -> Vec<Op> {
    let op = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [id, times, key, action, outcome] = words[..] else { panic!("{line}") };
        let (client, number) = id.split_once('/').unwrap();
        let (called, returned) = times.split_once('-').unwrap();
        Op {
            client: client.into(),
            number: number.parse().unwrap(),
            key: key.into(),
            action: Action::parse(action).unwrap(),
            called: called.parse().unwrap(),
            returned: returned.parse().unwrap_or(u64::MAX),
            outcome: match outcome {
                "?" => Outcome::Unknown("EIO".into()),
                "failed" => Outcome::Failed("EIO".into()),
                value => Outcome::Done(value.into()),
            },
        }
    };
    let mut ops: Vec<_> = lines.lines().filter(|line| !line.trim().is_empty()).map(op).collect();
    ops.sort_by_key(|op| op.called);
    ops
}

#[track_caller]
fn accepts(lines: &str) {
    let report = check(&ops(lines));
    assert!(report.violations().next().is_none(), "{:#?}", report.checkers);
}

/// Checks that a history is rejected for this reason, and that these operations are shown.
#[track_caller]
fn rejects(lines: &str, why: &str, shown: &[&str]) {
    let report = check(&ops(lines));
    let found: Vec<_> = report.violations().collect();
    let ids = |violation: &Violation| violation.ops.iter().map(Op::id).collect::<Vec<_>>();
    let is_it = |violation: &&&Violation| violation.why.contains(why) && ids(violation) == shown;
    assert!(found.iter().any(|violation| is_it(&violation)), "{found:#?}");
}

const ORDER: &str = "no order of these operations";

#[test]
fn a_replaced_register_is_linearizable_or_rejected() {
    let right = "
        a.1/1 0-10  r0 replace ok
        b.1/1 5-7   r0 read absent
        b.1/2 8-20  r0 read a.1/1
        c.1/1 11-40 r0 replace ok
        b.1/3 21-25 r0 read c.1/1
        a.1/2 26-30 r0 read c.1/1
        d.1/1 31-32 r0 replace failed";
    accepts(right);
    // Stale: another client had read a later value before.
    rejects(
        &(right.to_owned() + "\nd.1/2 26-33 r0 read a.1/1"),
        ORDER,
        &["a.1/1", "c.1/1", "b.1/3", "d.1/2"],
    );
    rejects(
        &right.replace("26-30 r0 read c.1/1", "26-30 r0 read absent"),
        ORDER,
        &["c.1/1", "b.1/3", "a.1/2"],
    );
    rejects(&right.replace("26-30 r0 read c.1/1", "26-30 r0 read nobody/1"), ORDER, &["a.1/2"]);
    // A write that failed before it changed anything.
    rejects(&(right.to_owned() + "\nd.1/2 33-34 r0 read d.1/1"), ORDER, &["d.1/2"]);
    let torn = right.to_owned() + "\nd.1/2 26-33 r0 read TORN";
    rejects(&torn, "nobody has written", &["d.1/2"]);
}

#[test]
fn what_was_removed_is_not_there() {
    let right = "
        a.1/1 0-10  r0 replace ok
        b.1/1 5-15  r0 remove removed
        c.1/1 11-14 r0 read a.1/1
        c.1/2 16-20 r0 read absent
        b.1/2 21-25 r0 remove absent";
    accepts(right);
    rejects(
        &right
            .replace("remove absent", "remove removed")
            .replace("16-20 r0 read absent", "16-20 r0 read a.1/1"),
        ORDER,
        &["a.1/1", "b.1/1", "c.1/2"],
    );
    rejects("a.1/1 0-10 r0 replace ok\n b.1/1 11-12 r0 remove absent", ORDER, &["a.1/1", "b.1/1"]);
    accepts("a.1/1 0-10 r0 replace ?\n b.1/1 11-12 r0 remove removed");
    accepts("a.1/1 0-10 r0 replace ok\n b.1/1 11-12 r0 remove ?\n b.1/2 13-15 r0 remove absent");
}

#[test]
fn a_directory_is_made_and_removed_in_turn() {
    let right = "
        a.1/1 0-10  d0 mkdir won
        b.1/1 5-12  d0 mkdir exists
        b.1/2 13-20 d0 remove removed
        a.1/2 21-30 d0 find absent
        c.1/1 31-40 d0 mkdir ?
        a.1/3 41-50 d0 find dir
        a.1/4 51-60 d0 remove removed";
    accepts(right);
    rejects(
        &right.replace("b.1/1 5-12  d0 mkdir exists", "b.1/1 5-12  d0 mkdir won"),
        ORDER,
        &["a.1/1", "b.1/1"],
    );
    rejects(&right.replace("find absent", "find dir"), ORDER, &["a.1/1", "b.1/2", "a.1/2"]);
    rejects(
        &(right.to_owned() + "\na.1/5 61-70 d0 find dir"),
        ORDER,
        &["a.1/1", "b.1/2", "c.1/1", "a.1/4", "a.1/5"],
    );
}

#[test]
fn an_unknown_write_happens_once_at_any_time_or_never() {
    let right = "
        a.1/1 0-10  r0 replace ok
        b.1/1 11-?  r0 replace ?
        c.1/1 20-30 r0 read a.1/1
        a.1/2 31-40 r0 replace ok
        c.1/2 41-50 r0 read a.1/2";
    accepts(right);
    let late = right.to_owned() + "\nc.1/3 51-60 r0 read b.1/1";
    accepts(&late);
    rejects(&(late + "\nc.1/4 61-70 r0 read a.1/2"), ORDER, &["b.1/1", "a.1/2", "c.1/3", "c.1/4"]);
    rejects(&(right.to_owned() + "\nc.1/3 1-5 r0 read b.1/1"), ORDER, &["c.1/3"]);
}

#[test]
fn a_write_in_place_is_read_early_on_its_host_alone() {
    let early = "
        a.1/1 0-50  w0 write ok
        a.2/1 10-20 w0 read a.1/1
        b.1/1 21-30 w0 read first
        b.1/2 51-60 w0 read a.1/1";
    accepts(early);
    rejects(&early.replace("a.2/1", "c.1/1"), ORDER, &["a.1/1", "c.1/1", "b.1/1"]);
    rejects(&early.replace("51-60 w0 read a.1/1", "51-60 w0 read first"), ORDER, &["a.1/1", "b.1/2"]);
    // The host still has the bytes of a write that failed, and may store them later.
    accepts(
        "
        a.1/1 0-5   w0 write ?
        a.2/1 10-20 w0 read a.1/1
        b.1/1 21-30 w0 read first
        a.2/2 31-40 w0 read a.1/1
        b.1/2 51-60 w0 read a.1/1",
    );
}

#[test]
fn increments_are_not_lost() {
    let right = "
        a.1/1 0-10  flock0 count 0
        b.1/1 5-20  flock0 count 1
        c.1/1 21-25 flock0 count ?
        a.1/2 30-40 flock0 count 3
        b.1/2 50-60 flock0 count failed
        a.1/3 70-80 flock0 read 4";
    accepts(right);
    accepts(&right.replace("count 3", "count 2").replace("read 4", "read 3"));
    rejects(&right.replace("count 3", "count 1"), "the same number", &["b.1/1", "a.1/2"]);
    rejects(&right.replace("21-25 flock0 count ?", "21-25 flock0 count 0"), "backwards", &["b.1/1", "c.1/1"]);
    rejects(&right.replace("read 4", "read 3"), "backwards", &["a.1/2", "a.1/3"]);
    rejects(&right.replace("read 4", "read 5"), "4 tried, 5 counted", &["a.1/3"]);
    rejects(&right.replace("count 3", "count \"3x\""), "no number", &["a.1/2"]);
}

#[test]
fn lines_are_there_once_whole_and_in_order() {
    let right = "
        a.1/1 0-10  log0 append ok
        b.1/1 5-20  log0 append ok
        a.1/2 15-?  log0 append ?
        a.1/3 21-30 log0 append ok
        c.1/1 31-40 log0 append failed
        c.1/2 41-50 log0 lines b.1/1,a.1/1,a.1/3
        c.1/3 51-60 log0 lines b.1/1,a.1/1,a.1/2,a.1/3";
    accepts(right);
    let with = |lines: &str| right.replace("b.1/1,a.1/1,a.1/3", lines);
    rejects(&with("b.1/1,a.1/1"), "is not there", &["a.1/3", "c.1/2"]);
    rejects(&with("b.1/1,a.1/1,a.1/3,b.1/1"), "twice", &["b.1/1", "c.1/2"]);
    rejects(&with("b.1/1,TORN,a.1/1,a.1/3"), "torn", &["c.1/2"]);
    accepts(&(with("b.1/1,a.1/1,a.1/3,TORN") + "\nc.2/1 42-60 log0 append ok"));
    rejects(&(with("b.1/1,a.1/1,a.1/3,TORN") + "\nd.1/1 42-60 log0 append ok"), "torn", &["c.1/2"]);
    rejects(
        &(with("b.1/1,a.1/1,TORN") + "\nc.2/1 42-60 log0 append ok"),
        "is not there",
        &["a.1/3", "c.1/2"],
    );
    rejects(&with("b.1/1,a.1/1,a.1/3,c.1/1"), "nobody can have", &["c.1/2"]);
    rejects(&with("a.1/1,a.1/3,b.1/1"), "before one that had been", &["b.1/1", "a.1/3", "c.1/2"]);
    rejects(&with("b.1/1,a.1/3,a.1/1"), "its order", &["a.1/1", "a.1/3", "c.1/2"]);
}

#[test]
fn a_name_has_one_winner_who_stays() {
    let right = "
        a.1/1 0-10  n0 create won
        b.1/1 5-12  n0 mkdir exists
        c.1/1 8-9   n0 find empty
        c.1/2 13-20 n0 find a.1/1
        b.1/2 15-20 n0 link ?
        c.1/3 21-22 n0 noreplace exists";
    accepts(right);
    rejects(&right.replace("mkdir exists", "mkdir won"), "two have made", &["a.1/1", "b.1/1"]);
    rejects(&right.replace("find a.1/1", "find absent"), "is not there", &["a.1/1", "c.1/2"]);
    rejects(&right.replace("find a.1/1", "find dir"), "cannot have made", &["c.1/2"]);
    rejects(&right.replace("find a.1/1", "find b.1/2"), "another one had made", &["a.1/1", "c.1/2"]);
    rejects(&right.replace("find a.1/1", "find empty"), "cannot have made", &["c.1/2"]);
    rejects("a.1/1 0-10 n0 create exists", "nobody can have made", &["a.1/1"]);
    // A client that got no answer may have won.
    accepts("a.1/1 0-? n0 create ?\n b.1/1 5-9 n0 mkdir exists\n b.1/2 10-11 n0 find empty");
}

#[test]
fn a_file_that_moves_is_found_once() {
    let right = "
        a.1/1 0-10  m1 move:0:1 moved
        b.1/1 5-20  m1 move:0:2 absent
        b.1/2 21-30 m1 stat:1 here
        c.1/1 22-?  m1 move:1:2 ?
        b.1/3 31-40 m1 stat:1 absent
        b.1/4 41-50 m1 stat:2 here";
    accepts(right);
    rejects(&right.replace("move:0:2 absent", "move:0:2 moved"), ORDER, &["a.1/1", "b.1/1"]);
    rejects(&right.replace("stat:2 here", "stat:2 absent"), ORDER, &["a.1/1", "c.1/1", "b.1/3", "b.1/4"]);
    rejects(&right.replace("stat:2 here", "stat:0 here"), ORDER, &["a.1/1", "c.1/1", "b.1/4"]);
    // Two clients move it to the same place. The second may find it there already, unless the first
    // had returned before.
    let twice = "a.1/1 0-10 m1 move:0:1 moved\n b.1/1 5-20 m1 move:0:1 moved\n b.1/2 21-30 m1 stat:1 here";
    accepts(twice);
    rejects(&twice.replace("5-20", "11-20"), ORDER, &["a.1/1", "b.1/1"]);
    // It was carried out, retried, and then refused.
    rejects(&right.replace("move:0:1 moved", "move:0:1 absent"), ORDER, &["b.1/1"]);
}

/// Random histories of a register that took effect at random instants are accepted; almost none is
/// accepted after one read is changed.
#[test]
fn random_histories_are_judged_as_a_simulation_knows_them() {
    let mut noticed = 0;
    for seed in 0..200 {
        let mut rng = crate::Rng::new(seed);
        let (mut value, mut free) = (ABSENT.to_owned(), [0u64; 6]);
        let mut history = Vec::new();
        for (number, instant) in (1..400u64).map(|n| (n, n * 10)) {
            let client = rng.index(free.len());
            let called = instant.saturating_sub(rng.below(40));
            if called <= free[client] || called >= instant {
                continue;
            }
            let returned = instant + rng.below(40);
            free[client] = returned;
            let is_write = rng.permille(300);
            let mut op = ops(&format!("h{client}.1/{number} {called}-{returned} r0 read {value}")).remove(0);
            if is_write {
                op.action = Action::Replace;
                let is_unknown = rng.permille(200);
                if !is_unknown || rng.permille(500) {
                    value = op.id();
                }
                op.outcome =
                    if is_unknown { Outcome::Unknown("EIO".into()) } else { Outcome::Done("ok".into()) };
            }
            history.push(op);
        }
        history.sort_by_key(|op| op.called);
        assert!(check(&history).violations().next().is_none(), "{seed}");
        let values: Vec<_> = history.iter().filter(|op| op.action == Action::Replace).map(Op::id).collect();
        let reads: Vec<_> = (0..history.len()).filter(|&at| history[at].action == Action::Read).collect();
        let changed = reads[rng.index(reads.len())];
        history[changed].outcome = Outcome::Done(values[rng.index(values.len())].clone());
        noticed += usize::from(check(&history).violations().next().is_some());
    }
    assert!(noticed > 150, "{noticed}");
}

#[test]
fn the_search_takes_back_what_it_tried() {
    let span = |called, returned| Span { called, returned: Some(returned) };
    // Three concurrent writes of 1, 2, 3, then reads of 2: all orders with 2 last.
    let spans = [span(0, 10), span(0, 10), span(0, 10), span(11, 12), span(13, 14)];
    let read = |reads: [usize; 2]| {
        is_linearizable(&spans, 0, |&state, at| match at {
            0..3 => Some(at + 1),
            _ => (reads[at - 3] == state).then_some(state),
        })
    };
    assert!(read([1, 1]) && read([2, 2]) && read([3, 3]));
    assert!(!read([1, 2]) && !read([0, 0]) && !read([4, 4]));
    assert!(is_linearizable(&[], 0, |_, _| None));
}

#[test]
fn a_log_is_read_as_it_was_written_even_if_its_end_is_cut_off() {
    let log = "> 1 5 r0 replace\n< 1 9 done ok\n> 2 11 m3 move:0:1\n< 2 15 unknown Input/output error (os error 5)\n> 3 20 n1 link\n> 4 2";
    let found = parse("c0.1", log).unwrap();
    let outcomes: Vec<_> =
        found.iter().map(|op| (op.id(), op.called, op.returned, op.outcome.clone())).collect();
    let unknown = |why: &str| Outcome::Unknown(why.into());
    assert_eq!(
        outcomes,
        [
            ("c0.1/1".to_owned(), 5, 9, Outcome::Done("ok".into())),
            ("c0.1/2".to_owned(), 11, 15, unknown("Input/output error (os error 5)")),
            ("c0.1/3".to_owned(), 20, u64::MAX, unknown("never returned")),
        ]
    );
    assert_eq!(found[1].action, Action::Move { from: 0, to: 1 });
    assert!(parse("c0.1", "< 1 9 done ok\n").is_none());
}
