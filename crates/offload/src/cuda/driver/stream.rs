//! A CUDA stream with its memory, which is a lane of the device.
//!
//! ```text
//! start ▶ input ▶ │copied in│ ▶ kernels ▶ │computed│ ▶ fetch ▶ │done│      │…│: an event
//! ```
//!
//! All work is queued, and no call waits. A stream keeps its memory from task to task: on the
//! device by [`Area`], and on the host for lists to send and results to receive. It replaces memory
//! only while it is idle.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::super::kernel::Kernel;
use super::super::lane::{Address, Area, Argument, HISTORY, Lane};
use super::context::Function;
use super::{Context, DeviceMemory, Registered, fault};
use crate::accelerator::{Fault, StageTimes};
use crate::device::HostRegion;
use crate::work::UserOperation;

/// Options of a stream. Others than the default serve to measure its benefit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// Kernels stage through shared memory.
    pub(crate) staged: bool,
    /// Memory is kept from task to task.
    pub(crate) reuse: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { staged: true, reuse: true }
    }
}

/// Events in their order.
#[derive(Clone, Copy)]
enum Mark {
    Start = 0,
    CopiedIn = 1,
    Computed = 2,
    Done = 3,
}

/// A stream with its resources.
pub(crate) struct Stream {
    raw: sys::CUstream,
    events: [sys::CUevent; 4],
    areas: [Option<DeviceMemory>; Area::COUNT],
    constants: Arc<DeviceMemory>,
    /// Lists to send, in a row. The first `listed` bytes are taken.
    lists: Option<Registered>,
    listed: usize,
    /// Results without a buffer of their own.
    results: Option<Registered>,
    options: Options,
    context: Arc<Context>,
}

