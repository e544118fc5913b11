//! Encrypts a pack while it is written.

use std::io::IoSlice;

use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use super::{BATCH, BLOCK, COUNT, SEALED, SMALL, UNIT_SMALL, about};
use crate::backend::PackWriter;
use crate::error::{Error, ErrorKind, Result};

/// Encrypts one pack.
pub(super) struct SealedWriter {
    inner: Box<dyn PackWriter>,
    key: LessSafeKey,
    /// The random part of its nonces.
    drawn: [u8; 8],
    /// Blocks that are encrypted.
    blocks: u32,
    /// Encrypted blocks that the pack does not have yet, then the block that is being filled.
    batch: Vec<u8>,
    /// Where in `batch` that block begins.
    open: usize,
    is_finished: bool,
}

impl SealedWriter {
    /// A writer of the pack `inner`, with the pack's key.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub(super) fn new(inner: Box<dyn PackWriter>, key: LessSafeKey) -> Result<Self> {
        let drawn = outrigger_clock::random()?;
        let batch = Vec::with_capacity(BATCH * SEALED);
        Ok(Self { inner, key, drawn, blocks: 0, batch, open: 0, is_finished: false })
    }

    /// Encrypts the block that is being filled.
    fn seal_block(&mut self, is_last: bool) -> Result<()> {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.drawn);
        nonce[8..].copy_from_slice(&self.blocks.to_le_bytes());
        if self.batch.len() == self.open {
            self.batch.extend_from_slice(&[0; NONCE_LEN]);
        }
        let (head, body) = self.batch[self.open..].split_at_mut(NONCE_LEN);
        head.copy_from_slice(&nonce);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let about = Aad::from(about(self.blocks.into(), is_last));
        let tag = self.key.seal_in_place_separate_tag(nonce, about, body).expect("shorter than 64 GiB");
        self.batch.extend_from_slice(tag.as_ref());
        self.open = self.batch.len();
        self.blocks =
            self.blocks.checked_add(1).ok_or_else(|| Error::new(ErrorKind::Invalid, "a pack of 128 TiB"))?;
        Ok(())
    }

    /// Pads the pack, and encrypts its end.
    fn seal_end(&mut self) -> Result<()> {
        let open = (self.batch.len() - self.open).saturating_sub(NONCE_LEN);
        let len = u64::from(self.blocks) * BLOCK as u64 + (open + COUNT) as u64;
        let unit = if len < SMALL { UNIT_SMALL as u64 } else { BLOCK as u64 };
        let drawn = u64::from_le_bytes(outrigger_clock::random()?) % unit;
        let added = COUNT + ((len + drawn).next_multiple_of(unit) - len) as usize;
        let mut padding = vec![0; added];
        padding[added - COUNT..].copy_from_slice(&(added as u32).to_le_bytes());
        self.append(&[IoSlice::new(&padding)])?;
        self.seal_block(true)?;
        self.hand_on()
    }

    fn hand_on(&mut self) -> Result<()> {
        self.inner.append(&[IoSlice::new(&self.batch)])?;
        self.batch.clear();
        self.open = 0;
        Ok(())
    }
}

impl PackWriter for SealedWriter {
    fn append(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                if self.batch.len() == self.open + NONCE_LEN + BLOCK {
                    // There is more, so this block is not the last.
                    self.seal_block(false)?;
                    if self.open == BATCH * SEALED {
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
        }
        Ok(())
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
