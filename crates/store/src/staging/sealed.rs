//! Segments of a log with a key: nobody without it can read or change what they hold.
//!
//! **Keys.** Each segment has a random salt in its header. The salt and the log's key give it a key for
//! AES-256-GCM and one for the keyed hash of its header.
//!
//! ```text
//! record   16 tag of the head   head: header and fields   data   16 its tag (if there is any data)
//! ```
//!
//! **Nonces.** Head and data are a message each. Its nonce is the position in the file at which it begins.
//! So nonces do not repeat if no position is encrypted twice. The log's tail sees to that: it remembers up
//! to where it has encrypted, also when the write failed, and never goes back. A segment that was opened
//! takes nothing, as nobody knows what was written to it before: the log begins a new one.
//!
//! **Places.** A message opens at its position in its segment only. Segments cannot be exchanged either, as
//! their headers have keyed hashes. Three changes stay unnoticed: records may be cut off at the end,
//! segments be removed from the front, and a segment be replaced by another one of the same store that has
//! its number and first sequence.
//!
//! **Ranges.** GCM encrypts by a counter, so any range of the data is decrypted alone. Only what is read as
//! a whole is verified.

use std::iter::zip;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use aws_lc_rs::cipher::{AES_256, DecryptingKey, DecryptionContext, UnboundCipherKey};
use outrigger_format::staging::{
    Operation, Prepared, RECORD_HEADER_LEN, RECORD_MAGIC, RECORD_TAG_LEN as TAG, RecordHeader,
    SEALED_HEADER_LEN, SEGMENT_HEADER_LEN, Seal, SegmentHeader,
};
use outrigger_format::{FormatError, StoreId};

use crate::error::{Error, ErrorKind, Result};
use crate::keys::{Aead, Key, NONCE_LEN};

/// Bytes of a block of AES.
const BLOCK: usize = 16;
/// The counter of a message's first block in GCM; 1 is for the tag.
const FIRST: u32 = 2;

/// How the segments of one log are kept: plain, or encrypted.
pub(super) struct Sealing {
    store: StoreId,
    key: Option<Key>,
}

/// The keys of one encrypted segment.
pub(super) struct SegmentKeys {
    key: Key,
    aead: Aead,
    /// The same key, for ranges.
    counter: DecryptingKey,
    header_key: Key,
}

impl Sealing {
    pub fn new(store: StoreId, key: Option<&Key>) -> Self {
        Self { store, key: key.cloned() }
    }

    /// True when the log has a key.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Bytes of a segment's header.
    pub fn header_len(&self) -> u64 {
        if self.key.is_some() { SEALED_HEADER_LEN as u64 } else { SEGMENT_HEADER_LEN as u64 }
    }

    /// A record whose place is not known yet: with a checksum, if it will have no tags.
    pub fn prepare(&self, operation: &Operation, data: &[u8]) -> Prepared {
        match self.key {
            None => Prepared::new(operation, data),
            Some(_) => Prepared::unsummed(operation, data.len()),
        }
    }

    /// Bytes of the tag before a record's head; 0 in a plain log.
    pub fn tag_len(&self) -> u64 {
        if self.key.is_some() { TAG as u64 } else { 0 }
    }

    /// Bytes of all tags of a record.
    pub fn tags_len(&self, data_len: usize) -> u64 {
        self.tag_len() * if data_len > 0 { 2 } else { 1 }
    }

