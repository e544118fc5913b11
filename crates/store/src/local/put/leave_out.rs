//! Entries of its source that a put leaves out: by patterns, by marks in directories, by ignore
//! files, and all except a list.
//!
//! Entries that are left out are neither stored nor removed from the store, as by `rsync` without
//! `--delete-excluded`. So the walker asks here about entries of the source, and about entries of
//! the store that the source does not have.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::patterns::Patterns;

/// The name of a mark of cache directories, and how it begins (bford.info/cachedir).
const CACHE_TAG: (&[u8], &[u8]) = (b"CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55");
/// More than any ignore file should have.
const IGNORE_BYTES_MAX: usize = 4 << 20;

/// The rules of a put.
#[derive(Clone, Debug, Default)]
pub struct LeaveOut {
    /// Names and paths below the source.
    pub patterns: Patterns,
    /// Names that mark a directory: its other entries are left out.
    pub if_present: Vec<Vec<u8>>,
    /// A valid `CACHEDIR.TAG` is such a mark, too.
    pub caches: bool,
    /// Names of files that list, like `.gitignore`, what to leave out below their directory.
    pub ignore_files: Vec<Vec<u8>>,
    /// Everything but these.
    pub all_but: Option<Listed>,
}

/// Paths below the source that are put, with all below them.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    paths: BTreeSet<Vec<u8>>,
    above: BTreeSet<Vec<u8>>,
}

impl Listed {
    /// These paths, without a slash at either end.
    pub fn new(paths: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut listed = Self::default();
        for path in paths {
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            listed.above.extend(slashes.map(|(at, _)| path[..at].to_vec()));
            listed.paths.insert(path);
        }
        listed
    }

    /// The paths.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(Vec::as_slice)
    }

    /// True for a path that is listed, or lies above or below one that is.
    fn has(&self, path: &[u8]) -> bool {
        let up_to = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        self.paths.contains(path)
            || self.above.contains(path)
            || self.paths.contains(b"".as_slice())
            || up_to.into_iter().any(|above| self.paths.contains(above))
    }
}

/// The rules that one directory adds.
#[derive(Clone, Default)]
pub(super) struct Here {
    /// The mark that the directory has: all other entries are left out.
    mark: Option<Vec<u8>>,
    ignored: Option<Arc<Ignored>>,
}

/// An ignore file, and those above it.
struct Ignored {
    rules: Gitignore,
    /// Bytes of a path below the source that lead to the file's directory, with the slash.
    prefix: usize,
    above: Option<Arc<Ignored>>,
}

impl LeaveOut {
    /// Finds the rules that a directory at `relative` with these `names` adds. Complaints about
    /// lines of ignore files go to `complain`.
    pub(super) fn enter(
        &self,
        dir: &OwnedFd,
        relative: &[u8],
        names: &[Box<[u8]>],
        above: &Here,
        complain: &mut dyn FnMut(&[u8], String),
    ) -> Here {
        let has = |name: &[u8]| names.binary_search_by(|found| (**found).cmp(name)).is_ok();
        let mark = self.if_present.iter().find(|name| has(name)).cloned();
        let is_cache = || self.caches && has(CACHE_TAG.0) && begins_with(dir, CACHE_TAG.0, CACHE_TAG.1);
        let mark = mark.or_else(|| is_cache().then(|| CACHE_TAG.0.to_vec()));
        let mut ignored = above.ignored.clone();
        for name in self.ignore_files.iter().filter(|name| has(name)) {
            match rules(dir, name, &mut |line, why| complain(name, format!("line {line}: {why}"))) {
                Ok(rules) => {
                    let prefix = if relative.is_empty() { 0 } else { relative.len() + 1 };
                    ignored = Some(Arc::new(Ignored { rules, prefix, above: ignored }));
                }
                Err(errno) => complain(name, errno.to_string()),
            }
        }
        Here { mark, ignored }
    }

    /// True if the entry `name` of a directory is left out; `path` is its path below the source.
    pub(super) fn has(&self, here: &Here, name: &[u8], path: &[u8], is_directory: bool) -> bool {
        here.mark.as_ref().is_some_and(|mark| mark != name)
            || self.all_but.as_ref().is_some_and(|listed| !listed.has(path))
            || (!self.patterns.is_empty() && self.patterns.matches(name, path))
            || here.ignores(path, is_directory)
    }
}

impl Here {
    /// The nearest rules that match an entry decide.
    fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let mut next = self.ignored.as_deref();
        while let Some(Ignored { rules, prefix, above }) = next {
            let below = std::ffi::OsStr::from_bytes(&path[*prefix..]);
            match rules.matched(below, is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => next = above.as_deref(),
            }
        }
        false
    }
}

fn read(dir: &OwnedFd, name: &[u8], most: usize) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut bytes = vec![0; most];
    let mut len = 0;
    while len < most {
        match rustix::io::read(&file, &mut bytes[len..])? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn begins_with(dir: &OwnedFd, name: &[u8], begin: &[u8]) -> bool {
    read(dir, name, begin.len()).is_ok_and(|bytes| bytes == begin)
}

fn rules(dir: &OwnedFd, name: &[u8], bad: &mut dyn FnMut(usize, String)) -> Result<Gitignore, Errno> {
    let text = read(dir, name, IGNORE_BYTES_MAX)?;
    let mut builder = GitignoreBuilder::new("");
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let added = match std::str::from_utf8(line) {
            Ok(line) => builder.add_line(None, line).map(drop).map_err(|error| error.to_string()),
            Err(_) => Err("it is not UTF-8".to_string()),
        };
        if let Err(why) = added {
            bad(at + 1, why);
        }
    }
    Ok(builder.build().unwrap_or_else(|error| {
        bad(0, error.to_string());
        Gitignore::empty()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_is_above_and_below() {
        let listed = Listed::new([b"a/b".to_vec(), b"c".to_vec()]);
        for path in [&b"a"[..], b"a/b", b"a/b/x/y", b"c", b"c/d"] {
            assert!(listed.has(path), "{path:?}");
        }
        for path in [&b"b"[..], b"a/c", b"a/bb", b"cc"] {
            assert!(!listed.has(path), "{path:?}");
        }
        assert!(Listed::new([Vec::new()]).has(b"anything"));
    }
}
