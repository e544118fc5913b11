//! Storing and restoring: trees of this machine, bytes in memory, and files that are written piece
//! by piece.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::mounts;
use outrigger_store::local::get::{GetOptions, restore};
use outrigger_store::local::put::{MirrorRules, PutOptions, PutReport, Source, put};
use outrigger_store::meta::At;
use outrigger_store::ops::snapshots;
use outrigger_store::patterns::Patterns;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;
use outrigger_store::{Error, ErrorKind, Result};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::buffer::copied;
use crate::call::{call, exception, long_call, require_file};
use crate::store::{Inner, Store, When};
use crate::values::{Moved, parse};

/// Pieces that may wait to be stored.
const WAITING: usize = 4;

/// Puts sources, after a snapshot of what they replace if `undo` gives its name's end.
fn put_all(
    inner: &Inner,
    sources: Vec<(Source, StorePath)>,
    mut options: PutOptions,
    undo: Option<&str>,
    progress: &Arc<Progress>,
) -> Result<(PutReport, Option<String>)> {
    let store = &inner.store;
    let origin = |source: &Source| match source {
        Source::Path(path) => Some(path.as_os_str().as_encoded_bytes().to_vec()),
        Source::Stream(_) => None,
    };
    if let Some(time) = undo {
        let targets: Vec<StorePath> = sources.iter().map(|(_, target)| target.clone()).collect();
        let origins = sources.iter().filter_map(|(source, _)| origin(source)).collect();
        options.before = Some(snapshots::before(store, "put", time, origins, &targets)?);
    }
    let report = put(store, sources, &options, inner.threads, progress)?;
    let totals = report.write.totals.into();
    let before =
        options.before.map(|before| snapshots::settle(store, &before, totals)).transpose()?.flatten();
    inner.settle();
    Ok((report, before))
}

