//! The names of a directory in two trees, side by side.

use std::collections::VecDeque;

use crate::error::Result;
use crate::meta::{At, DirEntry, Meta};

/// Entries read at once.
const PAGE: usize = 4096;

/// An entry of the tree before, and the entry of the same name in the one after.
pub(super) type Entries = (Option<DirEntry>, Option<DirEntry>);

/// A directory: the database, the time, and its number.
pub(super) type Directory<'a> = (&'a dyn Meta, (At, u64));

/// The names of a directory in two trees, merged.
pub(super) struct Merged<'a> {
    pub old: Option<Listing<'a>>,
    new: Listing<'a>,
}

impl<'a> Merged<'a> {
    pub fn new(old: Option<Directory<'a>>, new: Directory<'a>) -> Self {
        Self { old: old.map(Listing::new), new: Listing::new(new) }
    }

    /// The next name's entries.
    pub fn next(&mut self) -> Result<Option<Entries>> {
        let Some(old) = &mut self.old else {
            return Ok(self.new.take()?.map(|new| (None, Some(new))));
        };
        let order = match (old.peek()?, self.new.peek()?) {
            (None, None) => return Ok(None),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => old.name.cmp(&new.name),
        };
        let old = if order.is_le() { old.take()? } else { None };
        let new = if order.is_ge() { self.new.take()? } else { None };
        Ok(Some((old, new)))
    }
}

/// The entries of a directory, a page at a time.
pub(super) struct Listing<'a> {
    meta: &'a dyn Meta,
    place: (At, u64),
    page: VecDeque<DirEntry>,
    last: Option<Vec<u8>>,
    is_read: bool,
}

impl<'a> Listing<'a> {
    fn new((meta, place): Directory<'a>) -> Self {
        Self { meta, place, page: VecDeque::new(), last: None, is_read: false }
    }

    fn peek(&mut self) -> Result<Option<&DirEntry>> {
        if self.page.is_empty() && !self.is_read {
            let page = self.meta.read_dir(self.place.0, self.place.1, self.last.as_deref(), PAGE)?;
            self.is_read = page.len() < PAGE;
            self.last = page.last().map(|entry| entry.name.clone());
            self.page = page.into();
        }
        Ok(self.page.front())
    }

    fn take(&mut self) -> Result<Option<DirEntry>> {
        self.peek()?;
        Ok(self.page.pop_front())
    }
}
