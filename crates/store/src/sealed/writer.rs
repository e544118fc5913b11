//! Encrypts a pack while it is written.

use std::io::IoSlice;
use std::sync::Arc;

use outrigger_format::PackId;

use super::layout::{BLOCK, END_NUMBER, HEADER, HEADER_NUMBER, SEALED, Shape, TAIL_NUMBER, zeros_for};
use super::{BATCH, SMALL, UNIT, UNIT_SMALL, about};
use crate::backend::PackWriter;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{Aead, DomainKey, Keyring, NONCE_LEN, TAG_LEN};

/// Encrypts one pack.
pub(super) struct SealedWriter {
    inner: Box<dyn PackWriter>,
    id: PackId,
    keys: Arc<Keyring>,
    footer_key: Aead,
    content_key: Aead,
    /// The random part of its nonces.
    drawn: [u8; 8],
    /// The pack's first bytes, until all of them are there.
    header: Vec<u8>,
    /// Plain bytes so far.
    len: u64,
    /// Where the footer begins, once that is known.
    frames_end: Option<u64>,
    /// The number of the block that is being filled.
    number: u32,
    /// Stored bytes that the pack does not have yet, then the block that is being filled.
    batch: Vec<u8>,
    /// Where in `batch` that block begins.
    open: usize,
    is_finished: bool,
}

impl SealedWriter {
    /// A writer of the pack `id`, which is `inner`. It draws the pack's keys.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub(super) fn new(inner: Box<dyn PackWriter>, id: PackId, ring: Arc<Keyring>) -> Result<Self> {
        let (head, keys) = ring.new_pack(id, None)?;
        let mut batch = Vec::with_capacity((BATCH + 1) * SEALED);
        batch.extend_from_slice(&head.0);
        Ok(Self {
            inner,
            id,
            keys: ring,
            footer_key: keys.footer.aead(),
            content_key: keys.content.as_ref().expect("a writer has it").aead(),
            drawn: outrigger_clock::random()?,
            header: Vec::with_capacity(HEADER),
            len: 0,
            frames_end: None,
            number: 0,
            open: batch.len(),
            batch,
            is_finished: false,
        })
    }

    /// Encrypts `plain`, which is no block of frames, as a block of its own with this number.
    fn seal_own(&mut self, number: u32, plain: &[u8]) {
        self.batch.extend_from_slice(&[0; NONCE_LEN]);
        self.batch.extend_from_slice(plain);
        let block = &mut self.batch[self.open..];
        let tag = seal(&self.footer_key, &self.drawn, number, block);
        self.batch.extend_from_slice(&tag);
        self.open = self.batch.len();
    }

    /// Encrypts the block that is being filled, if there is anything in it.
    fn seal_block(&mut self) -> Result<()> {
        if self.batch.len() > self.open {
            let key = if self.frames_end.is_none() { &self.content_key } else { &self.footer_key };
            let tag = seal(key, &self.drawn, self.number, &mut self.batch[self.open..]);
            self.batch.extend_from_slice(&tag);
            self.open = self.batch.len();
            let more = self.number.checked_add(1);
            self.number = more.ok_or_else(|| Error::new(ErrorKind::Invalid, "a pack of 128 TiB"))?;
        }
        Ok(())
    }

    /// Encrypts the header. Zeros fill it up if the pack ends before it.
    fn seal_header(&mut self) {
        let mut header = std::mem::take(&mut self.header);
        header.resize(HEADER, 0);
        self.seal_own(HEADER_NUMBER, &header);
    }

    /// Ends the blocks of frames, once.
    fn end_frames(&mut self) -> Result<()> {
        if self.frames_end.is_none() {
            self.seal_block()?;
            self.frames_end = Some(self.len.max(HEADER as u64));
            self.number = END_NUMBER;
        }
        Ok(())
    }

    /// Appends to the blocks.
    fn fill(&mut self, mut rest: &[u8]) -> Result<()> {
        while !rest.is_empty() {
            if self.batch.len() == self.open + NONCE_LEN + BLOCK {
                self.seal_block()?;
                if self.open >= BATCH * SEALED {
                    self.hand_on()?;
                }
            }
            if self.batch.len() == self.open {
                self.batch.extend_from_slice(&[0; NONCE_LEN]);
            }
            let room = self.open + NONCE_LEN + BLOCK - self.batch.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.batch.extend_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Pads the pack, and encrypts its end.
    fn seal_end(&mut self) -> Result<()> {
        if self.len < HEADER as u64 {
            self.seal_header();
        }
        self.end_frames()?;
        let frames_end = self.frames_end.expect("the frames have ended");
        let shape = Shape { frames_end, len: self.len, zeros: 0, is_whole: true };
        let stored = shape.stored();
        let unit = if stored < SMALL { UNIT_SMALL } else { UNIT };
        let drawn = u64::from_le_bytes(outrigger_clock::random()?) % unit;
        let target = (stored + drawn).next_multiple_of(unit);
        let end = self.len.max(HEADER as u64) - frames_end;
        // The second length is possible if the first is not.
        let zeros = [target, target + unit].into_iter().find_map(|target| zeros_for(end, target - stored));
        let zeros = zeros.expect("a unit is longer than what a block takes itself");
        self.fill(&vec![0; zeros as usize])?;
        self.seal_block()?;
        self.seal_own(TAIL_NUMBER, &Shape { zeros, ..shape }.encode());
        self.hand_on()
    }

    fn hand_on(&mut self) -> Result<()> {
        self.inner.append(&[IoSlice::new(&self.batch)])?;
        self.batch.clear();
        self.open = 0;
        Ok(())
    }
}

/// Encrypts a block in place, whose first bytes are room for its nonce; returns its tag.
fn seal(key: &Aead, drawn: &[u8; 8], number: u32, block: &mut [u8]) -> [u8; TAG_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(drawn);
    nonce[8..].copy_from_slice(&number.to_le_bytes());
    let (room, body) = block.split_at_mut(NONCE_LEN);
    room.copy_from_slice(&nonce);
    key.seal(nonce, &about(number), body)
}

impl PackWriter for SealedWriter {
    fn use_domain(&mut self, domain: &DomainKey) -> Result<()> {
        debug_assert_eq!(self.len, 0, "before its first byte");
        let (head, keys) = self.keys.new_pack(self.id, Some(domain))?;
        self.footer_key = keys.footer.aead();
        self.content_key = keys.content.as_ref().expect("a writer has it").aead();
        self.batch.clear();
        self.batch.extend_from_slice(&head.0);
        Ok(())
    }

    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        for part in parts {
            let mut part = &part[..];
            if self.len < HEADER as u64 && !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(HEADER - self.len as usize));
                self.header.extend_from_slice(now);
                self.len += now.len() as u64;
                part = later;
                if self.len == HEADER as u64 {
                    self.seal_header();
                }
            }
            self.len += part.len() as u64;
            self.fill(part)?;
        }
        Ok(())
    }

    fn begin_footer(&mut self) -> Result<()> {
        // A pack that is shorter than its header has no footer.
        match self.len < HEADER as u64 {
            true => Ok(()),
            false => self.end_frames(),
        }
    }

    fn finish(&mut self) -> Result<()> {
        if !self.is_finished {
            self.seal_end()?;
            self.is_finished = true;
        }
        self.inner.finish()
    }

    fn seal(mut self: Box<Self>) -> Result<()> {
        if !self.is_finished {
            self.seal_end()?;
        }
        self.inner.seal()
    }
}
