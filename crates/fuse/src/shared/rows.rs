//! Rows of inodes: looking them up in the database, and the inode cache.
//!
//! A cached row may be used for a moment, until this mount changes the inode. Each change raises a
//! count, and a row that was asked for before the last change is not cached, as it may be older.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind, Time};
use outrigger_store::meta::{At, Inode, ROOT_INODE};
use rustix::io::Errno;

use super::core::Core;
use super::file::File;
use super::path_prefetch::Taken;
use crate::fs::Result;

/// How long attributes may be reused without asking: of an open file, and right after a lookup.
pub(super) const A_MOMENT: Duration = Duration::from_secs(1);

/// An entry of the inode cache. Any of it may be out of date.
pub(super) struct Known {
    /// A directory that it has, or had, a name in.
    parent: u64,
    /// The last row from the database.
    row: Option<Inode>,
    /// When it was read, unless it may have changed since.
    asked: Option<Instant>,
    /// The content that the kernel's cache holds bytes of.
    cached: Option<Root>,
    /// A directory's time that this mount has committed: the directory's times are not before it.
    touched: Time,
    /// The file was emptied while no program had it open to write: the next writer overwrites it.
    emptied: bool,
}

impl Known {
    fn new() -> Self {
        Self {
            parent: ROOT_INODE,
            row: None,
            asked: None,
            cached: None,
            touched: Time::default(),
            emptied: false,
        }
    }
}

impl Core {
    /// An inode's present row; for a file that is open here and removed, its last one.
    pub fn row(&self, number: u64) -> Result<Inode> {
        let before = self.changes.load(Ordering::SeqCst);
        let open = self.open.get(number);
        if let Some(row) = open.as_ref().and_then(Self::row_only_here) {
            return Ok(row);
        }
        let edition = open.as_ref().map(|file| file.read().edition);
        match self.fail(self.store.meta.inode(At::Now, number))? {
            Some(row) => {
                if let (Some(file), Some(edition)) = (open, edition) {
                    let mut state = file.write();
                    if state.edition == edition {
                        state.take(&row, &self.budget);
                    }
                }
                self.remember(&row, None, before);
                Ok(row)
            }
            None => {
                self.forget_row(number);
                let file = open.ok_or(Errno::STALE)?;
                let mut state = file.write();
                state.lose();
                Ok(state.row.clone())
            }
        }
    }

    /// The row of a file that only this mount knows.
    fn row_only_here(file: &Arc<File>) -> Option<Inode> {
        let state = file.read();
        (state.is_unpublished || state.may_be_named).then(|| state.row.clone())
    }

    /// Looks up a name that only this mount knows.
    pub fn lookup_unpublished(&self, parent: u64, name: &[u8]) -> Option<Inode> {
        let number = self.unpublished.number(parent, name)?;
        Self::row_only_here(&self.open.get(number)?)
    }

    /// As [`Core::row`], or the row that was read a moment ago.
    pub fn row_soon(&self, number: u64) -> Result<Inode> {
        let known = self.known.lock().expect("no panic while held");
        if let Some(Known { row: Some(row), asked: Some(asked), .. }) = known.get(&number)
            && asked.elapsed() < A_MOMENT
        {
            return Ok(row.clone());
        }
        drop(known);
        self.row(number)
    }

    /// The last row of a directory that is removed and still open, or a process's working
    /// directory.
    pub fn removed_directory(&self, number: u64) -> Result<Inode> {
        let known = self.known.lock().expect("no panic while held");
        let row = known.get(&number).and_then(|known| known.row.clone());
        let row = row.filter(|row| row.attributes.kind == FileKind::Directory).ok_or(Errno::STALE)?;
        Ok(Inode { links: 0, ..row })
    }

    /// The attributes in [`Core::row_soon`], with the changes that wait for the close.
    pub fn attributes_soon(&self, number: u64) -> Result<Attributes> {
        let mut attributes = self.row_soon(number)?.attributes;
        if let Some(file) = self.open.get(number) {
            file.read().edit(&mut attributes);
        }
        Ok(attributes)
    }

    /// Looks up a name.
    pub fn look(&self, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        match self.lookup_unpublished(parent, name) {
            Some(row) => Ok(Some(row)),
            None => Ok(self.look_each(&[(parent, name)])?.pop().flatten()),
        }
    }

    /// Looks up several names in the database.
    fn look_each(&self, names: &[(u64, &[u8])]) -> Result<Vec<Option<Inode>>> {
        let before = self.changes.load(Ordering::SeqCst);
        let found = self.fail(self.store.meta.lookup_each(names))?;
        for ((parent, _), row) in names.iter().zip(&found) {
            if let Some(row) = row {
                self.remember(row, Some(*parent), before);
            }
        }
        Ok(found)
    }

