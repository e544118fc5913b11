//! The policy that engines obey themselves: `versions`.

use crate::error::{Error, ErrorKind, Result};

/// How many earlier contents of a file are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::meta) enum KeepVersions {
    /// All of them.
    All,
    /// The newest few; 0 keeps none.
    Newest(u32),
}

impl Default for KeepVersions {
    fn default() -> Self {
        Self::Newest(10)
    }
}

impl KeepVersions {
    /// From the value of policy `versions`.
    pub fn parse(value: &str) -> Result<Self> {
        match value {
            "all" => Ok(Self::All),
            "none" => Ok(Self::Newest(0)),
            number => number.parse().map(Self::Newest).map_err(|_| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("`{value}` is not a policy for versions: use a number, `all` or `none`"),
                )
            }),
        }
    }
}
