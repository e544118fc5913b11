//! A tree of everything that a Linux file system allows and that copies get wrong.
//!
//! It is made in two passes: entries with their data (`entries`), owners and extended attributes
//! (`attributes`); then all times and modes, which take permissions away. Features that the caller
//! or the file system does not permit are left out and reported, so that a test without root says
//! what it did not cover.

mod attributes;
mod entries;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::text::Text;
use crate::{Rng, about, set_mtime};
use rustix::fs::{FileType, makedev};
use rustix::io::Errno;

/// The options of [`nasty_tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NastyOptions {
    /// Chooses the bytes of files and the ordinary times.
    pub seed: u64,
    /// Also a file of this many bytes that is one hole except for its ends; 0 for none. Tools that
    /// do not know holes take for ever on it.
    pub huge_hole: u64,
}

impl NastyOptions {
    /// All but the huge file.
    pub fn new(seed: u64) -> Self {
        Self { seed, huge_hole: 0 }
    }
}

/// The features of a nasty tree, made and skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NastyReport {
    /// The features that were made.
    pub made: Vec<&'static str>,
    /// The features that were not permitted here, and why.
    pub skipped: Vec<(&'static str, String)>,
}

/// Makes the tree in the directory `root`, which may exist empty; about 22 MB on disk. As root it
/// holds devices, foreign owners, `trusted.*` attributes, file capabilities, and private files.
///
/// # Errors
/// Those of creating entries, except for missing permission or support, which is reported instead.
pub fn nasty_tree(root: &Path, options: &NastyOptions) -> io::Result<NastyReport> {
    fs::create_dir_all(root).map_err(about(root))?;
    let mut tree = Nasty {
        root,
        rng: Rng::new(options.seed),
        text: Text::new(options.seed),
        report: NastyReport::default(),
        times: Vec::new(),
        modes: Vec::new(),
    };
    tree.feature("names", Nasty::names)?;
    tree.feature("deep paths", Nasty::deep)?;
    tree.feature("sizes", Nasty::sizes)?;
    tree.feature("holes", |tree| tree.holes(options.huge_hole))?;
    tree.feature("symlinks", Nasty::symlinks)?;
    tree.feature("hard links", Nasty::hard_links)?;
    tree.feature("fifos", |tree| tree.node("special/fifo", FileType::Fifo, 0))?;
    tree.feature("sockets", |tree| tree.node("special/socket", FileType::Socket, 0))?;
    tree.feature("character devices", |tree| {
        tree.node("special/char", FileType::CharacterDevice, makedev(1, 3))
    })?;
    tree.feature("block devices", |tree| tree.node("special/block", FileType::BlockDevice, makedev(7, 200)))?;
    tree.feature("linked fifo", |tree| tree.link("special/fifo", "special/fifo-linked"))?;
    tree.feature("user xattrs", Nasty::user_xattrs)?;
    tree.feature("trusted xattrs", |tree| tree.xattr("xattrs/trusted", "trusted.overlay", b"y\0z"))?;
    tree.feature("xattr of a symlink", |tree| {
        symlink("user", tree.path("xattrs/link")?)?;
        tree.xattr("xattrs/link", "trusted.link", b"on the link itself")
    })?;
    tree.feature("access ACLs", |tree| tree.acl("acls/access", "system.posix_acl_access"))?;
    tree.feature("default ACLs", |tree| {
        fs::create_dir_all(tree.path("acls/inherit")?)?;
        tree.acl("acls/inherit", "system.posix_acl_default")?;
        tree.file("acls/inherit/child", 10).map(drop)
    })?;
    tree.feature("modes", Nasty::modes)?;
    tree.feature("files without read permission", Nasty::unreadable)?;
    tree.feature("foreign owners", Nasty::owners)?;
    tree.feature("file capabilities", Nasty::capabilities)?;
    tree.feature("times", Nasty::times)?;
    tree.finish()?;
    Ok(tree.report)
}

struct Nasty<'r> {
    root: &'r Path,
    rng: Rng,
    text: Text,
    report: NastyReport,
    /// Requested times; every other entry gets an ordinary one.
    times: Vec<(PathBuf, i64, u32)>,
    /// Modes set when everything exists, as a directory may forbid making entries.
    modes: Vec<(PathBuf, u32)>,
}

