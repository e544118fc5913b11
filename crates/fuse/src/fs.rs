//! A file system as the kernel sees it, without the kernel.
//!
//! Files are inode numbers, names are bytes, errors are error numbers. Any number of threads call
//! at once. A number that `lookup` or a directory with attributes handed out stays good until it
//! was forgotten as often as it was handed out; the root's is always good.
//!
//! **Permissions.** The kernel checks modes, owners and ACLs, when the mount says so; an
//! implementation checks only what the kernel cannot know.
//!
//! **Open files.** `open`, `create` and `open_dir` hand out a handle, which comes with every
//! operation on that open file and ends with one `release`. `flush` is the end of one descriptor:
//! an implementation that delays writes reports their errors there and in `fsync`. A file without
//! names lives until its last handle is released.
//!
//! **Locks** are the kernel's affair, unless the file system keeps them
//! ([`FileSystem::keeps_locks`]). Then the kernel knows none, and the file system must notice what
//! ends a lock. A process's range locks end when it closes any descriptor of the file
//! ([`FileSystem::closed_by`]), all others with the handle by which they were taken.
//!
//! Operations that change something have a default that answers `EROFS`, so that a read-only
//! implementation has only those for reading. [`Counted`] has to pass on every one of them.

mod counted;
mod effort;
mod locks;
mod types;

use outrigger_store::meta::locks::Lock;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

pub use counted::Counted;
pub use effort::{Effort, Keeps};
pub use locks::{Answer, LockRequest, Unlock};
pub(crate) use types::writes;
pub use types::{
    Attr, Caller, DirEntry, Entry, Found, Handle, NewNode, OpenFlags, Opened, Part, Result, Seek, SetAttr,
    SetTime, Statfs, TakeEntry,
};

/// Inode number of the root directory.
pub const ROOT: u64 = 1;

/// With it, setting an ACL clears the set-group bit: the caller is not in the file's group. No
/// program can pass this flag.
pub const DROP_SET_GROUP: XattrFlags = XattrFlags::from_bits_retain(1 << 31);

