//! Policies of directories: their keys and values, and how files below a directory are cut and
//! compressed by them.
//!
//! [`crate::write::set_policy`] sets them.

mod origin;
mod parity;

use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_format::{ChunkerSpec, CodecChoice};
use outrigger_offload::{Budget, Compression};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::meta::{At, Meta, ROOT_INODE};
use crate::store::Store;
use crate::tree::StorePath;

pub use origin::Origin;
pub use parity::{PARITY, ParitySpec};

/// The policy that records what a directory mirrors: an [`Origin`].
pub const SOURCE: &str = "source";

/// The policy of the root directory that says how long automatic snapshots stay.
pub const AUTOMATIC: &str = "automatic";
/// The time they stay by default.
pub const AUTOMATIC_DEFAULT: &str = "30d";

/// How long something stays: `30d`, `12h`, or `forever` (`Some(None)`); `None` for anything else.
pub fn parse_age(text: &str) -> Option<Option<Duration>> {
    if text == "forever" {
        return Some(None);
    }
    let (number, secs) = match text.strip_suffix('d') {
        Some(days) => (days, 24 * 3600),
        None => (text.strip_suffix('h')?, 3600),
    };
    let number: u64 = number.parse().ok()?;
    Some(Some(Duration::from_secs(number.checked_mul(secs).filter(|&secs| secs < u64::MAX >> 32)?)))
}

/// Policies that only commands set.
pub const NOTES: [&str; 2] = [SOURCE, AUTOMATIC];

/// How files below a directory are cut and compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePolicy {
    /// How to cut.
    pub chunker: ChunkerSpec,
    /// How to compress.
    pub codec: Compression,
    /// True to look for chunks that are stored already.
    pub dedup: bool,
}

/// Settings of a command or a mount that override all policies, for everything that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// How to cut.
    pub chunker: Option<ChunkerSpec>,
    /// True to look for chunks that are stored already.
    pub dedup: Option<bool>,
}

impl Overrides {
    fn over(self, policy: WritePolicy) -> WritePolicy {
        let WritePolicy { chunker, codec, dedup } = policy;
        WritePolicy { chunker: self.chunker.unwrap_or(chunker), codec, dedup: self.dedup.unwrap_or(dedup) }
    }
}

/// All policies of a store, to find those of a directory.
pub struct Policies {
    by_inode: BTreeMap<u64, BTreeMap<String, String>>,
    sources: BTreeMap<u64, String>,
    default: WritePolicy,
    overrides: Overrides,
}

impl Policies {
    /// Reads them.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn load(store: &Store) -> Result<Self> {
        let config = &store.config;
        let default = WritePolicy { chunker: config.chunker, codec: config.codec.into(), dedup: true };
        let (mut by_inode, mut sources) = (store.meta.all_policies()?, BTreeMap::new());
        by_inode.retain(|inode, policies| {
            sources.extend(policies.remove(SOURCE).map(|source| (*inode, source)));
            policies.retain(|key, _| !NOTES.contains(&key.as_str()));
            !policies.is_empty()
        });
        Ok(Self { by_inode, sources, default, overrides: Overrides::default() })
    }

    /// Directory → the source that it mirrors, as text.
    pub(crate) fn sources(&self) -> &BTreeMap<u64, String> {
        &self.sources
    }

    /// The same, with `overrides` in place of every policy and of the store's defaults.
    #[must_use]
    pub fn with(self, overrides: Overrides) -> Self {
        Self { default: overrides.over(self.default), overrides, ..self }
    }

    /// True when no directory has any: the store's defaults hold everywhere.
    pub fn is_empty(&self) -> bool {
        self.by_inode.is_empty()
    }

    /// The policy from which the root inherits: the store's defaults.
    pub fn store_default(&self) -> WritePolicy {
        self.default
    }

    /// The policy of directory `inode`, given that of its parent.
    ///
    /// # Errors
    /// `Invalid` when a policy does not parse.
    pub fn below(&self, inherited: WritePolicy, inode: u64) -> Result<WritePolicy> {
        let Some(own) = self.by_inode.get(&inode) else { return Ok(inherited) };
        let mut policy = inherited;
        for (key, value) in own {
            check_policy(key, value)?;
            match key.as_str() {
                "chunker" => policy.chunker = ChunkerSpec::parse(value).context(|| "policy".to_string())?,
                "codec" => policy.codec.codec = CodecChoice::parse(value).context(|| "policy".to_string())?,
                "filters" => policy.codec.filters = value == "on",
                "budget" => policy.codec.budget = parse_budget(value).unwrap_or_default(),
                "dedup" => policy.dedup = value == "on",
                _ => {}
            }
        }
        Ok(self.overrides.over(policy))
    }

    /// The policy of the directory at `path`, or of its nearest existing ancestor.
    ///
    /// # Errors
    /// As [`Policies::below`].
    pub fn at(&self, meta: &dyn Meta, path: &StorePath) -> Result<WritePolicy> {
        let mut policy = self.below(self.default, ROOT_INODE)?;
        let mut inode = ROOT_INODE;
        for component in &path.components {
            let Some(child) = meta.lookup(At::Now, inode, component)? else { break };
            inode = child.number;
            policy = self.below(policy, inode)?;
        }
        Ok(policy)
    }

    /// The longest chunk that any policy allows, bytes.
    ///
    /// # Errors
    /// As [`Policies::below`].
    pub fn chunk_max(&self) -> Result<usize> {
        let mut max = self.default.chunker.max_len();
        for inode in self.by_inode.keys() {
            max = max.max(self.below(self.default, *inode)?.chunker.max_len());
        }
        Ok(max)
    }
}

/// Checks a policy's key and value.
///
/// # Errors
/// `Invalid`, saying what would be accepted.
pub fn check_policy(key: &str, value: &str) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    match key {
        "versions" if value == "all" || value == "none" || value.parse::<u32>().is_ok() => Ok(()),
        "versions" => invalid(format!("versions={value}: use a number, all or none")),
        "codec" => CodecChoice::parse(value).map(|_| ()).context(|| "policy codec".to_string()),
        "chunker" => ChunkerSpec::parse(value).map(|_| ()).context(|| "policy chunker".to_string()),
        "dedup" | "filters" if value == "on" || value == "off" => Ok(()),
        "dedup" | "filters" => invalid(format!("{key}={value}: use on or off")),
        SOURCE if Origin::parse(value).is_some() => Ok(()),
        AUTOMATIC if parse_age(value).is_some() => Ok(()),
        AUTOMATIC => invalid(format!("{key}={value}: use a number of days, as 30d, or forever")),
        PARITY => ParitySpec::parse(value).map(drop),
        "budget" if parse_budget(value).is_some() => Ok(()),
        "budget" => invalid(format!("budget={value}: use a share of the source from 1 to 99 (per cent)")),
        _ => invalid(format!(
            "`{key}` is not a policy; there are versions, codec, filters, budget, chunker, dedup and parity"
        )),
    }
}

fn parse_budget(value: &str) -> Option<Budget> {
    value.parse().ok().and_then(Budget::of_percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_days_or_hours() {
        let hours = |hours: u64| Some(Some(Duration::from_secs(hours * 3600)));
        assert_eq!(parse_age(AUTOMATIC_DEFAULT), hours(30 * 24));
        assert_eq!(parse_age("12h"), hours(12));
        assert_eq!(parse_age("forever"), Some(None));
        for bad in ["", "d", "30", "-1d", "1w", "99999999999999999d", "1.5d"] {
            assert_eq!(parse_age(bad), None, "{bad}");
        }
    }
}
