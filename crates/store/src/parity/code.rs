//! The code: parity of packs, and packs out of parity.
//!
//! The code is Leopard-RS over GF(2^16), by the crate `reed-solomon-simd`. Each 64 bytes of parity
//! depend only on the 64 bytes at the same offset of each pack. So the length of a stripe is no part
//! of the format. A pack that ends before others is padded with zeros.

use std::fmt;
use std::io::IoSlice;

use outrigger_format::{PARITY_UNIT, PackId, ParityMember};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::backend::{Backend, PackWriter};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of each shard that are in memory at once: a multiple of [`PARITY_UNIT`].
pub(super) const STRIPE: u64 = 1 << 20;

/// Why a group could not be encoded.
pub(super) enum Failed {
    /// The pack of this number cannot be read.
    Pack(usize, Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Reads `packs`, whose stored lengths are given, and hands the next bytes of each of `files` parity
/// files to `take`. Returns the packs with the hashes of what was read.
pub(super) fn encode(
    stored: &dyn Backend,
    packs: &[(PackId, u64)],
    files: usize,
    take: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> std::result::Result<Vec<ParityMember>, Failed> {
    let longest = packs.iter().map(|(_, len)| *len).max().unwrap_or(0);
    let mut hashers = vec![blake3::Hasher::new(); packs.len()];
    let mut bytes = vec![0; STRIPE as usize];
    for (start, len) in stripes(longest) {
        let bytes = &mut bytes[..len];
        let mut encoder = ReedSolomonEncoder::new(packs.len(), files, len).map_err(impossible)?;
        for (number, (id, pack_len)) in packs.iter().enumerate() {
            let has = read_stripe(stored, *id, *pack_len, start, bytes)
                .map_err(|error| Failed::Pack(number, error))?;
            hashers[number].update(&bytes[..has]);
            encoder.add_original_shard(&*bytes).map_err(impossible)?;
        }
        let parity = encoder.encode().map_err(impossible)?;
        for (number, bytes) in parity.recovery_iter().enumerate() {
            take(number, bytes)?;
        }
    }
    let member = |((pack, len), hasher): (&(PackId, u64), &blake3::Hasher)| ParityMember {
        pack: *pack,
        len: *len,
        hash: *hasher.finalize().as_bytes(),
    };
    Ok(packs.iter().zip(&hashers).map(member).collect())
}

/// A group of which some packs and files are lost.
pub(super) struct Lossy<'a> {
    pub members: &'a [ParityMember],
    /// The members that can be read and are what they were.
    pub good: &'a [bool],
    /// The parity files that can be read and are what they were, and how many there are of them
    /// with the lost ones.
    pub parity: &'a [(u8, PackId)],
    pub files: usize,
}

/// Computes member `wanted` again, from as many good shards as the group has members, and hands its
/// bytes to `take`.
pub(super) fn decode(
    stored: &dyn Backend,
    group: &Lossy<'_>,
    wanted: usize,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Lossy { members, good, parity, files } = group;
    let longest = members.iter().map(|member| member.len).max().unwrap_or(0);
    let parity_len = longest.next_multiple_of(PARITY_UNIT);
    let lost = good.iter().filter(|good| !**good).count();
    let mut bytes = vec![0; STRIPE as usize];
    let wanted_len = members[wanted].len;
    for (start, len) in stripes(longest).take_while(|(start, _)| *start < wanted_len) {
        let bytes = &mut bytes[..len];
        let mut decoder = ReedSolomonDecoder::new(members.len(), *files, len).map_err(impossible)?;
        for (number, member) in members.iter().enumerate().filter(|(number, _)| good[*number]) {
            read_stripe(stored, member.pack, member.len, start, bytes)?;
            decoder.add_original_shard(number, &*bytes).map_err(impossible)?;
        }
        for (shard, id) in parity.iter().take(lost) {
            read_stripe(stored, *id, parity_len, start, bytes)?;
            decoder.add_recovery_shard(usize::from(*shard), &*bytes).map_err(impossible)?;
        }
        let restored = decoder.decode().map_err(impossible)?;
        let restored = restored.restored_original(wanted).ok_or_else(|| impossible("it was not lost"))?;
        let has = (wanted_len - start).min(len as u64) as usize;
        take(&restored[..has])?;
    }
    Ok(())
}

/// Hashes the first `len` bytes of a pack or parity file.
pub(super) fn hash(stored: &dyn Backend, id: PackId, len: u64) -> Result<[u8; 32]> {
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; STRIPE as usize]);
    for (start, stripe) in stripes(len) {
        let has = read_stripe(stored, id, len, start, &mut bytes[..stripe])?;
        hasher.update(&bytes[..has]);
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Appends `bytes` to a pack.
pub(super) fn append(writer: &mut dyn PackWriter, bytes: &[u8]) -> Result<()> {
    writer.append(&[IoSlice::new(bytes)])
}

/// Where each stripe begins, and how long it is.
fn stripes(longest: u64) -> impl Iterator<Item = (u64, usize)> {
    let len = longest.next_multiple_of(PARITY_UNIT);
    (0..len).step_by(STRIPE as usize).map(move |start| (start, (len - start).min(STRIPE) as usize))
}

/// Fills `bytes` with a stripe: zeros behind the end. Returns how many bytes are the pack's.
fn read_stripe(stored: &dyn Backend, id: PackId, len: u64, start: u64, bytes: &mut [u8]) -> Result<usize> {
    let has = len.saturating_sub(start).min(bytes.len() as u64) as usize;
    if has > 0 {
        stored.read_at(id, start, &mut bytes[..has])?;
    }
    bytes[has..].fill(0);
    Ok(has)
}

fn impossible(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("the code of parity: {why}"))
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Pack(_, error) | Failed::Other(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryBackend;
    use outrigger_workload::Rng;

    fn write(backend: &MemoryBackend, id: PackId, bytes: &[u8]) {
        let mut writer = backend.create(id).unwrap();
        append(&mut *writer, bytes).unwrap();
        writer.seal().unwrap();
    }

    /// Packs of these lengths, and their parity files.
    fn encoded(lens: &[usize], files: usize) -> (MemoryBackend, Vec<ParityMember>, Vec<Vec<u8>>) {
        let backend = MemoryBackend::new();
        let mut packs = Vec::new();
        for (id, len) in (1..).map(PackId).zip(lens) {
            write(&backend, id, &Rng::new(id.0).bytes(*len));
            packs.push((id, *len as u64));
        }
        let mut parity = vec![Vec::new(); files];
        let members = encode(&backend, &packs, files, &mut |number, bytes| {
            parity[number].extend_from_slice(bytes);
            Ok(())
        });
        let members = members.map_err(Error::from).unwrap();
        for (shard, bytes) in (0..).zip(&parity) {
            write(&backend, PackId::of_parity(1, shard), bytes);
        }
        (backend, members, parity)
    }

    #[test]
    fn any_lost_packs_are_made_again_from_the_others() {
        let lens = [1, 64, 1 << 20, (1 << 20) + 1, (2 << 20) + 77];
        for files in [1, 2, 3] {
            let (backend, members, parity) = encoded(&lens, files);
            assert!(parity.iter().all(|bytes| bytes.len() as u64 == (lens[4] as u64).next_multiple_of(64)));
            let mut rng = Rng::new(files as u64);
            for _ in 0..6 {
                let mut good = vec![true; lens.len()];
                let lost_parity = rng.below(files as u64) as usize;
                while good.iter().filter(|good| !**good).count() < files - lost_parity {
                    good[rng.below(lens.len() as u64) as usize] = false;
                }
                let parity: Vec<(u8, PackId)> =
                    (lost_parity..files).map(|at| (at as u8, PackId::of_parity(1, at as u8))).collect();
                let lossy = Lossy { members: &members, good: &good, parity: &parity, files };
                for wanted in (0..lens.len()).filter(|at| !good[*at]) {
                    let mut bytes = Vec::new();
                    decode(&backend, &lossy, wanted, &mut |part| {
                        bytes.extend_from_slice(part);
                        Ok(())
                    })
                    .unwrap();
                    assert!(bytes == backend.content(members[wanted].pack), "{good:?}, {wanted}");
                }
            }
        }
    }

    /// The code is a part of the format: a version of the crate with other results must not be used.
    #[test]
    fn parity_is_what_it_always_was() {
        let (_, _, parity) = encoded(&[1000, 64, 300], 2);
        let names: Vec<String> =
            parity.iter().map(|bytes| blake3::hash(bytes).to_hex()[..16].to_owned()).collect();
        assert_eq!(names, ["e6d8310adbf6054c", "faf7b616a570d7f5"]);
        let (_, _, parity) = encoded(&[5000; 32], 8);
        assert_eq!(blake3::hash(&parity.concat()).to_hex()[..16], *"c293e02bd2eed786");
        let (_, _, parity) = encoded(&[700], 3);
        assert_eq!(blake3::hash(&parity.concat()).to_hex()[..16], *"06679614f4fa5274");
    }
}