    /// The header of a new segment, and its keys.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub fn begin(&self, number: u32, first: u64) -> Result<(SegmentHeader, Option<SegmentKeys>)> {
        let mut header = SegmentHeader { store: self.store, number, first, seal: None };
        let Some(key) = &self.key else { return Ok((header, None)) };
        let salt = outrigger_clock::random()?;
        let keys = SegmentKeys::new(key, self.store, salt);
        header.seal = Some(Seal { salt, mac: [0; 32] });
        let mac = keys.mac(&header);
        header.seal = Some(Seal { salt, mac: *mac.as_bytes() });
        Ok((header, Some(keys)))
    }

    /// The keys of the segment with this header, which lies at `place`.
    ///
    /// # Errors
    /// `Invalid` when it belongs to another store, when the log has a key and the segment is plain,
    /// or the reverse, or when it was encrypted with another key.
    pub fn open(&self, header: &SegmentHeader, place: &str) -> Result<Option<SegmentKeys>> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, format!("{place} {why}")));
        if header.store != self.store {
            return refuse(&format!("belongs to store {}, not to {}", header.store, self.store));
        }
        match (&self.key, &header.seal) {
            (None, None) => Ok(None),
            (None, Some(_)) => refuse("is encrypted: give the store its key, then mount again"),
            (Some(_), None) => refuse(
                "is not encrypted, and the store has a key now: mount once without the key and unmount, so that \
                 what is staged gets stored; if nothing in it is needed, remove the file",
            ),
            (Some(key), Some(seal)) => {
                let keys = SegmentKeys::new(key, header.store, seal.salt);
                // Hashes are compared in constant time.
                if keys.mac(header) != blake3::Hash::from_bytes(seal.mac) {
                    return refuse(
                        "is encrypted with another key than the store's, or its header was changed: mount with the \
                         key that it was written with",
                    );
                }
                Ok(Some(keys))
            }
        }
    }
}

impl SegmentKeys {
    fn new(key: &Key, store: StoreId, salt: [u8; 32]) -> Self {
        let segment = key.derive("outrigger staging segment", &[&store.0, &salt]);
        let key = segment.derive("outrigger staging cipher", &[]);
        let counter = UnboundCipherKey::new(&AES_256, key.bytes()).and_then(DecryptingKey::ctr);
        Self {
            aead: key.aead(),
            counter: counter.expect("a key of 32 bytes"),
            header_key: segment.derive("outrigger staging header", &[]),
            key,
        }
    }

    fn mac(&self, header: &SegmentHeader) -> blake3::Hash {
        blake3::keyed_hash(self.header_key.bytes(), &header.authenticated())
    }

