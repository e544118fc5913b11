//! Which devices this machine has, and why others are missing.

use crate::cuda::{self, CudaDevice};
use crate::device::Accelerator;
use crate::nvcomp::{NvcompDevice, NvcompOptions};
use crate::qat::{QatDevice, QatOptions};

/// Devices beside the processor that a runtime takes.
const DEVICES_MAX: usize = crate::placement::LANES_MAX - 1;

/// What was found.
#[derive(Default)]
pub struct Discovered {
    /// Devices that can be used.
    pub devices: Vec<Box<dyn Accelerator>>,
    /// Kinds of devices that cannot.
    pub missing: Vec<Missing>,
}

/// A kind of device that is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Which: `cuda`, `nvcomp`, `qat`.
    pub kind: &'static str,
    /// Why, in a sentence without a full stop.
    pub why: String,
}

/// Looks for devices and opens those it finds. Loads no driver that is not there, and fails never: what cannot be used is
/// missing.
pub fn discover() -> Discovered {
    let mut found = Discovered::default();
    let missing = |why| Missing { kind: "cuda", why };
    match cuda::device_count() {
        Ok(count) => (0..count).for_each(|ordinal| match CudaDevice::open(ordinal) {
            Ok(device) => found.devices.push(Box::new(device)),
            Err(fault) => found.missing.push(missing(format!("cuda:{ordinal}: {}", fault.why_missing()))),
        }),
        Err(why) => found.missing.push(missing(why)),
    }
    match QatDevice::open(&QatOptions::default()) {
        Ok(device) => found.devices.push(Box::new(device)),
        Err(why) => found.missing.push(Missing { kind: "qat", why }),
    }
    // Compression on the GPUs that were found; on the first, to say why not.
    for ordinal in 0..cuda::device_count().unwrap_or(0).max(1) {
        match NvcompDevice::open(&NvcompOptions::of_gpu(ordinal)) {
            Ok(device) => found.devices.push(Box::new(device)),
            Err(why) => found.missing.push(Missing { kind: "nvcomp", why }),
        }
    }
    // A runtime has no room for more.
    for device in found.devices.split_off(found.devices.len().min(DEVICES_MAX)) {
        let why = format!("{} is one more than {DEVICES_MAX} devices", device.identity().name);
        found.missing.push(Missing { kind: "more", why });
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
