//! What the database is told of open versions: a note on each, so that others can do what is left to be done when its mount is gone.
//!
//! | note of kind [`KIND`] | |
//! | --- | --- |
//! | name | the inode's number and the mount's session, as several mounts may have a file open; of a hidden file `PARENT/NAME`, so that no two mounts hide files of one name |
//! | value | the mount's session, the inode's number |
//!
//! **Order.** The note is there before the job, and before anything is held. (Of a file that has no name yet there is no job, and a note only once something of it is stored: [`super::nameless`].) What is stored of a file that no name leads to is held in the name of its inode: one mount has such a file, which made it or took its last name. The
//! content of any other that is closed is held for a moment, in the name of inode and mount, until its job holds it; then that is let go, and at last the note is removed. So whatever a mount leaves that is killed, a note says
//! which holds it are. Who ends its job gives that what is held as its input, and removes both (`outrigger_active::written`).

use outrigger_format::Root;
use outrigger_store::meta::{SessionId, orphan_holder};
use outrigger_store::{Result, Store};

use super::core::Core;

const KIND: &str = "open-version";
/// Others may take and leave a name at the same time.
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

/// What mounts that are gone have left, of which nobody has let go yet.
///
/// # Errors
/// Those of the database.
pub fn left_open(store: &Store) -> Result<Vec<LeftOpen>> {
    // First the notes: a mount's session is there before they are.
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

/// What a mount that is gone had stored of a file that no name led to.
///
/// # Errors
/// Those of the database.
pub fn held_of(store: &Store, inode: u64) -> Result<Option<Root>> {
    Ok(store.meta.held(&orphan_holder(inode))?.pop())
}

/// Lets go of what a mount that is gone has left.
///
/// # Errors
/// Those of the database.
pub fn let_go(store: &Store, left: &LeftOpen) -> Result<()> {
    // It may not know yet that it is gone: from here on it can hold nothing more.
    store.meta.fence(left.mount)?;
    store.meta.release(&closed_holder(left.inode, left.mount), None)?;
    let jobs = store.jobs()?;
    // Another mount may have it open, too: then that one has what no name leads to.
    let is_others = |value: &str| value != left.value && parse(value).is_some_and(|of| of.1 == left.inode);
    if !jobs.notes(KIND)?.iter().any(|note| is_others(&note.value)) {
        store.meta.release(&orphan_holder(left.inode), None)?;
    }
    jobs.change_note(KIND, &left.name, &left.value, None).map(drop)
}

/// What the note on a file is called that others find by its name.
fn file_name(inode: u64, mount: SessionId) -> String {
    format!("{inode} {}", mount.0)
}

fn value_of(inode: u64, mount: SessionId) -> String {
    format!("{} {inode}", mount.0)
}

/// Who holds the content of a file that was closed, until its job does.
pub(super) fn closed_holder(inode: u64, mount: SessionId) -> String {
    format!("{KIND} {}", file_name(inode, mount))
}

/// What the note on a file is called that has no name for others.
fn place_name(parent: u64, name: &[u8]) -> String {
    format!("{parent}/{}", name.escape_ascii())
}

impl Core {
    fn value(&self, inode: u64) -> String {
        value_of(inode, self.session().id())
    }

    /// Notes that a file is open in the mount that has this session.
    pub fn note_open(&self, inode: u64, mount: SessionId) -> Result<()> {
        self.store.jobs()?.set_note(KIND, &file_name(inode, mount), Some(&value_of(inode, mount)))
    }

    /// Notes that a file is open, and hides it by this name; false if another mount, or this one, hides another one by it.
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
                // What is left of it is known by its number from now on.
                jobs.add_note(KIND, &file_name(inode, mount), &other.value)?;
            }
            if jobs.change_note(KIND, &name, &other.value, Some(&value))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A file is open no more: its job has what was held of it, if it is to have it. `is_kept`: no name leads to it for others.
    pub fn unnote(&self, inode: u64, hidden: Option<&(u64, Vec<u8>)>, is_kept: bool) -> Result<()> {
        let mount = self.session().id();
        // Of one that has lost its name since it was closed, too.
        self.store.meta.release(&closed_holder(inode, mount), None)?;
        if is_kept {
            self.store.meta.release(&orphan_holder(inode), None)?;
        }
        let name = hidden.map_or_else(|| file_name(inode, mount), |(parent, name)| place_name(*parent, name));
        self.store.jobs()?.change_note(KIND, &name, &self.value(inode), None).map(drop)
    }
}
