//! The kernel's list of mounts, and unmounting.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// The type that our mounts have in the kernel's list.
pub const FS_TYPE: &str = "fuse.outrigger";

/// The extended attribute of a writable mount's root that says where its store is; it is not
/// listed. The kernel's list has only the path that the store had when it was mounted.
pub const WHEREABOUTS: &str = "user.outrigger.store";
/// Bytes of it at most.
const WHEREABOUTS_MAX: usize = 64 << 10;

/// A mount's answer about its store's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// It is here.
    At(PathBuf),
    /// It was removed: a sentence that says so, and what is lost.
    Lost(String),
}

impl Whereabouts {
    /// Asks the mount at `point`; `None` where none answers that knows.
    #[must_use]
    pub fn of(point: &Path) -> Option<Self> {
        let mut value = vec![0; WHEREABOUTS_MAX];
        let len = rustix::fs::getxattr(point, WHEREABOUTS, &mut value[..]).ok()?;
        Self::decode(&value[..len])
    }

    /// The attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::At(path) => [b"at ", path.as_os_str().as_bytes()].concat(),
            Self::Lost(why) => format!("lost {why}").into_bytes(),
        }
    }

    fn decode(value: &[u8]) -> Option<Self> {
        if let Some(path) = value.strip_prefix(b"at ") {
            return Some(Self::At(OsString::from_vec(path.to_vec()).into()));
        }
        let why = value.strip_prefix(b"lost ")?;
        Some(Self::Lost(String::from_utf8_lossy(why).into_owned()))
    }
}

/// A mount of this process's name space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountRow {
    /// Where.
    pub point: PathBuf,
    /// Type, such as `ext4` or [`FS_TYPE`].
    pub kind: String,
    /// The mounted source: for our mounts, the store's directory.
    pub source: PathBuf,
    /// The device number that its files have.
    pub device: u64,
    /// Nothing can be written to it.
    pub read_only: bool,
}

/// A path with symlinks resolved except in its last component, which is not touched: the server of
/// a mount there may be dead.
///
/// # Errors
/// When the directory above cannot be resolved.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => path.canonicalize(),
    }
}

/// The topmost mount at exactly `point`, a resolved path.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn at(point: &Path) -> io::Result<Option<MountRow>> {
    Ok(all()?.into_iter().rfind(|row| row.point == point))
}

/// The mounts of the store that this path led to when they began, by processes that live. A comma
/// in the path is `_` in the kernel's list.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn of_store(store: &Path) -> io::Result<Vec<MountRow>> {
    let source = OsString::from_vec(
        store.as_os_str().as_bytes().iter().map(|&byte| if byte == b',' { b'_' } else { byte }).collect(),
    );
    let is_it =
        |row: &MountRow| row.kind == FS_TYPE && row.source.as_os_str() == source && !is_dead(&row.point);
    Ok(all()?.into_iter().filter(is_it).collect())
}

fn all() -> io::Result<Vec<MountRow>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// True if the process that served the mount at `point` has ended.
pub fn is_dead(point: &Path) -> bool {
    // Unlike attributes, the kernel caches none of this.
    matches!(rustix::fs::statfs(point), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// One line: `id parent major:minor root point options [optional…] - type source options`.
fn parse(line: &[u8]) -> Option<MountRow> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (major, minor) = std::str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let point = unescape(fields.nth(1)?);
    let read_only = fields.next()?.split(|&byte| byte == b',').any(|option| option == b"ro");
    fields.by_ref().find(|field| *field == b"-")?;
    let kind = String::from_utf8(fields.next()?.to_vec()).ok()?;
    Some(MountRow { point: point.into(), kind, source: unescape(fields.next()?).into(), device, read_only })
}

/// Blanks and backslashes are written as three octal digits after a backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let value = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(value.unwrap_or(*first));
        if value.is_some() {
            rest = &tail[3..];
        }
    }
    OsString::from_vec(out)
}

/// Unmounts what is mounted at `point`. With `lazy` it vanishes from the tree at once, and ends
/// when its last file is closed.
///
/// # Errors
/// `ResourceBusy` when files in it are open, and what else the kernel or `fusermount3` says.
pub fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(point, flags) {
        // Only root may; for others the helper does it that also mounted.
        Err(Errno::PERM) => unmount_by_helper(point, lazy),
        unmounted => Ok(unmounted?),
    }
}

fn unmount_by_helper(point: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.args(["-u", "-q"]).args(lazy.then_some("-z")).arg("--").arg(point);
    let output = command.output().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot run fusermount3 (package fuse3): {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said.trim().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line = br"36 35 0:44 / /mnt/two\040words\134x rw,nosuid shared:5 master:1 - fuse.outrigger /a\040b rw,user_id=0";
        let row = parse(line).unwrap();
        assert_eq!(row.point, Path::new("/mnt/two words\\x"));
        assert_eq!((row.kind.as_str(), row.source.as_path()), (FS_TYPE, Path::new("/a b")));
        assert_eq!((row.device, row.read_only), (rustix::fs::makedev(0, 44), false));
        let line = br"37 35 0:45 / /mnt ro,nosuid - fuse.outrigger /a rw,user_id=0";
        assert!(parse(line).unwrap().read_only);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn what_a_mount_says_of_its_store_is_understood() {
        for said in [Whereabouts::At("/a b/c".into()), Whereabouts::Lost("it was removed".to_owned())] {
            assert_eq!(Whereabouts::decode(&said.encode()), Some(said));
        }
        assert_eq!(Whereabouts::decode(b"elsewhere"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).unwrap().is_some());
        assert_eq!(at(Path::new("/no/such/place")).unwrap(), None);
    }

    #[test]
    fn the_last_component_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("nowhere", real.join("link")).unwrap();
        assert_eq!(resolve(&real.join("link")).unwrap(), real.join("link"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
    }
}