    /// Encrypts a record that is to lie at `offset`, into the beginning of `buffer`; returns its bytes.
    pub fn seal<'b>(&self, head: &[u8], data: &[u8], offset: u64, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        let data_at = TAG + head.len();
        let len = if data.is_empty() { data_at } else { data_at + data.len() + TAG };
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let record = &mut buffer[..len];
        let (room, rest) = record.split_first_chunk_mut::<TAG>().expect("it is longer");
        let (sealed_head, sealed_data) = rest.split_at_mut(head.len());
        sealed_head.copy_from_slice(head);
        *room = self.aead.seal(self.nonce_to_seal(offset + TAG as u64), b"", sealed_head);
        if !data.is_empty() {
            self.aead.seal_to(self.nonce_to_seal(offset + data_at as u64), b"", data, sealed_data);
        }
        record
    }

    fn nonce_to_seal(&self, position: u64) -> [u8; NONCE_LEN] {
        #[cfg(test)]
        super::tests::sealed::note_nonce(self.key.bytes(), position);
        nonce(position)
    }

    /// Decrypts the record that is the beginning of `bytes` and lies at `offset`; returns it without tags.
    ///
    /// # Errors
    /// Any [`FormatError`]. Both tags are verified.
    pub fn open<'b>(&self, bytes: &'b mut [u8], offset: u64) -> Result<&'b [u8], FormatError> {
        let header = self.open_head(bytes, offset)?;
        let (data_at, data_len) = (TAG + header.head_len(), header.data_len as usize);
        if data_len > 0 {
            let (need, have) = (data_at + data_len + TAG, bytes.len());
            let sealed = bytes.get_mut(data_at..need);
            let (data, tag) = sealed
                .and_then(|sealed| sealed.split_last_chunk_mut())
                .ok_or(FormatError::Truncated { what: RECORD, need, have })?;
            if !self.open_data(offset + data_at as u64, data, tag) {
                return Err(FormatError::Checksum { what: RECORD });
            }
        }
        Ok(&bytes[TAG..data_at + data_len])
    }

    /// The same for the record's head, whose header is returned.
    fn open_head(&self, bytes: &mut [u8], offset: u64) -> Result<RecordHeader, FormatError> {
        let header = self.header(bytes, offset)?;
        let (need, have) = (TAG + header.head_len(), bytes.len());
        let head = bytes.get_mut(..need).and_then(|head| head.split_first_chunk_mut::<TAG>());
        let (tag, head) = head.ok_or(FormatError::Truncated { what: RECORD, need, have })?;
        match self.aead.open(nonce(offset + TAG as u64), b"", head, tag) {
            true => Ok(header),
            false => Err(FormatError::Checksum { what: RECORD }),
        }
    }

    /// Its header, before the tag is verified.
    fn header(&self, bytes: &[u8], offset: u64) -> Result<RecordHeader, FormatError> {
        let (need, have) = (TAG + RECORD_HEADER_LEN, bytes.len());
        let header = bytes.get(TAG..).and_then(|bytes| bytes.first_chunk::<RECORD_HEADER_LEN>());
        let mut header = *header.ok_or(FormatError::Truncated { what: RECORD, need, have })?;
        self.decrypt(offset + TAG as u64, 0, &mut header);
        RecordHeader::decode(&header)
    }

    /// Decrypts all data of a record, which lies at `position`. False if it was changed.
    #[must_use]
    pub fn open_data(&self, position: u64, data: &mut [u8], tag: &[u8; TAG]) -> bool {
        self.aead.open(nonce(position), b"", data, tag)
    }

    /// Decrypts `bytes` of the message that lies at `position`, which has `skip` before them. Verifies
    /// nothing.
    pub fn decrypt(&self, position: u64, skip: usize, mut bytes: &mut [u8]) {
        let (mut block, within) = (skip / BLOCK, skip % BLOCK);
        if within > 0 {
            let part = bytes.split_off_mut(..bytes.len().min(BLOCK - within)).expect("it is not longer");
            let mut whole = [0; BLOCK];
            whole[within..][..part.len()].copy_from_slice(part);
            self.decrypt_blocks(position, block, &mut whole);
            part.copy_from_slice(&whole[within..][..part.len()]);
            block += 1;
        }
        self.decrypt_blocks(position, block, bytes);
    }

    fn decrypt_blocks(&self, position: u64, block: usize, bytes: &mut [u8]) {
        let counter = DecryptionContext::Iv128(counter(position, FIRST + block as u32).into());
        self.counter.decrypt(bytes, counter).expect("AES-CTR of any length");
    }

    /// Headers of the whole heads that lie anywhere in a segment's `bytes`, from `from` on. Nothing says where
    /// they are, so each position is tried: a block of AES per byte.
    pub fn headers(&self, bytes: &[u8], from: usize) -> Vec<RecordHeader> {
        let (cipher, mut found) = (Aes256::new(self.key.bytes().into()), Vec::new());
        let mut blocks = [Block::default(); 64];
        for start in (from..bytes.len().saturating_sub(TAG + RECORD_HEADER_LEN - 1)).step_by(blocks.len()) {
            for (block, at) in blocks.iter_mut().zip(start + TAG..) {
                *block = counter(at as u64, FIRST).into();
            }
            cipher.encrypt_blocks(&mut blocks);
            for (block, at) in blocks.iter().zip(start..) {
                let begin = bytes.get(at + TAG..).unwrap_or_default();
                let magic = zip(block, begin).map(|(block, byte)| block ^ byte);
                if magic.take(RECORD_MAGIC.len()).eq(RECORD_MAGIC)
                    && let Ok(header) = self.header(&bytes[at..], at as u64)
                    && let Some(head) = bytes.get(at..at + TAG + header.head_len())
                {
                    found.extend(self.open_head(&mut head.to_vec(), at as u64));
                }
            }
        }
        found
    }
}

const RECORD: &str = "staging record";

/// The nonce of the message at `position` of a segment.
fn nonce(position: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&position.to_le_bytes());
    nonce
}

/// What GCM encrypts for one block of the message at `position`.
fn counter(position: u64, number: u32) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..NONCE_LEN].copy_from_slice(&nonce(position));
    block[NONCE_LEN..].copy_from_slice(&number.to_be_bytes());
    block
}
