//! BLAKE3 of many chunks side by side.
//!
//! BLAKE3 is a tree over leaves of 1 KiB. The `blake3` crate hashes as many leaves at once as a
//! vector has lanes, 16 with AVX-512 and 4 with NEON. The leaves of one small chunk do not fill these lanes, so
//! this module fills them from all chunks. It hashes leaves together that have the same number in
//! their chunks (the number is part of the hash), and so the parents of one level. Only a chunk's
//! last leaf, which is seldom whole, is hashed alone.
//!
//! This uses the crate's `platform` module, which is public but not documented, hence the exact
//! version in `Cargo.toml`. The specification is <https://github.com/BLAKE3-team/BLAKE3-specs>;
//! sections 2.1 and 2.5 define leaves and parents.

use std::ops::Range;

use blake3::IncrementCounter;
use blake3::platform::Platform;
use outrigger_format::Fingerprint;

use super::scratch;

const LEAF: usize = 1024;
const BLOCK: usize = 64;
/// A chunk's leaves are hashed in whole groups of this many. The rest is joined with other chunks'
/// leaves.
const GROUP: usize = 16;

const IV: [u32; 8] =
    [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A, 0x510E_527F, 0x9B05_688C, 0x1F83_D9AB, 0x5BE0_CD19];
const LEAF_START: u8 = 1 << 0;
const LEAF_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;

/// The hash of a subtree.
type Value = [u8; 32];

/// A chunk whose tree is not yet reduced to its root.
struct Tree {
    /// Which chunk.
    chunk: usize,
    /// Where the values of its present level begin, and their number.
    first: usize,
    count: usize,
}

/// A whole leaf that is hashed with other chunks' leaves: its start in the data, and the position
/// of its value.
type InlineChunks = (usize, usize);

/// A thread's reusable memory.
#[derive(Default)]
pub(super) struct Scratch {
    trees: Vec<Tree>,
    values: Vec<Value>,
    made: Vec<Value>,
    /// Leaf `n` of each chunk that has more leaves than whole groups.
    inline: [Vec<InlineChunks>; GROUP],
}

/// The inputs of one call of the platform: whole vectors of any width.
const TOGETHER: usize = 4 * GROUP;

/// Appends the fingerprint of each of `data`'s `ranges` to `out`, in their order.
pub(super) fn hash(data: &[u8], ranges: impl Iterator<Item = Range<usize>>, out: &mut Vec<Fingerprint>) {
    scratch::with(|scratch| hash_in(&mut scratch.blake3, data, ranges, out));
}

fn hash_in(
    scratch: &mut Scratch,
    data: &[u8],
    ranges: impl Iterator<Item = Range<usize>>,
    out: &mut Vec<Fingerprint>,
) {
    let platform = Platform::detect();
    let Scratch { trees, values, made, inline } = scratch;
    trees.clear();
    values.clear();
    inline.iter_mut().for_each(Vec::clear);
    for range in ranges {
        let (chunk, begin) = (&data[range.clone()], range.start);
        if chunk.len() <= LEAF {
            out.push(Fingerprint(*blake3::hash(chunk).as_bytes()));
            continue;
        }
        let first = values.len();
        let (leaves, rest) = chunk.as_chunks::<LEAF>();
        let count = leaves.len() + usize::from(!rest.is_empty());
        trees.push(Tree { chunk: out.len(), first, count });
        out.push(Fingerprint([0; 32]));
        values.resize(first + count, [0; 32]);
        let (front, groups) = leaves.split_at(leaves.len() % GROUP);
        for (n, inline) in inline.iter_mut().enumerate().take(front.len()) {
            inline.push((begin + n * LEAF, first + n));
        }
        let outs = values[first + front.len()..first + leaves.len()].chunks_mut(TOGETHER);
        for ((leaves, values), number) in
            groups.chunks(TOGETHER).zip(outs).zip((front.len()..).step_by(TOGETHER))
        {
            hash_inputs(platform, leaves.iter(), number as u64, IncrementCounter::Yes, LEAF_FLAGS, values);
        }
        if !rest.is_empty() {
            values[first + leaves.len()] = last_leaf(platform, rest, leaves.len() as u64);
        }
    }
    for (number, inline) in (0..).zip(inline) {
        for inline in inline.chunks(TOGETHER) {
            let mut made = [[0; 32]; TOGETHER];
            let leaves = inline.iter().filter_map(|&(at, _)| data[at..].first_chunk::<LEAF>());
            let made = &mut made[..inline.len()];
            hash_inputs(platform, leaves, number, IncrementCounter::No, LEAF_FLAGS, made);
            inline.iter().zip(made).for_each(|(&(_, place), value)| values[place] = *value);
        }
    }
    while !trees.is_empty() {
        // If two values are left, their parent is the root, which is hashed with a flag of its own.
        let is_root = |tree: &&Tree| tree.count == 2;
        parents(platform, trees.iter().filter(is_root), values, PARENT | ROOT, made);
        let roots = trees.iter().filter(is_root).zip(&*made);
        roots.for_each(|(tree, value)| out[tree.chunk] = Fingerprint(*value));
        trees.retain(|tree| tree.count != 2);
        parents(platform, trees.iter(), values, PARENT, made);
        let mut next = made.iter();
        for Tree { first, count, .. } in trees.iter_mut() {
            let pairs = *count / 2;
            values[*first..*first + pairs].iter_mut().zip(&mut next).for_each(|(value, made)| *value = *made);
            if *count % 2 == 1 {
                // A value without a sibling goes up unchanged.
                values[*first + pairs] = values[*first + *count - 1];
            }
            *count = count.div_ceil(2);
        }
    }
}

