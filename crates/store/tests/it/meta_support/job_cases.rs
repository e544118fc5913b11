//! The documented rules of `Jobs`: claims, attempts that are fenced, publication, registry records.

use std::collections::BTreeSet;

use outrigger_store::ErrorKind;
use outrigger_store::meta::jobs::{
    Claimed, JobChange, JobId, JobInput, JobState, Jobs, NewJob, NewSplit, OPEN_END, Seen, SplitState,
    job_holder,
};
use outrigger_store::meta::{At, Change, ROOT_INODE, SessionId};

use super::{Fixture, LEASE, file, kind, root};

fn jobs(engine: &Fixture) -> &dyn Jobs {
    engine.meta.jobs()
}

fn make(engine: &Fixture, splits: u64) -> JobId {
    let inputs = [(&b"a/\xff"[..], 1), (b"b", 0)]
        .map(|(path, seed)| JobInput { path: path.to_vec(), root: root(seed) });
    let splits =
        (0..splits).map(|number| NewSplit { input: Some(0), from: number * 10, to: number * 10 + 10 });
    let job = NewJob {
        spec: "what \u{1} to do".into(),
        inputs: inputs.into(),
        splits: splits.collect(),
        seen: None,
    };
    jobs(engine).create_job(&job).unwrap()
}

fn output(job: JobId, claimed: &Claimed, name: &str, seed: u8) -> Change {
    let Claimed { number: split, attempt, .. } = *claimed;
    Change::Job(JobChange::Output { job, split, attempt, name: name.into(), root: root(seed) })
}

fn finish(job: JobId, claimed: &Claimed) -> Change {
    let Claimed { number: split, attempt, .. } = *claimed;
    Change::Job(JobChange::Finish {
        job,
        split,
        attempt,
        log: b"said".to_vec(),
        measured: Some(format!("by {attempt}")),
    })
}

fn publish(job: JobId) -> Change {
    Change::Job(JobChange::Publish { job, why: "it is done".into(), made: Some("one file".into()) })
}

fn claim(engine: &Fixture, session: SessionId, job: JobId, limit: usize) -> Vec<Claimed> {
    jobs(engine).claim_splits(session, job, limit, 2, None).unwrap().claimed
}

fn states(engine: &Fixture, job: JobId) -> Vec<SplitState> {
    jobs(engine).splits(job).unwrap().into_iter().map(|split| split.state).collect()
}

fn numbers(claimed: &[Claimed]) -> Vec<u64> {
    claimed.iter().map(|claimed| claimed.number).collect()
}

pub fn a_job_reads_back_and_holds_its_inputs(engine: &Fixture) {
    assert!(jobs(engine).jobs(9).unwrap().is_empty());
    assert!(jobs(engine).job(JobId(1)).unwrap().is_none());
    assert!(jobs(engine).job_briefly(JobId(1)).unwrap().is_none());
    let (first, second) = (make(engine, 3), make(engine, 0));
    assert!(second > first);
    let row = jobs(engine).job(first).unwrap().unwrap();
    assert_eq!(
        (row.state, row.spec.as_str(), row.splits),
        (JobState::Waiting, "what \u{1} to do", [3, 0, 0, 0])
    );
    let briefly = jobs(engine).job_briefly(first).unwrap().unwrap();
    assert_eq!((briefly.spec.as_str(), briefly.state, briefly.splits), ("", row.state, row.splits));
    assert_eq!((briefly.id, briefly.created, briefly.changed), (first, row.created, row.changed));
    let listed: Vec<JobId> = jobs(engine).jobs(9).unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(listed, [second, first]);
    assert_eq!(jobs(engine).jobs(1).unwrap().len(), 1);
    let inputs = jobs(engine).inputs(first).unwrap();
    assert_eq!((inputs[0].path.as_slice(), &inputs[0].root), (&b"a/\xff"[..], &root(1)));
    assert_eq!((inputs[1].path.as_slice(), &inputs[1].root), (&b"b"[..], &root(0)));
    let split = jobs(engine).split(first, 2).unwrap().unwrap();
    assert_eq!(
        (split.number, split.range, split.attempt),
        (2, NewSplit { input: Some(0), from: 20, to: 30 }, 0)
    );
    assert!(jobs(engine).split(first, 3).unwrap().is_none());
    assert_eq!(engine.meta.held(&job_holder(first)).unwrap(), [root(1)]);
    assert!(jobs(engine).end_job(second, JobState::Cancelled, "not needed").unwrap());
    let open: Vec<JobId> = jobs(engine).open_jobs().unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(open, [first]);
    assert_eq!(kind(jobs(engine).forget_job(first)), ErrorKind::Busy);
    jobs(engine).forget_job(second).unwrap();
    assert_eq!(kind(jobs(engine).forget_job(second)), ErrorKind::NotFound);
    assert!(make(engine, 1) > second, "numbers are never used twice");
}

