//! A device that is not there: results by the processor, times by a model, faults on demand.
//!
//! With it, runtime and placement are tested and measured on machines that have no other device. What it models is what
//! the runtime can see: three engines (copy in, kernels, copy out) that work side by side, each on one task at a time, a
//! latency for each launch, and bandwidths ([`Speed`]). Results are computed by a thread of its own with whatever
//! [`Execute`] says (the processor's functions, unless told otherwise) and handed out when the model's clock has come to
//! it, or when they are there, whichever is later: so a modelled device is never faster than what computes its results,
//! unless that may repeat itself ([`SimOptions::replay`]). While it waits it sleeps.
//!
//! [`Faults`] are injected by counting, so that a test meets the same ones each time; [`SimControl`] changes them while
//! it runs.

mod clock;
mod faults;
mod memory;
mod speed;

pub use faults::{Faults, SimControl};
pub use speed::Speed;

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;

use crate::CpuDevice;
use crate::accelerator::{Accelerator, Completion, Fault, Identity, Submission};
use crate::device::HostMemory;
use crate::work::{Class, Output, Work};
use clock::Clock;
use faults::Injected;
use memory::SimMemory;

/// Computes results: on the simulated device's own thread.
pub trait Execute: Send {
    /// Does the work, as a device would.
    ///
    /// # Errors
    /// [`Fault`], also for data that is no good.
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault>;
}

/// By the processor's functions.
struct ByProcessor(CpuDevice);

impl Execute for ByProcessor {
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault> {
        work.run_on(&mut self.0, output).map_err(|error| Fault::Failed(error.to_string().into()))
    }
}

/// Whether it does this.
pub type Supports = Arc<dyn Fn(Class) -> bool + Send + Sync>;

/// What is simulated.
pub struct SimOptions {
    /// Its name, `sim:0`.
    pub name: String,
    /// How fast it is.
    pub speed: Speed,
    /// All modelled times are multiplied by this: so that short ones can be told from the machine's own.
    pub time_scale: f64,
    /// Tasks in flight.
    pub in_flight: usize,
    /// Which classes of work it does.
    pub supports: Supports,
    /// What computes its results; the processor's functions without it.
    pub execute: Option<Box<dyn Execute>>,
    /// Computes the result of a class and length of data only the first time, and hands that out for all later ones.
    /// They are right only if the data is always the same: for benchmarks of runtime and placement alone.
    pub replay: bool,
    /// What goes wrong.
    pub faults: Faults,
}

impl SimOptions {
    /// A healthy device of this speed that does everything.
    pub fn new(name: impl Into<String>, speed: Speed) -> Self {
        Self {
            name: name.into(),
            speed,
            time_scale: 1.0,
            in_flight: 4,
            supports: Arc::new(|_| true),
            execute: None,
            replay: false,
            faults: Faults::default(),
        }
    }
}

/// The simulated device.
///
/// ```
/// use outrigger_format::FingerprintKind::Blake3;
/// use outrigger_offload::runtime::Runtime;
/// use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
/// let sim = SimDevice::new(SimOptions::new("sim:0", Speed::INTEGRATED));
/// let runtime = Runtime::builder().cpu_threads(1).device(Box::new(sim)).build();
/// let mut draft = runtime.draft(5000);
/// draft.input().extend_from_slice(&[7; 5000]);
/// draft.hash_many(Blake3, [0..5000]).pin(1);
/// let done = runtime.submit(draft)?.wait()?;
/// assert_eq!(done.report().device, 1);
/// assert_eq!(done.output().fingerprints, [outrigger_offload::hash(Blake3, &[7; 5000])]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct SimDevice {
    identity: Identity,
    in_flight: usize,
    supports: Supports,
    control: SimControl,
    memory: Option<Arc<SimMemory>>,
    clock: Arc<Clock>,
    threads: Vec<JoinHandle<()>>,
    /// For the thread that computes, until it is started.
    execute: Option<Box<dyn Execute>>,
}

impl SimDevice {
    /// A device that has not been attached.
    ///
    /// # Panics
    /// When `time_scale` is not a positive number or `in_flight` is 0.
    pub fn new(options: SimOptions) -> Self {
        let SimOptions { name, speed, time_scale, in_flight, supports, execute, replay, faults } = options;
        assert!(time_scale > 0.0 && time_scale.is_finite(), "times are multiplied by a positive number");
        assert!(in_flight > 0, "a device has room for a task");
        let identity = Identity {
            name,
            model: format!("simulated {}", speed.name),
            driver: format!("time x {time_scale}"),
            memory_bytes: speed.memory_bytes,
            zero_copy: speed.zero_copy,
        };
        let control = SimControl::new(faults);
        let memory = (!speed.zero_copy).then(|| Arc::new(SimMemory::new(speed, time_scale)));
        let clock = Arc::new(Clock::new(speed, time_scale, replay, control.clone(), in_flight));
        let execute = execute.unwrap_or_else(|| Box::new(ByProcessor(CpuDevice::new())));
        Self {
            identity,
            in_flight,
            supports,
            control,
            memory,
            clock,
            threads: Vec::new(),
            execute: Some(execute),
        }
    }

    /// To change what goes wrong while it works, and to see what did.
    pub fn control(&self) -> SimControl {
        self.control.clone()
    }
}

impl Accelerator for SimDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        self.in_flight
    }

    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        self.memory.clone().map(|memory| memory as Arc<dyn HostMemory>)
    }

    fn attach(&mut self, waker: Waker) -> Result<(), Fault> {
        let (compute, hand_out) = (Arc::clone(&self.clock), Arc::clone(&self.clock));
        if let Some(mut execute) = self.execute.take() {
            self.threads.push(std::thread::spawn(move || compute.compute(&mut *execute)));
            self.threads.push(std::thread::spawn(move || hand_out.hand_out(&waker)));
        }
        self.probe()
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        let supports = Arc::clone(&self.supports);
        Arc::new(move |work| supports(work.class()))
    }

    fn submit(&mut self, submission: Submission) {
        match self.control.inject() {
            Injected::Nothing => self.clock.submit(submission, None),
            Injected::Wrong(how) => self.clock.submit(submission, Some(how)),
            Injected::Hang => self.clock.swallow(submission),
            Injected::Fault(fault) => self.clock.refuse(submission, fault),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.clock.take_ready(done);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        if self.control.is_lost() { Err(Fault::Lost("as told".into())) } else { Ok(()) }
    }

    fn reset(&mut self) -> Result<(), Fault> {
        self.clock.forget();
        self.control.reset()
    }
}

impl Drop for SimDevice {
    fn drop(&mut self) {
        self.clock.end();
        for thread in self.threads.drain(..) {
            // A user's function that panicked has ended it; its tasks have gone elsewhere.
            let _ = thread.join();
        }
    }
}
