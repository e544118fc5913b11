//! Whether two trees are the same, to the last attribute.
//!
//! Both trees are walked together in the order of their names, each entry opened relative to its directory, so that
//! paths longer than the system's limit are compared as well. Holes are skipped by asking the file system for the
//! next data: a terabyte of nothing costs nothing.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// More allocated bytes than this above the other file's are noticed.
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
    /// The names are linked to other files: the first name of each file's group, which is the file's own without
    /// other links.
    HardLink { a: PathBuf, b: PathBuf },
    /// An extended attribute, ACLs and capabilities among them; `None` where it is missing.
    Xattr { name: Vec<u8>, a: Option<Vec<u8>>, b: Option<Vec<u8>> },
    /// The copy allocates notably more: holes were filled. Fewer allocated bytes are no difference.
    Sparseness { a: u64, b: u64 },
    /// The caller may not read the entry, so its content was not compared.
    Unreadable { side: Side, error: String },
}

/// Something that is not the same.
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

/// What [`compare_trees_with`] looks at besides names, kinds, bytes, symlink targets and device numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompareOptions {
    /// Permissions.
    pub modes: bool,
    /// User and group ids.
    pub owners: bool,
    /// Modification times.
    pub mtimes: bool,
    /// Which names are one file.
    pub hard_links: bool,
    /// Extended attributes except `security.selinux`, which is the machine's policy.
    pub xattrs: bool,
    /// Whether holes stayed holes.
    pub sparseness: bool,
    /// The attributes of the roots themselves.
    pub roots: bool,
}

impl Default for CompareOptions {
    /// Everything.
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

/// All differences between the tree (or single file) `a` and its copy `b`, in the order of a sorted walk; none if
/// they are the same. Symlinks are compared, never followed, the roots included.
///
/// # Errors
/// The roots cannot be examined, or reading fails otherwise than for want of permission (that is a
/// [`What::Unreadable`]).
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

/// A root as a directory and a name in it, so that it is treated as every other entry.
struct Root {
    parent: OwnedFd,
    name: CString,
}

impl Root {
    fn open(path: &Path) -> io::Result<Self> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
            (Some(parent), Some(name)) => (parent, name),
            _ => (path, OsStr::new(".")),
        };
        let parent =
            fs::openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(io::Error::from)
                .map_err(crate::about(path))?;
        Ok(Self { parent, name: CString::new(name.as_bytes())? })
    }

    fn entry(&self) -> io::Result<Entry<'_>> {
        Entry::new(&self.parent, &self.name)
            .map_err(crate::about(Path::new(OsStr::from_bytes(self.name.to_bytes()))))
    }
}

/// An entry of an open directory.
struct Entry<'d> {
    dir: &'d OwnedFd,
    name: &'d CStr,
    stat: Stat,
}

impl<'d> Entry<'d> {
    fn new(dir: &'d OwnedFd, name: &'d CStr) -> io::Result<Self> {
        Ok(Self { dir, name, stat: fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)? })
    }

    fn kind(&self) -> Kind {
        match FileType::from_raw_mode(self.stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            _ => Kind::Unknown,
        }
    }

    fn len(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    fn allocated(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0) * 512
    }

    fn mtime(&self) -> (i64, u32) {
        // The width and sign of these fields differ between architectures.
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        (self.stat.st_mtime as i64, self.stat.st_mtime_nsec as u32)
    }

    fn device(&self) -> (u32, u32) {
        (fs::major(self.stat.st_rdev), fs::minor(self.stat.st_rdev))
    }

    fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Reading must not move access times where we own the file; O_NOATIME is refused elsewhere.
        match fs::openat(self.dir, self.name, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => fs::openat(self.dir, self.name, flags, Mode::empty()),
            other => other,
        }
    }

    /// The entry as a path through its open directory: the xattr calls know no directories.
    fn magic_path(&self) -> CString {
        let mut path = format!("/proc/self/fd/{}/", self.dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name.to_bytes());
        CString::new(path).expect("neither part holds a zero byte")
    }

    /// All extended attributes, sorted by name. File systems without them have none.
    fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.magic_path();
        let names = match growing(|buffer| fs::llistxattr(&*path, buffer)) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut all = Vec::new();
        for name in
            names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && *name != b"security.selinux")
        {
            match growing(|buffer| fs::lgetxattr(&*path, name, buffer)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // Listed, but not for us to read (trusted.* without the capability), or just gone.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        all.sort();
        Ok(all)
    }
}