pub fn a_published_job_shows_all_at_once_and_lets_go(engine: &Fixture) {
    let (job, session) = (make(engine, 2), engine.writer());
    engine.meta.reserve_inodes(9).unwrap();
    let claimed = claim(engine, session, job, 9);
    assert_eq!(numbers(&claimed), [0, 1]);
    assert_eq!(jobs(engine).job(job).unwrap().unwrap().state, JobState::Running);
    let first =
        vec![output(job, &claimed[0], "0", 5), output(job, &claimed[0], "0", 6), finish(job, &claimed[0])];
    engine.commit(session, first).unwrap();
    let early = vec![file(ROOT_INODE, "out", 5, 6), publish(job)];
    assert_eq!(kind(engine.commit(session, early)), ErrorKind::Fenced, "a split is running");
    assert!(engine.meta.lookup(At::Now, ROOT_INODE, b"out").unwrap().is_none());
    // Outputs after the end of an attempt are ignored.
    let late =
        vec![output(job, &claimed[1], "0", 7), finish(job, &claimed[1]), output(job, &claimed[1], "1", 8)];
    engine.commit(session, late).unwrap();
    let outputs = jobs(engine).outputs(job).unwrap();
    let outputs: Vec<_> = outputs.iter().map(|out| (out.split, out.name.as_slice(), &out.root)).collect();
    assert_eq!(outputs, [(0, &b"0"[..], &root(6)), (1, b"0", &root(7))]);
    assert_eq!(jobs(engine).split(job, 1).unwrap().unwrap().log, b"said");
    let held: BTreeSet<String> =
        engine.meta.held(&job_holder(job)).unwrap().iter().map(|root| format!("{root:?}")).collect();
    for seed in [1, 6, 7] {
        assert!(held.contains(&format!("{:?}", root(seed))), "{seed} is held");
    }
    engine.commit(session, vec![file(ROOT_INODE, "out", 5, 6), publish(job)]).unwrap();
    assert_eq!(engine.meta.lookup(At::Now, ROOT_INODE, b"out").unwrap().unwrap().root, root(6));
    let row = jobs(engine).job(job).unwrap().unwrap();
    assert_eq!((row.state, row.why.as_str()), (JobState::Done, "it is done"));
    assert_eq!(jobs(engine).made(job).unwrap().as_deref(), Some("one file"));
    assert_eq!(engine.meta.holders().unwrap(), [""; 0]);
    assert!(jobs(engine).outputs(job).unwrap().is_empty());
    assert_eq!(jobs(engine).inputs(job).unwrap()[0].root, root(0), "what is not held is not shown");
    let by = |attempt: u64| format!("by {attempt}");
    assert_eq!(jobs(engine).measured(job).unwrap(), [(0, by(1)), (1, by(1))]);
    let (next, tenth) = (make(engine, 1), make(engine, 11));
    assert!(jobs(engine).measured(next).unwrap().is_empty() && jobs(engine).made(next).unwrap().is_none());
    let all = claim(engine, session, tenth, 11);
    engine.commit(session, all.iter().map(|claimed| finish(tenth, claimed)).collect()).unwrap();
    let splits: Vec<u64> = jobs(engine).measured(tenth).unwrap().into_iter().map(|noted| noted.0).collect();
    assert_eq!(splits, (0..11).collect::<Vec<_>>(), "by number, and of this job alone");
    assert!(jobs(engine).end_job(tenth, JobState::Cancelled, "").unwrap());
    jobs(engine).forget_job(tenth).unwrap();
    assert!(jobs(engine).measured(tenth).unwrap().is_empty());
    assert_eq!(jobs(engine).measured(job).unwrap().len(), 2);
    // Once.
    assert_eq!(kind(engine.commit(session, vec![publish(job)])), ErrorKind::Fenced);
    assert_eq!(kind(jobs(engine).retry_job(job)), ErrorKind::Invalid);
    assert!(!jobs(engine).claim_splits(session, job, 1, 2, None).unwrap().open);
}

