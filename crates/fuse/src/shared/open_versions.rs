//! What the database is told of open versions: an [`OpenVersion`] of each, so that others can do
//! what is left to be done when its mount is gone.
//!
//! **Order.** The record is there before the job, and before anything is held. (Of a file that has
//! no name yet there is no job, and a record only once something of it is stored:
//! [`super::anonymous`].) What is stored of a file that no name leads to is held in the name of its
//! inode: one mount has such a file, which made it or took its last name. The content of any other
//! that is closed is held for a moment, in the name of inode and mount, until its job holds it;
//! then that is let go, and at last the record is removed. So whatever a mount leaves that is
//! killed, a record says which holds it are. Who ends its job gives that what is held as its input,
//! and removes both (`outrigger_active::written`).

use outrigger_format::Root;
use outrigger_store::meta::{SessionId, orphan_holder};
use outrigger_store::registry::{Record, Registered};
use outrigger_store::{Result, Store};
use serde::{Deserialize, Serialize};

use super::core::Core;

/// Others may take and leave a name at the same time.
const TRIES: u32 = 8;

/// A file that is open in a mount. Several mounts may have one open, but no two mounts hide files
/// of one name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenVersion {
    /// The mount.
    pub mount: SessionId,
    /// The file.
    pub inode: u64,
    /// Its directory and name, if only its writer sees it there.
    #[serde(rename = "hidden")]
    pub unpublished: Option<(u64, Vec<u8>)>,
}

impl Record for OpenVersion {
    const KIND: &'static str = "open-version";

    fn name(&self) -> String {
        match &self.unpublished {
            None => format!("{} {}", self.inode, self.mount.0),
            Some((parent, name)) => format!("{parent}/{}", name.escape_ascii()),
        }
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.mount)
    }
}

/// An open version whose mount is gone.
pub type LeftOpen = Registered<OpenVersion>;

/// What mounts that are gone have left, of which nobody has let go yet.
///
/// # Errors
/// Those of the database.
pub fn left_open(store: &Store) -> Result<Vec<LeftOpen>> {
    store.leftover_records()
}

/// The content that a mount that is gone had stored of a file without a name.
///
/// # Errors
/// Those of the database.
pub fn held_of(store: &Store, inode: u64) -> Result<Option<Root>> {
    Ok(store.meta.held(&orphan_holder(inode))?.pop())
}

/// Releases what a mount that is gone has left.
///
/// # Errors
/// Those of the database.
pub fn let_go(store: &Store, left: &LeftOpen) -> Result<()> {
    let OpenVersion { mount, inode, .. } = left.record;
    // It may not know yet that it is gone: from here on it can hold nothing more.
    store.meta.fence(mount)?;
    store.meta.release(&closed_holder(inode, mount), None)?;
    // Another mount may have it open, too: then that one has what no name leads to.
    let is_others = |other: &OpenVersion| other.inode == inode && other.mount != mount;
    // A record that cannot be read may be of this file.
    let may_be_others = |read: &Result<LeftOpen>| read.as_ref().map_or(true, |read| is_others(&read.record));
    if !store.registry().each::<OpenVersion>()?.iter().any(|(_, read)| may_be_others(read)) {
        store.meta.release(&orphan_holder(inode), None)?;
    }
    store.registry().take_read(left).map(drop)
}

/// The owner of the hold on a closed file's content, until its job holds it.
pub(super) fn closed_holder(inode: u64, mount: SessionId) -> String {
    format!("{} {inode} {}", OpenVersion::KIND, mount.0)
}

impl Core {
    /// Registers that a file is open in the mount that has this session.
    pub fn register_open(&self, inode: u64, mount: SessionId) -> Result<()> {
        self.store.registry().put(&OpenVersion { mount, inode, unpublished: None })
    }

    /// Registers that a file is open, and hides it by this name; false if another mount, or this
    /// one, hides another one by it.
    pub fn reserve(&self, parent: u64, name: &[u8], inode: u64) -> Result<bool> {
        let (registry, mount) = (self.store.registry(), self.session().id());
        let own = OpenVersion { mount, inode, unpublished: Some((parent, name.to_vec())) };
        for _ in 0..TRIES {
            if registry.add(&own)? {
                return Ok(true);
            }
            let Some(other) = registry.get::<OpenVersion>(&own.name())? else { continue };
            if self.store.is_live(other.record.mount)? {
                return Ok(false);
            }
            // What is left of it is known by its number from now on.
            registry.add(&OpenVersion { unpublished: None, ..other.record.clone() })?;
            if registry.replace(&other, &own)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file is not open any more: its job has its held content, if it is to have it. `is_kept`:
    /// the file has no name for others.
    pub fn unregister(&self, inode: u64, unpublished: Option<&(u64, Vec<u8>)>, is_kept: bool) -> Result<()> {
        let mount = self.session().id();
        // Also for a file that has lost its name since its close.
        self.store.meta.release(&closed_holder(inode, mount), None)?;
        if is_kept {
            self.store.meta.release(&orphan_holder(inode), None)?;
        }
        self.store.registry().take(&OpenVersion { mount, inode, unpublished: unpublished.cloned() }).map(drop)
    }
}
