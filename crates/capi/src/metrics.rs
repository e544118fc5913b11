//! What a runtime has done.

use std::ffi::c_char;
use std::time::Duration;

use outrigger_offload::runtime::BreakerState;

use crate::handles::outrigger_runtime;
use crate::raw::{self, handle};
use crate::status::{Error, outrigger_status, status, value};

/// Whether a device is trusted.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum outrigger_breaker {
    /// It is.
    OUTRIGGER_CLOSED = 0,
    /// It is cut off.
    OUTRIGGER_OPEN = 1,
    /// It is on trial.
    OUTRIGGER_HALF_OPEN = 2,
}

/// One device, at one moment. Sums run since the runtime began; times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct outrigger_device_metrics {
    /// Its name: "cpu", "cuda:0". Ends with a zero.
    pub name: [c_char; 32],
    /// What it is: "NVIDIA H200". Ends with a zero; cut if it is longer.
    pub model: [c_char; 96],
    /// One of enum outrigger_breaker.
    pub breaker: u32,
    /// 1 if it works in the host's memory, so that nothing is copied.
    pub zero_copy: u32,
    /// Its own memory, bytes; 0 if it has none.
    pub memory_bytes: u64,
    /// How often it was cut off.
    pub trips: u64,
    /// How often it was re-initialised, or tried to be.
    pub resets: u64,
    /// Tasks that wait for it.
    pub waiting: u64,
    /// Tasks that it works on.
    pub running: u64,
    /// Tasks that it has done.
    pub tasks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they have waited.
    pub queue_ns: u64,
    /// How long it has copied in.
    pub copy_in_ns: u64,
    /// How long it has computed.
    pub kernel_ns: u64,
    /// How long it has copied out.
    pub copy_out_ns: u64,
    /// How long tasks were predicted to take from submission to end, where there was a prediction.
    pub predicted_ns: u64,
    /// How long these took.
    pub actual_ns: u64,
    /// Tasks that it was given and the processor did in the end.
    pub given_up: u64,
    /// Results that were compared with the processor's.
    pub checked: u64,
    /// Faults: unsupported, busy, out of memory, failed, lost, hung, wrong.
    pub faults: [u64; 7],
}

/// Beside the devices.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct outrigger_metrics {
    /// Devices, the processor included.
    pub devices: u64,
    /// Tasks that ended without a result.
    pub failed: u64,
    /// Buffers handed out by the pool.
    pub buffers: u64,
    /// Of these, new ones.
    pub buffers_fresh: u64,
    /// Of the new ones, those that the device had no memory for.
    pub buffers_not_locked: u64,
    /// Bytes that lie in the pool, unused.
    pub buffers_kept_bytes: u64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// As much of a text as fits, and a zero.
fn short<const N: usize>(text: &str) -> [c_char; N] {
    let mut short = [0; N];
    short[..N - 1].iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    short
}

/// How many devices a runtime has, the processor, which is number 0, included. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_runtime_devices(runtime: Option<&outrigger_runtime>) -> usize {
    value(0, || Ok(handle(runtime, "runtime")?.0.device_count()))
}

/// What a device has done so far. `size` is sizeof *out: a later version of the library may know more
/// than the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_runtime_device(
    runtime: Option<&outrigger_runtime>,
    device: usize,
    out: *mut outrigger_device_metrics,
    size: usize,
) -> outrigger_status {
    status(|| {
        let metrics = handle(runtime, "runtime")?.0.metrics();
        let count = metrics.devices.len();
        let known = metrics.devices.get(device);
        let one = known.ok_or_else(|| Error::invalid(format!("device {device} of {count}")))?;
        let breaker = match one.breaker {
            BreakerState::Closed => outrigger_breaker::OUTRIGGER_CLOSED,
            BreakerState::Open => outrigger_breaker::OUTRIGGER_OPEN,
            BreakerState::HalfOpen => outrigger_breaker::OUTRIGGER_HALF_OPEN,
        };
        let metrics = outrigger_device_metrics {
            name: short(&one.identity.name),
            model: short(&one.identity.model),
            breaker: breaker as u32,
            zero_copy: one.identity.zero_copy.into(),
            memory_bytes: one.identity.memory_bytes,
            trips: one.trips,
            resets: one.resets,
            waiting: one.waiting as u64,
            running: one.running as u64,
            tasks: one.tasks,
            bytes: one.bytes,
            queue_ns: nanos(one.queue),
            copy_in_ns: nanos(one.busy.copy_in),
            kernel_ns: nanos(one.busy.kernel),
            copy_out_ns: nanos(one.busy.copy_out),
            predicted_ns: nanos(one.predicted),
            actual_ns: nanos(one.actual),
            given_up: one.given_up,
            checked: one.checked,
            faults: one.faults.map(|(_, count)| count),
        };
        // SAFETY: C's contract.
        unsafe { raw::put_struct(&metrics, out, size) }
    })
}

/// What a runtime has done so far, beside its devices. `size` is sizeof *out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_runtime_metrics(
    runtime: Option<&outrigger_runtime>,
    out: *mut outrigger_metrics,
    size: usize,
) -> outrigger_status {
    status(|| {
        let metrics = handle(runtime, "runtime")?.0.metrics();
        let metrics = outrigger_metrics {
            devices: metrics.devices.len() as u64,
            failed: metrics.failed,
            buffers: metrics.pool.handed_out,
            buffers_fresh: metrics.pool.fresh,
            buffers_not_locked: metrics.pool.not_locked,
            buffers_kept_bytes: metrics.pool.kept_bytes,
        };
        // SAFETY: C's contract.
        unsafe { raw::put_struct(&metrics, out, size) }
    })
}
