//! Stores that this host knows to be encrypted, by their locations.
//!
//! Somebody who can write where a store lies can put a plain store in its place, and the next backup
//! would lie there for all to read. So a host remembers which locations have encrypted stores, and
//! refuses a plain one there, as SSH refuses a server with another key.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::RingId;
use super::secrets::config_dir;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::layout::create_private_dir;

static KEPT_IN: OnceLock<PathBuf> = OnceLock::new();

/// From now on this process remembers, in the user's configuration. Without it nothing is known.
pub fn begin() {
    if let Some(dir) = config_dir() {
        let _ = KEPT_IN.set(dir.join("known"));
    }
}

/// A store was opened, or made, at `location`: remembers its keyring. A plain one is refused if this
/// host knows an encrypted one there.
///
/// # Errors
/// `Denied`, with what to do.
pub(crate) fn check(location: &str, ring: Option<RingId>) -> Result<()> {
    KEPT_IN.get().map_or(Ok(()), |dir| check_in(dir, location, ring))
}

/// Forgets `location`: its owner has made a plain store there.
///
/// # Errors
/// When the file cannot be removed.
pub(crate) fn forget(location: &str) -> Result<()> {
    let Some(dir) = KEPT_IN.get() else { return Ok(()) };
    let file = file_of(dir, location);
    // One that cannot be read is not heeded, either.
    if fs::read(&file).is_err() {
        return Ok(());
    }
    fs::remove_file(&file).context(|| format!("cannot remove {}", file.display()))
}

fn file_of(dir: &Path, location: &str) -> PathBuf {
    let name = blake3::hash(location.as_bytes()).to_hex();
    dir.join(&name[..32])
}

fn check_in(dir: &Path, location: &str, ring: Option<RingId>) -> Result<()> {
    let file = file_of(dir, location);
    let known = fs::read_to_string(&file).ok();
    match (ring, known) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(Error::new(
            ErrorKind::Denied,
            format!(
                "the store in {location} is not encrypted, but the one that this host knows there is: somebody may have put another one in its place. If it was you, remove {}",
                file.display()
            ),
        )),
        (Some(ring), known) => {
            let text = format!("{location}\n{ring}\n");
            if known.as_deref() != Some(text.as_str()) {
                // A host whose home is read-only goes on without.
                let _ = remember(dir, &file, &text);
            }
            Ok(())
        }
    }
}

fn remember(dir: &Path, file: &Path, text: &str) -> std::io::Result<()> {
    create_private_dir(dir)?;
    let fresh = dir.join(format!("new-{}", std::process::id()));
    fs::write(&fresh, text)?;
    fs::rename(fresh, file)
}

#[cfg(test)]
mod tests {
    use outrigger_format::StoreId;

    use super::*;
    use crate::keys::Keyring;

    #[test]
    fn a_plain_store_in_the_place_of_an_encrypted_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("known");
        let ring = || Keyring::new(StoreId([7; 16])).unwrap().id();
        check_in(&dir, "/a", None).unwrap();
        assert!(!dir.exists(), "nothing was learnt");
        check_in(&dir, "/a", Some(ring())).unwrap();
        check_in(&dir, "/b", None).unwrap();
        let refused = check_in(&dir, "/a", None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied);
        // The message names the file, which the user may remove.
        let file = refused.to_string().rsplit(' ').next().map(PathBuf::from).unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with("/a\n"));
        // Other keys at the same place are fine: nobody makes slots that this host's keys open.
        check_in(&dir, "/a", Some(ring())).unwrap();
        fs::remove_file(file).unwrap();
        check_in(&dir, "/a", None).unwrap();
    }
}
