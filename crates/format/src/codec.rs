use std::fmt;

use crate::FormatError;

/// The codec of a frame's stored bytes, by its number on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Codec {
    /// Uncompressed.
    None = 0,
    /// A Zstandard frame (RFC 8878) without content size, checksum or dictionary id.
    Zstd = 1,
    /// An LZ4 block; its raw length is the frame's.
    Lz4 = 2,
    /// A gzip member (RFC 1952).
    Gzip = 3,
    /// A raw deflate stream (RFC 1951).
    Deflate = 4,
    /// Shortens runs of zeros and copies all else. `docs/format.md` has the byte map.
    Zle = 5,
    /// LZJB: short matches within the last 1,023 bytes. `docs/format.md` has the byte map.
    Lzjb = 6,
}

impl Codec {
    /// Every codec, in the order of their numbers.
    pub const ALL: [Codec; 7] =
        [Self::None, Self::Zstd, Self::Lz4, Self::Gzip, Self::Deflate, Self::Zle, Self::Lzjb];

    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        Self::ALL.get(usize::from(byte)).copied().ok_or(FormatError::Range {
            what: "frame header",
            field: "codec",
            value: byte.into(),
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zle => "zle",
            Self::Lzjb => "lzjb",
        }
    }

    /// Its lowest level, its highest, and the default. `None` if it has no levels. No codec has a
    /// level 0.
    pub fn levels(self) -> Option<(i8, i8, i8)> {
        match self {
            Self::Zstd => Some((-7, 19, 2)),
            Self::Gzip | Self::Deflate => Some((1, 12, 6)),
            Self::None | Self::Lz4 | Self::Zle | Self::Lzjb => None,
        }
    }
}

/// A codec with its level, as users write it: `zstd:3`, `gzip:6`, `lz4`, `none`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CodecSpec {
    /// The codec.
    pub codec: Codec,
    /// Its level; 0 for codecs that have none.
    pub level: i8,
}

impl CodecSpec {
    /// Uncompressed.
    pub const NONE: CodecSpec = CodecSpec { codec: Codec::None, level: 0 };

    /// Parses a codec's name, with `:LEVEL` if it has levels: `zstd` (−7 to 19), `gzip` and
    /// `deflate` (1 to 12).
    ///
    /// # Errors
    /// [`FormatError::Text`] says what is accepted.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let bad = || {
            FormatError::Text(format!(
                "`{text}` is not a codec; use none, lz4, zle, lzjb, zstd:LEVEL (-7 to 19), gzip:LEVEL or deflate:LEVEL (1 to 12)"
            ))
        };
        let (name, level) = match text.split_once(':') {
            None => (text, None),
            Some((name, level)) => (name, Some(level.parse::<i8>().map_err(|_| bad())?)),
        };
        let codec = Codec::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(bad)?;
        let spec = match (codec.levels(), level) {
            (None, None) => Self { codec, level: 0 },
            (Some((_, _, usual)), None) => Self { codec, level: usual },
            (_, Some(level)) => Self { codec, level },
        };
        if spec.is_valid() && (level.is_none() || codec.levels().is_some()) { Ok(spec) } else { Err(bad()) }
    }

    /// True if the codec has this level.
    pub fn is_valid(self) -> bool {
        match self.codec.levels() {
            None => self.level == 0,
            Some((lowest, highest, _)) => self.level != 0 && (lowest..=highest).contains(&self.level),
        }
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec.levels() {
            Some(_) => write!(f, "{}:{}", self.codec.name(), self.level),
            None => f.write_str(self.codec.name()),
        }
    }
}

/// The aim of `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Objective {
    /// As much compression as possible without slowing writers down.
    #[default]
    Throughput,
    /// Small results at a moderate cost to writers, and smaller ones if processors are idle.
    Ratio,
    /// As little processor time as possible, even if some is idle.
    Cpu,
}

impl Objective {
    /// Every objective.
    pub const ALL: [Objective; 3] = [Self::Throughput, Self::Ratio, Self::Cpu];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Ratio => "ratio",
            Self::Cpu => "cpu",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_on_disk() {
        for (byte, codec) in (0u8..).zip(Codec::ALL) {
            assert_eq!((codec as u8, Codec::from_byte(byte)), (byte, Ok(codec)));
        }
        assert!(Codec::from_byte(7).is_err());
    }
}
