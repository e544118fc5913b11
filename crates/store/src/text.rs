//! Bytes of others as text: to be shown in one line, and to be kept without blanks.

/// True for a character that a terminal obeys and does not show: a control, or a mark of text
/// direction (Unicode's Bidi_Control).
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes a name, a path or another foreign text for one line: bytes that are not UTF-8, and
/// characters that control a terminal.
pub fn show(bytes: &[u8]) -> String {
    show_but(bytes, "")
}

/// Like [`show`], but keeps these characters.
pub fn show_but(bytes: &[u8], stay: &str) -> String {
    let mut out = String::new();
    for part in bytes.utf8_chunks() {
        for c in part.valid().chars() {
            if is_obeyed(c) && !stay.contains(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        part.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

/// Bytes as text without blanks and control characters: those, `%`, and bytes that are not UTF-8
/// become `%` and two digits.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let escaped = |out: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| out.push_str(&format!("%{byte:02x}")));
    };
    for part in bytes.utf8_chunks() {
        for c in part.valid().chars() {
            if c == '%' || c.is_control() || c.is_whitespace() {
                escaped(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(c);
            }
        }
        escaped(&mut out, part.invalid());
    }
    out
}

/// The bytes that [`escape`] made a text of.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(show(b"a\xff\n\xc3\xa9"), "a\\xff\\n\u{e9}");
    }
}
