//! Encrypts packs: everything above this engine sees plain bytes, everything below it ciphertext.
//!
//! ```text
//! pack    = head   header   frames   end   tail
//! head    = 4 epoch   8 domain   32 public key that the writer drew
//! header  = block 0 of the pack's first 64 bytes                                 footer key
//! frames  = blocks 0, 1, ... of the bytes up to the footer                       content key
//! end     = blocks 2, 3, ... of footer, trailer and zeros                        footer key
//! tail    = block 1: 4 where the footer begins, 4 the pack's length, 4 zeros     footer key
//! block   = 12 nonce (8 drawn by the writer, 4 the block's number)   up to 64 KiB of ciphertext   16 tag
//! ```
//!
//! Of frames and end, all blocks but the last have 64 KiB. They are cut without regard to what is in
//! them, so frames and length tables are hidden. A pack gets a random number of zeros, up to 16 KiB,
//! and more to a whole number of 16 KiB; for a small pack it is 4 KiB. An observer sees a pack's
//! length, and that not closely enough to count its chunks, whose entries in the footer would add
//! up. A block takes 28 bytes more, 0.04 %.
//!
//! Every pack has [two keys of its own](crate::keys), so a block of another pack, store or place does
//! not authenticate. A pack that was cut short lacks its tail. A host that only stores has the footer
//! key alone: it finds what is stored, and a read of frames is `Denied`.
//!
//! A pack of a [domain](crate::keys::domains) has frames of that domain alone, and its content key needs the
//! domain's.
//!
//! **Nonces.** Each pack's keys are drawn with it, so no two writers share them, even if a database
//! that was set back gives out an id again. Blocks of one key differ by their numbers.

mod layout;
mod read;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashlink::LruCache;
use outrigger_clock::Instant;
use outrigger_format::{Domain, PackId};

use crate::backend::{Backend, CacheCounts, PackWriter, TieredBackend};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{DomainKey, Domains, HEAD_LEN, Keyring, PackHead};
use layout::{BLOCK, SEALED, TAIL, sealed_len};
use read::Known;
use writer::SealedWriter;

/// The stored length of a pack is a multiple of this …
const UNIT_SMALL: u64 = 4 << 10;
/// … while it is shorter than this …
const SMALL: u64 = 1 << 20;
/// … and then of this.
const UNIT: u64 = 16 << 10;
/// Blocks that a writer hands on at once, and that are read at once where requests are quick: so many
/// stay in a processor's cache.
const BATCH: usize = 4;
/// How long it waits before it looks for newer keys again.
const REFRESH: Duration = Duration::from_secs(10);
/// Packs whose keys are remembered.
const PACKS_MAX: usize = 4096;

/// With `keys`, the packs of `backend` as they are before they are encrypted.
pub fn sealed(backend: Arc<dyn Backend>, keys: Option<&Arc<Keyring>>) -> Arc<dyn Backend> {
    match keys {
        Some(keys) => Arc::new(SealedBackend::new(backend, Arc::clone(keys))),
        None => backend,
    }
}

/// See the module.
pub struct SealedBackend {
    inner: Arc<dyn Backend>,
    keys: Arc<Keyring>,
    domains: Domains,
    known: Mutex<LruCache<PackId, Known>>,
    buffers: Mutex<Vec<Vec<u8>>>,
    /// When it last looked for newer keys.
    refreshed: Mutex<Option<Instant>>,
}

impl SealedBackend {
    /// Encrypts the packs of `inner`.
    pub fn new(inner: Arc<dyn Backend>, keys: Arc<Keyring>) -> Self {
        let domains = Domains::new(Arc::clone(&inner), Arc::clone(&keys));
        Self {
            inner,
            keys,
            domains,
            known: Mutex::new(LruCache::new(PACKS_MAX)),
            buffers: Mutex::default(),
            refreshed: Mutex::default(),
        }
    }

    fn known(&self, id: PackId) -> Option<Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn remember(&self, id: PackId, known: Option<Known>) {
        let mut packs = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) => drop(packs.insert(id, known)),
            None => drop(packs.remove(&id)),
        }
    }

    fn writer(&self, id: PackId, inner: Box<dyn PackWriter>) -> Result<Box<dyn PackWriter>> {
        // It may know an earlier pack of this id, which was removed.
        self.remember(id, None);
        Ok(Box::new(SealedWriter::new(inner, id, Arc::clone(&self.keys))?))
    }

    /// See [`Backend::read_end`].
    fn read_end_once(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        // Where requests are slow, one has the zeros at the end, too, and a block more, as the bytes
        // that are wanted may begin within one.
        let wanted = match self.inner.uploads_max() > 1 {
            true => sealed_len((max + 2 * BLOCK) as u64) as usize + SEALED + TAIL,
            false => TAIL,
        };
        let Some((mut stored, len)) = self.inner.read_end(id, wanted)? else { return Ok(None) };
        let at = stored.len().saturating_sub(TAIL);
        let shape = self.shape_of(id, &mut stored[at..], len)?;
        if !shape.is_whole {
            return Err(Error::damaged(format!("pack {id} was cut off: its {len} bytes have no end")));
        }
        let start = len - stored.len() as u64;
        let mut fetch = |at: u64, bytes: &mut [u8]| match at.checked_sub(start) {
            Some(at) if stored.len() >= at as usize + bytes.len() => {
                bytes.copy_from_slice(&stored[at as usize..][..bytes.len()]);
                Ok(())
            }
            _ => self.inner.read_at(id, at, bytes),
        };
        let mut bytes = vec![0; shape.len.min(max as u64) as usize];
        let from = shape.len - bytes.len() as u64;
        self.read_range(id, &shape, (from, &mut bytes), &mut fetch)?;
        Ok(Some((bytes, shape.len)))
    }
}

