//! The place of a mirrored directory: a target of `put` remembers it of its source.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::host::Identity;
use crate::text::{escape, show, unescape};

/// A directory of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The host.
    pub host: Identity,
    /// The file system that it lies on.
    pub filesystem: Filesystem,
    /// Its path, without symbolic links.
    pub path: PathBuf,
}

/// A file system's identity, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filesystem {
    /// Its type: the number that the kernel has for it.
    pub kind: u64,
    /// Its number, for types with the same number at every mount.
    pub id: Option<u64>,
}

/// Types whose number is stored on the disk: ext, Btrfs, ZFS.
const NUMBERED: [u64; 3] = [0xef53, 0x9123_683e, 0x2fc1_2fc1];

impl Origin {
    /// Where a directory of this host lies.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(path: &Path) -> Result<Self> {
        let what = || format!("cannot read {}", path.display());
        let real = std::fs::canonicalize(path).context(what)?;
        let kind = rustix::fs::statfs(&real).context(what)?.f_type as u64 & 0xffff_ffff;
        let id = rustix::fs::statvfs(&real).context(what)?.f_fsid;
        let id = Some(id).filter(|&id| id != 0 && NUMBERED.contains(&kind));
        Ok(Self { host: Identity::this(), filesystem: Filesystem { kind, id }, path: real })
    }

    /// A repository of another program, by its id: it is the same from every host.
    pub fn of_repository(program: &str, id: &str) -> Self {
        Self {
            host: Identity { name: program.to_string(), machine: None },
            filesystem: Filesystem { kind: 0, id: None },
            path: PathBuf::from(id),
        }
    }

    /// Its stored form.
    pub fn to_text(&self) -> String {
        let machine = self.host.machine.as_deref().unwrap_or("-");
        let Filesystem { kind, id } = self.filesystem;
        let id = id.map_or("-".to_string(), |id| format!("{id:x}"));
        let path = escape(self.path.as_os_str().as_bytes());
        format!("{} {machine} {kind:x}:{id} {path}", escape(self.host.name.as_bytes()))
    }

    /// Parses the result of [`Origin::to_text`]; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (name, machine, filesystem, path) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (kind, id) = filesystem.split_once(':')?;
        Some(Self {
            host: Identity {
                name: String::from_utf8_lossy(&unescape(name)).into_owned(),
                machine: Some(machine).filter(|machine| *machine != "-").map(str::to_string),
            },
            filesystem: Filesystem {
                kind: u64::from_str_radix(kind, 16).ok()?,
                id: u64::from_str_radix(id, 16).ok(),
            },
            path: PathBuf::from(OsStr::from_bytes(&unescape(path))),
        })
    }

    /// True when both are the same directory of the same host, even if another file system is
    /// mounted there.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.host.is_same(&other.host) && self.path == other.path
    }

    /// True when this is at `below` in `other`.
    pub fn is_within(&self, other: &Self, below: &[Vec<u8>]) -> bool {
        let path = below.iter().fold(other.path.clone(), |path, name| path.join(OsStr::from_bytes(name)));
        self.host.is_same(&other.host) && self.path == path
    }
}

impl Filesystem {
    /// True unless they are known to be different.
    pub fn is_same(self, other: Self) -> bool {
        self.kind == other.kind && self.id.zip(other.id).is_none_or(|(one, two)| one == two)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.name, show(self.path.as_os_str().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(name: &str, machine: Option<&str>, id: Option<u64>, path: &str) -> Origin {
        Origin {
            host: Identity { name: name.to_string(), machine: machine.map(str::to_string) },
            filesystem: Filesystem { kind: 0xef53, id },
            path: path.into(),
        }
    }

    #[test]
    fn origins_are_kept_as_text() {
        for one in [origin("a b", Some("12"), Some(7), "/x y/%"), origin("h", None, None, "/")] {
            assert_eq!(Origin::parse(&one.to_text()), Some(one));
        }
        assert_eq!(Origin::parse("nonsense"), None);
    }

    #[test]
    fn what_is_not_known_does_not_tell_two_apart() {
        let one = origin("h", Some("1"), Some(1), "/a");
        assert!(one.is_same_place(&origin("h", None, None, "/a")));
        assert!(!one.is_same_place(&origin("h", Some("2"), None, "/a")));
        assert!(!one.is_same_place(&origin("g", Some("1"), None, "/a")));
        assert!(one.filesystem.is_same(Filesystem { kind: 0xef53, id: None }));
        assert!(!one.filesystem.is_same(Filesystem { kind: 0xef53, id: Some(2) }));
        assert!(origin("h", None, None, "/a/b/c").is_within(&one, &[b"b".to_vec(), b"c".to_vec()]));
    }
}
