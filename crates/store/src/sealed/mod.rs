//! Encrypts packs: everything above this engine sees plain bytes, everything below it ciphertext.
//!
//! ```text
//! padded   = the pack's bytes   zeros   4 how many bytes were added, these included
//! pack     = block 0, block 1, ..., the last block
//! block    = 12 nonce (8 drawn by the writer, 4 the block's number)   up to 64 KiB of ciphertext   16 tag
//! tag over = ciphertext, the block's number, whether it is the last
//! ```
//!
//! A pack gets a random number of zeros, up to 64 KiB, and more to a whole number of 64 KiB; for a small
//! pack it is 4 KiB. It is cut into blocks of 64 KiB without regard to what is in it. So header, frames, length tables, footer and trailer are all
//! hidden. An observer sees a pack's length, and that not closely enough to count its chunks, whose
//! entries in the footer would add up. A block takes 28 bytes more, 0.04 %. Every pack has a key of its own, derived from the epoch's secret,
//! the store's id and the pack's: a block of another pack, store or place does not authenticate. A
//! pack that was cut short lacks its last block, which reading its end demands.
//!
//! **Nonces.** A writer draws 8 random bytes, once, and counts its blocks. Pack ids are used once;
//! should a database that was set back give out an id again, two writers share a key, and the drawn
//! bytes keep their nonces apart.

mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashlink::LruCache;
use outrigger_clock::Instant;
use outrigger_format::PackId;
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::backend::{Backend, CacheCounts, PackWriter, TieredBackend};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{Keyring, unlock};
use writer::SealedWriter;

/// Plain bytes of a block.
const BLOCK: usize = 64 << 10;
/// Padded packs are a multiple of this …
const UNIT_SMALL: usize = 4 << 10;
/// … while they are shorter than this; longer ones are a multiple of a block.
const SMALL: u64 = 1 << 20;
/// Bytes of the number of added bytes.
const COUNT: usize = 4;
/// Bytes that a block takes besides.
const EXTRA: usize = NONCE_LEN + 16;
/// Bytes of a whole block.
const SEALED: usize = BLOCK + EXTRA;
/// Blocks that a writer hands on at once, and that are read at once where requests are quick: so many
/// stay in a processor's cache.
const BATCH: usize = 4;
/// How long it waits before it looks for newer keys again.
const REFRESH: Duration = Duration::from_secs(10);
/// Packs whose keys are remembered.
const PACKS_MAX: usize = 4096;

/// A pack that was read before.
#[derive(Clone)]
struct Known {
    /// The key that its blocks were found to have.
    key: Arc<LessSafeKey>,
    /// Its length as it is stored, when it was last asked for.
    len: u64,
    /// Bytes that were added to it, once its end was read.
    added: Option<u64>,
}

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
    known: Mutex<LruCache<PackId, Known>>,
    buffers: Mutex<Vec<Vec<u8>>>,
    /// When it last looked for newer keys.
    refreshed: Mutex<Option<Instant>>,
}

