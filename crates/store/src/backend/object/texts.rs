//! Small texts as objects: `PREFIX/store.toml` and `PREFIX/keys/NAME`.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use object_store::path::Path;
use object_store::{GetRange, PutPayload};

use super::Shared;
use super::retry::attempt;
use crate::backend::texts::{TEXT_MAX, TextName, decode, is_slot, refuse_read_only, taken};
use crate::error::{ErrorKind, Result};

/// See the module.
pub(super) struct Texts<'b> {
    pub shared: &'b Arc<Shared>,
    pub read_only: bool,
}

impl Texts<'_> {
    /// A text that no object has yet.
    pub(super) fn put(&self, name: TextName<'_>, text: &str) -> Result<()> {
        refuse_read_only(self.read_only, "write", self.name(name))?;
        let (key, shared, tries) = (self.key(name), self.shared, AtomicU32::new(0));
        let what = || format!("cannot write {}", self.name(name));
        let payload = PutPayload::from(text.to_owned());
        match shared.block_on(shared.put_new(&key, payload, &tries, &what)) {
            // An earlier try may have put it, and its answer was lost.
            Err(error) if error.kind() == ErrorKind::Exists => {
                if tries.into_inner() > 1 && self.get(name)?.is_some_and(|there| there == text) {
                    return Ok(());
                }
                Err(taken(self.name(name)))
            }
            put => put,
        }
    }

    /// An object's text; `None` when there is none.
    pub(super) fn get(&self, name: TextName<'_>) -> Result<Option<String>> {
        let (key, shared) = (self.key(name), self.shared);
        let what = || format!("cannot read {}", self.name(name));
        let range = GetRange::Bounded(0..TEXT_MAX as u64 + 1);
        match shared.block_on(shared.get(&key, range, &what)) {
            Ok((bytes, _)) => decode(bytes, || self.name(name)).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // An object without bytes has no first ones.
            Err(error) if error.kind() == ErrorKind::Damaged => {
                match shared.block_on(shared.head(&key, &what))? {
                    Some(0) => Ok(Some(String::new())),
                    Some(_) => Err(error),
                    None => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The names in a folder, sorted. Objects of other names are no texts.
    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>> {
        let shared = self.shared;
        let root = Path::from(format!("{}{folder}", shared.prefix));
        let what = || format!("cannot list {}{folder}", shared.place);
        let pick = |location: &Path| {
            let name = location.filename().filter(|name| is_slot(name))?;
            (*location == root.clone().join(name)).then(|| name.to_owned())
        };
        let listed = attempt(&shared.health, &shared.patience, &what, |_| shared.list(&root, &pick));
        let mut names = shared.block_on(listed)?;
        names.sort_unstable();
        Ok(names)
    }

    /// Removes an object, if there is one.
    pub(super) fn remove(&self, name: TextName<'_>) -> Result<()> {
        refuse_read_only(self.read_only, "remove", self.name(name))?;
        let what = || format!("cannot remove {}", self.name(name));
        self.shared.delete(&self.key(name), &what)
    }

    fn key(&self, name: TextName<'_>) -> Path {
        Path::from(format!("{}{name}", self.shared.prefix))
    }

    /// A text, for messages.
    fn name(&self, name: TextName<'_>) -> String {
        format!("{}{name}", self.shared.place)
    }
}
