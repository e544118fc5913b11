//! An oracle's record as a file.
//!
//! ```text
//!  0  8  magic "OUTRORCL"
//!  8  2  version = 1
//! 10  1  fingerprint: 1 BLAKE3-256, 2 SHA-256
//! 11  5  reserved, 0
//! 16     files, each: u8 1; name and chunker (varint length + bytes); bytes with holes u64; chunks n u64;
//!        then n times length u32, fingerprint (32 bytes)
//!  .. 1  0: no more files
//!  .. 32 BLAKE3-256 of everything before
//! ```
//!
//! It is written under another name, and gets its own when it is whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use outrigger_format::{ChunkerSpec, Cursor, Fingerprint, FingerprintKind, FormatError, Put};
use outrigger_offload::Hasher;

use super::Answers;
use crate::error::{Context, Error, ErrorKind, Result};

const WHAT: &str = "oracle's record";
const MAGIC: &[u8; 8] = b"OUTRORCL";
const VERSION: u16 = 1;
/// Bytes of a chunk.
const CHUNK_LEN: usize = 36;

/// Writes a record; shared by all files of a put.
pub struct Recorder {
    path: PathBuf,
    unfinished: PathBuf,
    out: Mutex<Out>,
}

struct Out {
    file: BufWriter<File>,
    hasher: Hasher,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }
}

impl Recorder {
    pub(super) fn create(path: &Path, kind: FingerprintKind) -> Result<Self> {
        if path.exists() {
            let why = format!("{} is there already; remove it first, or give another name", path.display());
            return Err(Error::new(ErrorKind::Exists, why));
        }
        let mut name = path.as_os_str().to_os_string();
        name.push(".unfinished");
        let recorder = Self {
            path: path.to_path_buf(),
            out: Mutex::new(Out {
                file: BufWriter::new(File::create(&name).context(|| at(path))?),
                hasher: Hasher::new(FingerprintKind::Blake3),
            }),
            unfinished: name.into(),
        };
        let mut header = MAGIC.to_vec();
        header.put_u16(VERSION);
        header.extend_from_slice(&[kind as u8, 0, 0, 0, 0, 0]);
        recorder.write(&header)?;
        Ok(recorder)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut out = self.out.lock().expect("no panic while held");
        out.write(bytes).context(|| at(&self.path))
    }

    pub(super) fn note(
        &self,
        name: &[u8],
        chunker: ChunkerSpec,
        len: u64,
        chunks: &[(u32, Fingerprint)],
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(64 + name.len() + chunks.len() * CHUNK_LEN);
        bytes.push(1);
        bytes.put_bytes(name);
        bytes.put_bytes(chunker.to_string().as_bytes());
        bytes.put_u64(len);
        bytes.put_u64(chunks.len() as u64);
        for (len, fingerprint) in chunks {
            bytes.put_u32(*len);
            bytes.extend_from_slice(&fingerprint.0);
        }
        self.write(&bytes)
    }

    pub(super) fn finish(&self) -> Result<()> {
        self.write(&[0])?;
        let mut out = self.out.lock().expect("no panic while held");
        let sum = out.hasher.finish();
        let written = out.file.write_all(&sum.0).and_then(|()| out.file.flush());
        written.and_then(|()| std::fs::rename(&self.unfinished, &self.path)).context(|| at(&self.path))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Once it is whole it has its own name, and nothing is there.
        let _ = std::fs::remove_file(&self.unfinished);
    }
}

