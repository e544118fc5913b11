//! The trait [`FileSystem`], in terms of the operations.
//!
//! Numbers beyond those of the store's own inodes belong to `.snapshots` and the snapshots in it,
//! which a read-only volume shows.

use outrigger_format::catalogue::FileKind;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::LiveVolume;
use super::directory::LiveDir;
use super::names::require_key;
use super::world::Seen;
use crate::fs::{
    Caller, Effort, Entry, FileSystem, Found, Handle, Keeps, NewNode, OpenFlags, Opened, Part, ROOT, Result,
    Seek, SetAttr, Statfs, TakeEntry, writes,
};
use crate::mounts::WHEREABOUTS;
use crate::view::{FOREVER, ReadVolume, SNAPSHOTS_NAME, hidden, number};

impl LiveVolume {
    /// The volume that shows this number, if it is one of a snapshot.
    fn other(&self, number: u64) -> Option<&ReadVolume> {
        if number::split(number).0 == number::MAIN { None } else { self.snapshots.as_ref() }
    }

    fn changeable(&self, number: u64) -> Result<()> {
        if self.other(number).is_some() { Err(Errno::ROFS) } else { Ok(()) }
    }
}

impl FileSystem for LiveVolume {
    fn keeps(&self, effort: Effort) -> Keeps {
        match effort {
            Effort::Sync | Effort::Copy => Keeps::Waiting,
            // All of these may change something, and then wait for room in the log, or for a
            // snapshot.
            Effort::Names | Effort::Write { .. } | Effort::Flush if self.core.may_wait() => Keeps::Waiting,
            // Making a tailed file makes its job, too.
            Effort::Names if self.core.tailing.is_any() => Keeps::Waiting,
            Effort::Write { .. } if self.core.tailing.may_wait() => Keeps::Waiting,
            Effort::Flush => Keeps::Shortly,
            Effort::Names | Effort::Read { .. } | Effort::Write { .. } => effort.usual(),
        }
    }

    fn is_exportable(&self) -> bool {
        true
    }

    fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<Found> {
        if let Some(other) = self.other(parent) {
            return other.lookup(caller, parent, name);
        }
        if name == b"." || name == b".." {
            return self.core.by_handle(parent, name == b"..").map(Found::Entry);
        }
        if name.len() > outrigger_store::tree::NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let found = self.core.world.lookup_in(&self.core.tree(), parent, name)?;
        match (found, &self.snapshots) {
            (Some(seen), _) => {
                self.core.saw(parent, name, seen.number(), seen.kind());
                Ok(Found::Entry(self.core.entry(&seen)))
            }
            (None, Some(snapshots)) if parent == ROOT && name == SNAPSHOTS_NAME => {
                snapshots.lookup(caller, parent, name)
            }
            _ => Ok(Found::Missing { valid: FOREVER }),
        }
    }

    fn forget(&self, number: u64, _: u64) {
        self.core.places.forget(number);
        self.core.world.parents.lock().expect("no panic while it is held").remove(&number);
        let known = self.core.tree().nodes.get(&number).cloned();
        if let Some(node) = known
            && node.read().links == 0
        {
            node.write().is_forgotten = true;
            self.core.delete_if_unused(&node, false);
        }
    }

    fn attributes(&self, caller: Caller, number: u64, handle: Option<Handle>) -> Result<Entry> {
        match self.other(number) {
            Some(other) => other.attributes(caller, number, handle),
            None => Ok(self.core.entry(&self.core.seen(number)?)),
        }
    }

    fn read_link(&self, caller: Caller, number: u64) -> Result<Vec<u8>> {
        if let Some(other) = self.other(number) {
            return other.read_link(caller, number);
        }
        let seen = self.core.seen(number)?;
        if seen.kind() != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        Ok(match seen {
            Seen::Node(node) => node.read().attributes.target.clone(),
            Seen::Row(row) => row.attributes.target,
        })
    }