/// See the module.
///
/// # Errors
/// Besides those named: `EIO` where stored data is damaged or the machine fails, `ESTALE` where
/// what was opened or looked up is gone for good.
pub trait FileSystem: Send + Sync + 'static {
    /// How long an operation may keep its thread. A short one is answered on the processor that
    /// asked, where other requests wait behind it. One that may wait is given to a thread of its
    /// own, which costs several times as much as a short operation.
    fn keeps(&self, effort: Effort) -> Keeps {
        effort.usual()
    }

    /// True if the tree changes without the kernel's doing. Then a kernel drops its cache of a file
    /// whose length or modification time differs from the one it knew.
    fn changes_elsewhere(&self) -> bool {
        false
    }

    /// True if it keeps the locks of programs (`fcntl`, `flock`), for all hosts that see the same
    /// files. Otherwise the kernel keeps them, among this machine's processes.
    fn keeps_locks(&self) -> bool {
        false
    }

    /// True if a number finds its file at any time, in any mount of the same tree. Then `lookup` of
    /// `.` gives the file itself, or `ESTALE`, and of `..` in a directory the one above, and file
    /// handles work (`open_by_handle_at`, NFS).
    fn is_exportable(&self) -> bool {
        false
    }

    // ---- names and attributes -------------------------------------------------------------------------------------

    /// Looks up `name` in directory `parent`.
    fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<Found>;

    /// The kernel gives up `count` of its lookups of `number`.
    fn forget(&self, number: u64, count: u64) {
        let _ = (number, count);
    }

    /// Attributes; `handle` if they are asked for an open file.
    fn attributes(&self, caller: Caller, number: u64, handle: Option<Handle>) -> Result<Entry>;

    /// Where a symlink points. `EINVAL` for others.
    fn read_link(&self, caller: Caller, number: u64) -> Result<Vec<u8>>;

    /// The value of an extended attribute; ACLs are `system.posix_acl_access` and `_default`, in
    /// the form of the kernel. `ENODATA` when there is none.
    fn xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<Vec<u8>>;

    /// Names of all extended attributes that the caller may know of.
    fn xattrs(&self, caller: Caller, number: u64) -> Result<Vec<Vec<u8>>>;

    /// Room and how much of it is used.
    fn statfs(&self) -> Result<Statfs>;

    // ---- reading files and directories ----------------------------------------------------------------------------

    /// Opens a file.
    fn open(&self, caller: Caller, number: u64, flags: OpenFlags) -> Result<Opened>;

    /// Appends the bytes `offset..offset + len` to `out`; fewer only at the file's end. After an
    /// error, `out` counts for nothing.
    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()>;

    /// The next data or hole at or after `offset`. `ENXIO` at or after the end, and if there is no
    /// more data.
    fn seek(&self, number: u64, handle: Handle, offset: u64, to: Seek) -> Result<u64>;

    /// A descriptor of the open file was closed; there may be more.
    fn flush(&self, caller: Caller, number: u64, handle: Handle) -> Result<()> {
        let _ = (caller, number, handle);
        Ok(())
    }

    /// The last descriptor and mapping of the open file are gone.
    fn release(&self, number: u64, handle: Handle);

    /// Makes writes durable; with `data_only`, not the attributes that reading does not need.
    fn fsync(&self, number: u64, handle: Handle, data_only: bool) -> Result<()> {
        let _ = (number, handle, data_only);
        Ok(())
    }

    /// Opens a directory. `ENOTDIR` for others.
    fn open_dir(&self, caller: Caller, number: u64) -> Result<Opened>;

    /// Gives the entries of a directory to `take`, beginning at `offset`: 0, or an earlier entry's
    /// `next`, which stays good while the directory is open, also backwards. With `attributes`,
    /// every entry that `take` took counts as looked up, `.` and `..` apart.
    fn read_dir(
        &self,
        number: u64,
        handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()>;

    /// The directory was closed.
    fn release_dir(&self, number: u64, handle: Handle);

    /// Makes a directory's changes durable.
    fn fsync_dir(&self, number: u64, handle: Handle) -> Result<()> {
        let _ = (number, handle);
        Ok(())
    }

    // ---- locks ----------------------------------------------------------------------------------------------------

    /// Another owner's lock that is in the way of this one; its process is 0 unless it runs on this
    /// machine.
    fn locked_by(&self, number: u64, lock: &Lock) -> Result<Option<Lock>> {
        let _ = (number, lock);
        Err(Errno::NOSYS)
    }

    /// Takes a lock, in place of the locks that its owner has in the range. It never waits itself:
    /// `answer` gets the outcome. That is `EAGAIN` if others' locks are in the way and the caller
    /// does not wait, `EDEADLK` if it would wait for ever, `EINTR` after
    /// [`interrupt`](Self::interrupt).
    fn lock(&self, number: u64, asked: &LockRequest, answer: Answer) {
        let _ = (number, asked);
        answer.give(Err(Errno::NOSYS));
    }

    /// Gives locks up.
    fn unlock(&self, number: u64, unlock: &Unlock) -> Result<()> {
        let _ = (number, unlock);
        Err(Errno::NOSYS)
    }

    /// Ends the wait of the lock request with this number. The request may not have arrived yet, or
    /// be answered already.
    fn interrupt(&self, request: u64) {
        let _ = request;
    }

    /// This owner has closed a descriptor of the file, after [`flush`](Self::flush): its locks on
    /// ranges end.
    fn closed_by(&self, number: u64, owner: u64) {
        let _ = (number, owner);
    }

    // ---- changing -------------------------------------------------------------------------------------------------

    /// Changes attributes: `chmod`, `chown`, `truncate`, `utimensat`.
    fn set_attributes(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<Entry> {
        let _ = (caller, number, set);
        Err(Errno::ROFS)
    }

    /// Makes a directory, device, fifo, socket or file without opening it. `EEXIST`.
    fn make(&self, caller: Caller, parent: u64, name: &[u8], node: NewNode) -> Result<Entry> {
        let _ = (caller, parent, name, node);
        Err(Errno::ROFS)
    }

    /// Makes a symlink. `EEXIST`.
    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        let _ = (caller, parent, name, target);
        Err(Errno::ROFS)
    }

    /// Gives a file one more name. `EEXIST`.
    fn link(&self, caller: Caller, number: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        let _ = (caller, number, parent, name);
        Err(Errno::ROFS)
    }

    /// Makes a file if need be, and opens it; with `EXCL` in `flags`, `EEXIST` if it exists.
    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        node: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let _ = (caller, parent, name, node, flags);
        Err(Errno::ROFS)
    }

    /// Makes an anonymous file, and opens it (`O_TMPFILE`). It may be linked once into the tree, by
    /// [`link`](Self::link); otherwise it is gone when it is closed. It inherits from directory
    /// `parent`.
    fn create_anonymous(
        &self,
        caller: Caller,
        parent: u64,
        node: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let _ = (caller, parent, node, flags);
        Err(Errno::ROFS)
    }

    /// Removes a name, except that of a directory.
    fn unlink(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::ROFS)
    }

    /// Removes an empty directory. `ENOTEMPTY`.
    fn remove_dir(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::ROFS)
    }

    /// Moves an entry; `NOREPLACE` and `EXCHANGE` as `renameat2` has them. `from` and `to` are
    /// directory and name.
    fn rename(&self, caller: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Result<()> {
        let _ = (caller, from, to, flags);
        Err(Errno::ROFS)
    }

    /// Writes all of `data` at `offset`, or with `APPEND` in the open file's flags at its end. With
    /// `drop_set_id` set-id bits and capabilities go with it.
    fn write(
        &self,
        caller: Caller,
        number: u64,
        handle: Handle,
        offset: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<()> {
        let _ = (caller, number, handle, offset, data, drop_set_id);
        Err(Errno::ROFS)
    }

    /// Allocates, punches a hole, or zeroes a part of `len` bytes.
    fn allocate(&self, caller: Caller, part: Part, len: u64, mode: FallocateFlags) -> Result<()> {
        let _ = (caller, part, len, mode);
        Err(Errno::ROFS)
    }

    /// Copies up to `len` bytes between two open files, by sharing what is stored; returns how
    /// many.
    fn copy_range(&self, caller: Caller, from: Part, to: Part, len: u64) -> Result<u64> {
        let _ = (caller, from, to, len);
        Err(Errno::ROFS)
    }

    /// Sets an extended attribute; `CREATE` and `REPLACE` as `setxattr` has them, and
    /// [`DROP_SET_GROUP`].
    fn set_xattr(
        &self,
        caller: Caller,
        number: u64,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let _ = (caller, number, name, value, flags);
        Err(Errno::ROFS)
    }

    /// Removes an extended attribute. `ENODATA`.
    fn remove_xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<()> {
        let _ = (caller, number, name);
        Err(Errno::ROFS)
    }
}