pub fn a_split_whose_session_is_over_is_taken_and_the_late_one_is_ignored(engine: &Fixture) {
    let (job, slow, other) = (make(engine, 2), engine.writer(), engine.writer());
    let first = claim(engine, slow, job, 1);
    let second = jobs(engine).claim_splits(other, job, 9, 2, None).unwrap();
    assert_eq!((numbers(&second.claimed), second.elsewhere), (vec![1], 1), "the first one is in good hands");
    // The lease ends it; the other one's was renewed.
    engine.pass(u64::from(LEASE) - 1);
    engine.meta.renew(other, LEASE).unwrap();
    engine.pass(2);
    let taken = claim(engine, other, job, 9);
    assert_eq!((numbers(&taken), taken[0].attempt), (vec![0], first[0].attempt + 1));
    // It may come back, but its splits are another's now.
    engine.commit(slow, vec![output(job, &first[0], "0", 5), finish(job, &first[0])]).unwrap();
    assert_eq!(states(engine, job), [SplitState::Running; 2]);
    engine.meta.fence(slow).unwrap();
    assert_eq!(kind(engine.commit(slow, vec![finish(job, &first[0])])), ErrorKind::Fenced);
    assert_eq!(kind(jobs(engine).claim_splits(slow, job, 1, 2, None)), ErrorKind::Fenced);
    // Neither may the new one speak for the old attempt, nor anybody for another's split.
    let third = engine.writer();
    engine.commit(other, vec![output(job, &first[0], "0", 5), finish(job, &first[0])]).unwrap();
    engine.commit(third, vec![output(job, &taken[0], "0", 5), finish(job, &taken[0])]).unwrap();
    assert!(!jobs(engine).fail_split(job, &first[0], 1, "late", b"").unwrap());
    jobs(engine).give_back_splits(job, &first).unwrap();
    assert_eq!(states(engine, job), [SplitState::Running; 2]);
    assert!(jobs(engine).outputs(job).unwrap().is_empty());
    engine.commit(other, vec![output(job, &taken[0], "0", 6), finish(job, &taken[0])]).unwrap();
    assert_eq!(jobs(engine).outputs(job).unwrap()[0].root, root(6));
    assert_eq!(jobs(engine).measured(job).unwrap(), [(0, format!("by {}", taken[0].attempt))]);
    // A fence frees at once what the end of a lease would free in time.
    engine.meta.fence(other).unwrap();
    let last = claim(engine, third, job, 9);
    assert_eq!((numbers(&last), last[0].attempt), (vec![1], 2));
}

