//! Synchronous use of a lane, one task at a time, for tests and for callers without a runtime.

use super::lane::{Address, Lane};
use super::plan::{Data, Job, ResidentTable, Step};
use crate::Task;
use crate::accelerator::Fault;
use crate::table::Table;

/// A lane whose caller can wait.
pub(super) trait Blocking {
    /// The owner of memory on the device.
    type Held;

    /// The lane.
    fn lane(&mut self) -> &mut dyn Lane;

    /// Copies a table to the device.
    fn hold(&mut self, table: &Table) -> Result<(Self::Held, ResidentTable), Fault>;

    /// Allocates separate memory of `bytes` bytes.
    fn allocate(&mut self, bytes: usize) -> Result<(Self::Held, Address), Fault>;

    /// True if this lane can reach that memory. False after a reset, and on another device.
    fn reaches(&self, held: &Self::Held) -> bool;

    /// Calls `then` with the data in place. Returns once nothing in flight needs the data.
    fn with_input(
        &mut self,
        history: &[u8],
        data: &[u8],
        then: &mut dyn FnMut(&mut Self, Data) -> Result<(), Fault>,
    ) -> Result<(), Fault>;

    /// Waits for a step, and returns its result.
    fn read(&mut self, step: Step) -> Result<Vec<u8>, Fault>;
}

/// Runs a task. Appends to its outputs only if it succeeds.
pub(super) fn execute<L: Blocking>(lane: &mut L, task: &mut Task<'_>) -> Result<(), Fault> {
    let (job, history, data, mut sink) = Job::of_task(task).ok_or(Fault::Unsupported)?;
    if !job.is_supported() {
        return Err(Fault::Unsupported);
    }
    let held = job.table().map(|table| lane.hold(table)).transpose()?;
    let table = held.as_ref().map(|(_, resident)| *resident);
    lane.with_input(history, data, &mut |lane, data| {
        let mut step = job.begin(lane.lane(), data, table)?;
        loop {
            let bytes = lane.read(step)?;
            match job.finish(lane.lane(), data, table, step, &bytes, sink.again())? {
                Some(next) => step = next,
                None => return Ok(()),
            }
        }
    })
}
