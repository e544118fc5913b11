//! Key slots go where the packs go: what a copy's packs hold cannot be read without them.
//!
//! A copy is the same store elsewhere, so the same keys open it. A slot that its owner has removed
//! from the source must not open the copy for ever.

use outrigger_format::Domain;

use crate::backend::{Backend, KEYS_DIR};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::domains;
use crate::meta::PackRow;
use crate::store::Store;

/// Says of the text with a domain's key in the source: it opens (true), was destroyed (false), or
/// neither.
pub(super) type DomainState<'a> = &'a dyn Fn(&str) -> Result<bool>;

/// Puts the texts of `from` beside the packs of `to`.
///
/// A slot is written before the first pack that needs it. So texts that are read after the state
/// was frozen open all packs of that state.
pub(super) fn carry(from: &dyn Backend, to: &dyn Backend, state: DomainState<'_>) -> Result<()> {
    let (mut changed, there) = (Vec::new(), to.texts(KEYS_DIR)?);
    for slot in from.texts(KEYS_DIR)? {
        let name = format!("{KEYS_DIR}/{slot}");
        // Only a key that opens takes the place of another one, and only an end that is true is copied.
        let is_refused = match domains::is_domain(&slot) {
            true if domains::is_key(&slot) => there.contains(&slot) && !matches!(state(&slot), Ok(true)),
            true => !matches!(state(domains::key_of(&slot)), Ok(false)),
            false => false,
        };
        if is_refused {
            continue;
        }
        // One that is missing was removed just now.
        let Some(text) = from.text(&name)? else { continue };
        match to.put_text(&name, &text) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                let is_same = match to.text(&name) {
                    Err(error) if error.kind() == ErrorKind::Damaged => false,
                    there => there?.is_some_and(|there| there == text),
                };
                if !is_same {
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
pub(super) fn require_no_domains(store: &Store, rows: &[PackRow]) -> Result<()> {
    let is_there = store.backend.texts(KEYS_DIR)?.iter().any(|text| domains::is_key(text));
    // One whose key was destroyed, and whose directory is not there any more, is in nobody's way.
    let has_packs = || -> Result<bool> {
        for row in rows {
            match store.packs.domain_of(row.id) {
                Ok(Domain::COMMON) | Err(_) => {}
                Ok(_) => return Ok(true),
            }
        }
        Ok(false)
    };
    if !is_there && !has_packs()? {
        return Ok(());
    }
    let why = "directories of this store have keys of their own (`outrigger key list`), so it can be copied with the same keys only: leave out --encrypt and --no-encryption. Or get their contents, remove the directories (`outrigger rm -r`) and their keys (`outrigger key destroy`), and run `outrigger gc`";
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Removes the texts of `to` that `from` has no more. A source without any is no reason to remove
/// the last ones.
pub(super) fn retire(from: &dyn Backend, to: &dyn Backend, state: DomainState<'_>) -> Result<()> {
    let kept = from.texts(KEYS_DIR)?;
    if kept.is_empty() {
        return Ok(());
    }
    // The key of a domain that the source has lost, and not destroyed, may be the last one.
    let is_gone = |text: &String| match domains::is_domain(text) {
        true => domains::is_key(text) && !kept.contains(text) && matches!(state(text), Ok(false)),
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
        let plan = Plan::new(1).nth(Op::Text, 3, Fault::Fail(ErrorKind::Io));
        let failing = FaultyBackend::new(to.clone(), plan);
        assert_eq!(carry(&from, &failing, &|_| Ok(true)).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(texts(&to).len(), 1);
        carry(&from, &failing, &|_| Ok(true)).unwrap();
        assert_eq!(texts(&to), texts(&from));
    }
}
