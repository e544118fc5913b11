//! The threads of the simulated device. One computes results in the order of submission. The other
//! returns them when their time has come. Both sleep while they have nothing to do.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use outrigger_clock::Instant;

use super::faults::Wrong;
use super::{Execute, SimControl, Speed};
use crate::accelerator::{Completion, Fault, StageTimes, Submission};
use crate::table::Table;
use crate::work::{Class, Output, Request};

/// A submission, and how its result should be wrong.
struct Queued {
    submission: Submission,
    wrong: Option<Wrong>,
    /// When it was submitted. Its copy begins then if the engine is free.
    at: Instant,
}

/// A result that waits for its time.
struct Timed {
    at: Instant,
    completion: Completion,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Queued>,
    timed: Vec<Timed>,
    ready: Vec<Completion>,
    /// Submissions that the device never answers.
    swallowed: Vec<Submission>,
    /// Raised by each reset. Results of earlier rounds are dropped.
    round: u64,
    ended: bool,
}

/// When each engine has finished its tasks.
#[derive(Clone, Copy)]
struct Engines {
    copy_in: Instant,
    kernel: Instant,
    copy_out: Instant,
}

pub(super) struct Clock {
    speed: Speed,
    time_scale: f64,
    replay: bool,
    control: SimControl,
    state: Mutex<State>,
    /// A submission is queued, or the device ends.
    work: Condvar,
    /// A result is timed, or the device ends.
    time: Condvar,
}

impl Clock {
    pub(super) fn new(
        speed: Speed,
        time_scale: f64,
        replay: bool,
        control: SimControl,
        in_flight: usize,
    ) -> Self {
        let state = State {
            queued: VecDeque::with_capacity(in_flight),
            timed: Vec::with_capacity(in_flight),
            ready: Vec::with_capacity(in_flight),
            ..State::default()
        };
        let (work, time) = (Condvar::new(), Condvar::new());
        Self { speed, time_scale, replay, control, state: Mutex::new(state), work, time }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, submission: Submission, wrong: Option<Wrong>) {
        self.lock().queued.push_back(Queued { submission, wrong, at: Instant::now() });
        self.work.notify_one();
    }

    /// Keeps a task without ever answering.
    pub(super) fn swallow(&self, submission: Submission) {
        self.lock().swallowed.push(submission);
    }

    /// Answers at once with a fault.
    pub(super) fn refuse(&self, submission: Submission, fault: Fault) {
        let completion = Completion { submission, result: Err(fault) };
        self.lock().timed.push(Timed { at: Instant::now(), completion });
        self.time.notify_one();
    }

