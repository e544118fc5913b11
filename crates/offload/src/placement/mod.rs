//! Where a task is done: by measurement, and by a policy whose thresholds have names.
//!
//! ```text
//!   class, bytes ──▶ may it leave the processor? ([`Policy`])
//!                ──▶ how long would each device take? ([`Model`]: calibrated, corrected by every task)
//!                ──▶ when would each be finished, given its queue? ([`choose`])
//! ```
//!
//! What was measured is kept in a file ([`Calibration`]) under each device's identity. A size decade that was never
//! measured on a device gets a few tasks to measure ([`Policy::first_tasks`]); later, one task in
//! [`Policy::explore_every`] goes to the second best, if that is not too bad, so that what has changed is noticed.

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

/// Devices that a model has room for, the processor included: eight GPUs that hash, the same eight as they compress, and cards.
pub const LANES_MAX: usize = 24;

/// What is known of all devices' speeds. The first is the processor.
#[derive(Debug)]
pub struct Model {
    /// The identities' keys.
    lanes: Vec<String>,
    /// That of all threads of the processor, which do a large task together.
    together: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    classes: HashMap<Class, Known>,
    /// From the file: read when a class is first asked for, since there it stands by its name.
    saved: Calibration,
}

#[derive(Debug)]
struct Known {
    curves: Vec<Curve>,
    /// How long all threads of the processor take together for a task that is alone.
    together: Curve,
    /// How long tasks were away, by device and decade.
    trips: Vec<[Trip; DECADES]>,
    /// Tasks placed, by decade.
    placed: [u32; DECADES],
}

/// What a model says of a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// How long each device would take; `None` if it cannot do it or was never measured.
    pub predicted: [Option<Stages>; LANES_MAX],
    /// How long all of the processor's threads would take together, in nanoseconds; `None` where they do not share such a task, or it was never measured.
    pub together: Option<f64>,
    /// Whether this task is to be a measurement.
    pub explore: Explore,
}

/// How long tasks were away lately, from submission to end, and how many others the device had. A device that works in batches
/// answers for no task before the whole batch is done, which stage times do not show.
#[derive(Clone, Copy, Debug, Default)]
struct Trip {
    ns: f64,
    bytes: f64,
    before: f64,
    /// Tasks that came back, and that were sent to find out.
    seen: u32,
    tried: u32,
}

/// Whether a task goes where it is best done, or where that is not known well enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Explore {
    /// Where it is best done.
    No,
    /// To this device, which has not been measured.
    First(usize),
    /// To the second best, if that is not too bad.
    SecondBest,
}

impl Known {
    fn together(&self, class: Class, bytes: usize) -> Option<f64> {
        let shared = is_usually_worth_it(class, bytes);
        self.together.predict(bytes).filter(|_| shared).map(|stages| stages.latency())
    }
}

impl Model {
    /// For devices of these identities; what `saved` knows of them is taken over.
    ///
    /// # Panics
    /// When there are more than [`LANES_MAX`].
    pub fn new(lanes: Vec<String>, saved: Calibration) -> Self {
        Self::with_threads(lanes, 1, saved)
    }

    /// The same for a processor with so many threads.
    ///
    /// # Panics
    /// When there are more than [`LANES_MAX`].
    pub fn with_threads(lanes: Vec<String>, threads: usize, saved: Calibration) -> Self {
        assert!(lanes.len() <= LANES_MAX, "a model has room for {LANES_MAX} devices");
        let together = format!("{} | {threads} threads", lanes.first().map_or("", String::as_str));
        Self { lanes, together, state: Mutex::new(State { classes: HashMap::new(), saved }) }
    }

    /// What is known for a task, on the devices for which `eligible` says true. Counts the task as placed; allocates only
    /// when the class is new.
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
        // Points of other decades may already show that this one is not worth a try.
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

    /// What a device, or one thread of the processor, is predicted to take; counts nothing.
    pub fn predict(&self, lane: usize, class: Class, bytes: usize) -> Option<Stages> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane].predict(bytes)
    }

    /// What all threads of the processor are predicted to take together for a task that is alone, in nanoseconds; `None` where it is one thread's, or was never measured.
    pub fn predict_together(&self, class: Class, bytes: usize) -> Option<f64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).together(class, bytes)
    }

    /// All threads of the processor took so long for a task that was alone.
    pub fn observe_together(&self, class: Class, bytes: usize, ns: f64, learn: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = Stages { work: ns, ..Stages::default() };
        self.known(&mut state, class).together.observe(bytes, measured, learn);
    }

    /// A task is back after so long, of a device that had `before` others when it was submitted.
    pub fn returned(&self, lane: usize, class: Class, bytes: usize, ns: f64, before: usize, learn: f64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let trip = &mut self.known(&mut state, class).trips[lane][decade(bytes)];
        // The first warms up: the second replaces it.
        let weight = if trip.seen < 2 { 1.0 } else { learn };
        for (old, new) in
            [(&mut trip.ns, ns), (&mut trip.bytes, bytes as f64), (&mut trip.before, before as f64)]
        {
            *old += (new - *old) * weight;
        }
        trip.seen = trip.seen.saturating_add(1);
    }

    /// The nanoseconds after which a task is expected back from a device that has `before` others; `None` while too few have come back.
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

    /// Whether a device should get a copy of a task that the processor does, so that its time is known: it gets the first few, and a few later ones.
    pub fn is_to_be_tried(&self, policy: &Policy, lane: usize, class: Class, bytes: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let trip = &mut self.known(&mut state, class).trips[lane][decade(bytes)];
        trip.tried = trip.tried.wrapping_add(1);
        trip.tried <= policy.first_tasks
            || policy.explore_every > 0 && trip.tried.is_multiple_of(policy.explore_every)
    }

    /// Puts a carefully measured time of all threads of the processor in place of what was known of its decade.
    pub fn put_together(&self, class: Class, point: Point) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).together.set(point);
    }

    /// Takes over a measurement. Without an overhead (the device was busy with other tasks too, so that it cannot be
    /// told from waiting), the one that was expected stays.
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

    /// Puts a carefully measured point in place of what was known of its decade.
    pub fn put(&self, lane: usize, class: Class, point: Point) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane].set(point);
    }

    /// What is known of a class on a device.
    pub fn curve(&self, lane: usize, class: Class) -> Curve {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.known(&mut state, class).curves[lane]
    }

    /// Takes note of how a prediction of a whole task, its waiting included, turned out.
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

    /// Everything that is known by now, to be saved.
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
            // Looking up adds little: until it was measured, what is known without is a beginning.
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
        // The next decade looks hopeless on the device: it is not even tried.
        let next = model.advise(&policy, Class::Scan, 500_000, |_| true);
        assert_eq!(next.explore, cpu);
        (0..2).for_each(|_| model.observe(0, Class::Scan, 500_000, work(10_000.0), true, 0.2));
        assert_eq!(model.advise(&policy, Class::Scan, 500_000, |_| true).explore, Explore::No);
        // What it cannot do is not asked of it.
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
        // And what another machine's devices were is kept.
        assert!(again.calibration().get("device", "scan").is_some());
    }
}