/// The data that a block's tag covers besides its bytes.
fn about(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

impl Backend for SealedBackend {
    fn create(&self, id: PackId) -> Result<Box<dyn PackWriter>> {
        self.writer(id, self.inner.create(id)?)
    }

    fn create_unseen(&self, id: PackId) -> Result<Option<Box<dyn PackWriter>>> {
        self.inner.create_unseen(id)?.map(|inner| self.writer(id, inner)).transpose()
    }

    fn clear_unseen(&self) -> Result<()> {
        self.inner.clear_unseen()
    }

    fn read_at(&self, id: PackId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no pack {id}"));
        if buf.is_empty() {
            return self.inner.len(id)?.ok_or_else(missing).map(drop);
        }
        let to = offset.saturating_add(buf.len() as u64);
        let mut last = None;
        // The lengths may be from before the pack was whole: then they are asked for once more.
        for fresh in [false, true] {
            let shape = self.shape(id, fresh)?.ok_or_else(missing)?;
            if shape.len < to {
                let short = || {
                    let (wanted, has) = (buf.len(), shape.len);
                    Error::damaged(format!(
                        "pack {id} is too short: {wanted} bytes wanted at offset {offset}, it has {has}"
                    ))
                };
                // One whose head says nothing is not short.
                let damaged = self.opened(id).err().filter(|error| error.kind() == ErrorKind::Damaged);
                last = Some(damaged.unwrap_or_else(short));
                continue;
            }
            let mut fetch = |at: u64, bytes: &mut [u8]| self.inner.read_at(id, at, bytes);
            match self.read_range(id, &shape, (offset, buf), &mut fetch) {
                Err(error) if error.kind() == ErrorKind::Damaged => last = Some(error),
                read => return read,
            }
        }
        Err(last.expect("two tries, and none succeeded"))
    }

    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        let was_known = self.known(id).is_some();
        match self.read_end_once(id, max) {
            // It may have remembered a copy in another tier.
            Err(error) if error.kind() == ErrorKind::Damaged && was_known => {
                self.remember(id, None);
                self.read_end_once(id, max)
            }
            read => read,
        }
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        Ok(self.shape(id, false)?.map(|shape| shape.len))
    }

    fn remove(&self, id: PackId) -> Result<()> {
        self.remember(id, None);
        self.inner.remove(id)
    }

    fn list(&self) -> Result<Vec<PackId>> {
        self.inner.list()
    }

    fn list_parity(&self) -> Result<Vec<PackId>> {
        self.inner.list_parity()
    }

    fn stored(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn set_aside(&self, id: PackId) -> Result<()> {
        self.remember(id, None);
        self.inner.set_aside(id)
    }

    fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.inner.put_text(name, text)
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        self.inner.text(name)
    }

    fn texts(&self, folder: &str) -> Result<Vec<String>> {
        self.inner.texts(folder)
    }

    fn remove_text(&self, name: &str) -> Result<()> {
        self.inner.remove_text(name)
    }

    fn place(&self) -> Option<String> {
        self.inner.place()
    }

    fn claimed(&self) -> Result<Option<String>> {
        self.inner.claimed()
    }

    fn uploads_max(&self) -> usize {
        self.inner.uploads_max()
    }

    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    fn lock_days(&self) -> Option<u32> {
        self.inner.lock_days()
    }

    fn lock(&self, ids: &[PackId]) -> Result<u64> {
        self.inner.lock(ids)
    }

    fn has_newest_key(&self, id: PackId) -> Result<bool> {
        let mut head = [0; HEAD_LEN];
        self.inner.read_at(id, 0, &mut head)?;
        Ok(PackHead(head).epoch() == self.keys.epochs())
    }

    fn domain_of(&self, id: PackId) -> Result<Domain> {
        Ok(self.opened(id)?.domain)
    }

    fn domain_key(&self, id: Domain) -> Result<Arc<DomainKey>> {
        self.domains.key(id)
    }

    fn tend(&self) {
        self.inner.tend();
    }

    fn forget(&self, id: PackId) -> bool {
        self.remember(id, None);
        self.inner.forget(id)
    }

    fn cache_counts(&self) -> Option<CacheCounts> {
        self.inner.cache_counts()
    }

    fn use_cache(&self, on: bool) {
        self.inner.use_cache(on);
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn tiers(&self) -> Option<&TieredBackend> {
        self.inner.tiers()
    }

    fn hosts(&self) -> Result<Vec<String>> {
        self.inner.hosts()
    }

    fn locate(&self, id: PackId) -> Result<Vec<String>> {
        self.inner.locate(id)
    }
}

#[cfg(test)]
mod tests;