pub fn a_split_that_takes_its_runners_with_it_is_set_aside(engine: &Fixture) {
    let job = make(engine, 1);
    for attempt in 1..=2 {
        let session = engine.writer();
        assert_eq!(claim(engine, session, job, 1)[0].attempt, attempt);
        engine.meta.fence(session).unwrap();
    }
    let session = engine.writer();
    assert!(claim(engine, session, job, 1).is_empty());
    assert_eq!(states(engine, job), [SplitState::SetAside]);
    assert!(jobs(engine).split(job, 0).unwrap().unwrap().why.contains("as often as it was tried"));
    assert!(jobs(engine).end_job(job, JobState::Failed, "it \0 failed").unwrap());
    jobs(engine).retry_job(job).unwrap();
    assert_eq!(claim(engine, session, job, 1)[0].attempt, 3);
}

pub fn failures_are_counted_and_what_was_not_begun_is_not(engine: &Fixture) {
    let (job, session) = (make(engine, 2), engine.writer());
    let claimed = claim(engine, session, job, 2);
    jobs(engine).give_back_splits(job, &claimed).unwrap();
    assert_eq!(states(engine, job), [SplitState::Waiting; 2]);
    for (attempt, aside) in [(2, false), (3, true)] {
        let only = jobs(engine).claim_splits(session, job, 9, 2, Some(&[1])).unwrap().claimed;
        assert_eq!((numbers(&only), only[0].attempt), (vec![1], attempt), "none but those that are wanted");
        engine.commit(session, vec![output(job, &only[0], "0", 9)]).unwrap();
        assert_eq!(jobs(engine).fail_split(job, &only[0], 2, "no \0 luck", b"\0log").unwrap(), aside);
    }
    let split = jobs(engine).split(job, 1).unwrap().unwrap();
    assert_eq!((split.state, split.log.as_slice()), (SplitState::SetAside, &b"\0log"[..]));
    assert!(split.why.contains("luck"));
    assert!(jobs(engine).outputs(job).unwrap().is_empty(), "a failed attempt has none");
    assert_eq!(states(engine, job), [SplitState::Waiting, SplitState::SetAside]);
}

pub fn a_cancelled_job_voids_its_attempts_and_a_retry_keeps_what_is_done(engine: &Fixture) {
    let (job, session) = (make(engine, 3), engine.writer());
    let claimed = claim(engine, session, job, 2);
    engine.commit(session, vec![output(job, &claimed[0], "0", 4), finish(job, &claimed[0])]).unwrap();
    assert!(jobs(engine).end_job(job, JobState::Cancelled, "enough").unwrap());
    assert!(!jobs(engine).end_job(job, JobState::Failed, "again").unwrap());
    engine.commit(session, vec![finish(job, &claimed[1])]).unwrap();
    use SplitState::{Done, Running, Waiting};
    assert_eq!(states(engine, job), [Done, Waiting, Waiting]);
    assert!(claim(engine, session, job, 9).is_empty());
    assert_eq!(kind(engine.commit(session, vec![publish(job)])), ErrorKind::Fenced);
    jobs(engine).retry_job(job).unwrap();
    let again = claim(engine, session, job, 1);
    assert!(again[0].number == 1 && again[0].attempt > claimed[1].attempt);
    assert_eq!(states(engine, job), [Done, Running, Waiting]);
    assert_eq!(jobs(engine).outputs(job).unwrap().len(), 1);
    jobs(engine).end_job(job, JobState::Failed, "").unwrap();
    jobs(engine).forget_job(job).unwrap();
    assert_eq!(engine.meta.holders().unwrap(), [""; 0]);
}

