//! A sample of a frame's bytes, which shows whether the frame looks random, and whether it consists
//! of elements of two, four or eight bytes.
//!
//! It is a histogram for each position modulo 8, over 4 KiB in 64 stretches. The sums of these
//! answer all questions. A sample takes a few microseconds, while compressing a frame takes a
//! millisecond.

use std::sync::LazyLock;

/// The sampled bytes, in stretches of [`STRETCH`] that are spread evenly.
const SAMPLE: usize = 4096;
const STRETCH: usize = 64;

/// Smaller frames compress quickly, so they get no sample.
const SMALL: usize = 4 * SAMPLE;

/// Counts of byte values, by position modulo 8.
pub(crate) struct Sample {
    counts: [[u16; 256]; 8],
}

/// n · log2(n), for entropies of small counts without logarithms.
static N_LOG_N: LazyLock<Vec<f32>> =
    LazyLock::new(|| (0..=SAMPLE).map(|n| if n < 2 { 0.0 } else { n as f32 * (n as f32).log2() }).collect());

impl Sample {
    /// Samples `data`. `None` if it is too short.
    pub(crate) fn take(data: &[u8]) -> Option<Self> {
        if data.len() < SMALL {
            return None;
        }
        let mut counts = [[0u16; 256]; 8];
        // A multiple of 8, so that all stretches begin at the same position of an element.
        let step = ((data.len() - STRETCH) / (SAMPLE / STRETCH - 1)) & !7;
        for stretch in 0..SAMPLE / STRETCH {
            for eight in data[stretch * step..][..STRETCH].chunks_exact(8) {
                for (counts, &byte) in counts.iter_mut().zip(eight) {
                    counts[byte as usize] += 1;
                }
            }
        }
        Some(Self { counts })
    }

    /// True if the byte values are spread as evenly as random ones, as in most encrypted and
    /// compressed data. The data may still repeat itself, so a cheap try should follow.
    pub(crate) fn looks_random(&self) -> bool {
        // For random bytes, the sum of squares is SAMPLE²/256 + SAMPLE = 69,632 with a deviation of
        // 360 (chi-square with 255 degrees of freedom). Output of deflate and xz had 69,000 to
        // 73,000, and text and code had 390,000 and more.
        (0..256).map(|byte| self.count(byte, 1, 0).pow(2)).sum::<u32>() < 76_000
    }

    /// The entropy of the byte values, at most 8 bits a byte.
    pub(crate) fn bits(&self) -> f32 {
        self.entropy(1)
    }

    /// The number of bytes with value `byte` at positions that are `class` modulo `width` (1, 2, 4
    /// or 8).
    pub(crate) fn count(&self, byte: usize, width: usize, class: usize) -> u32 {
        self.counts.iter().skip(class).step_by(width).map(|counts| u32::from(counts[byte])).sum()
    }

    /// The element width whose positions have the most predictable bytes, and the bits per byte
    /// that it saves against counting all bytes together. `None` if no width saves a quarter of a
    /// bit.
    pub(crate) fn element_width(&self) -> Option<(usize, f32)> {
        let whole = self.entropy(1);
        let mut best: Option<(usize, f32)> = None;
        for width in [2, 4, 8] {
            let gain = whole - self.entropy(width);
            // A wider element must save more, as every multiple of the true width looks as good,
            // apart from noise.
            if gain > best.map_or(0.25, |(_, best)| best + 0.1) {
                best = Some((width, gain));
            }
        }
        best
    }

    /// Bits per byte if each position modulo `width` has its own code. Corrected for small samples
    /// (Miller and Madow).
    fn entropy(&self, width: usize) -> f32 {
        let (table, total) = (&*N_LOG_N, SAMPLE / width);
        let mut bits = 0.0;
        for class in 0..width {
            let (mut sum, mut seen) = (0.0, 0);
            for byte in 0..256 {
                let count = self.count(byte, width, class) as usize;
                sum += table[count];
                seen += usize::from(count > 0);
            }
            let bias = (seen.max(1) - 1) as f32 / (2.0 * total as f32 * std::f32::consts::LN_2);
            bits += (total as f32).log2() - sum / total as f32 + bias;
        }
        bits / width as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that do not repeat.
    fn noise(len: usize) -> impl Iterator<Item = u64> {
        let mut state = 7u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
        .take(len)
    }

    #[test]
    fn columns_are_told_from_text_and_noise() {
        let sample = |bytes: &[u8]| Sample::take(bytes).expect("large enough");
        let random: Vec<u8> = noise(20_000).flat_map(u64::to_le_bytes).collect();
        assert!(sample(&random).looks_random());
        assert_eq!(sample(&random).element_width(), None);
        // The period is 31 bytes, as an even one would form columns.
        let text = b"a quick brown fox, a lazy dog. ".repeat(6000);
        assert!(!sample(&text).looks_random());
        assert_eq!(sample(&text).element_width(), None);
        let width = |bytes: Vec<u8>| sample(&bytes).element_width().map(|(width, _)| width);
        let float = |bits: u64| f32::from_bits(0x3f80_0000 | (bits as u32 & 0x007f_ffff)) - 1.5;
        assert_eq!(width(noise(40_000).flat_map(|bits| float(bits).to_le_bytes()).collect()), Some(4));
        let short = |bits: u64| ((float(bits).to_bits() >> 16) as u16).to_le_bytes();
        assert_eq!(width(noise(40_000).flat_map(short).collect()), Some(2));
        assert_eq!(width(noise(40_000).flat_map(|bits| (bits >> 40).to_le_bytes()).collect()), Some(8));
    }

    #[test]
    fn little_data_has_no_sample() {
        assert!(Sample::take(&[0; SMALL - 1]).is_none());
        assert!(Sample::take(&[0; SMALL]).is_some());
    }
}
