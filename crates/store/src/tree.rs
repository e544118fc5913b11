//! Paths in a store, and what they stand for.

use std::collections::BTreeMap;

use outrigger_format::catalogue::FileKind;
use outrigger_format::{ChunkerSpec, CodecChoice};
use outrigger_offload::{Budget, Compression};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::local::put::{Origin, SOURCE};
use crate::meta::{At, Inode, Meta, ROOT_INODE};
use crate::ops::retention::{AUTOMATIC, parse_age};
use crate::store::Store;

/// A path within a store: its components. Absolute and relative paths mean the same.
#[derive(Clone, PartialEq, Eq, Debug, Default, PartialOrd, Ord)]
pub struct StorePath {
    /// Names from the root down.
    pub components: Vec<Vec<u8>>,
}

/// The longest name a directory may hold, bytes.
pub const NAME_MAX: usize = 255;

/// Checks that a name can stand in a directory.
///
/// # Errors
/// `Invalid`, saying why.
pub fn check_name(name: &[u8]) -> Result<()> {
    let why = match name {
        b"" => "is empty",
        b"." | b".." => "is not a name",
        _ if name.len() > NAME_MAX => "is longer than 255 bytes",
        _ if name.contains(&b'/') || name.contains(&0) => "holds a slash or a zero byte",
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, format!("`{}` {why}", show(name))))
}

/// True for a character that a terminal obeys and does not show: a control, or a mark of text direction (Unicode's Bidi_Control).
pub fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name, a path or another text of others, in one line: what is not UTF-8, and what a terminal would obey, is escaped.
pub fn show(bytes: &[u8]) -> String {
    show_but(bytes, "")
}

/// As [`show`], where these characters stay what they are.
pub fn show_but(bytes: &[u8], stay: &str) -> String {
    let mut out = String::new();
    for part in bytes.utf8_chunks() {
        for c in part.valid().chars() {
            if is_obeyed(c) && !stay.contains(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        part.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out
}

impl StorePath {
    /// Parses `a/b/c`; empty components and `.` are dropped.
    ///
    /// # Errors
    /// `Invalid` for `..` and names that no directory can hold.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let parts = bytes.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let components: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        for component in &components {
            check_name(component).context(|| format!("path `{}`", show(bytes)))?;
        }
        Ok(Self { components })
    }

    /// The last name; `None` for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.components.last().map(Vec::as_slice)
    }

    /// The directory that holds it; the root for the root.
    #[must_use]
    pub fn parent(&self) -> Self {
        let mut components = self.components.clone();
        components.pop();
        Self { components }
    }

    /// This path with one more name.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut components = self.components.clone();
        components.push(name.to_vec());
        Self { components }
    }

    /// The path's bytes, without a leading slash; `/` for the root.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.components.is_empty() { b"/".to_vec() } else { self.components.join(&b'/') }
    }
}

impl std::fmt::Display for StorePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&show(&self.to_bytes()))
    }
}

/// What `path` stands for, or `None`.
///
/// # Errors
/// When the database cannot be read.
pub fn find(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Option<Inode>> {
    let mut inode = meta.inode(at, ROOT_INODE)?;
    for component in &path.components {
        let Some(parent) = inode.filter(|inode| inode.attributes.kind == FileKind::Directory) else {
            return Ok(None);
        };
        inode = meta.lookup(at, parent.number, component)?;
    }
    Ok(inode)
}

/// What `path` stands for.
///
/// # Errors
/// `NotFound`.
pub fn require(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Inode> {
    find(meta, at, path)?
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("`{path}` is not in the store")))
}

/// Policies that commands note about a directory, and people do not set.
pub const NOTES: [&str; 2] = [SOURCE, AUTOMATIC];

/// How files below a directory are cut and compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePolicy {
    /// How to cut.
    pub chunker: ChunkerSpec,
    /// How to compress.
    pub codec: Compression,
    /// Whether to look for what is stored already.
    pub dedup: bool,
}

/// What a command or a mount says over all policies: it holds for everything that it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// How to cut.
    pub chunker: Option<ChunkerSpec>,
    /// Whether to look for what is stored already.
    pub dedup: Option<bool>,
}

impl Overrides {
    fn over(self, policy: WritePolicy) -> WritePolicy {
        let WritePolicy { chunker, codec, dedup } = policy;
        WritePolicy { chunker: self.chunker.unwrap_or(chunker), codec, dedup: self.dedup.unwrap_or(dedup) }
    }
}

/// All policies of a store, for looking up what holds in a directory.
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

    /// The same, with `overrides` over every one of them, and over the store's defaults.
    #[must_use]
    pub fn with(self, overrides: Overrides) -> Self {
        Self { default: overrides.over(self.default), overrides, ..self }
    }

    /// True when no directory has any: the store's defaults hold everywhere.
    pub fn is_empty(&self) -> bool {
        self.by_inode.is_empty()
    }

    /// What holds in the root's parent, so to speak: the store's defaults.
    pub fn store_default(&self) -> WritePolicy {
        self.default
    }

    /// What holds in directory `inode`, given what holds in its parent.
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

    /// What holds in the directory that `path` leads to, as far as it exists.
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
        "budget" if parse_budget(value).is_some() => Ok(()),
        "budget" => invalid(format!("budget={value}: use a share of the source from 1 to 99 (per cent)")),
        _ => invalid(format!(
            "`{key}` is not a policy; there are versions, codec, filters, budget, chunker and dedup"
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
    fn paths_are_normalised_and_checked() {
        assert_eq!(StorePath::parse(b"/a//./b/").unwrap().to_bytes(), b"a/b");
        assert_eq!(StorePath::parse(b"").unwrap().to_bytes(), b"/");
        assert_eq!(StorePath::parse(b"a/../b").unwrap_err().kind(), ErrorKind::Invalid);
        assert!(StorePath::parse(&[b'x'; 256]).is_err());
        assert_eq!(show(b"a\xff\n\xc3\xa9"), "a\\xff\\n\u{e9}");
    }
}