pub fn of_two_attempts_at_a_split_the_first_to_finish_counts(engine: &Fixture) {
    let beside = |session, job, claimed: &Claimed| {
        jobs(engine).claim_speculative(session, job, claimed.number, claimed.attempt).unwrap()
    };
    let current = |session, job, claimed: &Claimed| jobs(engine).is_current(session, job, claimed).unwrap();
    for primary_wins in [false, true] {
        let (job, slow, quick, third) = (make(engine, 2), engine.writer(), engine.writer(), engine.writer());
        let primary = claim(engine, slow, job, 1)[0];
        let waiting = Claimed { number: 1, attempt: 0, ..primary };
        assert_eq!(beside(quick, job, &waiting), None, "it waits: there is nothing to be beside");
        assert_eq!(beside(slow, job, &primary), None, "it is its own");
        let newer = beside(quick, job, &primary).unwrap();
        assert_eq!((newer.number, newer.range, newer.attempt), (0, primary.range, primary.attempt + 1));
        assert!(
            beside(third, job, &primary).is_none() && beside(third, job, &newer).is_none(),
            "there are two"
        );
        assert!(current(slow, job, &primary) && current(quick, job, &newer) && !current(third, job, &newer));
        // Both write; the outputs of the slower one are ignored.
        let ((first, winner), (second, loser)) =
            if primary_wins { ((slow, primary), (quick, newer)) } else { ((quick, newer), (slow, primary)) };
        engine.commit(second, vec![output(job, &loser, "0", 7), output(job, &loser, "more", 8)]).unwrap();
        engine.commit(first, vec![output(job, &winner, "0", 5), finish(job, &winner)]).unwrap();
        assert!(
            !current(second, job, &loser) && !current(first, job, &winner),
            "nothing more is wanted of either"
        );
        engine.commit(second, vec![output(job, &loser, "0", 9), finish(job, &loser)]).unwrap();
        assert!(!jobs(engine).fail_split(job, &loser, 1, "late", b"").unwrap());
        jobs(engine).give_back_splits(job, &[loser]).unwrap();
        assert_eq!(states(engine, job), [SplitState::Done, SplitState::Waiting]);
        let outputs = jobs(engine).outputs(job).unwrap();
        assert_eq!((outputs.len(), &outputs[0].root), (1, &root(5)));
        // One that leaves has the other one go on; the last of them is dealt with like any.
        let primary = claim(engine, slow, job, 9)[0];
        let newer = beside(quick, job, &primary).unwrap();
        let (leaves, stays) =
            if primary_wins { ((quick, newer), (slow, primary)) } else { ((slow, primary), (quick, newer)) };
        assert!(
            !jobs(engine).fail_split(job, &leaves.1, 1, "no luck", b"").unwrap(),
            "it is not given up for that"
        );
        assert!(current(stays.0, job, &stays.1) && !current(leaves.0, job, &leaves.1));
        assert_eq!(states(engine, job)[1], SplitState::Running);
        // A third may come in its place, with a number of its own.
        let again = beside(third, job, &newer).unwrap();
        assert_eq!(again.attempt, newer.attempt + 1);
        jobs(engine).give_back_splits(job, &[again]).unwrap();
        assert!(current(stays.0, job, &stays.1));
        assert!(jobs(engine).fail_split(job, &stays.1, 1, "nor here", b"").unwrap(), "that was the one try");
        assert_eq!(states(engine, job)[1], SplitState::SetAside);
    }
}

pub fn two_attempts_at_a_split_end_with_their_sessions_and_their_job(engine: &Fixture) {
    let (job, slow, quick, third) = (make(engine, 1), engine.writer(), engine.writer(), engine.writer());
    let primary = claim(engine, slow, job, 1)[0];
    let newer = jobs(engine).claim_speculative(quick, job, 0, primary.attempt).unwrap().unwrap();
    engine.commit(slow, vec![output(job, &primary, "0", 3)]).unwrap();
    // With the newer one's session over the primary has the split alone, though its tries are used
    // up.
    engine.meta.fence(quick).unwrap();
    assert!(jobs(engine).claim_splits(third, job, 1, 1, None).unwrap().claimed.is_empty());
    assert_eq!(states(engine, job), [SplitState::Running]);
    assert!(jobs(engine).is_current(slow, job, &primary).unwrap());
    assert!(!jobs(engine).is_current(quick, job, &newer).unwrap());
    // A third may come in its place; with the primary's session over that one has it alone.
    let last = jobs(engine).claim_speculative(third, job, 0, newer.attempt).unwrap().unwrap();
    assert_eq!(last.attempt, newer.attempt + 1);
    engine.meta.fence(slow).unwrap();
    assert!(claim(engine, engine.writer(), job, 1).is_empty());
    assert!(jobs(engine).is_current(third, job, &last).unwrap());
    assert!(jobs(engine).end_job(job, JobState::Cancelled, "enough").unwrap());
    engine.commit(third, vec![finish(job, &last)]).unwrap();
    assert_eq!(states(engine, job), [SplitState::Waiting]);
    assert!(!jobs(engine).is_current(third, job, &last).unwrap());
    jobs(engine).forget_job(job).unwrap();
}

