//! Attributes: each change is one transaction, which the database refuses if another host has
//! changed the row since it was read. Then it is made again.
//!
//! If a program sets attributes of a file that it is just writing, they are committed with the
//! written bytes at the close: no other host sees those bytes before.

use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{Change, Inode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::core::{Core, TRIES, now};
use super::file::{File, State};
use crate::fs::{Caller, Result, SetAttr};
use crate::live::attributes::{apply, check_xattr, drop_privileges, put_xattr, set_xattr};

/// The state of an open file from which a change of its attributes was made.
struct Seen {
    edition: u64,
    written: Option<Time>,
    /// How many waiting changes of attributes the new ones include.
    edits: usize,
}

impl Seen {
    /// Applies to `attributes` what waits for the file's close.
    fn of(state: &State, attributes: &mut Attributes) -> Self {
        let edits = state.edit(attributes);
        if state.drops_rights {
            drop_privileges(attributes);
        }
        Self { edition: state.edition, written: state.written, edits }
    }
}

impl Core {
    /// Changes attributes. If that sets the modification time (`times`), that time remains,
    /// although earlier writes are stored later. Likewise earlier writes drop rights before the
    /// change, so that rights that are set now stay.
    fn change(
        self: &Arc<Self>,
        number: u64,
        times: bool,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<Inode> {
        self.store_deferred();
        let mut row = self.row_soon(number)?;
        for _ in 0..TRIES {
            let open = self.open.get(number);
            if let Some(file) = &open
                && let Some(row) = self.change_only_here(file, &change)?
            {
                return Ok(row);
            }
            if row.links == 0 {
                // It has a name again.
                row = self.row(number)?;
                continue;
            }
            let mut attributes = row.attributes.clone();
            // Changes that wait for the close came before this one.
            let open = open.map(|file| {
                let seen = Seen::of(&file.read(), &mut attributes);
                (file, seen)
            });
            change(&mut attributes)?;
            let swap = Change::CompareAndSwap {
                inode: number,
                parent: self.parent_of(number),
                was: Box::new((row.attributes.clone(), row.root.clone())),
                attributes: attributes.clone(),
                root: row.root.clone(),
                keep: false,
            };
            match self.commit(vec![swap]) {
                Ok(Some(())) => {
                    row.attributes = attributes;
                    match open {
                        Some((file, seen)) => self.adopt_changed(&file, &row, &seen, times),
                        // Another change of this host may have come after this one.
                        None => self.forget_row(number),
                    }
                    return Ok(row);
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(self.reports.errno(&error)),
            }
            row = self.row(number)?;
        }
        Err(Errno::BUSY)
    }

    /// Changes attributes of a file that nobody else can find. `None` if others can.
    fn change_only_here(
        &self,
        file: &File,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<Option<Inode>> {
        let mut state = file.write();
        if !state.is_removed && !state.is_unpublished {
            return Ok(None);
        }
        let mut attributes = state.attributes();
        change(&mut attributes)?;
        state.set_at_once(attributes);
        self.remember_own(&state.row, None);
        Ok(Some(state.row.clone()))
    }

    /// Makes an open file agree with its `row`, whose attributes were just changed.
    fn adopt_changed(&self, file: &File, row: &Inode, seen: &Seen, times: bool) {
        let mut state = file.write();
        state.changed(seen.written, times);
        state.edited(seen.edits);
        let is_newest = state.edition == seen.edition;
        state.edition += 1;
        if !is_newest {
            // The database tells which one came last.
            self.forget_row(row.number);
        } else if state.is_committing {
            // The outcome of that batch decides the content.
            state.row.attributes = row.attributes.clone();
            self.forget_row(row.number);
        } else {
            state.take(row, &self.budget);
            self.remember_own(row, None);
        }
    }

    /// `chmod`, `chown`, `utimensat`.
    pub fn set_attributes_of(self: &Arc<Self>, caller: Caller, number: u64, set: &SetAttr) -> Result<Inode> {
        let present = now();
        self.require_session()?;
        if let Some(file) = self.open.get(number) {
            let mut state = file.write();
            if state.is_written_by(caller) {
                state.set_later(set, present);
                return Ok(state.row.clone());
            }
        }
        let row = self.change(number, set.mtime.is_some(), |attributes| {
            apply(attributes, set, present);
            Ok(())
        })?;
        if row.attributes.kind == FileKind::Directory {
            self.note_touched(number, None);
        }
        Ok(row)
    }

    pub fn set_xattr_of(
        self: &Arc<Self>,
        number: u64,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        check_xattr(name, value)?;
        let present = now();
        self.change(number, false, |attributes| {
            let (mode, kept) = set_xattr(attributes, name, value, flags)?;
            attributes.mode = mode;
            put_xattr(&mut attributes.xattrs, name, kept);
            changed_at(attributes, present);
            Ok(())
        })
        .map(drop)
    }

    pub fn remove_xattr_of(self: &Arc<Self>, number: u64, name: &[u8]) -> Result<()> {
        let present = now();
        self.change(number, false, |attributes| {
            if !attributes.xattrs.iter().any(|(key, _)| key == name) {
                return Err(Errno::NODATA);
            }
            put_xattr(&mut attributes.xattrs, name, None);
            changed_at(attributes, present);
            Ok(())
        })
        .map(drop)
    }

    /// A file's row must be one of a file.
    pub fn require_file(row: &Inode) -> Result<()> {
        match row.attributes.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(Errno::ISDIR),
            // The kernel opens the others itself.
            _ => Err(Errno::NXIO),
        }
    }
}

pub(super) fn changed_at(attributes: &mut Attributes, time: Time) {
    let before = attributes.mtime;
    let other = outrigger_format::catalogue::OtherTimes { atime: before, ctime: before };
    attributes.times.get_or_insert(other).ctime = time;
}
