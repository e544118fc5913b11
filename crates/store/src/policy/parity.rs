//! The policy of the root directory that asks for parity over packs (`crate::parity`).

use std::fmt;

use outrigger_format::{PARITY_FILES_MAX, PARITY_MEMBERS_MAX};

use crate::error::{Error, ErrorKind, Result};
use crate::meta::ROOT_INODE;
use crate::store::Store;

/// Its key.
pub const PARITY: &str = "parity";

/// How much parity a store has: `K+M`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParitySpec {
    /// Packs in a group, at most.
    pub members: usize,
    /// Parity files of a group: so many of its packs and files may be lost.
    pub files: usize,
}

impl ParitySpec {
    /// Parses `10+2`; `None` is `off`.
    ///
    /// # Errors
    /// `Invalid`, saying what would be accepted.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        if text == "off" {
            return Ok(None);
        }
        let spec = text.split_once('+').and_then(|(members, files)| {
            Some(Self { members: members.parse().ok()?, files: files.parse().ok()? })
        });
        let is_possible = |spec: &Self| {
            (2..=PARITY_MEMBERS_MAX).contains(&spec.members)
                && (1..=PARITY_FILES_MAX).contains(&spec.files)
                && spec.to_string() == text
        };
        spec.filter(is_possible).map(Some).ok_or_else(|| {
            let why = format!(
                "parity={text}: use PACKS+FILES, as 10+2 (2 to {PARITY_MEMBERS_MAX} packs, 1 to {PARITY_FILES_MAX} files), or off"
            );
            Error::new(ErrorKind::Invalid, why)
        })
    }

    /// The parity that a store's policy asks for.
    ///
    /// # Errors
    /// Those of the database; `Invalid` when the policy does not parse.
    pub fn of(store: &Store) -> Result<Option<Self>> {
        let policies = store.meta.policies(ROOT_INODE)?;
        policies.get(PARITY).map_or(Ok(None), |text| Self::parse(text))
    }
}

impl fmt::Display for ParitySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.members, self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_done_is_accepted() {
        assert_eq!(ParitySpec::parse("10+2").unwrap(), Some(ParitySpec { members: 10, files: 2 }));
        assert_eq!(ParitySpec::parse("off").unwrap(), None);
        for bad in ["", "10", "1+1", "33+1", "4+0", "4+9", "4+-1", " 4+1", "04+1", "4+1+1", "on"] {
            let error = ParitySpec::parse(bad).unwrap_err().to_string();
            assert!(error.contains("10+2") && error.contains("off"), "{bad}: {error}");
        }
    }
}