pub fn the_last_of_two_attempts_to_fail_says_why(engine: &Fixture) {
    let (job, slow, quick) = (make(engine, 1), engine.writer(), engine.writer());
    let primary = claim(engine, slow, job, 1)[0];
    let newer = jobs(engine).claim_speculative(quick, job, 0, primary.attempt).unwrap().unwrap();
    let why = || jobs(engine).split(job, 0).unwrap().unwrap().why;
    // One that reports twice does not stop the other one.
    assert!(!jobs(engine).fail_split(job, &newer, 1, "twice", b"").unwrap());
    assert!(!jobs(engine).fail_split(job, &newer, 1, "twice", b"").unwrap());
    assert!(jobs(engine).is_current(slow, job, &primary).unwrap());
    let newer = jobs(engine).claim_speculative(quick, job, 0, newer.attempt).unwrap().unwrap();
    engine.meta.fence(quick).unwrap();
    assert!(jobs(engine).fail_split(job, &primary, 1, "exit code 3", b"no luck").unwrap());
    assert_eq!((states(engine, job), why()), (vec![SplitState::SetAside], "exit code 3".to_string()));
    assert!(!jobs(engine).is_current(quick, job, &newer).unwrap());
}

pub fn an_open_input_is_closed_once_and_what_was_read_too_early_is_void(engine: &Fixture) {
    let open = || {
        let job = NewJob {
            inputs: vec![JobInput { path: b"raw/\xff".to_vec(), root: root(0) }],
            splits: vec![NewSplit { input: Some(0), from: 0, to: OPEN_END }],
            ..NewJob::default()
        };
        jobs(engine).create_job(&job).unwrap()
    };
    let range = |job| jobs(engine).split(job, 0).unwrap().unwrap().range;
    let (session, first, second) = (engine.writer(), open(), open());
    assert!(range(first).is_open());
    // An attempt that has read the final content stays.
    let claimed = claim(engine, session, first, 1);
    assert!(claimed[0].range.is_open());
    assert!(jobs(engine).close_input(first, &root(7), false).unwrap());
    assert_eq!((range(first).is_open(), range(first).to), (false, root(7).len()));
    assert_eq!(jobs(engine).inputs(first).unwrap()[0].root, root(7));
    assert_eq!(engine.meta.held(&job_holder(first)).unwrap(), [root(7)]);
    assert!(!jobs(engine).close_input(first, &root(8), true).unwrap(), "once");
    assert_eq!(jobs(engine).inputs(first).unwrap()[0].root, root(7));
    engine.commit(session, vec![output(first, &claimed[0], "0", 5), finish(first, &claimed[0])]).unwrap();
    assert_eq!(states(engine, first), [SplitState::Done]);
    engine.commit(session, vec![publish(first)]).unwrap();
    assert_eq!(engine.meta.check().unwrap(), [""; 0]);
    // An attempt that has read a different content is void, even if it had finished; that costs no
    // try.
    for ended in [false, true] {
        let job = if ended { open() } else { second };
        let early = claim(engine, session, job, 1);
        if ended {
            engine.commit(session, vec![output(job, &early[0], "0", 5), finish(job, &early[0])]).unwrap();
        }
        assert!(jobs(engine).close_input(job, &root(9), true).unwrap());
        assert_eq!(states(engine, job), [SplitState::Waiting]);
        engine.commit(session, vec![output(job, &early[0], "0", 6), finish(job, &early[0])]).unwrap();
        assert!(!jobs(engine).fail_split(job, &early[0], 1, "late", b"").unwrap());
        assert_eq!(states(engine, job), [SplitState::Waiting]);
        let again = jobs(engine).claim_splits(session, job, 1, 1, None).unwrap().claimed;
        assert!(again[0].attempt > early[0].attempt + 1 && again[0].range.to == root(9).len());
        assert!(jobs(engine).outputs(job).unwrap().is_empty());
    }
    // A failed job may be closed, so that it can be tried again; a removed one cannot.
    let failed = open();
    jobs(engine).end_job(failed, JobState::Failed, "").unwrap();
    assert!(jobs(engine).close_input(failed, &root(3), false).unwrap());
    assert_eq!(jobs(engine).inputs(failed).unwrap()[0].root, root(3));
    jobs(engine).forget_job(failed).unwrap();
    assert!(!jobs(engine).close_input(failed, &root(3), false).unwrap());
}

