//! Looking: entries, versions, and where data lies.

use outrigger_format::catalogue::FileKind;
use outrigger_store::Result;
use outrigger_store::meta::{At, DirEntry};
use outrigger_store::read::whereabouts::{stretches, whereabouts};
use outrigger_store::tree::{listing, require};
use pyo3::prelude::*;

use crate::call::{call, require_file};
use crate::store::{Inner, Store, When};
use crate::values::{Entry, parse};

/// (offset, length, host) of a part of a file; without a host where the engine knows none.
type Part = (u64, u64, Option<String>);

#[pymethods]
impl Store {
    fn stat(&self, py: Python<'_>, path: &[u8], at: Option<When>) -> PyResult<Entry> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || {
            let (at, _view) = inner.at(at.as_ref())?;
            Ok(Entry::new(path.to_bytes(), &require(&*inner.store.meta, at, &path)?))
        })
    }

    /// The entries of a directory, or the single entry that something else is.
    fn list(&self, py: Python<'_>, path: &[u8], recursive: bool, at: Option<When>) -> PyResult<Vec<Entry>> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || {
            let (at, _view) = inner.at(at.as_ref())?;
            let top = require(&*inner.store.meta, at, &path)?;
            if top.attributes.kind != FileKind::Directory {
                return Ok(vec![Entry::new(path.to_bytes(), &top)]);
            }
            let mut prefix = path.components.join(&b'/');
            if !prefix.is_empty() {
                prefix.push(b'/');
            }
            let mut found = Vec::new();
            let mut visit = |below: &[u8], entry: &DirEntry| -> Result<()> {
                found.push(Entry::new([&prefix, below].concat(), &entry.inode));
                Ok(())
            };
            listing::walk(&*inner.store.meta, at, top.number, recursive, &mut visit)?;
            Ok(found)
        })
    }

    /// (number, time of the commit, length) of earlier contents, newest first.
    fn versions(&self, py: Python<'_>, path: &[u8]) -> PyResult<Vec<(u64, u64, u64)>> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || {
            inner.look()?;
            let inode = require(&*inner.store.meta, At::Now, &path)?;
            let versions = inner.store.meta.versions(inode.number)?;
            Ok(versions
                .into_iter()
                .map(|version| (version.number, version.time, version.root.len()))
                .collect())
        })
    }

    /// Bytes by host, each counted for the host that reads are sent to.
    fn hosts(&self, py: Python<'_>, path: &[u8]) -> PyResult<Vec<(String, u64)>> {
        let (inner, path) = (self.inner()?, parse(path)?);
        call(py, || {
            inner.look()?;
            let inode = require(&*inner.store.meta, At::Now, &path)?;
            let found = whereabouts(&inner.store, At::Now, &inode)?;
            Ok(found.hosts.into_iter().map(|(host, share)| (host, share.bytes_first)).collect())
        })
    }

    /// Divides a file by the hosts that have it, and into parts of `most` bytes at most.
    fn parts(
        &self,
        py: Python<'_>,
        path: &[u8],
        at: Option<When>,
        most: u64,
        least: u64,
    ) -> PyResult<Vec<Part>> {
        let (inner, path) = (self.inner()?, parse(path)?);
        let (at, _view) = call(py, || inner.at(at.as_ref()))?;
        let inode = call(py, || require(&*inner.store.meta, at, &path))?;
        require_file(&path, &inode)?;
        call(py, || Ok(divide(by_host(&inner, at, &inode, least)?, most.max(1))))
    }
}

fn by_host(inner: &Inner, at: At, inode: &outrigger_store::meta::Inode, least: u64) -> Result<Vec<Part>> {
    let found = stretches(&inner.store, &inode.root, least)?;
    if !found.is_empty() {
        let part =
            |one: outrigger_store::read::whereabouts::Stretch| (one.from, one.to - one.from, Some(one.host));
        return Ok(found.into_iter().map(part).collect());
    }
    let hosts = whereabouts(&inner.store, at, inode)?.hosts;
    let best = hosts.into_iter().max_by_key(|(_, share)| share.bytes_first).map(|(host, _)| host);
    Ok(vec![(0, inode.root.len(), best)])
}

/// Cuts longer parts into equal ones.
fn divide(parts: Vec<Part>, most: u64) -> Vec<Part> {
    let mut divided = Vec::new();
    for (from, len, host) in parts {
        let count = len.div_ceil(most).max(1);
        let each = len.div_ceil(count);
        for number in 0..count {
            let at = (number * each).min(len);
            divided.push((from + at, each.min(len - at), host.clone()));
        }
    }
    divided
}
