//! `cuda:N`: a GPU with several tasks in flight, each on its own stream.
//!
//! ```text
//! submit   an idle stream gets the task: copy in, kernels, copy out are queued        (driver/stream.rs, plan/)
//! poll     streams that are done have their result read; some need one more step
//! ```
//!
//! A [`Flight`] holds a task's input and output until the stream no longer uses them, even if the
//! device fails. If a stream meets an error that broke the context, the tasks of all streams are
//! lost.
//!
//! `flight.rs` runs a task on a stream, `blocking.rs` runs one and waits, and `bandwidth.rs`
//! measures copies.

mod bandwidth;
mod blocking;
mod flight;

pub use bandwidth::CopyBandwidth;
pub use blocking::CudaTable;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use super::driver::{self, Context, DeviceMemory, Options, Registered, Stream};
use super::lane::Address;
use super::plan::{self, Data, Job, Step};
use super::sync;
use super::tables::Tables;
use crate::accelerator::{Accelerator, Completion, Fault, Identity, StageTimes, Submission};
use crate::device::{HostMemory, HostRegion};
use crate::work::Work;
use crate::{Device, Operation, Task, TaskError};
use flight::{Flight, Slot, finish, start};

/// Options of a device. Others than the default serve to measure its benefit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// Tasks in flight, each on a separate stream. With 1, nothing overlaps.
    pub streams: usize,
    /// Kernels stage data through shared memory. `None`: if that is faster on the device.
    pub staged: Option<bool>,
    /// Device memory and page-locked memory are kept from task to task.
    pub reuse: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { streams: 4, staged: None, reuse: true }
    }
}

/// A GPU.
///
/// ```no_run
/// use outrigger_offload::cuda::CudaDevice;
/// use outrigger_offload::{Device, Task, op};
/// let mut device = CudaDevice::open(0)?;
/// let mut out = Vec::new();
/// let task = op::PmdHash { digest: op::Digest::Md5, data: &[7; 1 << 20], out: &mut out };
/// device.run(&mut Task::PmdHash(task))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CudaDevice {
    identity: Identity,
    ordinal: usize,
    options: CudaOptions,
    state: Option<State>,
    done: Vec<Completion>,
    memory: Arc<PageLocked>,
}

/// The state that a reset replaces. Streams are dropped first, as they wait for their work.
struct State {
    slots: Vec<Slot>,
    tables: Tables,
    context: Arc<Context>,
}

impl CudaDevice {
    /// Opens device `ordinal`, with a context, the kernels and streams. Takes some time.
    ///
    /// # Errors
    /// [`Fault::Lost`] with the reason if there is no such device; [`Fault::OutOfMemory`].
    pub fn open(ordinal: usize) -> Result<Self, Fault> {
        Self::open_with(ordinal, CudaOptions::default())
    }

    /// Like [`CudaDevice::open`], with other options.
    ///
    /// # Errors
    /// Like [`CudaDevice::open`].
    pub fn open_with(ordinal: usize, options: CudaOptions) -> Result<Self, Fault> {
        let identity = Context::identity(ordinal)?;
        let memory = Arc::new(PageLocked(Mutex::new(Weak::new())));
        let mut device = Self { identity, ordinal, options, state: None, done: Vec::new(), memory };
        device.begin()?;
        Ok(device)
    }

    fn begin(&mut self) -> Result<(), Fault> {
        let context = Context::new(self.ordinal)?;
        let constants: Arc<DeviceMemory> = Arc::new(context.constants()?);
        let staged = self.options.staged.unwrap_or(context.stages()?);
        let options = Options { staged, reuse: self.options.reuse };
        let slot = |_| Ok(Slot { stream: Stream::new(&context, &constants, options)?, flight: None });
        let slots = (0..self.options.streams.max(1)).map(slot).collect::<Result<_, Fault>>()?;
        *self.memory.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&context);
        self.state = Some(State { slots, tables: Tables::default(), context });
        Ok(())
    }

    /// Reports everything in flight as lost.
    fn lose(&mut self, fault: &Fault) {
        let Some(state) = &mut self.state else { return };
        for slot in &mut state.slots {
            if let Some(flight) = slot.flight.take() {
                // Makes sure that nothing is in flight on a broken context.
                let _ = slot.stream.wait();
                let result = Err(fault.clone());
                self.done.push(Completion { submission: flight.submission, result });
            }
        }
    }
}

impl State {
    /// Queues a task on a stream. If that fails, nothing of the task stays in flight, and it
    /// completes with the fault.
    fn launch(
        &mut self,
        slot: usize,
        submission: Submission,
        done: &mut Vec<Completion>,
    ) -> Result<(), Fault> {
        let stream = &mut self.slots[slot].stream;
        let mut flight = Flight {
            submission,
            data: Data { at: Address::NONE, len: 0 },
            table: None,
            step: Step::default(),
            to_buffer: false,
        };
        let started = start(stream, &mut self.tables, &self.context, &mut flight);
        let Err(fault) = started else {
            self.slots[slot].flight = Some(flight);
            return Ok(());
        };
        let fault = stream.wait().err().unwrap_or(fault);
        done.push(Completion { submission: flight.submission, result: Err(fault.clone()) });
        Err(fault)
    }
}

