//! An open directory, read a page at a time.
//!
//! Offsets are ordinals, as those of a read-only view (`view/directory.rs`). A page is what the
//! directory held when it was loaded; the next one begins behind its last name, wherever that is by
//! then. So an entry that stays is met exactly once, whatever comes and goes around it: `rm -r`
//! removes while it reads. Offset 0 begins afresh. A page that is loaded again ends where it ended
//! before, also if names have moved from the log to the database since: ordinals behind it stay
//! what they were.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::{At, Inode};

use super::core::Core;
use super::world::Seen;
use crate::fs::{DirEntry, Entry, Result, TakeEntry};
use crate::view::attr;

/// Entries in a page, about.
const PAGE: usize = 1024;
/// Ordinal of the first entry after `.` and `..`.
const FIRST: u64 = 2;

/// See the module.
pub(super) struct LiveDir {
    inode: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Ordinal and preceding name of every page seen, rising.
    marks: Vec<(u64, Option<Vec<u8>>)>,
    /// Mark of the page.
    current: usize,
    page: Vec<Item>,
    /// Nothing comes after the page.
    is_last: bool,
    /// Batches that were committed when the page was loaded: after the next one its rows may be out
    /// of date.
    batches: u64,
}

struct Item {
    name: Vec<u8>,
    number: u64,
    kind: FileKind,
    /// Its row, if the database was asked.
    row: Option<Inode>,
}

impl LiveDir {
    pub fn new(inode: u64) -> Self {
        Self { inode, state: Mutex::default() }
    }

    /// Gives entries to `take`, from ordinal `offset` on.
    pub fn list(&self, core: &Core, offset: u64, attributes: bool, take: &mut TakeEntry<'_>) -> Result<()> {
        let mut state = self.state.lock().expect("no panic while held");
        if offset == 0 || state.marks.is_empty() {
            *state = State { marks: vec![(FIRST, None)], ..State::default() };
            state.load(core, self.inode, 0)?;
        }
        for (ordinal, name) in [b".".as_slice(), b".."].into_iter().enumerate().skip(offset as usize) {
            let (kind, next) = (FileKind::Directory, ordinal as u64 + 1);
            if !take(&DirEntry { name, number: self.inode, kind, next, entry: None }) {
                return Ok(());
            }
        }
        let mut ordinal = offset.max(FIRST);
        loop {
            state.find(core, self.inode, ordinal)?;
            let (first, end) = state.ordinals();
            let skip = usize::try_from(ordinal - first).unwrap_or(usize::MAX);
            for item in state.page.get(skip..).unwrap_or_default() {
                let Item { name, number, kind, .. } = item;
                let entry = attributes.then(|| item.entry(core, state.batches)).flatten();
                ordinal = (ordinal + 1).min(end);
                // It is gone since the page was loaded, and the kernel would be told of a node that
                // is not there.
                if attributes && entry.is_none() {
                    continue;
                }
                if attributes {
                    core.saw(self.inode, name, *number, *kind);
                }
                if !take(&DirEntry { name, number: *number, kind: *kind, next: ordinal, entry }) {
                    return Ok(());
                }
            }
            if state.is_last {
                return Ok(());
            }
            ordinal = end;
        }
    }
}

impl Item {
    fn entry(&self, core: &Core, batches: u64) -> Option<Entry> {
        let tree = core.tree();
        let known = tree.nodes.get(&self.number).cloned();
        let fresh = core.counters.batches.load(Ordering::Relaxed) == batches;
        drop(tree);
        match (known, &self.row) {
            (Some(node), _) => {
                let named = node.read().links > 0;
                named.then(|| core.entry(&Seen::Node(node)))
            }
            (None, Some(row)) if fresh => {
                let allocated = attr::allocated_at_once(&row.root);
                let valid =
                    if allocated.is_some() { crate::view::FOREVER } else { std::time::Duration::ZERO };
                let attr = attr::attr(row.number, row, allocated.unwrap_or(row.root.len()));
                Some(Entry::new(attr, valid))
            }
            (None, _) => core.seen(self.number).ok().map(|seen| core.entry(&seen)),
        }
    }
}

