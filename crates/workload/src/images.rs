//! Images of a running process, taken from outside, as for a checkpoint.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::about;

/// Copies the writable memory of process `pid` and its program's constants to `to`, in the order of
/// their addresses; returns the number of bytes. The process should be stopped (`SIGSTOP`). Linux
/// lets a process read its children's memory, and root everybody's.
///
/// # Errors
/// When the process is not there or may not be read, or the file cannot be written.
pub fn process_image(pid: u32, to: &Path) -> io::Result<u64> {
    let maps = format!("/proc/{pid}/maps");
    let maps = std::fs::read_to_string(&maps).map_err(about(Path::new(&maps)))?;
    let name = format!("/proc/{pid}/mem");
    let memory = File::open(&name).map_err(about(Path::new(&name)))?;
    let (out, mut at) = (File::create(to).map_err(about(to))?, 0);
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(mut start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else {
            continue;
        };
        // Readable and private: this leaves out shared libraries' code, which a checkpoint has by
        // name, devices, and the kernel's own mappings.
        let wanted = rest.starts_with("rw-p") || rest.starts_with("r--p");
        if !wanted || rest.contains("[v") {
            continue;
        }
        let mut piece = vec![0; 1 << 20];
        while start < end {
            let length = piece.len().min((end - start) as usize);
            match memory.read_at(&mut piece[..length], start) {
                Ok(0) => break,
                Ok(read) => {
                    out.write_all_at(&piece[..read], at).map_err(about(to))?;
                    (start, at) = (start + read as u64, at + read as u64);
                }
                // Guard pages.
                Err(_) => break,
            }
        }
    }
    Ok(at)
}
