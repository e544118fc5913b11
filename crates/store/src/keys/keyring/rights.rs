//! The rights of a key.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The rights of a host that opened a store with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Everything.
    #[default]
    All,
    /// It reads everything. This program refuses it every change, although its secrets would do for
    /// one.
    ReadOnly,
    /// It stores, and finds what is stored already. It reads names, and has no secret that opens
    /// contents.
    PutOnly,
    /// It reads one directory that has a key of its own, and names everywhere. It changes nothing.
    Subtree,
}

impl Rights {
    /// Its name in slots and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::ReadOnly => "read-only",
            Self::PutOnly => "put-only",
            Self::Subtree => "subtree",
        }
    }

    /// True if a host with `self` may do all that one with `other` may.
    pub fn cover(self, other: Self) -> bool {
        self == Self::All || self == other
    }

    /// Fails unless something may be stored.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_changes(self) -> Result<()> {
        match self {
            Self::All | Self::PutOnly => Ok(()),
            Self::ReadOnly => Err(denied("only reads it", "that may change it")),
            Self::Subtree => Err(denied("reads one directory of it alone", "that may change it")),
        }
    }

    /// Fails unless some contents may be read.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_contents(self) -> Result<()> {
        match self {
            Self::All | Self::ReadOnly | Self::Subtree => Ok(()),
            Self::PutOnly => Err(denied("only stores in it", "that reads it")),
        }
    }

    /// Fails unless everything is allowed.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_all(self) -> Result<()> {
        self.require_changes()?;
        match self {
            Self::PutOnly => Err(denied("only stores in it", "with all rights")),
            Self::All | Self::ReadOnly | Self::Subtree => Ok(()),
        }
    }

    /// Fails unless all contents may be read.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_all_contents(self) -> Result<()> {
        match self {
            Self::Subtree => Err(denied("reads one directory of it alone", "that reads all of it")),
            rights => rights.require_contents(),
        }
    }
}

fn denied(what: &str, which: &str) -> Error {
    let why = format!(
        "the key that opened the store {what} (`outrigger key list`): name one {which}, with --key-file"
    );
    Error::new(ErrorKind::Denied, why)
}
