//! The codec setting of a store, a directory or a file: one codec, `auto`, or a list.

use std::fmt;

use crate::{CodecDevice, CodecList, CodecSpec, FormatError, Listed, ListedCodec, Objective};

/// The codec setting of a store, a directory or a file: `zstd:3`, `auto`, `auto:ratio`,
/// `gzip:6@qat,zstd:3@cpu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CodecChoice {
    /// This codec at this level, on any device.
    Fixed(CodecSpec),
    /// Chosen frame by frame.
    Auto(Objective),
    /// The first entry that has a free device.
    Listed(CodecList),
}

impl CodecChoice {
    /// Uncompressed.
    pub const NONE: CodecChoice = CodecChoice::Fixed(CodecSpec::NONE);

    /// Parses one codec or a list of one to four, separated by commas. A codec is `auto`,
    /// `auto:throughput`, `auto:ratio`, `auto:cpu`, or what [`CodecSpec::parse`] accepts. In a
    /// list, `@` and a device (`any`, `cpu`, `qat`, `nvcomp`, `sim`) may follow each.
    ///
    /// # Errors
    /// [`FormatError::Text`] says what is accepted.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        if text.contains([',', '@']) {
            return CodecList::parse(text).map(Self::Listed);
        }
        ListedCodec::parse(text).map(Self::from)
    }
}

impl From<CodecSpec> for CodecChoice {
    fn from(spec: CodecSpec) -> Self {
        Self::Fixed(spec)
    }
}

impl From<ListedCodec> for CodecChoice {
    fn from(codec: ListedCodec) -> Self {
        match codec {
            ListedCodec::Fixed(spec) => Self::Fixed(spec),
            ListedCodec::Auto(objective) => Self::Auto(objective),
        }
    }
}

impl CodecList {
    /// The processor's codec if no device takes a frame: that of the first entry for the processor,
    /// or else of the first entry.
    pub fn in_software(&self) -> CodecChoice {
        let for_cpu = |entry: &Listed| matches!(entry.device, CodecDevice::Any | CodecDevice::Cpu);
        let entry = self.entries().find(for_cpu).or_else(|| self.entries().next());
        entry.map_or(CodecChoice::NONE, |entry| entry.codec.into())
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(spec) => spec.fmt(f),
            Self::Auto(objective) => ListedCodec::Auto(*objective).fmt(f),
            Self::Listed(list) => list.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        for text in [
            "none",
            "lz4",
            "zle",
            "lzjb",
            "zstd:-7",
            "zstd:19",
            "gzip:1",
            "deflate:12",
            "auto",
            "auto:ratio",
            "auto:cpu",
        ] {
            assert_eq!(CodecChoice::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(CodecChoice::parse("auto:throughput").unwrap().to_string(), "auto");
        assert_eq!(CodecSpec::parse("zstd").unwrap().to_string(), "zstd:2");
        assert_eq!(CodecSpec::parse("gzip").unwrap().to_string(), "gzip:6");
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_accepted() {
        for text in [
            "",
            "zstd:0",
            "zstd:20",
            "zstd:-8",
            "gzip:0",
            "gzip:13",
            "lz4:1",
            "none:0",
            "zle:3",
            "zstd:",
            "auto:",
            "auto:fast",
            "brotli",
            "zstd:999",
        ] {
            let error = CodecChoice::parse(text).unwrap_err().to_string();
            assert!(error.contains("auto"), "{text}: {error}");
        }
    }
}
