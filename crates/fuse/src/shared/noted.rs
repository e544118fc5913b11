//! Registry records of open versions: when a mount is gone, other clients find there what is left
//! to do.
//!
//! | record of kind [`KIND`] | |
//! | --- | --- |
//! | name | the inode's number and the mount's session, as several mounts may have a file open; for an unpublished file `PARENT/NAME`, so that no two mounts hide files of one name |
//! | value | the mount's session, the inode's number |
//!
//! **Order.** The record exists before the job, and before anything is held. (An anonymous file has
//! no job, and gets a record only when something of it is stored: [`super::nameless`].) The content
//! of a file without a name is held under its inode: only one mount has such a file, having made it
//! or removed its last name. Any other file's content is held for a moment after its close, under
//! inode and mount, until its job holds it. Then that hold is released, and at last the record is
//! removed. So for everything that a killed mount leaves, a record says which holds these are. A
//! client that ends its job makes the held content the job's input, and removes both
//! (`outrigger_active::written`).

use outrigger_format::Root;
use outrigger_store::meta::{SessionId, orphan_holder};
use outrigger_store::{Result, Store};

use super::core::Core;

const KIND: &str = "open-version";
/// Other clients may take and leave a name at the same time.
const TRIES: u32 = 8;

/// An open version whose mount is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOpen {
    /// The file.
    pub inode: u64,
    mount: SessionId,
    name: String,
    value: String,
}

fn parse(value: &str) -> Option<(SessionId, u64)> {
    let (mount, inode) = value.split_once(' ')?;
    Some((SessionId(mount.parse().ok()?), inode.parse().ok()?))
}

/// Open versions of mounts that are gone, not released yet.
///
/// # Errors
/// Those of the database.
pub fn left_open(store: &Store) -> Result<Vec<LeftOpen>> {
    // First the records: a mount's session exists before they do.
    let notes = store.jobs()?.notes(KIND)?;
    if notes.is_empty() {
        return Ok(Vec::new());
    }
    let noted = notes.into_iter().filter_map(|note| {
        let (mount, inode) = parse(&note.value)?;
        Some(LeftOpen { inode, mount, name: note.name, value: note.value })
    });
    let mut noted: Vec<LeftOpen> = noted.collect();
    let sessions = store.live_sessions(|row| noted.iter().any(|left| left.mount == row.id))?;
    noted.retain(|left| !sessions.iter().any(|row| row.id == left.mount));
    Ok(noted)
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
    // The mount may not know yet that its session is over: from here on it can hold nothing more.
    store.meta.fence(left.mount)?;
    store.meta.release(&closed_holder(left.inode, left.mount), None)?;
    let jobs = store.jobs()?;
    // Another mount may have the file open, too: then it owns the hold of the file without a name.
    let is_others = |value: &str| value != left.value && parse(value).is_some_and(|of| of.1 == left.inode);
    if !jobs.notes(KIND)?.iter().any(|note| is_others(&note.value)) {
        store.meta.release(&orphan_holder(left.inode), None)?;
    }
    jobs.change_note(KIND, &left.name, &left.value, None).map(drop)
}

/// The record's name for a file that others find by its name.
fn file_name(inode: u64, mount: SessionId) -> String {
    format!("{inode} {}", mount.0)
}

fn value_of(inode: u64, mount: SessionId) -> String {
    format!("{} {inode}", mount.0)
}

/// The owner of the hold on a closed file's content, until its job holds it.
pub(super) fn closed_holder(inode: u64, mount: SessionId) -> String {
    format!("{KIND} {}", file_name(inode, mount))
}

/// The record's name for a file that has no name for others.
fn place_name(parent: u64, name: &[u8]) -> String {
    format!("{parent}/{}", name.escape_ascii())
}

impl Core {
    fn value(&self, inode: u64) -> String {
        value_of(inode, self.session().id())
    }

    /// Records that a file is open in the mount that has this session.
    pub fn note_open(&self, inode: u64, mount: SessionId) -> Result<()> {
        self.store.jobs()?.set_note(KIND, &file_name(inode, mount), Some(&value_of(inode, mount)))
    }

    /// Records that a file is open, and reserves this name for it; false if another mount, or this
    /// one, hides another file under it.
    pub fn reserve(&self, parent: u64, name: &[u8], inode: u64) -> Result<bool> {
        let (jobs, name, value) = (self.store.jobs()?, place_name(parent, name), self.value(inode));
        for _ in 0..TRIES {
            if jobs.add_note(KIND, &name, &value)? {
                return Ok(true);
            }
            let Some(other) = jobs.notes(KIND)?.into_iter().find(|note| note.name == name) else { continue };
            let taken = parse(&other.value);
            if let Some((mount, inode)) = taken {
                if self.store.is_live(mount)? {
                    return Ok(false);
                }
                // Its leftovers are recorded under its number from now on.
                jobs.add_note(KIND, &file_name(inode, mount), &other.value)?;
            }
            if jobs.change_note(KIND, &name, &other.value, Some(&value))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file is not open any more: its job has its held content, if it is to have it. `is_kept`:
    /// the file has no name for others.
    pub fn unnote(&self, inode: u64, hidden: Option<&(u64, Vec<u8>)>, is_kept: bool) -> Result<()> {
        let mount = self.session().id();
        // Also for a file that has lost its name since its close.
        self.store.meta.release(&closed_holder(inode, mount), None)?;
        if is_kept {
            self.store.meta.release(&orphan_holder(inode), None)?;
        }
        let name = hidden.map_or_else(|| file_name(inode, mount), |(parent, name)| place_name(*parent, name));
        self.store.jobs()?.change_note(KIND, &name, &self.value(inode), None).map(drop)
    }
}
