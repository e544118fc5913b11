//! Counters of a runtime.

use std::ffi::c_char;
use std::time::Duration;

use outrigger_offload::runtime::BreakerState;

use crate::handles::outrigger_runtime;
use crate::raw::{self, handle};
use crate::status::{Error, outrigger_status, status, value};

/// The trust in a device.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum outrigger_breaker {
    /// It is trusted.
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
    /// The hardware: "NVIDIA H200". Ends with a zero; truncated if it is longer.
    pub model: [c_char; 96],
    /// One of enum outrigger_breaker.
    pub breaker: u32,
    /// 1 if it works in the host's memory, so that nothing is copied.
    pub zero_copy: u32,
    /// Its own memory, bytes; 0 if it has none.
    pub memory_bytes: u64,
    /// How often it was cut off.
    pub trips: u64,
    /// How often the runtime tried to re-initialise it.
    pub resets: u64,
    /// Tasks that wait for it.
    pub waiting: u64,
    /// Tasks that it works on.
    pub running: u64,
    /// Tasks that it has done.
    pub tasks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they waited.
    pub queue_ns: u64,
    /// How long it copied in.
    pub copy_in_ns: u64,
    /// How long it computed.
    pub kernel_ns: u64,
    /// How long it copied out.
    pub copy_out_ns: u64,
    /// Predicted times from submission to end, of tasks with a prediction.
    pub predicted_ns: u64,
    /// Actual times of the same tasks.
    pub actual_ns: u64,
    /// Tasks that it did not finish and the processor took over.
    pub given_up: u64,
    /// Results that were compared with the processor's.
    pub checked: u64,
    /// Faults: unsupported, busy, out of memory, failed, lost, hung, wrong.
    pub faults: [u64; 7],
}

/// Counters of a runtime, apart from those of its devices.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct outrigger_metrics {
    /// The number of devices, with the processor.
    pub devices: u64,
    /// Tasks that ended without a result.
    pub failed: u64,
    /// Buffers handed out by the pool.
    pub buffers: u64,
    /// How many of them were new.
    pub buffers_fresh: u64,
    /// How many of the new ones are not page-locked, as the device had no memory.
    pub buffers_not_locked: u64,
    /// Bytes of unused buffers in the pool.
    pub buffers_kept_bytes: u64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a text that fits, with a zero at its end.
fn short<const N: usize>(text: &str) -> [c_char; N] {
    let mut short = [0; N];
    short[..N - 1].iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    short
}

/// The number of devices of a runtime, with the processor, which is number 0. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_runtime_devices(runtime: Option<&outrigger_runtime>) -> usize {
    value(0, || Ok(handle(runtime, "runtime")?.0.device_count()))
}

/// The counters of a device. `size` is sizeof *out, as a later version of the library may have more
/// fields than the program knows.
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

/// The counters of a runtime, apart from those of its devices. `size` is sizeof *out.
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
