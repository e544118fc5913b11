//! Rates of operations on this machine's devices.

use std::collections::VecDeque;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_offload::calibrate::{CalibrateOptions, Case, calibrate};
use outrigger_offload::placement::Point;
use outrigger_offload::runtime::{Runtime, Ticket};

use crate::exit::Failure;

/// One task at a time of an operation on a device, at one size. `None` if there is no such task.
///
/// # Errors
/// When the processor itself fails.
pub fn at(runtime: &Runtime, case: &Case, device: usize, bytes: usize) -> Result<Option<Point>, Failure> {
    let options = CalibrateOptions { at_least: Duration::from_millis(5), ..Default::default() };
    let point = calibrate(runtime, device, case, bytes, &options);
    point.map_err(|failed| Failure::failed(format!("{}: {failed}", case.name())))
}

/// Bytes a second of a stream of tasks of so many bytes on a device, with `window` tasks in flight.
///
/// # Errors
/// When the device refuses a task, or fails.
pub fn stream(
    runtime: &Runtime,
    case: &Case,
    device: usize,
    bytes: usize,
    window: usize,
) -> Result<f64, Failure> {
    let failed = |why: String| Failure::failed(format!("{}: {why}", case.name()));
    let mut free = Vec::new();
    for _ in 0..window.min((1 << 30) / bytes).max(1) {
        free.extend(case.draft(runtime, bytes));
    }
    let mut under_way: VecDeque<Ticket> = VecDeque::new();
    let (mut done, mut begun) = (0_u64, Instant::now());
    let warm = free.len() as u64;
    loop {
        while let Some(mut draft) = free.pop() {
            draft.pin(device);
            under_way.push_back(runtime.submit(draft).map_err(|refused| failed(refused.to_string()))?);
        }
        let Some(ticket) = under_way.pop_front() else { break };
        free.push(ticket.wait().map_err(|error| failed(error.to_string()))?.again());
        done += 1;
        if done == warm {
            begun = Instant::now();
        }
        if done > warm && begun.elapsed() >= Duration::from_millis(150) {
            break;
        }
    }
    Ok((done - warm) as f64 * bytes as f64 / begun.elapsed().as_secs_f64())
}
