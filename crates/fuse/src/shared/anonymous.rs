//! Anonymous files, which have no name but may get one (`O_TMPFILE`, then `linkat`).
//!
//! While it has no name, such a file is like a removed file that is still open: the database knows
//! no such inode, and neither close nor fsync stores anything of it. A mount that is killed leaves
//! nothing of it. The mount stores it only when the log has no room otherwise: as a content that is
//! held in the name of its inode. A registry record ([`super::open_versions`]) exists before that,
//! so that other clients release the content when this mount is gone.
//!
//! `linkat` makes it appear for all hosts with all its data, or not at all: one transaction makes
//! name, attributes and content. A small content is in that transaction; a larger one is stored
//! first, and held until then.

use std::sync::Arc;

use outrigger_format::Root;
use outrigger_format::catalogue::FileKind;
use outrigger_store::meta::{Change, Inode};
use outrigger_store::{ErrorKind, Result as Stored};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::SharedVolume;
use super::attributes::changed_at;
use super::core::{Core, now};
use super::file::File;
use super::in_doubt::Tried;
use super::names::{expect, is_directory};
use super::store::Asked;
use crate::fs::{Caller, Entry, NewNode, OpenFlags, Opened, Result};
use crate::live::names::{check_name, inherit, require_one_key};

impl SharedVolume {
    /// Makes an anonymous file, which inherits from directory `parent`.
    pub(super) fn make_anonymous(
        &self,
        caller: Caller,
        parent: u64,
        new: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let core = &self.core;
        if new.kind != FileKind::File {
            return Err(Errno::INVAL);
        }
        core.require_session()?;
        // No commit will tell if the inherited attributes have changed elsewhere since.
        let above = core.row(parent)?;
        if !is_directory(&above) {
            return Err(Errno::NOTDIR);
        }
        let number = core.next_inode()?;
        let attributes = inherit(&above.attributes, caller, new, &[]);
        let row = Inode { number, attributes, root: Root::Empty, links: 0, stamp: 0 };
        core.remember_own(&row, Some(parent));
        let flags = flags.difference(OFlags::TRUNC);
        let opened = self.open_file(number, Some(row.clone()), flags, caller)?;
        core.files.get(opened.handle)?.file.write().await_name();
        Ok((core.entry(&row), opened))
    }
}

