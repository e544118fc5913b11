//! Chooses the device of a task, from measurements and from a policy with named thresholds.
//!
//! ```text
//!   class, bytes ──▶ may it leave the processor? ([`Policy`])
//!                ──▶ how long would each device take? ([`Model`]: calibrated, corrected by every task)
//!                ──▶ when would each be finished, given its queue? ([`choose`])
//! ```
//!
//! Measurements are saved in a file ([`Calibration`]) under each device's identity. If a device has
//! no measurement for a decade of sizes, it gets a few tasks to measure ([`Policy::first_tasks`]).
//! Later, one task in [`Policy::explore_every`] goes to the second-best device, unless that is far
//! slower, so that changes are noticed.

mod cache;
mod choose;
mod equation;
mod model;
mod policy;

pub use cache::{Calibration, default_path};
pub use choose::{Candidate, choose};
pub use equation::{EquationOne, Line, break_even};
pub use model::{Curve, DECADES, Point, Stages, decade};
pub use policy::{Objective, Policy, PolicyError};

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::work::Class;
use crate::work::split::is_usually_worth_it;

/// The most devices of a model, with the processor: eight GPUs that hash, the same eight as they
/// compress, and cards.
pub const LANES_MAX: usize = 24;

/// The known speeds of all devices. The first is the processor.
#[derive(Debug)]
pub struct Model {
    /// The identities' keys.
    lanes: Vec<String>,
    /// The key of all the processor's threads together, which share a large task.
    together: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    classes: HashMap<Class, Known>,
    /// From the file. An entry is parsed when its class is first needed, as the file has it by
    /// name.
    saved: Calibration,
}

#[derive(Debug)]
struct Known {
    curves: Vec<Curve>,
    /// The time of all the processor's threads together for a single task.
    together: Curve,
    /// How long tasks were away, by device and decade.
    trips: Vec<[Trip; DECADES]>,
    /// Tasks placed, by decade.
    placed: [u32; DECADES],
}

/// The model's answer for a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// Each device's time. `None` if it cannot do the task or was never measured.
    pub predicted: [Option<Stages>; LANES_MAX],
    /// The time of all the processor's threads together, in nanoseconds. `None` if they do not
    /// share such a task, or it was never measured.
    pub together: Option<f64>,
    /// Says if this task should serve as a measurement.
    pub explore: Explore,
}

/// How long recent tasks took from submission to return, and how many other tasks the device had. A
/// device that works in batches returns no task before the whole batch is done, which stage times
/// do not show.
#[derive(Clone, Copy, Debug, Default)]
struct Trip {
    ns: f64,
    bytes: f64,
    before: f64,
    /// Tasks that came back, and tasks that were considered for a trial.
    seen: u32,
    tried: u32,
}

/// Where a task goes: to the best device, or elsewhere as a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Explore {
    /// It goes to the best device.
    No,
    /// It goes to this device, which has not been measured.
    First(usize),
    /// It goes to the second-best device, unless that is far slower.
    SecondBest,
}

impl Known {
    fn together(&self, class: Class, bytes: usize) -> Option<f64> {
        let shared = is_usually_worth_it(class, bytes);
        self.together.predict(bytes).filter(|_| shared).map(|stages| stages.latency())
    }
}

impl Model {
    /// A model for devices of these identities. It takes over what `saved` knows of them.
    ///
    /// # Panics
    /// If there are more than [`LANES_MAX`] devices.
    pub fn new(lanes: Vec<String>, saved: Calibration) -> Self {
        Self::with_threads(lanes, 1, saved)
    }

    /// Like [`Model::new`], for a processor with so many threads.
    ///
    /// # Panics
    /// If there are more than [`LANES_MAX`] devices.
    pub fn with_threads(lanes: Vec<String>, threads: usize, saved: Calibration) -> Self {
        assert!(lanes.len() <= LANES_MAX, "a model has room for {LANES_MAX} devices");
        let together = format!("{} | {threads} threads", lanes.first().map_or("", String::as_str));
        Self { lanes, together, state: Mutex::new(State { classes: HashMap::new(), saved }) }
    }

