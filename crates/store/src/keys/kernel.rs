//! Keyrings in the kernel's keyring of the user: between `outrigger key unlock` and `outrigger key lock`,
//! or a time that was given.
//!
//! The kernel keeps them in memory that is never swapped to disk, for processes of this user alone.
//! A kernel or container without keyrings keeps nothing, and commands look for keys elsewhere.

use std::time::Duration;

use linux_keyutils::{KeyError, KeyPermissionsBuilder, KeyRing, KeyRingIdentifier, Permission};
use zeroize::Zeroizing;

use super::keyring::MAX;
use super::{Keyring, RingId};
use crate::error::{Error, ErrorKind, Result};

fn name(id: RingId) -> String {
    format!("outrigger:{id}")
}

fn users() -> std::result::Result<KeyRing, KeyError> {
    KeyRing::from_special_id(KeyRingIdentifier::User, true)
}

/// The keyring of a store, if the kernel keeps it.
pub fn find(id: RingId) -> Option<Keyring> {
    let key = users().ok()?.search(&name(id)).ok()?;
    let mut bytes = Zeroizing::new(vec![0; MAX]);
    let len = key.read(&mut *bytes).ok()?;
    Keyring::decode(bytes.get(..len)?, id.store).filter(|ring| ring.id() == id)
}

/// Keeps a keyring, for `time` if that is given.
///
/// # Errors
/// When the kernel does not take it.
pub fn keep(ring: &Keyring, time: Option<Duration>) -> Result<()> {
    let keep = || -> std::result::Result<(), KeyError> {
        let key = users()?.add_key(&name(ring.id()), &*ring.encode())?;
        // Also for this user's other sessions, to which the kernel gives no access by itself.
        let perms = KeyPermissionsBuilder::builder().posessor(Permission::ALL).user(Permission::ALL);
        key.set_perms(perms.build())?;
        match time {
            Some(time) => key.set_timeout(time.as_secs().max(1) as usize),
            None => Ok(()),
        }
    };
    keep().map_err(|error| {
        let why = format!(
            "the kernel does not keep the key ({error}); name a key file instead (OUTRIGGER_KEY_FILE)"
        );
        Error::new(ErrorKind::Invalid, why)
    })
}

/// Drops the keyring of a store. True if there was one.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_of(id: RingId) -> Result<bool> {
    let Ok(key) = users().and_then(|users| users.search(&name(id))) else { return Ok(false) };
    key.invalidate()
        .map(|()| true)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("the kernel does not drop the key: {error}")))
}