impl SealedBackend {
    /// Encrypts the packs of `inner`.
    pub fn new(inner: Arc<dyn Backend>, keys: Arc<Keyring>) -> Self {
        Self {
            inner,
            keys,
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

    /// Another process may have begun an epoch: after a block that no key fits, this looks for its
    /// key, now and then. The next read of the block uses it.
    ///
    /// # Errors
    /// `Denied` when there are newer keys that this process does not find.
    fn refresh(&self) -> Result<()> {
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        if refreshed.is_none_or(|at| at.elapsed() > REFRESH) {
            unlock::refresh(&self.keys, &*self.inner)?;
            *refreshed = Some(Instant::now());
        }
        Ok(())
    }

    fn writer(&self, id: PackId, inner: Box<dyn PackWriter>) -> Result<Box<dyn PackWriter>> {
        Ok(Box::new(SealedWriter::new(inner, self.keys.pack_key(id).aead())?))
    }

    /// Decrypts whole blocks in place, the first being block `first` of pack `id`, whose stored
    /// length is `len`, and hands their plain bytes to `take`. With `must_end` the last one must be
    /// the pack's last.
    fn open_blocks(
        &self,
        id: PackId,
        (first, len): (u64, u64),
        stored: &mut [u8],
        must_end: bool,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mut key = self.known(id).map(|known| known.key);
        for (block, number) in stored.chunks_mut(SEALED).zip(first..) {
            let at_end = number * SEALED as u64 + block.len() as u64 == len;
            // A pack that is being written ends in a block that is not its last.
            let ends: &[bool] = match (at_end, must_end || block.len() < SEALED) {
                (true, true) => &[true],
                (true, false) => &[true, false],
                (false, _) => &[false],
            };
            let keys = match &key {
                Some(key) => vec![Arc::clone(key)],
                None => self.keys.pack_keys(id).iter().map(|key| Arc::new(key.aead())).collect(),
            };
            let Some(fits) = open_block(block, number, ends, &keys) else {
                self.remember(id, None);
                self.refresh()?;
                return Err(Error::damaged(format!(
                    "pack {id}: block {number} (64 KiB each) cannot be decrypted: it was changed or cut off, or is of another key"
                )));
            };
            take(&block[NONCE_LEN..block.len() - 16]);
            key = Some(fits);
        }
        let key = key.ok_or_else(|| Error::damaged(format!("pack {id} has no blocks")))?;
        let added = self.known(id).filter(|known| known.len == len).and_then(|known| known.added);
        self.remember(id, Some(Known { key, len, added }));
        Ok(())
    }

    /// Reads the last block of pack `id` for the pack's plain length; `None` if there is no pack. A
    /// pack that is being written, or was cut off, has the bytes of its whole blocks.
    fn plain_len(&self, id: PackId) -> Result<Option<u64>> {
        if let Some(Known { len, added: Some(added), .. }) = self.known(id) {
            return Ok(padded_len(len).map(|padded| padded - added));
        }
        let Some((mut stored, len)) = self.inner.read_end(id, SEALED)? else { return Ok(None) };
        match self.open_end(id, &mut stored, len, &mut Vec::new()) {
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(Some(readable_len(len))),
            opened => opened.map(Some),
        }
    }

    /// Decrypts the whole blocks at the end of a pack of `len` stored bytes, of which `stored` are
    /// the last, appends the pack's bytes in them to `out`, and returns its plain length.
    fn open_end(&self, id: PackId, stored: &mut [u8], len: u64, out: &mut Vec<u8>) -> Result<u64> {
        let cut_off = || Error::damaged(format!("pack {id} was cut off: no pack has {len} bytes"));
        let padded = padded_len(len).filter(|_| len > 0).ok_or_else(cut_off)?;
        let start = len - stored.len() as u64;
        let first = start.div_ceil(SEALED as u64);
        let whole = &mut stored[(first * SEALED as u64 - start) as usize..];
        self.open_blocks(id, (first, len), whole, true, &mut |plain| out.extend_from_slice(plain))?;
        let added = out.last_chunk::<COUNT>().map_or(0, |count| u32::from_le_bytes(*count));
        if !(COUNT as u64..=padded).contains(&added.into()) {
            return Err(cut_off());
        }
        out.truncate(out.len().saturating_sub(added as usize));
        if let Some(known) = self.known(id) {
            self.remember(id, Some(Known { added: Some(added.into()), ..known }));
        }
        Ok(padded - u64::from(added))
    }

    /// Fills `buf` from plain byte `offset` of a pack whose stored length is `len`.
    fn read_range(&self, id: PackId, mut offset: u64, len: u64, mut buf: &mut [u8]) -> Result<()> {
        let most = if self.inner.uploads_max() > 1 { usize::MAX } else { BATCH * BLOCK };
        while !buf.is_empty() {
            let within = (offset % BLOCK as u64) as usize;
            let now = buf.len().min(most.saturating_sub(within));
            let (part, rest) = buf.split_at_mut(now);
            self.read_blocks(id, offset, len, part)?;
            (offset, buf) = (offset + now as u64, rest);
        }
        Ok(())
    }

    /// The same, in one request.
    fn read_blocks(&self, id: PackId, offset: u64, len: u64, mut buf: &mut [u8]) -> Result<()> {
        let (first, end) = (offset / BLOCK as u64, (offset + buf.len() as u64).div_ceil(BLOCK as u64));
        let (start, end) = (first * SEALED as u64, (end * SEALED as u64).min(len));
        let buffers = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stored = buffers().pop().unwrap_or_default();
        stored.resize((end - start) as usize, 0);
        let mut skip = (offset - first * BLOCK as u64) as usize;
        let mut take = |plain: &[u8]| {
            let plain = &plain[skip.min(plain.len())..];
            let len = plain.len().min(buf.len());
            let (now, later) = std::mem::take(&mut buf).split_at_mut(len);
            now.copy_from_slice(&plain[..now.len()]);
            (skip, buf) = (0, later);
        };
        let read = self.inner.read_at(id, start, &mut stored);
        let opened = read.and_then(|()| self.open_blocks(id, (first, len), &mut stored, false, &mut take));
        buffers().push(stored);
        opened
    }

    /// The stored length of a pack: as it was when last asked, unless `fresh`.
    fn stored_len(&self, id: PackId, fresh: bool) -> Result<Option<u64>> {
        match self.known(id).filter(|_| !fresh) {
            Some(known) => Ok(Some(known.len)),
            None => self.inner.len(id),
        }
    }
}

/// Decrypts one block in place by the first of `keys` that fits, as a last block or not.
fn open_block(
    block: &mut [u8],
    number: u64,
    ends: &[bool],
    keys: &[Arc<LessSafeKey>],
) -> Option<Arc<LessSafeKey>> {
    let (nonce, body) = block.split_first_chunk_mut::<NONCE_LEN>()?;
    if nonce[8..] != (number as u32).to_le_bytes() || body.len() < 16 {
        return None;
    }
    let tries = ends.len() * keys.len();
    // Decrypting with a key that does not fit destroys the bytes.
    let kept = (tries > 1).then(|| body.to_vec());
    for (count, (key, is_last)) in
        keys.iter().flat_map(|key| ends.iter().map(move |end| (key, *end))).enumerate()
    {
        if let Some(kept) = kept.as_ref().filter(|_| count > 0) {
            body.copy_from_slice(kept);
        }
        let nonce = Nonce::assume_unique_for_key(*nonce);
        if key.open_in_place(nonce, Aad::from(about(number, is_last)), body).is_ok() {
            return Some(Arc::clone(key));
        }
    }
    None
}

/// What a block's tag covers besides its bytes.
fn about(number: u64, is_last: bool) -> [u8; 9] {
    let mut about = [u8::from(is_last); 9];
    about[..8].copy_from_slice(&number.to_le_bytes());
    about
}

/// Padded bytes in a pack of `len` stored bytes; `None` if no pack has that length.
fn padded_len(len: u64) -> Option<u64> {
    let (whole, rest) = (len / SEALED as u64, len % SEALED as u64);
    match rest {
        0 => Some(whole * BLOCK as u64),
        rest if rest >= EXTRA as u64 => Some(whole * BLOCK as u64 + rest - EXTRA as u64),
        _ => None,
    }
}

/// Padded bytes that can be read of `len` stored bytes: of a pack that is cut off, those of its whole
/// blocks.
fn readable_len(len: u64) -> u64 {
    padded_len(len).unwrap_or(len / SEALED as u64 * BLOCK as u64)
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
        // The length may be from before the pack was whole: then it is asked for once more.
        for fresh in [false, true] {
            let len = self.stored_len(id, fresh)?.ok_or_else(missing)?;
            // What was added lies in the last two units.
            let has = match readable_len(len).checked_sub(2 * BLOCK as u64) {
                Some(sure) if to <= sure => sure,
                _ => self.plain_len(id)?.ok_or_else(missing)?,
            };
            if has < to {
                last = Some(Error::damaged(format!(
                    "pack {id} is too short: {} bytes wanted at offset {offset}, it has {len} encrypted",
                    buf.len()
                )));
                continue;
            }
            match self.read_range(id, offset, len, buf) {
                Err(error) if error.kind() == ErrorKind::Damaged => last = Some(error),
                read => return read,
            }
        }
        Err(last.expect("two tries, and none succeeded"))
    }

    fn read_end(&self, id: PackId, max: usize) -> Result<Option<(Vec<u8>, u64)>> {
        // The stored end may begin within a block, whose other bytes are fetched then: a block is
        // read in addition, so that this stays one request where requests are slow.
        let padded = max + BLOCK + COUNT;
        let wanted = padded + padded.div_ceil(BLOCK) * EXTRA + SEALED;
        let Some((mut stored, len)) = self.inner.read_end(id, wanted)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(stored.len());
        let plain = self.open_end(id, &mut stored, len, &mut bytes)?;
        bytes.drain(..bytes.len().saturating_sub(max));
        Ok(Some((bytes, plain)))
    }

    fn len(&self, id: PackId) -> Result<Option<u64>> {
        self.plain_len(id)
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
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no pack {id}"));
        let len = self.inner.len(id)?.ok_or_else(missing)?;
        let mut first = vec![0; len.min(SEALED as u64) as usize];
        self.inner.read_at(id, 0, &mut first)?;
        let newest = Arc::new(self.keys.pack_key(id).aead());
        Ok(open_block(&mut first, 0, &[false, true], &[newest]).is_some())
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
