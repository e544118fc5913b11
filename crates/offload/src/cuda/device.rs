//! `cuda:N`: several tasks in flight, a stream each.
//!
//! ```text
//! submit   an idle stream gets the task: copy in, kernels, copy out are queued        (driver/stream.rs, plan/)
//! poll     streams that are done have their result read; some need one more step
//! ```
//!
//! A stream's task lies in its [`Flight`], which holds input and output until the stream is done with them, whatever
//! becomes of the device. When a stream meets an error that broke the context, all of them have lost their tasks.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use outrigger_format::Fingerprint;

use super::driver::{self, Context, DeviceMemory, Options, Registered, Stream};
use super::lane::{Address, Area, Lane};
use super::plan::{self, Data, Job, ResidentTable, Step};
use super::sync::{self, Blocking};
use super::table::{Changing, table_methods};
use super::tables::{self, Tables};
use crate::device::{
    Accelerator, Completion, Fault, HostMemory, HostRegion, Identity, StageTimes, Submission,
};
use crate::table::Table;
use crate::work::{Request, Work};
use crate::{Device, Operation, Task, TaskError};

/// How a device works. The default is right; the rest is there to measure what it is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaOptions {
    /// Tasks in flight, each on a stream of its own; with 1, nothing overlaps.
    pub streams: usize,
    /// Kernels stage data through shared memory.
    pub staged: bool,
    /// Device memory and page-locked memory are kept from task to task.
    pub reuse: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { streams: 4, staged: true, reuse: true }
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

/// What goes when the device is reset. Streams go first: they wait for what they do.
struct State {
    slots: Vec<Slot>,
    tables: Tables,
    context: Arc<Context>,
}

struct Slot {
    /// Goes before the flight, whose memory it may be using.
    stream: Stream,
    flight: Option<Flight>,
}

/// A task on a stream.
struct Flight {
    submission: Submission,
    data: Data,
    table: Option<ResidentTable>,
    step: Step,
    /// The result goes straight to the output's buffer.
    to_buffer: bool,
}

impl CudaDevice {
    /// Device `ordinal` with all that it needs to begin: a context, the kernels, streams. Takes some time.
    ///
    /// # Errors
    /// [`Fault::Lost`] where there is no such device, and why; [`Fault::OutOfMemory`].
    pub fn open(ordinal: usize) -> Result<Self, Fault> {
        Self::open_with(ordinal, CudaOptions::default())
    }

    /// The same, working in another way.
    ///
    /// # Errors
    /// As [`CudaDevice::open`].
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
        let options = Options { staged: self.options.staged, reuse: self.options.reuse };
        let slot = |_| Ok(Slot { stream: Stream::new(&context, &constants, options)?, flight: None });
        let slots = (0..self.options.streams.max(1)).map(slot).collect::<Result<_, Fault>>()?;
        *self.memory.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&context);
        self.state = Some(State { slots, tables: Tables::default(), context });
        Ok(())
    }

    /// Everything in flight is lost.
    fn lose(&mut self, fault: &Fault) {
        let Some(state) = &mut self.state else { return };
        for slot in &mut state.slots {
            if let Some(flight) = slot.flight.take() {
                // Nothing is under way on a broken context, which this makes sure of.
                let _ = slot.stream.wait();
                let result = Err(fault.clone());
                self.done.push(Completion { submission: flight.submission, result });
            }
        }
    }
}

