//! The trait [`FileSystem`], in terms of the operations.
//!
//! Numbers beyond those of the store's own inodes belong to `.snapshots` and the snapshots in it,
//! which a read-only volume shows.

use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_format::staging::Operation;
use outrigger_store::meta::At;
use outrigger_store::meta::locks::{Lock, LockMode};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::SharedVolume;
use super::core::Core;
use crate::fs::{
    Answer, Caller, DirEntry, Effort, Entry, FileSystem, Found, Handle, Keeps, LockRequest, NewNode,
    OpenFlags, Opened, Part, ROOT, Result, Seek, SetAttr, Statfs, TakeEntry, Unlock, writes,
};
use crate::live::attributes::sets_more_than_size;
use crate::live::file::{LEN_MAX, zeroes};
use crate::view::directory::StoredDir;
use crate::view::{ReadVolume, SNAPSHOTS_NAME, hidden, number};

impl SharedVolume {
    /// The volume that shows this number, if it is one of a snapshot.
    fn other(&self, number: u64) -> Option<&ReadVolume> {
        if number::split(number).0 == number::MAIN { None } else { self.snapshots.as_ref() }
    }

    fn changeable(&self, number: u64) -> Result<()> {
        if self.other(number).is_some() { Err(Errno::ROFS) } else { Ok(()) }
    }
}

impl FileSystem for SharedVolume {
    fn keeps(&self, effort: Effort) -> Keeps {
        match effort {
            Effort::Read { .. } => effort.usual(),
            // The database is asked.
            _ => Keeps::Waiting,
        }
    }

    fn changes_elsewhere(&self) -> bool {
        true
    }

    fn keeps_locks(&self) -> bool {
        true
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
        match (self.core.look_on(caller.pid, parent, name)?, &self.snapshots) {
            (Some(row), _) => {
                self.core.saw(parent, name, &row);
                Ok(Found::Entry(self.core.entry(&row)))
            }
            (None, Some(snapshots)) if parent == ROOT && name == SNAPSHOTS_NAME => {
                snapshots.lookup(caller, parent, name)
            }
            _ => Ok(Found::Missing { valid: Duration::ZERO }),
        }
    }

    fn forget(&self, number: u64, _: u64) {
        self.core.forget(number);
    }

    fn attributes(&self, caller: Caller, number: u64, handle: Option<Handle>) -> Result<Entry> {
        if let Some(other) = self.other(number) {
            return other.attributes(caller, number, handle);
        }
        // No lookup precedes requests for the root.
        let row = if number == ROOT { self.core.row(number) } else { self.core.row_soon(number) };
        let row = match row {
            Err(Errno::STALE) => self.core.removed_directory(number)?,
            row => row?,
        };
        Ok(self.core.entry(&row))
    }

    fn read_link(&self, caller: Caller, number: u64) -> Result<Vec<u8>> {
        if let Some(other) = self.other(number) {
            return other.read_link(caller, number);
        }
        let attributes = self.core.row_soon(number)?.attributes;
        if attributes.kind == FileKind::Symlink { Ok(attributes.target) } else { Err(Errno::INVAL) }
    }

