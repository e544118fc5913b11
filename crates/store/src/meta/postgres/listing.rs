//! The order of names where they are sealed.
//!
//! The database orders sealed names by their sealed bytes, so directories are put in order here. A
//! directory that fits into one page is read by one statement. Of a larger one the names are read
//! first, all of them, and kept in order while somebody lists it; each page then asks for the
//! inodes of the names that come next. Names that have gone meanwhile are passed over, and the page
//! is filled up with later ones.
//!
//! A listing that goes on sees the names that this engine has made meanwhile. It may miss some that
//! others have made, as any listing may that began before; after [`AGE_MAX`] it sees them. What
//! does not go on where a page ended reads the names anew.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_clock::Instant;

use super::{PostgresMeta, tree};
use crate::error::Result;
use crate::meta::{At, Change, Commit, Committed, DirEntry};

/// Directories whose names are kept, at most.
const LISTS_MAX: usize = 8;
/// About how many bytes they take together, at most. One directory is kept however large it is.
const BYTES_MAX: usize = 64 << 20;
/// What a name takes besides its bytes, about.
const NAME_COST: usize = 48;
/// For so long a directory's names are gone on with.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Names whose inodes are read by one statement.
const BATCH: usize = 4096;

/// Names of directories, in order: of those that were listed last.
#[derive(Default)]
pub(super) struct Listings {
    /// The one used last comes last.
    kept: Mutex<Vec<Arc<Listing>>>,
}

/// The names of one directory.
struct Listing {
    at: At,
    directory: u64,
    since: Instant,
    names: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    /// Each with whether a page has ended with it.
    all: BTreeMap<Vec<u8>, bool>,
    bytes: usize,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    fn add(&mut self, name: Vec<u8>) {
        let cost = name.len() + NAME_COST;
        if let std::collections::btree_map::Entry::Vacant(free) = self.all.entry(name) {
            free.insert(false);
            self.bytes += cost;
        }
    }

    /// Up to `limit` names after one.
    fn next(&self, after: Option<&[u8]>, limit: usize) -> Vec<Vec<u8>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.all.range::<[u8], _>((from, Bound::Unbounded));
        names.take(limit).map(|(name, _)| name.clone()).collect()
    }
}

impl Listing {
    fn new(at: At, directory: u64, names: Vec<Vec<u8>>) -> Self {
        let mut all = Names::default();
        names.into_iter().for_each(|name| all.add(name));
        Self { at, directory, since: Instant::now(), names: Mutex::new(all) }
    }

    fn is_of(&self, at: At, directory: u64) -> bool {
        (self.at, self.directory) == (at, directory)
    }

    /// True if a page ended with this name, not too long ago.
    fn goes_on_after(&self, name: &[u8]) -> bool {
        let is_fresh = self.at != At::Now || self.since.elapsed() < AGE_MAX;
        is_fresh && lock(&self.names).all.get(name) == Some(&true)
    }

    /// A page has ended with this name.
    fn ends(&self, name: &[u8]) {
        if let Some(is_end) = lock(&self.names).all.get_mut(name) {
            *is_end = true;
        }
    }
}

impl Listings {
    /// The names of a directory of which a page has ended with `after`.
    fn going_on(&self, at: At, directory: u64, after: &[u8]) -> Option<Arc<Listing>> {
        let mut kept = lock(&self.kept);
        let is_wanted = |list: &Arc<Listing>| list.is_of(at, directory) && list.goes_on_after(after);
        let found = kept.iter().position(is_wanted)?;
        let listing = kept.remove(found);
        kept.push(Arc::clone(&listing));
        Some(listing)
    }

    /// Keeps the names of a directory, in place of earlier ones.
    fn keep(&self, listing: Arc<Listing>) {
        let mut kept = lock(&self.kept);
        kept.retain(|other| !other.is_of(listing.at, listing.directory));
        kept.push(listing);
        let bytes = |kept: &[Arc<Listing>]| kept.iter().map(|list| lock(&list.names).bytes).sum::<usize>();
        while kept.len() > LISTS_MAX || (kept.len() > 1 && bytes(&kept) > BYTES_MAX) {
            kept.remove(0);
        }
    }

    /// Adds the names that a commit of this engine has made.
    pub fn observe(&self, commit: &Commit, done: &Committed) {
        let kept = lock(&self.kept);
        if kept.is_empty() {
            return;
        }
        for change in &commit.changes {
            let (parent, name) = match change {
                Change::Put { parent, name, .. }
                | Change::Link { parent, name, .. }
                | Change::Name { parent, name, inode: Some(_) }
                | Change::Rename { new_parent: parent, new_name: name, .. } => (parent, name),
                _ => continue,
            };
            let parent = *done.aliases.get(parent).unwrap_or(parent);
            for listing in kept.iter().filter(|listing| listing.is_of(At::Now, parent)) {
                lock(&listing.names).add(name.clone());
            }
        }
    }
}

