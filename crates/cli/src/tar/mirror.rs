//! A directory of the store that mirrors archives, one after the other. The import leaves entries
//! alone that the directory has already. After the archive's end it removes those that are not in
//! the archive.
//!
//! A file that is handed over whole is compared by a checksum of its bytes with the archive before.
//! So it costs no row and no record when it is the same. Larger files are stored again; all their
//! chunks are there then.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::checksum;
use outrigger_store::meta::{At, Change, Inode, ROOT_INODE};
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::tree::StorePath;
use outrigger_store::write::{Progress, Step};

use super::import::{Importer, Place, Stop};
use super::{Archive, Entry, TarError};

/// Checks what an archive has.
pub trait Check {
    /// Checks an entry, and adds what the archive does not say.
    ///
    /// # Errors
    /// When the archive should not have it.
    fn entry(&mut self, entry: &mut Entry) -> Result<(), TarError>;

    /// Checks that the archive is complete, after its last entry and its last byte.
    ///
    /// # Errors
    /// When it is not.
    fn end(&mut self) -> Result<(), TarError>;
}

/// Checksums of the files that were handed over whole, by their names.
#[derive(Default)]
pub struct Digests {
    last: HashMap<Place, u64>,
    now: HashMap<Place, u64>,
}

/// How a directory mirrors an archive.
pub struct Mirror<'a> {
    /// Nothing is removed before it has passed.
    pub check: &'a mut dyn Check,
    /// Those of the archive before.
    pub digests: &'a mut Digests,
    /// Inodes with several names that an entry has claimed.
    pub claimed: HashSet<u64>,
}

const PAGE: usize = 4096;

impl Importer<'_> {
    /// The inode that the store has at `place`, if it is a mirror and has exactly this entry.
    pub(super) fn unchanged(
        &mut self,
        existing: Option<&Inode>,
        place: &Place,
        attributes: &Attributes,
        whole: Option<&[u8]>,
    ) -> Option<u64> {
        let mirror = self.mirror.as_mut()?;
        let digest = whole.map(|bytes| checksum(&[bytes]));
        let last = mirror.digests.last.get(place).copied();
        mirror.digests.now.extend(digest.map(|digest| (place.clone(), digest)));
        let existing = existing.filter(|existing| existing.attributes == *attributes)?;
        if attributes.kind == FileKind::File {
            let bytes = whole?.len() as u64;
            if last != digest || existing.root.len() != bytes {
                return None;
            }
            Progress::add(&self.progress.files_unchanged, 1);
            Progress::add(&self.progress.bytes_unchanged, bytes);
        }
        // The archive may have two files where the store has one with two names.
        (existing.links == 1 || mirror.claimed.insert(existing.number)).then_some(existing.number)
    }

    /// Completes a mirror after the last entry: checks the archive, and removes what it lacks.
    pub(super) fn finish_mirror<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), Stop> {
        let Some(mirror) = &mut self.mirror else { return Ok(()) };
        archive.drain()?;
        mirror.check.end()?;
        mirror.digests.last = std::mem::take(&mut mirror.digests.now);
        let mut inode = ROOT_INODE;
        for name in &self.to.components {
            let Some(dir) = self.dirs.get(&(inode, name.clone())).filter(|dir| dir.existed) else {
                return Ok(());
            };
            inode = dir.inode;
        }
        let mut dirs = vec![(inode, StorePath::default())];
        while let Some((inode, path)) = dirs.pop() {
            self.remove_missing(inode, &path, &mut dirs)?;
        }
        Ok(())
    }

    /// Removes entries of one directory that the archive lacks, and collects those that are
    /// directories of the archive, too.
    fn remove_missing(
        &mut self,
        parent: u64,
        path: &StorePath,
        dirs: &mut Vec<(u64, StorePath)>,
    ) -> Result<(), Stop> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.meta.read_dir(At::Now, parent, after.as_deref(), PAGE)?;
            after = page.last().map(|entry| entry.name.clone()).filter(|_| page.len() == PAGE);
            for entry in page {
                let (below, place) = (path.join(&entry.name), (parent, entry.name));
                if let Some(dir) = self.dirs.get(&place) {
                    dirs.extend(dir.existed.then_some((dir.inode, below)));
                } else if !self.made.contains_key(&place) {
                    let name = place.1;
                    self.before.into_iter().for_each(BeforeSnapshot::destroys);
                    self.progress.entry(Step::Removed, || below.to_bytes());
                    self.submit(Change::Remove { parent, name, recursive: true })?;
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }
}
