//! Users' operations: one kernel over all data. [`crate::work::Kernel`] describes its parameters.

use super::super::lane::Argument::{At, Long};
use super::super::lane::{Area, Lane};
use super::{Data, Step};
use crate::accelerator::Fault;
use crate::work::UserOperation;

pub(super) fn begin(
    lane: &mut dyn Lane,
    data: Data,
    operation: &UserOperation,
    parameters: &[u8],
) -> Result<Step, Fault> {
    let kernel = operation.kernel().ok_or(Fault::Unsupported)?;
    let bytes = operation.output_len(parameters, data.len);
    let out = lane.memory(Area::Result, bytes)?;
    let list = lane.send(Area::List, parameters.len(), &mut |list| list.copy_from_slice(parameters))?;
    let threads = data.len.div_ceil(kernel.bytes_per_thread.max(1)).max(1);
    let blocks = threads.div_ceil(kernel.block_threads as usize);
    let arguments = [
        At(data.at),
        Long(data.len as u64),
        At(list),
        Long(parameters.len() as u64),
        At(out),
        Long(bytes as u64),
    ];
    lane.launch_user(operation, blocks, kernel.block_threads, &arguments)?;
    Ok(Step { bytes, ..Step::default() })
}
