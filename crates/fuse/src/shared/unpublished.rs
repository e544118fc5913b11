//! Unpublished files, which only their writer sees (1W→1W): they have a name in this mount only,
//! and the database knows no such inode.
//!
//! A lookup finds one by its name before it asks the database; no directory lists it, and no other
//! host finds it. A registry record reserves its name ([`super::open_versions`]): two mounts that
//! know the rule cannot both hide a file of that name. A program that makes the name otherwise
//! (before the rule, or with another command) finds it free, and the job's output becomes a newer
//! version of that file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::Inode;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::SharedVolume;
use super::core::Core;
use super::file::File;
use crate::fs::{Caller, Entry, NewNode, OpenFlags, Opened, Result};
use crate::live::names::{check_name, inherit};
use crate::tail::Wanted;

/// Names of unpublished files: directory → name → inode.
#[derive(Default)]
pub(super) struct Unpublished(Mutex<HashMap<u64, HashMap<Vec<u8>, u64>>>);

impl Unpublished {
    /// The inode of an unpublished file.
    pub fn number(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.0.lock().expect("no panic while held").get(&parent)?.get(name).copied()
    }

    fn insert(&self, (parent, name): (u64, &[u8]), number: u64) {
        let mut unpublished = self.0.lock().expect("no panic while held");
        unpublished.entry(parent).or_default().insert(name.to_vec(), number);
    }

    /// The file is unpublished no more.
    pub fn remove(&self, (parent, name): (u64, &[u8]), number: u64) {
        let mut unpublished = self.0.lock().expect("no panic while held");
        if let Some(names) = unpublished.get_mut(&parent)
            && names.get(name) == Some(&number)
        {
            names.remove(name);
            if names.is_empty() {
                unpublished.remove(&parent);
            }
        }
    }
}

impl Core {
    /// Gives up an unpublished file whose writer has removed its name.
    pub fn give_up_unpublished(&self, parent: u64, name: &[u8], number: u64) {
        self.unpublished.remove((parent, name), number);
        if let Some(file) = self.open.get(number) {
            self.tailing.give_up(file.write().open.as_deref_mut());
        }
    }
}

impl SharedVolume {
    /// Makes an unpublished file that is tailed; `None` if no rule wants it after all.
    pub(super) fn create_unpublished(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        new: NewNode,
        flags: OpenFlags,
        wanted: Box<dyn Wanted>,
    ) -> Result<Option<(Entry, Opened)>> {
        let core = &self.core;
        check_name(name)?;
        let session = core.fail(core.lease.live())?.id();
        let above = core.row_soon(parent)?;
        if above.attributes.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let number = core.next_inode()?;
        if !core.fail(core.reserve(parent, name, number))? {
            return Err(if flags.contains(OFlags::EXCL) { Errno::EXIST } else { Errno::BUSY });
        }
        let place = (parent, name.to_vec());
        let mut begun = self.begin_unpublished(caller, &above, place.clone(), (new, number), flags, wanted);
        if let Ok(Some((_, opened))) = &begun
            && core.session().id() != session
        {
            // The session that reserved the name was ended.
            if let Some(file) = core.open.get(number) {
                file.write().lose();
            }
            self.release_handle(number, opened.handle);
            begun = Err(Errno::IO);
        }
        if !matches!(begun, Ok(Some(_))) {
            // If this fails, the next client that finds this mount gone does it.
            let _ = core.fail(core.unregister(number, Some(&place), true));
        }
        begun
    }

    fn begin_unpublished(
        &self,
        caller: Caller,
        above: &Inode,
        place: (u64, Vec<u8>),
        (new, number): (NewNode, u64),
        flags: OpenFlags,
        wanted: Box<dyn Wanted>,
    ) -> Result<Option<(Entry, Opened)>> {
        let core = &self.core;
        // The name may have been made before it was reserved.
        if core.look(place.0, &place.1)?.is_some() {
            return Err(Errno::EXIST);
        }
        let attributes = inherit(&above.attributes, caller, new, &[]);
        let row = Inode { number, attributes, root: Root::Empty, links: 1, stamp: 0 };
        core.remember_own(&row, Some(place.0));
        let opened = self.open_file(number, Some(row), flags.difference(OFlags::TRUNC), caller)?;
        let file: Arc<File> = Arc::clone(&core.files.get(opened.handle)?.file);
        file.write().is_unpublished = true;
        let begun = core.fail(core.begin_tailing(&file, place.clone(), wanted, false));
        if matches!(begun, Ok(true)) {
            core.unpublished.insert((place.0, &place.1), number);
            let entry = core.entry(&core.row(number)?);
            return Ok(Some((entry, opened)));
        }
        file.write().lose();
        self.release_handle(number, opened.handle);
        begun.map(|_| None)
    }
}
