//! A task on a stream.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::super::driver::{Context, Stream};
use super::super::plan::{Data, Job, ResidentTable, Step};
use super::super::tables::Tables;
use crate::accelerator::{Fault, Submission};
use crate::work::Request;

pub(super) struct Slot {
    /// Dropped before the flight, as it may be using the flight's memory.
    pub(super) stream: Stream,
    pub(super) flight: Option<Flight>,
}

/// A task on a stream.
pub(super) struct Flight {
    pub(super) submission: Submission,
    pub(super) data: Data,
    pub(super) table: Option<ResidentTable>,
    pub(super) step: Step,
    /// The result is copied straight to the output's buffer.
    pub(super) to_buffer: bool,
}

/// Queues all steps of a task.
pub(super) fn start(
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
    // A lookup does not use the data.
    let data = if matches!(job, Job::Lookup { .. }) { &[] } else { work.data() };
    // SAFETY: the work is shared and never written. The flight holds it until the stream is done:
    // flights leave their slot only then, and a stream waits when it is dropped.
    let at = unsafe { stream.input(work.history(), data) }?;
    flight.data = Data { at, len: data.len() };
    flight.step = job.begin(stream, flight.data, flight.table)?;
    fetch(stream, flight)
}

/// Queues the copy of the step's result.
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
        // SAFETY: the buffer's memory does not move with the buffer, and the flight holds it until
        // the stream is done.
        return unsafe { stream.fetch_to(buffer) };
    }
    stream.fetch(bytes)
}

/// Reads the result of a finished stream. `Ok(false)` if one more step is in flight.
pub(super) fn finish(slot: &mut Slot) -> Result<bool, Fault> {
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
