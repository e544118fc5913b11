//! QATzip's status codes, and their meaning for the task and the device.
//!
//! Software fallback is off (`sw_backup`), so a code that reports one counts as a failure. The
//! runtime decides what executes a task, and its metrics show it.

use std::ffi::c_int;

use crate::accelerator::Fault;

/// Codes that are not simply failures.
pub(super) const OK: c_int = 0;
/// There was nothing to do, as the initialisation or the set-up was already done.
pub(super) const DUPLICATE: c_int = 1;
/// The result does not fit.
pub(super) const BUF_ERROR: c_int = -3;

/// The fault of a code. The caller handles [`OK`], [`DUPLICATE`] and, for a compression,
/// [`BUF_ERROR`] before.
pub(super) fn fault(code: c_int) -> Fault {
    let text = name(code).to_string();
    match code {
        // There is no hardware or no driver, or the process was never initialised, so everything is
        // lost.
        11 | 12 | 100 | -101 | -102 => Fault::Lost(text.into()),
        // The card did not answer, or its result failed its own verification, so the tasks in
        // flight on it cannot be trusted.
        -5 | -100 => Fault::Lost(text.into()),
        // All instances work for others.
        13 | -103 => Fault::Busy,
        14 | 15 | -104 => Fault::OutOfMemory,
        16 | -105 | -116 | -200 => Fault::Unsupported,
        _ => Fault::Failed(text.into()),
    }
}

/// The code's name in `qatzip.h`.
pub(super) fn name(code: c_int) -> Name {
    let known = match code {
        0 => "QZ_OK",
        1 => "QZ_DUPLICATE",
        2 => "QZ_FORCE_SW",
        -1 => "QZ_PARAMS",
        -2 => "QZ_FAIL",
        -3 => "QZ_BUF_ERROR",
        -4 => "QZ_DATA_ERROR",
        -5 => "QZ_TIMEOUT",
        -100 => "QZ_INTEG",
        11 => "QZ_NO_HW",
        12 => "QZ_NO_MDRV",
        13 => "QZ_NO_INST_ATTACH",
        14 => "QZ_LOW_MEM",
        15 => "QZ_LOW_DEST_MEM",
        16 => "QZ_UNSUPPORTED_FMT",
        100 => "QZ_NONE",
        -101 => "QZ_NOSW_NO_HW",
        -102 => "QZ_NOSW_NO_MDRV",
        -103 => "QZ_NOSW_NO_INST_ATTACH",
        -104 => "QZ_NOSW_LOW_MEM",
        -105 => "QZ_NO_SW_AVAIL",
        -116 => "QZ_NOSW_UNSUPPORTED_FMT",
        -117 => "QZ_POST_PROCESS_ERROR",
        -118 => "QZ_METADATA_OVERFLOW",
        -119 => "QZ_OUT_OF_RANGE",
        -200 => "QZ_NOT_SUPPORTED",
        _ => return Name { code, known: None },
    };
    Name { code, known: Some(known) }
}

/// A code with its name.
pub(super) struct Name {
    code: c_int,
    known: Option<&'static str>,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.known {
            Some(name) => write!(f, "{name} ({})", self.code),
            None => write!(f, "QATzip's code {}", self.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_fault() {
        let grave = [11, 12, 100, -101, -102, -5, -100];
        for code in grave {
            assert!(fault(code).is_grave(), "{}", name(code));
        }
        assert_eq!([13, -103].map(fault), [Fault::Busy, Fault::Busy]);
        assert!([14, 15, -104].map(fault).iter().all(|fault| *fault == Fault::OutOfMemory));
        assert!([16, -105, -116, -200].map(fault).iter().all(|fault| *fault == Fault::Unsupported));
        for code in [2, -1, -2, -4, -117, -118, -119, 77] {
            assert_eq!(fault(code), Fault::Failed(name(code).to_string().into()), "{}", name(code));
        }
        assert_eq!(name(-103).to_string(), "QZ_NOSW_NO_INST_ATTACH (-103)");
        assert_eq!(name(77).to_string(), "QATzip's code 77");
    }
}