    fn xattr(&self, caller: Caller, number: u64, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(other) = self.other(number) {
            return other.xattr(caller, number, name);
        }
        if hidden(caller, name) {
            return Err(Errno::NODATA);
        }
        let xattrs = self.core.attributes_soon(number)?.xattrs;
        xattrs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value).ok_or(Errno::NODATA)
    }

    fn xattrs(&self, caller: Caller, number: u64) -> Result<Vec<Vec<u8>>> {
        if let Some(other) = self.other(number) {
            return other.xattrs(caller, number);
        }
        let keys = self.core.attributes_soon(number)?.xattrs.into_iter().map(|(key, _)| key);
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
        let overwrites = writes(flags) && (flags.contains(OFlags::TRUNC) || self.core.was_emptied(number));
        if overwrites && let Some(again) = self.core.wanted_again(number)? {
            return self.overwrite(caller, number, flags, again);
        }
        let opened = self.open_file(number, None, flags, caller)?;
        if !writes(flags) && !flags.contains(OFlags::TRUNC) {
            let changed =
                || self.core.files.get(opened.handle).map(|open| open.file.read().row.attributes.mtime);
            self.opens.opened(caller, number, || changed().unwrap_or_default());
        }
        Ok(opened)
    }

    fn read(&self, number: u64, handle: Handle, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        match self.other(number) {
            Some(other) => other.read(number, handle, offset, len, out),
            None => self.core.read_file(&self.core.opened(handle)?.file, offset, len, out),
        }
    }

    fn seek(&self, number: u64, handle: Handle, offset: u64, to: Seek) -> Result<u64> {
        match self.other(number) {
            Some(other) => other.seek(number, handle, offset, to),
            None => self.core.seek_in(&self.core.opened(handle)?.file, offset, to),
        }
    }

    fn flush(&self, _: Caller, number: u64, handle: Handle) -> Result<()> {
        if self.other(number).is_some() {
            return Ok(());
        }
        let open = self.core.opened(handle)?;
        if !open.writes || self.core.defers_close(&open.file) {
            return Ok(());
        }
        self.core.fail(self.core.store_file(&open.file, true))?;
        open.require_sound()
    }

    fn release(&self, number: u64, handle: Handle) {
        if let Some(other) = self.other(number) {
            return other.release(number, handle);
        }
        self.release_handle(number, handle);
    }

    fn locked_by(&self, number: u64, lock: &Lock) -> Result<Option<Lock>> {
        if self.other(number).is_some() { Ok(None) } else { self.locks.in_the_way(number, lock) }
    }

    fn lock(&self, number: u64, asked: &LockRequest, answer: Answer) {
        if self.other(number).is_none() {
            return match self.core.opened(asked.handle) {
                Err(Errno::IO) => answer.give(Err(Errno::IO)),
                _ => self.locks.take(number, asked, answer),
            };
        }
        // Nobody changes a snapshot: all may read it at once, and nobody needs it alone.
        answer.give(if asked.lock.mode == LockMode::Shared { Ok(()) } else { Err(Errno::NOLCK) });
    }

    fn unlock(&self, number: u64, unlock: &Unlock) -> Result<()> {
        if self.other(number).is_some() { Ok(()) } else { self.locks.give_up(number, unlock) }
    }

    fn interrupt(&self, request: u64) {
        self.locks.interrupt(request);
    }

    fn closed_by(&self, number: u64, owner: u64) {
        if self.other(number).is_none() {
            self.locks.closed_by(number, owner);
        }
    }

    fn fsync(&self, number: u64, handle: Handle, _: bool) -> Result<()> {
        if self.other(number).is_some() {
            return Ok(());
        }
        let open = self.core.opened(handle)?;
        self.core.store_deferred();
        self.core.fail(self.core.store_file(&open.file, false))?;
        open.require_sound()
    }

    fn fsync_dir(&self, number: u64, _: Handle) -> Result<()> {
        if self.other(number).is_none() {
            // Names are committed already.
            self.core.store_deferred();
        }
        Ok(())
    }

    fn open_dir(&self, caller: Caller, number: u64) -> Result<Opened> {
        if let Some(other) = self.other(number) {
            return other.open_dir(caller, number);
        }
        self.core.paths.leave(caller.pid);
        if self.core.row_soon(number)?.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        // A listed name must be found by later lookups.
        self.core.fresh.forget(number);
        let handle = self.core.dirs.insert(StoredDir::new(At::Now, number));
        Ok(Opened { handle, flushes: false, keep_cache: false })
    }

    fn read_dir(
        &self,
        number: u64,
        handle: Handle,
        offset: u64,
        attributes: bool,
        take: &mut TakeEntry<'_>,
    ) -> Result<()> {
        if let Some(other) = self.other(number) {
            return other.read_dir(number, handle, offset, attributes, take);
        }
        let core = &self.core;
        for (ordinal, name) in [b".".as_slice(), b".."].into_iter().enumerate().skip(offset as usize) {
            let (kind, next) = (FileKind::Directory, ordinal as u64 + 1);
            if !take(&DirEntry { name, number, kind, next, entry: None }) {
                return Ok(());
            }
        }
        let dir = core.dirs.get(handle)?;
        if offset == 0 {
            dir.restart();
        }
        let listed = dir.list(&*core.store.meta, offset, &mut |ordinal, stored| {
            let entry = attributes.then(|| core.entry_at_once(&stored.inode));
            let (name, kind) = (stored.name.as_slice(), stored.inode.attributes.kind);
            take(&DirEntry { name, number: stored.inode.number, kind, next: ordinal + 1, entry })
        });
        core.fail(listed)
    }

    fn release_dir(&self, number: u64, handle: Handle) {
        match self.other(number) {
            Some(other) => other.release_dir(number, handle),
            None => self.core.dirs.remove(handle),
        }
    }

    fn set_attributes(&self, caller: Caller, number: u64, set: &SetAttr) -> Result<Entry> {
        self.changeable(number)?;
        let core = &self.core;
        if set.size == Some(0) {
            self.before_emptied(number)?;
        }
        if let Some(len) = set.size {
            let opened = match set.handle.map(|handle| core.opened(handle)).transpose()? {
                // An open file is stored when it is closed.
                Some(open) => {
                    core.truncate(&open.file, len, caller.uid != 0, Some(&open))?;
                    None
                }
                None => Some(self.open_file(number, None, OpenFlags::WRONLY, caller)?),
            };
            if let Some(Opened { handle, .. }) = opened {
                let open = core.files.get(handle)?;
                let cut = core
                    .truncate(&open.file, len, caller.uid != 0, None)
                    .and_then(|()| core.fail(core.store_file(&open.file, true)));
                self.release(number, handle);
                cut?;
            }
        }
        let row = match sets_more_than_size(set) {
            true => core.set_attributes_of(caller, number, set)?,
            false => core.row_soon(number)?,
        };
        Ok(core.entry(&row))
    }

    fn make(&self, caller: Caller, parent: u64, name: &[u8], new: NewNode) -> Result<Entry> {
        self.changeable(parent)?;
        let (row, _) = self.core.make_node(caller, parent, name, new, &[], false)?;
        Ok(self.core.entry(&row))
    }

    fn symlink(&self, caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.changeable(parent)?;
        let new = NewNode { kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0 };
        let (row, _) = self.core.make_node(caller, parent, name, new, target, false)?;
        Ok(self.core.entry(&row))
    }

    fn link(&self, _: Caller, number: u64, parent: u64, name: &[u8]) -> Result<Entry> {
        self.changeable(parent)?;
        if self.other(number).is_some() {
            return Err(Errno::XDEV);
        }
        let anonymous = self.core.open.get(number).filter(|file| file.read().may_be_named);
        let row = match anonymous {
            Some(file) => self.core.name_anonymous(&file, parent, name)?,
            None => self.core.link_node(number, parent, name)?,
        };
        Ok(self.core.entry(&row))
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
        let exclusive = flags.contains(OFlags::EXCL);
        let mut wanted = self.core.wanted(parent, name)?;
        if wanted.as_ref().is_some_and(|wanted| wanted.is_unpublished())
            && self.core.look(parent, name)?.is_none()
            && let Some(wanted) = wanted.take()
            && let Some(made) = self.create_unpublished(caller, (parent, name), new, flags, wanted)?
        {
            return Ok(made);
        }
        let (row, made) = self.core.make_node(caller, parent, name, new, &[], !exclusive)?;
        // A file that was just made has nothing to truncate.
        let flags = if made { flags.difference(OFlags::TRUNC) } else { flags };
        let number = row.number;
        self.core.saw(parent, name, &row);
        if !made
            && writes(flags)
            && flags.contains(OFlags::TRUNC)
            && let Some(again) = self.core.wanted_again(number)?
        {
            let opened = self.overwrite(caller, number, flags, again)?;
            return Ok((self.core.entry(&self.core.row_soon(number)?), opened));
        }
        // If it existed and is gone by now, this is `ESTALE`: the kernel looks the name up and asks
        // again.
        let opened = self.open_file(number, made.then_some(row), flags, caller)?;
        if made && let Some(wanted) = wanted {
            let begun = if wanted.is_unpublished() {
                // It was there, so that its name could not be hidden, and was removed before it was
                // opened.
                Err(Errno::BUSY)
            } else {
                let file = Arc::clone(&self.core.files.get(opened.handle)?.file);
                let begun = self.core.begin_tailing(&file, (parent, name.to_vec()), wanted, false);
                self.core.fail(begun).map(drop)
            };
            if let Err(errno) = begun {
                // A program that waits to read it would never hear of it.
                let _ = self.core.unlink_node(parent, name, false);
                self.release_handle(number, opened.handle);
                return Err(errno);
            }
        }
        let row = self.core.row_soon(number)?;
        Ok((self.core.entry(&row), opened))
    }

    fn create_anonymous(
        &self,
        caller: Caller,
        parent: u64,
        new: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        self.changeable(parent)?;
        self.make_anonymous(caller, parent, new, flags)
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
        self.core.rename_node(from, to, flags)
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
        let open = self.core.opened(handle)?;
        self.core.wait_for_readers(&open.file, offset, data.len(), open.appends);
        self.core.write_file(&open, offset, data, drop_set_id)
    }

    fn allocate(&self, caller: Caller, part: Part, len: u64, mode: FallocateFlags) -> Result<()> {
        self.changeable(part.number)?;
        let core = &self.core;
        let open = core.opened(part.handle)?;
        if !open.writes {
            return Err(Errno::BADF);
        }
        let end = part.offset.checked_add(len).filter(|end| *end <= LEN_MAX).ok_or(Errno::FBIG)?;
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let zeroes = zeroes(mode)?;
        core.require_session()?;
        let _room = core.room(0)?;
        // Held from reading the length until the new one is set: it only grows here.
        let mut state = open.file.write();
        open.require_sound()?;
        let now_len = state.map.len();
        let end = if keeps_size { end.min(now_len) } else { end };
        if zeroes && part.offset < end {
            let (inode, offset, len) = (part.number, part.offset, end - part.offset);
            let appended = core.append(&Operation::Zero { inode, offset, len }, &[])?;
            state.map.zero(offset, len, &appended);
            core.tell(&mut state, |prefix| prefix.changed(offset));
            Core::wrote(&mut state, appended.time, false);
            state.drops_rights |= caller.uid != 0;
        } else if end > now_len {
            core.truncate_in(part.number, &mut state, end, caller.uid != 0)?;
        }
        Ok(())
    }

    fn copy_range(&self, _: Caller, _: Part, _: Part, _: u64) -> Result<u64> {
        // The kernel reads and writes then.
        Err(Errno::OPNOTSUPP)
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