    /// As [`Core::look`] on a path: also prefetches the next directories
    /// ([`super::path_prefetch`]).
    pub fn look_on(&self, thread: u32, parent: u64, name: &[u8]) -> Result<Option<Inode>> {
        if let Some(row) = self.lookup_unpublished(parent, name) {
            return Ok(Some(row));
        }
        if self.fresh.lacks(parent, name) {
            self.paths.leave(thread);
            return Ok(None);
        }
        let before = self.changes.load(Ordering::SeqCst);
        let ahead = match self.paths.take(thread, parent, name, before) {
            Taken::Known(row) => return Ok(Some(row)),
            Taken::Ask(ahead) => ahead,
        };
        let asked = (Instant::now(), before);
        let mut steps = vec![(parent, name)];
        steps.extend(ahead.iter().map(|(parent, name)| (*parent, name.as_slice())));
        let mut found = self.look_each(&steps)?.into_iter();
        let first = found.next().flatten();
        if let Some(row) = &first {
            let ahead = ahead.into_iter().zip(found).filter_map(|(step, row)| Some((step, row?)));
            self.paths.took(thread, (parent, name), row, ahead, asked);
        }
        Ok(first)
    }

    /// Caches a row that was read when this mount's count of changes was `before`.
    fn remember(&self, row: &Inode, parent: Option<u64>, before: u64) {
        let mut known = self.known.lock().expect("no panic while held");
        let known = known.entry(row.number).or_insert_with(Known::new);
        known.parent = parent.unwrap_or(known.parent);
        // Otherwise a change of ours may be younger.
        if self.changes.load(Ordering::SeqCst) == before {
            (known.row, known.asked) = (Some(row.clone()), Some(Instant::now()));
        }
    }

    /// Caches a row that this mount has just committed.
    pub fn remember_own(&self, row: &Inode, parent: Option<u64>) {
        let now = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        self.remember(row, parent, now);
    }

    /// An inode has another directory.
    pub fn moved(&self, number: u64, parent: u64) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.parent = parent;
        }
        self.forget_row(number);
    }

    /// An inode's cached row does not count any more.
    pub fn forget_row(&self, number: u64) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.asked = None;
        }
    }

    /// True if this mount has committed this very time as a directory's time of change.
    pub fn is_touched(&self, number: u64, time: Time) -> bool {
        let known = self.known.lock().expect("no panic while held");
        known.get(&number).is_some_and(|known| known.touched == time)
    }

    /// This mount has committed this time of a directory; `None` if it set its times otherwise.
    pub fn note_touched(&self, number: u64, time: Option<Time>) {
        self.forget_row(number);
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.touched = time.unwrap_or_default();
        }
    }

    /// How long a cached row counts.
    pub(super) fn counts_for(&self, number: u64) -> Duration {
        let known = self.known.lock().expect("no panic while held");
        let at = known.get(&number).and_then(|known| known.asked);
        at.map_or(Duration::ZERO, |at| A_MOMENT.saturating_sub(at.elapsed()))
    }

    /// The file was emptied while no program had it open to write; or (not `emptied`) it is tailed.
    pub fn note_emptied(&self, number: u64, emptied: bool) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.emptied = emptied;
        }
    }

    /// True if a file was emptied before it was opened to be written.
    pub fn was_emptied(&self, number: u64) -> bool {
        self.known.lock().expect("no panic while held").get(&number).is_some_and(|known| known.emptied)
    }

    /// The kernel is given a name. This matters only while some files are tailed.
    pub fn saw(&self, parent: u64, name: &[u8], row: &Inode) {
        if row.attributes.kind == FileKind::File && self.tailing.is_any() {
            self.places.saw(parent, name, row.number);
        }
    }

    /// The kernel does not know it any more.
    pub fn forget(&self, number: u64) {
        self.places.forget(number);
        self.paths.forget(number);
        self.fresh.forget(number);
        self.known.lock().expect("no panic while held").remove(&number);
    }

    /// A directory that an inode has a name in, if known.
    pub fn parent_of(&self, number: u64) -> u64 {
        self.known.lock().expect("no panic while held").get(&number).map_or(ROOT_INODE, |known| known.parent)
    }

    /// True if the kernel's cached bytes of a file are this content's; from here on they are.
    pub fn keeps_cache(&self, number: u64, content: &Root) -> bool {
        let mut known = self.known.lock().expect("no panic while held");
        known
            .get_mut(&number)
            .is_some_and(|known| known.cached.replace(content.clone()).as_ref() == Some(content))
    }

    /// The kernel may have bytes of a file that are not of its content.
    pub fn forget_cached(&self, number: u64) {
        if let Some(known) = self.known.lock().expect("no panic while held").get_mut(&number) {
            known.cached = None;
        }
    }
}
