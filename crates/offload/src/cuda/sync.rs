//! One task at a time, waited for: how tests, and callers without a runtime, use a lane.

use super::lane::{Address, Lane};
use super::plan::{Data, Job, ResidentTable, Step};
use crate::Task;
use crate::accelerator::Fault;
use crate::table::Table;

/// A lane that can be waited for.
pub(super) trait Blocking {
    /// What keeps a table in the device's memory.
    type Held;

    /// The lane.
    fn lane(&mut self) -> &mut dyn Lane;

    /// Copies a table there.
    fn hold(&mut self, table: &Table) -> Result<(Self::Held, ResidentTable), Fault>;

    /// Memory of its own, so many bytes.
    fn allocate(&mut self, bytes: usize) -> Result<(Self::Held, Address), Fault>;

    /// Whether that memory can be reached by this lane: not after a reset, nor on another device.
    fn reaches(&self, held: &Self::Held) -> bool;

    /// Calls `then` with the data in place, and returns when nothing is under way that needs it.
    fn with_input(
        &mut self,
        history: &[u8],
        data: &[u8],
        then: &mut dyn FnMut(&mut Self, Data) -> Result<(), Fault>,
    ) -> Result<(), Fault>;

    /// Waits for a step, and gives what it has left.
    fn read(&mut self, step: Step) -> Result<Vec<u8>, Fault>;
}

/// Runs a task. Nothing is appended to its outputs unless it succeeds.
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
