//! Files that nobody is to see but who writes them (1W→1W): they have a name in this mount only, and the database knows of no such inode.
//!
//! A look-up finds one by its name before it asks the database; no directory lists it, and no other host finds it. Its name is reserved by a note ([`super::noted`]): two mounts that know the
//! rule cannot both hide a file of that name. Who makes one otherwise, before the rule, with another command, finds nothing in his way, and what the program makes becomes a newer version of that.

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
use crate::follow::Wanted;
use crate::fs::{Caller, Entry, NewNode, OpenFlags, Opened, Result};
use crate::live::names::{check_name, inherit};

/// Names of hidden files: directory → name → inode.
#[derive(Default)]
pub(super) struct Hidden(Mutex<HashMap<u64, HashMap<Vec<u8>, u64>>>);

impl Hidden {
    /// What is hidden by a name.
    pub fn number(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.0.lock().expect("no panic while held").get(&parent)?.get(name).copied()
    }

    fn insert(&self, (parent, name): (u64, &[u8]), number: u64) {
        let mut hidden = self.0.lock().expect("no panic while held");
        hidden.entry(parent).or_default().insert(name.to_vec(), number);
    }

    /// A file is hidden no more.
    pub fn remove(&self, (parent, name): (u64, &[u8]), number: u64) {
        let mut hidden = self.0.lock().expect("no panic while held");
        if let Some(names) = hidden.get_mut(&parent)
            && names.get(name) == Some(&number)
        {
            names.remove(name);
            if names.is_empty() {
                hidden.remove(&parent);
            }
        }
    }
}

impl Core {
    /// Gives a hidden file up, whose writer has removed its name.
    pub fn give_up_hidden(&self, parent: u64, name: &[u8], number: u64) {
        self.hidden.remove((parent, name), number);
        if let Some(file) = self.open.get(number) {
            self.following.give_up(file.write().open.as_deref_mut());
        }
    }
}

impl SharedVolume {
    /// Makes a file that is followed and that nobody is to see; `None` if nobody wants it after all.
    pub(super) fn create_hidden(
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
        let mut begun = self.begin_hidden(caller, &above, place.clone(), (new, number), flags, wanted);
        if let Ok(Some((_, opened))) = &begun
            && core.session().id() != session
        {
            // The session was ended by whose number the name is reserved.
            if let Some(file) = core.open.get(number) {
                file.write().lose();
            }
            self.release_handle(number, opened.handle);
            begun = Err(Errno::IO);
        }
        if !matches!(begun, Ok(Some(_))) {
            // If this fails, whoever finds this mount gone does it.
            let _ = core.fail(core.unnote(number, Some(&place), true));
        }
        begun
    }

    fn begin_hidden(
        &self,
        caller: Caller,
        above: &Inode,
        place: (u64, Vec<u8>),
        (new, number): (NewNode, u64),
        flags: OpenFlags,
        wanted: Box<dyn Wanted>,
    ) -> Result<Option<(Entry, Opened)>> {
        let core = &self.core;
        // It may have been made before the name was reserved.
        if core.look(place.0, &place.1)?.is_some() {
            return Err(Errno::EXIST);
        }
        let attributes = inherit(&above.attributes, caller, new, &[]);
        let row = Inode { number, attributes, root: Root::Empty, links: 1, stamp: 0 };
        core.remember_own(&row, Some(place.0));
        let opened = self.open_file(number, Some(row), flags.difference(OFlags::TRUNC), caller)?;
        let file: Arc<File> = Arc::clone(&core.files.get(opened.handle)?.file);
        file.write().is_hidden = true;
        let begun = core.fail(core.begin_following(&file, place.clone(), wanted, false));
        if matches!(begun, Ok(true)) {
            core.hidden.insert((place.0, &place.1), number);
            let entry = core.entry(&core.row(number)?);
            return Ok(Some((entry, opened)));
        }
        file.write().lose();
        self.release_handle(number, opened.handle);
        begun.map(|_| None)
    }
}
