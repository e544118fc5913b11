//! MD5, SHA-1 and SHA-256 of many messages side by side, one in each lane of a vector.
//!
//! Each of these functions is a chain of dependent steps, so a single message cannot use a wide
//! processor, but sixteen can. All lanes advance together. A round takes as many blocks as every
//! lane still has. When a message ends, its lane continues with the next one, so lanes stay full
//! for messages of any lengths. The last padded block or two of a message come from a copy. Longer
//! messages go first, so that lanes run out at about the same time. If the processor has
//! instructions for the function, the last few messages are finished one after the other.
//!
//! Without suitable vectors (`SimdLevel::Portable`), messages are hashed one by one.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
mod function;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
mod vector;
mod windows;

use function::{Function, Md5, Sha1, Sha256, tail};

use crate::SimdLevel;
use crate::op::{Digest, WindowSpec};

/// The digest of each of `count` messages, in any order. Calls `put(n, digest)` for message `n`,
/// which is `get(n)`. The digest fills the first [`Digest::len`] of the 32 bytes, and the others
/// are zero. `digest` must not be BLAKE3.
pub(super) fn digests<'a>(
    level: SimdLevel,
    digest: Digest,
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    mut put: impl FnMut(usize, [u8; 32]),
) {
    match digest {
        Digest::Md5 => {
            many::<Md5, 4>(level, count, get, |n, state| put(n, function::digest::<Md5, 4>(state)))
        }
        Digest::Sha1 => {
            many::<Sha1, 5>(level, count, get, |n, state| put(n, function::digest::<Sha1, 5>(state)))
        }
        Digest::Sha256 => {
            many::<Sha256, 8>(level, count, get, |n, state| put(n, function::digest::<Sha256, 8>(state)));
        }
        Digest::Blake3 => unreachable!("it has lanes of its own"),
    }
}

/// Hashes the windows of `data` into `out`, which has room for exactly the kept bytes. `digest` is
/// MD5 or SHA-1.
pub(super) fn windows(level: SimdLevel, digest: Digest, spec: &WindowSpec, data: &[u8], out: &mut [u8]) {
    match digest {
        Digest::Md5 => windows_of::<Md5, 4>(level, spec, data, out),
        Digest::Sha1 => windows_of::<Sha1, 5>(level, spec, data, out),
        Digest::Sha256 | Digest::Blake3 => unreachable!("no window is hashed by it"),
    }
}

fn windows_of<F: Function<W>, const W: usize>(
    level: SimdLevel,
    spec: &WindowSpec,
    data: &[u8],
    out: &mut [u8],
) {
    let count = spec.count(data.len());
    debug_assert_eq!(out.len(), count * spec.keep);
    let level = level.min(SimdLevel::detect());
    let done = if lanes_pay::<W>(level) { windows_in_lanes::<F, W>(level, spec, data, out) } else { 0 };
    let out = &mut out[done * spec.keep..];
    let get = |n| &data[(done + n) * spec.step..][..spec.window];
    many::<F, W>(level, count - done, get, |n, state| {
        out[n * spec.keep..][..spec.keep].copy_from_slice(&function::digest::<F, W>(state)[..spec.keep]);
    });
}

/// Hashes the first windows, as many as whole vectors can load, and returns their number. The
/// processor must have the level.
fn windows_in_lanes<F: Function<W>, const W: usize>(
    level: SimdLevel,
    spec: &WindowSpec,
    data: &[u8],
    out: &mut [u8],
) -> usize {
    let windows = windows::Windows::new::<F, W>(spec, data);
    let groups = |lanes| windows.loadable(lanes, spec.count(data.len()));
    match level {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => {
            let groups = groups(avx512::WINDOW_LANES);
            avx512::windows::<F, W>(&windows, groups, out);
            groups * avx512::WINDOW_LANES
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx2Vaes | SimdLevel::Avx2Gfni => {
            let groups = groups(avx2::LANES);
            avx2::windows::<F, W>(&windows, groups, out);
            groups * avx2::LANES
        }
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon | SimdLevel::NeonAes => {
            let groups = groups(neon::LANES);
            neon::windows::<F, W>(&windows, groups, out);
            groups * neon::LANES
        }
        _ => 0,
    }
}

/// The states after all messages.
fn many<'a, F: Function<W>, const W: usize>(
    level: SimdLevel,
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    put: impl FnMut(usize, &[u32; W]),
) {
    let level = level.min(SimdLevel::detect());
    if count > F::FEW && lanes_pay::<W>(level) {
        many_in_lanes::<F, W>(level, count, get, put);
    } else {
        plainly::<F, W>(count, get, put);
    }
}

