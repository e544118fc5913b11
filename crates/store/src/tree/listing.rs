//! Walks a stored tree, depth first, in bytewise order of names.

use std::collections::HashSet;

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{At, DirEntry, Meta};

/// Entries asked for at once.
const PAGE: usize = 4096;

/// The directories above the present place of a walk. A tree may be of any depth (a put tree is as
/// deep as its file system allowed). A damaged or hostile database may have a directory below
/// itself: without this a walk would never end.
pub struct Ancestors(HashSet<u64>);

impl Ancestors {
    /// A walk begins at `directory`.
    pub fn new(directory: u64) -> Self {
        Self(HashSet::from([directory]))
    }

    /// The walk goes down into `directory`.
    ///
    /// # Errors
    /// `Damaged` when it is there already.
    pub fn enter(&mut self, directory: u64) -> Result<(), Error> {
        if self.0.insert(directory) {
            return Ok(());
        }
        Err(Error::damaged(format!(
            "directory {directory} of the stored tree lies below itself; `outrigger check` names what is damaged, `outrigger recover` rebuilds the database"
        )))
    }

    /// The walk has left `directory`.
    pub fn leave(&mut self, directory: u64) {
        self.0.remove(&directory);
    }
}

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

/// Calls `visit` with the path (relative to `directory`) and the entry of everything in the
/// directory, and with `recursive` of everything below it. A directory comes before its contents.
///
/// # Errors
/// Those of `visit` and of the database; `Damaged` for a directory that lies below itself.
pub fn walk<E: From<Error>>(
    meta: &dyn Meta,
    at: At,
    directory: u64,
    recursive: bool,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let mut path = Vec::new();
    let mut levels = vec![Level::new(directory, 0)];
    let mut above = Ancestors::new(directory);
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next(meta, at)? else {
            above.leave(level.inode);
            levels.pop();
            continue;
        };
        path.truncate(level.prefix);
        path.extend_from_slice(&entry.name);
        visit(&path, &entry)?;
        if recursive && entry.inode.attributes.kind == FileKind::Directory {
            above.enter(entry.inode.number)?;
            path.push(b'/');
            levels.push(Level::new(entry.inode.number, path.len()));
        }
    }
    Ok(())
}
