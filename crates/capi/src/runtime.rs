//! The runtime: shutdown, calibration and predictions. `builder.rs` starts it, `task/` uses it, and
//! `metrics.rs` counts its work.

use std::ffi::c_char;
use std::time::Duration;

use outrigger_offload::calibrate::{CalibrateOptions, builtin_cases, calibrate, sizes};
use outrigger_offload::runtime::Shutdown;

use crate::builder::calibration_path;
use crate::handles::outrigger_runtime;
use crate::raw::handle;
use crate::status::outrigger_status::{OUTRIGGER_IO, OUTRIGGER_UNSUPPORTED};
use crate::status::{Error, outrigger_status, status};
use crate::task::{failure, outrigger_task};

/// Ends a runtime and frees it. With `finish` = 1, all submitted tasks are executed first. With 0,
/// tasks that have not begun end as OUTRIGGER_STOPPED. Returns when all callbacks have returned.
/// Tasks that are not freed yet can still be read and freed, but no longer submitted. A callback
/// must not call this. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_runtime_shutdown(runtime: Option<Box<outrigger_runtime>>, finish: i32) {
    let how = if finish == 0 { Shutdown::HandBack } else { Shutdown::Finish };
    status(|| {
        if let Some(runtime) = runtime {
            runtime.0.shutdown(how);
        }
        Ok(())
    });
}

/// Measures every device with every built-in operation, at one size for each decade up to
/// `max_bytes` (4 KiB to 1 GiB). Each measurement takes `milliseconds`, or four tasks if that is
/// longer. Placement uses the results from then on. With 128 MiB and 20 ms this takes some ten
/// seconds.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_runtime_calibrate(
    runtime: Option<&outrigger_runtime>,
    max_bytes: u64,
    milliseconds: u32,
) -> outrigger_status {
    status(|| {
        let runtime = &handle(runtime, "runtime")?.0;
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        if !(4 << 10..=1 << 30).contains(&max_bytes) {
            return Err(Error::invalid(format!("{max_bytes} is not from 4 KiB to 1 GiB")));
        }
        let at_least = Duration::from_millis(milliseconds.into());
        let options = CalibrateOptions { max_bytes, at_least, ..Default::default() };
        for device in 0..runtime.device_count() {
            for case in builtin_cases() {
                for bytes in sizes(max_bytes) {
                    calibrate(runtime, device, &case, bytes, &options).map_err(|failed| {
                        Error::new(failure(&failed.reason), format!("{}: {failed}", case.name()))
                    })?;
                }
            }
        }
        Ok(())
    })
}

/// Saves the known speeds of the devices, from calibration and from all tasks so far, in a file. If
/// `path` is null, it is the file of `outrigger calibrate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_runtime_save_calibration(
    runtime: Option<&outrigger_runtime>,
    path: *const c_char,
) -> outrigger_status {
    status(|| {
        let runtime = &handle(runtime, "runtime")?.0;
        // SAFETY: C's contract.
        let path = unsafe { calibration_path(path)? };
        let failed = |error| Error::new(OUTRIGGER_IO, format!("cannot write {}: {error}", path.display()));
        runtime.calibration().save(&path).map_err(failed)
    })
}

/// The predicted time of a device for a task that is filled and not submitted, without waiting, in
/// nanoseconds. 0 is the processor; outrigger_runtime_device() has the others.
/// OUTRIGGER_UNSUPPORTED if the device does not support the task, or was never measured with a
/// similar one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_runtime_predict(
    runtime: Option<&outrigger_runtime>,
    device: usize,
    task: Option<&outrigger_task>,
    nanoseconds: *mut u64,
) -> outrigger_status {
    status(|| {
        let (runtime, task) = (&handle(runtime, "runtime")?.0, handle(task, "task")?);
        // SAFETY: C's contract.
        let nanoseconds = unsafe { crate::raw::room(nanoseconds, 1, "nanoseconds")? };
        let (supported, class, bytes) = task.draft(|draft| {
            draft.check().map_err(|why| Error::invalid(why.to_string()))?;
            let work = draft.work();
            Ok((runtime.supports(device, work), work.class(), work.len_in()))
        })?;
        let predicted = if supported { runtime.predict(device, class, bytes) } else { None };
        let predicted = predicted.ok_or_else(|| {
            Error::new(OUTRIGGER_UNSUPPORTED, format!("device {device} has no prediction for {class}"))
        })?;
        nanoseconds[0].write(u64::try_from(predicted.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    })
}
