//! Calls into the store: without the interpreter's lock, interruptible where they are long, and
//! with Python's own exceptions.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::Inode;
use outrigger_store::tree::StorePath;
use outrigger_store::write::Progress;
use outrigger_store::{Error, ErrorKind, Result};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;

pyo3::create_exception!(
    outrigger,
    DamagedError,
    PyOSError,
    "Stored data is damaged; `outrigger check` says what."
);
pyo3::create_exception!(
    outrigger,
    ConflictError,
    PyRuntimeError,
    "Another client changed what the call relied on, or ended its session: call again."
);

/// How often a long call shows its progress and looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long an interrupted call waits for files that are being written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The exception for an error.
pub fn exception(error: &Error) -> PyErr {
    // Python makes FileNotFoundError, PermissionError and so on from the number.
    let os = |errno: Errno| PyOSError::new_err((errno.raw_os_error(), error.to_string()));
    match error.kind() {
        ErrorKind::Invalid => PyValueError::new_err(error.to_string()),
        ErrorKind::NotFound => os(Errno::NOENT),
        ErrorKind::Exists => os(Errno::EXIST),
        ErrorKind::Busy => os(Errno::AGAIN),
        ErrorKind::Denied => os(Errno::ACCESS),
        ErrorKind::Destroyed => os(Errno::KEYREVOKED),
        ErrorKind::Full => os(Errno::NOSPC),
        ErrorKind::Io => os(Errno::IO),
        ErrorKind::Damaged => DamagedError::new_err((Errno::IO.raw_os_error(), error.to_string())),
        ErrorKind::Changed | ErrorKind::Fenced => ConflictError::new_err(error.to_string()),
        ErrorKind::Newer => PyRuntimeError::new_err(error.to_string()),
        ErrorKind::Cancelled => PyKeyboardInterrupt::new_err(error.to_string()),
    }
}

/// Calls the store without the interpreter's lock.
pub fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|error| exception(&error))
}

/// Python's own exception where a file is asked for, and `inode` is something else.
pub fn require_file(path: &StorePath, inode: &Inode) -> PyResult<()> {
    match inode.attributes.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => {
            Err(PyOSError::new_err((Errno::ISDIR.raw_os_error(), format!("`{path}` is a directory"))))
        }
        _ => Err(PyOSError::new_err((Errno::INVAL.raw_os_error(), format!("`{path}` is not a file")))),
    }
}

/// As [`call`], in a thread of its own: meanwhile `show` gets (files, bytes) so far, and Ctrl-C ends
/// the work. Committed changes stay.
pub fn long_call<T: Send>(
    py: Python<'_>,
    progress: &Arc<Progress>,
    show: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    // Without the lock a closure may go to another thread, as far as the compiler knows.
    let receiver = Mutex::new(receiver);
    let wait = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK_EVERY);
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(work()));
        let mut interrupted = None;
        loop {
            match py.detach(wait) {
                Ok(done) => return interrupted.map_or_else(|| done.map_err(|error| exception(&error)), Err),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("the call ended without a result"));
                }
                Err(RecvTimeoutError::Timeout) if interrupted.is_none() => {
                    let view = progress.view();
                    let seen =
                        (view.files_done + view.files_unchanged, view.bytes_done + view.bytes_unchanged);
                    let looked = py
                        .check_signals()
                        .and_then(|()| show.map_or(Ok(()), |show| show.call1(seen).map(drop)));
                    if let Err(error) = looked {
                        interrupted = Some(error);
                        py.detach(|| progress.cancel(PATIENCE));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    })
}