    /// The predictions for a task on the devices for which `eligible` returns true. Counts the task
    /// as placed. Allocates only for a new class.
    pub fn advise(
        &self,
        policy: &Policy,
        class: Class,
        bytes: usize,
        eligible: impl Fn(usize) -> bool,
    ) -> Advice {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known(&mut state, class);
        let mut predicted = [None; LANES_MAX];
        for (lane, curve) in known.curves.iter().enumerate().filter(|(lane, _)| eligible(*lane)) {
            predicted[lane] = curve.predict(bytes);
        }
        let decade = decade(bytes);
        let best = predicted.iter().flatten().map(Stages::latency).fold(f64::INFINITY, f64::min);
        // Points of other decades may already show that a trial is not worth it.
        let promising = |stages: Option<Stages>| {
            stages.is_none_or(|stages| stages.latency() <= best * policy.explore_worst * 2.0)
        };
        let untried = (0..known.curves.len()).find(|&lane| {
            eligible(lane)
                && known.curves[lane].samples(bytes) < policy.first_tasks
                && known.curves[lane].trials[decade] < policy.first_tasks
                && (known.curves[lane].samples(bytes) > 0 || promising(predicted[lane]))
        });
        let placed = &mut known.placed[decade];
        *placed = placed.wrapping_add(1);
        let explore = match untried {
            Some(lane) => {
                known.curves[lane].trials[decade] += 1;
                Explore::First(lane)
            }
            None if policy.explore_every > 0 && placed.is_multiple_of(policy.explore_every) => {
                Explore::SecondBest
            }
            None => Explore::No,
        };
        Advice { predicted, together: known.together(class, bytes), explore }
    }

