//! The one source of randomness: xoshiro256** seeded through SplitMix64 (Blackman and Vigna, public
//! domain).

/// A small, fast, seeded generator; not for secrets. The same seed gives the same numbers
/// everywhere, for ever.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mix = SplitMix(seed);
        Self { state: [mix.next(), mix.next(), mix.next(), mix.next()] }
    }

    /// An independent generator for part `part` of the work of `seed`: parts can be made in any
    /// order.
    pub fn part(seed: u64, part: u64) -> Self {
        Self::new(SplitMix(seed).next() ^ SplitMix(!part).next())
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0..n`, evenly (to within n / 2^64). 0 for `n == 0`.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// An index into a slice of `len` elements.
    ///
    /// # Panics
    /// If `len` is 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "no index into an empty slice");
        self.below(len as u64) as usize
    }

    /// A number in `low..=high`.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `0..n` that prefers small ones, as a language uses few words often.
    #[inline]
    pub fn skewed(&mut self, n: u64) -> u64 {
        let (a, b) = (u128::from(self.below(n)), u128::from(self.below(n)));
        (a * b / u128::from(n.max(1))) as u64
    }

    /// True in `permille` of 1000 cases.
    #[inline]
    pub fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// Overwrites `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        let mut words = out.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next_u64().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// So many random bytes, which neither repeat nor can be compressed.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_its_published_vectors() {
        let mut mix = SplitMix(1234567);
        let got: Vec<u64> = (0..3).map(|_| mix.next()).collect();
        assert_eq!(got, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn xoshiro_matches_its_published_vectors() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(got, [11520, 0, 1509978240, 1215971899390074240]);
    }

    #[test]
    fn numbers_stay_in_their_ranges() {
        let mut rng = Rng::new(3);
        for _ in 0..10_000 {
            assert!(rng.below(7) < 7);
            assert!(rng.skewed(7) < 7);
            assert!((5..=9).contains(&rng.between(5, 9)));
        }
        assert_eq!(rng.below(0), 0);
        assert!(!rng.permille(0));
        assert!(rng.permille(1000));
    }

    #[test]
    fn fill_covers_any_length() {
        for len in 0..20 {
            let (mut a, mut b) = (vec![0u8; len], vec![0u8; len]);
            Rng::new(9).fill(&mut a);
            Rng::new(9).fill(&mut b);
            assert_eq!(a, b);
            assert!(len < 8 || a.iter().any(|&x| x != 0));
        }
    }
}
