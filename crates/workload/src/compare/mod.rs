//! Compares two trees, to the last attribute.
//!
//! Both trees are walked together in the order of their names. Each entry is opened relative to its
//! directory, so that paths longer than the system's limit are compared as well. Holes are skipped
//! by asking the file system for the next data: a terabyte of holes costs nothing.

mod entry;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use self::entry::{Entry, Root, names, next_data};

/// A file may have so many allocated bytes more than the other one.
const SPARSE_SLACK: u64 = 64 << 10;
const BLOCK: usize = 256 << 10;

/// Where an entry or attribute was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first tree, the original.
    A,
    /// The second tree, the copy.
    B,
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
    Unknown,
}

/// One way in which two entries differ; `a` is the original, `b` the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "every field is the value in tree a or b")]
pub enum What {
    /// The entry (and for a directory all below) is missing in the other tree.
    OnlyIn(Side),
    /// Different kinds of entries; nothing more is compared.
    Kind { a: Kind, b: Kind },
    /// Permissions with setuid, setgid and sticky. Not compared for symlinks.
    Mode { a: u32, b: u32 },
    /// User and group ids.
    Owner { a: (u32, u32), b: (u32, u32) },
    /// Lengths of regular files; their bytes are not compared then.
    Size { a: u64, b: u64 },
    /// The first byte that differs.
    Content { offset: u64 },
    /// Modification times as seconds and nanoseconds since 1970.
    Mtime { a: (i64, u32), b: (i64, u32) },
    /// Where symlinks point.
    Target { a: PathBuf, b: PathBuf },
    /// Device numbers (major, minor).
    Device { a: (u32, u32), b: (u32, u32) },
    /// The names are linked to other files: the first name of each file's group, which is the
    /// file's own without other links.
    HardLink { a: PathBuf, b: PathBuf },
    /// An extended attribute, ACLs and capabilities among them; `None` where it is missing.
    Xattr { name: Vec<u8>, a: Option<Vec<u8>>, b: Option<Vec<u8>> },
    /// The copy allocates notably more: holes were filled. Fewer allocated bytes are no difference.
    Sparseness { a: u64, b: u64 },
    /// The caller may not read the entry, so its content was not compared.
    Unreadable { side: Side, error: String },
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The entry, relative to both roots; empty for the roots themselves.
    pub path: PathBuf,
    /// What differs.
    pub what: What,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path })?;
        match &self.what {
            What::OnlyIn(side) => write!(f, "only in {side:?}"),
            What::Mode { a, b } => write!(f, "mode {a:04o} != {b:04o}"),
            What::Xattr { name, a, b } => {
                let show =
                    |v: &Option<Vec<u8>>| v.as_ref().map_or("none".into(), |v| v.escape_ascii().to_string());
                write!(f, "xattr {}: {} != {}", name.escape_ascii(), show(a), show(b))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// The properties that [`compare_trees_with`] compares besides names, kinds, bytes, symlink targets
/// and device numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareOptions {
    /// Permissions.
    pub modes: bool,
    /// User and group ids.
    pub owners: bool,
    /// Hard links: which names are one file.
    pub mtimes: bool,
    /// Which names are one file.
    pub hard_links: bool,
    /// Extended attributes except `security.selinux`, which is the machine's policy.
    pub xattrs: bool,
    /// Holes.
    pub sparseness: bool,
    /// The attributes of the roots themselves.
    pub roots: bool,
}

impl Default for CompareOptions {
    /// All of them.
    fn default() -> Self {
        Self {
            modes: true,
            owners: true,
            mtimes: true,
            hard_links: true,
            xattrs: true,
            sparseness: true,
            roots: true,
        }
    }
}

/// All differences between the tree (or single file) `a` and its copy `b`, in the order of a sorted
/// walk; none if they are the same. Symlinks are compared, never followed, also at the roots.
///
/// # Errors
/// The roots cannot be examined, or reading fails for another reason than a missing permission
/// (that is a [`What::Unreadable`]).
pub fn compare_trees(a: &Path, b: &Path) -> io::Result<Vec<Difference>> {
    compare_trees_with(a, b, &CompareOptions::default())
}

/// As [`compare_trees`], looking only at what `options` name.
///
/// # Errors
/// As [`compare_trees`].
pub fn compare_trees_with(a: &Path, b: &Path, options: &CompareOptions) -> io::Result<Vec<Difference>> {
    let mut walk = Walk {
        options,
        found: Vec::new(),
        groups_a: HashMap::new(),
        groups_b: HashMap::new(),
        buffers: (vec![0; BLOCK], vec![0; BLOCK]),
    };
    let (a, b) = (Root::open(a)?, Root::open(b)?);
    walk.entry(&a.entry()?, &b.entry()?, Path::new(""))?;
    Ok(walk.found)
}

struct Walk<'o> {
    options: &'o CompareOptions,
    found: Vec<Difference>,
    /// The first name found of every file with several, by device and inode.
    groups_a: HashMap<(u64, u64), PathBuf>,
    groups_b: HashMap<(u64, u64), PathBuf>,
    buffers: (Vec<u8>, Vec<u8>),
}

