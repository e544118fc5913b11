//! A file system whose operations are counted.
//!
//! It stands between a file system and its transport to the kernel, so that every transport counts
//! the same. It counts the results that programs get: an error that the file system has mended on
//! the way does not count.

use std::sync::Arc;

use outrigger_clock::Instant;
use outrigger_store::meta::locks::Lock;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};

use super::{
    Answer, Caller, Effort, Entry, FileSystem, Found, Handle, Keeps, LockRequest, NewNode, OpenFlags, Opened,
    Part, Result, Seek, SetAttr, Statfs, TakeEntry, Unlock,
};
use crate::measures::{Operation, Status, Tally, Watched};

/// See the module.
pub struct Counted<F> {
    inner: Arc<F>,
    tally: Tally,
    began: Instant,
}

impl<F> Counted<F> {
    /// Counts what is asked of `inner` from now on.
    pub fn new(inner: Arc<F>) -> Self {
        Self { inner, tally: Tally::default(), began: Instant::now() }
    }

    /// What is counted.
    pub fn inner(&self) -> &Arc<F> {
        &self.inner
    }

    fn count<T>(&self, operation: Operation, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let done = work();
        self.tally.operation(operation);
        self.tally.took(operation, begun.elapsed());
        done.inspect_err(|errno| self.tally.failed(*errno))
    }
}

impl<F: Watched> Counted<F> {
    /// The counts.
    pub fn status(&self) -> Status {
        let mut status =
            Status { uptime_seconds: self.began.elapsed().as_nanos() as u64, ..Status::default() };
        self.tally.watch(&mut status);
        self.inner.watch(&mut status);
        status
    }
}

/// Operations that are passed on as they are.
macro_rules! pass_on {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Result<$answer> {
            self.count(Operation::$kind, || self.inner.$name($($arg),*))
        })*
    };
}

impl<F: FileSystem> FileSystem for Counted<F> {
    fn keeps(&self, effort: Effort) -> Keeps {
        self.inner.keeps(effort)
    }

    fn changes_elsewhere(&self) -> bool {
        self.inner.changes_elsewhere()
    }

    fn keeps_locks(&self) -> bool {
        self.inner.keeps_locks()
    }

    fn is_exportable(&self) -> bool {
        self.inner.is_exportable()
    }

    fn forget(&self, number: u64, count: u64) {
        self.inner.forget(number, count);
    }

    /// The outcome is not counted: only the caller gets it.
    fn lock(&self, number: u64, asked: &LockRequest, answer: Answer) {
        self.tally.operation(Operation::Other);
        self.inner.lock(number, asked, answer);
    }

    fn interrupt(&self, request: u64) {
        self.inner.interrupt(request);
    }

    fn closed_by(&self, number: u64, owner: u64) {
        self.inner.closed_by(number, owner);
    }

    fn release(&self, number: u64, handle: Handle) {
        self.tally.operation(Operation::Other);
        self.inner.release(number, handle);
    }

    fn release_dir(&self, number: u64, handle: Handle) {
        self.tally.operation(Operation::Other);
        self.inner.release_dir(number, handle);
    }

    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        self.count(Operation::Read, || self.inner.read(number, handle, offset, len, out))?;
        self.tally.read(out.len() - before);
        Ok(())
    }

    fn write(
        &self,
        caller: Caller,
        number: u64,
        handle: Handle,
        offset: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<()> {
        self.count(Operation::Write, || self.inner.write(caller, number, handle, offset, data, drop_set_id))?;
        self.tally.wrote(data.len() as u64);
        Ok(())
    }

    fn copy_range(&self, caller: Caller, from: Part, to: Part, len: u64) -> Result<u64> {
        let copied = self.count(Operation::Write, || self.inner.copy_range(caller, from, to, len))?;
        self.tally.wrote(copied);
        Ok(copied)
    }

    pass_on! {
        Other lookup(caller: Caller, parent: u64, name: &[u8]) -> Found;
        Other attributes(caller: Caller, number: u64, handle: Option<Handle>) -> Entry;
        Other read_link(caller: Caller, number: u64) -> Vec<u8>;
        Other xattr(caller: Caller, number: u64, name: &[u8]) -> Vec<u8>;
        Other xattrs(caller: Caller, number: u64) -> Vec<Vec<u8>>;
        Other statfs() -> Statfs;
        Other open(caller: Caller, number: u64, flags: OpenFlags) -> Opened;
        Other seek(number: u64, handle: Handle, offset: u64, to: Seek) -> u64;
        Other flush(caller: Caller, number: u64, handle: Handle) -> ();
        Other locked_by(number: u64, lock: &Lock) -> Option<Lock>;
        Other unlock(number: u64, unlock: &Unlock) -> ();
        Sync fsync(number: u64, handle: Handle, data_only: bool) -> ();
        Other open_dir(caller: Caller, number: u64) -> Opened;
        Other read_dir(number: u64, handle: Handle, offset: u64, attributes: bool, take: &mut TakeEntry<'_>) -> ();
        Sync fsync_dir(number: u64, handle: Handle) -> ();
        Other set_attributes(caller: Caller, number: u64, set: &SetAttr) -> Entry;
        Other make(caller: Caller, parent: u64, name: &[u8], node: NewNode) -> Entry;
        Other symlink(caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Entry;
        Other link(caller: Caller, number: u64, parent: u64, name: &[u8]) -> Entry;
        Other create(caller: Caller, parent: u64, name: &[u8], node: NewNode, flags: OpenFlags) -> (Entry, Opened);
        Other create_anonymous(caller: Caller, parent: u64, node: NewNode, flags: OpenFlags) -> (Entry, Opened);
        Other unlink(caller: Caller, parent: u64, name: &[u8]) -> ();
        Other remove_dir(caller: Caller, parent: u64, name: &[u8]) -> ();
        Other rename(caller: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> ();
        Other allocate(caller: Caller, part: Part, len: u64, mode: FallocateFlags) -> ();
        Other set_xattr(caller: Caller, number: u64, name: &[u8], value: &[u8], flags: XattrFlags) -> ();
        Other remove_xattr(caller: Caller, number: u64, name: &[u8]) -> ();
    }
}
