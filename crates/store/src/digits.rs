//! Bytes as digits of Crockford's base 32: for texts that people copy.
//!
//! Digits are read as a person writes them: small letters, `O` for 0, `I` and `L` for 1, and any
//! dashes and spaces.

use zeroize::Zeroizing;

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Digits between two dashes.
const GROUP: usize = 4;

/// `prefix`, and the digits of `bytes` in groups of four; the bytes are a multiple of five.
pub(crate) fn encode(prefix: &str, bytes: &[u8]) -> Zeroizing<String> {
    let digits = bytes.len() * 8 / 5;
    let mut text = Zeroizing::new(String::with_capacity(prefix.len() + digits * (GROUP + 1) / GROUP + 1));
    text.push_str(prefix);
    for at in 0..digits {
        if at % GROUP == 0 {
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

/// The bytes of a text that [`encode`] made with `prefix`.
///
/// # Errors
/// What is wrong with it. The words do not repeat the text.
pub(crate) fn decode<const N: usize>(prefix: &str, text: &str) -> Result<Zeroizing<[u8; N]>, String> {
    let mut digits = Zeroizing::new(String::new());
    digits.extend(text.chars().filter(|c| !c.is_whitespace() && *c != '-').map(|c| c.to_ascii_uppercase()));
    let digits = digits.strip_prefix(prefix).ok_or_else(|| format!("it does not begin with {prefix}"))?;
    let wanted = N * 8 / 5;
    if digits.len() != wanted {
        return Err(format!("it has {} digits after {prefix}, not {wanted}", digits.len()));
    }
    let mut bytes = Zeroizing::new([0; N]);
    for (at, digit) in digits.bytes().enumerate() {
        let digit = match digit {
            b'O' => b'0',
            b'I' | b'L' => b'1',
            digit => digit,
        };
        let value = DIGITS.iter().position(|known| *known == digit);
        let value = value.ok_or_else(|| "a character in it is no digit".to_owned())?;
        for bit in 0..5 {
            let to = at * 5 + bit;
            bytes[to / 8] |= ((value >> (4 - bit) & 1) as u8) << (7 - to % 8);
        }
    }
    Ok(bytes)
}