impl State {
    /// Where the page begins, and where the one after it does.
    fn ordinals(&self) -> (u64, u64) {
        let next = self.marks.get(self.current + 1);
        (self.marks[self.current].0, next.map_or(u64::MAX, |(first, _)| *first))
    }

    /// Makes the page current that holds `ordinal`, or the last one if there is none so far on.
    fn find(&mut self, core: &Core, inode: u64, ordinal: u64) -> Result<()> {
        let (first, end) = self.ordinals();
        if ordinal < first || ordinal >= end {
            let known = self.marks.partition_point(|(first, _)| *first <= ordinal).max(1) - 1;
            self.load(core, inode, known)?;
        }
        while ordinal >= self.ordinals().1 {
            self.load(core, inode, self.current + 1)?;
        }
        Ok(())
    }

    /// Loads the page of a mark, and marks where the one after it begins.
    fn load(&mut self, core: &Core, inode: u64, mark: usize) -> Result<()> {
        let (first, after) = &self.marks[mark];
        let until = self.marks.get(mark + 1).and_then(|(_, name)| name.as_deref());
        self.batches = core.counters.batches.load(Ordering::Relaxed);
        (self.page, self.is_last) = page(core, inode, after.as_deref(), until)?;
        if let Some(last) = self.page.last().filter(|_| !self.is_last && until.is_none()) {
            self.marks.push((first + self.page.len() as u64, Some(last.name.clone())));
        }
        self.current = mark;
        Ok(())
    }
}

/// Entries after a name, as far as `until` if that is known: what is staged, laid over what the
/// database has. `true`: there are no more.
fn page(core: &Core, inode: u64, after: Option<&[u8]>, until: Option<&[u8]>) -> Result<(Vec<Item>, bool)> {
    // Held over both, so that a commit does not take a name from one to the other in between.
    let tree = core.tree();
    let is_new = tree.nodes.get(&inode).is_some_and(|node| !node.read().in_database);
    let mut after = after.map(<[u8]>::to_vec);
    let mut items = Vec::new();
    loop {
        let rows = match is_new {
            true => Vec::new(),
            false => {
                core.world.fail(core.world.store.meta.read_dir(At::Now, inode, after.as_deref(), PAGE))?
            }
        };
        // Names beyond the last row belong to later pages, unless there are no more rows.
        let bound = (rows.len() == PAGE).then(|| rows[PAGE - 1].name.clone());
        let limit = bound.as_deref().into_iter().chain(until).min();
        let within = |name: &[u8]| limit.is_none_or(|limit| name <= limit);
        let staged = tree.staged_after(inode, after.as_deref()).take_while(|(name, _)| within(name));
        let mut staged = staged.peekable();
        let push_staged = |items: &mut Vec<Item>, name: &Vec<u8>, target: Option<(u64, FileKind)>| {
            if let Some((number, kind)) = target {
                items.push(Item { name: name.clone(), number, kind, row: None });
            }
        };
        for row in rows.into_iter().take_while(|row| within(&row.name)) {
            while let Some((name, known)) = staged.next_if(|(name, _)| **name < row.name) {
                push_staged(&mut items, name, known.target);
            }
            if let Some((name, known)) = staged.next_if(|(name, _)| **name == row.name) {
                push_staged(&mut items, name, known.target);
                continue;
            }
            let (number, kind) = (row.inode.number, row.inode.attributes.kind);
            items.push(Item { name: row.name, number, kind, row: Some(row.inode) });
        }
        let mut full = false;
        for (name, known) in staged {
            // A directory with nothing in the database may have any number of staged names.
            if until.is_none() && items.len() >= 2 * PAGE {
                full = true;
                break;
            }
            push_staged(&mut items, name, known.target);
        }
        let is_last = bound.is_none() && !full && until.is_none();
        let is_whole = match until {
            Some(until) => bound.as_deref().is_none_or(|bound| bound >= until),
            // All of the page may have been removed.
            None => !items.is_empty() || is_last,
        };
        if is_whole {
            return Ok((items, is_last));
        }
        after = bound;
    }
}