fn at(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// A whole record in memory, 36 bytes a chunk: looking things up in it must cost nothing.
#[derive(Debug)]
pub struct Record {
    pub(super) files: HashMap<Vec<u8>, Arc<Answers>>,
}

impl Record {
    pub(super) fn read(path: &Path, kind: FingerprintKind) -> Result<Self> {
        let bytes = std::fs::read(path).context(|| format!("cannot read {}", path.display()))?;
        // Errors of the record never mean that the store is damaged.
        let files = decode(&bytes, kind)
            .map_err(|error| Error::new(ErrorKind::Invalid, path.display().to_string()).caused_by(error))?;
        Ok(Self { files })
    }
}

/// Decodes a record whose fingerprints are of `kind`.
fn decode(bytes: &[u8], kind: FingerprintKind) -> Result<HashMap<Vec<u8>, Arc<Answers>>, FormatError> {
    let mut cursor = Cursor::new(WHAT, bytes);
    if cursor.array::<8>()? != *MAGIC {
        return Err(FormatError::Magic { what: WHAT });
    }
    let version = cursor.u16()?;
    if version != VERSION {
        return Err(FormatError::Newer { what: WHAT, version: version.into(), features: 0 });
    }
    let covered = bytes.len().saturating_sub(32);
    let sum = outrigger_offload::hash(FingerprintKind::Blake3, &bytes[..covered]);
    if sum.0[..] != bytes[covered..] {
        return Err(FormatError::Checksum { what: WHAT });
    }
    let recorded = FingerprintKind::from_byte(cursor.u8()?)?;
    if recorded != kind {
        let (recorded, kind) = (recorded.name(), kind.name());
        return Err(FormatError::Text(format!("it has {recorded} fingerprints, the store has {kind}")));
    }
    cursor.take(5)?;
    let mut files = HashMap::new();
    while cursor.u8()? != 0 {
        let answers = decode_file(&mut cursor)?;
        files.insert(answers.name.clone(), Arc::new(answers));
    }
    Ok(files)
}

fn decode_file(cursor: &mut Cursor<'_>) -> Result<Answers, FormatError> {
    let name = cursor.bytes()?.to_vec();
    let chunker = std::str::from_utf8(cursor.bytes()?).map_err(|_| cursor.range("chunker", 0))?;
    let chunker = ChunkerSpec::parse(chunker)?;
    let (len, count) = (cursor.u64()?, cursor.u64()?);
    let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(CHUNK_LEN));
    let mut body = Cursor::new(WHAT, cursor.take(size.unwrap_or(usize::MAX))?);
    let (mut chunks, mut data) = (Vec::with_capacity(count as usize), 0);
    while !body.is_empty() {
        let (len, fingerprint) = (body.u32()?, body.fingerprint()?);
        if len == 0 || len as usize > chunker.max_len() {
            return Err(body.range("chunk length", len.into()));
        }
        data += u64::from(len);
        chunks.push((len, fingerprint));
    }
    if data > len {
        return Err(cursor.range("length", len));
    }
    Ok(Answers { name, chunker, len, data, chunks })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: FingerprintKind = FingerprintKind::Blake3;

    fn recorded() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let recorder = Recorder::create(&path, KIND).unwrap();
        let chunks = [(4096, Fingerprint([1; 32])), (10, Fingerprint([2; 32]))];
        recorder.note(b"a/b", ChunkerSpec::DEFAULT, 5000, &chunks).unwrap();
        recorder.note(b"empty", ChunkerSpec::Fixed { size: 4096 }, 0, &[]).unwrap();
        assert!(!path.exists(), "not whole yet");
        recorder.finish().unwrap();
        assert!(Recorder::create(&path, KIND).is_err_and(|error| error.kind() == ErrorKind::Exists));
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_record_reads_back() {
        let files = decode(&recorded(), KIND).unwrap();
        let file = &files[&b"a/b"[..]];
        assert_eq!(
            (files.len(), (file.len, file.data), file.chunks.len(), file.chunker),
            (2, (5000, 4106), 2, ChunkerSpec::DEFAULT)
        );
        assert_eq!(files[&b"empty"[..]].len, 0);
        assert!(decode(&recorded(), FingerprintKind::Sha256).unwrap_err().to_string().contains("blake3"));
    }

    #[test]
    fn damage_is_refused() {
        let whole = recorded();
        for len in 0..whole.len() {
            assert!(decode(&whole[..len], KIND).is_err(), "{len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            assert!(decode(&bytes, KIND).is_err(), "{at}");
        }
    }

    #[test]
    fn lengths_that_no_file_has_are_refused() {
        let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = recorded();
            bytes.truncate(bytes.len() - 32);
            change(&mut bytes);
            let sum = outrigger_offload::hash(FingerprintKind::Blake3, &bytes);
            bytes.extend_from_slice(&sum.0);
            decode(&bytes, KIND)
        };
        assert!(resealed(&|_| {}).is_ok());
        // The tag, the name, the chunker's name, and then the lengths.
        let at = 16 + 1 + 1 + 3 + 1 + ChunkerSpec::DEFAULT.to_string().len();
        assert!(resealed(&|bytes| bytes[at..at + 8].fill(0)).is_err(), "less than its chunks");
        assert!(resealed(&|bytes| bytes[at + 15] = 0x80).is_err(), "more chunks than bytes");
        assert!(resealed(&|bytes| bytes[at + 16..at + 20].fill(0xff)).is_err(), "a chunk too long");
    }
}
