//! Key slots go where the packs go: what a copy's packs hold cannot be read without them.
//!
//! A copy is the same store elsewhere, so the same keys open it. A slot that its owner has removed
//! from the source must not open the copy for ever.

use crate::backend::{Backend, KEYS_DIR};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::domains;

/// Puts the texts of `from` beside the packs of `to`.
///
/// A slot is written before the first pack that needs it. So texts that are read after the state
/// was frozen open all packs of that state.
pub(super) fn carry(from: &dyn Backend, to: &dyn Backend) -> Result<()> {
    let mut changed = Vec::new();
    for slot in from.texts(KEYS_DIR)? {
        let name = format!("{KEYS_DIR}/{slot}");
        // One that is missing was removed just now.
        let Some(text) = from.text(&name)? else { continue };
        match to.put_text(&name, &text) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                if to.text(&name)?.is_none_or(|there| there != text) {
                    changed.push((name, text));
                }
            }
            put => put?,
        }
    }
    // Last: for a moment each of them is not there, and the new ones are by then.
    for (name, text) in changed {
        to.remove_text(&name)?;
        to.put_text(&name, &text)?;
    }
    Ok(())
}

/// Fails if directories of `from` have keys of their own. Their chunks are named by these keys, so
/// only a copy with the same keys finds them.
///
/// # Errors
/// `Invalid`.
pub(super) fn require_no_domains(from: &dyn Backend) -> Result<()> {
    if !from.texts(KEYS_DIR)?.iter().any(|text| domains::is_domain(text)) {
        return Ok(());
    }
    let why = "directories of this store have keys of their own (`outrigger key list`), so it can be copied with the same keys only: leave out --encrypt and --no-encryption. What lies elsewhere can be taken to another store by `get` and `put`";
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Removes the texts of `to` that `from` has no more. A source without any is no reason to remove
/// the last ones.
pub(super) fn retire(from: &dyn Backend, to: &dyn Backend) -> Result<()> {
    let kept = from.texts(KEYS_DIR)?;
    if kept.is_empty() {
        return Ok(());
    }
    // The key of a domain that the source has lost, and not destroyed, may be the last one.
    let is_gone = |text: &String| match domains::is_domain(text) {
        true => kept.contains(&domains::gone_of(text)),
        false => !kept.contains(text),
    };
    let gone = to.texts(KEYS_DIR)?.into_iter().filter(is_gone);
    gone.map(|slot| format!("{KEYS_DIR}/{slot}")).try_for_each(|name| to.remove_text(&name))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::MemoryBackend;
    use crate::config::{Profile, StoreConfig};
    use crate::copy::{CopyOptions, CopyProgress, copy};
    use crate::keys::{Key, NewKeys, Secret};
    use crate::store::Store;
    use crate::testing::{Fault, FaultyBackend, Op, Plan};

    fn texts(backend: &dyn Backend) -> Vec<(String, String)> {
        let text = |slot: String| {
            let text = backend.text(&format!("{KEYS_DIR}/{slot}")).unwrap().unwrap();
            (slot, text)
        };
        backend.texts(KEYS_DIR).unwrap().into_iter().map(text).collect()
    }

    /// A copy made and brought up to date has the source's slots, and no others.
    #[test]
    fn a_copy_has_the_slots_of_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let config = Profile::Default.config().unwrap();
        let mut keys = NewKeys::new(config.id).unwrap();
        keys.add(&Secret::Key(Key::random().unwrap()), "first").unwrap();
        let config = StoreConfig { keyring: Some(keys.ring.id().number), ..config };
        let store = Store::init_with(&from, &config, Some(&keys)).unwrap();
        for slot in ["keys/a", "keys/b"] {
            store.backend.put_text(slot, &format!("{slot} is a slot")).unwrap();
        }
        let run = |to: &Path| {
            let options = CopyOptions {
                to: to.to_owned(),
                packs: None,
                threads: 1,
                verify: false,
                encryption: Default::default(),
            };
            let report = copy(&store, &options, &CopyProgress::default()).unwrap();
            assert_eq!(report.problems, [""; 0]);
            texts(&*Store::open(to, true).unwrap().backend)
        };
        assert_eq!(run(&to), texts(&*store.backend));
        assert_eq!(run(&to).len(), 3);

        store.backend.remove_text("keys/a").unwrap();
        store.backend.remove_text("keys/b").unwrap();
        store.backend.put_text("keys/b", "another").unwrap();
        store.backend.put_text("keys/c", "new").unwrap();
        let wanted = texts(&*store.backend);
        assert!(wanted.len() == 3 && run(&to) == wanted, "{wanted:?}");
        // Without any in the source, the last ones of the copy stay.
        std::fs::remove_dir_all(from.join(KEYS_DIR)).unwrap();
        assert_eq!(run(&to), wanted);
    }

    #[test]
    fn an_interrupted_carry_goes_on() {
        let (from, to) = (MemoryBackend::new(), MemoryBackend::new());
        for slot in ["keys/a", "keys/b", "keys/c"] {
            from.put_text(slot, slot).unwrap();
        }
        let plan = Plan::new(1).nth(Op::Text, 2, Fault::Fail(ErrorKind::Io));
        let failing = FaultyBackend::new(to.clone(), plan);
        assert_eq!(carry(&from, &failing).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(texts(&to).len(), 1);
        carry(&from, &failing).unwrap();
        assert_eq!(texts(&to), texts(&from));
    }
}
