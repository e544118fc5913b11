//! The kernels on the host: the same sources, compiled by the host's compiler, on a grid of fibres
//! (`kernels/host/grid.h`). For tests, for sanitizers, and for the `sim` device. Feature `grid`.
//!
//! "Device memory" comes from the allocator. Each area has exactly the requested size, so that an
//! address sanitizer finds accesses that a GPU would let pass.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use outrigger_format::Fingerprint;

use super::kernel::Kernel;
use super::lane::{Address, Area, Argument, HISTORY, Lane, constants};
use super::plan::{self, Data, ResidentTable, Step};
use super::sync::{self, Blocking};
use super::table::{Changing, table_methods};
use crate::accelerator::Fault;
use crate::sim::Execute;
use crate::table::Table;
use crate::work::{Output, Work};
use crate::{Device, Operation, Task, TaskError};

#[repr(C)]
struct RawGrid {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn outrigger_grid_new() -> *mut RawGrid;
    fn outrigger_grid_free(grid: *mut RawGrid);
    fn outrigger_grid_launch(
        grid: *mut RawGrid,
        name: *const c_char,
        blocks: u32,
        threads: u32,
        shared_bytes: u32,
        arguments: *mut *mut c_void,
        argument_count: u32,
        order: u32,
    ) -> c_int;
}

/// The order in which the threads of a block run between two barriers, and the blocks. Results
/// depend on it only if a kernel lacks a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In the order of their numbers.
    Forward = 0,
    /// In reverse order.
    Backward = 1,
    /// In a new random order each time.
    Shuffled = 2,
}

/// Memory of the grid, aligned to 16.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its allocation, as a box would.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), 16).expect("an area has less than 2^63 bytes");
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        // If a kernel reads memory that was never written, it must not find zeros.
        // SAFETY: all of it was allocated just now.
        unsafe { start.write_bytes(0xa5, bytes) };
        Self { start, layout }
    }

    fn address(&self) -> Address {
        Address(self.start.as_ptr().expose_provenance() as u64)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it was initialised when it was allocated, and kernels only run under `&mut` of
        // the grid that owns it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is not used any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A grid on the host: a [`Device`] that runs every kernel of the `cuda` devices on the calling
/// thread, slowly.
///
/// ```
/// use outrigger_offload::cuda::{HostGrid, Order};
/// let mut grid = HostGrid::new(Order::Forward);
/// let mut out = Vec::new();
/// let task = outrigger_offload::op::HashMany {
///     kind: outrigger_format::FingerprintKind::Blake3,
///     data: b"one two",
///     ranges: &[0..3],
///     out: &mut out,
/// };
/// outrigger_offload::Device::run(&mut grid, &mut outrigger_offload::Task::HashMany(task))?;
/// assert_eq!(out, [outrigger_offload::hash(outrigger_format::FingerprintKind::Blake3, b"one")]);
/// # Ok::<(), outrigger_offload::TaskError>(())
/// ```
pub struct HostGrid {
    lane: HostLane,
}

struct HostLane {
    raw: NonNull<RawGrid>,
    order: Order,
    staged: bool,
    areas: [Option<Memory>; Area::COUNT],
    constants: Memory,
    launches: u64,
}

// SAFETY: the grid belongs to nobody else; it keeps nothing of the thread it was made on.
unsafe impl Send for HostLane {}

impl Drop for HostLane {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `outrigger_grid_new`, and nothing is running.
        unsafe { outrigger_grid_free(self.raw.as_ptr()) };
    }
}

impl HostGrid {
    /// A grid that runs threads in this order.
    ///
    /// # Panics
    /// If there is no memory for the threads' stacks, 34 MB of address space.
    pub fn new(order: Order) -> Self {
        // SAFETY: no preconditions.
        let raw = NonNull::new(unsafe { outrigger_grid_new() }).expect("address space for 256 stacks");
        let held = constants();
        let mut constants = Memory::new(held.len());
        constants.bytes_mut().copy_from_slice(&held);
        let areas = std::array::from_fn(|_| None);
        let lane = HostLane { raw, order, staged: true, areas, constants, launches: 0 };
        Self { lane }
    }

    /// Does not stage in shared memory, for the benchmark's ablation.
    #[must_use]
    pub fn without_staging(mut self) -> Self {
        self.lane.staged = false;
        self
    }

    fn lane(&mut self) -> Result<&mut HostLane, Fault> {
        Ok(&mut self.lane)
    }

    /// The number of launched kernels.
    pub fn launches(&self) -> u64 {
        self.lane.launches
    }
}

impl Blocking for HostLane {
    type Held = Memory;

    fn lane(&mut self) -> &mut dyn Lane {
        self
    }

    fn hold(&mut self, table: &Table) -> Result<(Memory, ResidentTable), Fault> {
        let mut resident = ResidentTable::of(table, Address::NONE);
        let mut memory = Memory::new(resident.bytes());
        let (slots, summary) = memory.bytes_mut().split_at_mut(resident.slot_bytes);
        let words = slots.as_chunks_mut().0.iter_mut().zip(table.slot_words());
        words.for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        let words = summary.as_chunks_mut().0.iter_mut().zip(table.summary_words());
        words.for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        resident.at = memory.address();
        Ok((memory, resident))
    }

