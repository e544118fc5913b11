//! Where directories and files hang, with the names that are staged: from a number to its path
//! ([`crate::tail::Places`]).

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_store::meta::{At, ROOT_INODE};
use outrigger_store::{Context as _, Result};
use rustix::io::Errno;

use super::core::Core;
use super::node::Node;
use super::tree::Tree;
use super::world::{Seen, World};
use crate::tail::Hanging;

/// The tree, locked.
struct Staged<'a> {
    world: &'a World,
    tree: &'a Tree,
}

impl Core {
    /// The path of a directory, by names; `None` when it is in the tree no more.
    pub fn path_of(&self, directory: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let staged = Staged { world: &self.world, tree: &self.tree() };
        self.places.path_of(&staged, directory)
    }

    /// The kernel is told of a name.
    pub fn saw(&self, parent: u64, name: &[u8], number: u64, kind: FileKind) {
        if kind != FileKind::Directory {
            self.world.hangs_in(number, parent);
        }
        if kind == FileKind::File && self.tailing.is_any() {
            self.places.saw(parent, name, number);
        }
    }

    /// Directory and name of a file; `None` when it has none, or nobody knows.
    pub fn place_of_file(&self, node: &Node) -> Result<Option<(u64, Vec<u8>)>> {
        let staged = Staged { world: &self.world, tree: &self.tree() };
        let parent = node.read().parent;
        self.places.place_of_file(&staged, node.number, parent)
    }

    /// The directory above one; the root's is itself.
    pub fn above(&self, directory: u64) -> crate::fs::Result<u64> {
        if directory == ROOT_INODE {
            return Ok(directory);
        }
        let staged = Staged { world: &self.world, tree: &self.tree() };
        self.world.fail(staged.parent_of(directory))?.ok_or(Errno::STALE)
    }

    /// The attributes of a directory and of those above it, from the root on.
    pub fn attributes_above(&self, directory: u64) -> Result<Vec<Attributes>> {
        let (mut found, mut at) = (Vec::new(), Some(directory));
        while let Some(number) = at {
            let node = self.node(number).map_err(std::io::Error::from);
            let node = node.context(|| "looking at the directories above a file".to_string())?;
            found.push(node.read().attributes.clone());
            let staged = Staged { world: &self.world, tree: &self.tree() };
            at = if number == ROOT_INODE { None } else { staged.parent_of(number)? };
        }
        found.reverse();
        Ok(found)
    }
}

impl Hanging for Staged<'_> {
    fn number_at(&self, parent: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.world.find_in(self.tree, parent, name)?.map(|seen| seen.number()))
    }

    fn parent_of(&self, directory: u64) -> Result<Option<u64>> {
        match self.tree.parents.get(&directory) {
            Some(&parent) => Ok(Some(parent)),
            None => self.world.store.meta.parent_of(directory),
        }
    }

    fn name_in(&self, parent: u64, number: u64) -> Result<Option<Vec<u8>>> {
        const PAGE: usize = 1024;
        let is_it = |target: Option<(u64, FileKind)>| target.is_some_and(|(at, _)| at == number);
        let staged = self.tree.staged_after(parent, None).find(|(_, staged)| is_it(staged.target));
        if let Some((name, _)) = staged {
            return Ok(Some(name.clone()));
        }
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.world.store.meta.read_dir(At::Now, parent, after.as_deref(), PAGE)?;
            let is_it = |entry: &&outrigger_store::meta::DirEntry| {
                entry.inode.number == number && self.tree.staged(parent, &entry.name).is_none()
            };
            if let Some(entry) = page.iter().find(is_it) {
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
