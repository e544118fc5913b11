//! A file that is open for reading: its content stays the same until it is closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outrigger_format::Root;
use outrigger_store::ops::View;
use outrigger_store::read::Reader;
use outrigger_store::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Target;
use crate::call::{call, require_file};
use crate::store::{Inner, Store, When};
use crate::values::parse;

/// Bytes that one thread reads before it takes the next part of a long read.
const PART: usize = 4 << 20;

/// Keeps a content readable.
struct Open {
    inner: Arc<Inner>,
    root: Root,
    _view: Arc<View>,
}

impl Open {
    /// Fills `out` with the bytes from `offset`, which the file has.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.len() < 2 * PART || self.inner.threads == 1 {
            return self.read_part(offset, out);
        }
        let threads = self.inner.threads.min(out.len() / PART);
        let parts = Mutex::new(out.chunks_mut(PART).enumerate());
        let (failed, is_over) = (Mutex::new(None), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((number, part)) = next else { break };
                        if let Err(error) = self.read_part(offset + (number * PART) as u64, part) {
                            is_over.store(true, Ordering::Relaxed);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn read_part(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let len = out.len();
        let done = Reader::new(&self.inner.store).read_into(&self.root, offset, out)?;
        if done == len {
            Ok(())
        } else {
            Err(Error::damaged(format!("the content ends at byte {}", offset + done as u64)))
        }
    }
}

#[pyclass(frozen, module = "outrigger._native")]
pub struct File {
    open: Mutex<Option<Arc<Open>>>,
    #[pyo3(get)]
    size: u64,
}

impl File {
    fn open(&self) -> PyResult<Arc<Open>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }
}

#[pymethods]
impl File {
    /// The bytes from `offset`, fewer than `len` at the end.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.open()?;
        let len = len.min(self.size.saturating_sub(offset)) as usize;
        PyBytes::new_with(py, len, |out| call(py, || open.read(offset, out)))
    }

    /// Fills a buffer from `offset`; the number of bytes, fewer at the end.
    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (open, mut target) = (self.open()?, Target::of(buffer)?);
        let len = (target.len() as u64).min(self.size.saturating_sub(offset)) as usize;
        let out = &mut target.bytes()[..len];
        call(py, || open.read(offset, out))?;
        Ok(len)
    }

    fn close(&self, py: Python<'_>) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(open));
    }
}

#[pymethods]
impl Store {
    /// Opens a file's present content, that in a snapshot, or an earlier version.
    fn open(&self, py: Python<'_>, path: &[u8], at: Option<When>, version: Option<u64>) -> PyResult<File> {
        let (inner, path) = (self.inner()?, parse(path)?);
        let (inode, view) = call(py, || inner.held(&path, at.as_ref()))?;
        require_file(&path, &inode)?;
        call(py, || {
            let root = match version {
                None => inode.root,
                Some(number) => view.version(&inner.store, inode.number, number)?,
            };
            let size = root.len();
            Ok(File { open: Mutex::new(Some(Arc::new(Open { inner, root, _view: view }))), size })
        })
    }
}
