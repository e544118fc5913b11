//! What the holder of a key may do.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// What a host may do that opened a store with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Everything.
    #[default]
    All,
    /// It reads everything. This program refuses it every change, although its secrets would do for
    /// one.
    ReadOnly,
}

impl Rights {
    /// Its name in slots and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::ReadOnly => "read-only",
        }
    }

    /// True if a host with `self` may do all that one with `other` may.
    pub fn cover(self, other: Self) -> bool {
        self == Self::All || self == other
    }

    /// Fails unless the store may be changed.
    ///
    /// # Errors
    /// `Denied`, with what to do.
    pub fn require_changes(self) -> Result<()> {
        match self {
            Self::All => Ok(()),
            Self::ReadOnly => Err(Error::new(
                ErrorKind::Denied,
                "the key that opened the store only reads it (`outrigger key list`): name one that may change it, with --key-file",
            )),
        }
    }
}
