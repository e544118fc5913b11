//! A host's path to the simulated pack store: packs in memory, shared by all hosts, and faults on
//! the way.

use std::io::IoSlice;
use std::sync::Arc;

use outrigger_format::PackId;
use outrigger_store::backend::{Backend, MemoryBackend, PackWriter};
use outrigger_store::{Error, ErrorKind, Result};

use crate::link::Condition;
use crate::pack_bytes::{bytes_of, flip, names_of, replace};
use crate::planted::{self, Planted};
use crate::scheduler;

/// See the module.
pub struct Packs {
    packs: MemoryBackend,
    condition: Arc<Condition>,
}

struct Writer {
    inner: Box<dyn PackWriter>,
    packs: MemoryBackend,
    id: PackId,
    condition: Arc<Condition>,
}

fn travel(condition: &Condition, what: &str) -> Result<()> {
    condition.travel();
    if !condition.await_packs() || condition.draws(&condition.packs_fail) {
        return Err(Error::new(ErrorKind::Io, format!("{what}: the simulated pack store cannot be reached")));
    }
    Ok(())
}

impl Packs {
    /// A host's path to these packs.
    pub fn new(packs: MemoryBackend, condition: Arc<Condition>) -> Self {
        Self { packs, condition }
    }
}

impl Backend for Packs {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        travel(&self.condition, "create")?;
        let inner = self.packs.create(id)?;
        let (packs, condition) = (self.packs.clone(), Arc::clone(&self.condition));
        Ok(Box::new(Writer { inner, packs, id, condition }))
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        travel(&self.condition, "read")?;
        self.packs.read_at(id, offset, buf)?;
        if !buf.is_empty() && self.condition.flips() {
            flip(buf);
            let mut flipped = self.condition.flipped.lock().expect("no panic while held");
            if flipped.insert(id.to_string()) {
                flipped.extend(names_of(&bytes_of(&self.packs, id)?.unwrap_or_default()));
            }
        }
        if planted::is(Planted::WrongBytes) && scheduler::below(20) == 0 {
            buf.fill(0);
        }
        Ok(())
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        travel(&self.condition, "len")?;
        self.packs.len(id)
    }

    fn remove(&self, id: PackId) -> Result<()> {
        travel(&self.condition, "remove")?;
        self.packs.remove(id)
    }

    fn list(&self) -> Result<Vec<PackId>> {
        travel(&self.condition, "list")?;
        self.packs.list()
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        travel(&self.condition, "list parity")?;
        self.packs.list_parity()
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        travel(&self.condition, "set aside")?;
        self.packs.set_aside(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        travel(&self.condition, "put text")?;
        self.packs.put_text(name, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        travel(&self.condition, "text")?;
        self.packs.text(name)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        travel(&self.condition, "texts")?;
        self.packs.texts(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        travel(&self.condition, "remove text")?;
        self.packs.remove_text(name)
    }

    fn place(&self) -> Option<String> {
        self.packs.place()
    }
}

impl PackWriter for Writer {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        travel(&self.condition, "append")?;
        self.inner.append(parts)
    }

    fn seal(self: Box<Self>) -> Result<()> {
        travel(&self.condition, "seal")?;
        self.inner.seal()?;
        let is_lost = planted::is(Planted::LostPack) || planted::is(Planted::TornPack);
        if is_lost && scheduler::below(4) == 0 {
            let bytes = bytes_of(&self.packs, self.id)?.unwrap_or_default();
            self.packs.remove(self.id)?;
            if planted::is(Planted::TornPack) {
                return replace(&self.packs, self.id, &bytes[..bytes.len() / 2]);
            }
        }
        if planted::is(Planted::KeptFlip)
            && self.condition.flips()
            && let Some(mut bytes) = bytes_of(&self.packs, self.id)?
        {
            flip(&mut bytes);
            return replace(&self.packs, self.id, &bytes);
        }
        Ok(())
    }
}
