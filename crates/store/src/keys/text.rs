//! A key as text: for key files, and for paper.
//!
//! ```text
//! OKEY1-XXXX-XXXX-...     14 groups of 4 digits of Crockford's base 32: 32 bytes of key, 3 of a checksum
//! ```
//!
//! Dashes, spaces and small letters are as in `digits`. Lines that begin with `#` are comments.

use zeroize::Zeroizing;

use super::Key;
use crate::digits;
use crate::error::{Error, ErrorKind, Result};

const PREFIX: &str = "OKEY1";
const BYTES: usize = 35;

fn check_bytes(key: &[u8]) -> [u8; 3] {
    let sum = outrigger_format::checksum(&[b"outrigger key text", key]).to_le_bytes();
    [sum[0], sum[1], sum[2]]
}

/// The text of a key: secret.
pub fn encode(key: &Key) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    bytes[..32].copy_from_slice(key.bytes());
    bytes[32..].copy_from_slice(&check_bytes(key.bytes()));
    digits::encode(PREFIX, &bytes[..])
}

/// The key of a text.
///
/// # Errors
/// `Invalid`, which does not repeat the text.
pub fn decode(text: &str) -> Result<Key> {
    let wrong = |why: &str| Error::new(ErrorKind::Invalid, format!("this is not a key of Outrigger: {why}"));
    let mut digits = Zeroizing::new(String::with_capacity(text.len()));
    text.lines().filter(|line| !line.trim_start().starts_with('#')).for_each(|line| digits.push_str(line));
    let bytes = digits::decode::<BYTES>(PREFIX, &digits).map_err(|why| wrong(&why))?;
    let key = Key::new(*bytes.first_chunk().expect("35 bytes"));
    if bytes[32..] != check_bytes(key.bytes()) {
        return Err(wrong("a digit was mistyped"));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_as_people_write_it() {
        for seed in 0..50 {
            let key = Key::new([seed; 32]).derive("test", &[]);
            let text = encode(&key);
            assert_eq!(text.len(), 5 + 14 * 5);
            assert_eq!(decode(&text).unwrap(), key);
            let sloppy = text.to_lowercase().replace('-', " ").replace('0', "o").replace('1', "l");
            let sloppy = sloppy.replacen("okeyl", "okey1", 1);
            assert_eq!(decode(&format!("# a comment\n{sloppy}\n")).unwrap(), key);
        }
    }

    #[test]
    fn a_mistyped_digit_is_noticed_and_not_repeated() {
        let text = encode(&Key::new([9; 32]));
        for at in (6..text.len()).filter(|at| text.as_bytes()[*at] != b'-') {
            let mut typed = text.as_bytes().to_vec();
            typed[at] = if typed[at] == b'7' { b'8' } else { b'7' };
            let error = decode(std::str::from_utf8(&typed).unwrap()).unwrap_err().to_string();
            assert!(error.contains("mistyped") && !error.contains("-7"), "{error}");
        }
        assert!(decode("").is_err() && decode("OKEY1-0000").is_err());
        assert!(decode(&text.replace("OKEY1", "OKEY2")).is_err());
    }
}
