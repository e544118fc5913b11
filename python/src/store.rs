//! A store that a Python process has open.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use outrigger_fuse::beside::Neighbour;
use outrigger_store::keys::{known, secrets};
use outrigger_store::meta::{At, Inode, SnapshotRow};
use outrigger_store::ops::{View, stats};
use outrigger_store::snapshot::facts::{as_of, in_order, named};
use outrigger_store::tree::{StorePath, find, require};
use outrigger_store::{Error, ErrorKind, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::call;

/// The name of such a process in lists of sessions.
pub const ROLE: &str = "python";

/// The state to read: a snapshot by its name or tag, or the newest one of a time (nanoseconds since
/// 1970).
#[derive(FromPyObject)]
pub enum When {
    Time(u64),
    Name(String),
}

/// An open store, shared by its files.
pub struct Inner {
    pub store: outrigger_store::Store,
    pub threads: usize,
    /// The tree that files were last opened in, held still.
    view: Mutex<Option<Arc<View>>>,
    /// The same for the snapshot that was last read.
    past: Mutex<Option<(String, Arc<View>)>>,
}

fn warn(message: &str) {
    Python::try_attach(|py| {
        let logger =
            py.import("logging").and_then(|logging| logging.call_method1("getLogger", ("outrigger",)));
        // Without a logger there is nobody to tell.
        let _ = logger.and_then(|logger| logger.call_method1("warning", (message,)));
    });
}

impl Inner {
    /// How this process deals with a mount of the store.
    pub fn neighbour(&self) -> Neighbour {
        Neighbour { threads: self.threads, tell: warn }
    }

    /// Lets a mount store what it has staged, so that it is seen here.
    pub fn look(&self) -> Result<()> {
        self.neighbour().stored(self.store.name()).map(drop)
    }

    /// Where to read: the present tree, or a snapshot that is held.
    pub fn at(&self, when: Option<&When>) -> Result<(At, Option<Arc<View>>)> {
        let Some(when) = when else {
            self.look()?;
            return Ok((At::Now, None));
        };
        let row = self.snapshot(when)?;
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, view)) = &*past
            && *name == row.name
            && view.at == At::Epoch(row.epoch)
            && view.check().is_ok()
        {
            return Ok((view.at, Some(Arc::clone(view))));
        }
        let view = Arc::new(View::open(&self.store, ROLE, Some(&row.name))?);
        *past = Some((row.name, Arc::clone(&view)));
        Ok((view.at, Some(view)))
    }

    /// The inode at `path`, with what holds its content still.
    pub fn held(&self, path: &StorePath, when: Option<&When>) -> Result<(Inode, Arc<View>)> {
        if let (at, Some(view)) = self.at(when)? {
            return Ok((require(&*self.store.meta, at, path)?, view));
        }
        let mut last = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = &*last
            && view.check().is_ok()
        {
            let inode = require(&*self.store.meta, At::Now, path)?;
            let then = self.store.meta.inode(view.at, inode.number)?;
            if then.is_some_and(|then| then.root == inode.root) {
                return Ok((inode, Arc::clone(view)));
            }
        }
        let view = Arc::new(View::open(&self.store, ROLE, None)?);
        let found = require(&*self.store.meta, view.at, path)?;
        *last = Some(Arc::clone(&view));
        Ok((found, view))
    }

    /// The snapshot that is meant.
    pub fn snapshot(&self, when: &When) -> Result<SnapshotRow> {
        let rows = in_order(self.store.meta.snapshots()?);
        let (found, what) = match when {
            When::Time(nanos) => (as_of(&rows, *nanos), "so old".to_string()),
            When::Name(name) => (named(&rows, name), format!("of the name or tag `{name}`")),
        };
        found.cloned().ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no snapshot {what}")))
    }

    /// Upkeep after changes, whose failures change nothing that was committed.
    pub fn settle(&self) {
        let _ = self.store.index.flush_if_full();
        let _ = self.store.meta.tidy();
    }
}

#[pyclass(frozen, module = "outrigger._native")]
pub struct Store {
    inner: RwLock<Option<Arc<Inner>>>,
}

impl Store {
    /// The open store.
    pub fn inner(&self) -> PyResult<Arc<Inner>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.clone().ok_or_else(|| PyValueError::new_err("the store is closed"))
    }
}

#[pymethods]
impl Store {
    #[new]
    fn new(
        py: Python<'_>,
        location: PathBuf,
        read_only: bool,
        threads: Option<usize>,
        key_file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let cores = || std::thread::available_parallelism().map_or(2, usize::from);
        let threads = threads.unwrap_or_else(cores).max(1);
        if let Some(path) = key_file {
            secrets::name_key_file(path);
        }
        known::begin();
        let inner = call(py, || {
            let neighbour = Neighbour { threads, tell: warn };
            neighbour.stored(&location)?;
            let store = outrigger_store::Store::open(&location, read_only)?;
            if !store.is_shared() {
                store.set_beside(neighbour.each_commit(store.home()));
            }
            Ok(Inner { store, threads, view: Mutex::default(), past: Mutex::default() })
        })?;
        Ok(Self { inner: RwLock::new(Some(Arc::new(inner))) })
    }

    /// Closes the store before a fork, unless a file or a call has it; true if it is closed.
    fn leave(&self, py: Python<'_>) -> bool {
        let mut slot = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|inner| Arc::strong_count(inner) > 1) {
            return false;
        }
        let inner = slot.take();
        drop(slot);
        py.detach(|| drop(inner));
        true
    }

    fn close(&self, py: Python<'_>) {
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(inner));
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner()?;
        let (totals, snapshots) =
            call(py, || Ok((inner.store.meta.totals()?, inner.store.meta.snapshots()?.len())))?;
        let info = PyDict::new(py);
        info.set_item("id", inner.store.config.id.to_string())?;
        info.set_item("location", inner.store.name())?;
        info.set_item("shared", inner.store.is_shared())?;
        info.set_item("encrypted", inner.store.keys().is_some())?;
        info.set_item("read_only", inner.store.is_read_only())?;
        info.set_item("files", totals.files)?;
        info.set_item("directories", totals.directories)?;
        info.set_item("bytes", totals.bytes)?;
        info.set_item("snapshots", snapshots)?;
        Ok(info)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner()?;
        let stats = call(py, || {
            inner.look()?;
            stats::stats(&inner.store, 0)
        })?;
        let (all, dict) = (stats.committed(None), PyDict::new(py));
        dict.set_item("files", stats.tree.files)?;
        dict.set_item("bytes", stats.tree.bytes)?;
        dict.set_item("bytes_retained", stats.retained_bytes)?;
        dict.set_item("bytes_unique", all.raw_bytes)?;
        dict.set_item("bytes_stored", all.stored_bytes)?;
        dict.set_item("chunks", all.chunks)?;
        dict.set_item("packs", all.packs)?;
        dict.set_item("snapshots", stats.snapshots)?;
        Ok(dict)
    }

    fn exists(&self, py: Python<'_>, path: &[u8], at: Option<When>) -> PyResult<bool> {
        let (inner, path) = (self.inner()?, crate::values::parse(path)?);
        call(py, || {
            let (at, _view) = inner.at(at.as_ref())?;
            Ok(find(&*inner.store.meta, at, &path)?.is_some())
        })
    }
}
