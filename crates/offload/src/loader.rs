//! Opens libraries of devices at run time, and ends processes that have opened some.

#![allow(unsafe_code)]

use std::ffi::{OsStr, c_int};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::Library;

/// The reason why this program opens no libraries, for users. `None` if it does open some.
///
/// A static program's C library has no loader. Without this message, users would be told to install
/// what they have.
pub const OPENS_NO_LIBRARIES: Option<&str> = if cfg!(target_feature = "crt-static") {
    Some("the static program opens no libraries; use a package's program, or one built from source")
} else {
    None
};

/// Opens the library at `path`, or else the first of `names` that the system has. Returns it with
/// its path.
///
/// # Errors
/// The loader's reason why the first of them could not be opened, or that the program is static.
///
/// # Safety
/// Runs the library's initialisers, which must do nothing but initialise it.
pub(crate) unsafe fn open(path: Option<&OsStr>, names: &[&str]) -> Result<(Library, PathBuf), String> {
    if let Some(why) = OPENS_NO_LIBRARIES {
        return Err(why.to_owned());
    }
    let candidates: Vec<&OsStr> =
        path.map_or_else(|| names.iter().map(OsStr::new).collect(), |path| vec![path]);
    let mut why = None;
    for candidate in candidates {
        // SAFETY: the caller's promise.
        match unsafe { Library::new(candidate) } {
            Ok(opened) => return Ok((opened, PathBuf::from(candidate))),
            Err(error) => why = why.or(Some(reason(&error))),
        }
    }
    Err(why.unwrap_or_default())
}

/// Finds a function by its name.
///
/// # Safety
/// `T` is the type of a pointer to that function, as the library declares it. The caller uses it
/// only while the library is open.
pub(crate) unsafe fn find<T: Copy>(opened: &Library, name: &str) -> Option<T> {
    // SAFETY: the caller's promise.
    unsafe { opened.get::<T>(name.as_bytes()) }.ok().map(|function| *function)
}

/// True if a driver may have been called.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Records that drivers are called from now on.
pub(crate) fn use_drivers() {
    IN_USE.store(true, Ordering::SeqCst);
}

/// Ends the process. If a driver may be working on another thread, the clean-up of its library is
/// skipped, because it would destroy what the thread uses. The kernel frees everything. Only the
/// standard streams are flushed.
pub fn end_process(code: u8) -> ! {
    unsafe extern "C" {
        fn _exit(code: c_int) -> !;
    }
    if !IN_USE.load(Ordering::SeqCst) {
        std::process::exit(code.into());
    }
    let _ = (std::io::stdout().flush(), std::io::stderr().flush());
    // SAFETY: it takes any number, and does not return.
    unsafe { _exit(code.into()) }
}

/// The loader's message, which libloading's error does not print.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}