/// Computes the parents of the pairs of values of `trees` into `made`.
fn parents<'a>(
    platform: Platform,
    trees: impl Iterator<Item = &'a Tree> + Clone,
    values: &[Value],
    flags: u8,
    made: &mut Vec<Value>,
) {
    made.resize(trees.clone().map(|tree| tree.count / 2).sum(), [0; 32]);
    let mut pairs = trees.flat_map(|tree| {
        values[tree.first..tree.first + tree.count / 2 * 2].as_flattened().as_chunks::<BLOCK>().0
    });
    for made in made.chunks_mut(TOGETHER) {
        let count = made.len();
        let flags = Flags { all: flags, start: 0, end: 0 };
        hash_inputs(platform, pairs.by_ref().take(count), 0, IncrementCounter::No, flags, made);
    }
}

/// Marks which part of the tree the inputs are. `start` and `end` apply to their first and last
/// blocks.
#[derive(Clone, Copy)]
struct Flags {
    all: u8,
    start: u8,
    end: u8,
}

const LEAF_FLAGS: Flags = Flags { all: 0, start: LEAF_START, end: LEAF_END };

/// The values of as many inputs as `made` has room for, at most [`TOGETHER`].
fn hash_inputs<'a, const N: usize>(
    platform: Platform,
    inputs: impl Iterator<Item = &'a [u8; N]>,
    number: u64,
    counting: IncrementCounter,
    flags: Flags,
    made: &mut [Value],
) {
    let mut inputs = inputs;
    let Some(first) = inputs.next() else { return };
    let (mut list, mut count) = ([first; TOGETHER], 1);
    for (place, input) in list[1..].iter_mut().zip(inputs) {
        *place = input;
        count += 1;
    }
    debug_assert_eq!(count, made.len(), "as many inputs as values");
    let Flags { all, start, end } = flags;
    platform.hash_many(&list[..count], &IV, number, counting, all, start, end, made.as_flattened_mut());
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

    /// The crate decides when it is built whether it has NEON at all.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    #[test]
    fn leaves_are_hashed_by_neon() {
        assert_eq!(Platform::detect().simd_degree(), 4);
    }

    fn compare(lengths: &[usize]) {
        let data = data(lengths.iter().sum());
        let (mut end, mut ranges) = (0, Vec::new());
        for &len in lengths {
            ranges.push(end..end + len);
            end += len;
        }
        let mut got = vec![Fingerprint([7; 32])];
        hash(&data, ranges.iter().cloned(), &mut got);
        let of = |range: &Range<usize>| Fingerprint(*blake3::hash(&data[range.clone()]).as_bytes());
        let wanted: Vec<Fingerprint> = ranges.iter().map(of).collect();
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