/// Calls `read` with larger buffers until the result fits.
fn growing(mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(error) => return Err(error),
        }
    }
}

struct Walk<'o> {
    options: &'o CompareOptions,
    found: Vec<Difference>,
    /// The first name met of every file with several, by device and inode.
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

    /// Opens the entry, or notes that the caller may not.
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

/// Where data is next, from `at` on; `len` if only a hole follows. File systems without holes are data throughout.
fn next_data(file: &File, at: u64, len: u64) -> io::Result<u64> {
    match fs::seek(file, fs::SeekFrom::Data(at)) {
        Ok(next) => Ok(next.min(len)),
        Err(Errno::NXIO) => Ok(len),
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

/// The names in an open directory, sorted, without `.` and `..`.
fn names(dir: &OwnedFd) -> io::Result<Vec<(CString, ())>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push((name, ()));
        }
    }
    names.sort();
    Ok(names)
}

/// Two lists sorted by their keys, as one: every key with its value on each side.
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
mod tests {
    use std::fs as std_fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::XattrFlags;

    use super::*;

    /// Two equal trees with one of everything that `change` may spoil in the second.
    fn spoiled(change: impl FnOnce(&Path)) -> Vec<Difference> {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for root in [&a, &b] {
            std_fs::create_dir_all(root.join("sub")).unwrap();
            std_fs::write(root.join("file"), vec![7u8; 600_000]).unwrap();
            std_fs::write(root.join("sub/other"), b"other").unwrap();
            std_fs::hard_link(root.join("file"), root.join("linked")).unwrap();
            symlink("file", root.join("symlink")).unwrap();
            let sparse = File::create(root.join("sparse")).unwrap();
            sparse.set_len(4 << 20).unwrap();
            sparse.write_all_at(b"end", (4 << 20) - 3).unwrap();
            fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
            for name in ["file", "sub/other", "symlink", "sparse", "fifo", "sub", "."] {
                crate::set_mtime(&root.join(name), 1_000_000, 5).unwrap();
            }
        }
        assert_eq!(compare_trees(&a, &b).unwrap(), [], "the same before the change");
        change(&b);
        // The change moved the times of the directories it was in; only the change itself is asked for.
        for name in ["sub", "."] {
            crate::set_mtime(&b.join(name), 1_000_000, 5).unwrap();
        }
        let found = compare_trees(&a, &b).unwrap();
        assert!(found.iter().all(|d| !d.to_string().is_empty()));
        found
    }

    fn touch(path: &Path) {
        crate::set_mtime(path, 1_000_000, 5).unwrap();
    }

    fn only(path: &str, what: What) -> Vec<Difference> {
        vec![Difference { path: PathBuf::from(path), what }]
    }

    #[test]
    fn notices_missing_and_extra_entries() {
        let found = spoiled(|b| std_fs::remove_file(b.join("sub/other")).unwrap());
        assert_eq!(found, only("sub/other", What::OnlyIn(Side::A)));
        let found = spoiled(|b| std_fs::create_dir(b.join("sub/new")).unwrap());
        assert_eq!(found, only("sub/new", What::OnlyIn(Side::B)));
    }

    #[test]
    fn notices_another_kind() {
        let found = spoiled(|b| {
            std_fs::remove_file(b.join("sub/other")).unwrap();
            std_fs::create_dir(b.join("sub/other")).unwrap();
        });
        assert_eq!(found, only("sub/other", What::Kind { a: Kind::File, b: Kind::Directory }));
    }

    #[test]
    fn notices_bytes_and_sizes() {
        let found = spoiled(|b| {
            let file = File::options().write(true).open(b.join("file")).unwrap();
            file.write_all_at(b"x", 599_999).unwrap();
            touch(&b.join("file"));
        });
        assert_eq!(
            found,
            only("file", What::Content { offset: 599_999 })
                .into_iter()
                .chain(only("linked", What::Content { offset: 599_999 }))
                .collect::<Vec<_>>()
        );
        let found = spoiled(|b| {
            std_fs::write(b.join("sub/other"), b"others").unwrap();
            touch(&b.join("sub/other"));
        });
        assert_eq!(found, only("sub/other", What::Size { a: 5, b: 6 }));
        let found = spoiled(|b| {
            File::options().write(true).open(b.join("sparse")).unwrap().write_all_at(b"!", 2 << 20).unwrap();
            touch(&b.join("sparse"));
        });
        assert_eq!(found, only("sparse", What::Content { offset: 2 << 20 }));
    }

