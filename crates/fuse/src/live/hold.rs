//! Standing still, so that another process can change the store beside the mount.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_store::Result;
use outrigger_store::meta::{At, ROOT_INODE, SessionId};

use super::LiveVolume;
use super::core::Core;
use super::flusher::Barrier;

/// Names in the root at most that a kernel is asked to forget one by one.
const NAMES_PAGE: usize = 4096;

/// Inodes and names known before another process changed the store: a kernel must not rely on them
/// any more.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    /// Files that are open, and the root.
    pub inodes: Vec<u64>,
    /// Names in the root: all that is cached hangs below them.
    pub names: BTreeSet<Vec<u8>>,
}

/// Nothing changes while this lives.
pub struct Held<'a> {
    core: &'a Arc<Core>,
    barrier: Barrier<'a>,
    names: BTreeSet<Vec<u8>>,
}

impl LiveVolume {
    /// All names that a kernel may know: once it has forgotten these, it asks again for everything
    /// below.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn known_names(&self) -> Result<Stale> {
        Ok(Stale { inodes: Vec::new(), names: self.core.root_names()? })
    }

    /// Ends the session of a client: it commits nothing from then on.
    ///
    /// # Errors
    /// Those of the database.
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.core.world.store.meta.fence(session)
    }

    /// Stores everything, and lets nothing change until [`Held::release`].
    ///
    /// # Errors
    /// Those of the store; then changes go on.
    pub fn hold(&self) -> Result<Held<'_>> {
        let core = &self.core;
        Ok(Held { core, barrier: core.barrier()?, names: core.root_names()? })
    }
}

impl Held<'_> {
    /// Forgets all that may have changed in the store, and lets changes go on.
    ///
    /// # Errors
    /// When the database cannot be read: then files that are open are as they were.
    pub fn release(self) -> Result<Stale> {
        let mut names = self.names;
        names.extend(self.core.root_names()?);
        let inodes = self.core.reload()?;
        drop(self.barrier);
        Ok(Stale { inodes, names })
    }
}

impl Core {
    fn root_names(&self) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::<Vec<u8>>::new();
        loop {
            let after = names.last().map(Vec::as_slice);
            let page = self.world.store.meta.read_dir(At::Now, ROOT_INODE, after, NAMES_PAGE)?;
            let is_last = page.len() < NAMES_PAGE;
            names.extend(page.into_iter().map(|entry| entry.name));
            if is_last {
                return Ok(names);
            }
        }
    }

    /// Reads again what is open, and forgets the rest. Everything is clean: the gate is closed, and
    /// all was stored.
    fn reload(&self) -> Result<Vec<u64>> {
        let mut tree = self.tree_mut();
        tree.nodes.retain(|_, node| Arc::strong_count(node) > 1 || node.is_open() || node.read().links == 0);
        let mut inodes = vec![ROOT_INODE];
        for node in tree.nodes.values() {
            let row = self.world.store.meta.inode(At::Now, node.number)?;
            let mut state = node.write();
            inodes.push(node.number);
            match row {
                Some(row) if row.attributes.kind == node.kind => {
                    state.reload(row, &self.world.usage, &self.world.budget);
                }
                // It was removed: its openers still read the old content, which the next batch
                // holds.
                _ => {
                    state.links = 0;
                    self.world.mark(node);
                }
            }
        }
        self.fresh.lock().expect("no panic while held").clear();
        self.counters.note_reload();
        Ok(inodes)
    }
}
