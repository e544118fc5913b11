//! Reads encrypted packs: their heads, their lengths, and ranges of them.

use std::sync::{Arc, PoisonError};

use outrigger_clock::Instant;
use outrigger_format::{Domain, PackId};

use super::layout::{BLOCK, EXTRA, FRAMES, HEADER, HEADER_NUMBER, SEALED, Section, Shape, TAIL, TAIL_NUMBER};
use super::{BATCH, REFRESH, SealedBackend, about};
use crate::error::{Context as _, Error, ErrorKind, Result};
use crate::keys::{Aead, HEAD_LEN, NONCE_LEN, PackHead, unlock};

/// A pack whose head was read.
pub(super) struct Opened {
    footer_key: Aead,
    /// `None` for a host without the right to it.
    content_key: Option<Aead>,
    pub(super) domain: Domain,
    header: [u8; HEADER],
}

/// A pack that was read before.
#[derive(Clone)]
pub(super) struct Known {
    pack: Arc<Opened>,
    /// Its lengths, once its end was read.
    shape: Option<Shape>,
}

/// Reads stored bytes of one pack from an offset.
pub(super) type Fetch<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

impl SealedBackend {
    /// Another process may have begun an epoch: at a pack of an epoch that is not known, this looks
    /// for its key, now and then.
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

    /// The keys and the header of a pack.
    ///
    /// # Errors
    /// `NotFound`; `Damaged` when it is too short for both, or was changed.
    pub(super) fn opened(&self, id: PackId) -> Result<Arc<Opened>> {
        if let Some(known) = self.known(id) {
            return Ok(known.pack);
        }
        let mut stored = [0; FRAMES];
        self.inner.read_at(id, 0, &mut stored)?;
        let head = PackHead(*stored.first_chunk::<HEAD_LEN>().expect("it is longer"));
        if head.epoch() > self.keys.epochs() {
            self.refresh()?;
        }
        let changed = || Error::damaged(format!("pack {id}: its head was changed, or is of another key"));
        let domain = head.domain();
        // Without the key of its domain, header and footer can be read all the same.
        let own = if domain == Domain::COMMON { None } else { self.domains.key(domain).ok() };
        let keys = self.keys.pack(id, &head, own.as_deref()).ok_or_else(changed)?;
        let (footer_key, content_key) = (keys.footer.aead(), keys.content.map(|key| key.aead()));
        let plain = open_block(&footer_key, HEADER_NUMBER, &mut stored[HEAD_LEN..]).ok_or_else(changed)?;
        let header = plain.try_into().expect("the header's bytes");
        let pack = Arc::new(Opened { footer_key, content_key, domain, header });
        self.remember(id, Some(Known { pack: Arc::clone(&pack), shape: None }));
        Ok(pack)
    }

    /// The lengths of a pack, as they were when last asked unless `fresh`; `None` if there is no such
    /// pack.
    pub(super) fn shape(&self, id: PackId, fresh: bool) -> Result<Option<Shape>> {
        if let Some(shape) = self.known(id).and_then(|known| known.shape).filter(|_| !fresh) {
            return Ok(Some(shape));
        }
        loop {
            let was_known = self.known(id).is_some();
            let Some((mut end, stored)) = self.inner.read_end(id, TAIL)? else { return Ok(None) };
            let shape = self.shape_of(id, &mut end, stored)?;
            if shape.is_whole || !was_known {
                return Ok(Some(shape));
            }
            // It may have remembered a copy in another tier, and has forgotten that by now.
        }
    }

    /// The lengths of a pack of `stored` bytes, of which `end` are the last. A pack that is being
    /// written, or was cut off, has the bytes of its whole blocks.
    pub(super) fn shape_of(&self, id: PackId, end: &mut [u8], stored: u64) -> Result<Shape> {
        let pack = match self.opened(id) {
            Err(error) if error.kind() == ErrorKind::Damaged => return Ok(Shape::unfinished(stored)),
            pack => pack?,
        };
        let at = end.len().saturating_sub(TAIL);
        let tail = open_block(&pack.footer_key, TAIL_NUMBER, &mut end[at..]);
        let Some(shape) = tail.and_then(|plain| Shape::decode(plain, stored)) else {
            // The next read asks for its head again: the pack may have moved to another tier.
            self.remember(id, None);
            return Ok(Shape::unfinished(stored));
        };
        self.remember(id, Some(Known { pack, shape: Some(shape) }));
        Ok(shape)
    }