#[pymethods]
impl Store {
    /// Stores a file or tree of this machine at `target`.
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn put(
        &self,
        py: Python<'_>,
        source: PathBuf,
        target: &[u8],
        exclude: Vec<Vec<u8>>,
        rescan: bool,
        keep_missing: bool,
        replace_source: bool,
        allow_empty: bool,
        undo: Option<String>,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Moved> {
        let (inner, target) = (self.inner()?, parse(target)?);
        let progress: Arc<Progress> = Arc::default();
        let (report, before) = long_call(py, &progress, show.as_ref(), || {
            let mut options = PutOptions {
                rescan,
                keep_missing,
                mirror: Some(MirrorRules { replace_source, allow_empty }),
                own_devices: own_devices(&inner),
                ..PutOptions::default()
            };
            options.leave_out.patterns = Patterns::new("exclude", &exclude)?;
            put_all(&inner, vec![(Source::Path(source), target)], options, undo.as_deref(), &progress)
        })?;
        Ok(Moved::new(&report.write.progress, &progress, report.walk.removed, before))
    }

    /// Stores contents in memory, each as one file.
    fn put_bytes(
        &self,
        py: Python<'_>,
        files: Vec<(Vec<u8>, Bound<'_, PyAny>)>,
        undo: Option<String>,
    ) -> PyResult<Moved> {
        let inner = self.inner()?;
        let mut sources = Vec::with_capacity(files.len());
        for (path, data) in files {
            let data: Box<dyn Read + Send> = Box::new(io::Cursor::new(copied(&data)?));
            sources.push((Source::Stream(data), target(py, &inner, &path)?));
        }
        let progress: Arc<Progress> = Arc::default();
        let (report, before) =
            call(py, || put_all(&inner, sources, PutOptions::default(), undo.as_deref(), &progress))?;
        Ok(Moved::new(&report.write.progress, &progress, 0, before))
    }

    /// A file to be written piece by piece. It appears once it is finished.
    fn writer(&self, py: Python<'_>, path: &[u8], undo: Option<String>) -> PyResult<Writer> {
        let inner = self.inner()?;
        let path = target(py, &inner, path)?;
        Ok(Writer::start(inner, path, undo))
    }

    /// Restores a file or tree to this machine: as `target`, or a directory's contents as those of
    /// `target`.
    fn get(
        &self,
        py: Python<'_>,
        path: &[u8],
        target: PathBuf,
        at: Option<When>,
        overwrite: bool,
        show: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Moved> {
        let (inner, path) = (self.inner()?, parse(path)?);
        let progress: Arc<Progress> = Arc::default();
        long_call(py, &progress, show.as_ref(), || {
            let (inode, view) = inner.held(&path, at.as_ref())?;
            let options = GetOptions { overwrite, threads: inner.threads, ..GetOptions::default() };
            let (above, name) = match inode.attributes.kind {
                FileKind::Directory => (target.as_path(), None),
                _ => (target.parent().unwrap_or(Path::new("/")), target.file_name()),
            };
            let name = name.map(|name| name.as_encoded_bytes());
            restore(&inner.store, view.at, &inode, above, name, options, &progress)
        })?;
        Ok(Moved::new(&progress.view(), &progress, 0, None))
    }
}

/// Where a file is to go: never in the place of a directory.
fn target(py: Python<'_>, inner: &Inner, path: &[u8]) -> PyResult<StorePath> {
    let path = parse(path)?;
    let existing = call(py, || find(&*inner.store.meta, At::Now, &path))?;
    match existing.filter(|inode| inode.attributes.kind == FileKind::Directory) {
        Some(directory) => require_file(&path, &directory).map(|()| path),
        None => Ok(path),
    }
}

/// Device numbers of the store's mounts, which a put leaves out.
fn own_devices(inner: &Inner) -> Vec<u64> {
    let rows = inner.store.dir().canonicalize().ok().and_then(|dir| mounts::of_store(&dir).ok());
    rows.unwrap_or_default().into_iter().map(|row| row.device).collect()
}

type Outcome = Result<(PutReport, Option<String>)>;

/// A file that is being written.
#[pyclass(frozen, module = "outrigger._native")]
pub struct Writer(Mutex<Option<Writing>>);

/// Bytes that were copied, or those of an object of Python that nobody can change.
type Piece = Box<dyn AsRef<[u8]> + Send>;

struct Writing {
    pieces: SyncSender<Piece>,
    store: JoinHandle<Outcome>,
    progress: Arc<Progress>,
    /// Set when all pieces were sent: without it the end of the pieces is the end of the writer.
    finished: Arc<Mutex<bool>>,
}

impl Writer {
    fn start(inner: Arc<Inner>, path: StorePath, undo: Option<String>) -> Self {
        let (pieces, receiver) = sync_channel(WAITING);
        let (progress, finished): (Arc<Progress>, Arc<Mutex<bool>>) = Default::default();
        let source = Pieces { receiver, piece: Box::new([]), at: 0, finished: Arc::clone(&finished) };
        let counters = Arc::clone(&progress);
        let store = std::thread::spawn(move || {
            let sources = vec![(Source::Stream(Box::new(source) as _), path)];
            put_all(&inner, sources, PutOptions::default(), undo.as_deref(), &counters)
        });
        Self(Mutex::new(Some(Writing { pieces, store, progress, finished })))
    }

    fn take(&self) -> Option<Writing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread sees that there will be no more pieces, and stores nothing.
        drop(self.take());
    }
}

fn ended(store: JoinHandle<Outcome>) -> Outcome {
    store.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the thread that stores the file ended")))
}

#[pymethods]
impl Writer {
    /// Takes these bytes; only those of another object than `bytes` are copied.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let data: Piece = match data.cast::<PyBytes>() {
            Ok(bytes) => Box::new(PyBackedBytes::from(bytes.clone())),
            Err(_) => Box::new(copied(data)?),
        };
        let len = (*data).as_ref().len();
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = guard.as_ref().map(|writing| writing.pieces.clone());
        drop(guard);
        let Some(pieces) = pieces else { return Err(PyValueError::new_err("write to closed file")) };
        if len > 0 && py.detach(|| pieces.send(data)).is_err() {
            let Some(writing) = self.take() else {
                return Err(PyValueError::new_err("write to closed file"));
            };
            let failed = py.detach(|| ended(writing.store));
            return Err(failed.map_or_else(
                |error| exception(&error),
                |_| PyRuntimeError::new_err("the file ended early"),
            ));
        }
        Ok(len)
    }

    /// Makes the file durable and visible.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<Moved>> {
        let Some(Writing { pieces, store, progress, finished }) = self.take() else { return Ok(None) };
        *finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let (report, before) = py
            .detach(move || {
                drop(pieces);
                ended(store)
            })
            .map_err(|error| exception(&error))?;
        Ok(Some(Moved::new(&report.write.progress, &progress, 0, before)))
    }

    /// Stores nothing.
    fn abort(&self, py: Python<'_>) {
        let Some(Writing { pieces, store, .. }) = self.take() else { return };
        py.detach(move || {
            drop(pieces);
            // It fails, as it was told to.
            let _ = ended(store);
        });
    }
}

/// The pieces as a stream.
struct Pieces {
    receiver: Receiver<Piece>,
    piece: Piece,
    at: usize,
    finished: Arc<Mutex<bool>>,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == (*self.piece).as_ref().len() {
            match self.receiver.recv() {
                Ok(piece) => (self.piece, self.at) = (piece, 0),
                Err(_) if *self.finished.lock().unwrap_or_else(PoisonError::into_inner) => return Ok(0),
                Err(_) => return Err(io::Error::other("the writer gave the file up")),
            }
        }
        let rest = &(*self.piece).as_ref()[self.at..];
        let len = out.len().min(rest.len());
        out[..len].copy_from_slice(&rest[..len]);
        self.at += len;
        Ok(len)
    }
}