/// True if the lanes of `level` are faster than the crate, for a function of `W` words of state.
fn lanes_pay<const W: usize>(level: SimdLevel) -> bool {
    match level {
        SimdLevel::Portable => false,
        // A block of SHA-1 takes some 480 instructions for each lane here, one of SHA-256 some 950.
        // With the special instructions the crates take about 100.
        SimdLevel::Neon | SimdLevel::NeonAes => W < 5 || !has_sha(),
        // SHA-256 takes eight rounds of eight shifts for every block here, so the crate with its
        // special instructions is faster.
        SimdLevel::Avx2 | SimdLevel::Avx2Vaes | SimdLevel::Avx2Gfni => W < 8 || !has_sha(),
        SimdLevel::Avx512 => true,
    }
}

/// The states after all messages, which are hashed in the lanes of `level`. The processor must have
/// the level.
fn many_in_lanes<'a, F: Function<W>, const W: usize>(
    level: SimdLevel,
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    mut put: impl FnMut(usize, &[u32; W]),
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 => {
            side_by_side::<F, W, { avx512::LANES }>(avx512::blocks::<F, W>, count, get, &mut put)
        }
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 | SimdLevel::Avx2Vaes | SimdLevel::Avx2Gfni => {
            side_by_side::<F, W, { avx2::LANES }>(avx2::blocks::<F, W>, count, get, &mut put);
        }
        #[cfg(target_arch = "aarch64")]
        SimdLevel::Neon | SimdLevel::NeonAes => {
            side_by_side::<F, W, { neon::LANES }>(neon::blocks::<F, W>, count, get, &mut put);
        }
        _ => plainly::<F, W>(count, get, put),
    }
}

/// True if the processor has instructions for SHA-1 and SHA-256. The crates use them.
fn has_sha() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("sha");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("sha2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Hashes messages one after the other.
fn plainly<'a, F: Function<W>, const W: usize>(
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    mut put: impl FnMut(usize, &[u32; W]),
) {
    let mut last = [[0; 64]; 2];
    for n in 0..count {
        let message = get(n);
        let (blocks, rest) = message.as_chunks();
        let mut state = F::INITIAL;
        F::plain(&mut state, blocks);
        let blocks = tail::<F, W>(rest, message.len() as u64, &mut last);
        F::plain(&mut state, &last[..blocks]);
        put(n, &state);
    }
}

/// The state of a lane.
#[derive(Clone, Copy)]
struct Lane<'a> {
    /// The message's number, if there is one.
    message: Option<usize>,
    /// Its remaining blocks, except the last one or two.
    body: &'a [[u8; 64]],
    /// The last ones are `tails[lane][from..to]`.
    from: usize,
    to: usize,
}

impl Lane<'_> {
    /// Blocks that can be taken without looking.
    fn run(&self) -> usize {
        if self.body.is_empty() { self.to - self.from } else { self.body.len() }
    }
}

/// Hashes `N` messages at a time.
fn side_by_side<'a, F: Function<W>, const W: usize, const N: usize>(
    kernel: impl Fn(&mut [[u32; N]; W], &[&[[u8; 64]]; N]),
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    put: &mut impl FnMut(usize, &[u32; W]),
) {
    super::scratch::with_order(|order| {
        longest_first(count, &get, order);
        let number = |n: usize| order.get(n).map_or(n, |&number| number as usize);
        in_order::<F, W, N>(kernel, count, get, number, put);
    });
}

