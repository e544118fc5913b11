//! How long operations may keep their thread.

/// Reads of more than this decode for longer than it takes to wake another thread.
const LARGE_READ: usize = 128 << 10;

/// How long an operation keeps its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// Not longer than it takes to wake another one.
    Shortly,
    /// Longer, and the processor with it: several at once should have several processors.
    Busy,
    /// For as long as a disk, a network or another operation likes.
    Waiting,
}

/// The properties of an operation that decide how long it takes.
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
    /// Reporting errors of delayed writes, at the end of a descriptor.
    Flush,
    /// To make changes durable.
    Sync,
    /// To allocate, to punch holes, to copy between files.
    Copy,
}

impl Effort {
    /// For a file system that answers from memory, unless it is told to make something durable.
    pub fn usual(self) -> Keeps {
        match self {
            Self::Read { len, .. } if len > LARGE_READ => Keeps::Busy,
            Self::Names | Self::Read { .. } | Self::Write { .. } => Keeps::Shortly,
            Self::Flush | Self::Sync | Self::Copy => Keeps::Waiting,
        }
    }
}
