//! Hashes sliding windows, as many neighbours at once as there are lanes. All have one length,
//! hence the same padding.
//!
//! Word `w` of the windows' blocks is loaded straight into a vector if the step allows it. With a
//! step of 4, words of neighbours are adjacent. With a step of 1, they overlap, and a shuffle
//! spreads them. For other steps, each window's blocks are loaded whole and transposed. Loads may
//! reach beyond a window, but never beyond the data, so the caller does the last few windows.
#![allow(
    clippy::needless_range_loop,
    reason = "vectors are indexed by number: closures would be compiled without their instructions"
)]

use super::function::{Function, digest};
use super::vector::{Vector, sliding_len};
use crate::op::WindowSpec;

/// The windows of a buffer.
pub(super) struct Windows<'a> {
    data: &'a [u8],
    window: usize,
    step: usize,
    keep: usize,
    /// Blocks that a window fills entirely.
    whole: usize,
    /// For the one or two blocks after them: the bits of each word that belong to the window, and
    /// the padding.
    masks: [[u32; 16]; 2],
    padding: [[u32; 16]; 2],
    /// Blocks of a window, padding included.
    blocks: usize,
}

impl<'a> Windows<'a> {
    /// `spec` must be valid.
    pub fn new<F: Function<W>, const W: usize>(spec: &WindowSpec, data: &'a [u8]) -> Self {
        let WindowSpec { window, step, keep, .. } = *spec;
        let (whole, rest) = (window / 64, window % 64);
        let (mut masks, mut padding) = ([[0; 64]; 2], [[0; 64]; 2]);
        masks[0][..rest].fill(0xff);
        let zeros = [0; 64];
        let last = super::function::tail::<F, W>(&zeros[..rest], window as u64, &mut padding);
        let words = |blocks: [[u8; 64]; 2]| {
            blocks.map(|block| {
                let mut words = [0; 16];
                for (word, &bytes) in words.iter_mut().zip(block.as_chunks().0) {
                    *word = if F::BIG_ENDIAN { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
                }
                words
            })
        };
        let blocks = whole + last;
        Self { data, window, step, keep, whole, masks: words(masks), padding: words(padding), blocks }
    }

    /// The number of first groups of `lanes` windows that can be loaded within the data, which has
    /// `count` windows.
    pub fn loadable(&self, lanes: usize, count: usize) -> usize {
        let last_word = (self.window - 1) / 4 * 4;
        let reach = match self.step {
            4 => last_word + 4 * lanes,
            1 => last_word + sliding_len(lanes),
            step => step.saturating_mul(lanes - 1).saturating_add(self.window.next_multiple_of(64)),
        };
        let stride = self.step.saturating_mul(lanes);
        let within = self.data.len().checked_sub(reach).map_or(0, |rest| rest / stride + 1);
        within.min(count / lanes)
    }

    /// Hashes the first `groups` groups of `N` windows, at most [`Windows::loadable`], into `out`.
    #[inline(always)]
    pub fn groups<F: Function<W>, V: Vector<N>, const W: usize, const N: usize>(
        &self,
        groups: usize,
        out: &mut [u8],
    ) {
        for (group, out) in out.chunks_exact_mut(N * self.keep).take(groups).enumerate() {
            let start = group * N * self.step;
            let mut state = [V::splat(0); W];
            for word in 0..W {
                state[word] = V::splat(F::INITIAL[word]);
            }
            for block in 0..self.blocks {
                let mut words = self.words::<V, N>(start, block);
                if F::BIG_ENDIAN {
                    for word in &mut words {
                        *word = word.swap_bytes();
                    }
                }
                if let Some(last) = block.checked_sub(self.whole) {
                    for word in 0..16 {
                        let (mask, padding) = (self.masks[last][word], self.padding[last][word]);
                        words[word] = words[word].and(V::splat(mask)).or(V::splat(padding));
                    }
                }
                state = F::block(state, words);
            }
            let mut made = [[0; N]; W];
            for word in 0..W {
                state[word].store(&mut made[word]);
            }
            put::<F, W, N>(&made, self.keep, out);
        }
    }

    /// The words of one block of `N` windows, the first of which begins at `start`. Bits beyond the
    /// windows may have any value.
    #[inline(always)]
    fn words<V: Vector<N>, const N: usize>(&self, start: usize, block: usize) -> [V; 16] {
        let mut words = [V::splat(0); 16];
        let at = start + 64 * block;
        if 64 * block >= self.window {
            return words;
        }
        match self.step {
            4 => {
                for word in 0..16 {
                    if 64 * block + 4 * word < self.window {
                        words[word] = V::adjacent(&self.data[at + 4 * word..]);
                    }
                }
            }
            1 => {
                for word in 0..16 {
                    if 64 * block + 4 * word < self.window {
                        words[word] = V::sliding(&self.data[at + 4 * word..]);
                    }
                }
            }
            step => {
                const ENOUGH: &str = "checked by `loadable`";
                let mut blocks: [&[u8; 64]; N] = [self.data[at..].first_chunk().expect(ENOUGH); N];
                for lane in 1..N {
                    blocks[lane] = self.data[at + lane * step..].first_chunk().expect(ENOUGH);
                }
                words = V::transposed(&blocks);
            }
        }
        words
    }
}

/// Writes the first `keep` bytes of each lane's digest.
#[inline(always)]
fn put<F: Function<W>, const W: usize, const N: usize>(made: &[[u32; N]; W], keep: usize, out: &mut [u8]) {
    let mut digests = [[0; 32]; N];
    for lane in 0..N {
        let mut state = [0; W];
        for word in 0..W {
            state[word] = made[word][lane];
        }
        digests[lane] = digest::<F, W>(&state);
    }
    // Copies of a constant length are moves, others are calls.
    if keep == 4 {
        for (out, digest) in out.as_chunks_mut::<4>().0.iter_mut().zip(&digests) {
            out.copy_from_slice(&digest[..4]);
        }
    } else if keep == 4 * W {
        for (out, digest) in out.chunks_exact_mut(4 * W).zip(&digests) {
            out.copy_from_slice(&digest[..4 * W]);
        }
    } else {
        for (out, digest) in out.chunks_exact_mut(keep).zip(&digests) {
            out.copy_from_slice(&digest[..keep]);
        }
    }
}
