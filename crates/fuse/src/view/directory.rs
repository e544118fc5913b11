//! An open directory, read a page at a time.
//!
//! Offsets are ordinals: 0 is `.`, 1 is `..`, and the entries follow in bytewise order of their
//! names. The directory keeps one page of entries, and for every page ever loaded its first ordinal
//! and the name before it. So a reader can go back to any offset that it was given, in a directory
//! of a million entries, for some names of memory.

use std::sync::Mutex;

use outrigger_store::Result;
use outrigger_store::meta::{At, DirEntry, Meta, SnapshotRow};

/// Entries in a page.
const PAGE: usize = 1024;
/// Ordinal of the first entry after `.` and `..`.
pub const FIRST: u64 = 2;

/// A directory that is being listed.
pub enum Listing {
    /// A stored directory.
    Stored(StoredDir),
    /// `.snapshots`, as it was when it was opened.
    Snapshots(Vec<SnapshotRow>),
}

/// A stored directory.
pub struct StoredDir {
    at: At,
    inode: u64,
    state: Mutex<State>,
}

struct State {
    /// Ordinal and preceding name of every page seen, rising.
    marks: Vec<(u64, Option<Vec<u8>>)>,
    first: u64,
    page: Vec<DirEntry>,
}

impl StoredDir {
    /// The directory `inode` at an epoch.
    pub fn new(at: At, inode: u64) -> Self {
        let state = State { marks: vec![(FIRST, None)], first: FIRST, page: Vec::new() };
        Self { at, inode, state: Mutex::new(state) }
    }

    /// Reads the next entries afresh: for a directory that changes.
    pub fn restart(&self) {
        let mut state = self.state.lock().expect("no panic while held");
        *state = State { marks: vec![(FIRST, None)], first: FIRST, page: Vec::new() };
    }

    /// Calls `visit` with the ordinal and entry of everything from ordinal `from` on, until it
    /// returns `false`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn list(
        &self,
        meta: &dyn Meta,
        from: u64,
        visit: &mut dyn FnMut(u64, &DirEntry) -> bool,
    ) -> Result<()> {
        let mut state = self.state.lock().expect("no panic while held");
        let mut ordinal = from.max(FIRST);
        loop {
            state.find(meta, (self.at, self.inode), ordinal)?;
            let skip = usize::try_from(ordinal - state.first).unwrap_or(usize::MAX);
            let Some(rest) = state.page.get(skip..).filter(|rest| !rest.is_empty()) else { return Ok(()) };
            for entry in rest {
                if !visit(ordinal, entry) {
                    return Ok(());
                }
                ordinal += 1;
            }
        }
    }
}

impl State {
    /// Makes the page current that holds `ordinal`, or the last one if there is none so far on.
    fn find(&mut self, meta: &dyn Meta, dir: (At, u64), ordinal: u64) -> Result<()> {
        let held = self.first..self.first + self.page.len() as u64;
        if !held.contains(&ordinal) {
            let known = self.marks.partition_point(|(first, _)| *first <= ordinal).max(1) - 1;
            self.load(meta, dir, known)?;
        }
        while ordinal >= self.first + self.page.len() as u64 && self.page.len() == PAGE {
            let known = self.marks.partition_point(|(first, _)| *first <= self.first);
            self.load(meta, dir, known)?;
        }
        Ok(())
    }

    /// Loads the page of a mark, and marks where the one after it begins.
    fn load(&mut self, meta: &dyn Meta, (at, inode): (At, u64), mark: usize) -> Result<()> {
        let (first, after) = self.marks[mark].clone();
        self.page = meta.read_dir(at, inode, after.as_deref(), PAGE)?;
        self.first = first;
        if self.page.len() == PAGE && mark + 1 == self.marks.len() {
            let last = self.page.last().map(|entry| entry.name.clone());
            self.marks.push((first + PAGE as u64, last));
        }
        Ok(())
    }
}
