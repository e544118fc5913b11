//! Names of directories that do not fit together yet, while a recovery replays the catalogue.
//!
//! Each mount of a shared tree publishes its own changes, and only together do they make one tree.
//! For instance, one mount moves a directory, and another later moves it on, or reuses its old
//! name. Either may publish first, some seconds apart. Each record says what names *are*, so the
//! final tree is right. On the way there a directory may get a second name, or lose its only one
//! with all its contents.
//!
//! If such names cannot be applied, a directory that gets a name gives up its old one, and a
//! directory that loses its name is kept in a directory of the recovery's own until a record says
//! where it is. Directories that no record names by the end were removed.

use std::collections::{HashMap, HashSet};

use outrigger_clock as clock;
use outrigger_format::catalogue::FileKind;

use super::strays::{commit, directory, place_of};
use crate::error::Result;
use crate::meta::{At, Change, ROOT_INODE};
use crate::session::Session;
use crate::store::Store;

/// The recovery's own directory.
const NAME: &[u8] = b".outrigger-recovering-what-hangs-nowhere";

/// Directories without a name.
#[derive(Default)]
pub(super) struct Limbo {
    /// The inode of the recovery's own directory, once it is made.
    above: Option<u64>,
}

impl Limbo {
    /// Returns the changes that must be made together with `changes` of names and inodes, which
    /// were refused.
    ///
    /// # Errors
    /// Those of the database.
    pub fn make_way(
        &mut self,
        store: &Store,
        session: &Session,
        changes: &[Change],
        time: u64,
    ) -> Result<Vec<Change>> {
        let meta = &*store.meta;
        let mut names = HashMap::new();
        for change in changes {
            if let Change::Name { parent, name, inode } = change {
                names.insert((*parent, name), *inode);
            }
        }
        let won: HashSet<u64> = names.values().flatten().copied().collect();
        let nothing = |(parent, name)| Change::Name { parent, name, inode: None };
        let mut more = Vec::new();
        for &inode in &won {
            if let Some((parent, name)) = place_of(meta, inode)?
                && !names.contains_key(&(parent, &name))
            {
                more.push(nothing((parent, name)));
            }
        }
        for (&(parent, name), inode) in &names {
            let Some(old) = meta.lookup(At::Now, parent, name)? else { continue };
            let loses = old.attributes.kind == FileKind::Directory && *inode != Some(old.number);
            if loses && !won.contains(&old.number) && !meta.read_dir(At::Now, old.number, None, 1)?.is_empty()
            {
                let parent = self.above(store, session, time)?;
                let name = old.number.to_string().into_bytes();
                more.push(Change::Name { parent, name, inode: Some(old.number) });
            }
        }
        Ok(more)
    }

    fn above(&mut self, store: &Store, session: &Session, time: u64) -> Result<u64> {
        if let Some(above) = self.above {
            return Ok(above);
        }
        let above = store.meta.reserve_inodes(1)?.start;
        commit(store, session, directory(ROOT_INODE, NAME.to_vec(), above), time)?;
        self.above = Some(above);
        Ok(above)
    }

    /// Removes the directories that are left.
    ///
    /// # Errors
    /// Those of the database.
    pub fn end(&self, store: &Store, session: &Session) -> Result<()> {
        if self.above.is_none() {
            return Ok(());
        }
        let gone = Change::Remove { parent: ROOT_INODE, name: NAME.to_vec(), recursive: true };
        commit(store, session, gone, clock::now_nanos())
    }
}
