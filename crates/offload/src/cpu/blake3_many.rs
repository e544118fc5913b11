//! BLAKE3 of many chunks side by side.
//!
//! BLAKE3 is a tree over leaves of 1 KiB, and the `blake3` crate hashes as many of them at once as a vector has lanes, 16
//! with AVX-512. The leaves of one small chunk do not fill those lanes. Here the lanes are filled from all chunks: leaves
//! that have the same number in their chunks are hashed together (the number is part of the hash), and so are the parents
//! of one level. Only the last leaf of a chunk, which is seldom whole, is hashed alone.
//!
//! This uses the crate's `platform` module, which is public but not documented, hence the exact version in `Cargo.toml`.
//! The specification is <https://github.com/BLAKE3-team/BLAKE3-specs>; sections 2.1 and 2.5 define leaves and parents.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use outrigger_format::Fingerprint;

const LEAF: usize = 1024;
const BLOCK: usize = 64;
/// Leaves are hashed in whole groups of this many within a chunk; the rest is left to be joined with other chunks' leaves.
const GROUP: usize = 16;

const IV: [u32; 8] =
    [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A, 0x510E_527F, 0x9B05_688C, 0x1F83_D9AB, 0x5BE0_CD19];
const LEAF_START: u8 = 1 << 0;
const LEAF_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;

/// The hash of a subtree.
type Value = [u8; 32];

/// A chunk whose tree is not reduced to its root yet.
struct Tree {
    /// Which chunk.
    chunk: usize,
    /// Where the values of its present level are, and how many.
    first: usize,
    count: usize,
}

/// Appends the fingerprint of each chunk to `out`, in their order.
pub(super) fn hash<'a>(chunks: impl Iterator<Item = &'a [u8]>, out: &mut Vec<Fingerprint>) {
    let platform = Platform::detect();
    let base = out.len();
    let (mut trees, mut values): (Vec<Tree>, Vec<Value>) = (Vec::new(), Vec::new());
    // Leaf `n` of chunks that have more leaves than whole groups, and where its value goes.
    let mut loose: [(Vec<&[u8; LEAF]>, Vec<usize>); GROUP] = Default::default();
    let mut group = Vec::new();
    for (number, chunk) in chunks.enumerate() {
        if chunk.len() <= LEAF {
            out.push(Fingerprint(*blake3::hash(chunk).as_bytes()));
            continue;
        }
        out.push(Fingerprint([0; 32]));
        let first = values.len();
        let (leaves, rest) = chunk.as_chunks::<LEAF>();
        let count = leaves.len() + usize::from(!rest.is_empty());
        trees.push(Tree { chunk: base + number, first, count });
        values.resize(first + count, [0; 32]);
        let (front, groups) = leaves.split_at(leaves.len() % GROUP);
        for (n, leaf) in front.iter().enumerate() {
            loose[n].0.push(leaf);
            loose[n].1.push(first + n);
        }
        if !groups.is_empty() {
            group.clear();
            group.extend(groups);
            let values = values[first + front.len()..first + leaves.len()].as_flattened_mut();
            let (number, counting) = (front.len() as u64, IncrementCounter::Yes);
            platform.hash_many(&group, &IV, number, counting, 0, LEAF_START, LEAF_END, values);
        }
        if !rest.is_empty() {
            values[first + leaves.len()] = last_leaf(platform, rest, leaves.len() as u64);
        }
    }
    let mut made = Vec::new();
    for (number, (leaves, places)) in (0..).zip(&loose) {
        made.resize(leaves.len(), [0; 32]);
        let (values_made, same) = (made.as_flattened_mut(), IncrementCounter::No);
        platform.hash_many(leaves, &IV, number, same, 0, LEAF_START, LEAF_END, values_made);
        places.iter().zip(&made).for_each(|(&place, value)| values[place] = *value);
    }
    while !trees.is_empty() {
        // Two values left: their parent is the root, which is hashed with a flag of its own.
        let (roots, inner): (Vec<Tree>, Vec<Tree>) = trees.into_iter().partition(|tree| tree.count == 2);
        parents(platform, &roots, &values, PARENT | ROOT, &mut made);
        roots.iter().zip(&made).for_each(|(tree, value)| out[tree.chunk] = Fingerprint(*value));
        parents(platform, &inner, &values, PARENT, &mut made);
        trees = inner;
        let mut next = made.iter();
        for Tree { first, count, .. } in &mut trees {
            let pairs = *count / 2;
            values[*first..*first + pairs].iter_mut().zip(&mut next).for_each(|(value, made)| *value = *made);
            if *count % 2 == 1 {
                // Without a sibling, it goes up as it is.
                values[*first + pairs] = values[*first + *count - 1];
            }
            *count = count.div_ceil(2);
        }
    }
}

/// The parents of the pairs of values of all `trees`, into `made`.
fn parents(platform: Platform, trees: &[Tree], values: &[Value], flags: u8, made: &mut Vec<Value>) {
    let pairs: Vec<&[u8; BLOCK]> = trees
        .iter()
        .flat_map(|tree| values[tree.first..tree.first + tree.count / 2 * 2].as_flattened().as_chunks().0)
        .collect();
    made.resize(pairs.len(), [0; 32]);
    platform.hash_many(&pairs, &IV, 0, IncrementCounter::No, flags, 0, 0, made.as_flattened_mut());
}

/// The value of leaf `number`, which is the last and has 1 to 1024 bytes.
fn last_leaf(platform: Platform, bytes: &[u8], number: u64) -> Value {
    let mut value = IV;
    let blocks = bytes.len().div_ceil(BLOCK);
    for (n, bytes) in bytes.chunks(BLOCK).enumerate() {
        let mut block = [0; BLOCK];
        block[..bytes.len()].copy_from_slice(bytes);
        let start = if n == 0 { LEAF_START } else { 0 };
        let end = if n + 1 == blocks { LEAF_END } else { 0 };
        platform.compress_in_place(&mut value, &block, bytes.len() as u8, number, start | end);
    }
    let mut out = [0; 32];
    out.as_chunks_mut()
        .0
        .iter_mut()
        .zip(value)
        .for_each(|(bytes, word): (&mut [u8; 4], u32)| *bytes = word.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize) -> Vec<u8> {
        let mut state = len as u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    fn compare(lengths: &[usize]) {
        let data = data(lengths.iter().sum());
        let (mut rest, mut chunks) = (&data[..], Vec::new());
        for &len in lengths {
            let (chunk, after) = rest.split_at(len);
            chunks.push(chunk);
            rest = after;
        }
        let mut got = vec![Fingerprint([7; 32])];
        hash(chunks.iter().copied(), &mut got);
        let wanted: Vec<Fingerprint> =
            chunks.iter().map(|chunk| Fingerprint(*blake3::hash(chunk).as_bytes())).collect();
        assert_eq!(got[1..], wanted, "{lengths:?}");
        assert_eq!(got[0], Fingerprint([7; 32]), "what was there stays");
    }

    #[test]
    fn every_length_alone_and_beside_others() {
        compare(&[]);
        let around: Vec<usize> = (0..40)
            .flat_map(|leaves| [-65, -64, -1, 0, 1, 63].map(|by| leaves * 1024 + by))
            .filter_map(|len| usize::try_from(len).ok())
            .collect();
        around.iter().for_each(|&len| compare(&[len]));
        compare(&around);
        compare(&(1..200).map(|n| n * 331).collect::<Vec<_>>());
        compare(&[65536; 9]);
        compare(&[1 << 20, 3, 1 << 16, 0, 1025, (1 << 20) + 1]);
    }
}
