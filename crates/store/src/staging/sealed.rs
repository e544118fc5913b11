//! Segments of a log with a key: nobody without it can read or change what they hold.
//!
//! **Keys.** Each segment has a random salt in its header. The salt and the log's key give it a key
//! for a cipher and one for the checksums of its records.
//!
//! **Cipher.** AES-256 in counter mode; the counter is the position in the file, so that any range
//! is read and decrypted alone. Two texts that are encrypted at one position under one key would
//! reveal each other. So no position is ever encrypted twice: [`SealedFile`] remembers up to where
//! it has encrypted, also when the write failed, and refuses to write below. A segment that was
//! opened refuses all writes, as nobody knows what was written to it before. [`Log`](super::Log)
//! then begins a new segment.
//!
//! **Checksums** are keyed, and cover the record's place: see [`KeyedSums`]. Segments cannot be
//! exchanged either, as their headers have keyed hashes. Three changes stay unnoticed: records may be
//! cut off at the end, segments be removed from the front, and a segment be replaced by another one
//! of the same store that has its number and first sequence.

use std::io::{self, IoSlice};
use std::sync::Mutex;

use aes::Aes256;
use ctr::cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherSeek};
use ctr::{Ctr128BE, CtrCore};
use outrigger_format::StoreId;
use outrigger_format::staging::{
    KeyedSums, PlainSums, SEALED_HEADER_LEN, SEGMENT_HEADER_LEN, Seal, SegmentHeader, Sums,
};

use super::files::{SegmentFile, write_whole};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::Key;

const HEADER: u64 = SEALED_HEADER_LEN as u64;
/// Bytes that are encrypted and written at a time: they fit a processor's cache.
const PIECE_LEN: usize = 256 << 10;

/// How the segments of one log are kept: plain, or encrypted.
pub(super) struct Sealing {
    store: StoreId,
    key: Option<Key>,
    payload: Box<dyn Sums>,
}

/// The keys of one encrypted segment.
pub(super) struct SegmentKeys {
    cipher: Aes256,
    header_key: Key,
    sums: KeyedSums,
}

impl Sealing {
    pub fn new(store: StoreId, key: Option<&Key>) -> Self {
        let payload: Box<dyn Sums> = match key {
            None => Box::new(PlainSums),
            Some(key) => Box::new(KeyedSums::new(*payload_key(key, store).bytes(), [0; 32])),
        };
        Self { store, key: key.cloned(), payload }
    }

    /// True when the log has a key.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Bytes of a segment's header.
    pub fn header_len(&self) -> u64 {
        if self.key.is_some() { HEADER } else { SEGMENT_HEADER_LEN as u64 }
    }

    /// The checksums for preparing a record, whose segment is not known yet.
    pub fn payload_sums(&self) -> &dyn Sums {
        &*self.payload
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

fn payload_key(key: &Key, store: StoreId) -> Key {
    key.derive("outrigger staging payload", &[&store.0])
}

impl SegmentKeys {
    fn new(key: &Key, store: StoreId, salt: [u8; 32]) -> Self {
        let segment = key.derive("outrigger staging segment", &[&store.0, &salt]);
        let cipher = segment.derive("outrigger staging cipher", &[]);
        let records = segment.derive("outrigger staging records", &[]);
        Self {
            cipher: Aes256::new(cipher.bytes().into()),
            header_key: segment.derive("outrigger staging header", &[]),
            sums: KeyedSums::new(*payload_key(key, store).bytes(), *records.bytes()),
        }
    }

    fn mac(&self, header: &SegmentHeader) -> blake3::Hash {
        blake3::keyed_hash(self.header_key.bytes(), &header.authenticated())
    }

    /// The checksums of the segment's records.
    pub fn sums(&self) -> &dyn Sums {
        &self.sums
    }

    /// Decrypts what lies at `offset` of the file, or encrypts what is to lie there.
    pub fn apply(&self, bytes: &mut [u8], offset: u64) {
        self.cipher_at(offset).apply_keystream(bytes);
    }

    fn cipher_at(&self, offset: u64) -> Ctr128BE<Aes256> {
        let counter = CtrCore::inner_iv_init(self.cipher.clone(), &[0; 16].into());
        let mut cipher = Ctr128BE::from_core(counter);
        cipher.seek(offset);
        cipher
    }
}

/// The checksums of a segment's records, plain ones without `keys`.
pub(super) fn sums(keys: Option<&SegmentKeys>) -> &dyn Sums {
    keys.map_or(&PlainSums, |keys| keys.sums())
}

struct Writer {
    /// Everything below may have been encrypted already.
    end: u64,
    piece: Vec<u8>,
}

/// A segment whose bytes behind the header are encrypted.
pub(super) struct SealedFile {
    file: Box<dyn SegmentFile>,
    keys: SegmentKeys,
    writer: Mutex<Writer>,
}

impl SealedFile {
    /// A segment that this process began with these keys, and to which it has written the header
    /// only.
    pub fn begun(file: Box<dyn SegmentFile>, keys: SegmentKeys) -> Self {
        Self::new(file, keys, HEADER)
    }

    /// A segment that was there: it can be read.
    pub fn opened(file: Box<dyn SegmentFile>, keys: SegmentKeys) -> Self {
        Self::new(file, keys, u64::MAX)
    }

    fn new(file: Box<dyn SegmentFile>, keys: SegmentKeys, end: u64) -> Self {
        Self { file, keys, writer: Mutex::new(Writer { end, piece: Vec::new() }) }
    }
}

impl SegmentFile for SealedFile {
    /// Writes all of `parts`, or fails. In both cases their place is taken for good.
    fn write(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut writer = self.writer.lock().expect("no panic while it is held");
        if offset < writer.end {
            let text = format!("position {offset} of an encrypted segment was used before");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        writer.end = offset.checked_add(len as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let (mut cipher, mut at) = (self.keys.cipher_at(offset), offset);
        let piece = &mut writer.piece;
        let mut flush = |piece: &mut Vec<u8>| {
            cipher.apply_keystream(piece);
            write_whole(&*self.file, &mut [IoSlice::new(piece)], at)?;
            at += piece.len() as u64;
            piece.clear();
            io::Result::Ok(())
        };
        piece.clear();
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(PIECE_LEN - piece.len()));
                piece.extend_from_slice(now);
                rest = later;
                if piece.len() == PIECE_LEN {
                    flush(piece)?;
                }
            }
        }
        flush(piece)?;
        Ok(len)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < HEADER {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a segment's header is no data"));
        }
        let n = self.file.read(buf, offset)?;
        self.keys.apply(&mut buf[..n], offset);
        Ok(n)
    }

    fn takes(&self, offset: u64) -> bool {
        offset >= self.writer.lock().expect("no panic while it is held").end
    }

    fn sums(&self) -> &dyn Sums {
        self.keys.sums()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        // It is full, or was opened to be read: the memory is not needed any more.
        self.writer.lock().expect("no panic while it is held").piece = Vec::new();
        self.file.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
