//! Tar archives: written as POSIX pax, read as pax, ustar and GNU.
//!
//! The headers are the crate `tar`'s; what surrounds them is here, because extended attributes may hold any byte (that crate splits pax records
//! at line ends), and because sparse files come in four dialects.

mod acl;
mod import;
mod pax;
mod reader;
mod sparse;
mod writer;

pub use import::{Imported, import};
pub use reader::{Archive, Entry, Kind, TarError};
pub use writer::{Fields, TarWriter};

/// Everything in an archive is padded to this.
const BLOCK: usize = 512;
