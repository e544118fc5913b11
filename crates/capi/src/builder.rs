//! Configures and starts a runtime.

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};

use outrigger_offload::accelerator::Accelerator;
use outrigger_offload::cuda::CudaDevice;
use outrigger_offload::placement::{Calibration, LANES_MAX, Policy, default_path};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_offload::{Discovered, discover};

use crate::handles::outrigger_runtime;
use crate::raw;
use crate::status::outrigger_status::{OUTRIGGER_ABSENT, OUTRIGGER_INVALID, OUTRIGGER_IO};
use crate::status::{Error, Result, outrigger_status, status, value};

/// The configuration of a runtime. One thread at a time may use it.
#[derive(Default)]
pub struct outrigger_builder {
    threads: Option<usize>,
    keep_bytes: Option<u64>,
    devices: Vec<Box<dyn Accelerator>>,
    policy: Policy,
    calibration: Calibration,
    missing: CString,
}

impl outrigger_builder {
    fn has(&self, name: &str) -> bool {
        self.devices.iter().any(|known| known.identity().name == name)
    }

    fn add(&mut self, device: Box<dyn Accelerator>) -> Result {
        let name = &device.identity().name;
        if self.has(name) {
            return Err(Error::invalid(format!("{name} is there already")));
        }
        if self.devices.len() + 1 == LANES_MAX {
            return Err(Error::invalid(format!("a runtime has at most {} devices", LANES_MAX - 1)));
        }
        self.devices.push(device);
        Ok(())
    }

    fn discover(&mut self) -> Result {
        let Discovered { devices, missing } = discover();
        let lines: Vec<String> =
            missing.iter().map(|missing| format!("{}: {}", missing.kind, missing.why)).collect();
        self.missing = CString::new(lines.join("\n").replace('\0', " ")).unwrap_or_default();
        for device in devices {
            if !self.has(&device.identity().name) {
                self.add(device)?;
            }
        }
        Ok(())
    }

    /// Adds a device of another kind, if it exists.
    fn found(&mut self, name: &str, kind: &str) -> Result {
        let Discovered { devices, missing } = discover();
        if let Some(device) = devices.into_iter().find(|device| device.identity().name == name) {
            return self.add(device);
        }
        let why = missing.into_iter().find(|missing| missing.kind == kind).map(|missing| missing.why);
        let why = why.unwrap_or_else(|| "there is none of this number".to_string());
        Err(Error::new(OUTRIGGER_ABSENT, format!("{name}: {why}")))
    }

    fn simulated(&mut self, preset: &str) -> Result {
        let speed = Speed::preset(preset).ok_or_else(|| {
            let known = Speed::PRESETS.map(|(name, _)| name).join(", ");
            Error::invalid(format!("`{preset}` is no simulated device; there are {known}"))
        })?;
        let number = self.devices.iter().filter(|device| device.identity().name.starts_with("sim:")).count();
        self.add(Box::new(SimDevice::new(SimOptions::new(format!("sim:{number}"), speed))))
    }
}

fn builder(builder: Option<&mut outrigger_builder>) -> Result<&mut outrigger_builder> {
    builder.ok_or_else(|| Error::invalid("builder is null"))
}

/// The path from C, or the default path for null.
///
/// # Safety
/// C's contract: null, or a string.
pub unsafe fn calibration_path(path: *const c_char) -> Result<PathBuf> {
    if path.is_null() {
        let none = "there is no place for the calibration: set OUTRIGGER_CALIBRATION, or HOME";
        return default_path().ok_or_else(|| Error::new(OUTRIGGER_IO, none));
    }
    // SAFETY: as above.
    Ok(Path::new(unsafe { raw::text(path, "path")? }).to_path_buf())
}

/// A configuration with one thread for each processor and no other device. Never null. Pass it to
/// outrigger_runtime_new() or to outrigger_builder_free().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_builder_new() -> Option<Box<outrigger_builder>> {
    value(None, || Ok(Some(Box::default())))
}

/// Sets the number of threads that work on the processor, 1 to 1024.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_builder_threads(
    builder: Option<&mut outrigger_builder>,
    threads: usize,
) -> outrigger_status {
    status(|| {
        if !(1..=1024).contains(&threads) {
            return Err(Error::invalid(format!("{threads} threads")));
        }
        self::builder(builder)?.threads = Some(threads);
        Ok(())
    })
}

