//! What functions return, what went wrong last on this thread, and the wall that no panic passes.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The version of the binary interface. It changes when something is removed or means something else;
/// what is added leaves it.
pub const OUTRIGGER_ABI: u32 = 1;

/// How a call, or a task, ended. After anything but OUTRIGGER_OK and OUTRIGGER_PENDING,
/// outrigger_last_error() says more.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum outrigger_status {
    /// Done.
    OUTRIGGER_OK = 0,
    /// An argument is null that may not be, or out of bounds.
    OUTRIGGER_INVALID = 1,
    /// The task, or the buffer, is not in a state for this: it is under way, or has not ended, or tasks
    /// share it.
    OUTRIGGER_STATE = 2,
    /// What comes out does not fit in the memory given for it; how much is needed was stored.
    OUTRIGGER_SPACE = 3,
    /// No more goes in: as many tasks wait as may, the table holds as many entries as it can, or memory
    /// is exhausted.
    OUTRIGGER_FULL = 4,
    /// The task has not ended yet.
    OUTRIGGER_PENDING = 5,
    /// The task was cancelled.
    OUTRIGGER_CANCELLED = 6,
    /// The task had not been begun by its deadline.
    OUTRIGGER_EXPIRED = 7,
    /// The runtime was shut down before the task was begun.
    OUTRIGGER_STOPPED = 8,
    /// The data is no good: damaged compressed bytes, or the caller's own operation said so.
    OUTRIGGER_DATA = 9,
    /// No device does this with these parameters.
    OUTRIGGER_UNSUPPORTED = 10,
    /// The device that was asked for is not there.
    OUTRIGGER_ABSENT = 11,
    /// A file could not be read or written.
    OUTRIGGER_IO = 12,
    /// A bug in the library. Nothing is promised about the objects that took part, but that they can be
    /// freed.
    OUTRIGGER_BUG = 13,
}

use outrigger_status::{OUTRIGGER_BUG, OUTRIGGER_INVALID, OUTRIGGER_OK};

/// A status that is not OK, and why.
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
    // A thread that is ending has nobody left to ask.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = CString::new(text).unwrap_or_default();
    });
    error.status
}

/// Runs what a function of C's is made of; a panic becomes an error.
fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // Whatever a panic leaves behind in the objects is what OUTRIGGER_BUG says of them.
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

/// The library's version of the binary interface: compare it with OUTRIGGER_ABI of the header that the
/// program was compiled with, where the library was loaded by hand.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_abi() -> u32 {
    OUTRIGGER_ABI
}

/// The library's version, such as "0.1.0". Constant.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What went wrong in the last call on this thread that failed; "" if none has. Valid until the next one
/// fails.
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
