/// Why bytes could not be decoded. The reader of the bytes adds their place (pack, frame, offset).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The input ended before the record did.
    #[error("{what}: {have} bytes where {need} are needed")]
    Truncated {
        /// The record being decoded.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// The record does not begin with its magic.
    #[error("{what}: wrong magic")]
    Magic {
        /// The record being decoded.
        what: &'static str,
    },
    /// Written by a newer version, or with a feature that this one does not know.
    #[error(
        "{what}: version {version}, features {features:#x} are newer than this program; use a newer outrigger"
    )]
    Newer {
        /// The record being decoded.
        what: &'static str,
        /// Its version.
        version: u32,
        /// Its incompatible features.
        features: u32,
    },
    /// The checksum does not match.
    #[error("{what}: checksum mismatch")]
    Checksum {
        /// The record being decoded.
        what: &'static str,
    },
    /// A field has a value that no writer produces.
    #[error("{what}: {field} is {value}, which is out of range")]
    Range {
        /// The record being decoded.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Text given by a user does not parse.
    #[error("{0}")]
    Text(String),
}
