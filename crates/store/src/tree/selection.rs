//! Chooses entries of a stored tree by patterns.

use std::collections::HashSet;

use outrigger_format::catalogue::FileKind;

use crate::error::Error;
use crate::meta::{At, DirEntry, Meta};
use crate::patterns::Patterns;
use crate::tree::listing;

/// Chooses the matches of `include` and all below them, or everything if it is empty. Matches of
/// `exclude` and all below them are never chosen.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Entries to take.
    pub include: Patterns,
    /// Entries to leave out.
    pub exclude: Patterns,
}

impl Selection {
    /// True when everything is chosen.
    pub fn is_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Calls `visit` with each chosen entry below `directory`, and its path from there.
    ///
    /// # Errors
    /// Those of `visit` and of the database.
    pub fn walk<E: From<Error>>(
        &self,
        meta: &dyn Meta,
        at: At,
        directory: u64,
        visit: &mut listing::Visit<'_, E>,
    ) -> Result<(), E> {
        // A walk is depth first: the entries below a directory follow it at once.
        let (mut within, mut without): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        let is_below = |top: &Option<Vec<u8>>, path: &[u8]| {
            top.as_ref().is_some_and(|top| path.strip_prefix(&top[..]).is_some_and(|rest| rest[0] == b'/'))
        };
        listing::walk(meta, at, directory, true, &mut |path, entry| {
            let is_directory = entry.inode.attributes.kind == FileKind::Directory;
            if is_below(&without, path) {
                return Ok(());
            }
            if self.exclude.matches(&entry.name, path) {
                without = is_directory.then(|| path.to_vec());
                return Ok(());
            }
            if !self.include.is_empty() && !is_below(&within, path) {
                if !self.include.matches(&entry.name, path) {
                    return Ok(());
                }
                within = is_directory.then(|| path.to_vec());
            }
            visit(path, entry)
        })
    }

    /// The paths of the chosen entries below `directory`, and of the directories that lead there.
    ///
    /// # Errors
    /// Those of the database.
    pub fn paths(&self, meta: &dyn Meta, at: At, directory: u64) -> Result<HashSet<Vec<u8>>, Error> {
        let mut paths = HashSet::new();
        self.walk(meta, at, directory, &mut |path: &[u8], _: &DirEntry| {
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            for (at, _) in slashes {
                if !paths.contains(&path[..at]) {
                    paths.insert(path[..at].to_vec());
                }
            }
            paths.insert(path.to_vec());
            Ok::<(), Error>(())
        })?;
        Ok(paths)
    }
}
