//! From a directory's or a file's number to its path.
//!
//! Only rules need paths, as they name files by them; all else looks names up downwards. The
//! directory above a directory is known. Its name there is searched for once, by reading the
//! directory above, and remembered. A remembered name is looked up before it is used, so it need
//! not be kept right.

use std::collections::HashMap;
use std::sync::Mutex;

use outrigger_store::Result;
use outrigger_store::meta::ROOT_INODE;

/// Directories that are remembered; with more, all are forgotten.
const KNOWN_MAX: usize = 16 << 10;
/// Files that are remembered; others must be searched for when they are overwritten.
const FILES_MAX: usize = 1 << 20;
/// Depth at most: names may change while they are looked up.
const DEPTH_MAX: usize = 4096;

/// Looks up directories' parents and entries.
pub(crate) trait Hanging {
    /// The inode that a name stands for.
    ///
    /// # Errors
    /// When that cannot be found out; those below likewise.
    fn number_at(&self, parent: u64, name: &[u8]) -> Result<Option<u64>>;
    /// The directory that a directory is in.
    fn parent_of(&self, directory: u64) -> Result<Option<u64>>;
    /// The name of a directory or file, found by reading the directory above it.
    fn name_in(&self, parent: u64, number: u64) -> Result<Option<Vec<u8>>>;
}

/// Parents and names.
#[derive(Default)]
pub(crate) struct Places {
    /// Places of directories that were searched for.
    directories: Mutex<HashMap<u64, (u64, Vec<u8>)>>,
    /// Places of files that the kernel knows, by the name that it was told last: it opens a file by
    /// its number.
    files: Mutex<HashMap<u64, (u64, Vec<u8>)>>,
}

impl Places {
    /// A directory's path as names; `None` if it is no longer in the tree.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn path_of(&self, tree: &impl Hanging, directory: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let (mut path, mut at) = (Vec::new(), directory);
        while at != ROOT_INODE {
            let place = if path.len() < DEPTH_MAX { self.place_of(tree, at)? } else { None };
            let Some((parent, name)) = place else { return Ok(None) };
            path.push(name);
            at = parent;
        }
        path.reverse();
        Ok(Some(path))
    }

    /// The kernel is given a file's name.
    pub fn saw(&self, parent: u64, name: &[u8], file: u64) {
        let mut files = self.files.lock().expect("no panic while held");
        if files.len() < FILES_MAX || files.contains_key(&file) {
            files.insert(file, (parent, name.to_vec()));
        }
    }

    /// The kernel does not know a file any more.
    pub fn forget(&self, file: u64) {
        self.files.lock().expect("no panic while held").remove(&file);
    }

    /// A file's directory and name, found by reading `parent` if need be; `None` if it has none, or
    /// that is unknown.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn place_of_file(
        &self,
        tree: &impl Hanging,
        file: u64,
        parent: u64,
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let known = self.files.lock().expect("no panic while held").get(&file).cloned();
        if let Some((parent, name)) = known
            && tree.number_at(parent, &name)? == Some(file)
        {
            return Ok(Some((parent, name)));
        }
        Ok(tree.name_in(parent, file)?.map(|name| (parent, name)))
    }

    fn place_of(&self, tree: &impl Hanging, directory: u64) -> Result<Option<(u64, Vec<u8>)>> {
        if let Some((parent, name)) = self.known(directory)
            && tree.number_at(parent, &name)? == Some(directory)
        {
            return Ok(Some((parent, name)));
        }
        let Some(parent) = tree.parent_of(directory)? else { return Ok(None) };
        let Some(name) = tree.name_in(parent, directory)? else { return Ok(None) };
        self.note(directory, (parent, name.clone()));
        Ok(Some((parent, name)))
    }

    fn known(&self, directory: u64) -> Option<(u64, Vec<u8>)> {
        self.directories.lock().expect("no panic while held").get(&directory).cloned()
    }

    fn note(&self, directory: u64, place: (u64, Vec<u8>)) {
        let mut known = self.directories.lock().expect("no panic while held");
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(directory, place);
    }
}
