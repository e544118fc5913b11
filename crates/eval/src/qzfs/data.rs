//! Data that is written into a mount: fio's own random bytes and zeros, which all codecs compress
//! alike, and text and genomic reads, which they do not.
//!
//! fio fills its buffers with a pattern of at most 512 bytes, and takes no data from a file. So
//! this process makes text and reads beforehand and writes them in fio's ways: blocks of a size, in
//! sequence or at random, each once, and a sync at the end. fio reads them again.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use outrigger_offload::Compressor;
use outrigger_workload::{ReadFormat, Rng, reads, text};

use super::tiers::codec;
use crate::lab::{Failed, check};
use crate::record::Series;

/// Kinds of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// fio's: each 4 KiB a quarter random, the rest zeros.
    Fio,
    /// Program source.
    Text,
    /// FASTQ.
    Reads,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Self::Fio, Self::Text, Self::Reads];

    /// The name in plots and findings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::Text => "text",
            Self::Reads => "reads",
        }
    }

    /// So many bytes of it. Empty for fio, which makes its own.
    ///
    /// # Errors
    /// None: it is written into memory.
    pub fn make(self, bytes: u64) -> Result<Vec<u8>, Failed> {
        let mut data = Vec::with_capacity(bytes as usize + (1 << 20));
        match self {
            Self::Fio => {}
            Self::Text => text(3, bytes, &mut data)?,
            // A read takes at least 210 bytes.
            Self::Reads => reads(3, bytes / 210 + 1, ReadFormat::Fastq, &mut data)?,
        }
        check(self == Self::Fio || data.len() as u64 >= bytes, format!("{} {self:?}", data.len()))?;
        data.truncate(bytes as usize);
        Ok(data)
    }
}

/// Writes `data` in blocks into a new file, at random or in sequence, and syncs it. Returns bytes
/// per second.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, data: &[u8], block: u64, random: bool) -> Result<f64, Failed> {
    let mut blocks: Vec<usize> = (0..data.len().div_ceil(block as usize)).collect();
    if random {
        let mut rng = Rng::new(11);
        (1..blocks.len()).rev().for_each(|at| blocks.swap(at, rng.index(at + 1)));
    }
    let begun = Instant::now();
    let file = File::create(path)?;
    for at in blocks {
        let start = at * block as usize;
        let end = data.len().min(start + block as usize);
        file.write_all_at(&data[start..end], start as u64)?;
    }
    file.sync_all()?;
    Ok(data.len() as f64 / begun.elapsed().as_secs_f64())
}

/// Fails unless the file has these bytes.
///
/// # Errors
/// [`Failed::Wrong`] with the first place that differs.
pub fn compare(path: &Path, data: &[u8]) -> Result<(), Failed> {
    let file = File::open(path)?;
    check(file.metadata()?.len() == data.len() as u64, "what is read has another length")?;
    let mut room = vec![0; 1 << 20];
    for (at, expected) in data.chunks(room.len()).enumerate() {
        let room = &mut room[..expected.len()];
        file.read_exact_at(room, (at << 20) as u64)?;
        check(room == expected, format!("other bytes are read in MiB {at}"))?;
    }
    Ok(())
}

/// Bytes of the sample for the best ratio.
const SAMPLE: usize = 1 << 20;

/// A ratio that no codec here passes, for each kind: the slowest level of the strongest codec, on a
/// MiB at once.
///
/// # Errors
/// None but those of making the data.
pub fn best_ratios() -> Result<Series, Failed> {
    let mut series = Series::limit("zstd:19, a MiB at once", &[]);
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let data = match kind {
            Kind::Fio => like_fio(SAMPLE),
            _ => kind.make(SAMPLE as u64)?,
        };
        let mut out = Vec::new();
        Compressor::new().compress(codec("zstd:19")?, &data, &mut out);
        series.exact(at as f64, data.len() as f64 / out.len().max(1) as f64);
    }
    Ok(series)
}

/// The bytes in fio's buffers when it makes data that compresses by 75 percent.
pub fn like_fio(bytes: usize) -> Vec<u8> {
    let (mut data, mut rng) = (vec![0; bytes], Rng::new(5));
    data.chunks_mut(4096).for_each(|part| rng.fill(&mut part[..1024]));
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_any_order_is_compared_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for kind in [Kind::Text, Kind::Reads] {
            let data = kind.make(300_001).unwrap();
            for random in [false, true] {
                write(&path, &data, 4096, random).unwrap();
                compare(&path, &data).unwrap();
            }
            let mut other = data.clone();
            other[299_999] ^= 1;
            assert!(compare(&path, &other).unwrap_err().to_string().contains("MiB 0"));
            assert!(compare(&path, &data[1..]).unwrap_err().to_string().contains("length"));
        }
    }

    /// On these, unlike on fio's, each codec has another ratio.
    #[test]
    fn codecs_differ_in_what_they_make_of_text_and_reads() {
        let ratio = |kind: Kind, name: &str| {
            let data = if kind == Kind::Fio { like_fio(SAMPLE) } else { kind.make(SAMPLE as u64).unwrap() };
            let mut out = Vec::new();
            Compressor::new().compress(codec(name).unwrap(), &data, &mut out);
            data.len() as f64 / out.len() as f64
        };
        for kind in [Kind::Text, Kind::Reads] {
            assert!(ratio(kind, "gzip:6") > 1.2 * ratio(kind, "lz4"), "{kind:?}");
            assert!(ratio(kind, "lz4") > 1.2 * ratio(kind, "zle"), "{kind:?}");
        }
        assert!(ratio(Kind::Fio, "gzip:6") < 1.1 * ratio(Kind::Fio, "zle"));
    }
}
