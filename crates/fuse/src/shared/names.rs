//! Names: making, linking, removing, moving. Each is one transaction with preconditions, and is
//! answered when it is committed.

use std::sync::Arc;

use outrigger_format::Root;
use outrigger_format::catalogue::{FileKind, Time};
use outrigger_store::meta::{Change, Inode};
use outrigger_store::{Error, ErrorKind};
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::core::{Core, TRIES, now};
use crate::fs::{Caller, NewNode, Result};
use crate::live::names::{TARGET_MAX, check_name, inherit, require_key, require_one_key};

/// Precondition: the name stands for this inode, or none.
pub(super) fn expect(parent: u64, name: &[u8], inode: Option<u64>) -> Change {
    Change::IfName { parent, name: name.to_vec(), inode }
}

/// How exactly a directory's times say when its entries changed, as kernels have it for local file
/// systems. One of many changes within such a tick has to write the times.
const TICK: u32 = 10_000_000;

/// Rounds a time down to its tick.
fn tick(time: Time) -> Time {
    Time { nanos: time.nanos - time.nanos % TICK, ..time }
}

/// A name is moved.
fn rename((parent, name): (u64, &[u8]), (new_parent, new_name): (u64, &[u8])) -> Change {
    Change::Rename { parent, name: name.to_vec(), new_parent, new_name: new_name.to_vec() }
}

/// An inode has other names.
fn renamed(inode: u64, time: Time) -> Change {
    Change::Touch { inode, modified: false, time }
}

pub(super) fn is_directory(row: &Inode) -> bool {
    row.attributes.kind == FileKind::Directory
}

impl Core {
    /// The error number, where the store says `Exists` of a directory that has entries.
    pub fn refused(&self, error: &Error) -> Errno {
        if error.kind() == ErrorKind::Exists { Errno::NOTEMPTY } else { self.reports.errno(error) }
    }

