//! Changes without data: directories, names, snapshots, policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_store::Result;
use outrigger_store::meta::{At, Inode, SessionKind};
use outrigger_store::ops::{edit, snapshots};
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::snapshot::facts::{Facts, in_order};
use outrigger_store::tree::{StorePath, find, require};
use outrigger_store::write::set_policy;
use pyo3::prelude::*;

use crate::call::{call, require_file};
use crate::store::{Inner, Store, When};
use crate::values::{Snapshot, parse};

fn parse_all(paths: &[Vec<u8>]) -> PyResult<Vec<StorePath>> {
    paths.iter().map(|path| parse(path)).collect()
}

/// Makes a change, after a snapshot of what it destroys if `undo` gives its name's end.
fn change(
    inner: &Inner,
    what: &str,
    targets: &[StorePath],
    undo: Option<&str>,
    work: impl FnOnce(Option<&Arc<BeforeSnapshot>>) -> Result<edit::EditReport>,
) -> Result<()> {
    let store = &inner.store;
    let before = undo.map(|time| snapshots::before(store, what, time, Vec::new(), targets)).transpose()?;
    let report = work(before.as_ref())?;
    before.map(|before| snapshots::settle(store, &before, report.counts)).transpose()?;
    inner.settle();
    Ok(())
}

#[pymethods]
impl Store {
    fn make_directories(&self, py: Python<'_>, path: &[u8]) -> PyResult<bool> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || edit::make_directories(&inner.store, &path))
    }

    fn remove(
        &self,
        py: Python<'_>,
        paths: Vec<Vec<u8>>,
        recursive: bool,
        undo: Option<String>,
    ) -> PyResult<()> {
        let (inner, paths) = (self.inner()?, parse_all(&paths)?);
        for path in paths.iter().filter(|_| !recursive) {
            let found = call(py, || find(&*inner.store.meta, At::Now, path))?;
            let is_directory = |inode: &Inode| inode.attributes.kind == FileKind::Directory;
            found.filter(is_directory).map_or(Ok(()), |inode| require_file(path, &inode))?;
        }
        call(py, || {
            change(&inner, "rm", &paths, undo.as_deref(), |before| {
                edit::remove(&inner.store, &paths, recursive, before)
            })
        })
    }

    fn rename(&self, py: Python<'_>, from: &[u8], to: &[u8], undo: Option<String>) -> PyResult<()> {
        let (inner, from, to) = (self.inner()?, parse(from)?, parse(to)?);
        call(py, || {
            let targets = [from.clone(), to.clone()];
            change(&inner, "mv", &targets, undo.as_deref(), |before| {
                edit::rename(&inner.store, std::slice::from_ref(&from), &to, before)
            })
        })
    }

    fn copy(
        &self,
        py: Python<'_>,
        from: &[u8],
        to: &[u8],
        at: Option<When>,
        recursive: bool,
        undo: Option<String>,
    ) -> PyResult<()> {
        let (inner, from, to) = (self.inner()?, parse(from)?, parse(to)?);
        call(py, || {
            let snapshot = at.as_ref().map(|when| inner.snapshot(when)).transpose()?;
            let snapshot = snapshot.as_ref().map(|row| row.name.as_str());
            change(&inner, "cp", std::slice::from_ref(&to), undo.as_deref(), |before| {
                edit::copy(&inner.store, snapshot, std::slice::from_ref(&from), &to, recursive, before)
            })
        })
    }

    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<Snapshot>> {
        let inner = self.inner()?;
        call(py, || Ok(in_order(inner.store.meta.snapshots()?).into_iter().map(Snapshot::from).collect()))
    }

    fn find_snapshot(&self, py: Python<'_>, at: When) -> PyResult<Snapshot> {
        let inner = self.inner()?;
        call(py, || Ok(inner.snapshot(&at)?.into()))
    }

    fn take_snapshot(
        &self,
        py: Python<'_>,
        name: Option<String>,
        fallback: &str,
        tags: Vec<String>,
    ) -> PyResult<Snapshot> {
        let inner = self.inner()?;
        call(py, || {
            // A mount stores nothing until the snapshot is taken.
            let _paused = inner.neighbour().pause(inner.store.name())?;
            let facts = Facts { command: Some("snapshot".to_string()), tags, ..Facts::default() };
            Ok(snapshots::create_with(&inner.store, name.as_deref(), fallback, facts)?.into())
        })
    }

    fn delete_snapshots(&self, py: Python<'_>, names: Vec<String>) -> PyResult<()> {
        let inner = self.inner()?;
        call(py, || snapshots::delete(&inner.store, &names))
    }

    fn policies(&self, py: Python<'_>, path: &[u8]) -> PyResult<BTreeMap<String, String>> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || inner.store.meta.policies(require(&*inner.store.meta, At::Now, &path)?.number))
    }

    fn set_policy(&self, py: Python<'_>, path: &[u8], key: &str, value: Option<&str>) -> PyResult<()> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || {
            let _held = inner.neighbour().hold(inner.store.name())?;
            let inode = require(&*inner.store.meta, At::Now, &path)?;
            let session = inner.store.session(SessionKind::Writer, crate::store::ROLE)?;
            set_policy(&inner.store, &session, inode.number, key, value)
        })
    }
}
