//! The vector of 32-bit words, one for each lane, that the hash functions need.
//!
//! All methods are `inline(always)`, and so are all their callers up to the entry points of
//! `avx2.rs`, `avx512.rs` and `neon.rs`, which enable the instructions. So the generic code of
//! `function.rs` is compiled once for each of them. Closures must not take vectors, as they would
//! be compiled without the instructions.

/// `N` lanes of 32 bits. Values exist only inside functions that are compiled for the vector's
/// instructions.
pub(super) trait Vector<const N: usize>: Copy {
    /// The same word in every lane.
    fn splat(word: u32) -> Self;
    /// Lane `n` from `words[n]`.
    fn load(words: &[u32; N]) -> Self;
    /// Lane `n` to `words[n]`.
    fn store(self, words: &mut [u32; N]);
    /// Word `w` of each lane's block in vector `w`.
    fn transposed(blocks: &[&[u8; 64]; N]) -> [Self; 16];
    /// Prefetches a block.
    fn prefetch(block: &[u8; 64]);
    /// Lane `n` from bytes `4n..4n + 4` of `bytes`, which has `4N` at least.
    fn adjacent(bytes: &[u8]) -> Self;
    /// Lane `n` from bytes `n..n + 4` of `bytes`, which has [`sliding_len`] at least.
    fn sliding(bytes: &[u8]) -> Self;
    /// The bytes of each lane in reverse.
    fn swap_bytes(self) -> Self;
    /// Sums modulo 2^32.
    fn add(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn xor3(self, b: Self, c: Self) -> Self;
    /// `yes` where this has ones, else `no`. Faster if `yes` and `no` are known before this value.
    fn select(self, yes: Self, no: Self) -> Self;
    /// The same, faster if `yes` is known last.
    fn select_late(self, yes: Self, no: Self) -> Self;
    /// The majority, bit by bit.
    fn majority(self, b: Self, c: Self) -> Self;
    /// `c ^ (self | !d)`: the last of MD5's functions.
    fn md5_last(self, c: Self, d: Self) -> Self;
    /// Rotated left by `L`; `R` is 32 − `L`.
    fn rotate<const L: i32, const R: i32>(self) -> Self;
    /// Shifted right by `R`.
    fn shift_right<const R: u32>(self) -> Self;
}

/// The bytes that [`Vector::sliding`] reads for `lanes`. It uses a little less.
pub(super) const fn sliding_len(lanes: usize) -> usize {
    lanes + 16
}

/// Two vectors as one with twice the lanes. The instructions of one hide the latency of the
/// other's.
#[derive(Clone, Copy)]
pub(super) struct Pair<V>(V, V);

macro_rules! pair {
    ($half:literal, $whole:literal) => {
        impl<V: Vector<$half>> Vector<$whole> for Pair<V> {
            #[inline(always)]
            fn splat(word: u32) -> Self {
                Self(V::splat(word), V::splat(word))
            }
            #[inline(always)]
            fn load(words: &[u32; $whole]) -> Self {
                let [a, b] = halves(words);
                Self(V::load(a), V::load(b))
            }
            #[inline(always)]
            fn store(self, words: &mut [u32; $whole]) {
                let (a, b) = words.split_at_mut($half);
                self.0.store(a.try_into().expect("half"));
                self.1.store(b.try_into().expect("half"));
            }
            #[inline(always)]
            fn transposed(blocks: &[&[u8; 64]; $whole]) -> [Self; 16] {
                let [a, b] = halves(blocks);
                let (a, b) = (V::transposed(a), V::transposed(b));
                let mut both = [Self(a[0], b[0]); 16];
                let mut word = 1;
                while word < 16 {
                    both[word] = Self(a[word], b[word]);
                    word += 1;
                }
                both
            }
            #[inline(always)]
            fn prefetch(block: &[u8; 64]) {
                V::prefetch(block);
            }
            #[inline(always)]
            fn adjacent(bytes: &[u8]) -> Self {
                Self(V::adjacent(bytes), V::adjacent(&bytes[4 * $half..]))
            }
            #[inline(always)]
            fn sliding(bytes: &[u8]) -> Self {
                Self(V::sliding(bytes), V::sliding(&bytes[$half..]))
            }
            #[inline(always)]
            fn swap_bytes(self) -> Self {
                Self(self.0.swap_bytes(), self.1.swap_bytes())
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self(self.0.add(other.0), self.1.add(other.1))
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                Self(self.0.and(other.0), self.1.and(other.1))
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                Self(self.0.or(other.0), self.1.or(other.1))
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                Self(self.0.xor(other.0), self.1.xor(other.1))
            }
            #[inline(always)]
            fn xor3(self, b: Self, c: Self) -> Self {
                Self(self.0.xor3(b.0, c.0), self.1.xor3(b.1, c.1))
            }
            #[inline(always)]
            fn select(self, yes: Self, no: Self) -> Self {
                Self(self.0.select(yes.0, no.0), self.1.select(yes.1, no.1))
            }
            #[inline(always)]
            fn select_late(self, yes: Self, no: Self) -> Self {
                Self(self.0.select_late(yes.0, no.0), self.1.select_late(yes.1, no.1))
            }
            #[inline(always)]
            fn majority(self, b: Self, c: Self) -> Self {
                Self(self.0.majority(b.0, c.0), self.1.majority(b.1, c.1))
            }
            #[inline(always)]
            fn md5_last(self, c: Self, d: Self) -> Self {
                Self(self.0.md5_last(c.0, d.0), self.1.md5_last(c.1, d.1))
            }
            #[inline(always)]
            fn rotate<const L: i32, const R: i32>(self) -> Self {
                Self(self.0.rotate::<L, R>(), self.1.rotate::<L, R>())
            }
            #[inline(always)]
            fn shift_right<const R: u32>(self) -> Self {
                Self(self.0.shift_right::<R>(), self.1.shift_right::<R>())
            }
        }
    };
}

pair!(4, 8);
pair!(8, 16);
pair!(16, 32);

/// An array in two halves.
#[inline(always)]
fn halves<T, const HALF: usize, const WHOLE: usize>(whole: &[T; WHOLE]) -> [&[T; HALF]; 2] {
    let (a, b) = whole.split_at(HALF);
    [a.try_into().expect("half"), b.try_into().expect("half")]
}
