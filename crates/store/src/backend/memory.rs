//! Packs in memory, for tests: the rules of [`LocalBackend`](super::LocalBackend) without a disk.
//!
//! As with files, a pack exists from the moment it is created, and is never created twice. Appended
//! bytes become readable at the latest when it is sealed or its writer is dropped. Before that it
//! reads as too short, since a test must not rely on more than a file guarantees.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};

use outrigger_format::PackId;

use super::texts::{TextName, require_folder, taken};
use super::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};

type Packs = BTreeMap<PackId, Vec<u8>>;
type Texts = BTreeMap<String, String>;

/// Packs in memory. Clones share them: a test keeps one to look inside.
#[derive(Clone, Default)]
pub struct MemoryBackend {
    packs: Arc<Mutex<Packs>>,
    damaged: Arc<Mutex<Packs>>,
    texts: Arc<Mutex<Texts>>,
    hosts: Arc<[String]>,
}

impl MemoryBackend {
    /// No packs.
    pub fn new() -> Self {
        Self::default()
    }

    /// No packs, on hosts that their ids choose, one after the other.
    pub fn on_hosts(hosts: &[&str]) -> Self {
        Self { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..Self::default() }
    }

    fn texts_here(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().expect("no panic while it is held")
    }

    pub(crate) fn packs(&self) -> MutexGuard<'_, Packs> {
        self.packs.lock().expect("no panic while it is held")
    }
}

impl Backend for MemoryBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        let mut packs = self.packs();
        if packs.contains_key(&id) {
            return Err(Error::new(ErrorKind::Exists, format!("cannot create pack {id}: it exists")));
        }
        packs.insert(id, Vec::new());
        Ok(Box::new(Writer { id, bytes: Vec::new(), packs: Arc::clone(&self.packs) }))
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let packs = self.packs();
        let Some(bytes) = packs.get(&id) else {
            return Err(Error::new(ErrorKind::NotFound, format!("cannot open pack {id}: there is none")));
        };
        let wanted = buf.len();
        let found =
            usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(wanted)?));
        let Some(found) = found.or((wanted == 0).then_some(&[])) else {
            let len = bytes.len();
            return Err(Error::damaged(format!(
                "pack {id} is too short: {wanted} bytes wanted at offset {offset}, it has {len}"
            )));
        };
        buf.copy_from_slice(found);
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        Ok(self.packs().get(&id).map(|bytes| bytes.len() as u64))
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.packs().remove(&id);
        Ok(())
    }

    fn list(&self) -> Result<Vec<PackId>> {
        Ok(self.packs().keys().filter(|id| id.parity().is_none()).copied().collect())
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        Ok(self.packs().keys().filter(|id| id.parity().is_some()).copied().collect())
    }

    fn lists_cheaply(&self) -> bool {
        true
    }

    fn hosts(&self) -> Result<Vec<String>> {
        Ok(self.hosts.to_vec())
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        let of = |hosts: u64| self.hosts[(id.0 % hosts) as usize].clone();
        Ok(if self.hosts.is_empty() { Vec::new() } else { vec![of(self.hosts.len() as u64)] })
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        if let Some(pack) = self.packs().remove(&id) {
            self.damaged.lock().expect("no panic while it is held").insert(id, pack);
        }
        Ok(())
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        let name = TextName::to_put(name, text)?.to_string();
        match self.texts_here().entry(name) {
            Entry::Occupied(there) => Err(taken(there.key().clone())),
            Entry::Vacant(free) => {
                free.insert(text.to_owned());
                Ok(())
            }
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        Ok(self.texts_here().get(TextName::parse(name)?.as_str()).cloned())
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        require_folder(folder)?;
        let texts = self.texts_here();
        let below = texts.keys().filter_map(|name| name.split_once('/'));
        Ok(below.filter(|(of, _)| *of == folder).map(|(_, name)| name.to_owned()).collect())
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.texts_here().remove(TextName::to_remove(name)?.as_str());
        Ok(())
    }
}

struct Writer {
    id: PackId,
    bytes: Vec<u8>,
    packs: Arc<Mutex<Packs>>,
}

impl PackWriter for Writer {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        Ok(())
    }

    fn seal(self: Box<Self>) -> Result<()> {
        Ok(()) // dropping it publishes the bytes
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A pack removed meanwhile stays removed, as an unlinked file does.
        if let Ok(mut packs) = self.packs.lock()
            && let Some(pack) = packs.get_mut(&self.id)
        {
            *pack = std::mem::take(&mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::conformance;

    #[test]
    fn conforms() {
        conformance::backend(&MemoryBackend::new());
    }
}
