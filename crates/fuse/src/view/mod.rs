//! A store's tree, read-only: the mounted epoch, and every snapshot under `.snapshots`.
//!
//! The mounted epoch is pinned, so it never changes: the kernel may cache it for ever, and is told
//! so. Only `.snapshots` is live. It is not listed in the root, so that walks of the tree do not
//! walk through all snapshots; a stored entry of that name takes its place.
//!
//! | file | holds |
//! | --- | --- |
//! | `number.rs`, `trees.rs` | which tree an inode number means, and what keeps that tree from being reclaimed |
//! | `attr.rs`, `space.rs` | answers to `stat` and `statfs` |
//! | `directory.rs` | open directories, a page at a time |
//! | `content.rs`, `ahead.rs` | open files: manifest to bytes; decoding ahead of sequential reads |
//! | `handles.rs` | open files and directories |

pub(crate) mod ahead;
pub(crate) mod attr;
pub(crate) mod content;
pub(crate) mod directory;
pub(crate) mod handles;
pub(crate) mod number;
pub(crate) mod space;
mod trees;

use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::{FileKind, Time, Xattrs};
use outrigger_store::Store;
use outrigger_store::meta::{At, Inode, ROOT_INODE, SnapshotRow};
use outrigger_store::ops::View;
use outrigger_store::read::Reader;
use rustix::fs::OFlags;
use rustix::io::Errno;

use self::ahead::ReadAhead;
use self::content::{Budget, StoredFile};
use self::directory::{FIRST, Listing, StoredDir};
use self::handles::Handles;
use self::number::SNAPSHOTS;
use self::trees::{Tree, Trees};
use crate::fs::{
    Attr, Caller, DirEntry, Entry, FileSystem, Found, Handle, OpenFlags, Opened, ROOT, Result, Seek, Statfs,
    TakeEntry,
};
use crate::measures::{Status, Watched};
use crate::report::Reports;

/// The directory of snapshots.
pub(crate) const SNAPSHOTS_NAME: &[u8] = b".snapshots";
/// Rights of a program beyond those of its user.
const CAPABILITY: &[u8] = b"security.capability";
/// How long the kernel may cache a thing that cannot change.
pub(crate) const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Bytes of decoded frames that a mount keeps: random reads often come back to a place near by.
pub(crate) const FRAMES_BYTES: usize = 64 << 20;
/// How long the kernel may cache live entries.
const A_MOMENT: Duration = Duration::from_secs(1);

/// How to show a store.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Show `.snapshots` in the root.
    pub snapshots: bool,
    /// Show snapshots without set-id bits, device numbers and capabilities, for mounts on which the
    /// kernel honours those. It knows one set of flags for a whole mount, and a program that was
    /// replaced because it was dangerous must not stay in force in every snapshot.
    pub tame_snapshots: bool,
    /// Threads that decode ahead of reads in order.
    pub ahead_threads: usize,
}

/// See the module.
pub struct ReadVolume {
    store: Arc<Store>,
    trees: Trees,
    options: ReadOptions,
    /// How long the kernel may cache the mounted tree: for ever, unless it could not be pinned.
    valid: Duration,
    inodes: u64,
    files: Handles<StoredFile>,
    dirs: Handles<Listing>,
    budget: Arc<Budget>,
    ahead: ReadAhead,
    reports: Reports,
}

impl ReadVolume {
    /// Shows what `view` pinned.
    ///
    /// # Errors
    /// When the database cannot be read, or no thread can be started.
    pub fn new(
        store: Arc<Store>,
        view: View,
        options: ReadOptions,
        reports: Reports,
    ) -> outrigger_store::Result<Self> {
        store.require_contents()?;
        store.packs.set_cache_bytes(FRAMES_BYTES);
        let totals = store.meta.totals()?;
        // Totals are known for the current tree only, not for a snapshot.
        let inodes = if options.snapshots { totals.files + totals.directories + totals.others } else { 0 };
        let valid = if view.at == At::Now { A_MOMENT } else { FOREVER };
        let ahead = ReadAhead::start(&store, options.ahead_threads)?;
        let (trees, budget) = (Trees::new(view), Arc::default());
        let (files, dirs) = (Handles::default(), Handles::default());
        Ok(Self { store, trees, options, valid, inodes, files, dirs, budget, ahead, reports })
    }

    /// Open files and directories.
    pub fn handles_open(&self) -> usize {
        self.files.len() + self.dirs.len()
    }

    fn fail<T>(&self, done: outrigger_store::Result<T>) -> Result<T> {
        done.map_err(|error| self.reports.errno(&error))
    }

    /// The tree and inode that a number means; not for `.snapshots`.
    fn place(&self, number: u64) -> Result<(Arc<Tree>, u64)> {
        let (slot, inode) = number::split(number);
        Ok((self.fail(self.trees.get(&self.store, slot))?, inode))
    }

    /// A number's inode, with its tree; not for `.snapshots`.
    fn placed(&self, number: u64) -> Result<(Arc<Tree>, Inode)> {
        let (tree, inode) = self.place(number)?;
        let inode = self.fail(self.store.meta.inode(tree.at, inode))?.ok_or(Errno::STALE)?;
        Ok((tree, inode))
    }

