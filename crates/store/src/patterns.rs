//! Patterns of names and paths, as `put --exclude`, `get --include` and `find` have them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::error::{Error, ErrorKind, Result};
use crate::text::show;

/// Patterns of entries. One without `/` is matched against names anywhere; one with, against the
/// path below the top: `/target` and `./target` are the entry `target` of the top itself.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    names: GlobSet,
    paths: GlobSet,
    /// Names and paths that are not UTF-8, which patterns cannot express.
    plain_names: Vec<Vec<u8>>,
    plain_paths: Vec<Vec<u8>>,
}

impl Patterns {
    /// Parses `patterns`, which came from the option `what`.
    ///
    /// # Errors
    /// `Invalid` for text that is no pattern, or could never match.
    pub fn new(what: &str, patterns: &[impl AsRef<[u8]>]) -> Result<Self> {
        let bad = |pattern: &[u8], why: String| {
            Error::new(ErrorKind::Invalid, format!("{what} `{}`: {why}", show(pattern)))
        };
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        let mut all = Self::default();
        for given in patterns.iter().map(AsRef::as_ref) {
            let end = given.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
            let mut pattern = &given[..end];
            let is_path = pattern.contains(&b'/');
            while let Some(rest) = pattern.strip_prefix(b"./").or_else(|| pattern.strip_prefix(b"/")) {
                pattern = rest;
            }
            if matches!(pattern, b"" | b".") {
                return Err(bad(given, "it names nothing below the top".to_string()));
            }
            let Ok(text) = std::str::from_utf8(pattern) else {
                if pattern.iter().any(|byte| b"*?[]{}\\".contains(byte)) {
                    return Err(bad(
                        given,
                        "bytes that are not UTF-8 cannot stand beside wildcards".to_string(),
                    ));
                }
                if is_path { &mut all.plain_paths } else { &mut all.plain_names }.push(pattern.to_vec());
                continue;
            };
            let glob = GlobBuilder::new(text).literal_separator(true).build();
            let glob = glob.map_err(|error| bad(given, error.kind().to_string()))?;
            if is_path { &mut paths } else { &mut names }.add(glob);
        }
        let built = |set: GlobSetBuilder| {
            set.build().map_err(|error| Error::new(ErrorKind::Invalid, format!("{what}: {error}")))
        };
        (all.names, all.paths) = (built(names)?, built(paths)?);
        Ok(all)
    }

    /// True if an entry matches, by its name or by its path below the top.
    pub fn matches(&self, name: &[u8], path: &[u8]) -> bool {
        let matches = |set: &GlobSet, plain: &[Vec<u8>], bytes: &[u8]| {
            (!set.is_empty() && set.is_match(Path::new(OsStr::from_bytes(bytes))))
                || plain.iter().any(|plain| plain == bytes)
        };
        matches(&self.names, &self.plain_names, name) || matches(&self.paths, &self.plain_paths, path)
    }

    /// True when nothing matches.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.paths.is_empty()
            && self.plain_names.is_empty()
            && self.plain_paths.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_elsewhere() {
        let matches = |pattern: &[u8], path: &[u8]| {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap();
            Patterns::new("--exclude", &[pattern]).unwrap().matches(name, path)
        };
        for anchored in [&b"/target"[..], b"./target", b"/target/", b".//target"] {
            assert!(matches(anchored, b"target") && !matches(anchored, b"a/target"));
        }
        assert!(matches(b"target", b"target") && matches(b"target/", b"a/target"));
        assert!(matches(b"*.o", b"a/b.o") && !matches(b"/*.o", b"a/b.o") && matches(b"a/*.o", b"a/b.o"));
        assert!(matches(b"a/**/c", b"a/b/b/c") && matches(b"**/b/c", b"a/b/c"));
        assert!(matches(b"caf\xe9", b"a/caf\xe9") && !matches(b"caf\xe9", b"cafe"));
        assert!(matches(b"/a/\xff", b"a/\xff") && !matches(b"/\xff", b"a/\xff"));
        for bad in [&b""[..], b"/", b"./", b"a[", b"*\xff"] {
            assert_eq!(
                Patterns::new("--exclude", &[bad]).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{}",
                show(bad)
            );
        }
        assert!(
            Patterns::new("--exclude", &[b""; 0]).unwrap().is_empty()
                && !Patterns::new("--exclude", &[b"\xff"]).unwrap().is_empty()
        );
    }
}