impl Accelerator for CudaDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn in_flight_max(&self) -> usize {
        self.options.streams.max(1)
    }

    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        Some(self.memory.clone())
    }

    fn attach(&mut self, _waker: Waker) -> Result<(), Fault> {
        self.probe()
    }

    fn poll_interval(&self) -> Option<Duration> {
        // A small task takes about as long.
        Some(Duration::from_micros(20))
    }

    fn capabilities(&self) -> Arc<dyn Fn(&Work) -> bool + Send + Sync> {
        // The device memory that a task may take, in all its areas.
        let room = self.identity.memory_bytes / (4 * self.options.streams.max(1) as u64);
        Arc::new(move |work| {
            let bytes = 2 * work.len_in() as u64 + work.output_len_max() as u64;
            bytes <= room && Job::of_work(work).is_some_and(Job::is_supported)
        })
    }

    fn submit(&mut self, submission: Submission) {
        let idle =
            self.state.as_ref().and_then(|state| state.slots.iter().position(|slot| slot.flight.is_none()));
        let (Some(state), Some(slot)) = (&mut self.state, idle) else {
            let fault =
                if self.state.is_none() { Fault::Lost("not initialised".into()) } else { Fault::Busy };
            self.done.push(Completion { submission, result: Err(fault) });
            return;
        };
        if let Err(fault) = state.launch(slot, submission, &mut self.done)
            && fault.is_grave()
        {
            self.lose(&fault);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut broken = None;
        for slot in self.state.iter_mut().flat_map(|state| &mut state.slots) {
            if slot.flight.is_none() {
                continue;
            }
            let result: Result<StageTimes, Fault> = match slot.stream.is_done() {
                Ok(false) => continue,
                Ok(true) => {
                    let times = slot.stream.times();
                    match finish(slot) {
                        Ok(false) => continue,
                        Ok(true) => Ok(times),
                        Err(fault) => Err(slot.stream.wait().err().unwrap_or(fault)),
                    }
                }
                Err(fault) => Err(slot.stream.wait().err().unwrap_or(fault)),
            };
            if let Err(fault) = &result
                && fault.is_grave()
            {
                broken = Some(fault.clone());
            }
            if let Some(flight) = slot.flight.take() {
                self.done.push(Completion { submission: flight.submission, result });
            }
        }
        if let Some(fault) = broken {
            self.lose(&fault);
        }
        done.append(&mut self.done);
    }

    fn probe(&mut self) -> Result<(), Fault> {
        match &self.state {
            Some(state) => state.context.check(),
            None => Err(Fault::Lost("not initialised".into())),
        }
    }

    fn reset(&mut self) -> Result<(), Fault> {
        self.lose(&Fault::Lost("the device is reset".into()));
        self.state = None;
        self.begin()
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.identity.name
    }

    fn supports(&self, operation: Operation) -> bool {
        plan::supports(operation)
    }

    /// # Panics
    /// Also if the device fails. A caller that can do without the result uses the [`Accelerator`]
    /// interface, which reports faults.
    fn run(&mut self, task: &mut Task<'_>) -> Result<(), TaskError> {
        let operation = task.operation();
        let name = self.identity.name.clone();
        self.execute(task).map_err(|fault| match fault {
            Fault::Unsupported => TaskError::Unsupported { device: name.clone(), operation },
            fault => panic!("{operation} on {name}: {fault}"),
        })
    }
}

impl CudaDevice {
    /// Executes one task and waits for it.
    ///
    /// # Errors
    /// [`Fault`]. Nothing was appended to the task's outputs then.
    pub fn execute(&mut self, task: &mut Task<'_>) -> Result<(), Fault> {
        sync::execute(self.idle()?, task)
    }

    /// A stream without a task.
    fn idle(&mut self) -> Result<&mut Stream, Fault> {
        let state = self.state.as_mut().ok_or(Fault::Lost("not initialised".into()))?;
        let slot = state.slots.iter_mut().find(|slot| slot.flight.is_none()).ok_or(Fault::Busy)?;
        Ok(&mut slot.stream)
    }
}

/// Page-locked memory of the present context.
struct PageLocked(Mutex<Weak<Context>>);

impl HostMemory for PageLocked {
    fn allocate(&self, bytes: usize) -> Option<Box<dyn HostRegion>> {
        let context = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        Some(Box::new(Registered::new(&context, bytes)?))
    }
}

/// The number of CUDA devices of this machine.
///
/// # Errors
/// The reason why there are none: no driver, no device, or the driver's error. Never panics.
///
/// ```
/// match outrigger_offload::cuda::device_count() {
///     Ok(count) => println!("{count} CUDA devices"),
///     Err(why) => println!("no CUDA device: {why}"),
/// }
/// ```
pub fn device_count() -> Result<usize, String> {
    driver::devices()
}
