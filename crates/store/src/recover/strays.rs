//! Directories that no record makes, and that something lies in all the same: mounts of a store that hosts share made them before writers told where directories
//! hang (`write/places.rs`), or the block that told it is lost. Nobody knows their names any more. Each is made as `directory-N`, N being its number, in a directory of its own
//! at the top, for root or whoever recovers alone; what is told of it later brings it to its place.

use outrigger_clock as clock;
use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;

use super::RecoverReport;
use crate::error::Result;
use crate::local::put::made_now;
use crate::meta::{At, Change, Commit, Meta, ROOT_INODE};
use crate::session::Session;
use crate::store::Store;
use crate::text::show;

/// Where they are made; with a number behind it while that is taken by something else.
const NAME: &str = "recovered-directories";

/// Those that were made.
#[derive(Default)]
pub(super) struct Strays {
    /// What they are in.
    above: Option<u64>,
}

impl Strays {
    /// After a change was refused: has its directory be there, or, if it says where a directory hangs that is elsewhere, moves that there. Says whether the change is
    /// worth another attempt.
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
            // It was found without a name, or a mount has moved it since it was told.
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

    /// Says which there are, and takes away what they were in if none is left.
    ///
    /// # Errors
    /// Those of the database.
    pub fn end(&self, store: &Store, session: &Session, report: &mut RecoverReport) -> Result<()> {
        let Some(above) = self.above else { return Ok(()) };
        // It may have been moved, or removed with all that was in it.
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

/// Where a directory hangs: in which, and by what name.
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
