//! The trees that a mount shows: the one it was made for, and the snapshots under `.snapshots`.
//!
//! A snapshot gets a slot of numbers when it is first seen, and is pinned when something in it is
//! first asked for. Listing `.snapshots` pins nothing, so snapshots that nobody looked into can be
//! deleted and reclaimed. A pin lasts as long as the mount's session, and the next session makes it
//! again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use outrigger_store::meta::{At, SnapshotRow};
use outrigger_store::ops::View;
use outrigger_store::snapshot::facts::in_order;
use outrigger_store::tree::check_name;
use outrigger_store::{Error, ErrorKind, Store};

use super::number::{FIRST_SNAPSHOT, MAIN};

/// In place of a session's number.
const UNPINNED: u64 = u64::MAX;

/// A tree at one epoch.
pub struct Tree {
    /// Its slot, see `number.rs`.
    pub slot: u64,
    /// Where to read it.
    pub at: At,
    /// The snapshot's name, and the session that has pinned it; the mounted tree is pinned from the
    /// beginning.
    snapshot: Option<(String, AtomicU64)>,
}

/// See the module.
pub struct Trees {
    view: View,
    main: Arc<Tree>,
    seen: RwLock<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By slot, from [`FIRST_SNAPSHOT`].
    trees: Vec<Arc<Tree>>,
    /// Epoch → slot. Epochs are used once, so a snapshot that takes another's name does not take
    /// its numbers.
    slots: HashMap<u64, u64>,
}

impl Trees {
    /// The tree of `view` is the mounted one.
    pub fn new(view: View) -> Self {
        let main = Arc::new(Tree { slot: MAIN, at: view.at, snapshot: None });
        Self { view, main, seen: RwLock::default() }
    }

    /// The tree of `slot`, which can be read for as long as the mount lives.
    ///
    /// # Errors
    /// `Fenced` when the mount's pins are lost, or the snapshot is gone; `NotFound` for a slot that
    /// was never given.
    pub fn get(&self, store: &Store, slot: u64) -> Result<Arc<Tree>, Error> {
        let session = self.view.renew(store)?;
        if slot == MAIN {
            return Ok(Arc::clone(&self.main));
        }
        let position = slot.checked_sub(FIRST_SNAPSHOT).and_then(|position| usize::try_from(position).ok());
        let seen = self.seen.read().expect("no panic while held");
        let tree = position.and_then(|position| seen.trees.get(position)).cloned();
        drop(seen);
        let tree = tree.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no tree {slot}")))?;
        self.pin(store, &tree, session.map_or(UNPINNED - 1, |session| session.0))?;
        Ok(tree)
    }

    fn pin(&self, store: &Store, tree: &Tree, session: u64) -> Result<(), Error> {
        let Some((name, pinned)) = &tree.snapshot else { return Ok(()) };
        if pinned.load(Ordering::Relaxed) == session {
            return Ok(());
        }
        let gone = || Error::new(ErrorKind::Fenced, format!("snapshot `{name}` was deleted"));
        match self.view.snapshot(store, name) {
            Ok(at) if at == tree.at => {
                pinned.store(session, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Err(gone()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(gone()),
            Err(error) => Err(error),
        }
    }

    /// The tree of a snapshot as it was listed; not pinned by this.
    pub fn of_snapshot(&self, snapshot: &SnapshotRow) -> Arc<Tree> {
        let mut seen = self.seen.write().expect("no panic while held");
        let known = seen.slots.get(&snapshot.epoch).map(|slot| (slot - FIRST_SNAPSHOT) as usize);
        if let Some(position) = known {
            return Arc::clone(&seen.trees[position]);
        }
        let slot = FIRST_SNAPSHOT + seen.trees.len() as u64;
        let (at, pin) = (At::Epoch(snapshot.epoch), AtomicU64::new(UNPINNED));
        let tree = Arc::new(Tree { slot, at, snapshot: Some((snapshot.name.clone(), pin)) });
        seen.slots.insert(snapshot.epoch, slot);
        seen.trees.push(Arc::clone(&tree));
        tree
    }
}

/// All snapshots whose names can stand in a directory, oldest first.
///
/// # Errors
/// When the database cannot be read.
pub fn snapshots(store: &Store) -> Result<Vec<SnapshotRow>, Error> {
    let mut snapshots = in_order(store.meta.snapshots()?);
    snapshots.retain(|snapshot| check_name(snapshot.name.as_bytes()).is_ok());
    Ok(snapshots)
}
