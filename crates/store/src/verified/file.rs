//! The file with the packs that a host has compared, in its directory for the store.
//!
//! ```text
//!  0   8  "OUTRVRF1"
//!  8  16  store id
//! 24   4  entries
//! 28      entries: pack id (8), what (1: whole, 2: lying, 3: some frames); of the last: words (2), the words (8 each)
//! end  8  checksum of all before
//! ```
//!
//! Processes of a host share it. Each reads it when it opens the store. Later it writes the union
//! of the file and its own knowledge, under a lock, by a rename. Nothing is synced: an incomplete
//! file counts as missing.

use std::path::PathBuf;

use outrigger_format::{PackId, StoreId, checksum};

use super::{Known, Packs};
use crate::owner;

const MAGIC: &[u8; 8] = b"OUTRVRF1";
/// Bounds what is read. A store with more packs has other worries.
const BYTES_MAX: u64 = 256 << 20;

/// See the module.
pub(super) struct VerifiedFile {
    path: PathBuf,
    store: StoreId,
    live: Box<dyn Fn(PackId) -> bool + Send + Sync>,
}

impl VerifiedFile {
    pub fn new(path: PathBuf, store: StoreId, live: Box<dyn Fn(PackId) -> bool + Send + Sync>) -> Self {
        Self { path, store, live }
    }

    /// Reads the file; empty if it is missing or incomplete.
    pub fn read(&self) -> Packs {
        let is_small = std::fs::metadata(&self.path).is_ok_and(|file| file.len() <= BYTES_MAX);
        let bytes = if is_small { std::fs::read(&self.path).unwrap_or_default() } else { Vec::new() };
        let mut packs = decode(&bytes, self.store).unwrap_or_default();
        packs.retain(|pack, _| (self.live)(*pack));
        packs
    }

    /// Adds `packs` to the file.
    pub fn merge(&self, mut packs: Packs) -> std::io::Result<()> {
        let lock = owner::create(&self.path.with_extension("lock"), false)?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        for (pack, other) in self.read() {
            match packs.get_mut(&pack) {
                Some(known) => *known = joined(known.clone(), other),
                None => drop(packs.insert(pack, other)),
            }
        }
        let new = self.path.with_extension("new");
        owner::write(&new, &encode(&packs, self.store))?;
        std::fs::rename(&new, &self.path)
    }
}

/// Merges two states of one pack.
fn joined(one: Known, other: Known) -> Known {
    match (one, other) {
        (Known::Corrupt, _) | (_, Known::Corrupt) => Known::Corrupt,
        (Known::Whole, _) | (_, Known::Whole) => Known::Whole,
        (Known::Frames(mut bits), Known::Frames(others)) => {
            bits.resize(bits.len().max(others.len()), 0);
            bits.iter_mut().zip(others).for_each(|(word, other)| *word |= other);
            Known::Frames(bits)
        }
    }
}

fn encode(packs: &Packs, store: StoreId) -> Vec<u8> {
    let mut out = Vec::with_capacity(36 + packs.len() * 16);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&store.0);
    out.extend_from_slice(&(packs.len() as u32).to_le_bytes());
    for (pack, known) in packs {
        out.extend_from_slice(&pack.0.to_le_bytes());
        match known {
            Known::Whole => out.push(1),
            Known::Corrupt => out.push(2),
            Known::Frames(words) => {
                out.push(3);
                out.extend_from_slice(&(words.len() as u16).to_le_bytes());
                words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
        }
    }
    let sum = checksum(&[&out]);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

fn decode(bytes: &[u8], store: StoreId) -> Option<Packs> {
    let (covered, sum) = bytes.split_last_chunk::<8>()?;
    let mut rest = covered;
    let is_ours = take::<8>(&mut rest)? == *MAGIC && take::<16>(&mut rest)? == store.0;
    if !is_ours || checksum(&[covered]) != u64::from_le_bytes(*sum) {
        return None;
    }
    let count = u32::from_le_bytes(take(&mut rest)?);
    let mut packs = Packs::new();
    for _ in 0..count {
        let pack = PackId(u64::from_le_bytes(take(&mut rest)?));
        let known = match take::<1>(&mut rest)? {
            [1] => Known::Whole,
            [2] => Known::Corrupt,
            [3] => {
                let words = u16::from_le_bytes(take(&mut rest)?);
                let words = (0..words).map(|_| take(&mut rest).map(u64::from_le_bytes));
                Known::Frames(words.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        packs.insert(pack, known);
    }
    rest.is_empty().then_some(packs)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk::<N>()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &std::path::Path, live: impl Fn(PackId) -> bool + Send + Sync + 'static) -> VerifiedFile {
        VerifiedFile::new(dir.join("verified"), StoreId([7; 16]), Box::new(live))
    }

    fn some() -> Packs {
        let known =
            [Known::Whole, Known::Corrupt, Known::Frames(vec![5, 1 << 63]), Known::Frames(Vec::new())];
        (1..).map(PackId).zip(known).collect()
    }

    #[test]
    fn what_was_written_is_read_and_joined() {
        let dir = tempfile::tempdir().unwrap();
        let one = file(dir.path(), |_| true);
        assert_eq!(one.read(), Packs::new());
        one.merge(some()).unwrap();
        assert_eq!(one.read(), some());
        // Another process has recorded other packs.
        let more =
            [(PackId(2), Known::Whole), (PackId(3), Known::Frames(vec![2])), (PackId(9), Known::Whole)];
        one.merge(more.into_iter().collect()).unwrap();
        let mut wanted = some();
        wanted.insert(PackId(3), Known::Frames(vec![7, 1 << 63]));
        wanted.insert(PackId(9), Known::Whole);
        assert_eq!(one.read(), wanted);
        // Packs that are gone are forgotten.
        let later = file(dir.path(), |pack| pack.0 > 2);
        later.merge(Packs::new()).unwrap();
        assert_eq!(file(dir.path(), |_| true).read().len(), 3);
    }

    #[test]
    fn what_is_not_whole_or_of_another_store_is_nothing() {
        let bytes = encode(&some(), StoreId([7; 16]));
        assert_eq!(decode(&bytes, StoreId([7; 16])), Some(some()));
        assert_eq!(decode(&bytes, StoreId([8; 16])), None);
        for at in 0..bytes.len() {
            assert_eq!(decode(&bytes[..at], StoreId([7; 16])), None, "{at} bytes");
            let mut bytes = bytes.clone();
            bytes[at] ^= 4;
            assert_eq!(decode(&bytes, StoreId([7; 16])), None, "byte {at}");
        }
    }
}
