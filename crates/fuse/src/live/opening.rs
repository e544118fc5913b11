//! Opening and making files of a writable mount, and having them tailed by programs that rules
//! want.
//!
//! Tailing begins when the file has its writer. A file that is overwritten is emptied only when its
//! jobs exist. If these cannot be made, the open fails, and a new file is removed.

use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::LiveVolume;
use super::core::{Core, OpenFile};
use super::names::{check_name, require_key};
use super::node::Node;
use crate::fs::{Caller, Entry, FileSystem, NewNode, OpenFlags, Opened, Result, writes};
use crate::tail::{Again, Wanted};

impl LiveVolume {
    pub(super) fn opened(&self, node: Arc<Node>, flags: OpenFlags) -> Result<Opened> {
        let writes = writes(flags);
        if writes {
            let world = &self.core.world;
            require_key(&world.store, &world.reports, &node.read().attributes)?;
        }
        {
            // Opened under the lock, so that it is not deleted in between. A file without a name
            // can be opened while the kernel knows it: it may have just looked it up.
            let state = node.read();
            if state.is_buried {
                return Err(Errno::STALE);
            }
            node.opened(writes);
        }
        let keep_cache = self.core.keeps_cache(node.number);
        let appends = flags.contains(OFlags::APPEND);
        let _run = self.core.running.opened(node.number, flags);
        let handle = self.core.files.insert(OpenFile { node, writes, appends, _run });
        // Every write was acknowledged: a close has no error to report.
        Ok(Opened { handle, flushes: false, keep_cache })
    }

    /// Opens a file that is overwritten, and has it tailed.
    pub(super) fn overwrite(
        &self,
        caller: Caller,
        node: Arc<Node>,
        flags: OpenFlags,
        again: Again<'_>,
    ) -> Result<Opened> {
        let Again { place, wanted, alone: _alone } = again;
        // When tailing begins it has a writer, and it is emptied only when its jobs exist.
        let opened = self.opened(Arc::clone(&node), flags)?;
        let begun = self.core.world.fail(self.core.begin_tailing(&node, place, wanted, true));
        let empties = flags.contains(OFlags::TRUNC);
        let done =
            begun.and_then(|()| if empties { self.core.truncate_opened(&node, caller) } else { Ok(()) });
        match done {
            Ok(()) => Ok(opened),
            Err(errno) => {
                // If it is tailed already, its jobs read the old content.
                self.release(node.number, opened.handle);
                Err(errno)
            }
        }
    }

    /// A file is about to be cut to nothing otherwise than by opening it.
    pub(super) fn before_emptied(&self, number: u64) -> Result<()> {
        if !self.core.tailing.is_any() {
            return Ok(());
        }
        let node = self.core.node(number)?;
        if node.kind != FileKind::File {
            return Ok(());
        }
        if !node.has_writers() {
            node.write().emptied = true;
        } else if let Some(Again { place, wanted, alone: _alone }) = self.core.wanted_again(&node)? {
            self.core.world.fail(self.core.begin_tailing(&node, place, wanted, true))?;
        }
        Ok(())
    }

    /// Makes an unpublished file that is tailed; `None` if no rule wants it after all.
    fn create_unpublished(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        new: NewNode,
        flags: OpenFlags,
        wanted: Box<dyn Wanted>,
    ) -> Result<Option<(Entry, Opened)>> {
        check_name(name)?;
        let node = self.core.make_anonymous(caller, parent, new)?;
        node.write().may_be_named = false;
        let opened = self.opened(Arc::clone(&node), flags)?;
        let begun = self.core.begin_tailing(&node, (parent, name.to_vec()), wanted, false);
        let is_tailed = node.read().open.is_some();
        let named = match self.core.world.fail(begun) {
            Ok(()) if is_tailed => self.core.name_unpublished(&node, parent, name),
            begun => begun,
        };
        if is_tailed && named.is_ok() {
            return Ok(Some((self.core.entry_of(&node), opened)));
        }
        // Its jobs, if they were made, fail, and it goes with its handle.
        self.core.give_up_unpublished(&node);
        node.write().is_forgotten = true;
        self.release(node.number, opened.handle);
        named.map(|()| None)
    }

    /// Makes a file or, unless the flags say that it must be new, opens the one that there is.
    pub(super) fn create_file(
        &self,
        caller: Caller,
        (parent, name): (u64, &[u8]),
        new: NewNode,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened)> {
        let exclusive = flags.contains(OFlags::EXCL);
        let mut wanted = self.core.wanted(parent, name)?;
        if wanted.as_ref().is_some_and(|wanted| wanted.is_unpublished())
            && !self.core.is_taken(parent, name)?
            && let Some(wanted) = wanted.take()
            && let Some(made) = self.create_unpublished(caller, (parent, name), new, flags, wanted)?
        {
            return Ok(made);
        }
        let (node, made) = self.core.make_node(caller, parent, name, new, &[], !exclusive)?;
        if !made {
            match node.kind {
                FileKind::File => {}
                FileKind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::NXIO),
            }
            if writes(flags)
                && flags.contains(OFlags::TRUNC)
                && let Some(again) = self.core.wanted_again(&node)?
            {
                let opened = self.overwrite(caller, Arc::clone(&node), flags, again)?;
                return Ok((self.core.entry_of(&node), opened));
            }
            if flags.contains(OFlags::TRUNC) {
                self.core.truncate_opened(&node, caller)?;
            }
        }
        self.core.saw(parent, name, node.number, node.kind);
        let opened = self.opened(Arc::clone(&node), flags)?;
        if made && let Some(wanted) = wanted {
            let begun = if wanted.is_unpublished() {
                // It was there, so that its name could not be hidden, and was removed before it was
                // opened.
                Err(Errno::BUSY)
            } else {
                let begun = self.core.begin_tailing(&node, (parent, name.to_vec()), wanted, false);
                self.core.world.fail(begun)
            };
            if let Err(errno) = begun {
                // A program that waits to read it would never hear of it.
                let _ = self.core.unlink_node(parent, name, false);
                self.release(node.number, opened.handle);
                return Err(errno);
            }
        }
        Ok((self.core.entry_of(&node), opened))
    }
}

impl Core {
    /// Removes a node without a name unless it is open or, without `anyhow`, known to the kernel.
    pub fn delete_if_unused(&self, node: &Arc<Node>, anyhow: bool) {
        let mut tree = self.tree_mut();
        let mut state = node.write();
        if state.links == 0 && !node.is_open() && (state.is_forgotten || anyhow) {
            self.world.delete_packs(node, &mut state);
            tree.nodes.remove(&node.number);
        }
    }
}