    /// The predicted time of a device, or of one thread of the processor. Counts nothing.
    pub fn predict(&self, lane: usize, class: Class, bytes: usize) -> Option<Stages> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane].predict(bytes)
    }

    /// The predicted time of all the processor's threads together for a single task, in
    /// nanoseconds. `None` if one thread does such a task alone, or it was never measured.
    pub fn predict_together(&self, class: Class, bytes: usize) -> Option<f64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).together(class, bytes)
    }

    /// Records the time of all the processor's threads together for a single task.
    pub fn observe_together(&self, class: Class, bytes: usize, ns: f64, learn: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = Stages { work: ns, ..Stages::default() };
        self.known(&mut state, class).together.observe(bytes, measured, learn);
    }

    /// Records how long a task took to return, from a device that had `before` other tasks when it
    /// was submitted.
    pub fn returned(&self, lane: usize, class: Class, bytes: usize, ns: f64, before: usize, learn: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let trip = &mut self.known(&mut state, class).trips[lane][decade(bytes)];
        // The first one warms up, so the second replaces it.
        let weight = if trip.seen < 2 { 1.0 } else { learn };
        for (old, new) in
            [(&mut trip.ns, ns), (&mut trip.bytes, bytes as f64), (&mut trip.before, before as f64)]
        {
            *old += (new - *old) * weight;
        }
        trip.seen = trip.seen.saturating_add(1);
    }

    /// The nanoseconds until a device with `before` other tasks returns a new one. `None` while too
    /// few have come back.
    pub fn expect(
        &self,
        policy: &Policy,
        lane: usize,
        class: Class,
        bytes: usize,
        before: usize,
    ) -> Option<f64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.known(&mut state, class);
        let trip = known.trips[lane][decade(bytes)];
        if trip.seen < policy.first_tasks.max(1) {
            return None;
        }
        let larger = (bytes as f64 / trip.bytes.max(1.0)).max(1.0);
        let more = ((before as f64 + 1.0) / (trip.before + 1.0)).max(1.0);
        let alone = known.curves[lane].predict(bytes).map_or(0.0, |stages| stages.latency());
        Some((trip.ns * larger * more).max(alone))
    }

    /// True if a device should get a copy of a task of the processor, so that its time becomes
    /// known. The first few calls return true, and later one in [`Policy::explore_every`].
    pub fn is_to_be_tried(&self, policy: &Policy, lane: usize, class: Class, bytes: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let trip = &mut self.known(&mut state, class).trips[lane][decade(bytes)];
        trip.tried = trip.tried.wrapping_add(1);
        trip.tried <= policy.first_tasks
            || policy.explore_every > 0 && trip.tried.is_multiple_of(policy.explore_every)
    }

    /// Replaces the point of all the processor's threads by a careful measurement.
    pub fn put_together(&self, class: Class, point: Point) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).together.set(point);
    }

    /// Records a measurement. Without an overhead, the expected overhead stays: the device also had
    /// other tasks, so overhead and waiting could not be distinguished.
    pub fn observe(
        &self,
        lane: usize,
        class: Class,
        bytes: usize,
        measured: Stages,
        overhead_known: bool,
        learn: f64,
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let curve = &mut self.known(&mut state, class).curves[lane];
        let mut measured = measured;
        if !overhead_known {
            measured.overhead = curve.predict(bytes).map_or(0.0, |stages| stages.overhead);
        }
        curve.observe(bytes, measured, learn);
    }

    /// Replaces the point of its decade by a careful measurement.
    pub fn put(&self, lane: usize, class: Class, point: Point) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane].set(point);
    }

    /// A device's measurements for a class.
    pub fn curve(&self, lane: usize, class: Class) -> Curve {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane]
    }

    /// Records how far a prediction of a whole task, with its waiting, was off.
    pub fn judge(
        &self,
        lane: usize,
        class: Class,
        bytes: usize,
        predicted_ns: f64,
        actual_ns: f64,
        learn: f64,
    ) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane].judge(bytes, predicted_ns, actual_ns, learn);
    }

    /// All measurements, to be saved.
    pub fn calibration(&self) -> Calibration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = state.saved.clone();
        for (class, known) in &state.classes {
            for (lane, curve) in known.curves.iter().enumerate() {
                all.put(&self.lanes[lane], &class.to_string(), *curve);
            }
            all.put(&self.together, &class.to_string(), known.together);
        }
        all
    }

    fn known<'a>(&self, state: &'a mut State, class: Class) -> &'a mut Known {
        let State { classes, saved } = state;
        classes.entry(class).or_insert_with(|| {
            let name = class.to_string();
            // A lookup adds little time, so the class without lookups is a first estimate.
            let without = match class {
                Class::Ingest(chunker, kind, true) => Class::Ingest(chunker, kind, false).to_string(),
                _ => name.clone(),
            };
            let curve = |lane: &String| {
                saved.get(lane, &name).or_else(|| saved.get(lane, &without)).unwrap_or_default()
            };
            Known {
                curves: self.lanes.iter().map(curve).collect(),
                together: curve(&self.together),
                trips: vec![Default::default(); self.lanes.len()],
                placed: [0; DECADES],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model::new(vec!["cpu".into(), "device".into()], Calibration::default())
    }

    fn work(work: f64) -> Stages {
        Stages { work, ..Stages::default() }
    }

    #[test]
    fn what_was_never_measured_is_measured_first_and_only_so_often() {
        let (model, policy) = (model(), Policy::default());
        let ask = || model.advise(&policy, Class::Scan, 50_000, |_| true).explore;
        let asked: Vec<Explore> = (0..6).map(|_| ask()).collect();
        let [cpu, device] = [Explore::First(0), Explore::First(1)];
        // No answer has come yet; more tasks are not risked.
        assert_eq!(asked, [cpu, cpu, device, device, Explore::No, Explore::No]);
        for _ in 0..2 {
            model.observe(0, Class::Scan, 50_000, work(1000.0), true, 0.2);
            model.observe(1, Class::Scan, 50_000, work(100_000.0), true, 0.2);
        }
        // The next decade looks hopeless on the device, so it is not tried.
        let next = model.advise(&policy, Class::Scan, 500_000, |_| true);
        assert_eq!(next.explore, cpu);
        (0..2).for_each(|_| model.observe(0, Class::Scan, 500_000, work(10_000.0), true, 0.2));
        assert_eq!(model.advise(&policy, Class::Scan, 500_000, |_| true).explore, Explore::No);
        // A device gets no trial of a task that it cannot do.
        let only_cpu = model.advise(&policy, Class::Scan, 50_000, |lane| lane == 0);
        assert_eq!((only_cpu.predicted[1], only_cpu.explore), (None, Explore::No));
    }

    #[test]
    fn the_second_best_is_looked_at_as_rarely_as_promised() {
        let (model, policy) = (model(), Policy::default());
        for lane in [0, 1, 0, 1] {
            model.observe(lane, Class::Scan, 50_000, work(1000.0), true, 0.2);
        }
        let explored = (0..10_000)
            .filter(|_| model.advise(&policy, Class::Scan, 50_000, |_| true).explore == Explore::SecondBest)
            .count();
        assert_eq!(explored, 10_000 / 256);
        let never = Policy { explore_every: 0, ..policy };
        assert!(
            (0..1000).all(|_| model.advise(&never, Class::Scan, 50_000, |_| true).explore == Explore::No)
        );
    }

    #[test]
    fn all_threads_are_measured_beside_one_and_only_for_what_they_share() {
        let model = Model::with_threads(vec!["cpu".into()], 8, Calibration::default());
        model.observe(0, Class::Scan, 4 << 20, work(8000.0), true, 0.2);
        assert_eq!(model.predict_together(Class::Scan, 4 << 20), None);
        model.observe_together(Class::Scan, 4 << 20, 1500.0, 0.2);
        assert_eq!(model.predict_together(Class::Scan, 4 << 20), Some(1500.0));
        assert_eq!(model.predict_together(Class::Scan, 4096), None, "that is one thread's");
        assert_eq!(model.predict(0, Class::Scan, 4 << 20), Some(work(8000.0)));
        let again = Model::with_threads(vec!["cpu".into()], 8, model.calibration());
        assert_eq!(again.predict_together(Class::Scan, 4 << 20), Some(1500.0));
        let fewer = Model::with_threads(vec!["cpu".into()], 2, model.calibration());
        assert_eq!(fewer.predict_together(Class::Scan, 4 << 20), None);
    }

    #[test]
    fn a_task_is_expected_back_as_late_as_those_before_it_with_as_many_others() {
        let (model, policy) = (model(), Policy::default());
        let expect = |bytes, before| model.expect(&policy, 1, Class::Scan, bytes, before);
        model.returned(1, Class::Scan, 50_000, 9000.0, 0, 0.2);
        assert_eq!(expect(50_000, 0), None, "the first warms up");
        model.returned(1, Class::Scan, 50_000, 4000.0, 1, 0.2);
        assert_eq!(expect(50_000, 0), Some(4000.0), "a batch takes as long with fewer");
        assert_eq!((expect(50_000, 3), expect(25_000, 1)), (Some(8000.0), Some(4000.0)));
        assert_eq!(expect(100_000, 1), None, "another decade");
        assert_eq!(expect(99_000, 1), Some(7920.0));
        model.observe(1, Class::Scan, 50_000, work(6000.0), true, 0.2);
        assert_eq!(expect(50_000, 0), Some(6000.0), "never before it could be");
        let tried = (0..512).filter(|_| model.is_to_be_tried(&policy, 1, Class::Scan, 50_000)).count();
        assert_eq!(tried, 4);
    }

    #[test]
    fn what_was_learned_survives_in_the_calibration() {
        let model = model();
        model.observe(1, Class::Scan, 50_000, work(1234.0), true, 0.2);
        let again = Model::new(vec!["other".into(), "device".into()], model.calibration());
        assert_eq!(again.predict(1, Class::Scan, 50_000), Some(work(1234.0)));
        assert_eq!(again.predict(0, Class::Scan, 50_000), None);
        // Another machine's devices are kept.
        assert!(again.calibration().get("device", "scan").is_some());
    }
}