    fn allocate(&mut self, bytes: usize) -> Result<(Memory, Address), Fault> {
        let memory = Memory::new(bytes);
        let address = memory.address();
        Ok((memory, address))
    }

    fn reaches(&self, _held: &Memory) -> bool {
        true
    }

    fn with_input(
        &mut self,
        history: &[u8],
        data: &[u8],
        then: &mut dyn FnMut(&mut Self, Data) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // Whole words, the last of which is readable, and no byte more.
        let at = self.memory_exactly(Area::Input, HISTORY + data.len().next_multiple_of(4));
        let input = self.area(Area::Input).bytes_mut();
        let before = &history[history.len().saturating_sub(HISTORY)..];
        input[HISTORY - before.len()..HISTORY].copy_from_slice(before);
        input[HISTORY..HISTORY + data.len()].copy_from_slice(data);
        then(self, Data { at: at.plus(HISTORY), len: data.len() })
    }

    fn read(&mut self, step: Step) -> Result<Vec<u8>, Fault> {
        Ok(self.result(step))
    }
}

/// A table in the grid's memory. Kernels change it as they change one on a GPU.
pub struct HostTable(Changing<Memory>);

impl HostTable {
    /// The bytes of its summary vector.
    pub fn summary(&self) -> &[u8] {
        let (memory, resident) = self.0.memory();
        &memory.bytes()[resident.slot_bytes..]
    }
}

table_methods!(HostGrid, HostTable, HostGrid::lane);

impl Device for HostGrid {
    fn name(&self) -> &str {
        "grid"
    }

    fn supports(&self, operation: Operation) -> bool {
        plan::supports(operation)
    }

    fn run(&mut self, task: &mut Task<'_>) -> Result<(), TaskError> {
        let operation = task.operation();
        sync::execute(&mut self.lane, task).map_err(|fault| match fault {
            Fault::Unsupported => TaskError::Unsupported { device: "grid".to_string(), operation },
            fault => panic!("{operation} on the host's grid: {fault}"),
        })
    }
}

/// So a simulated device can use a real device's kernels.
impl Execute for HostGrid {
    fn execute(&mut self, work: &Work, output: &mut Output) -> Result<(), Fault> {
        work.run_on(self, output).map_err(|error| match error {
            TaskError::Unsupported { .. } => Fault::Unsupported,
            error => Fault::Failed(error.to_string().into()),
        })
    }
}

impl HostLane {
    /// The result of a step.
    fn result(&self, step: Step) -> Vec<u8> {
        match &self.areas[Area::Result as usize] {
            Some(memory) if step.bytes() > 0 => memory.bytes()[..step.bytes()].to_vec(),
            _ => Vec::new(),
        }
    }

    fn area(&mut self, area: Area) -> &mut Memory {
        self.areas[area as usize].as_mut().expect("an area is used after it was asked for")
    }

    fn memory_exactly(&mut self, area: Area, bytes: usize) -> Address {
        let memory = Memory::new(bytes);
        let address = memory.address();
        self.areas[area as usize] = Some(memory);
        address
    }

    fn call(&mut self, name: &CStr, blocks: u32, threads: u32, shared: u32, arguments: &[Argument]) -> c_int {
        // Eight bytes each; words lie in the first four of them, wherever bytes are in
        // little-endian order.
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Word(word) => u64::from(*word),
                Argument::Long(long) => *long,
                Argument::At(address) => address.0,
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        // SAFETY: the grid is ours and idle. `pointers` has the given number of arguments, each of
        // eight bytes that outlive the call. The tests of the plans cover how kernels use the
        // addresses in them.
        unsafe {
            outrigger_grid_launch(
                self.raw.as_ptr(),
                name.as_ptr(),
                blocks,
                threads,
                shared,
                pointers.as_mut_ptr(),
                pointers.len() as u32,
                self.order as u32,
            )
        }
    }
}

impl Lane for HostLane {
    fn memory(&mut self, area: Area, bytes: usize) -> Result<Address, Fault> {
        // An area of the same size is kept, as plans may ask for it again.
        match &self.areas[area as usize] {
            Some(memory) if memory.layout.size() == bytes.max(1) => Ok(memory.address()),
            _ => Ok(self.memory_exactly(area, bytes)),
        }
    }

    fn send(&mut self, area: Area, bytes: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Address, Fault> {
        let address = self.memory_exactly(area, bytes);
        fill(&mut self.area(area).bytes_mut()[..bytes]);
        Ok(address)
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
        self.launches += 1;
        let status = self.call(kernel.name, blocks as u32, kernel.threads, shared_bytes as u32, arguments);
        let why = match status {
            0 => return Ok(()),
            1 => "there is no such kernel",
            2 => "another number of parameters",
            3 => "too many threads, or no memory",
            _ => "threads of a block did not meet at a barrier",
        };
        Err(Fault::Failed(format!("{}: {why}", kernel.name.to_string_lossy()).into()))
    }

    fn constants(&self) -> Address {
        self.constants.address()
    }

    fn is_staged(&self) -> bool {
        self.staged
    }
}