pub fn several_open_inputs_are_closed_one_by_one(engine: &Fixture) {
    let open = || {
        let input = |path: &[u8]| JobInput { path: path.to_vec(), root: root(0) };
        let job = NewJob {
            inputs: vec![input(b"a\xff"), input(b"b"), input(b"c")],
            splits: vec![NewSplit { input: None, from: 0, to: OPEN_END }],
            ..NewJob::default()
        };
        jobs(engine).create_job(&job).unwrap()
    };
    let range = |job| jobs(engine).split(job, 0).unwrap().unwrap().range;
    let (session, job) = (engine.writer(), open());
    let claimed = claim(engine, session, job, 1);
    // In any order; the split stays open, with its attempt, until the last input is closed; an
    // empty one counts.
    assert!(jobs(engine).close_one_input(job, 1, &root(7), false, None).unwrap());
    assert!(jobs(engine).close_one_input(job, 2, &root(0), false, None).unwrap());
    assert!(range(job).is_open() && jobs(engine).is_current(session, job, &claimed[0]).unwrap());
    // The attempt has read a different content of this input: it is void, and the split is still
    // open.
    assert!(jobs(engine).close_one_input(job, 0, &root(8), true, None).unwrap());
    assert!(range(job).is_open() && !jobs(engine).is_current(session, job, &claimed[0]).unwrap());
    assert_eq!(states(engine, job), [SplitState::Waiting]);
    let end = root(7).len() + root(8).len();
    assert!(jobs(engine).close_one_input(job, 0, &root(8), false, Some(end)).unwrap());
    assert_eq!((range(job).is_open(), range(job).to), (false, end));
    let roots: Vec<_> = jobs(engine).inputs(job).unwrap().into_iter().map(|input| input.root).collect();
    assert_eq!(roots, [root(8), root(7), root(0)]);
    assert!(!jobs(engine).close_one_input(job, 1, &root(9), true, None).unwrap(), "once all are closed");
    let again = claim(engine, session, job, 1);
    engine.commit(session, vec![output(job, &again[0], "0", 5), finish(job, &again[0])]).unwrap();
    engine.commit(session, vec![publish(job)]).unwrap();
    assert!(!jobs(engine).close_one_input(job, 1, &root(9), true, None).unwrap());
    assert_eq!(engine.meta.check().unwrap(), [""; 0]);
}

