//! The keys of a store that is being made, and changes of the slots of one that exists.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use outrigger_format::{Domain, StoreId};

use super::domains::lock_of;
use super::slots::{forget_copies, slots, slots_of};
use super::{Keyring, Rights, Secret, Slot};
use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};

/// A keyring, and the slots that will open it.
#[derive(Debug)]
pub struct NewKeys {
    /// The keyring.
    pub ring: Arc<Keyring>,
    slots: Vec<Slot>,
}

impl NewKeys {
    /// A new keyring for the store with this id, without slots yet.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn new(store: StoreId) -> Result<Self> {
        Ok(Self { ring: Arc::new(Keyring::new(store)?), slots: Vec::new() })
    }

    /// Adds a slot that `secret` opens.
    ///
    /// # Errors
    /// As [`Slot::lock`].
    pub fn add(&mut self, secret: &Secret, label: &str) -> Result<()> {
        let created = outrigger_clock::now_nanos() / 1_000_000_000;
        self.slots.push(Slot::lock(&self.ring, secret, label, created)?);
        Ok(())
    }

    /// The slots.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// Adds a slot with the rights `rights` to a store whose slots lie in `packs`; with a domain, for
/// [`Rights::Subtree`]. `ring` has all epochs: see [`at_hand`](super::unlock::at_hand).
///
/// # Errors
/// `Denied` unless `ring` has all rights. As [`Slot::lock`]; when it cannot be written.
pub fn add_slot(
    packs: &dyn Backend,
    ring: &Keyring,
    secret: &Secret,
    label: &str,
    rights: Rights,
    domain: Option<Domain>,
) -> Result<Slot> {
    ring.rights().require_all()?;
    let created = outrigger_clock::now_nanos() / 1_000_000_000;
    let limited = match domain {
        Some(domain) => ring.limited_to(domain, lock_of(packs, ring, domain)?)?,
        None => ring.limited(rights)?,
    };
    let slot = Slot::lock(&limited, secret, label, created)?;
    packs.put_text(&slot.file_name(), &slot.to_text())?;
    Ok(slot)
}

