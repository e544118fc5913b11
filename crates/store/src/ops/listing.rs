//! Walks a stored tree, depth first, in bytewise order of names.

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{At, DirEntry, Meta};

/// Entries asked for at once.
const PAGE: usize = 4096;
/// Deeper than any tree that a file system could hold: a database that says so is damaged, or lies.
const DEPTH_MAX: usize = 4096;

struct Level {
    inode: u64,
    prefix: usize,
    entries: std::vec::IntoIter<DirEntry>,
    /// Where the next page begins; `None` when this is the last one.
    next: Option<Option<Vec<u8>>>,
}

impl Level {
    fn new(inode: u64, prefix: usize) -> Self {
        Self { inode, prefix, entries: Vec::new().into_iter(), next: Some(None) }
    }

    fn next(&mut self, meta: &dyn Meta, at: At) -> Result<Option<DirEntry>, Error> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Ok(Some(entry));
            }
            let Some(after) = self.next.take() else { return Ok(None) };
            let page = meta.read_dir(at, self.inode, after.as_deref(), PAGE)?;
            self.next = (page.len() == PAGE).then(|| page.last().map(|entry| entry.name.clone()));
            self.entries = page.into_iter();
        }
    }
}

/// Told of each entry: its path below the directory that is listed, and the entry.
pub type Visit<'v, E> = dyn FnMut(&[u8], &DirEntry) -> Result<(), E> + 'v;

/// Calls `visit` with the path (relative to `directory`) and the entry of everything in the directory, and with `recursive` of everything
/// below it; a directory comes before what it holds.
///
/// # Errors
/// Those of `visit` and of the database; `Damaged` for a tree that is too deep to be one.
pub fn walk<E: From<Error>>(
    meta: &dyn Meta,
    at: At,
    directory: u64,
    recursive: bool,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let mut path = Vec::new();
    let mut levels = vec![Level::new(directory, 0)];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next(meta, at)? else {
            levels.pop();
            continue;
        };
        path.truncate(level.prefix);
        path.extend_from_slice(&entry.name);
        visit(&path, &entry)?;
        if recursive && entry.inode.attributes.kind == FileKind::Directory {
            if levels.len() >= DEPTH_MAX {
                return Err(Error::damaged("the stored tree is nested too deeply to be real").into());
            }
            path.push(b'/');
            levels.push(Level::new(entry.inode.number, path.len()));
        }
    }
    Ok(())
}
