//! Attributes: each change is one transaction, which is refused when another host has changed the row since it was read, and then made again.

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_store::ErrorKind;
use outrigger_store::meta::{Change, Inode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::core::{Core, TRIES, now};
use crate::fs::{Result, SetAttr};
use crate::live::attributes::{apply, check_xattr, put_xattr, set_xattr};

impl Core {
    /// Changes attributes.
    fn change(&self, number: u64, change: impl Fn(&mut Attributes) -> Result<()>) -> Result<Inode> {
        let mut row = self.row_soon(number)?;
        for _ in 0..TRIES {
            if row.links == 0
                && let Some(file) = self.open.get(number)
            {
                // Nobody else can come by it.
                let mut state = file.write();
                change(&mut state.row.attributes)?;
                return Ok(state.row.clone());
            }
            let mut attributes = row.attributes.clone();
            change(&mut attributes)?;
            let swap = Change::Swap {
                inode: number,
                parent: self.parent_of(number),
                was: Box::new((row.attributes.clone(), row.root.clone())),
                attributes: attributes.clone(),
                root: row.root.clone(),
                keep: false,
            };
            match self.commit(vec![swap]) {
                Ok(Some(())) => {
                    row.attributes = attributes;
                    if let Some(file) = self.open.get(number) {
                        let mut state = file.write();
                        state.edition += 1;
                        state.take(&row, &self.budget);
                    }
                    self.remember_own(&row, None);
                    return Ok(row);
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(self.reports.errno(&error)),
            }
            row = self.row(number)?;
        }
        Err(Errno::BUSY)
    }

    /// `chmod`, `chown`, `utimensat`.
    pub fn set_attributes_of(&self, number: u64, set: &SetAttr) -> Result<Inode> {
        let present = now();
        let row = self.change(number, |attributes| {
            apply(attributes, set, present);
            Ok(())
        })?;
        if set.mtime.is_some()
            && let Some(file) = self.open.get(number)
        {
            // What was said holds, although something that was written before will be stored later.
            file.write().written = None;
        }
        Ok(row)
    }

    pub fn set_xattr_of(&self, number: u64, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_xattr(name, value)?;
        let present = now();
        self.change(number, |attributes| {
            let (mode, kept) = set_xattr(attributes, name, value, flags)?;
            attributes.mode = mode;
            put_xattr(&mut attributes.xattrs, name, kept);
            changed_at(attributes, present);
            Ok(())
        })
        .map(drop)
    }

    pub fn remove_xattr_of(&self, number: u64, name: &[u8]) -> Result<()> {
        let present = now();
        self.change(number, |attributes| {
            if !attributes.xattrs.iter().any(|(key, _)| key == name) {
                return Err(Errno::NODATA);
            }
            put_xattr(&mut attributes.xattrs, name, None);
            changed_at(attributes, present);
            Ok(())
        })
        .map(drop)
    }

    /// A file's row must be one of a file.
    pub fn require_file(row: &Inode) -> Result<()> {
        match row.attributes.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(Errno::ISDIR),
            // The kernel opens the others itself.
            _ => Err(Errno::NXIO),
        }
    }
}

fn changed_at(attributes: &mut Attributes, time: outrigger_format::catalogue::Time) {
    let before = attributes.mtime;
    let other = outrigger_format::catalogue::OtherTimes { atime: before, ctime: before };
    attributes.times.get_or_insert(other).ctime = time;
}