impl State {
    /// Queues a task on a stream. If that fails, nothing of it is under way any more, and it is done with why.
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

/// Queues all of a task.
fn start(
    stream: &mut Stream,
    tables: &mut Tables,
    context: &Arc<Context>,
    flight: &mut Flight,
) -> Result<(), Fault> {
    let work = flight.submission.work.clone();
    let job = Job::of_work(&work).filter(|job| job.is_supported()).ok_or(Fault::Unsupported)?;
    flight.table = match &work.request {
        Request::Lookup { table, .. } | Request::Ingest { table: Some(table), .. } => {
            Some(tables.place(context, table)?)
        }
        _ => None,
    };
    // The data plays no part in a lookup.
    let data = if matches!(job, Job::Lookup { .. }) { &[] } else { work.data() };
    // SAFETY: the work is shared and never written, and the flight holds it until the stream is done: flights leave their
    // slot only then, and a stream waits when it is dropped.
    let at = unsafe { stream.input(work.history(), data) }?;
    flight.data = Data { at, len: data.len() };
    flight.step = job.begin(stream, flight.data, flight.table)?;
    fetch(stream, flight)
}

/// Queues the copy of what the step will have left.
fn fetch(stream: &mut Stream, flight: &mut Flight) -> Result<(), Fault> {
    let bytes = flight.step.bytes();
    let gives_bytes = matches!(
        flight.submission.work.request,
        Request::WindowHash { .. } | Request::PmdHash { .. } | Request::User { .. }
    );
    let output = &mut flight.submission.output.bytes;
    if gives_bytes
        && output.buffer_room() >= bytes
        && let Some(buffer) = output.buffer()
    {
        buffer.set_len(bytes);
        flight.to_buffer = true;
        // SAFETY: the buffer's memory does not move with the buffer, and the flight holds it until the stream is done.
        return unsafe { stream.fetch_to(buffer) };
    }
    stream.fetch(bytes)
}

/// Reads what a stream has left that is done. `Ok(false)` if there is one more step under way.
fn finish(slot: &mut Slot) -> Result<bool, Fault> {
    let Some(flight) = &mut slot.flight else { return Ok(false) };
    if flight.to_buffer {
        return Ok(true);
    }
    let work = flight.submission.work.clone();
    let job = Job::of_work(&work).ok_or(Fault::Unsupported)?;
    let bytes = slot.stream.result(flight.step.bytes()).to_vec();
    let sink = job.sink(&mut flight.submission.output);
    match job.finish(&mut slot.stream, flight.data, flight.table, flight.step, &bytes, sink)? {
        Some(step) => {
            flight.step = step;
            fetch(&mut slot.stream, flight)?;
            Ok(false)
        }
        None => Ok(true),
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
        // What a task may take of the device's memory, in all its areas.
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
    /// Also when the device fails: whoever cannot do without its result has no use for it as an [`Accelerator`], which
    /// says so.
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
    /// [`Fault`]; nothing was appended to the task's outputs then.
    pub fn execute(&mut self, task: &mut Task<'_>) -> Result<(), Fault> {
        sync::execute(self.idle()?, task)
    }

    /// A stream that has no task.
    fn idle(&mut self) -> Result<&mut Stream, Fault> {
        let state = self.state.as_mut().ok_or(Fault::Lost("not initialised".into()))?;
        let slot = state.slots.iter_mut().find(|slot| slot.flight.is_none()).ok_or(Fault::Busy)?;
        Ok(&mut slot.stream)
    }
}

/// What the bus carries, GB (10^9 bytes) a second, of page-locked memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopyBandwidth {
    /// To the device.
    pub in_gbs: f64,
    /// From the device.
    pub out_gbs: f64,
    /// Each way while both go on, on streams of their own.
    pub both_gbs: f64,
}

impl CudaDevice {
    /// Measures copies of `bytes`, `rounds` of them: the bound of everything that the device is sent.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::Busy`] with tasks in flight.
    pub fn copy_bandwidth(&mut self, bytes: usize, rounds: usize) -> Result<CopyBandwidth, Fault> {
        let state = self.state.as_mut().ok_or(Fault::Lost("not initialised".into()))?;
        if state.slots.iter().any(|slot| slot.flight.is_some()) {
            return Err(Fault::Busy);
        }
        let options = Options::default();
        let constants = Arc::new(state.context.constants()?);
        let page_locked = || Registered::new(&state.context, bytes).ok_or(Fault::OutOfMemory);
        let (from, mut to) = (page_locked()?, page_locked()?);
        // After the memory, so that they are dropped before: then they wait.
        let mut one = Stream::new(&state.context, &constants, options)?;
        let mut other = Stream::new(&state.context, &constants, options)?;
        let mut run = |input: bool, output: bool| -> Result<f64, Fault> {
            let mut begin = std::time::Instant::now();
            // The first round warms up.
            for round in 0..=rounds {
                if round == 1 {
                    one.wait()?;
                    other.wait()?;
                    begin = std::time::Instant::now();
                }
                if input {
                    // SAFETY: `from` is not touched, and lives until both streams were waited for, here or by their drop.
                    unsafe { one.input(&[], from.bytes()) }?;
                }
                if output {
                    other.memory(Area::Result, bytes)?;
                    // SAFETY: as above; nobody looks at what lies there.
                    unsafe { other.fetch_to(&mut to.bytes_mut()[..bytes]) }?;
                }
            }
            one.wait()?;
            other.wait()?;
            Ok((bytes * rounds) as f64 / begin.elapsed().as_secs_f64() / 1e9)
        };
        Ok(CopyBandwidth {
            in_gbs: run(true, false)?,
            out_gbs: run(false, true)?,
            both_gbs: run(true, true)?,
        })
    }
}

/// A table in a GPU's memory that is changed there. After a reset of its device, and on another one, every call fails.
pub struct CudaTable(Changing<DeviceMemory>);

table_methods!(CudaDevice, CudaTable, CudaDevice::idle);

/// Waits for the stream, also when a panic passes through.
struct Wait<'a>(&'a mut Stream);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

impl Blocking for Stream {
    type Held = DeviceMemory;

    fn lane(&mut self) -> &mut dyn Lane {
        self
    }

    fn hold(&mut self, table: &Table) -> Result<(DeviceMemory, ResidentTable), Fault> {
        tables::copy(self.context(), table)
    }

    fn allocate(&mut self, bytes: usize) -> Result<(DeviceMemory, Address), Fault> {
        let memory = DeviceMemory::new(self.context(), bytes)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn reaches(&self, held: &DeviceMemory) -> bool {
        Arc::ptr_eq(self.context(), held.context())
    }

    fn with_input(
        &mut self,
        history: &[u8],
        data: &[u8],
        then: &mut dyn FnMut(&mut Self, Data) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let wait = Wait(self);
        // SAFETY: both are borrowed until this returns, and `wait` is dropped before.
        let at = unsafe { wait.0.input(history, data) }?;
        then(wait.0, Data { at, len: data.len() })
    }

    fn read(&mut self, step: Step) -> Result<Vec<u8>, Fault> {
        self.fetch(step.bytes())?;
        self.wait()?;
        Ok(self.result(step.bytes()).to_vec())
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

/// How many CUDA devices this machine has.
///
/// # Errors
/// Why it has none: no driver, no device, or what the driver says. Never panics.
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
