//! The functions that handle tasks.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;

use super::{Context, State, not, outrigger_callback, outrigger_task};
use crate::handles::{outrigger_runtime, poolable};
use crate::raw::handle;
use crate::status::outrigger_status::{OUTRIGGER_OK, OUTRIGGER_PENDING};
use crate::status::{Error, Result, outrigger_status, status, value};

/// A task with its own empty buffer for at least `bytes` bytes, at most 2 GiB. Null after an error.
/// Free it with outrigger_task_free().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_new(
    runtime: Option<&outrigger_runtime>,
    bytes: usize,
) -> *mut outrigger_task {
    value(std::ptr::null_mut(), || {
        let runtime = handle(runtime, "runtime")?;
        poolable(bytes)?;
        Ok(Arc::into_raw(outrigger_task::new(runtime.0.draft(bytes))).cast_mut())
    })
}

/// Frees a task with its results and its buffer. A task in flight continues without a callback, and
/// the memory that it reads must stay. Null is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_free(task: *mut outrigger_task) {
    status(|| {
        if !task.is_null() {
            // SAFETY: C's contract: the pointer is from outrigger_task_new(), and this is the end
            // of it.
            drop(unsafe { Arc::from_raw(task) });
        }
        Ok(())
    });
}

/// A share of the task for the duration of a call.
///
/// # Safety
/// C's contract: null, or a task that is not freed before the call has begun.
unsafe fn shared(task: *mut outrigger_task) -> Result<Arc<outrigger_task>> {
    if task.is_null() {
        return Err(Error::invalid("task is null"));
    }
    // SAFETY: the pointer is from `Arc::into_raw`, and C's share is still there.
    unsafe {
        Arc::increment_strong_count(task);
        Ok(Arc::from_raw(task))
    }
}

/// Sets the function to call with `context` when the task ends, for this and later submissions;
/// null for none.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_set_callback(
    task: Option<&outrigger_task>,
    callback: outrigger_callback,
    context: *mut c_void,
) -> outrigger_status {
    status(|| {
        let mut inner = handle(task, "task")?.lock();
        if let State::Submitted(_) = inner.state {
            return Err(not(&inner.state, "to be changed"));
        }
        (inner.callback, inner.context) = (callback, Context(context));
        Ok(())
    })
}

/// Submits a task. Blocks while the queue is full ("outstanding_max", 256).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_submit(
    runtime: Option<&outrigger_runtime>,
    task: *mut outrigger_task,
) -> outrigger_status {
    status(|| {
        // SAFETY: C's contract.
        let task = unsafe { shared(task)? };
        task.submit(&handle(runtime, "runtime")?.0, true)
    })
}

/// Submits a task if there is room. Otherwise returns OUTRIGGER_FULL, and it can be submitted
/// again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_try_submit(
    runtime: Option<&outrigger_runtime>,
    task: *mut outrigger_task,
) -> outrigger_status {
    status(|| {
        // SAFETY: C's contract.
        let task = unsafe { shared(task)? };
        task.submit(&handle(runtime, "runtime")?.0, false)
    })
}

/// Submits a task and waits for its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_run(
    runtime: Option<&outrigger_runtime>,
    task: *mut outrigger_task,
) -> outrigger_status {
    status(|| {
        // SAFETY: C's contract.
        let task = unsafe { shared(task)? };
        task.submit(&handle(runtime, "runtime")?.0, true)?;
        task.wait(None)
    })
}

/// The state of a submitted task: OUTRIGGER_PENDING, or how it ended. Returns at once.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_poll(task: Option<&outrigger_task>) -> outrigger_status {
    let state = |task: &outrigger_task| match &task.lock().state {
        // This is no error, so nothing is kept.
        State::Submitted(_) => Ok(OUTRIGGER_PENDING),
        state => state.status().map(|()| OUTRIGGER_OK),
    };
    let mut stands = OUTRIGGER_OK;
    match status(|| handle(task, "task").and_then(state).map(|now| stands = now)) {
        OUTRIGGER_OK => stands,
        failed => failed,
    }
}

/// Waits for the end of a submitted task, and returns how it ended. The callback, if any, may still
/// be running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_wait(task: *mut outrigger_task) -> outrigger_status {
    // SAFETY: C's contract.
    status(|| unsafe { shared(task)? }.wait(None))
}

/// Waits for the end of a submitted task, but at most so long. Then returns OUTRIGGER_PENDING.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_wait_for(
    task: *mut outrigger_task,
    milliseconds: u64,
) -> outrigger_status {
    let until = Instant::now().checked_add(Duration::from_millis(milliseconds));
    // SAFETY: C's contract.
    status(|| unsafe { shared(task)? }.wait(until))
}

/// Cancels a submitted task. A waiting task ends now, as OUTRIGGER_CANCELLED. A task on a device
/// ends so when the device releases it. Returns 1 if the task ends as cancelled, and 0 if it ends,
/// or has ended, in another way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_task_cancel(task: *mut outrigger_task) -> i32 {
    // SAFETY: C's contract.
    value(0, || Ok(unsafe { shared(task)? }.cancel().into()))
}

/// Makes an ended task ready to be filled again. Its request, its data and its buffer stay. Its
/// results and its deadline are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_task_again(task: Option<&outrigger_task>) -> outrigger_status {
    status(|| handle(task, "task")?.again())
}
