//! The similarity of files in a series, by chunker; and the rate of reading memory, which nothing
//! passes.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::OnceLock;

use outrigger_format::Fingerprint;
use outrigger_offload::op::WindowSpec;
use outrigger_offload::{name_chunks, window_hash};
use outrigger_workload::Search;

use crate::lab::{Failed, Lab, Scale};

/// StoreGPU's way: a block ends behind each window whose hash has so many low zero bits.
pub fn cut_by_windows(spec: WindowSpec, bits: u32, data: &[u8]) -> Vec<usize> {
    let mut hashes = Vec::new();
    window_hash(spec, data, &mut hashes);
    ends_of(spec, bits, &hashes, data.len())
}

/// The same from given hashes, 4 bytes of each.
pub fn ends_of(spec: WindowSpec, bits: u32, hashes: &[u8], len: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    for (at, hash) in hashes.as_chunks::<4>().0.iter().enumerate() {
        if u32::from_le_bytes(*hash).trailing_zeros() >= bits {
            ends.push(at * spec.step + spec.window);
        }
    }
    if ends.last() != Some(&len) && len > 0 {
        ends.push(len);
    }
    ends
}

/// The mean share of each file's bytes that the file before it has too, in percent; and the mean
/// chunk.
pub fn similarity(files: &[Vec<u8>], cut: impl Fn(&[u8]) -> Vec<usize>) -> (f64, f64) {
    let (mut before, mut shares, mut chunks): (HashSet<Fingerprint>, _, usize) =
        (HashSet::new(), Vec::new(), 0);
    for file in files {
        let named = name_chunks(file, &cut(file));
        let known: usize = named.iter().filter(|(name, _)| before.contains(name)).map(|(_, len)| len).sum();
        shares.push(100.0 * known as f64 / file.len().max(1) as f64);
        chunks += named.len();
        before = named.into_iter().map(|(name, _)| name).collect();
    }
    let later = &shares[1.min(shares.len())..];
    let bytes: usize = files.iter().map(Vec::len).sum();
    (later.iter().sum::<f64>() / later.len().max(1) as f64, bytes as f64 / chunks.max(1) as f64)
}

/// Consecutive images of a computation, with a description: of a BLAST search if `bench/data.sh`
/// took some, else of [`Search`].
///
/// # Errors
/// When existing images cannot be read.
pub fn checkpoints(lab: &Lab) -> Result<(String, Vec<Vec<u8>>), Failed> {
    let cores = lab.data.as_ref().map(|data| data.join("cores"));
    if let Some(cores) = cores.filter(|cores| cores.join("core.1").exists() && lab.scale != Scale::Tiny) {
        let count = lab.scale.pick(0, 5, 8);
        // The first was taken while the search began.
        let read = |n: usize| std::fs::read(cores.join(format!("core.{}", 8 - count + n)));
        let images = (1..=count).map(read).collect::<Result<Vec<_>, _>>()?;
        return Ok((format!("{count} images of a BLAST search (`bench/data.sh`), 8 s apart"), images));
    }
    let (bytes, count) = lab.scale.pick((200_000, 3), (64 << 20, 5), (256 << 20, 8));
    let mut search = Search::new(1, bytes);
    let images = (0..count)
        .map(|_| {
            search.work((bytes / 20_000) as u32);
            search.image()
        })
        .collect();
    Ok((format!("{count} images of a search that `outrigger-workload` makes"), images))
}

/// Bytes a second that all threads read from memory.
pub fn memory_rate(lab: &Lab) -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    let bytes = lab.scale.pick(1 << 20, 256 << 20, 256 << 20);
    *RATE.get_or_init(|| {
        let data = vec![1_u64; bytes / 8];
        let part = data.len() / lab.threads.max(1);
        let sum = |part: &[u64]| black_box(part).iter().fold(0, |a: u64, b| a ^ b);
        let all = || {
            std::thread::scope(|scope| {
                data.chunks(part.max(1)).for_each(|part| drop(scope.spawn(move || black_box(sum(part)))));
            });
        };
        lab.rate(bytes, all).high
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_format::ChunkerSpec;
    use outrigger_offload::cut;
    use outrigger_offload::op::WindowFunction;

    #[test]
    fn contents_are_found_where_blocks_have_moved() {
        let lab = Lab::tiny(std::path::Path::new("."));
        let (_, images) = checkpoints(&lab).unwrap();
        let fixed = ChunkerSpec::parse("fixed:4K").unwrap();
        let gear = ChunkerSpec::parse("gear32:1K/4K/16K").unwrap();
        let (by_blocks, _) = similarity(&images, |data| cut(fixed, data));
        let (by_content, _) = similarity(&images, |data| cut(gear, data));
        assert!(by_content > by_blocks + 30.0, "{by_content} {by_blocks}");
    }

    #[test]
    fn windows_cut_where_they_say() {
        let spec = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 4 };
        let (_, images) = checkpoints(&Lab::tiny(std::path::Path::new("."))).unwrap();
        let ends = cut_by_windows(spec, 9, &images[0]);
        let average = images[0].len() / ends.len();
        assert!((1000..4000).contains(&average), "{average}");
        assert!(ends.is_sorted() && ends.last() == Some(&images[0].len()));
        assert_eq!(cut_by_windows(spec, 9, &[]), [0; 0]);
    }
}
