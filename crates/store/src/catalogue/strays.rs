//! Directories that have entries although no record makes them, because the block that records them
//! is lost. Their names are unknown. Each is made as `directory-N`, N being its number, in a
//! directory at the top, for root or the user who runs the recovery. A later record may move it to
//! its place.

use outrigger_clock as clock;
use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;

use super::replay::Replayed;
use crate::error::Result;
use crate::local::put::made_now;
use crate::meta::{At, Change, Commit, Meta, ROOT_INODE};
use crate::session::Session;
use crate::store::Store;
use crate::text::show;

/// The name of that directory; with a number behind it if the name is taken.
const NAME: &str = "recovered-directories";

/// The directories that were made.
#[derive(Default)]
pub(super) struct Strays {
    /// The directory in which they were made.
    above: Option<u64>,
}

impl Strays {
    /// Handles a refused change: makes its missing directory, or, if it is for a directory that is
    /// elsewhere, moves that. True if the change is worth another attempt.
    ///
    /// # Errors
    /// Those of the database.
    pub fn make_way(&mut self, store: &Store, session: &Session, change: &Change, time: u64) -> Result<bool> {
        let (Change::Put { parent, .. } | Change::Link { parent, .. }) = change else { return Ok(false) };
        let is_missing = store.meta.inode(At::Now, *parent)?.is_none();
        if is_missing {
            self.make(store, session, *parent, time)?;
        }
        if let Change::Put { parent, name, inode, attributes, .. } = change
            && attributes.kind == FileKind::Directory
            && let Some((above, old)) = place_of(&*store.meta, *inode)?
        {
            // The directory was made without its name, or a mount has moved it since it was
            // published.
            let (new_parent, new_name) = (*parent, name.clone());
            let moved = Change::Rename { parent: above, name: old, new_parent, new_name };
            return Ok(commit(store, session, moved, time).is_ok());
        }
        Ok(is_missing)
    }

    fn make(&mut self, store: &Store, session: &Session, inode: u64, time: u64) -> Result<()> {
        let above = match self.above {
            Some(above) if store.meta.parent_of(above)?.is_some() => above,
            _ => {
                let (above, name) = (store.meta.reserve_inodes(1)?.start, free_name(store)?);
                commit(store, session, directory(ROOT_INODE, name, above), time)?;
                self.above = Some(above);
                above
            }
        };
        let name = format!("directory-{inode}").into_bytes();
        commit(store, session, directory(above, name, inode), time)
    }

    /// Reports the directories that are left, or removes their common directory if there are none.
    ///
    /// # Errors
    /// Those of the database.
    pub fn end(&self, store: &Store, session: &Session, report: &mut Replayed) -> Result<()> {
        let Some(above) = self.above else { return Ok(()) };
        // It may have been moved, or removed with its contents.
        let Some((parent, name)) = place_of(&*store.meta, above)?.filter(|(parent, _)| *parent == ROOT_INODE)
        else {
            return Ok(());
        };
        let left = store.meta.read_dir(At::Now, above, None, usize::MAX)?;
        if left.is_empty() {
            let gone = Change::Remove { parent, name, recursive: false };
            return commit(store, session, gone, clock::now_nanos());
        }
        let (first, count) = (show(&left[0].name), left.len());
        let more = if count == 1 { String::new() } else { format!(" and {} more", count - 1) };
        report.problems.push(format!(
            "the packs do not say what {} called: what lies in {} is in `/{}/{first}`{more}; move it to where it belongs",
            if count == 1 { "a directory is" } else { "some directories are" },
            if count == 1 { "it" } else { "them" },
            show(&name),
        ));
        Ok(())
    }
}

/// The place of a directory: its parent and its name.
pub(super) fn place_of(meta: &dyn Meta, directory: u64) -> Result<Option<(u64, Vec<u8>)>> {
    let hanging = meta.hanging(&[directory])?;
    if let Some(place) = hanging.into_iter().find(|place| place.entry.inode.number == directory) {
        return Ok(Some((place.parent, place.entry.name)));
    }
    let Some(parent) = meta.parent_of(directory)? else { return Ok(None) };
    let entries = meta.read_dir(At::Now, parent, None, usize::MAX)?;
    Ok(entries.into_iter().find(|entry| entry.inode.number == directory).map(|entry| (parent, entry.name)))
}

fn free_name(store: &Store) -> Result<Vec<u8>> {
    let (mut name, mut number) = (NAME.to_owned(), 1);
    while store.meta.lookup(At::Now, ROOT_INODE, name.as_bytes())?.is_some() {
        number += 1;
        name = format!("{NAME}-{number}");
    }
    Ok(name.into_bytes())
}

pub(super) fn directory(parent: u64, name: Vec<u8>, inode: u64) -> Change {
    let attributes = made_now(FileKind::Directory, 0o700);
    Change::Put { parent, name, inode, attributes, root: Root::Empty, stamp: 0, replace: false }
}

pub(super) fn commit(store: &Store, session: &Session, change: Change, time: u64) -> Result<()> {
    let commit = Commit { packs: Vec::new(), changes: vec![change], time };
    store.meta.commit(session.id(), &commit).map(drop)
}
