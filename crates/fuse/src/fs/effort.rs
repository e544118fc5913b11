//! Which operations may keep their thread waiting.

/// Reads of more than this are handed on: they decode, and several of them at once use several processors.
const LARGE_READ: usize = 128 << 10;

/// What an operation asks for, as far as it matters for how long it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Names and attributes, opening and closing.
    Names,
    /// To read bytes of a file.
    Read {
        /// The file.
        number: u64,
        /// Bytes.
        len: usize,
    },
    /// To write bytes of a file.
    Write {
        /// The file.
        number: u64,
        /// Bytes.
        len: usize,
    },
    /// To report what delayed writes came to, at the end of a descriptor.
    Flush,
    /// To make changes durable.
    Sync,
    /// To allocate, to punch holes, to copy between files.
    Copy,
}

impl Effort {
    /// For a file system that answers from memory, unless it is told to make something durable or to read much.
    pub fn usually_waits(self) -> bool {
        match self {
            Self::Names | Self::Write { .. } => false,
            Self::Read { len, .. } => len > LARGE_READ,
            Self::Flush | Self::Sync | Self::Copy => true,
        }
    }
}