/// Hashes `N` messages at a time, in the order of `number(0)`, `number(1)`, ...
fn in_order<'a, F: Function<W>, const W: usize, const N: usize>(
    kernel: impl Fn(&mut [[u32; N]; W], &[&[[u8; 64]]; N]),
    count: usize,
    get: impl Fn(usize) -> &'a [u8],
    number: impl Fn(usize) -> usize,
    put: &mut impl FnMut(usize, &[u32; W]),
) {
    let few = if has_sha() || F::FEW == 1 { F::FEW } else { 1 };
    let mut next = 0;
    let mut state = [[0; N]; W];
    let mut tails = [[[0; 64]; 2]; N];
    let mut lanes: [Lane<'a>; N] = [Lane { message: None, body: &[], from: 0, to: 0 }; N];
    loop {
        let mut active = 0;
        for (at, lane) in lanes.iter_mut().enumerate() {
            if lane.message.is_none() && next < count {
                let message = get(number(next));
                let (body, rest) = message.as_chunks();
                let to = tail::<F, W>(rest, message.len() as u64, &mut tails[at]);
                *lane = Lane { message: Some(number(next)), body, from: 0, to };
                state.iter_mut().zip(F::INITIAL).for_each(|(word, initial)| word[at] = initial);
                next += 1;
            }
            active += usize::from(lane.message.is_some());
        }
        if active <= few {
            break;
        }
        let busy = || lanes.iter().filter(|lane| lane.message.is_some());
        let run = busy().map(Lane::run).min().unwrap_or(0);
        // Lanes without a message repeat another lane's blocks, and their results are ignored.
        let spare = busy().find(|lane| !lane.body.is_empty()).map_or(&[][..], |lane| lane.body);
        let spare = lanes
            .iter()
            .zip(&tails)
            .find(|(lane, _)| lane.message.is_some() && lane.body.is_empty())
            .map_or(spare, |(lane, tail)| &tail[lane.from..lane.to]);
        let mut blocks: [&[[u8; 64]]; N] = [&spare[..run]; N];
        for ((blocks, lane), tail) in blocks.iter_mut().zip(&lanes).zip(&tails) {
            if lane.message.is_some() {
                *blocks = if lane.body.is_empty() { &tail[lane.from..][..run] } else { &lane.body[..run] };
            }
        }
        kernel(&mut state, &blocks);
        for (at, lane) in lanes.iter_mut().enumerate() {
            let Some(message) = lane.message else { continue };
            if !lane.body.is_empty() {
                lane.body = &lane.body[run..];
                continue;
            }
            lane.from += run;
            if lane.from == lane.to {
                put(message, &state.each_ref().map(|word| word[at]));
                lane.message = None;
            }
        }
    }
    for (at, lane) in lanes.iter().enumerate() {
        let Some(message) = lane.message else { continue };
        let mut state = state.each_ref().map(|word| word[at]);
        F::plain(&mut state, lane.body);
        F::plain(&mut state, &tails[at][lane.from..lane.to]);
        put(message, &state);
    }
}

/// The messages' numbers by falling length. Empty if they are in that order already, such as
/// messages of one length.
fn longest_first<'a>(count: usize, get: &impl Fn(usize) -> &'a [u8], order: &mut Vec<u32>) {
    let blocks = |n: &u32| std::cmp::Reverse(get(*n as usize).len() / 64);
    let Ok(count) = u32::try_from(count) else { return };
    if (0..count).is_sorted_by_key(|n| blocks(&n)) {
        return;
    }
    order.extend(0..count);
    // Equal lengths are sorted by number, because a stable sort would allocate.
    order.sort_unstable_by_key(|n| (blocks(n), *n));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes in lanes, also where the crate is faster, and one by one.
    fn compare<F: Function<W>, const W: usize>(level: SimdLevel) {
        const COUNT: usize = 70;
        let data: Vec<u8> = (0..1500u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
        let message = |n: usize| &data[n..n + n * n * 7 % 1000];
        let (mut expected, mut got) = ([[0; W]; COUNT], [[0; W]; COUNT]);
        plainly::<F, W>(COUNT, message, |n, state| expected[n] = *state);
        many_in_lanes::<F, W>(level, COUNT, message, |n, state| got[n] = *state);
        assert_eq!(got, expected, "{level}");
        for (window, step) in [(20, 4), (48, 1), (52, 52), (64, 3), (200, 4), (333, 1)] {
            let spec = WindowSpec { function: crate::op::WindowFunction::Sha1, window, step, keep: 4 * W };
            let mut got = vec![0; spec.count(data.len()) * spec.keep];
            let done = windows_in_lanes::<F, W>(level, &spec, &data, &mut got);
            plainly::<F, W>(
                done,
                |n| &data[n * step..][..window],
                |n, state| {
                    let expected = &function::digest::<F, W>(state)[..spec.keep];
                    assert_eq!(&got[n * spec.keep..][..spec.keep], expected, "{level}: {spec:?}, {n}");
                },
            );
            assert!(done > 50 || level == SimdLevel::Portable, "{level}: {spec:?} has {done} in lanes");
        }
    }

    #[test]
    fn lanes_hash_as_the_crates_do() {
        for level in SimdLevel::available() {
            compare::<Md5, 4>(level);
            compare::<Sha1, 5>(level);
            compare::<Sha256, 8>(level);
        }
    }
}
