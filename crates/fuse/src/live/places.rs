//! From a directory's number to its path.
//!
//! Nothing needs it but rules, which name files by their paths: names are looked up downwards. Where a directory hangs is known; which name it has there is looked for once, by
//! going through the directory above it, and remembered. What is remembered is looked up before it is used, so it need not be kept right.

use std::collections::HashMap;
use std::sync::Mutex;

use outrigger_format::catalogue::FileKind;
use outrigger_store::Result;
use outrigger_store::meta::{At, ROOT_INODE};

use super::core::Core;
use super::tree::Tree;
use super::world::Seen;

/// Directories that are remembered; with more, all are forgotten.
const KNOWN_MAX: usize = 16 << 10;

/// Directories whose place was looked for: parent and name.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<u64, (u64, Vec<u8>)>>);

impl Places {
    fn known(&self, directory: u64) -> Option<(u64, Vec<u8>)> {
        self.0.lock().expect("no panic while held").get(&directory).cloned()
    }

    fn note(&self, directory: u64, place: (u64, Vec<u8>)) {
        let mut known = self.0.lock().expect("no panic while held");
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(directory, place);
    }
}

impl Core {
    /// The path of a directory, by names; `None` when it is in the tree no more.
    pub fn path_of(&self, directory: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let tree = self.tree();
        let (mut path, mut at) = (Vec::new(), directory);
        while at != ROOT_INODE {
            let Some((parent, name)) = self.place_of(&tree, at)? else { return Ok(None) };
            path.push(name);
            at = parent;
        }
        path.reverse();
        Ok(Some(path))
    }

    fn place_of(&self, tree: &Tree, directory: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let known = self.following.places.known(directory);
        if let Some((parent, name)) = known
            && self.world.find_in(tree, parent, &name)?.is_some_and(|seen| seen.number() == directory)
        {
            return Ok(Some((parent, name)));
        }
        let parent = match tree.parents.get(&directory) {
            Some(&parent) => Some(parent),
            None => self.world.store.meta.parent_of(directory)?,
        };
        let Some(parent) = parent else { return Ok(None) };
        let Some(name) = self.name_of(tree, parent, directory)? else { return Ok(None) };
        self.following.places.note(directory, (parent, name.clone()));
        Ok(Some((parent, name)))
    }

    /// The name of a directory in the one that it is in, by looking through that.
    fn name_of(&self, tree: &Tree, parent: u64, directory: u64) -> Result<Option<Vec<u8>>> {
        const PAGE: usize = 1024;
        let is_it = |target: Option<(u64, FileKind)>| target.is_some_and(|(number, _)| number == directory);
        if let Some((name, _)) = tree.staged_after(parent, None).find(|(_, staged)| is_it(staged.target)) {
            return Ok(Some(name.clone()));
        }
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.world.store.meta.read_dir(At::Now, parent, after.as_deref(), PAGE)?;
            let found = page
                .iter()
                .find(|entry| entry.inode.number == directory && tree.staged(parent, &entry.name).is_none());
            if let Some(entry) = found {
                return Ok(Some(entry.name.clone()));
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.name.clone()),
                _ => return Ok(None),
            }
        }
    }
}

impl Seen {
    /// Its inode's number.
    pub fn number(&self) -> u64 {
        match self {
            Self::Node(node) => node.number,
            Self::Row(row) => row.number,
        }
    }
}