    #[test]
    fn notices_modes_and_times() {
        let mode = |mode| std_fs::Permissions::from_mode(mode);
        let found = spoiled(|b| {
            std_fs::set_permissions(b.join("sub/other"), mode(0o600)).unwrap();
        });
        assert!(matches!(found[..], [Difference { what: What::Mode { b: 0o600, .. }, .. }]), "{found:?}");
        let found = spoiled(|b| std_fs::set_permissions(b.join("sub"), mode(0o1755)).unwrap());
        assert!(matches!(found[..], [Difference { what: What::Mode { b: 0o1755, .. }, .. }]), "{found:?}");
        for name in ["sub/other", "symlink", "fifo"] {
            let found = spoiled(|b| crate::set_mtime(&b.join(name), 1_000_000, 6).unwrap());
            assert_eq!(found, only(name, What::Mtime { a: (1_000_000, 5), b: (1_000_000, 6) }));
        }
    }

    #[test]
    fn notices_owners_where_they_can_be_changed() {
        let found = spoiled(|b| {
            let _ = std::os::unix::fs::lchown(b.join("symlink"), Some(1234), Some(5678));
            touch(&b.join("symlink"));
        });
        if rustix::process::geteuid().is_root() {
            assert_eq!(found, only("symlink", What::Owner { a: (0, 0), b: (1234, 5678) }));
        }
    }

    #[test]
    fn notices_targets_and_links() {
        let found = spoiled(|b| {
            std_fs::remove_file(b.join("symlink")).unwrap();
            symlink("elsewhere", b.join("symlink")).unwrap();
            touch(&b.join("symlink"));
        });
        assert_eq!(found, only("symlink", What::Target { a: "file".into(), b: "elsewhere".into() }));
        let found = spoiled(|b| {
            std_fs::remove_file(b.join("linked")).unwrap();
            std_fs::copy(b.join("file"), b.join("linked")).unwrap();
            touch(&b.join("linked"));
        });
        assert_eq!(found, only("linked", What::HardLink { a: "file".into(), b: "linked".into() }));
    }

    #[test]
    fn notices_xattrs() {
        let mut supported = true;
        let found = spoiled(|b| {
            let set = fs::lsetxattr(b.join("sub/other"), "user.tag", b"v", XattrFlags::empty());
            supported = set != Err(Errno::NOTSUP);
        });
        if supported {
            assert_eq!(
                found,
                only("sub/other", What::Xattr { name: b"user.tag".into(), a: None, b: Some(b"v".into()) })
            );
        }
    }

    #[test]
    fn notices_filled_holes() {
        let found = spoiled(|b| {
            let file = File::options().write(true).open(b.join("sparse")).unwrap();
            file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
            file.sync_all().unwrap();
            touch(&b.join("sparse"));
        });
        assert!(matches!(found[..], [Difference { what: What::Sparseness { .. }, .. }]), "{found:?}");
    }

    #[test]
    fn notices_device_numbers_where_they_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, minor| {
            let (path, mode) = (dir.path().join(name), Mode::from_raw_mode(0o600));
            let made = fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, fs::makedev(1, minor));
            made.map(|()| crate::set_mtime(&path, 1, 1).unwrap())
        };
        if make("a", 3).and(make("b", 5)).is_ok() {
            let found = compare_trees(&dir.path().join("a"), &dir.path().join("b")).unwrap();
            assert_eq!(found, only("", What::Device { a: (1, 3), b: (1, 5) }));
        }
    }

    #[test]
    fn options_leave_things_out() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std_fs::write(&a, b"same").unwrap();
        std_fs::write(&b, b"same").unwrap();
        crate::set_mtime(&b, 1, 1).unwrap();
        let options = CompareOptions { mtimes: false, ..CompareOptions::default() };
        assert_eq!(compare_trees_with(&a, &b, &options).unwrap(), []);
        assert_eq!(compare_trees(&a, &b).unwrap().len(), 1);
        let options = CompareOptions { roots: false, ..CompareOptions::default() };
        assert_eq!(compare_trees_with(&a, &b, &options).unwrap(), []);
        assert!(compare_trees(&a, &dir.path().join("none")).is_err());
    }
}
