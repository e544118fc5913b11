//! Finding the key of a store that is opened.
//!
//! It looks in this order:
//!
//! 1. keyrings that this process has already;
//! 2. the kernel's keyring (`outrigger key unlock`);
//! 3. the file of `--key-file` or `OUTRIGGER_KEY_FILE`;
//! 4. a credential of systemd;
//! 5. the file that `init` made, then the host's;
//! 6. a passphrase from a file or a command that the environment names;
//! 7. the user, if this process can ask.
//!
//! A named file that cannot be read is an error; one that was merely looked for is not.
//!
//! Slots lie beside the packs. If these are elsewhere, a copy in this host's directory for the
//! store saves asking there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::secrets::{
    self, Found, KEY_FILE, PASSPHRASE_COMMAND, PASSPHRASE_FILE, ask, default_key_file, read_key_file,
};
use super::slots::{copied_slots, copy_slots, slots_of};
use super::{Keyring, RingId, Secret, Slot, SlotKind, kernel};
use crate::backend::Backend;
use crate::error::{Context, Error, ErrorKind, Result};

static UNLOCKED: Mutex<Option<HashMap<RingId, Arc<Keyring>>>> = Mutex::new(None);

/// Keeps a keyring for the stores that this process opens.
pub fn keep(ring: Arc<Keyring>) {
    let mut rings = UNLOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    rings.get_or_insert_default().insert(ring.id(), ring);
}

/// The keyring of this name, if this process has it.
fn kept(id: RingId) -> Option<Arc<Keyring>> {
    UNLOCKED.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&id).cloned()
}

/// Opens the place of a store's packs.
pub type Packs<'a> = dyn Fn() -> Result<Arc<dyn Backend>> + 'a;

/// The first keyring that a secret opens. A slot that was changed is an error only if no other one
/// opens.
fn open(slots: &[Slot], secret: &Secret, id: RingId) -> Result<Option<Keyring>> {
    let mut changed = None;
    for slot in slots {
        match slot.open(secret, id) {
            Ok(Some(ring)) => return Ok(Some(ring)),
            Ok(None) => {}
            Err(error) => changed = Some(error),
        }
    }
    changed.map_or(Ok(None), Err)
}

/// Finds the keyring `id`. `own` is the host's directory for its store, which has the slots or
/// copies of them; `packs` opens the place that has them.
///
/// # Errors
/// `Denied` when no key is found, or a named one does not open the store: the message lists what
/// would. `Damaged` when a slot was changed.
pub fn unlock(id: RingId, own: &Path, packs: &Packs<'_>) -> Result<Arc<Keyring>> {
    if let Some(ring) = kept(id) {
        return Ok(ring);
    }
    let ring = match kernel::find(id) {
        Some(ring) => ring,
        None => {
            let found = secrets::secrets(id)?;
            match try_copies(id, own, &found) {
                Some(ring) => ring,
                None => by_slots(id, own, packs, &found)?,
            }
        }
    };
    let ring = Arc::new(ring);
    keep(Arc::clone(&ring));
    Ok(ring)
}

/// Takes over epochs that another process has begun since `ring` was opened.
///
/// # Errors
/// `Denied` when the slots say that there are more and none can be opened: this process must not
/// take what it cannot read for damage.
pub fn refresh(ring: &Keyring, packs: &dyn Backend) -> Result<bool> {
    let id = ring.id();
    let Ok(slots) = slots_of(packs, id) else { return Ok(false) };
    // Those of the last epoch come first.
    if slots.first().is_none_or(|newest| newest.epochs <= ring.epochs()) {
        return Ok(false);
    }
    for (secret, _) in secrets::secrets(id)? {
        if let Ok(Some(newer)) = open(&slots, &secret, id)
            && ring.adopt(&newer)
        {
            return Ok(true);
        }
    }
    let why = "the store's keys were rotated, and this process has none of the new ones: name one (`outrigger key --help`), or `outrigger key unlock` again";
    Err(Error::new(ErrorKind::Denied, why))
}