    /// Makes something new. If the name exists and `open` is set, returns that and `false`.
    pub fn make_node(
        self: &Arc<Self>,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: NewNode,
        target: &[u8],
        open: bool,
    ) -> Result<(Inode, bool)> {
        check_name(name)?;
        if target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        match self.lookup_unpublished(parent, name) {
            Some(row) if open => return Ok((row, false)),
            Some(_) => return Err(Errno::EXIST),
            None => {}
        }
        // The commit is refused if the inherited attributes have been set elsewhere since.
        let mut above = self.row_soon(parent)?;
        let number = self.next_inode()?;
        for _ in 0..TRIES {
            if !is_directory(&above) {
                return Err(Errno::NOTDIR);
            }
            let attributes = inherit(&above.attributes, caller, new, target);
            require_key(&self.store, &self.reports, &attributes)?;
            let put = Change::Put {
                parent,
                name: name.to_vec(),
                inode: number,
                attributes: attributes.clone(),
                root: Root::Empty,
                stamp: 0,
                replace: false,
            };
            let like = Change::IfAttributes { inode: parent, attributes: Box::new(above.attributes) };
            let mut changes = vec![expect(parent, name, None), like, put];
            let touched = self.touch(&[parent], attributes.mtime, &mut changes);
            match self.commit_deferred(changes) {
                Ok(Some(())) => {
                    self.touched(touched);
                    let row = Inode { number, attributes, root: Root::Empty, links: 1, stamp: 0 };
                    self.remember_own(&row, Some(parent));
                    return Ok((row, true));
                }
                Ok(None) => {
                    match self.look(parent, name)? {
                        Some(_) if !open => return Err(Errno::EXIST),
                        Some(row) => return Ok((row, false)),
                        // It is gone again by now, or it was the directory.
                        None => above = self.row(parent)?,
                    }
                }
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(Errno::BUSY)
    }

    /// Gives a file one more name.
    pub fn link_node(self: &Arc<Self>, number: u64, parent: u64, name: &[u8]) -> Result<Inode> {
        check_name(name)?;
        self.store_deferred();
        for _ in 0..TRIES {
            let row = self.row(number)?;
            if is_directory(&row) {
                return Err(Errno::PERM);
            }
            if self.lookup_unpublished(parent, name).is_some() {
                return Err(Errno::EXIST);
            }
            // Nobody may see an unpublished file, so it cannot be linked.
            if row.links == 0 || self.open.get(number).is_some_and(|file| file.read().is_unpublished) {
                return Err(Errno::NOENT);
            }
            require_one_key(&row.attributes, &self.row_soon(parent)?.attributes)?;
            let time = now();
            let link = Change::Link { parent, name: name.to_vec(), inode: number };
            let mut changes = vec![expect(parent, name, None), link, renamed(number, time)];
            let touched = self.touch(&[parent], time, &mut changes);
            match self.commit(changes) {
                Ok(Some(())) => {
                    self.touched(touched);
                    return self.row(number);
                }
                // Another client was faster, or has ended the session.
                Ok(None) if self.look(parent, name)?.is_some() => return Err(Errno::EXIST),
                Ok(None) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(Errno::BUSY)
    }

    /// Adds changes that set the times of these directories, except those that have this tick
    /// already as far as this mount knows. So a program that makes many entries does not wait for
    /// its directory's row each time, and neither does another one that makes some there.
    pub fn touch(&self, directories: &[u64], time: Time, changes: &mut Vec<Change>) -> (Vec<u64>, Time) {
        let time = tick(time);
        let wanted = directories.iter().copied().filter(|number| !self.is_touched(*number, time));
        let touched: Vec<u64> = wanted.collect();
        let touch = |&inode: &u64| Change::Touch { inode, modified: true, time };
        changes.extend(touched.iter().map(touch));
        (touched, time)
    }

    /// The changes that [`Core::touch`] added are committed.
    pub fn touched(&self, (directories, time): (Vec<u64>, Time)) {
        directories.into_iter().for_each(|number| self.note_touched(number, Some(time)));
    }

    /// Removes a name; of a directory only with `directory`, and only when it is empty.
    pub fn unlink_node(self: &Arc<Self>, parent: u64, name: &[u8], directory: bool) -> Result<()> {
        if name == b"." {
            return Err(Errno::INVAL);
        }
        self.store_deferred();
        if let Some(number) = self.unpublished.number(parent, name) {
            if directory {
                return Err(Errno::NOTDIR);
            }
            // Its writer gives it up: no other program has ever seen it.
            self.give_up_unpublished(parent, name, number);
            return Ok(());
        }
        for _ in 0..TRIES {
            let row = self.look(parent, name)?.ok_or(Errno::NOENT)?;
            match (is_directory(&row), directory) {
                (true, false) => return Err(Errno::ISDIR),
                (false, true) => return Err(Errno::NOTDIR),
                _ => {}
            }
            let _gate = self.open.removing(row.number);
            let time = now();
            let remove = Change::Remove { parent, name: name.to_vec(), recursive: false };
            let mut changes = vec![expect(parent, name, Some(row.number))];
            changes.extend(self.pin(&row));
            changes.extend([remove, renamed(row.number, time)]);
            let touched = self.touch(&[parent], time, &mut changes);
            match self.commit(changes) {
                Ok(Some(())) => {
                    self.touched(touched);
                    self.lost_name(&row);
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(Errno::BUSY)
    }

    /// Exchanges two names by way of a third one, which is gone again at the end of the same
    /// transaction.
    fn exchange(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<()> {
        for _ in 0..TRIES {
            let one = self.look(from.0, from.1)?.ok_or(Errno::NOENT)?;
            let other = self.look(to.0, to.1)?.ok_or(Errno::NOENT)?;
            if from.0 != to.0 {
                require_one_key(&one.attributes, &self.row_soon(to.0)?.attributes)?;
                require_one_key(&other.attributes, &self.row_soon(from.0)?.attributes)?;
            }
            let expected = [expect(from.0, from.1, Some(one.number)), expect(to.0, to.1, Some(other.number))];
            if one.number == other.number {
                // Two names of one file, unless another host has exchanged them between the two
                // lookups.
                match self.commit(expected.to_vec()) {
                    Ok(Some(())) => return Ok(()),
                    Ok(None) => continue,
                    Err(error) => return Err(self.refused(&error)),
                }
            }
            let between = format!(".exchanged-{:x}-{}", self.session().id().0, one.number).into_bytes();
            let between = (from.0, between.as_slice());
            let time = now();
            let mut changes = Vec::from(expected);
            changes.extend([
                expect(between.0, between.1, None),
                rename(from, between),
                rename(to, from),
                rename(between, to),
                renamed(one.number, time),
                renamed(other.number, time),
            ]);
            let touched = self.touch(&[from.0, to.0], time, &mut changes);
            match self.commit(changes) {
                Ok(Some(())) => {
                    self.touched(touched);
                    for (row, to) in [(&one, to), (&other, from)] {
                        self.moved(row.number, to.0);
                        self.renamed_open(row.number, to);
                    }
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(Errno::BUSY)
    }

    /// Moves a name, or exchanges two.
    pub fn rename_node(
        self: &Arc<Self>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(to.1)?;
        self.store_deferred();
        if flags.intersects(!(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE)) {
            return Err(Errno::INVAL);
        }
        // Unpublished files have no name that could be moved or replaced.
        if [from, to].iter().any(|(parent, name)| self.unpublished.number(*parent, name).is_some()) {
            return Err(Errno::BUSY);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(from, to);
        }
        for _ in 0..TRIES {
            let moved = self.look(from.0, from.1)?.ok_or(Errno::NOENT)?;
            let replaced = self.look(to.0, to.1)?;
            if from.0 != to.0 {
                require_one_key(&moved.attributes, &self.row_soon(to.0)?.attributes)?;
            }
            if let Some(replaced) = &replaced {
                if flags.contains(RenameFlags::NOREPLACE) {
                    return Err(Errno::EXIST);
                }
                if replaced.number == moved.number {
                    // Two names of one file, or the same one: both stay.
                    return Ok(());
                }
                match (is_directory(&moved), is_directory(replaced)) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    _ => {}
                }
            }
            let _gate = replaced.as_ref().map(|row| self.open.removing(row.number));
            let time = now();
            let rename = rename(from, to);
            let mut changes = vec![
                expect(from.0, from.1, Some(moved.number)),
                expect(to.0, to.1, replaced.as_ref().map(|row| row.number)),
            ];
            changes.extend(replaced.as_ref().and_then(|row| self.pin(row)));
            changes.extend([rename, renamed(moved.number, time)]);
            changes.extend(replaced.iter().map(|row| renamed(row.number, time)));
            let touched = self.touch(&[from.0, to.0], time, &mut changes);
            match self.commit(changes) {
                Ok(Some(())) => {
                    self.touched(touched);
                    self.moved(moved.number, to.0);
                    self.renamed_open(moved.number, to);
                    replaced.iter().for_each(|row| self.lost_name(row));
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => return Err(self.refused(&error)),
            }
        }
        Err(Errno::BUSY)
    }

    /// A precondition for removing a name of a file that is open here: the file still has as many
    /// names as in this row, and its content. So [`Core::lost_name`] concludes rightly; and if it
    /// is the last name, the content stays until this mount ends.
    fn pin(&self, row: &Inode) -> Option<Change> {
        let Inode { number, links, ref root, .. } = *row;
        self.open.get(number).map(|_| Change::PinContent { inode: number, links, root: root.clone() })
    }

    /// An inode has one name less than in this row, by a commit with [`Core::pin`]'s precondition.
    /// The gate has kept others from opening it meanwhile.
    fn lost_name(&self, row: &Inode) {
        self.forget_row(row.number);
        if let Some(file) = self.open.get(row.number) {
            let mut state = file.write();
            state.edition += 1;
            if row.links <= 1 {
                state.lose_pinned(row, &self.budget);
            } else {
                state.row.links = row.links - 1;
            }
        }
    }
}
