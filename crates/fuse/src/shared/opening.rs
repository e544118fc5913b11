//! Opening files by name or file handle, emptying those that programs tail, and releasing handles.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outrigger_store::meta::{Inode, ROOT_INODE};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::SharedVolume;
use super::core::{Core, OpenFile};
use super::file::File;
use crate::fs::{Caller, Entry, Handle, OpenFlags, Opened, Result, writes};
use crate::live::names::require_key;
use crate::tail::Again;

impl Core {
    /// Reads the row of an open file again, and takes over what other hosts have stored until now.
    /// A flush of the file in progress here may lie over an older content: then this waits for its
    /// end.
    fn catch_up(&self, file: &Arc<File>) -> Result<()> {
        let row = self.row(file.number)?;
        let is_known = {
            let state = file.read();
            state.row.root == row.root || state.is_removed || state.is_unpublished || state.may_be_named
        };
        if is_known {
            return Ok(());
        }
        let turn = self.fail(self.take_turn())?;
        let refreshed = self.refresh(file);
        drop(turn);
        self.fail(refreshed)
    }
}

impl SharedVolume {
    pub(super) fn opened(&self, file: Arc<File>, flags: OpenFlags) -> Opened {
        let writes = writes(flags);
        let keep_cache = {
            let state = file.read();
            state.map.is_clean() && self.core.keeps_cache(file.number, state.stored.root())
        };
        let appends = flags.contains(OFlags::APPEND);
        if writes {
            file.writer_came();
        }
        let _run = self.core.running.opened(file.number, flags);
        let handle =
            self.core.files.insert(OpenFile { file, writes, appends, is_lost: AtomicBool::new(false), _run });
        // Also that of a reader: it may have locks, which end when it closes the file.
        Opened { handle, flushes: true, keep_cache }
    }

    /// Opens a file. `row` is given if the file was just made.
    pub(super) fn open_file(
        &self,
        number: u64,
        made: Option<Inode>,
        flags: OpenFlags,
        caller: Caller,
    ) -> Result<Opened> {
        let core = &self.core;
        let is_new = made.is_some();
        if writes(flags) {
            core.reopens(number);
        }
        let (file, was_open) = {
            let _gate = core.open.opening(number);
            let row = made.map_or_else(|| core.row(number), Ok)?;
            Core::require_file(&row)?;
            if writes(flags) {
                require_key(&core.store, &core.reports, &row.attributes)?;
            }
            core.open.open(number, || File::new(row, core.log.usage(), &core.budget))
        };
        let truncates = flags.contains(OFlags::TRUNC);
        let begun = (if was_open { core.catch_up(&file) } else { Ok(()) })
            .and_then(|()| if truncates { core.truncate(&file, 0, caller.uid != 0, None) } else { Ok(()) });
        if let Err(errno) = begun {
            core.close_file(&file);
            return Err(errno);
        }
        if writes(flags) {
            let mut state = file.write();
            state.writer = Some(caller.pid);
            state.is_new |= is_new;
        }
        Ok(self.opened(file, flags))
    }

    /// Opens a file that is overwritten, and has it tailed.
    pub(super) fn overwrite(
        &self,
        caller: Caller,
        number: u64,
        flags: OpenFlags,
        again: Again<'_>,
    ) -> Result<Opened> {
        let core = &self.core;
        let Again { place, wanted, alone: _alone } = again;
        let empties = flags.contains(OFlags::TRUNC);
        // When tailing begins it has a writer, and it is emptied only when its jobs exist.
        let opened = self.open_file(number, None, flags.difference(OFlags::TRUNC), caller)?;
        let file = Arc::clone(&core.files.get(opened.handle)?.file);
        if !empties && !file.read().map.is_empty() {
            // Another host has written to it since it was emptied.
            core.note_emptied(number, false);
            return Ok(opened);
        }
        let begun = core.fail(core.begin_tailing(&file, place, wanted, true));
        let done =
            begun.and_then(|_| if empties { core.truncate(&file, 0, caller.uid != 0, None) } else { Ok(()) });
        match done {
            Ok(()) => Ok(Opened { keep_cache: false, ..opened }),
            Err(errno) => {
                // If it is tailed already, its jobs read the old content.
                self.release_handle(number, opened.handle);
                Err(errno)
            }
        }
    }

    /// A file is about to be cut to nothing otherwise than by opening it.
    pub(super) fn before_emptied(&self, number: u64) -> Result<()> {
        let core = &self.core;
        if !core.tailing.is_any() {
            return Ok(());
        }
        match core.open.get(number).filter(|file| file.has_writers()) {
            None => core.note_emptied(number, true),
            Some(file) => {
                if let Some(Again { place, wanted, alone: _alone }) = core.wanted_again(number)? {
                    core.fail(core.begin_tailing(&file, place, wanted, true))?;
                }
            }
        }
        Ok(())
    }

    /// Releases a handle, even if its writes could not be stored.
    pub(super) fn release_handle(&self, number: u64, handle: Handle) {
        let Some(open) = self.core.files.take(handle) else { return };
        if open.writes {
            // Pages of a mapping come after the last descriptor was closed. No program is there to
            // get the error, so the mount reports it.
            if !self.core.defers_close(&open.file) {
                let _ = self.core.fail(self.core.store_file(&open.file, true));
            }
            open.file.writer_left();
        }
        self.core.writers_left(&open.file);
        self.locks.released(number, handle);
        self.core.close_file(&open.file);
    }
}

impl Core {
    /// Finds the file of a file handle, if it still has a name, or the directory above it.
    pub(super) fn by_handle(&self, number: u64, above: bool) -> Result<Entry> {
        let number = match above && number != ROOT_INODE {
            true => self.fail(self.store.meta.parent_of(number))?.ok_or(Errno::STALE)?,
            false => number,
        };
        let row = self.row(number)?;
        if row.links == 0 { Err(Errno::STALE) } else { Ok(self.entry(&row)) }
    }
}
