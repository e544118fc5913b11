//! The negative-lookup cache: directories that this mount has just made
//! (`SharedOptions::names_for`). The mount knows every name in them, so it need not ask the
//! database for a missing one.
//!
//! Before the kernel makes a file it looks the name up. A program that unpacks a tree causes one
//! such lookup for each file: half of its round trips. A directory that this mount has made
//! contains the names that the mount has made there since, and names of other hosts. The mount may
//! overlook those for as long as the kernel may trust a name.
//!
//! **The cache answers only lookups.** The database decides if a name can be made: if two hosts
//! try, one succeeds and the other gets the error.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::Change;

/// Names that are remembered at most in all directories. A directory counts as one name.
const NAMES_MAX: usize = 1 << 16;

/// A directory.
struct Directory {
    /// A time before it was made.
    since: Instant,
    /// All names that this mount has given it since, also those that are gone.
    names: HashSet<Vec<u8>>,
}

#[derive(Default)]
struct State {
    directories: HashMap<u64, Directory>,
    /// How many names there are.
    names: usize,
}

/// See the module.
pub(super) struct NegativeCache {
    counts_for: Duration,
    state: Mutex<State>,
}

impl NegativeCache {
    /// A directory is cached for this long after it was made; zero turns the cache off.
    pub fn new(counts_for: Duration) -> Self {
        Self { counts_for, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    /// To be called before this mount commits these changes, so that a program that learns of a
    /// name finds it. The outcome of the commit does not matter: a name too many is asked for, and
    /// the number of a directory that was not made is nobody's.
    pub fn will_have(&self, changes: &[Change]) {
        if self.counts_for.is_zero() {
            return;
        }
        let mut state = self.lock();
        for change in changes {
            match change {
                Change::Put { parent, name, inode, attributes, .. } => {
                    state.add(*parent, name);
                    if attributes.kind == FileKind::Directory {
                        state.make_room(self.counts_for);
                        let made = Directory { since: Instant::now(), names: HashSet::new() };
                        state.directories.insert(*inode, made);
                    }
                }
                Change::Link { parent, name, .. }
                | Change::Rename { new_parent: parent, new_name: name, .. } => state.add(*parent, name),
                _ => {}
            }
        }
    }

    /// True if the name does not exist, or did not a moment ago.
    pub fn lacks(&self, parent: u64, name: &[u8]) -> bool {
        if self.counts_for.is_zero() {
            return false;
        }
        let mut state = self.lock();
        match state.directories.get(&parent) {
            Some(directory) if directory.since.elapsed() < self.counts_for => !directory.names.contains(name),
            Some(_) => {
                state.forget(parent);
                false
            }
            None => false,
        }
    }

    /// Drops a directory that the kernel no longer knows, or that is listed: every listed name must
    /// be found.
    pub fn forget(&self, number: u64) {
        if !self.counts_for.is_zero() {
            self.lock().forget(number);
        }
    }
}

impl State {
    fn add(&mut self, parent: u64, name: &[u8]) {
        if let Some(directory) = self.directories.get_mut(&parent)
            && directory.names.insert(name.to_vec())
        {
            self.names += 1;
            if self.is_full() {
                *self = Self::default();
            }
        }
    }

    /// Makes room for one more directory.
    fn make_room(&mut self, counts_for: Duration) {
        if !self.is_full() {
            return;
        }
        let over = |directory: &Directory| directory.since.elapsed() >= counts_for;
        let old: Vec<u64> = self
            .directories
            .iter()
            .filter(|(_, directory)| over(directory))
            .map(|(number, _)| *number)
            .collect();
        old.into_iter().for_each(|number| self.forget(number));
        if self.is_full() {
            *self = Self::default();
        }
    }

    fn is_full(&self) -> bool {
        self.directories.len() + self.names >= NAMES_MAX
    }

    fn forget(&mut self, number: u64) {
        if let Some(directory) = self.directories.remove(&number) {
            self.names -= directory.names.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_format::Root;

    use super::*;
    use crate::shared::new_row;

    const LONG: Duration = Duration::from_secs(3600);

    fn put(parent: u64, name: &str, inode: u64, kind: FileKind) -> Change {
        let (name, attributes) = (name.as_bytes().to_vec(), new_row(inode, kind).attributes);
        Change::Put { parent, name, inode, attributes, root: Root::Empty, stamp: 0, replace: false }
    }

    fn made(counts_for: Duration) -> NegativeCache {
        let fresh = NegativeCache::new(counts_for);
        fresh.will_have(&[put(1, "d", 7, FileKind::Directory)]);
        fresh
    }

    #[test]
    fn only_what_this_mount_has_put_into_its_directory_may_be_there() {
        let fresh = made(LONG);
        assert!(fresh.lacks(7, b"f") && !fresh.lacks(1, b"f"), "of others nothing is known");
        fresh.will_have(&[
            put(7, "f", 8, FileKind::File),
            Change::Link { parent: 7, name: b"g".to_vec(), inode: 8 },
        ]);
        let (parent, name) = (1, b"x".to_vec());
        fresh.will_have(&[Change::Rename { parent, name, new_parent: 7, new_name: b"h".to_vec() }]);
        assert!([&b"f"[..], b"g", b"h"].iter().all(|name| !fresh.lacks(7, name)));
        assert!(fresh.lacks(7, b"x"));
        // A removed name is looked up in the database again.
        fresh.will_have(&[Change::Remove { parent: 7, name: b"f".to_vec(), recursive: false }]);
        assert!(!fresh.lacks(7, b"f"));
        fresh.forget(7);
        assert!(!fresh.lacks(7, b"i"));
    }

    #[test]
    fn it_counts_for_a_while_and_where_it_is_wanted() {
        assert!(!made(Duration::ZERO).lacks(7, b"f"));
        let fresh = made(Duration::from_millis(1));
        outrigger_clock::sleep(Duration::from_millis(2));
        assert!(!fresh.lacks(7, b"f"));
        assert!(fresh.lock().directories.is_empty());
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let fresh = made(LONG);
        for number in 0..2 * NAMES_MAX as u64 {
            fresh.will_have(&[put(7, &number.to_string(), 8 + number, FileKind::Directory)]);
            let state = fresh.lock();
            assert!(state.names + state.directories.len() <= NAMES_MAX);
            if number % 4096 != 0 {
                continue;
            }
            assert_eq!(state.names, state.directories.values().map(|of| of.names.len()).sum::<usize>());
            drop(state);
            // Nothing is known of a forgotten directory.
            let knows = fresh.lock().directories.contains_key(&7);
            assert_eq!(fresh.lacks(7, b"not there"), knows);
            assert!(!fresh.lacks(7, number.to_string().as_bytes()));
        }
        assert!(!fresh.lock().directories.contains_key(&7));
    }
}