/// The slots of keyring `id`, each with the secret that opens it if that is at hand or in one of
/// `files`. A passphrase is asked for if a slot needs one. The newest keyring that they open is
/// taken over by `ring`.
///
/// # Errors
/// As [`unlock`]; `Denied` if none of the slots with the newest epochs opens.
pub fn at_hand(
    ring: &Keyring,
    packs: &dyn Backend,
    files: &[std::path::PathBuf],
) -> Result<Vec<(Slot, Option<Secret>)>> {
    let id = ring.id();
    let mut secrets: Vec<Secret> = secrets::secrets(id)?.into_iter().map(|(secret, _)| secret).collect();
    for file in files {
        secrets.push(read_key_file(file)?);
    }
    let slots = slots_of(packs, id)?;
    if slots.iter().any(|slot| slot.kind == SlotKind::Passphrase) {
        secrets.extend(ask("Passphrase of the store: ")?);
    }
    let newest = slots.first().map_or(0, |slot| slot.epochs);
    let mut found = Vec::new();
    for slot in slots {
        let mut opened = None;
        for secret in &secrets {
            if let Some(newer) = slot.open(secret, id)? {
                ring.adopt(&newer);
                opened = Some(secret.clone());
                break;
            }
        }
        found.push((slot, opened));
    }
    if ring.epochs() < newest {
        let why =
            "the keys were rotated elsewhere, and none of the new ones is at hand: name one with --key-file";
        return Err(Error::new(ErrorKind::Denied, why));
    }
    Ok(found)
}

fn try_copies(id: RingId, own: &Path, found: &[Found]) -> Option<Keyring> {
    let slots = copied_slots(own);
    found.iter().find_map(|(secret, _)| open(&slots, secret, id).ok().flatten())
}

fn by_slots(id: RingId, own: &Path, packs: &Packs<'_>, found: &[Found]) -> Result<Keyring> {
    let slots = match packs().and_then(|packs| slots_of(&*packs, id)) {
        Ok(slots) => slots,
        // Their place cannot be reached; the copies say what would open the store.
        Err(error) => Some(copied_slots(own)).filter(|slots| !slots.is_empty()).ok_or(error)?,
    };
    if slots.is_empty() {
        let why = "the store is encrypted, and its key slots are missing: put back the directory `keys` beside its packs from a copy";
        return Err(Error::damaged(why));
    }
    copy_slots(own, &slots);
    for (secret, from) in found {
        if let Some(ring) = open(&slots, secret, id).context(|| from.clone())? {
            return Ok(ring);
        }
    }
    if slots.iter().any(|slot| slot.kind == SlotKind::Passphrase) {
        for again in ["", "That passphrase does not open the store. "] {
            let Some(words) = ask(&format!("{again}Passphrase of the store: "))? else { break };
            if let Some(ring) = open(&slots, &words, id)? {
                return Ok(ring);
            }
        }
    }
    Err(locked(id, &slots, found))
}

/// The error when no secret opens a store: it says what would.
fn locked(id: RingId, slots: &[Slot], found: &[Found]) -> Error {
    let mut why = match found {
        [] => "the store is encrypted, and its key was not found".to_string(),
        found => {
            let from: Vec<&str> = found.iter().map(|(_, from)| from.as_str()).collect();
            format!("the store is encrypted, and {} does not open it", from.join(", or "))
        }
    };
    let names: Vec<String> = slots.iter().map(Slot::describe).collect();
    why += &format!(". These open it: {}", names.join("; "));
    if let Ok(path) = default_key_file(id) {
        why += &format!(
            ". Put the key file back as {}, or name it with --key-file or {KEY_FILE}, or name a passphrase with {PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}",
            path.display()
        );
    }
    Error::new(ErrorKind::Denied, why)
}