    /// Fills `buf` from plain byte `offset` of a pack that has these bytes.
    pub(super) fn read_range(
        &self,
        id: PackId,
        shape: &Shape,
        (offset, buf): (u64, &mut [u8]),
        fetch: &mut Fetch<'_>,
    ) -> Result<()> {
        let mut pack = self.opened(id)?;
        let in_header = (HEADER as u64).saturating_sub(offset).min(buf.len() as u64) as usize;
        let (header, rest) = buf.split_at_mut(in_header);
        if in_header > 0 {
            header.copy_from_slice(&pack.header[offset as usize..][..in_header]);
        }
        let offset = offset + in_header as u64;
        let in_frames = shape.frames_end.saturating_sub(offset).min(rest.len() as u64) as usize;
        let (frames, end) = rest.split_at_mut(in_frames);
        if in_frames > 0 && pack.domain != Domain::COMMON {
            // It may have been destroyed since the pack was opened, or be at hand by now.
            self.domains.key(pack.domain).context(|| format!("pack {id}"))?;
            if pack.content_key.is_none() {
                self.remember(id, None);
                pack = self.opened(id)?;
            }
        }
        self.read_section(id, &pack, &shape.frames(), (offset, frames), fetch)?;
        self.read_section(id, &pack, &shape.end(), (offset + in_frames as u64, end), fetch)
    }

    /// The same within one section.
    fn read_section(
        &self,
        id: PackId,
        pack: &Opened,
        section: &Section,
        (mut offset, mut buf): (u64, &mut [u8]),
        fetch: &mut Fetch<'_>,
    ) -> Result<()> {
        let most = if self.inner.uploads_max() > 1 { usize::MAX } else { BATCH * BLOCK };
        let key = if section.is_content { pack.content_key.as_ref() } else { Some(&pack.footer_key) };
        while !buf.is_empty() {
            let Some(key) = key else {
                self.keys.rights().require_all_contents().context(|| format!("pack {id}"))?;
                return Err(Error::new(ErrorKind::Busy, format!("pack {id}: its key is gone just now")));
            };
            let within = ((offset - section.from) % BLOCK as u64) as usize;
            let now = buf.len().min(most.saturating_sub(within));
            let (part, rest) = buf.split_at_mut(now);
            self.read_blocks(id, key, section, (offset, part), fetch)?;
            (offset, buf) = (offset + now as u64, rest);
        }
        Ok(())
    }

    /// The same, in one request.
    fn read_blocks(
        &self,
        id: PackId,
        key: &Aead,
        section: &Section,
        (offset, mut buf): (u64, &mut [u8]),
        fetch: &mut Fetch<'_>,
    ) -> Result<()> {
        let (from, to, first, mut skip) = section.blocks(offset, offset + buf.len() as u64);
        let buffers = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stored = buffers().pop().unwrap_or_default();
        stored.resize((to - from) as usize, 0);
        let mut read = fetch(from, &mut stored);
        for (block, number) in stored.chunks_mut(SEALED).zip(first..) {
            if read.is_err() {
                break;
            }
            match open_part(key, number, block, skip, &mut buf) {
                Some(()) => skip = 0,
                None => {
                    self.remember(id, None);
                    read = Err(Error::damaged(format!(
                        "pack {id}: block {number} (64 KiB each) cannot be decrypted: it was changed or cut off, or is of another key"
                    )));
                }
            }
        }
        buffers().push(stored);
        read
    }
}

/// Puts the plain bytes of block `number`, without the first `skip`, at the beginning of `buf`, and moves
/// that behind them. `None` if the block was changed, or is another.
fn open_part(key: &Aead, number: u32, block: &mut [u8], skip: usize, buf: &mut &mut [u8]) -> Option<()> {
    let len = block.len().checked_sub(EXTRA)?;
    let now = buf.split_off_mut(..len.saturating_sub(skip).min(buf.len())).expect("it is not longer");
    if now.len() == len {
        let nonce = block.first_chunk().filter(|nonce| is_of(nonce, number))?;
        return key.open_to(*nonce, &about(number), &block[NONCE_LEN..], now).then_some(());
    }
    let plain = open_block(key, number, block)?;
    now.copy_from_slice(&plain[skip.min(len)..][..now.len()]);
    Some(())
}

/// Decrypts block `number` in place; `None` if it was changed, or is another.
pub(super) fn open_block<'b>(key: &Aead, number: u32, block: &'b mut [u8]) -> Option<&'b [u8]> {
    let (nonce, body) = block.split_first_chunk_mut().filter(|(nonce, _)| is_of(nonce, number))?;
    let (bytes, tag) = body.split_last_chunk_mut()?;
    key.open(*nonce, &about(number), bytes, tag).then_some(bytes)
}

fn is_of(nonce: &[u8; NONCE_LEN], number: u32) -> bool {
    nonce[8..] == number.to_le_bytes()
}
