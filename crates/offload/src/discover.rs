//! Which devices this machine has, and why others are missing.

use crate::cuda::{self, CudaDevice};
use crate::device::Accelerator;

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
    /// Which: `cuda`.
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
            Err(fault) => found.missing.push(missing(format!("cuda:{ordinal}: {fault}"))),
        }),
        Err(why) => found.missing.push(missing(why)),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_to_be_missing_and_why() {
        let Discovered { devices, missing } = discover();
        assert!(!devices.is_empty() || missing.iter().any(|missing| missing.kind == "cuda"));
        assert!(missing.iter().all(|missing| !missing.why.is_empty()));
    }
}
