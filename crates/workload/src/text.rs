//! Text that compresses like program source: a vocabulary with favourites, indented lines,
//! recurring forms.

use std::io::{self, Write};

use crate::Rng;

/// Bytes of a text with its own favourite words.
const FILE: usize = 64 << 10;

/// Writes `len` bytes of text that looks like program source: files of 64 KiB of one project, one
/// after the other.
///
/// # Errors
/// Those of `out`.
pub fn text(seed: u64, len: u64, out: &mut dyn Write) -> io::Result<()> {
    let project = Text::new(seed);
    let mut left = len;
    for file in 1.. {
        if left == 0 {
            break;
        }
        let bytes = project.bytes(&mut Rng::part(seed, file), FILE);
        let some = left.min(FILE as u64);
        out.write_all(&bytes[..some as usize])?;
        left -= some;
    }
    Ok(())
}

const SYLLABLES: [&str; 40] = [
    "al", "ba", "buf", "ca", "con", "cur", "dat", "dev", "dir", "en", "ent", "fi", "fs", "get", "ha", "in",
    "io", "key", "le", "lo", "map", "me", "no", "ob", "pa", "pre", "que", "re", "ro", "set", "st", "sub",
    "ta", "ti", "un", "up", "val", "ver", "wr", "xa",
];
/// How many words a file prefers.
const OWN_WORDS: u64 = 48;
const TYPES: [&str; 8] = ["int", "void", "u32", "u64", "char *", "bool", "size_t", "struct page *"];

/// A writer of source-like text. Texts of one vocabulary resemble each other as the files of one
/// project do.
pub(crate) struct Text {
    words: Vec<String>,
}

impl Text {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::part(seed, 0x7465_7874);
        let word = |rng: &mut Rng| {
            let parts = rng.between(1, 3);
            let mut word = String::new();
            for part in 0..parts {
                if part > 0 && rng.permille(400) {
                    word.push('_');
                }
                word.push_str(SYLLABLES[rng.index(SYLLABLES.len())]);
            }
            word
        };
        Self { words: (0..3000).map(|_| word(&mut rng)).collect() }
    }

    pub(crate) fn word(&self, rng: &mut Rng) -> &str {
        &self.words[rng.skewed(self.words.len() as u64) as usize]
    }

    /// Exactly `len` bytes of text; the last line is cut at the end. A file has favourite words,
    /// and sometimes repeats a recent line: zstd compresses it to a quarter, nearly as with real
    /// source.
    pub(crate) fn bytes(&self, rng: &mut Rng, len: usize) -> Vec<u8> {
        let own: Vec<&str> = (0..OWN_WORDS).map(|_| self.word(rng)).collect();
        let mut out = String::with_capacity(len + 200);
        let mut lines = Vec::new();
        while out.len() < len {
            let start = out.len();
            if lines.len() > 8 && rng.permille(330) {
                let (from, to): (usize, usize) = lines[lines.len() - 1 - rng.index(lines.len().min(60))];
                let again = out[from..to].to_owned();
                out.push_str(&again);
            } else {
                self.line(&own, rng, &mut out);
            }
            lines.push((start, out.len()));
        }
        let mut out = out.into_bytes();
        out.truncate(len);
        out
    }

    fn line(&self, own: &[&str], rng: &mut Rng, out: &mut String) {
        use std::fmt::Write;
        let tabs = &"\t\t\t"[..rng.skewed(4) as usize];
        let mut pick =
            || if rng.permille(850) { own[rng.skewed(OWN_WORDS) as usize] } else { self.word(rng) };
        let (a, b, c) = (pick(), pick(), pick());
        let kind = TYPES[rng.skewed(TYPES.len() as u64) as usize];
        let number = rng.skewed(4096);
        let written = match rng.skewed(12) {
            0 => writeln!(out, "{tabs}{a}->{b} = {c};"),
            1 => writeln!(out, "{tabs}if ({a} < {number})"),
            2 => writeln!(out, "{tabs}\treturn {a}({b}, {c});"),
            3 => writeln!(out, "{tabs}{a}({b}, &{c}->{a});\n"),
            4 => writeln!(out, "#define {}_{} 0x{number:04x}", a.to_uppercase(), b.to_uppercase()),
            5 => writeln!(out, "}}\n\nstatic {kind} {a}_{b}(struct {c} *{a})\n{{"),
            6 => writeln!(out, "{tabs}{kind} {a}, {b} = {number};"),
            7 => writeln!(out, "/* {a} {b} {c} the {} of {} */", self.word(rng), self.word(rng)),
            8 => writeln!(out, "{tabs}for (i = 0; i < {a}->{b}; i++) {{"),
            9 => writeln!(out, "#include <{a}/{b}.h>"),
            10 => writeln!(out, "{tabs}{{ .{a} = {number}, .{b} = \"{c}\" }},"),
            _ => writeln!(out, "{tabs}goto err_{a};"),
        };
        debug_assert!(written.is_ok(), "writing into a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_seed_gives_the_same_text_and_no_file_twice() {
        let mut out = Vec::new();
        super::text(1, 200_000, &mut out).unwrap();
        assert_eq!(blake3::hash(&out).to_hex().as_str()[..32], *"8f496c8d5d64e943c1f29b19da3fd4ac");
        assert_ne!(out[..65_536], out[65_536..131_072]);
        assert!(out.is_ascii() && out.len() == 200_000);
    }
}
