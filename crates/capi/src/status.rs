//! Results of functions, the last error of each thread, and the conversion of panics into errors.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The version of the binary interface. It changes if something is removed or changes its meaning,
/// but not if something is added.
pub const OUTRIGGER_ABI: u32 = 1;

/// How a call, or a task, ended. After anything but OUTRIGGER_OK and OUTRIGGER_PENDING,
/// outrigger_last_error() says more.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum outrigger_status {
    /// Done.
    OUTRIGGER_OK = 0,
    /// An argument is null although it must not be, or out of bounds.
    OUTRIGGER_INVALID = 1,
    /// The task or the buffer is in the wrong state: it is in flight, has not ended, or is shared
    /// by tasks.
    OUTRIGGER_STATE = 2,
    /// The output does not fit in the given memory. The required size was stored.
    OUTRIGGER_SPACE = 3,
    /// There is no room: the queue of tasks or the table is full, or memory is exhausted.
    OUTRIGGER_FULL = 4,
    /// The task has not ended yet.
    OUTRIGGER_PENDING = 5,
    /// The task was cancelled.
    OUTRIGGER_CANCELLED = 6,
    /// The task had not been begun by its deadline.
    OUTRIGGER_EXPIRED = 7,
    /// The runtime was shut down before the task was begun.
    OUTRIGGER_STOPPED = 8,
    /// The data is bad: damaged compressed bytes, or the caller's own operation rejected it.
    OUTRIGGER_DATA = 9,
    /// No device supports this with these parameters.
    OUTRIGGER_UNSUPPORTED = 10,
    /// The requested device does not exist.
    OUTRIGGER_ABSENT = 11,
    /// A file could not be read or written.
    OUTRIGGER_IO = 12,
    /// A bug in the library. The objects of the call can be freed, but nothing else is certain
    /// about them.
    OUTRIGGER_BUG = 13,
}

use outrigger_status::{OUTRIGGER_BUG, OUTRIGGER_INVALID, OUTRIGGER_OK};

/// A status that is not OK, with the reason.
#[derive(Debug)]
pub struct Error {
    pub status: outrigger_status,
    pub message: String,
}

impl Error {
    pub fn new(status: outrigger_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// A bad argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(OUTRIGGER_INVALID, message)
    }
}

pub type Result<T = ()> = std::result::Result<T, Error>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps an error for [`outrigger_last_error`].
fn keep(error: Error) -> outrigger_status {
    let text = error.message.replace('\0', " ");
    // A thread that is ending asks no more.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = CString::new(text).unwrap_or_default();
    });
    error.status
}

/// Runs the body of a C function. A panic becomes an error.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // Panics may leave the objects in any state, which the description of OUTRIGGER_BUG says.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Error::new(OUTRIGGER_BUG, format!("a bug in the library: {text}")))
    })
}

/// The body of a function that returns a status.
pub fn status(body: impl FnOnce() -> Result) -> outrigger_status {
    caught(body).map_or_else(keep, |()| OUTRIGGER_OK)
}

/// The body of a function that returns a value, or `otherwise` after an error.
pub fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    caught(body).unwrap_or_else(|error| {
        keep(error);
        otherwise
    })
}

/// The library's version of the binary interface. A program that loads the library by hand compares
/// it with OUTRIGGER_ABI of its header.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_abi() -> u32 {
    OUTRIGGER_ABI
}

/// The library's version, such as "0.1.0". Constant.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The error of the last failed call on this thread, "" if none has failed. Valid until the next
/// call fails.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The name of a status: "OUTRIGGER_OK". Constant; "unknown" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

fn name(status: i32) -> &'static CStr {
    const NAMES: [&CStr; 14] = [
        c"OUTRIGGER_OK",
        c"OUTRIGGER_INVALID",
        c"OUTRIGGER_STATE",
        c"OUTRIGGER_SPACE",
        c"OUTRIGGER_FULL",
        c"OUTRIGGER_PENDING",
        c"OUTRIGGER_CANCELLED",
        c"OUTRIGGER_EXPIRED",
        c"OUTRIGGER_STOPPED",
        c"OUTRIGGER_DATA",
        c"OUTRIGGER_UNSUPPORTED",
        c"OUTRIGGER_ABSENT",
        c"OUTRIGGER_IO",
        c"OUTRIGGER_BUG",
    ];
    usize::try_from(status).ok().and_then(|at| NAMES.get(at).copied()).unwrap_or(c"unknown")
}
