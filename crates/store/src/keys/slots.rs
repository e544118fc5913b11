//! Slots where they lie: beside the packs, and copied to this host's directory for the store.

use std::fs;
use std::path::{Path, PathBuf};

use super::domains::is_domain;
use super::{RingId, Slot};
use crate::backend::{Backend, KEYS_DIR};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::{create_private_dir, write_durably};

/// The slots beside the packs; those of the last epoch first, then the oldest.
///
/// # Errors
/// When their place cannot be read; `Damaged` when there are texts and none can be parsed. One that
/// cannot is passed over: the others open the store.
pub fn slots(packs: &dyn Backend) -> Result<Vec<Slot>> {
    let (mut slots, mut damaged) = (Vec::new(), None);
    for name in packs.texts(KEYS_DIR)?.into_iter().filter(|name| !is_domain(name)) {
        let Some(text) = packs.text(&format!("{KEYS_DIR}/{name}"))? else { continue };
        match Slot::from_text(&text) {
            Ok(slot) => slots.push(slot),
            Err(error) => damaged = Some(error.context(format!("{KEYS_DIR}/{name}"))),
        }
    }
    if let Some(error) = damaged.filter(|_| slots.is_empty()) {
        return Err(error);
    }
    slots.sort_by(|one, other| {
        other.epochs.cmp(&one.epochs).then((one.created, &one.id).cmp(&(other.created, &other.id)))
    });
    Ok(slots)
}

/// Those of the slots beside the packs that hold keyring `id`, in the same order.
///
/// # Errors
/// As [`slots`].
pub(super) fn slots_of(packs: &dyn Backend, id: RingId) -> Result<Vec<Slot>> {
    let mut slots = slots(packs)?;
    slots.retain(|slot| slot.ring_id() == Some(id));
    Ok(slots)
}

/// The copies of slots in a host's directory for the store. They may be old, or gone.
pub(super) fn copied_slots(own: &Path) -> Vec<Slot> {
    let entries = fs::read_dir(own.join(KEYS_DIR)).into_iter().flatten().flatten();
    let slot = |path: PathBuf| Slot::from_text(&fs::read_to_string(path).ok()?).ok();
    let mut slots: Vec<Slot> = entries.filter_map(|entry| slot(entry.path())).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.epochs));
    slots
}

/// Drops the copies of slots that are none any more.
pub(super) fn forget_copies(own: &Path, slots: &[Slot]) {
    for copy in copied_slots(own).iter().filter(|copy| slots.iter().all(|slot| slot.id != copy.id)) {
        let _ = fs::remove_file(own.join(KEYS_DIR).join(&copy.id));
    }
}

/// Removes the slots that an interrupted `init` left in `dir`, and their directory.
///
/// # Errors
/// `Exists` when there is anything else in it, which stays.
pub(crate) fn remove_slots(dir: &Path) -> Result<()> {
    let keys = dir.join(KEYS_DIR);
    let entries = match fs::read_dir(&keys) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.context(|| format!("cannot list {}", keys.display()))?,
    };
    for entry in entries.flatten() {
        let is_slot = fs::read_to_string(entry.path()).is_ok_and(|text| Slot::from_text(&text).is_ok());
        if !is_slot {
            let why = format!(
                "{} is not empty (it has {:?}); give a new directory",
                keys.display(),
                entry.file_name()
            );
            return Err(Error::new(ErrorKind::Exists, why));
        }
        fs::remove_file(entry.path()).context(|| format!("cannot remove {}", entry.path().display()))?;
    }
    fs::remove_dir(&keys).context(|| format!("cannot remove {}", keys.display()))
}

/// The keyring whose slots lie in `dir`.
pub fn ring_of(dir: &Path) -> Option<RingId> {
    copied_slots(dir).iter().find_map(Slot::ring_id)
}

/// Copies slots to a host's directory for the store, so that the next opening need not ask for
/// them. A failure costs time, later, and nothing else.
pub(crate) fn copy_slots(own: &Path, slots: &[Slot]) {
    let dir = own.join(KEYS_DIR);
    if create_private_dir(&dir).is_err() {
        return;
    }
    for slot in slots {
        let _ = write_durably(&dir, &slot.id, slot.to_text().as_bytes());
    }
}