impl Nasty<'_> {
    /// Makes one feature. If it is not permitted or supported here, it is reported as skipped.
    fn feature(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        match make(self) {
            Ok(()) => self.report.made.push(name),
            Err(error) if not_here(&error) => self.report.skipped.push((name, error.to_string())),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{name}: {error}"))),
        }
        Ok(())
    }

    /// The path of an entry to be made; its directory is made first.
    fn path(&self, relative: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = self.root.join(relative);
        fs::create_dir_all(path.parent().unwrap_or(self.root))?;
        Ok(path)
    }

    fn file(&mut self, relative: impl AsRef<Path>, len: usize) -> io::Result<PathBuf> {
        let path = self.path(relative)?;
        let bytes = self.text.bytes(&mut self.rng, len);
        fs::write(&path, bytes).map_err(about(&path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        Ok(path)
    }

    /// Sets every entry's time, children first, because that leaves their directory's alone; then
    /// modes, which take permissions away. All modes are set, to hide the caller's umask.
    fn finish(&mut self) -> io::Result<()> {
        let mut entries = Vec::new();
        list(self.root, &mut entries)?;
        for (number, path) in entries.iter().enumerate() {
            let kind = fs::symlink_metadata(path).map_err(about(path))?.file_type();
            // With an ACL, the mode's group bits are the ACL's mask: leave them.
            if !kind.is_symlink() && !path.starts_with(self.root.join("acls")) {
                let mode = if kind.is_dir() { 0o755 } else { 0o644 };
                fs::set_permissions(path, Permissions::from_mode(mode)).map_err(about(path))?;
            }
            set_mtime(path, 1_500_000_000 + number as i64, self.rng.below(1_000_000_000) as u32)?;
        }
        for (relative, secs, nanos) in &self.times {
            set_mtime(&self.root.join(relative), *secs, *nanos)?;
        }
        for (relative, mode) in &self.modes {
            let path = self.root.join(relative);
            fs::set_permissions(&path, Permissions::from_mode(*mode)).map_err(about(&path))?;
        }
        Ok(())
    }
}

/// True if the caller's rights or this file system forbid something.
fn not_here(error: &io::Error) -> bool {
    let forbidding = [Errno::PERM, Errno::ACCESS, Errno::NOTSUP, Errno::INVAL, Errno::ILSEQ, Errno::NOSPC];
    Errno::from_io_error(error).is_some_and(|errno| forbidding.contains(&errno))
        || error.kind() == io::ErrorKind::PermissionDenied
}

/// Every entry below `dir` and `dir` itself, children before their directory, sorted.
fn list(dir: &Path, entries: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut paths = fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<_>>>())
        .map_err(about(dir))?;
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    for path in paths {
        if fs::symlink_metadata(&path).map_err(about(&path))?.is_dir() {
            list(&path, entries)?;
        } else {
            entries.push(path);
        }
    }
    entries.push(dir.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;
    use crate::compare_trees;

    #[test]
    fn two_of_a_seed_are_the_same_and_a_copy_is_too() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, c) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        let report = nasty_tree(&a, &NastyOptions::new(1)).unwrap();
        assert_eq!(nasty_tree(&b, &NastyOptions::new(1)).unwrap(), report);
        assert_eq!(compare_trees(&a, &b).unwrap(), []);
        assert!(report.made.len() >= 12, "{report:?}");
        // cp -a keeps everything: an independent witness that what compare_trees sees is real and
        // copyable.
        if Command::new("cp").arg("-a").arg(&a).arg(&c).status().is_ok_and(|status| status.success()) {
            assert_eq!(compare_trees(&a, &c).unwrap(), []);
        }
        // Deleting needs the permissions that the tree took away.
        for path in ["modes/read-only-dir", "modes/read-only-dir/below"] {
            for root in [&a, &b, &c] {
                let _ = fs::set_permissions(root.join(path), Permissions::from_mode(0o755));
            }
        }
    }

    #[test]
    fn times_and_holes_are_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let options = NastyOptions { huge_hole: 1 << 36, ..NastyOptions::new(2) };
        let report = nasty_tree(dir.path(), &options).unwrap();
        let of = |name: &str| fs::symlink_metadata(dir.path().join(name)).unwrap();
        assert_eq!(
            (of("times/just-before-1970").mtime(), of("times/just-before-1970").mtime_nsec()),
            (-1, 999_999_999)
        );
        assert_eq!((of("times/dir").mtime(), of("times/dir").mtime_nsec()), (-5, 5));
        assert_eq!(of("links/z-first").nlink(), 4);
        if report.made.contains(&"holes") {
            assert!(of("holes/only").blocks() * 512 < 100_000);
            assert_eq!(of("holes/huge").len(), 1 << 36);
        }
        for path in ["modes/read-only-dir", "modes/read-only-dir/below"] {
            fs::set_permissions(dir.path().join(path), Permissions::from_mode(0o755)).unwrap();
        }
    }
}