impl PostgresMeta {
    /// Up to `limit` entries of a directory with sealed names, in the order of the plain names.
    pub(super) fn read_dir_in_order(
        &self,
        at: At,
        parent: u64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let listing = match after {
            None => {
                let query = tree::read_dir(at, parent, None, limit.saturating_add(1));
                let whole =
                    self.read("reading a directory", &query, |answer| tree::read_entries(answer, parent))?;
                if let Some(page) = self.whole(at, parent, whole, limit) {
                    return Ok(page);
                }
                None
            }
            Some(after) => self.listings.going_on(at, parent, after),
        };
        let listing = match listing {
            Some(listing) => listing,
            None => {
                let listing = Arc::new(Listing::new(at, parent, self.names_of(at, parent)?));
                self.listings.keep(Arc::clone(&listing));
                listing
            }
        };
        let page = self.page(&listing, after, limit)?;
        if let Some(last) = page.last() {
            listing.ends(&last.name);
        }
        Ok(page)
    }

    /// A page that is the whole directory, in order; `None` if there are more entries than that.
    fn whole(&self, at: At, parent: u64, mut entries: Vec<DirEntry>, limit: usize) -> Option<Vec<DirEntry>> {
        if entries.len() > limit {
            return None;
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let (true, Some(last)) = (entries.len() == limit, entries.last()) {
            // The caller cannot know that this was all, and asks once more.
            let names = entries.iter().map(|entry| entry.name.clone()).collect();
            let listing = Listing::new(at, parent, names);
            listing.ends(&last.name);
            self.listings.keep(Arc::new(listing));
        }
        Some(entries)
    }

    /// Every name of a directory, in no order.
    fn names_of(&self, at: At, parent: u64) -> Result<Vec<Vec<u8>>> {
        let query = tree::names_of(at, parent);
        self.transactions.on_connection("reading a directory's names", |connection| {
            let mut names = Vec::new();
            connection.stream(&query, |row| {
                names.push(tree::read_name(row, parent)?);
                Ok::<_, crate::meta::fault::Fault>(())
            })?;
            Ok(names)
        })
    }

    /// The entries after a name, of a directory whose names are known.
    fn page(&self, listing: &Listing, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        let (mut page, mut after) = (Vec::new(), after.map(<[u8]>::to_vec));
        while page.len() < limit {
            let names = lock(&listing.names).next(after.as_deref(), BATCH.min(limit - page.len()));
            let Some(last) = names.last().cloned() else { break };
            let query = tree::entries(listing.at, listing.directory, names);
            let mut entries = self.read("reading a directory", &query, |answer| {
                tree::read_entries(answer, listing.directory)
            })?;
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            page.append(&mut entries);
            after = Some(last);
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(directory: u64, names: &[&str]) -> Arc<Listing> {
        let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(Listing::new(At::Now, directory, names))
    }

    #[test]
    fn a_listing_goes_on_where_a_page_has_ended() {
        let listings = Listings::default();
        let made = listing(5, &["b", "a", "c"]);
        assert_eq!(lock(&made.names).next(None, 2), [b"a", b"b"]);
        made.ends(b"b");
        listings.keep(made);
        assert!(listings.going_on(At::Now, 5, b"a").is_none(), "no page ended there");
        assert!(listings.going_on(At::Epoch(1), 5, b"b").is_none());
        assert!(listings.going_on(At::Now, 6, b"b").is_none());
        let put = Change::Name { parent: 5, name: b"bb".to_vec(), inode: Some(9) };
        let commit = Commit { changes: vec![put], ..Commit::default() };
        listings.observe(&commit, &Committed::default());
        let found = listings.going_on(At::Now, 5, b"b").unwrap();
        assert_eq!(lock(&found.names).next(Some(b"b"), 9), [&b"bb"[..], b"c"]);
    }

    #[test]
    fn few_directories_are_kept_and_those_used_last() {
        let listings = Listings::default();
        for directory in 0..LISTS_MAX as u64 + 3 {
            let made = listing(directory, &["a"]);
            made.ends(b"a");
            listings.keep(made);
            assert!(listings.going_on(At::Now, 0, b"a").is_some(), "used all the time");
        }
        assert_eq!(lock(&listings.kept).len(), LISTS_MAX);
        assert!(listings.going_on(At::Now, 1, b"a").is_none());
        let large = "x".repeat(BYTES_MAX);
        for directory in 100..102 {
            listings.keep(listing(directory, &[&large]));
            assert_eq!(lock(&listings.kept).len(), 1, "one is kept however large it is");
        }
    }
}
