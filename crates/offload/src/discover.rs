//! Finds the devices of this machine, and why others are missing.

use crate::accelerator::Accelerator;
use crate::cuda::{self, CudaDevice};
use crate::nvcomp::{NvcompDevice, NvcompOptions};
use crate::qat::{QatDevice, QatOptions};

/// The most devices of a runtime beside the processor.
const DEVICES_MAX: usize = crate::placement::LANES_MAX - 1;

/// The result of the search.
#[derive(Default)]
pub struct Discovered {
    /// Devices that can be used.
    pub devices: Vec<Box<dyn Accelerator>>,
    /// Kinds of devices that cannot be used.
    pub missing: Vec<Missing>,
}

/// A kind of device that is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The kind: `cuda`, `nvcomp` or `qat`.
    pub kind: &'static str,
    /// The reason, as a sentence without a full stop.
    pub why: String,
    /// True if the machine has the device, but it could not be opened.
    pub is_there: bool,
}

/// Looks for devices and opens them, which may take a second for each. Never fails: devices that
/// cannot be used are missing.
pub fn discover() -> Discovered {
    discover_few(usize::MAX)
}

/// Like [`discover`], but opens at most so many GPUs.
pub fn discover_few(gpus_max: usize) -> Discovered {
    crate::loader::use_drivers();
    let mut found = Discovered::default();
    let missing = |kind, why, is_there| Missing { kind, why, is_there };
    let gpus = if gpus_max == 0 { Ok(0) } else { cuda::device_count() };
    let count = *gpus.as_ref().unwrap_or(&0);
    match gpus {
        Ok(count) => (0..count.min(gpus_max)).for_each(|ordinal| match CudaDevice::open(ordinal) {
            Ok(device) => found.devices.push(Box::new(device)),
            Err(fault) => {
                found.missing.push(missing("cuda", format!("cuda:{ordinal}: {}", fault.why_missing()), true));
            }
        }),
        Err(why) => found.missing.push(missing("cuda", why, false)),
    }
    match QatDevice::open(&QatOptions::default()) {
        Ok(device) => found.devices.push(Box::new(device)),
        Err(why) => found.missing.push(missing("qat", why, false)),
    }
    // Compression on the GPUs that were found. Without any, the first is tried, to learn the
    // reason.
    for ordinal in 0..count.max(1).min(gpus_max) {
        match NvcompDevice::open(&NvcompOptions::of_gpu(ordinal)) {
            Ok(device) => found.devices.push(Box::new(device)),
            Err(why) => found.missing.push(missing("nvcomp", why, false)),
        }
    }
    // A runtime has no room for more.
    for device in found.devices.split_off(found.devices.len().min(DEVICES_MAX)) {
        let why = format!("{} is one more than {DEVICES_MAX} devices", device.identity().name);
        found.missing.push(missing("more", why, false));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_to_be_missing_and_why() {
        let Discovered { devices, missing } = discover();
        for kind in ["cuda", "nvcomp", "qat"] {
            let is_there = devices.iter().any(|device| device.identity().name.starts_with(kind));
            assert!(is_there || missing.iter().any(|missing| missing.kind == kind), "{kind}");
        }
        assert!(missing.iter().all(|missing| !missing.why.is_empty()));
    }
}
