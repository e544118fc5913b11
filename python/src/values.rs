//! Results as Python sees them: structs become dictionaries, paths are bytes.

use outrigger_store::meta::{Inode, SnapshotRow};
use outrigger_store::snapshot::facts::Facts;
use outrigger_store::tree::StorePath;
use outrigger_store::write::{Progress, ProgressView};
use pyo3::prelude::*;

/// A file, a directory or something else.
#[derive(IntoPyObject)]
pub struct Entry {
    path: Vec<u8>,
    kind: &'static str,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    mtime_ns: i128,
    inode: u64,
    target: Vec<u8>,
}

impl Entry {
    /// The entry at `path`.
    pub fn new(path: Vec<u8>, inode: &Inode) -> Self {
        let attributes = &inode.attributes;
        Self {
            path,
            kind: attributes.kind.name(),
            size: inode.root.len(),
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            links: inode.links,
            mtime_ns: i128::from(attributes.mtime.secs) * 1_000_000_000 + i128::from(attributes.mtime.nanos),
            inode: inode.number,
            target: attributes.target.clone(),
        }
    }
}

/// A snapshot.
#[derive(IntoPyObject)]
pub struct Snapshot {
    name: String,
    time_ns: u64,
    tags: Vec<String>,
    kind: &'static str,
    held: bool,
}

impl From<SnapshotRow> for Snapshot {
    fn from(row: SnapshotRow) -> Self {
        let facts = Facts::of(&row);
        Self {
            name: row.name,
            time_ns: row.time,
            tags: facts.tags,
            kind: facts.kind.name(),
            held: facts.held,
        }
    }
}

/// The counts of a put or get.
#[derive(IntoPyObject)]
pub struct Moved {
    files: u64,
    bytes: u64,
    bytes_read: u64,
    bytes_new: u64,
    bytes_stored: u64,
    entries_removed: u64,
    skipped: Vec<(String, String)>,
    snapshot_before: Option<String>,
}

impl Moved {
    /// From the counters of a call.
    pub fn new(
        view: &ProgressView,
        progress: &Progress,
        entries_removed: u64,
        before: Option<String>,
    ) -> Self {
        let skipped = progress.skipped.lock().map(|skipped| skipped.clone()).unwrap_or_default();
        Self {
            files: view.files_done + view.files_unchanged,
            bytes: view.bytes_done + view.bytes_unchanged,
            bytes_read: view.bytes_done,
            bytes_new: view.bytes_new,
            bytes_stored: view.bytes_stored,
            entries_removed,
            skipped: skipped.into_iter().map(|skipped| (skipped.what, skipped.why)).collect(),
            snapshot_before: before,
        }
    }
}

/// Parses a path in the store.
pub fn parse(path: &[u8]) -> PyResult<StorePath> {
    StorePath::parse(path).map_err(|error| crate::call::exception(&error))
}
