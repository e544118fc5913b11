//! Genomic reads in the formats of sequencers and of aligners: FASTQ, and SAM with its header.

use std::io::{self, Write};

use crate::Rng;

/// Letters of a read.
const READ: usize = 100;

/// The formats of [`reads`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFormat {
    /// Four lines per read.
    Fastq,
    /// Aligned to one reference of a million letters, in the order of the sequencer.
    Sam,
}

/// Writes `count` reads of 100 letters from a genome of a million. Their qualities stay the same
/// for a while, as real ones do.
///
/// # Errors
/// Those of `out`.
pub fn reads(seed: u64, count: u64, format: ReadFormat, out: &mut dyn Write) -> io::Result<()> {
    const GENOME: usize = 1_000_000;
    let mut genome = vec![0; GENOME];
    Rng::part(seed, 1).fill(&mut genome);
    genome.iter_mut().for_each(|letter| *letter = b"ACGT"[usize::from(*letter & 3)]);
    let mut rng = Rng::part(seed, 2);
    if format == ReadFormat::Sam {
        writeln!(out, "@HD\tVN:1.6\tSO:unsorted\n@SQ\tSN:chr1\tLN:{GENOME}")?;
    }
    let (mut letters, mut qualities) = ([0; READ], [b'I'; READ]);
    for number in 0..count {
        let start = rng.index(GENOME - READ);
        letters.copy_from_slice(&genome[start..start + READ]);
        if rng.permille(300) {
            letters[rng.index(READ)] = b"ACGT"[rng.index(4)];
        }
        let (mut quality, mut left) = (b'I', 0);
        for place in &mut qualities {
            if left == 0 {
                (quality, left) = (b'I' - rng.skewed(24) as u8, rng.between(1, 40));
            }
            (*place, left) = (quality, left - 1);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = format!("SIM:1:FC1:{}:{}:{}", number / 10_000, number / 100 % 100, number % 100);
        let (letters, qualities) = (text(&letters), text(&qualities));
        match format {
            ReadFormat::Fastq => writeln!(out, "@{name}\n{letters}\n+\n{qualities}")?,
            ReadFormat::Sam => {
                let place = start + 1;
                writeln!(out, "{name}\t0\tchr1\t{place}\t60\t{READ}M\t*\t0\t0\t{letters}\t{qualities}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(format: ReadFormat) -> String {
        let mut out = Vec::new();
        reads(1, 1000, format, &mut out).unwrap();
        blake3::hash(&out).to_hex().as_str()[..32].to_string()
    }

    #[test]
    fn the_reads_of_a_seed_never_change() {
        assert_eq!(hash(ReadFormat::Fastq), "91dc66d90c4ed69185c214742536c2f9");
        assert_eq!(hash(ReadFormat::Sam), "b36644915961758a0bc4cc3afabf08da");
    }
}
