//! A file that a job reads while it is written.

use outrigger_store::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// How far a writer may be ahead of its program, if they are attached, bytes: what the program
/// reads is still in memory.
pub const AHEAD: u64 = 64 << 20;

/// The file that a job reads while it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Its inode.
    pub inode: u64,
    /// The session of the mount that it is written in.
    pub mount: u64,
    /// It was there before, and is overwritten.
    pub overwrites: bool,
}

/// Where a program reads a file that is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Attach {
    /// Beside the path of the data: the writer never waits for it.
    #[default]
    Beside,
    /// In the path: the writer waits when it is more than [`AHEAD`] in front. If its mount offers
    /// its open files to other hosts, an agent on one of these reads the file, and stores it as
    /// well.
    Path,
}

impl Attach {
    /// Parses `path`, `beside`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "path" => Ok(Self::Path),
            "beside" => Ok(Self::Beside),
            _ => Err(Error::new(ErrorKind::Invalid, format!("`{text}`: use path or beside"))),
        }
    }
}