    fn xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(other) = self.other(number) {
            return other.xattr(caller, number, name);
        }
        if number == ROOT && name == WHEREABOUTS.as_bytes() {
            return Ok(self.whereabouts());
        }
        if hidden(caller, name) {
            return Err(Errno::NODATA);
        }
        let xattrs = self.core.xattrs_of(number)?;
        xattrs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value).ok_or(Errno::NODATA)
    }

    fn xattrs(&self, caller: Caller, number: u64) -> Result<Vec<Vec<u8>>> {
        if let Some(other) = self.other(number) {
            return other.xattrs(caller, number);
        }
        let keys = self.core.xattrs_of(number)?.into_iter().map(|(key, _)| key);
        Ok(keys.filter(|key| !hidden(caller, key)).collect())
    }

    fn statfs(&self) -> Result<Statfs> {
        self.core.statfs()
    }

    fn open(&self, caller: Caller, number: u64, flags: OpenFlags) -> Result<Opened> {
        if let Some(other) = self.other(number) {
            return other.open(caller, number, flags);
        }
        self.core.running.check(number, flags)?;
        let node = self.core.node(number)?;
        match node.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::ISDIR),
            // The kernel opens the others itself.
            _ => return Err(Errno::NXIO),
        }
        let overwrites = writes(flags) && (flags.contains(OFlags::TRUNC) || node.read().emptied);
        if overwrites && let Some(again) = self.core.wanted_again(&node)? {
            return self.overwrite(caller, node, flags, again);
        }
        if flags.contains(OFlags::TRUNC) {
            self.core.truncate_opened(&node, caller)?;
        } else if !writes(flags) {
            self.core.note_read(caller, &node);
        }
        self.opened(node, flags)
    }

    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.other(number) {
            Some(other) => other.read(number, handle, offset, len, out),
            None => {
                let file = self.core.files.get(handle)?;
                self.core.read_file(&file.node, offset, len, out)
            }
        }
    }

    fn seek(&self, number: u64, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        match self.other(number) {
            Some(other) => other.seek(number, handle, offset, to),
            None => self.core.seek_in_file(&self.core.files.get(handle)?.node, offset, to),
        }
    }

    fn release(&self, number: u64, handle: Handle) {
        if let Some(other) = self.other(number) {
            return other.release(number, handle);
        }
        let Some(file) = self.core.files.take(handle) else { return };
        let last = file.node.closed(file.writes);
        let mut state = file.node.write();
        if !file.node.has_writers() {
            state.file.is_version |= state.file.map.is_clean();
            self.core.writers_left(&mut state);
        }
        let is_gone = last && state.links == 0 && state.is_forgotten;
        drop(state);
        if is_gone {
            self.core.delete_if_unused(&file.node, false);
        }
    }

    fn fsync(&self, number: u64, _: Handle, _: bool) -> Result<()> {
        if self.other(number).is_some() {
            return Ok(());
        }
        // It would not be kept otherwise.
        if let Seen::Node(node) = self.core.seen(number)? {
            let world = &self.core.world;
            require_key(&world.store, &world.reports, &node.read().attributes)?;
        }
        self.core.sync()
    }

    fn open_dir(&self, caller: Caller, number: u64) -> Result<Opened> {
        if let Some(other) = self.other(number) {
            return other.open_dir(caller, number);
        }
        if self.core.seen(number)?.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let handle = self.core.dirs.insert(LiveDir::new(number));
        Ok(Opened { handle, flushes: false, keep_cache: true })
    }

    fn read_dir(
        &self,
        number: u64,
        handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        match self.other(number) {
            Some(other) => other.read_dir(number, handle, offset, attributes, take),
            None => self.core.dirs.get(handle)?.list(&self.core, offset, attributes, take),
        }
    }

    fn release_dir(&self, number: u64, handle: Handle) {
        match self.other(number) {
            Some(other) => other.release_dir(number, handle),
            None => self.core.dirs.remove(handle),
        }
    }

    fn fsync_dir(&self, number: u64, _: Handle) -> Result<()> {
        match self.other(number) {
            Some(_) => Ok(()),
            None => self.core.sync(),
        }
    }

    fn set_attributes(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<Entry> {
        self.changeable(number)?;
        if set.size == Some(0) {
            self.before_emptied(number)?;
        }
        let node = self.core.set_attributes_of(caller, number, set)?;
        Ok(Entry::new(self.core.attr(&node), FOREVER))
    }

    fn make(&self, caller: Caller, parent: u64, name: &[u8], new: NewNode) -> Result<Entry> {
        self.changeable(parent)?;
        let (node, _) = self.core.make_node(caller, parent, name, new, &[], false)?;
        Ok(Entry::new(self.core.attr(&node), FOREVER))
    }

    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.changeable(parent)?;
        let new = NewNode { kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0 };
        let (node, _) = self.core.make_node(caller, parent, name, new, target, false)?;
        Ok(Entry::new(self.core.attr(&node), FOREVER))
    }

    fn link(&self, _: Caller, number: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.changeable(parent)?;
        if self.other(number).is_some() {
            return Err(Errno::XDEV);
        }
        let known = self.core.node(number)?;
        let node = if known.read().may_be_named {
            self.core.name_anonymous(&known, parent, name)?;
            known
        } else {
            self.core.link_node(number, parent, name)?
        };
        Ok(Entry::new(self.core.attr(&node), FOREVER))
    }

    fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.changeable(parent)?;
        self.create_file(caller, (parent, name), new, flags)
    }

    fn create_anonymous(
        &self,
        caller: Caller,
        parent: u64,
        new: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.changeable(parent)?;
        let node = self.core.make_anonymous(caller, parent, new)?;
        let entry = Entry::new(self.core.attr(&node), FOREVER);
        Ok((entry, self.opened(node, flags)?))
    }

    fn unlink(&self, _: Caller, parent: u64, name: &[u8]) -> Result<()> {
        self.changeable(parent)?;
        self.core.unlink_node(parent, name, false)
    }

    fn remove_dir(&self, _: Caller, parent: u64, name: &[u8]) -> Result<()> {
        self.changeable(parent)?;
        self.core.unlink_node(parent, name, true)
    }

    fn rename(&self, _: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Result<()> {
        self.changeable(from.0)?;
        if self.other(to.0).is_some() {
            return Err(Errno::XDEV);
        }
        self.core.rename_node(from, to, flags)?;
        // The kernel moves what it knows itself.
        if self.core.tailing.is_any() {
            for (parent, name) in [from, to] {
                if let Some(seen) = self.core.world.lookup_in(&self.core.tree(), parent, name)? {
                    self.core.saw(parent, name, seen.number(), seen.kind());
                }
            }
        }
        Ok(())
    }

    fn write(
        &self,
        _: Caller,
        number: u64,
        handle: Handle,
        offset: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<()> {
        self.changeable(number)?;
        let file = self.core.files.get(handle)?;
        self.core.wait_for_readers(&file.node, offset, data.len(), file.appends);
        self.core.write_file(&file, offset, data, drop_set_id)
    }

    fn allocate(&self, caller: Caller, part: Part, len: u64, mode: FallocateFlags) -> Result<()> {
        self.changeable(part.number)?;
        let file = self.core.files.get(part.handle)?;
        self.core.allocate_in_file(&file, caller, part.offset, len, mode)
    }

    fn copy_range(&self, _: Caller, from: Part, to: Part, len: u64) -> Result<u64> {
        self.changeable(to.number)?;
        if self.other(from.number).is_some() {
            return Err(Errno::XDEV);
        }
        let (source, target) = (self.core.files.get(from.handle)?, self.core.files.get(to.handle)?);
        self.core.copy_between(&source, from.offset, &target, to.offset, len)
    }

    fn set_xattr(&self, _: Caller, number: u64, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.changeable(number)?;
        self.core.set_xattr_of(number, name, value, flags)
    }

    fn remove_xattr(&self, _: Caller, number: u64, name: &[u8]) -> Result<()> {
        self.changeable(number)?;
        self.core.remove_xattr_of(number, name)
    }
}
