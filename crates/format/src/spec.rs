//! The chunker's name and sizes as users write them, and sizes with binary suffixes.

use std::fmt;

use crate::FormatError;

/// Parses `4096`, `4K`, `16M`, `1G`, `2T` (powers of 1024).
///
/// # Errors
/// [`FormatError::Text`] for anything else, or a number beyond 2^63.
pub fn parse_size(text: &str) -> Result<u64, FormatError> {
    let bad = || {
        FormatError::Text(format!("`{text}` is not a size; write a number with K, M, G or T, such as 64K"))
    };
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).filter(|&size| size < 1 << 63).ok_or_else(bad)
}

/// The shortest text that [`parse_size`] reads back.
pub fn print_size(size: u64) -> String {
    for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if size != 0 && size.trailing_zeros() >= shift {
            return format!("{}{suffix}", size >> shift);
        }
    }
    size.to_string()
}

/// How files are cut into chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChunkerSpec {
    /// Content-defined, `gear32`. `avg` is a power of two, and the length from which the inline
    /// mask applies.
    Gear32 {
        /// The minimum length of every chunk but the last, in bytes.
        min: u32,
        /// The wanted average in bytes.
        avg: u32,
        /// The maximum length of a chunk, in bytes.
        max: u32,
    },
    /// Blocks of one size, bytes.
    Fixed {
        /// The size.
        size: u32,
    },
    /// Content-defined by a hash of each window of 48 bytes, for experiments. `avg` is a power of
    /// two.
    Windowed {
        /// The hash function.
        hash: WindowedHash,
        /// The minimum length of every chunk but the last, in bytes.
        min: u32,
        /// The wanted average in bytes: one window in so many ends a chunk.
        avg: u32,
        /// The maximum length of a chunk, in bytes.
        max: u32,
    },
}

/// The hash function of [`ChunkerSpec::Windowed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WindowedHash {
    /// The Rabin fingerprint: `rabin`.
    Rabin,
    /// MD5: `lbfs-md5`.
    Md5,
    /// SHA-1: `lbfs-sha1`.
    Sha1,
}

impl WindowedHash {
    const ALL: [WindowedHash; 3] = [Self::Rabin, Self::Md5, Self::Sha1];

    /// The name of the chunker that uses it.
    pub fn chunker_name(self) -> &'static str {
        match self {
            Self::Rabin => "rabin",
            Self::Md5 => "lbfs-md5",
            Self::Sha1 => "lbfs-sha1",
        }
    }
}

impl ChunkerSpec {
    /// The default profile's chunker, 4K/16K/64K.
    pub const DEFAULT: ChunkerSpec = ChunkerSpec::Gear32 { min: 4 << 10, avg: 16 << 10, max: 64 << 10 };

    /// The maximum length of a chunk, in bytes.
    pub fn max_len(self) -> usize {
        match self {
            Self::Gear32 { max, .. } | Self::Windowed { max, .. } => max as usize,
            Self::Fixed { size } => size as usize,
        }
    }

    /// The minimum length of every chunk of a file but the last, in bytes.
    pub fn min_len(self) -> usize {
        match self {
            Self::Gear32 { min, .. } | Self::Windowed { min, .. } => min as usize,
            Self::Fixed { size } => size as usize,
        }
    }

    /// Parses `gear32:MIN/AVG/MAX`, `fixed:SIZE`, or, for experiments, `rabin:`, `lbfs-md5:` or
    /// `lbfs-sha1:MIN/AVG/MAX`.
    ///
    /// # Errors
    /// [`FormatError::Text`] names the broken rule. For content-defined chunks: 64 bytes ≤ min <
    /// avg < max ≤ 16 MiB, avg a power of two from 256. For a fixed size: from 512 bytes to 16 MiB.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let bad = |why: &str| {
            FormatError::Text(format!(
                "chunker `{text}`: {why}; write gear32:4K/16K/64K or fixed:64K (for experiments: rabin, \
                 lbfs-md5, lbfs-sha1, with sizes as gear32 has them)"
            ))
        };
        let (name, sizes) = text.split_once(':').ok_or_else(|| bad("no sizes given"))?;
        let size = |text: &str| {
            parse_size(text).and_then(|size| u32::try_from(size).map_err(|_| bad("a size is above 16M")))
        };
        let spec = if name == "fixed" {
            Self::Fixed { size: size(sizes)? }
        } else {
            let parts: Vec<&str> = sizes.split('/').collect();
            let [min, avg, max] = parts[..] else {
                return Err(bad("three sizes MIN/AVG/MAX are needed"));
            };
            let (min, avg, max) = (size(min)?, size(avg)?, size(max)?);
            match WindowedHash::ALL.into_iter().find(|hash| hash.chunker_name() == name) {
                Some(hash) => Self::Windowed { hash, min, avg, max },
                None if name == "gear32" => Self::Gear32 { min, avg, max },
                None => return Err(bad("unknown chunker")),
            }
        };
        spec.broken_rule().map_or(Ok(spec), |why| Err(bad(why)))
    }

    /// True if [`ChunkerSpec::parse`] admits it.
    ///
    /// ```
    /// use outrigger_format::ChunkerSpec;
    /// assert!(ChunkerSpec::DEFAULT.is_valid() && !ChunkerSpec::Fixed { size: 0 }.is_valid());
    /// ```
    pub fn is_valid(self) -> bool {
        self.broken_rule().is_none()
    }

    fn broken_rule(self) -> Option<&'static str> {
        let (min, avg, max) = match self {
            Self::Fixed { size } => {
                let fits = (512..=16 << 20).contains(&size);
                return (!fits).then_some("the size must be from 512 to 16M");
            }
            Self::Gear32 { min, avg, max } | Self::Windowed { min, avg, max, .. } => (min, avg, max),
        };
        if !avg.is_power_of_two() || avg < 256 {
            return Some("the average must be a power of two from 256");
        }
        if min < 64 || min >= avg || avg >= max || max > 16 << 20 {
            return Some("sizes must rise: 64 ≤ MIN < AVG < MAX ≤ 16M");
        }
        None
    }
}

impl fmt::Display for ChunkerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, min, avg, max) = match *self {
            Self::Gear32 { min, avg, max } => ("gear32", min, avg, max),
            Self::Windowed { hash, min, avg, max } => (hash.chunker_name(), min, avg, max),
            Self::Fixed { size } => return write!(f, "fixed:{}", print_size(size.into())),
        };
        write!(f, "{name}:{}/{}/{}", print_size(min.into()), print_size(avg.into()), print_size(max.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunkers_print_what_they_parse() {
        for text in [
            "gear32:4K/16K/64K",
            "fixed:512",
            "rabin:2K/8K/64K",
            "lbfs-md5:64/256/257",
            "lbfs-sha1:1K/8M/16M",
        ] {
            let spec = ChunkerSpec::parse(text).expect(text);
            assert_eq!(spec.to_string(), text);
            // The bytes before a chunk may be unknown, as no window of its candidates includes
            // them.
            assert!(spec.history_len() < spec.min_len() && spec.min_len() <= spec.max_len());
        }
        for text in
            ["rabin", "rabin:8K", "rabin:32/256/1K", "lbfs-md5:1K/3K/9K", "lbfs:1K/8K/64K", "fixed:17M"]
        {
            ChunkerSpec::parse(text).expect_err(text);
        }
    }
}
