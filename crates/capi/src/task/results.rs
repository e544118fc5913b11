//! The results of a task.

use std::time::Duration;

use outrigger_offload::runtime::Finished;

use super::{State, not, outrigger_task};
use crate::raw::{self, handle};
use crate::status::{Error, Result, outrigger_status, status, value};
use crate::types::{outrigger_chunk, outrigger_fingerprint};

/// How a task was executed, and how long it took in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct outrigger_report {
    /// The device that executed it; 0 is the processor.
    pub device: u32,
    /// How many devices failed at it.
    pub fallbacks: u32,
    /// 1 if its result was compared with the processor's.
    pub checked: u32,
    /// Zero.
    pub reserved: u32,
    /// From submission until a device began.
    pub queue_ns: u64,
    /// Host memory to device memory.
    pub copy_in_ns: u64,
    /// The computation.
    pub kernel_ns: u64,
    /// Device memory to host memory.
    pub copy_out_ns: u64,
    /// From submission to end.
    pub total_ns: u64,
    /// The prediction of total_ns; 0 if there was none.
    pub predicted_ns: u64,
}

/// Results in C's types. Their memory is reused.
#[derive(Default)]
pub struct Converted {
    fingerprints: Vec<outrigger_fingerprint>,
    chunks: Vec<outrigger_chunk>,
    places: Vec<u64>,
    found: Vec<u8>,
}

impl Converted {
    /// Drops the results of an earlier submission.
    pub fn clear(&mut self) {
        self.fingerprints.clear();
        self.chunks.clear();
        self.places.clear();
        self.found.clear();
    }
}

/// Reads the output of a finished task.
fn look<T>(task: Option<&outrigger_task>, look: impl FnOnce(&Finished, &mut Converted) -> T) -> Result<T> {
    let mut inner = handle(task, "task")?.lock();
    let super::Inner { state, converted, .. } = &mut *inner;
    match state {
        State::Done(finished) => Ok(look(finished, converted)),
        other => Err(not(other, "done")),
    }
}

/// Returns a list, which stays in its place until the task is used again or freed.
///
/// # Safety
/// C's contract: null, or a place for a number.
unsafe fn list<T>(list: *const T, len: usize, count: *mut usize) -> Result<*const T> {
    // SAFETY: as above.
    let count = unsafe { raw::room(count, usize::from(!count.is_null()), "count")? };
    if let Some(count) = count.first_mut() {
        count.write(len);
    }
    Ok(list)
}

/// The output bytes of a task, and their number in `count` (unless it is null). Valid until the
/// task is used again or freed. Null if it is not done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_bytes(task: Option<&outrigger_task>, count: *mut usize) -> *const u8 {
    value(std::ptr::null(), || {
        let (bytes, len) = look(task, |done, _| (done.output().bytes.as_ptr(), done.output().bytes.len()))?;
        // SAFETY: C's contract.
        unsafe { list(bytes, len, count) }
    })
}

/// The fingerprints of outrigger_task_hash_many(), in the manner of outrigger_task_bytes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_fingerprints(
    task: Option<&outrigger_task>,
    count: *mut usize,
) -> *const outrigger_fingerprint {
    value(std::ptr::null(), || {
        let (made, len) = look(task, |done, converted| {
            let made = &mut converted.fingerprints;
            if made.is_empty() {
                made.extend(done.output().fingerprints.iter().map(|made| outrigger_fingerprint::from(*made)));
            }
            (made.as_ptr(), made.len())
        })?;
        // SAFETY: C's contract.
        unsafe { list(made, len, count) }
    })
}

/// The candidates of outrigger_task_scan(), in the manner of outrigger_task_bytes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_candidates(
    task: Option<&outrigger_task>,
    count: *mut usize,
) -> *const u32 {
    value(std::ptr::null(), || {
        let look = look(task, |done, _| (done.output().candidates.as_ptr(), done.output().candidates.len()));
        let (found, len) = look?;
        // SAFETY: C's contract.
        unsafe { list(found, len, count) }
    })
}

/// The chunks of outrigger_task_ingest() from all streams, in the manner of outrigger_task_bytes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_chunks(
    task: Option<&outrigger_task>,
    count: *mut usize,
) -> *const outrigger_chunk {
    value(std::ptr::null(), || {
        let (made, len) = look(task, |done, converted| {
            let made = &mut converted.chunks;
            if made.is_empty() {
                made.extend(done.output().chunks.iter().map(outrigger_chunk::from));
            }
            (made.as_ptr(), made.len())
        })?;
        // SAFETY: C's contract.
        unsafe { list(made, len, count) }
    })
}

/// The number of chunks of each stream, in the manner of outrigger_task_bytes().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_counts(
    task: Option<&outrigger_task>,
    count: *mut usize,
) -> *const u32 {
    value(std::ptr::null(), || {
        let (counts, len) =
            look(task, |done, _| (done.output().counts.as_ptr(), done.output().counts.len()))?;
        // SAFETY: C's contract.
        unsafe { list(counts, len, count) }
    })
}

/// The numbers from outrigger_task_lookup(), in the manner of outrigger_task_bytes(). Unless
/// `found` is null, it gets the address of a flag for each: 1 if there is a number, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_places(
    task: Option<&outrigger_task>,
    count: *mut usize,
    found: *mut *const u8,
) -> *const u64 {
    value(std::ptr::null(), || {
        let (places, flags, len) = look(task, |done, converted| {
            let Converted { places, found, .. } = converted;
            if places.is_empty() {
                let answers = &done.output().places;
                places.extend(answers.iter().map(|answer| answer.unwrap_or(0)));
                found.extend(answers.iter().map(|answer| u8::from(answer.is_some())));
            }
            (places.as_ptr(), found.as_ptr(), places.len())
        })?;
        // SAFETY: C's contract.
        let found = unsafe { raw::room(found, usize::from(!found.is_null()), "found")? };
        if let Some(found) = found.first_mut() {
            found.write(flags);
        }
        // SAFETY: C's contract.
        unsafe { list(places, len, count) }
    })
}

/// The codec of the bytes from outrigger_task_compress() (enum outrigger_codec), or -1 if the task
/// is not done.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_codec(task: Option<&outrigger_task>) -> i32 {
    value(-1, || look(task, |done, _| done.output().codec as i32))
}

/// The device of a finished task, and how long each stage took. `size` is sizeof *out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_report(
    task: Option<&outrigger_task>,
    out: *mut outrigger_report,
    size: usize,
) -> outrigger_status {
    status(|| {
        let report = look(task, |done, _| *done.report())?;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let report = outrigger_report {
            device: u32::try_from(report.device).map_err(|_| Error::invalid("a device number"))?,
            fallbacks: report.fallbacks,
            checked: report.checked.into(),
            reserved: 0,
            queue_ns: nanos(report.queue),
            copy_in_ns: nanos(report.stages.copy_in),
            kernel_ns: nanos(report.stages.kernel),
            copy_out_ns: nanos(report.stages.copy_out),
            total_ns: nanos(report.total),
            predicted_ns: nanos(report.predicted),
        };
        // SAFETY: C's contract.
        unsafe { raw::put_struct(&report, out, size) }
    })
}
