//! Does data look random? A histogram of a few of its bytes decides whether a costly codec is worth a try.

/// Bytes looked at, in stretches of [`STRETCH`] spread evenly.
const SAMPLE: usize = 4096;
const STRETCH: usize = 64;

/// Below this, codecs are quick enough anyway.
const SMALL: usize = 4 * SAMPLE;

/// Whether a sample's byte values are spread as evenly as random ones: encrypted and compressed data, mostly. It may still
/// repeat itself, so a "yes" asks for a cheap try, not for giving up.
pub(super) fn looks_random(data: &[u8]) -> bool {
    if data.len() < SMALL {
        return false;
    }
    let mut counts = [0u32; 256];
    let step = (data.len() - STRETCH) / (SAMPLE / STRETCH - 1);
    for stretch in 0..SAMPLE / STRETCH {
        for &byte in &data[stretch * step..][..STRETCH] {
            counts[byte as usize] += 1;
        }
    }
    // For random bytes, the sum of squares is SAMPLE²/256 + SAMPLE = 69,632 with a deviation of 360 (chi-square with 255
    // degrees of freedom). What deflate and xz wrote came to 69,000 to 73,000, text and code to
    // 390,000 and more.
    counts.iter().map(|&count| count * count).sum::<u32>() < 76_000
}
