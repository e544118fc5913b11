//! Which devices this machine has, and why others are missing.

use std::path::{Path, PathBuf};

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

/// Looks for devices. Loads no driver that is not there, and fails never: what cannot be used is missing.
pub fn discover() -> Discovered {
    let why = match find_library("libcuda.so.1") {
        None => "libcuda.so.1, which comes with NVIDIA's driver, was not found".to_string(),
        Some(path) => format!("{} is there, but this program was built without CUDA", path.display()),
    };
    Discovered { devices: Vec::new(), missing: vec![Missing { kind: "cuda", why }] }
}

/// Where the loader would find a library: in `LD_LIBRARY_PATH`, or in the usual directories.
fn find_library(name: &str) -> Option<PathBuf> {
    const USUAL: [&str; 6] = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/cuda/compat",
        "/usr/lib/wsl/lib",
    ];
    let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let set: Vec<PathBuf> = std::env::split_paths(&set).filter(|dir| !dir.as_os_str().is_empty()).collect();
    let usual = USUAL.iter().map(|dir| Path::new(dir).to_path_buf());
    set.into_iter().chain(usual).map(|dir| dir.join(name)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said_to_be_missing_and_why() {
        let Discovered { devices, missing } = discover();
        assert!(!devices.is_empty() || missing.iter().any(|missing| missing.kind == "cuda"));
        assert!(missing.iter().all(|missing| !missing.why.is_empty()));
        assert_eq!(find_library("libno-such-thing.so"), None);
    }
}
