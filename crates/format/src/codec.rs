use std::fmt;

use crate::FormatError;

/// How a frame's bytes are stored: its number on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    None = 0,
    /// A Zstandard frame (RFC 8878) without content size, checksum or dictionary id.
    Zstd = 1,
    /// An LZ4 block; its raw length is the frame's.
    Lz4 = 2,
}

impl Codec {
    /// From its number on disk.
    ///
    /// # Errors
    /// [`FormatError::Range`] for an unknown number.
    pub fn from_byte(byte: u8) -> Result<Self, FormatError> {
        match byte {
            0 => Ok(Self::None),
            1 => Ok(Self::Zstd),
            2 => Ok(Self::Lz4),
            value => Err(FormatError::Range { what: "frame header", field: "codec", value: value.into() }),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }
}

/// A codec with its level, as users write it: `zstd:3`, `lz4`, `none`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct CodecSpec {
    /// The codec.
    pub codec: Codec,
    /// Its level; 0 for codecs that have none.
    pub level: i8,
}

impl CodecSpec {
    /// Stored as it is.
    pub const NONE: CodecSpec = CodecSpec { codec: Codec::None, level: 0 };

    /// Parses `none`, `lz4`, `zstd` or `zstd:LEVEL` (−7 to 19).
    ///
    /// # Errors
    /// [`FormatError::Text`] says what would be accepted.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let bad =
            || FormatError::Text(format!("`{text}` is not a codec; use none, lz4, or zstd:LEVEL (-7 to 19)"));
        match text.split_once(':') {
            None if text == "none" => Ok(Self { codec: Codec::None, level: 0 }),
            None if text == "lz4" => Ok(Self { codec: Codec::Lz4, level: 0 }),
            None if text == "zstd" => Ok(Self { codec: Codec::Zstd, level: 2 }),
            Some(("zstd", level)) => match level.parse() {
                Ok(level @ (-7..=-1 | 1..=19)) => Ok(Self { codec: Codec::Zstd, level }),
                _ => Err(bad()),
            },
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec {
            Codec::Zstd => write!(f, "zstd:{}", self.level),
            codec => f.write_str(codec.name()),
        }
    }
}
