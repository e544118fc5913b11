//! An attempt's standard error, kept within bounds: its beginning and its end.

use std::collections::VecDeque;
use std::io::Read;

/// Bytes kept of the beginning, and of the end.
const KEPT: usize = 32 << 10;

/// Reads all, keeps some.
pub(super) fn keep(mut stream: impl Read) -> Vec<u8> {
    let (mut head, mut tail, mut dropped) = (Vec::new(), VecDeque::<u8>::new(), 0u64);
    let mut buffer = [0; 8192];
    loop {
        let len = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let (first, rest) = buffer[..len].split_at(len.min(KEPT - head.len()));
        head.extend_from_slice(first);
        tail.extend(rest);
        let over = tail.len().saturating_sub(KEPT);
        dropped += over as u64;
        tail.drain(..over);
    }
    if dropped > 0 {
        head.extend_from_slice(format!("\n[{dropped} bytes left out]\n").as_bytes());
    }
    head.extend(tail);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_ends() {
        assert_eq!(keep(&b"short"[..]), b"short");
        let long: Vec<u8> = (0..1 << 20).map(|at: u32| b'a' + (at % 26) as u8).collect();
        let kept = keep(&long[..]);
        assert!(kept.len() < 2 * KEPT + 100);
        assert!(kept.starts_with(&long[..KEPT]) && kept.ends_with(&long[long.len() - KEPT..]));
        assert!(String::from_utf8_lossy(&kept).contains("[983040 bytes left out]"));
    }
}
