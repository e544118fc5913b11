//! Leftovers of a store in a directory without a readable `store.toml`. They are for error
//! messages, for `init`, which must not replace them, and for `recover`, which makes the file again
//! from the packs.
//!
//! A pack header has the store's id and its fingerprint function. The other settings say how new
//! data is cut, compressed and packed. Any value can read existing data, so the defaults do. But
//! data that is stored again may then be cut differently, and not be found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_format::{FingerprintKind, PACK_HEADER_LEN, PackHeader, StoreId};

use crate::backend::{Backend, DAMAGED_DIR, LocalBackend};
use crate::config::{Profile, StoreConfig};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::keys::Keyring;
use crate::keys::slots::ring_of;
use crate::keys::unlock::unlock;
use crate::layout::{CONFIG_FILE, DATABASE_FILE};
use crate::meta::is_unused_database;
use crate::sealed::sealed;

/// Describes the leftovers; `None` when none can hold data. Those of an interrupted `init` do not
/// count.
///
/// # Errors
/// When the directory cannot be read.
pub(crate) fn of_a_store(dir: &Path) -> Result<Option<String>> {
    let mut found = Vec::new();
    if has_packs(dir)? {
        found.push("packs".to_string());
    }
    let database = dir.join(DATABASE_FILE);
    if database.exists() && !is_unused(dir, &database) {
        found.push(format!("a database ({DATABASE_FILE})"));
    }
    let aside = format!("{DATABASE_FILE}.damaged-");
    let names = || std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    if names().any(|name| name.to_string_lossy().starts_with(&aside)) {
        found.push("databases that were set aside".to_string());
    }
    if names().any(|name| name == DAMAGED_DIR) {
        found.push("packs that were set aside".to_string());
    }
    Ok((!found.is_empty()).then(|| found.join(" and ")))
}

/// True if nothing was ever stored by a database. One that is encrypted is read with the key that
/// `init` left; without that it counts as used.
fn is_unused(dir: &Path, database: &Path) -> bool {
    let key = directory_keys(dir).map(|keys| keys.database_key());
    is_unused_database(database, key.as_ref())
}

/// The keys of an encrypted store whose slots lie in `dir`, if they are found.
fn directory_keys(dir: &Path) -> Option<Arc<Keyring>> {
    let none = || Err(Error::new(ErrorKind::NotFound, "the slots lie in the directory"));
    unlock(ring_of(dir)?, dir, &none).ok()
}

/// The error for a directory without a store.
///
/// # Errors
/// Always: `NotFound` when there is nothing, `Damaged` when there are parts of a store.
pub(crate) fn refuse(dir: &Path) -> Error {
    match of_a_store(dir) {
        Ok(Some(found)) => Error::damaged(format!(
            "{0} has {found}, but its {CONFIG_FILE} is missing; restore that from a copy of the store, or rebuild it with `outrigger -s {0} recover`",
            dir.display()
        )),
        Ok(None) => Error::new(ErrorKind::NotFound, nothing(dir)),
        Err(error) => error,
    }
}

/// What is at a place without a store. Its disk may not be mounted, and a store that is made on the
/// mount point would hide that.
fn nothing(dir: &Path) -> String {
    let what = match std::fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(false) => {
            return format!(
                "{} is a directory with other things, not a store; name a store's directory, or make a new one with `outrigger -s NEW-DIR init`",
                dir.display()
            );
        }
        Ok(true) => "is an empty directory, not a store",
        Err(_) => "does not exist",
    };
    format!(
        "{} {what}; is its disk mounted, and the path right? `outrigger -s {0} init` makes a new store there",
        dir.display()
    )
}

fn has_packs(dir: &Path) -> Result<bool> {
    if !dir.join("packs").is_dir() {
        return Ok(false);
    }
    Ok(!LocalBackend::open(dir, false, true)?.list()?.is_empty())
}

/// The configuration according to the packs in `dir`; `None` when no pack header can be read. The
/// other value is a sentence on the settings that packs do not have.
/// # Errors
/// When the directory cannot be read.
pub(crate) fn configuration(dir: &Path) -> Result<Option<(StoreConfig, String)>> {
    if !has_packs(dir)? {
        return Ok(None);
    }
    let slots = ring_of(dir);
    let keys = slots.map(|ring| {
        let packs = || -> Result<Arc<dyn Backend>> { Ok(Arc::new(LocalBackend::open(dir, false, true)?)) };
        unlock(ring, dir, &packs)
    });
    let backend = sealed(Arc::new(LocalBackend::open(dir, false, true)?), keys.transpose()?.as_ref());
    // Packs of another store may be among them: the majority counts.
    let mut said: BTreeMap<[u8; 16], (FingerprintKind, usize)> = BTreeMap::new();
    for id in backend.list()? {
        let mut bytes = [0; PACK_HEADER_LEN];
        let Ok(()) = backend.read_at(id, 0, &mut bytes) else { continue };
        let Ok(header) = PackHeader::decode(&bytes) else { continue };
        said.entry(header.store.0).or_insert((header.fingerprint, 0)).1 += 1;
    }
    let Some((id, (fingerprint, _))) = said.into_iter().max_by_key(|(_, (_, count))| *count) else {
        return Ok(None);
    };
    let config = StoreConfig {
        id: StoreId(id),
        fingerprint,
        keyring: slots.map(|ring| ring.number),
        ..Profile::Default.config()?
    };
    let sentence = format!(
        "{CONFIG_FILE} was rebuilt: id and fingerprint come from the packs; chunker {}, codec {} and the sizes of frames and packs are the defaults, \
         because their old values are lost. All data is read as before, but data that is stored again may not be recognised",
        config.chunker, config.codec
    );
    Ok(Some((config, sentence)))
}

/// A free name in `dir`: `name`, or that with a number. For files that are moved aside, which must
/// not replace earlier ones. `suffixes` are the ends of other names that must be free too.
pub(crate) fn free_name(dir: &Path, name: &str, suffixes: &[&str]) -> PathBuf {
    let taken = |name: &str| {
        suffixes
            .iter()
            .chain(&[""])
            .any(|suffix| dir.join(format!("{name}{suffix}")).symlink_metadata().is_ok())
    };
    let mut free = name.to_string();
    let mut number = 1;
    while taken(&free) {
        number += 1;
        free = format!("{name}-{number}");
    }
    dir.join(free)
}

/// Moves a damaged `store.toml` aside.
///
/// # Errors
/// When it cannot be renamed.
pub(crate) fn set_aside(dir: &Path) -> Result<()> {
    let (from, to) = (dir.join(CONFIG_FILE), free_name(dir, &format!("{CONFIG_FILE}.damaged"), &[]));
    match std::fs::rename(&from, &to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        moved => moved.context(|| format!("cannot move {} to {}", from.display(), to.display())),
    }
}