// SAFETY: handles of the driver may be used by any thread to which their context is current; every
// method binds it.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of `context` with these constants.
    pub(crate) fn new(
        context: &Arc<Context>,
        constants: &Arc<DeviceMemory>,
        options: Options,
    ) -> Result<Self, Fault> {
        let _bound = context.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(fault)?;
        let mut events = [std::ptr::null_mut(); 4];
        for event in &mut events {
            *event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT).map_err(fault)?;
        }
        let areas = std::array::from_fn(|_| None);
        let (constants, context) = (constants.clone(), context.clone());
        Ok(Self { raw, events, areas, constants, lists: None, listed: 0, results: None, options, context })
    }

    /// The stream's context.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn record(&mut self, mark: Mark) -> Result<(), Fault> {
        let _bound = self.context.bind()?;
        // SAFETY: event and stream belong to this context.
        unsafe { result::event::record(self.events[mark as usize], self.raw) }.map_err(fault)
    }

    /// Begins a task. The stream must be idle. Copies `history` and `data` to [`Area::Input`], with
    /// the data at offset [`HISTORY`], and returns the data's address.
    ///
    /// # Safety
    /// Both stay where they are, unwritten, until [`Stream::is_done`] or [`Stream::wait`] has said
    /// so.
    pub(crate) unsafe fn input(&mut self, history: &[u8], data: &[u8]) -> Result<Address, Fault> {
        if !self.options.reuse {
            self.areas = std::array::from_fn(|_| None);
            (self.lists, self.results) = (None, None);
        }
        self.listed = 0;
        let at = self.memory(Area::Input, HISTORY + data.len() + 4)?.plus(HISTORY);
        let before = &history[history.len().saturating_sub(HISTORY)..];
        self.record(Mark::Start)?;
        let _bound = self.context.bind()?;
        // If history and data are adjacent, as in a batch, one copy suffices.
        if std::ptr::eq(before.as_ptr_range().end, data.as_ptr()) {
            let start = at.0 - before.len() as u64;
            // SAFETY: `before` and `data` are one piece of memory, which stays as the caller has
            // promised; the area has room for it.
            unsafe { self.copy_in(start, before.as_ptr(), before.len() + data.len())? };
        } else {
            // SAFETY: as above, in two pieces.
            unsafe {
                self.copy_in(at.0 - before.len() as u64, before.as_ptr(), before.len())?;
                self.copy_in(at.0, data.as_ptr(), data.len())?;
            }
        }
        self.record(Mark::CopiedIn)?;
        Ok(at)
    }

    /// # Safety
    /// `from` has `bytes`, which stay until the stream is done; `to` is device memory with room for
    /// them.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller has promised.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw) }.result().map_err(fault)
    }

    /// Copies the result, the first `bytes` of [`Area::Result`], into the stream's own memory, for
    /// [`Stream::result`].
    pub(crate) fn fetch(&mut self, bytes: usize) -> Result<(), Fault> {
        self.record(Mark::Computed)?;
        if bytes > 0 {
            if self.results.as_ref().is_none_or(|results| results.bytes().len() < bytes) {
                let results = Registered::new(&self.context, bytes.next_power_of_two());
                self.results = Some(results.ok_or(Fault::OutOfMemory)?);
            }
            let to = self.results.as_mut().expect("made above").bytes_mut().as_mut_ptr();
            // SAFETY: it has room for so many bytes, and is not touched or replaced before the
            // stream is done.
            unsafe { self.copy_out(to, bytes)? };
        }
        self.record(Mark::Done)
    }

    /// Copies the result straight to its destination.
    ///
    /// # Safety
    /// `to` stays where it is, untouched, until [`Stream::is_done`] or [`Stream::wait`] has said
    /// so.
    pub(crate) unsafe fn fetch_to(&mut self, to: &mut [u8]) -> Result<(), Fault> {
        self.record(Mark::Computed)?;
        // SAFETY: as the caller has promised.
        unsafe { self.copy_out(to.as_mut_ptr(), to.len())? };
        self.record(Mark::Done)
    }

    /// # Safety
    /// `to` has room for `bytes` and stays, untouched, until the stream is done.
    unsafe fn copy_out(&self, to: *mut u8, bytes: usize) -> Result<(), Fault> {
        let Some(result) = self.areas[Area::Result as usize].as_ref().filter(|_| bytes > 0) else {
            return Ok(());
        };
        assert!(bytes <= result.len(), "a plan made as much as it wants to be read");
        let _bound = self.context.bind()?;
        // SAFETY: as the caller has promised; the area has as many bytes.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), result.address().0, bytes, self.raw) }
            .result()
            .map_err(fault)
    }

    /// The first `bytes` of the result that [`Stream::fetch`] copied, once the stream is done.
    pub(crate) fn result(&self, bytes: usize) -> &[u8] {
        match &self.results {
            Some(results) if bytes > 0 => &results.bytes()[..bytes],
            _ => &[],
        }
    }

    /// True if the task is done.
    ///
    /// # Errors
    /// The fault of the device.
    pub(crate) fn is_done(&self) -> Result<bool, Fault> {
        let _bound = self.context.bind()?;
        // SAFETY: the event belongs to this context.
        match unsafe { result::event::query(self.events[Mark::Done as usize]) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }

    /// Waits until nothing is in flight.
    ///
    /// # Errors
    /// The fault of the device. Nothing is in flight then either.
    pub(crate) fn wait(&self) -> Result<(), Fault> {
        let _bound = self.context.bind()?;
        // SAFETY: the stream belongs to this context.
        unsafe { result::stream::synchronize(self.raw) }.map_err(fault)
    }

    /// The stage times of the finished task.
    pub(crate) fn times(&self) -> StageTimes {
        let between = |from: Mark, to: Mark| {
            // SAFETY: both events belong to this context and have happened.
            let elapsed =
                unsafe { result::event::elapsed(self.events[from as usize], self.events[to as usize]) };
            elapsed.map_or(Duration::ZERO, |milliseconds| {
                Duration::from_secs_f64(f64::from(milliseconds).max(0.0) / 1e3)
            })
        };
        let Ok(_bound) = self.context.bind() else { return StageTimes::default() };
        StageTimes {
            copy_in: between(Mark::Start, Mark::CopiedIn),
            kernel: between(Mark::CopiedIn, Mark::Computed),
            copy_out: between(Mark::Computed, Mark::Done),
        }
    }

    fn call(
        &mut self,
        function: Function,
        blocks: usize,
        threads: u32,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<(), Fault> {
        const ARGUMENTS_MAX: usize = 16;
        assert!(arguments.len() <= ARGUMENTS_MAX, "kernels have few parameters");
        if blocks >= 1 << 31 {
            return Err(Fault::Unsupported);
        }
        // Eight bytes each. Words take the first four.
        let mut values = [0u64; ARGUMENTS_MAX];
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for ((argument, value), pointer) in arguments.iter().zip(&mut values).zip(&mut pointers) {
            *value = match argument {
                Argument::Word(word) => u64::from(*word),
                Argument::Long(long) => *long,
                Argument::At(address) => address.0,
            };
            *pointer = std::ptr::from_mut(value).cast();
        }
        let _bound = self.context.bind()?;
        // SAFETY: the function belongs to this context; the driver copies as many arguments as it
        // has parameters, each at most the eight bytes that its pointer points to. The shim build
        // is tested to pass as many as there are.
        unsafe {
            result::launch_kernel(
                function.0,
                (blocks as u32, 1, 1),
                (threads, 1, 1),
                shared_bytes as u32,
                self.raw,
                &mut pointers,
            )
        }
        .map_err(fault)
    }
}

impl Lane for Stream {
    fn memory(&mut self, area: Area, bytes: usize) -> Result<Address, Fault> {
        let held = &mut self.areas[area as usize];
        if let Some(memory) = held.as_ref().filter(|memory| memory.len() >= bytes) {
            return Ok(memory.address());
        }
        // The old memory is freed first, so that both need not fit. The driver waits for its users.
        *held = None;
        let memory = DeviceMemory::new(&self.context, bytes.next_multiple_of(4096))?;
        let address = memory.address();
        self.areas[area as usize] = Some(memory);
        Ok(address)
    }

    fn send(&mut self, area: Area, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Address, Fault> {
        let to = self.memory(area, bytes)?;
        if self.lists.as_ref().is_none_or(|lists| lists.bytes().len() < self.listed + bytes) {
            // Transfers from the old memory must end first.
            self.wait()?;
            self.listed = 0;
            let lists = Registered::new(&self.context, bytes.next_power_of_two());
            self.lists = Some(lists.ok_or(Fault::OutOfMemory)?);
        }
        let list = &mut self.lists.as_mut().expect("made above").bytes_mut()[self.listed..][..bytes];
        self.listed += bytes;
        fill(list);
        let from = list.as_ptr();
        let _bound = self.context.bind()?;
        // SAFETY: this piece of the list's memory is not written again before the next task, for
        // which the stream is idle; the area has room for it.
        unsafe { self.copy_in(to.0, from, bytes)? };
        Ok(to)
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        blocks: usize,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<(), Fault> {
        if blocks == 0 {
            return Ok(());
        }
        let function = self.context.function(kernel);
        self.call(function, blocks, kernel.threads, shared_bytes, arguments)
    }

    fn launch_user(
        &mut self,
        operation: &UserOperation,
        blocks: usize,
        threads: u32,
        arguments: &[Argument],
    ) -> Result<(), Fault> {
        let function = self.context.user_function(operation)?;
        self.call(function, blocks, threads, 0, arguments)
    }

    fn constants(&self) -> Address {
        self.constants.address()
    }

    fn is_staged(&self) -> bool {
        self.options.staged
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // No work may use the memory below any more.
        let _ = self.wait();
        if let Ok(_bound) = self.context.bind() {
            for event in self.events {
                // SAFETY: created with the stream, and destroyed once.
                let _ = unsafe { result::event::destroy(event) };
            }
            // SAFETY: as above.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}