pub fn runners_that_claim_at_once_share_the_splits(engine: &Fixture) {
    const SPLITS: u64 = 120;
    let job = make(engine, SPLITS);
    let taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let runner = |_: usize| {
            scope.spawn(move || {
                let meta = engine.another();
                let session = super::writer(&*meta);
                let mut mine = Vec::new();
                loop {
                    let claims = meta.jobs().claim_splits(session, job, 3, 2, None).unwrap();
                    if claims.claimed.is_empty() {
                        return mine;
                    }
                    let changes = claims
                        .claimed
                        .iter()
                        .flat_map(|split| [output(job, split, "0", 9), finish(job, split)]);
                    super::commit(&*meta, session, changes.collect(), 7).unwrap();
                    mine.extend(numbers(&claims.claimed));
                }
            })
        };
        let runners: Vec<_> = (0..4).map(runner).collect();
        runners.into_iter().map(|runner| runner.join().unwrap()).collect()
    });
    let mut all: Vec<u64> = taken.into_iter().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, (0..SPLITS).collect::<Vec<_>>(), "each once");
    assert_eq!(jobs(engine).outputs(job).unwrap().len() as u64, SPLITS);
    // All of them try to publish: one does.
    let published = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let meta = engine.another();
                    super::commit(&*meta, super::writer(&*meta), vec![publish(job)], 7).is_ok()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|done| *done).count()
    });
    assert_eq!(published, 1);
}

pub fn records_are_kept_by_kind_and_name(engine: &Fixture) {
    let records = engine.meta.records();
    assert!(records.records("rule").unwrap().is_empty());
    assert!(records.add_record("rule", "b", "1").unwrap());
    assert!(!records.add_record("rule", "b", "2").unwrap());
    records.set_record("rule", "a", Some("3")).unwrap();
    records.set_record("rule", "a", Some("4")).unwrap();
    records.set_record("other", "a", Some("5")).unwrap();
    let rows = records.records("rule").unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.value.as_str())).collect();
    assert_eq!(rows, [("a", "4"), ("b", "1")]);
    records.set_record("rule", "a", None).unwrap();
    assert_eq!(records.records("rule").unwrap().len(), 1);
    // Changed only by who knows what it is.
    let change = |name, was, to| records.swap_record("rule", name, was, to).unwrap();
    assert!(!change("b", "2", Some("3")) && !change("a", "4", Some("5")) && !change("b", "2", None));
    assert_eq!(records.records("rule").unwrap()[0].value, "1");
    assert!(change("b", "1", Some("3")));
    assert_eq!(records.records("rule").unwrap()[0].value, "3");
    assert!(change("b", "3", None));
    assert!(records.records("rule").unwrap().is_empty());
}

pub fn what_a_rule_has_seen_makes_one_job(engine: &Fixture) {
    let seen = |inode, before: Option<&str>, mark: &str| Seen {
        rule: "r".into(),
        inode,
        before: before.map(Into::into),
        mark: mark.into(),
    };
    let fire = |seen: Seen| jobs(engine).create_job(&NewJob { seen: Some(seen), ..NewJob::default() });
    jobs(engine).see(&[seen(1, None, "a"), seen(2, None, "b")]).unwrap();
    jobs(engine).see(&[seen(1, None, "z"), seen(2, Some("x"), "z"), seen(2, Some("b"), "y")]).unwrap();
    assert_eq!(kind(fire(seen(1, None, "c"))), ErrorKind::Exists);
    assert_eq!(kind(fire(seen(1, Some("x"), "c"))), ErrorKind::Exists);
    fire(seen(1, Some("a"), "c")).unwrap();
    assert_eq!(kind(fire(seen(1, Some("a"), "c"))), ErrorKind::Exists, "another agent was first");
    fire(seen(3, None, "d")).unwrap();
    let mut now: Vec<_> = jobs(engine).seen("r").unwrap().into_iter().collect();
    now.sort();
    assert_eq!(now, [(1, "c".to_string()), (2, "y".to_string()), (3, "d".to_string())]);
    assert_eq!(jobs(engine).jobs(9).unwrap().len(), 2);
    jobs(engine).forget_inodes("other", &[1]).unwrap();
    jobs(engine).forget_inodes("r", &[3, 1, 9]).unwrap();
    assert_eq!(jobs(engine).seen("r").unwrap().into_iter().collect::<Vec<_>>(), [(2, "y".to_string())]);
    jobs(engine).forget_seen("r").unwrap();
    assert!(jobs(engine).seen("r").unwrap().is_empty());
}
