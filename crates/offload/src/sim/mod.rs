//! A simulated device: results by the processor, times by a model, faults on demand.
//!
//! With it, runtime and placement are tested and measured on machines without any device. It models
//! what the runtime can see: three engines (copy in, kernels, copy out), a latency for each launch,
//! and bandwidths ([`Speed`]). The engines run in parallel, each on one task at a time. A separate
//! thread computes the results by an [`Execute`], which is the processor unless the options name
//! another. A result is returned once it exists and its modelled time has come. So the device is
//! never faster than the computation, unless that may repeat its results ([`SimOptions::replay`]).
//! While it waits, it sleeps.
//!
//! [`Faults`] are injected by counting, so that a test meets the same ones each time.
//! [`SimControl`] changes them at run time.

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

/// Computes results on the simulated device's own thread.
pub trait Execute: Send {
    /// Executes the work as a device would.
    ///
    /// # Errors
    /// [`Fault`], also for bad data.
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault>;
}

/// Computes by the processor's functions.
struct ByProcessor(CpuDevice);

impl Execute for ByProcessor {
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault> {
        work.run_on(&mut self.0, output).map_err(|error| Fault::Failed(error.to_string().into()))
    }
}

/// Says whether the device supports a class of work.
pub type Supports = Arc<dyn Fn(Class) -> bool + Send + Sync>;

/// Options of a simulated device.
pub struct SimOptions {
    /// Its name, `sim:0`.
    pub name: String,
    /// Its speed.
    pub speed: Speed,
    /// The factor of all modelled times. A large one distinguishes short times from those of the
    /// machine itself.
    pub time_scale: f64,
    /// Tasks in flight.
    pub in_flight: usize,
    /// The classes of work that it supports.
    pub supports: Supports,
    /// Computes its results. The default is the processor.
    pub execute: Option<Box<dyn Execute>>,
    /// Computes the result of a class and length of data only once, and repeats it for all later
    /// tasks. It is right only if the data is always the same. For benchmarks of runtime and
    /// placement only.
    pub replay: bool,
    /// Its faults.
    pub faults: Faults,
}

impl SimOptions {
    /// A healthy device of this speed that supports everything.
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
    /// For the computing thread, until it is started.
    execute: Option<Box<dyn Execute>>,
}

impl SimDevice {
    /// A device that is not attached yet.
    ///
    /// # Panics
    /// If `time_scale` is not a positive number or `in_flight` is 0.
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

    /// A handle that changes and counts faults while the device runs.
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
            // The thread has ended if a user's function panicked in it. The runtime has moved its
            // tasks elsewhere.
            let _ = thread.join();
        }
    }
}
