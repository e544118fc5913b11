//! Tar archives: written as POSIX pax, read as pax, ustar and GNU.
//!
//! The crate `tar` handles the headers. The rest is here for two reasons: extended attributes may
//! hold any byte, but that crate splits pax records at line ends, and sparse files come in four
//! dialects.

mod acl;
mod channel;
mod import;
mod mirror;
mod pax;
mod reader;
mod sparse;
mod writer;

pub use import::{Import, Imported, import};
pub use mirror::{Check, Digests, Mirror};
pub use reader::{Archive, Entry, Kind, TarError};
pub use writer::{Fields, TarWriter};

/// Everything in an archive is padded to this.
const BLOCK: usize = 512;
