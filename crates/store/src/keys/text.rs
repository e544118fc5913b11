//! A key as text: for key files, and for paper.
//!
//! ```text
//! OKEY1-XXXX-XXXX-...     14 groups of 4 digits of Crockford's base 32: 32 bytes of key, 3 of a checksum
//! ```
//!
//! Digits are read as a person writes them: small letters, `O` for 0, `I` and `L` for 1, and any
//! dashes and spaces. Lines that begin with `#` are comments.

use zeroize::Zeroizing;

use super::Key;
use crate::error::{Error, ErrorKind, Result};

const PREFIX: &str = "OKEY1";
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const BYTES: usize = 35;
const TEXT_DIGITS: usize = BYTES * 8 / 5;

fn check_bytes(key: &[u8]) -> [u8; 3] {
    let sum = outrigger_format::checksum(&[b"outrigger key text", key]).to_le_bytes();
    [sum[0], sum[1], sum[2]]
}

/// The text of a key: secret.
pub fn encode(key: &Key) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new([0; BYTES]);
    bytes[..32].copy_from_slice(key.bytes());
    bytes[32..].copy_from_slice(&check_bytes(key.bytes()));
    let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + TEXT_DIGITS * 5 / 4));
    text.push_str(PREFIX);
    for at in 0..TEXT_DIGITS {
        if at % 4 == 0 {
            text.push('-');
        }
        let digit = (0..5).fold(0, |digit, bit| {
            let bit = at * 5 + bit;
            digit << 1 | usize::from(bytes[bit / 8] >> (7 - bit % 8) & 1)
        });
        text.push(DIGITS[digit].into());
    }
    text
}

/// The key of a text.
///
/// # Errors
/// `Invalid`, which does not repeat the text.
pub fn decode(text: &str) -> Result<Key> {
    let wrong = |why: &str| Error::new(ErrorKind::Invalid, format!("this is not a key of Outrigger: {why}"));
    let mut digits = Zeroizing::new(String::new());
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        digits
            .extend(line.chars().filter(|c| !c.is_whitespace() && *c != '-').map(|c| c.to_ascii_uppercase()));
    }
    let digits = digits.strip_prefix(PREFIX).ok_or_else(|| wrong("it does not begin with OKEY1"))?;
    if digits.len() != TEXT_DIGITS {
        return Err(wrong(&format!("it has {} digits after OKEY1, not {TEXT_DIGITS}", digits.len())));
    }
    let mut bytes = Zeroizing::new([0; BYTES]);
    for (at, digit) in digits.bytes().enumerate() {
        let digit = match digit {
            b'O' => b'0',
            b'I' | b'L' => b'1',
            digit => digit,
        };
        let value = DIGITS.iter().position(|known| *known == digit);
        let value = value.ok_or_else(|| wrong("a character in it is no digit of a key"))?;
        for bit in 0..5 {
            let to = at * 5 + bit;
            bytes[to / 8] |= ((value >> (4 - bit) & 1) as u8) << (7 - to % 8);
        }
    }
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
