//! A host's way to the simulated pack store: packs in memory that all hosts have, and what goes wrong on the way.

use std::io::IoSlice;
use std::sync::Arc;

use outrigger_format::PackId;
use outrigger_store::backend::{Backend, MemoryBackend, PackWriter};
use outrigger_store::{Error, ErrorKind, Result};

use crate::link::Condition;
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
    /// A host's way to these packs.
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
    fn set_aside(&self, id: PackId) -> Result<()> {
        travel(&self.condition, "set aside")?;
        self.packs.set_aside(id)
    }

    fn claim(&self, config: &str) -> Result<()> {
        self.packs.claim(config)
    }

    fn claimed(&self) -> Result<Option<String>> {
        self.packs.claimed()
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
            let len = self.packs.len(self.id)?.unwrap_or(0);
            let mut half = vec![0; (len / 2) as usize];
            self.packs.read_at(self.id, 0, &mut half)?;
            self.packs.remove(self.id)?;
            if planted::is(Planted::TornPack) {
                let mut torn = self.packs.create(self.id)?;
                torn.append(&[IoSlice::new(&half)])?;
                return torn.seal();
            }
        }
        Ok(())
    }
}