    fn inode(&self, number: u64) -> Result<Inode> {
        self.placed(number).map(|(_, inode)| inode)
    }

    fn stored_xattrs(&self, number: u64) -> Result<Xattrs> {
        let (tree, inode) = self.placed(number)?;
        let mut xattrs = inode.attributes.xattrs;
        if self.is_tame(&tree) {
            xattrs.retain(|(key, _)| key != CAPABILITY);
        }
        Ok(xattrs)
    }

    fn reader(&self) -> Reader<'_> {
        Reader::new(&self.store)
    }

    /// How long the kernel may cache entries of a tree.
    fn valid_in(&self, tree: &Tree) -> Duration {
        if tree.slot == number::MAIN { self.valid } else { FOREVER }
    }

    /// True if a tree is shown without anything that could give rights.
    fn is_tame(&self, tree: &Tree) -> bool {
        self.options.tame_snapshots && tree.slot != number::MAIN
    }

    fn attr(&self, tree: &Tree, inode: &Inode, allocated: u64) -> Result<Attr> {
        let attr = attr::attr(number::join(tree.slot, inode.number)?, inode, allocated);
        Ok(if self.is_tame(tree) { attr::tame(attr) } else { attr })
    }

    fn entry(&self, tree: &Tree, inode: &Inode) -> Result<Entry> {
        let attr = self.attr(tree, inode, attr::allocated(&self.reader(), &inode.root))?;
        Ok(Entry::new(attr, self.valid_in(tree)))
    }

    /// As [`Self::entry`] for one of many. If finding the holes would take reading a manifest, they
    /// count as data, and the kernel may not cache that.
    fn entry_at_once(&self, tree: &Tree, inode: &Inode) -> Result<Entry> {
        let allocated = attr::allocated_at_once(&inode.root);
        let valid = if allocated.is_some() { self.valid_in(tree) } else { Duration::ZERO };
        Ok(Entry::new(self.attr(tree, inode, allocated.unwrap_or(inode.root.len()))?, valid))
    }

    fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.fail(trees::snapshots(&self.store))
    }

    fn snapshots_dir(&self) -> Result<Entry> {
        let root = self.inode(ROOT)?;
        let newest = self.snapshots()?.last().map(|snapshot| Time::from_nanos(snapshot.time));
        let attr = attr::directory(SNAPSHOTS, &root, newest.unwrap_or(root.attributes.mtime));
        Ok(Entry::new(attr, A_MOMENT))
    }

    /// The root of a snapshot; what its name stands for may change.
    fn snapshot_root(&self, snapshot: &SnapshotRow) -> Result<Option<Entry>> {
        let tree = self.trees.of_snapshot(snapshot);
        let root = self.fail(self.store.meta.inode(tree.at, ROOT_INODE))?;
        let entry = root.map(|root| self.entry(&tree, &root)).transpose()?;
        Ok(entry.map(|entry| Entry::new(entry.attr, A_MOMENT)))
    }

    fn lookup_snapshot(&self, name: &[u8]) -> Result<Found> {
        let snapshots = self.snapshots()?;
        let named = snapshots.iter().find(|snapshot| snapshot.name.as_bytes() == name);
        let entry = named.map(|snapshot| self.snapshot_root(snapshot)).transpose()?.flatten();
        Ok(entry.map_or(Found::Missing { valid: A_MOMENT }, Found::Entry))
    }

    fn list_snapshots(
        &self,
        snapshots: &[SnapshotRow],
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        let skip = usize::try_from(offset.saturating_sub(FIRST)).unwrap_or(usize::MAX);
        for (ordinal, snapshot) in (FIRST..).zip(snapshots).skip(skip) {
            // A snapshot that was deleted since the directory was opened is skipped.
            let Some(entry) = self.snapshot_root(snapshot)? else { continue };
            let (name, number, next) = (snapshot.name.as_bytes(), entry.attr.number, ordinal + 1);
            let kind = FileKind::Directory;
            if !take(&DirEntry { name, number, kind, next, entry: attributes.then_some(entry) }) {
                break;
            }
        }
        Ok(())
    }

    fn list_stored(
        &self,
        tree: &Tree,
        dir: &StoredDir,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        let mut stopped = None;
        let listed = dir.list(&*self.store.meta, offset, &mut |ordinal, stored| {
            let made = number::join(tree.slot, stored.inode.number).and_then(|number| {
                let entry = attributes.then(|| self.entry_at_once(tree, &stored.inode)).transpose()?;
                Ok((number, entry))
            });
            match made {
                Ok((number, entry)) => {
                    let (name, kind) = (stored.name.as_slice(), stored.inode.attributes.kind);
                    take(&DirEntry { name, number, kind, next: ordinal + 1, entry })
                }
                Err(errno) => {
                    stopped = Some(errno);
                    false
                }
            }
        });
        self.fail(listed)?;
        stopped.map_or(Ok(()), Err)
    }
}

impl Watched for ReadVolume {
    fn watch(&self, status: &mut Status) {
        status.open_handles = self.handles_open() as u64;
        self.store.packs.watch(status);
        crate::measures::database(&*self.store.meta, status);
    }
}

