//! A virtual machine's disk, with extents of text, random data, repeats and holes; then its guest's
//! small writes, which keep coming back to a few hot places, and discards, which punch holes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use crate::text::Text;
use crate::{Rng, about};

const BLOCK: u64 = 4096;

/// The writes that [`vm_image_updates`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUpdates {
    /// Chooses places and bytes.
    pub seed: u64,
    /// How many writes; each covers 1 to 16 blocks of 4 KiB.
    pub writes: u64,
    /// How many of 1000 writes are discards instead: the blocks become a hole.
    pub discards_permille: u64,
}

impl ImageUpdates {
    /// `writes` writes, of which 5 % are discards.
    pub fn new(seed: u64, writes: u64) -> Self {
        Self { seed, writes, discards_permille: 50 }
    }
}

/// Creates the disk image of `seed` at `path`: `len` bytes, about half of them holes; an existing
/// file is replaced.
///
/// # Errors
/// Those of creating and writing the file.
pub fn vm_image(path: &Path, seed: u64, len: u64) -> io::Result<()> {
    let (text, mut rng) = (Text::new(seed), Rng::new(seed));
    let file = File::create(path).map_err(about(path))?;
    file.set_len(len).map_err(about(path))?;
    // (seed of the extent's bytes, blocks, is text): an earlier extent repeats where a guest copied
    // a file.
    let mut made: Vec<(u64, u64, bool)> = Vec::new();
    let mut at = 0;
    while at < len {
        let blocks = rng.between(1, 16) * rng.between(1, 16);
        let kind = rng.below(100);
        let part = rng.next_u64();
        let extent = match kind {
            0..45 => {
                at += blocks * BLOCK;
                continue;
            }
            45..55 if !made.is_empty() => made[rng.index(made.len())],
            55..65 => (part, blocks, false),
            _ => (part, blocks, true),
        };
        made.push(extent);
        let bytes = content(&text, seed, extent);
        let fits = bytes.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        file.write_all_at(&bytes[..fits], at).map_err(about(path))?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// Writes into the image at `path` as its guest would; its length stays. Returns the bytes written.
///
/// # Errors
/// Those of opening and writing the file. Where the file system cannot punch holes,
/// discards write zeros.
pub fn vm_image_updates(path: &Path, updates: &ImageUpdates) -> io::Result<u64> {
    let (text, mut rng) = (Text::new(updates.seed), Rng::part(updates.seed, 1));
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(about(path))?;
    let blocks = file.metadata().map_err(about(path))?.len() / BLOCK;
    let mut written = 0;
    if blocks == 0 {
        return Ok(0);
    }
    let hot: Vec<u64> = (0..64).map(|_| rng.below(blocks)).collect();
    for _ in 0..updates.writes {
        let place =
            if rng.permille(800) { hot[rng.skewed(64) as usize] + rng.below(64) } else { rng.below(blocks) };
        let place = place.min(blocks - 1);
        let count = rng.between(1, 16).min(blocks - place);
        let (start, len) = (place * BLOCK, count * BLOCK);
        if rng.permille(updates.discards_permille) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&file, flags, start, len).is_err() {
                file.write_all_at(&vec![0; len as usize], start).map_err(about(path))?;
            }
        } else {
            let extent = (rng.next_u64(), count, rng.permille(800));
            file.write_all_at(&content(&text, updates.seed, extent), start).map_err(about(path))?;
            written += len;
        }
    }
    Ok(written)
}

fn content(text: &Text, seed: u64, (part, blocks, is_text): (u64, u64, bool)) -> Vec<u8> {
    let (mut rng, len) = (Rng::part(seed, part), (blocks * BLOCK) as usize);
    if is_text {
        return text.bytes(&mut rng, len);
    }
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_image_and_its_updates_never_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let hash = |path: &Path| blake3::hash(&std::fs::read(path).unwrap()).to_hex()[..32].to_owned();
        vm_image(&path, 4, 4 << 20).unwrap();
        assert_eq!(hash(&path), "8cc19c0a848413995d7bb522a12f08e8");
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 4 << 20);
        assert!(meta.blocks() * 512 < 7 * (4 << 20) / 8, "it has holes");
        let written = vm_image_updates(&path, &ImageUpdates::new(5, 40)).unwrap();
        assert!(written >= 30 * BLOCK);
        assert_eq!(hash(&path), "d78c6f3d50cb6b55647875b552682eed");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
    }
}
