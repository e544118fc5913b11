//! The source of a benchmark: files that were named, or a mixture. The mixture is the same on every
//! machine, except for this program's own bytes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// The bytes of `paths` in the order in which they are found, with everything below directories, up
/// to `limit` bytes.
///
/// # Errors
/// When a path that was named cannot be read, or when all are empty.
pub fn of_paths(paths: &[PathBuf], limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    for path in paths {
        let error = |error: std::io::Error| Failure::usage(format!("{}: {error}", path.display()));
        let found = std::fs::metadata(path).map_err(error)?;
        if found.is_dir() { append_below(path, limit, &mut bytes) } else { append(path, limit, &mut bytes) }
            .map_err(error)?;
    }
    if bytes.is_empty() {
        return Err(Failure::usage("the given paths have no bytes"));
    }
    Ok(bytes)
}

fn append(path: &Path, limit: u64, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let room = limit.saturating_sub(bytes.len() as u64);
    if room > 0 {
        File::open(path)?.take(room).read_to_end(bytes)?;
    }
    Ok(())
}

/// Everything below a directory, in order of names. Entries that cannot be read are left out.
fn append_below(dir: &Path, limit: u64, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    for path in names {
        if bytes.len() as u64 >= limit {
            break;
        }
        let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
        let _ = if found.is_dir() {
            append_below(&path, limit, bytes)
        } else if found.is_file() {
            append(&path, limit, bytes)
        } else {
            Ok(())
        };
    }
    Ok(())
}

/// A mixture: one third code (this program), then log lines, floating-point numbers, counters,
/// noise and zeros.
pub fn mixture(limit: u64) -> Vec<u8> {
    let len = limit as usize;
    let mut bytes = Vec::with_capacity(len);
    if let Ok(own) = std::env::current_exe() {
        let _ = append(&own, limit / 3, &mut bytes);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut number = 0u64;
    let step = 256 << 10;
    for kind in (0..5).cycle() {
        let end = (bytes.len() + step).min(len);
        while bytes.len() < end {
            number += random() % 7;
            match kind {
                0 => {
                    let (host, code) = (random() % 40, [200, 200, 200, 304, 404, 500][random() as usize % 6]);
                    let line = format!("{number:012} host{host:02} GET /items/{} {code}\n", random() % 5000);
                    bytes.extend_from_slice(line.as_bytes());
                }
                1 => {
                    let value = (random() % 1_000_000) as f32 / 1_000_000.0 - 0.5;
                    bytes.extend_from_slice(&value.to_le_bytes());
                }
                2 => bytes.extend_from_slice(&number.to_le_bytes()),
                3 => bytes.extend_from_slice(&random().to_le_bytes()),
                _ => bytes.extend_from_slice(&[0; 64]),
            }
        }
        if bytes.len() >= len {
            break;
        }
    }
    bytes.truncate(len);
    bytes
}