/// Removes the slot that `name` names: its id, or a label that no other slot has. The last one that
/// opens all epochs with all rights stays.
///
/// # Errors
/// `Denied` unless `ring` has all rights; `NotFound`, `Invalid` for a label of several slots, and
/// for the last slot.
pub fn remove_slot(packs: &dyn Backend, ring: &Keyring, name: &str) -> Result<Slot> {
    ring.rights().require_all()?;
    let all = slots(packs)?;
    let mut named = all.iter().filter(|slot| slot.id == name || slot.label == name);
    let slot = named.next().ok_or_else(|| {
        let known: Vec<String> = all.iter().map(Slot::describe).collect();
        Error::new(ErrorKind::NotFound, format!("no key is called `{name}`; there are {}", known.join(", ")))
    })?;
    if named.next().is_some() {
        let why = format!("several keys are called `{name}`; name one by its id (`key list`)");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let newest = all.iter().map(|slot| slot.epochs).max();
    let opens_all = |slot: &Slot| Some(slot.epochs) == newest && slot.rights == Rights::All;
    if !all.iter().any(|other| other.id != slot.id && opens_all(other)) {
        let why = "this is the last key with all rights: without it nobody could keep the store; add another one first (`key add`)";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    packs.remove_text(&slot.file_name())?;
    Ok(slot.clone())
}

/// Begins a new epoch: everything that is stored from now on by processes that open the store later
/// has keys that the old slots do not give. `known` are the slots as [`at_hand`](super::unlock::at_hand) found them;
/// those with a secret stay, with their rights; all others go.
///
/// New slots are durable before old ones are removed, so at each moment somebody can open the store.
/// If slots were changed meanwhile, nothing changes: of two rotations at once, each sees the other's
/// slots after it has written its own.
///
/// # Errors
/// `Denied` unless `ring` has all rights; `Invalid` without a slot with all rights that stays;
/// `Busy` when somebody else changes slots; when slots cannot be
/// written or removed.
pub fn rotate(
    packs: &dyn Backend,
    own: &Path,
    ring: &Keyring,
    known: &[(Slot, Option<Secret>)],
) -> Result<u32> {
    ring.rights().require_all()?;
    let mut carried: Vec<(&Slot, &Secret)> = Vec::new();
    for (slot, secret) in known {
        // An interrupted rotation leaves two slots of one secret.
        let Some(secret) = secret else { continue };
        if !carried.iter().any(|(_, other)| *other == secret) {
            carried.push((slot, secret));
        }
    }
    if !carried.iter().any(|(slot, _)| slot.rights == Rights::All) {
        let why = "a key with all rights must stay, or nobody could keep the store";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let rotated = ring.rotated()?;
    let mut new = Vec::new();
    for (slot, secret) in carried {
        new.push(add_slot(packs, &rotated, secret, &slot.label, slot.rights, slot.domain())?);
    }
    let ids = |slots: &[Slot]| slots.iter().map(|slot| slot.id.clone()).collect::<BTreeSet<_>>();
    let expected: BTreeSet<String> = known.iter().map(|(slot, _)| slot.id.clone()).chain(ids(&new)).collect();
    if ids(&slots_of(packs, ring.id())?) != expected {
        new.iter().try_for_each(|slot| packs.remove_text(&slot.file_name()))?;
        let why = "somebody else changes the keys just now; nothing was changed, try again";
        return Err(Error::new(ErrorKind::Busy, why));
    }
    ring.adopt(&rotated);
    known.iter().try_for_each(|(slot, _)| packs.remove_text(&slot.file_name()))?;
    forget_copies(own, &new);
    Ok(rotated.epochs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryBackend;
    use crate::keys::{Key, unlock};

    #[test]
    fn a_rotation_carries_every_key_that_is_at_hand_once() {
        let (packs, own) = (MemoryBackend::new(), tempfile::tempdir().unwrap());
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let secrets = [1, 2, 3].map(|seed| Secret::Key(Key::new([seed; 32])));
        let rights = [Rights::All, Rights::All, Rights::ReadOnly];
        // Three keys of one label, and one of them twice, as an interrupted rotation leaves it.
        for at in [0, 1, 2, 0] {
            add_slot(&packs, &ring, &secrets[at], "host", rights[at], None).unwrap();
        }
        let known: Vec<(Slot, Option<Secret>)> = unlock::at_hand(&ring, &packs, &[])
            .unwrap()
            .into_iter()
            .map(|(slot, _)| {
                let opens = |secret: &&Secret| slot.open(secret, ring.id()).unwrap().is_some();
                let secret = secrets.iter().find(opens).cloned();
                (slot, secret)
            })
            .collect();
        assert_eq!(rotate(&packs, own.path(), &ring, &known).unwrap(), 2);
        let left = slots(&packs).unwrap();
        assert!(left.len() == 3 && left.iter().all(|slot| slot.epochs == 2), "{left:?}");
        for (secret, rights) in secrets.iter().zip(rights) {
            let opened = left.iter().find_map(|slot| slot.open(secret, ring.id()).unwrap()).unwrap();
            assert_eq!((opened.rights(), opened.epochs()), (rights, 2));
        }
        // One of another's keys with fewer rights alone is not enough to keep a store.
        let reader: Vec<(Slot, Option<Secret>)> = left
            .into_iter()
            .map(|slot| (slot.clone(), (slot.rights == Rights::ReadOnly).then(|| secrets[2].clone())))
            .collect();
        assert_eq!(rotate(&packs, own.path(), &ring, &reader).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(slots(&packs).unwrap().len(), 3, "nothing was changed");
    }

    #[test]
    fn a_key_that_only_reads_changes_no_keys() {
        let (packs, own) = (MemoryBackend::new(), tempfile::tempdir().unwrap());
        let ring = Keyring::new(StoreId([1; 16])).unwrap();
        let (owner, reader) = (Secret::Key(Key::new([1; 32])), Secret::Key(Key::new([2; 32])));
        add_slot(&packs, &ring, &owner, "owner", Rights::All, None).unwrap();
        add_slot(&packs, &ring, &reader, "reader", Rights::ReadOnly, None).unwrap();
        let known = slots(&packs).unwrap();
        let opened = known.iter().find_map(|slot| slot.open(&reader, ring.id()).unwrap()).unwrap();
        let carried: Vec<_> = known.iter().map(|slot| (slot.clone(), Some(owner.clone()))).collect();
        for refused in [
            add_slot(&packs, &opened, &reader, "more", Rights::ReadOnly, None).map(drop),
            remove_slot(&packs, &opened, "owner").map(drop),
            rotate(&packs, own.path(), &opened, &carried).map(drop),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
        }
        assert_eq!(slots(&packs).unwrap(), known);
        // The last key that may change the store stays, however many read it.
        assert_eq!(remove_slot(&packs, &ring, "owner").unwrap_err().kind(), ErrorKind::Invalid);
        remove_slot(&packs, &ring, "reader").unwrap();
    }
}