impl Walk<'_> {
    fn differ(&mut self, path: &Path, what: What) {
        self.found.push(Difference { path: path.to_owned(), what });
    }

    fn entry(&mut self, a: &Entry<'_>, b: &Entry<'_>, path: &Path) -> io::Result<()> {
        let (kind_a, kind_b) = (a.kind(), b.kind());
        if kind_a != kind_b {
            self.differ(path, What::Kind { a: kind_a, b: kind_b });
            return Ok(());
        }
        if self.options.roots || !path.as_os_str().is_empty() {
            self.attributes(a, b, kind_a, path)?;
        }
        match kind_a {
            Kind::Directory => self.directory(a, b, path)?,
            Kind::File => self.file(a, b, path)?,
            Kind::Symlink => {
                let target = |e: &Entry<'_>| -> io::Result<PathBuf> {
                    let target = fs::readlinkat(e.dir, e.name, Vec::new())?;
                    Ok(PathBuf::from(OsStr::from_bytes(target.to_bytes())))
                };
                let (a, b) = (target(a).map_err(crate::about(path))?, target(b).map_err(crate::about(path))?);
                if a != b {
                    self.differ(path, What::Target { a, b });
                }
            }
            Kind::CharDevice | Kind::BlockDevice if a.device() != b.device() => {
                self.differ(path, What::Device { a: a.device(), b: b.device() });
            }
            _ => {}
        }
        Ok(())
    }

    fn attributes(&mut self, a: &Entry<'_>, b: &Entry<'_>, kind: Kind, path: &Path) -> io::Result<()> {
        let (mode_a, mode_b) = (a.stat.st_mode & 0o7777, b.stat.st_mode & 0o7777);
        if self.options.modes && kind != Kind::Symlink && mode_a != mode_b {
            self.differ(path, What::Mode { a: mode_a, b: mode_b });
        }
        let (owner_a, owner_b) = ((a.stat.st_uid, a.stat.st_gid), (b.stat.st_uid, b.stat.st_gid));
        if self.options.owners && owner_a != owner_b {
            self.differ(path, What::Owner { a: owner_a, b: owner_b });
        }
        if self.options.mtimes && a.mtime() != b.mtime() {
            self.differ(path, What::Mtime { a: a.mtime(), b: b.mtime() });
        }
        if self.options.hard_links && kind != Kind::Directory {
            let (first_a, first_b) =
                (leader(&mut self.groups_a, a, path), leader(&mut self.groups_b, b, path));
            if first_a != first_b {
                self.differ(path, What::HardLink { a: first_a, b: first_b });
            }
        }
        if self.options.xattrs {
            let (all_a, all_b) =
                (a.xattrs().map_err(crate::about(path))?, b.xattrs().map_err(crate::about(path))?);
            for (name, a, b) in merged(all_a, all_b) {
                if a != b {
                    self.differ(path, What::Xattr { name, a, b });
                }
            }
        }
        Ok(())
    }

    fn directory(&mut self, a: &Entry<'_>, b: &Entry<'_>, path: &Path) -> io::Result<()> {
        let (Some(dir_a), Some(dir_b)) = (
            self.open(a, OFlags::DIRECTORY, Side::A, path)?,
            self.open(b, OFlags::DIRECTORY, Side::B, path)?,
        ) else {
            return Ok(());
        };
        let names_a = names(&dir_a).map_err(crate::about(path))?;
        let names_b = names(&dir_b).map_err(crate::about(path))?;
        for (name, in_a, in_b) in merged(names_a, names_b) {
            let child = path.join(OsStr::from_bytes(name.to_bytes()));
            match (in_a, in_b) {
                (Some(()), Some(())) => {
                    let a = Entry::new(&dir_a, &name).map_err(crate::about(&child))?;
                    let b = Entry::new(&dir_b, &name).map_err(crate::about(&child))?;
                    self.entry(&a, &b, &child)?;
                }
                (Some(()), None) => self.differ(&child, What::OnlyIn(Side::A)),
                _ => self.differ(&child, What::OnlyIn(Side::B)),
            }
        }
        Ok(())
    }

    fn file(&mut self, a: &Entry<'_>, b: &Entry<'_>, path: &Path) -> io::Result<()> {
        if self.options.sparseness && b.allocated() > a.allocated() + SPARSE_SLACK + a.allocated() / 8 {
            self.differ(path, What::Sparseness { a: a.allocated(), b: b.allocated() });
        }
        if a.len() != b.len() {
            self.differ(path, What::Size { a: a.len(), b: b.len() });
            return Ok(());
        }
        if a.len() == 0 {
            return Ok(());
        }
        let (Some(file_a), Some(file_b)) =
            (self.open(a, OFlags::empty(), Side::A, path)?, self.open(b, OFlags::empty(), Side::B, path)?)
        else {
            return Ok(());
        };
        let offset =
            self.first_difference(&file_a.into(), &file_b.into(), a.len()).map_err(crate::about(path))?;
        if let Some(offset) = offset {
            self.differ(path, What::Content { offset });
        }
        Ok(())
    }

    fn first_difference(&mut self, a: &File, b: &File, len: u64) -> io::Result<Option<u64>> {
        let (buffer_a, buffer_b) = &mut self.buffers;
        let mut at = 0;
        while at < len {
            // Small files are read at once; asking for their holes would double the calls.
            if len > BLOCK as u64 {
                at = next_data(a, at, len)?.min(next_data(b, at, len)?);
            }
            let want = usize::try_from(len - at).map_or(BLOCK, |left| left.min(BLOCK));
            let (piece_a, piece_b) = (&mut buffer_a[..want], &mut buffer_b[..want]);
            a.read_exact_at(piece_a, at)?;
            b.read_exact_at(piece_b, at)?;
            if piece_a != piece_b {
                let same = piece_a.iter().zip(&*piece_b).take_while(|(x, y)| x == y).count();
                return Ok(Some(at + same as u64));
            }
            at += want as u64;
        }
        Ok(None)
    }

    /// Opens the entry, or records that the caller may not.
    fn open(
        &mut self,
        entry: &Entry<'_>,
        flags: OFlags,
        side: Side,
        path: &Path,
    ) -> io::Result<Option<OwnedFd>> {
        match entry.open(flags) {
            Ok(fd) => Ok(Some(fd)),
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                self.differ(path, What::Unreadable { side, error: io::Error::from(error).to_string() });
                Ok(None)
            }
            Err(error) => Err(crate::about(path)(error.into())),
        }
    }
}

/// The first name of the file that `entry` is a name of.
fn leader(groups: &mut HashMap<(u64, u64), PathBuf>, entry: &Entry<'_>, path: &Path) -> PathBuf {
    if entry.stat.st_nlink < 2 {
        return path.to_owned();
    }
    groups.entry((entry.stat.st_dev, entry.stat.st_ino)).or_insert_with(|| path.to_owned()).clone()
}

/// Merges two lists sorted by their keys: every key with its value on each side.
fn merged<K: Ord, V>(a: Vec<(K, V)>, b: Vec<(K, V)>) -> Vec<(K, Option<V>, Option<V>)> {
    let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
    let mut out = Vec::new();
    loop {
        let order = match (a.peek(), b.peek()) {
            (Some((x, _)), Some((y, _))) => x.cmp(y),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return out,
        };
        let from_a = if order.is_le() { a.next() } else { None };
        let from_b = if order.is_ge() { b.next() } else { None };
        match (from_a, from_b) {
            (Some((key, x)), y) => out.push((key, Some(x), y.map(|(_, y)| y))),
            (None, Some((key, y))) => out.push((key, None, Some(y))),
            (None, None) => return out,
        }
    }
}

#[cfg(test)]
mod tests;