/// Sets how many bytes of unused buffers are kept. The default is 256 MiB.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_builder_keep_bytes(
    builder: Option<&mut outrigger_builder>,
    bytes: u64,
) -> outrigger_status {
    status(|| {
        self::builder(builder)?.keep_bytes = Some(bytes);
        Ok(())
    })
}

/// Adds a device, at most 23. "cuda:0", "nvcomp:0" and "qat:0" are devices of this machine
/// (OUTRIGGER_ABSENT says why one is missing). "auto" adds all that exist; none is no error
/// (outrigger_builder_missing() says why). "sim:PRESET" is a simulated device, with right results
/// and modelled times: "sim:pcie5-gpu", "sim:geforce-8800", "sim:integrated" or "sim:slow".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_builder_device(
    builder: Option<&mut outrigger_builder>,
    name: *const c_char,
) -> outrigger_status {
    status(|| {
        let builder = self::builder(builder)?;
        // SAFETY: C's contract.
        let name = unsafe { raw::text(name, "name")? };
        match name.split_once(':') {
            None if name == "auto" => builder.discover(),
            Some(("sim", preset)) => builder.simulated(preset),
            Some(("cuda", number)) => {
                let ordinal = number.parse::<usize>();
                let ordinal =
                    ordinal.map_err(|_| Error::invalid(format!("`{number}` is no number of a device")))?;
                let device = CudaDevice::open(ordinal);
                let device = device
                    .map_err(|why| Error::new(OUTRIGGER_ABSENT, format!("{name}: {}", why.why_missing())))?;
                builder.add(Box::new(device))
            }
            Some((kind @ ("qat" | "nvcomp"), _)) => builder.found(name, kind),
            _ => {
                let known = "auto, cuda:N, nvcomp:N, qat:N or sim:PRESET";
                Err(Error::invalid(format!("`{name}` is no device; use {known}")))
            }
        }
    })
}

/// The kinds of devices that the last "auto" has not found, with reasons: a line for each, "" if
/// none is missing. Valid until the next call with this builder.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_builder_missing(builder: Option<&outrigger_builder>) -> *const c_char {
    builder.map_or(c"".as_ptr(), |builder| builder.missing.as_ptr())
}

/// Sets a threshold of placement, or of the handling of device failures, by its name: "objective"
/// to "throughput", "latency" or "cpu"; "offload_min_bytes" to "64K"; "check_every" to "1".
/// docs/offload.md explains them all. Sizes are written as 64K, times as seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_builder_policy(
    builder: Option<&mut outrigger_builder>,
    name: *const c_char,
    value: *const c_char,
) -> outrigger_status {
    status(|| {
        let builder = self::builder(builder)?;
        // SAFETY: C's contract.
        let (name, value) = unsafe { (raw::text(name, "name")?, raw::text(value, "value")?) };
        builder.policy.set(name, value).map_err(|error| Error::new(OUTRIGGER_INVALID, error.to_string()))
    })
}

/// Reads the measurements of this machine's devices from a file, or, if `path` is null, from the
/// file of `outrigger calibrate`. A missing file is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_builder_calibration(
    builder: Option<&mut outrigger_builder>,
    path: *const c_char,
) -> outrigger_status {
    status(|| {
        let builder = self::builder(builder)?;
        // SAFETY: C's contract.
        let path = unsafe { calibration_path(path)? };
        builder.calibration = Calibration::load(&path)
            .map_err(|error| Error::new(OUTRIGGER_IO, format!("cannot read {}: {error}", path.display())))?;
        Ok(())
    })
}

/// Frees it. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_builder_free(builder: Option<Box<outrigger_builder>>) {
    drop(builder);
}

/// Starts a runtime and frees the builder, even after an error. Null after an error. End it with
/// outrigger_runtime_shutdown().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_runtime_new(
    builder: Option<Box<outrigger_builder>>,
) -> Option<Box<outrigger_runtime>> {
    value(None, || {
        let given = builder.ok_or_else(|| Error::invalid("builder is null"))?;
        let outrigger_builder { threads, keep_bytes, devices, policy, calibration, missing: _ } = *given;
        let mut builder = Runtime::builder().policy(policy).calibration(calibration);
        if let Some(threads) = threads {
            builder = builder.cpu_threads(threads);
        }
        if let Some(keep_bytes) = keep_bytes {
            builder = builder.keep_bytes(keep_bytes);
        }
        let builder = devices.into_iter().fold(builder, |builder, device| builder.device(device));
        Ok(Some(Box::new(outrigger_runtime(builder.build()))))
    })
}
