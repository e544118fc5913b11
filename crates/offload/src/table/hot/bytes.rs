//! The saved form of the counters:
//!
//! ```text
//!   0  8  magic "OUTRHOT\0"
//!   8  4  version = 1
//!  12  4  reserved, 0
//!  16  8  counters C
//!  24 56C fingerprint (32), place, count and error of each, the hottest first
//!  ..  8  checksum of all before it
//! ```
//!
//! It is a cache: bytes that are incomplete or damaged are dropped, not repaired.

use outrigger_format::{Fingerprint, checksum};

use super::{Hot, LoadError};

const MAGIC: &[u8; 8] = b"OUTRHOT\0";
const VERSION: u32 = 1;
const HEADER: usize = 24;
const COUNTER: usize = 56;
const SUM: usize = 8;

/// Appends the counters to `out`.
pub(super) fn write(counters: &[Hot], out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(HEADER + counters.len() * COUNTER + SUM);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(counters.len() as u64).to_le_bytes());
    for Hot { fingerprint, place, count, error } in counters {
        out.extend_from_slice(&fingerprint.0);
        [place, count, error].into_iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }
    let sum = checksum(&[&out[start..]]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Reads the counters.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Hot>, LoadError> {
    if bytes.first_chunk() != Some(MAGIC) {
        return Err(LoadError::Magic);
    }
    let version = u32::from_le_bytes(*bytes[8..].first_chunk().ok_or(LoadError::Damaged)?);
    if version != VERSION {
        return Err(LoadError::Version(version));
    }
    let (covered, sum) = bytes.split_last_chunk::<SUM>().ok_or(LoadError::Damaged)?;
    if covered.len() < HEADER || checksum(&[covered]) != u64::from_le_bytes(*sum) {
        return Err(LoadError::Damaged);
    }
    let (header, counters) = covered.split_at(HEADER);
    let (counters, rest) = counters.as_chunks::<COUNTER>();
    if !rest.is_empty() || header[16..24] != (counters.len() as u64).to_le_bytes() {
        return Err(LoadError::Damaged);
    }
    let read = |counter: &[u8; COUNTER]| {
        let mut fingerprint = Fingerprint([0; 32]);
        fingerprint.0.copy_from_slice(&counter[..32]);
        let [place, count, error] = [32, 40, 48].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&counter[at..at + 8]);
            u64::from_le_bytes(word)
        });
        Hot { fingerprint, place, count, error }
    };
    Ok(counters.iter().map(read).collect())
}