impl FileSystem for ReadVolume {
    fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> Result<Found> {
        if parent == SNAPSHOTS {
            return self.lookup_snapshot(name);
        }
        let (tree, inode) = self.place(parent)?;
        let found = self.fail(self.store.meta.lookup(tree.at, inode, name))?;
        match found {
            Some(inode) => self.entry(&tree, &inode).map(Found::Entry),
            None if parent == ROOT && name == SNAPSHOTS_NAME && self.options.snapshots => {
                self.snapshots_dir().map(Found::Entry)
            }
            None => Ok(Found::Missing { valid: self.valid_in(&tree) }),
        }
    }

    fn attributes(&self, _: Caller, number: u64, _: Option<Handle>) -> Result<Entry> {
        if number == SNAPSHOTS {
            return self.snapshots_dir();
        }
        let (tree, inode) = self.placed(number)?;
        self.entry(&tree, &inode)
    }

    fn read_link(&self, _: Caller, number: u64) -> Result<Vec<u8>> {
        if number == SNAPSHOTS {
            return Err(Errno::INVAL);
        }
        let attributes = self.inode(number)?.attributes;
        if attributes.kind == FileKind::Symlink { Ok(attributes.target) } else { Err(Errno::INVAL) }
    }

    fn xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        if number == SNAPSHOTS || hidden(caller, name) {
            return Err(Errno::NODATA);
        }
        let xattrs = self.stored_xattrs(number)?;
        xattrs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value).ok_or(Errno::NODATA)
    }

    fn xattrs(&self, caller: Caller, number: u64) -> Result<Vec<Vec<u8>>> {
        if number == SNAPSHOTS {
            return Ok(Vec::new());
        }
        let keys = self.stored_xattrs(number)?.into_iter().map(|(key, _)| key);
        Ok(keys.filter(|key| !hidden(caller, key)).collect())
    }

    fn statfs(&self) -> Result<Statfs> {
        self.fail(space::statfs(&self.store, self.inodes))
    }

    fn open(&self, _: Caller, number: u64, flags: OpenFlags) -> Result<Opened> {
        if flags.intersection(OFlags::RWMODE) != OFlags::RDONLY || flags.contains(OFlags::TRUNC) {
            return Err(Errno::ROFS);
        }
        if number == SNAPSHOTS {
            return Err(Errno::ISDIR);
        }
        let inode = self.inode(number)?;
        match inode.attributes.kind {
            FileKind::File => {
                let handle = self.files.insert(StoredFile::new(inode.root, &self.budget));
                Ok(Opened { handle, flushes: false, keep_cache: self.valid == FOREVER })
            }
            FileKind::Directory => Err(Errno::ISDIR),
            // The kernel opens the others itself.
            _ => Err(Errno::NXIO),
        }
    }

    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let file = self.files.get(handle)?;
        self.place(number)?;
        let read = file.read(&self.reader(), &self.ahead, offset, len, out);
        read.map_err(|error| self.reports.errno_at(error, format_args!("inode {}", number::split(number).1)))
    }

    fn seek(&self, number: u64, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        let file = self.files.get(handle)?;
        self.place(number)?;
        if offset >= file.len() {
            return Err(Errno::NXIO);
        }
        self.fail(file.seek(&self.reader(), offset, to))?.ok_or(Errno::NXIO)
    }

    fn release(&self, _: u64, handle: Handle) {
        self.files.remove(handle);
    }

    fn open_dir(&self, _: Caller, number: u64) -> Result<Opened> {
        if number == SNAPSHOTS {
            let handle = self.dirs.insert(Listing::Snapshots(self.snapshots()?));
            return Ok(Opened { handle, flushes: false, keep_cache: false });
        }
        let (tree, inode) = self.placed(number)?;
        if inode.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let handle = self.dirs.insert(Listing::Stored(StoredDir::new(tree.at, inode.number)));
        Ok(Opened { handle, flushes: false, keep_cache: self.valid_in(&tree) == FOREVER })
    }

    fn read_dir(
        &self,
        number: u64,
        handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        let listing = self.dirs.get(handle)?;
        // A directory's parent is not stored with it; the kernel knows it, and asks nobody for
        // `..`.
        for (ordinal, name) in [b".".as_slice(), b".."].into_iter().enumerate().skip(offset as usize) {
            let (kind, next) = (FileKind::Directory, ordinal as u64 + 1);
            if !take(&DirEntry { name, number, kind, next, entry: None }) {
                return Ok(());
            }
        }
        match &*listing {
            Listing::Snapshots(snapshots) => self.list_snapshots(snapshots, offset, attributes, take),
            Listing::Stored(dir) => self.list_stored(&self.place(number)?.0, dir, offset, attributes, take),
        }
    }

    fn release_dir(&self, _: u64, handle: Handle) {
        self.dirs.remove(handle);
    }
}

/// Attributes of the name space `trusted` are for the superuser alone.
pub(crate) fn hidden(caller: Caller, name: &[u8]) -> bool {
    caller.uid != 0 && name.starts_with(b"trusted.")
}