impl Core {
    /// Gives a file its first name.
    pub fn name_anonymous(self: &Arc<Self>, file: &Arc<File>, parent: u64, name: &[u8]) -> Result<Inode> {
        check_name(name)?;
        self.store_deferred();
        // Check what would be refused before anything is stored.
        let above = self.row_soon(parent)?;
        if !is_directory(&above) {
            return Err(Errno::NOTDIR);
        }
        require_one_key(&file.read().row.attributes, &above.attributes)?;
        if self.look(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        // It stays open here, even if its last descriptor is closed meanwhile.
        if !self.open.again(file) {
            return Err(Errno::NOENT);
        }
        // The policies of that directory apply.
        self.moved(file.number, parent);
        let mut named = self.with_session(|| self.store_and_name(file, parent, name));
        if named == Err(Errno::NOENT) {
            // The first try may have succeeded without an answer.
            let found = self.look(parent, name)?;
            named = found.filter(|row| row.number == file.number).ok_or(Errno::NOENT);
        }
        if named.is_ok() {
            self.let_go_of_anonymous(file);
        }
        self.close_file(file);
        named
    }

    fn store_and_name(self: &Arc<Self>, file: &Arc<File>, parent: u64, name: &[u8]) -> Result<Inode> {
        let mut asked = self.fail(self.take_turn())?;
        if let Some(row) = self.name_in_turn(&mut asked, file, (parent, name), false)? {
            return Ok(row);
        }
        self.fail(self.keep_in_turn(&mut asked, std::slice::from_ref(file)))?;
        self.name_in_turn(&mut asked, file, (parent, name), true)?.ok_or(Errno::BUSY)
    }

    /// As [`Core::name_anonymous`], with the flush lock. `None` if its data is large and must be
    /// stored first, unless it was `just_stored`.
    fn name_in_turn(
        self: &Arc<Self>,
        asked: &mut Asked,
        file: &Arc<File>,
        (parent, name): (u64, &[u8]),
        just_stored: bool,
    ) -> Result<Option<Inode>> {
        let policies = self.fail(self.policies(asked))?;
        // Locked until it has the name: no thread writes to it meanwhile, and a lookup of its name
        // waits.
        let mut state = file.write();
        if !state.may_be_named {
            return Err(Errno::NOENT);
        }
        let mut cut = self.cut_in(file, &state);
        let small = if cut.is_content { self.fail(self.compose_small(&cut, &policies))? } else { None };
        let (composed, is_all) = match small {
            Some(composed) => (composed, true),
            // Bytes that are written during `linkat` are stored at its next close, as for any file.
            None if !cut.is_content || just_stored => (cut.as_it_was(), !cut.is_content),
            None => return Ok(None),
        };
        let time = now();
        changed_at(&mut cut.attributes, time);
        let root = composed.root;
        let put = Change::Put {
            parent,
            name: name.to_vec(),
            inode: file.number,
            attributes: cut.attributes.clone(),
            root: root.clone(),
            stamp: 0,
            replace: false,
        };
        let mut changes = vec![expect(parent, name, None), put];
        let touched = self.touch(&[parent], time, &mut changes);
        if let Err(error) = self.commit_small(changes, composed.chunks) {
            let is_taken = error.kind() == ErrorKind::Changed;
            self.note_in_doubt(&error, || Tried::Name { cut: Box::new(cut), parent, is_all });
            return Err(if is_taken { Errno::EXIST } else { self.refused(&error) });
        }
        self.touched(touched);
        state.got_name();
        if is_all {
            self.settle_in(&mut state, &cut, root);
        } else {
            state.set_at_once(cut.attributes);
        }
        self.remember_own(&state.row, Some(parent));
        Ok(Some(state.row.clone()))
    }

    /// Stores data of anonymous files, for want of room.
    ///
    /// # Errors
    /// Those of the store; what could not be stored stays staged.
    pub fn keep_anonymous(self: &Arc<Self>) -> Stored<()> {
        let mut asked = self.take_turn()?;
        let mut files = self.open.all();
        files.retain(|file| {
            let state = file.read();
            state.may_be_named && !state.map.is_clean()
        });
        let kept = self.keep_in_turn(&mut asked, &files);
        drop(asked);
        // The close of one of them meanwhile may not have known that its content is held.
        files.iter().for_each(|file| self.anonymous_closed(file));
        kept
    }

    fn keep_in_turn(self: &Arc<Self>, asked: &mut Asked, files: &[Arc<File>]) -> Stored<()> {
        for file in files {
            if !file.read().is_noted {
                self.register_open(file.number, self.session().id())?;
                file.write().is_noted = true;
            }
        }
        if files.is_empty() { Ok(()) } else { self.batch(asked, files) }
    }

    /// A handle of a file was closed. If it was the last one of an anonymous file, its content is
    /// released.
    pub fn anonymous_closed(&self, file: &File) {
        if !file.read().is_noted || self.open.get(file.number).is_some() {
            return;
        }
        // Under the flush lock no thread is storing it; and none will, as it is not open any more.
        let _turn = self.turn.turn.lock().expect("no panic while held");
        self.let_go_of_anonymous(file);
    }

    /// The file got a name, or is gone: its content need not be held for its sake.
    pub fn let_go_of_anonymous(&self, file: &File) {
        let is_noted = std::mem::take(&mut file.write().is_noted);
        if is_noted {
            // If this fails, the next client that finds this mount gone does it.
            let _ = self.fail(self.unregister(file.number, None, true));
        }
    }
}