    pub(super) fn take_ready(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.lock().ready);
    }

    /// Drops all tasks and results.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.round += 1;
        state.queued.clear();
        state.timed.clear();
        state.ready.clear();
        state.swallowed.clear();
    }

    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.work.notify_one();
        self.time.notify_one();
    }

    /// The main loop of the computing thread.
    pub(super) fn compute(&self, execute: &mut dyn Execute) {
        let now = Instant::now();
        let mut engines = Engines { copy_in: now, kernel: now, copy_out: now };
        let (mut known, mut last) = (HashMap::new(), Output::default());
        loop {
            let (queued, round) = {
                let mut state = self.lock();
                loop {
                    if state.ended {
                        return;
                    }
                    if let Some(queued) = state.queued.pop_front() {
                        break (queued, state.round);
                    }
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let timed = self.execute(execute, queued, &mut engines, &mut known, &mut last);
            let mut state = self.lock();
            if state.round == round {
                state.timed.push(timed);
                self.time.notify_one();
            }
        }
    }

    fn execute(
        &self,
        execute: &mut dyn Execute,
        queued: Queued,
        engines: &mut Engines,
        known: &mut HashMap<(Class, usize), Output>,
        last: &mut Output,
    ) -> Timed {
        let Queued { mut submission, wrong, at } = queued;
        let (work, output) = (&submission.work, &mut submission.output);
        let key = (work.class(), work.len_in());
        let done = match known.get(&key) {
            Some(result) if self.replay => {
                copy(result, output);
                Ok(())
            }
            _ => execute.execute(work, output),
        };
        if done.is_ok() && self.replay && !known.contains_key(&key) {
            let mut result = Output::default();
            copy(output, &mut result);
            known.insert(key, result);
        }
        let result = match done {
            Ok(()) if self.control.is_lost() => Err(Fault::Lost("as told".into())),
            other => other,
        };
        let bytes_out = len_out(output);
        let times = self.scaled(self.speed.times_of(work, bytes_out));
        // Each engine takes tasks in order. A task moves to the next engine when the previous one
        // has finished it.
        engines.copy_in = engines.copy_in.max(at) + times.copy_in;
        engines.kernel = engines.kernel.max(engines.copy_in) + times.kernel;
        engines.copy_out = engines.copy_out.max(engines.kernel) + times.copy_out;
        match wrong {
            None => {}
            Some(Wrong::Bit) => spoil(output),
            Some(Wrong::Stale) => std::mem::swap(output, last),
            Some(Wrong::Lie) => lie(&work.request, output),
        }
        if self.control.is_ever_stale() && wrong != Some(Wrong::Stale) {
            copy(output, last);
        }
        Timed { at: engines.copy_out, completion: Completion { submission, result: result.map(|()| times) } }
    }

    fn scaled(&self, times: StageTimes) -> StageTimes {
        let scale = |time: Duration| time.mul_f64(self.time_scale);
        StageTimes {
            copy_in: scale(times.copy_in),
            kernel: scale(times.kernel),
            copy_out: scale(times.copy_out),
        }
    }

    /// The main loop of the thread that returns results.
    pub(super) fn hand_out(&self, waker: &Waker) {
        let mut state = self.lock();
        while !state.ended {
            let now = Instant::now();
            let State { timed, ready, .. } = &mut *state;
            let before = ready.len();
            while let Some(due) = timed.iter().position(|timed| timed.at <= now) {
                ready.push(timed.remove(due).completion);
            }
            if ready.len() > before {
                drop(state);
                waker.wake_by_ref();
                state = self.lock();
                continue;
            }
            let next = timed.iter().map(|timed| timed.at).min();
            state = match next {
                None => self.time.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let wait = self.time.wait_timeout(state, at.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// The bytes that a device would have to copy back.
fn len_out(output: &Output) -> usize {
    size_of_val(&output.candidates[..])
        + size_of_val(&output.fingerprints[..])
        + size_of_val(&output.places[..])
        + size_of_val(&output.chunks[..])
        + size_of_val(&output.counts[..])
        + output.bytes.len()
}

fn copy(from: &Output, to: &mut Output) {
    to.clear();
    to.candidates.extend_from_slice(&from.candidates);
    to.fingerprints.extend_from_slice(&from.fingerprints);
    to.places.extend_from_slice(&from.places);
    to.chunks.extend_from_slice(&from.chunks);
    to.counts.extend_from_slice(&from.counts);
    to.bytes.vector().extend_from_slice(&from.bytes);
    to.codec = from.codec;
}

/// Answers each lookup with the table's answer for another fingerprint.
fn lie(request: &Request, output: &mut Output) {
    let (Request::Ingest { table: Some(table), .. } | Request::Lookup { table, .. }) = request else {
        return;
    };
    let lie = |table: &Table, place: Option<u64>| {
        let other = table.iter().map(|(_, other)| other).find(|other| Some(*other) != place);
        other.or(Some(1 << 24))
    };
    output.chunks.iter_mut().for_each(|chunk| chunk.place = lie(table, chunk.place));
    output.places.iter_mut().for_each(|place| *place = lie(table, *place));
}

/// Flips one bit of the output.
fn spoil(output: &mut Output) {
    if let Some(byte) = output.bytes.as_mut_slice().last_mut() {
        *byte ^= 1;
    } else if let Some(fingerprint) = output.fingerprints.last_mut() {
        fingerprint.0[31] ^= 1;
    } else if let Some(chunk) = output.chunks.last_mut() {
        chunk.fingerprint.0[31] ^= 1;
    } else if let Some(candidate) = output.candidates.last_mut() {
        *candidate ^= 1;
    } else if let Some(place) = output.places.last_mut() {
        *place = Some(place.map_or(0, |place| place ^ 1));
    } else {
        // An empty output becomes wrong by one more element.
        output.candidates.push(1);
        output.bytes.vector().push(1);
        output.fingerprints.push(outrigger_format::Fingerprint([1; 32]));
        output.counts.push(1);
        output.places.push(None);
    }
}
