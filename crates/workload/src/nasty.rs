//! A tree of everything that a Linux file system allows and that copies get wrong.
//!
//! It is made in two passes: entries with their data, owners and extended attributes; then all
//! times and modes, which take permissions away. Features that the caller or the file system does
//! not permit are left out and reported, so that a test without root says what it did not cover.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};
use rustix::io::Errno;

use crate::text::Text;
use crate::{Rng, about, set_mtime};

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

    fn names(&mut self) -> io::Result<()> {
        let long = "l".repeat(255);
        let long_utf8 = format!("{}{}", "é".repeat(127), "x");
        let names: [&[u8]; 30] = [
            b"caf\xe9",
            b"\xff\xfe\xfd",
            b"\x80",
            b"two\nlines",
            b"\n",
            b"tab\tand\rreturn",
            b"bell\x07escape\x1b[31m",
            b" leading and trailing ",
            b"-rf",
            b"--",
            b"*",
            b"?",
            b"[a-z]",
            b"$HOME `id`",
            b"'single' \"double\"",
            b"back\\slash",
            b"...",
            b".hidden",
            b"..two",
            b"trailing.",
            b"con",
            b"a:b|c<d>",
            b"%2F%00",
            b"README",
            b"readme",
            // One e with an acute accent, composed and decomposed: two names.
            "\u{e9}".as_bytes(),
            "e\u{301}".as_bytes(),
            "\u{1f6f6}\u{200d}\u{202e}".as_bytes(),
            long.as_bytes(),
            long_utf8.as_bytes(),
        ];
        for (number, name) in names.iter().enumerate() {
            self.file(Path::new("names").join(OsStr::from_bytes(name)), number)?;
            // The same as directories and as targets of symlinks.
            let dir = self.path(Path::new("name-dirs").join(OsStr::from_bytes(name)).join("inside"))?;
            fs::write(&dir, b"")?;
            let link = self.path(Path::new("name-links").join(OsStr::from_bytes(name)))?;
            symlink(OsStr::from_bytes(name), link)?;
        }
        Ok(())
    }

    fn deep(&mut self) -> io::Result<()> {
        let mut many = PathBuf::from("deep/many");
        many.extend(std::iter::repeat_n("d", 200));
        self.file(many.join("bottom"), 100)?;
        let mut long = PathBuf::from("deep/long");
        long.extend(std::iter::repeat_n("n".repeat(150), 18));
        self.file(long.join("bottom"), 100).map(drop)
    }

    fn sizes(&mut self) -> io::Result<()> {
        for power in [0, 9, 12, 14, 15, 16, 18, 20] {
            for len in [(1usize << power) - 1, 1 << power, (1 << power) + 1] {
                self.file(format!("sizes/{len}"), len)?;
            }
        }
        fs::create_dir_all(self.path("sizes/empty-dir")?)?;
        fs::create_dir_all(self.path("sizes/empty-dirs/in/a/row")?)?;
        for (name, byte) in [("zeros", 0u8), ("ones", 0xff), ("letter", b'a')] {
            fs::write(self.path(Path::new("sizes").join(name))?, vec![byte; 3_000_000])?;
        }
        let mut noise = vec![0; 3_000_001];
        self.rng.fill(&mut noise);
        fs::write(self.path("sizes/noise")?, &noise)?;
        // The same bytes under another name, and shifted by one.
        fs::write(self.path("sizes/noise-again")?, &noise)?;
        fs::write(self.path("sizes/noise-shifted")?, &noise[1..])
    }

    fn holes(&mut self, huge: u64) -> io::Result<()> {
        let mib = 1u64 << 20;
        let mut data = vec![0; 100_000];
        self.rng.fill(&mut data);
        let end = data.len() as u64;
        // name, length, where the data lies
        let files: [(&str, u64, &[u64]); 6] = [
            ("start", mib + end, &[mib]),
            ("middle", 2 * mib + end, &[0, 2 * mib]),
            ("end", 3 * mib, &[0]),
            ("everywhere", 9 * mib, &[mib, 3 * mib + 5, 6 * mib + 4095]),
            ("only", 8 * mib + 1, &[]),
            ("tiny", 4097, &[]),
        ];
        for (name, len, places) in files {
            let file = File::create(self.path(Path::new("holes").join(name))?)?;
            file.set_len(len)?;
            for place in places {
                file.write_all_at(&data, *place)?;
            }
        }
        if huge > 0 {
            let file = File::create(self.path("holes/huge")?)?;
            file.set_len(huge)?;
            file.write_all_at(b"start", 0)?;
            file.write_all_at(b"end", huge.saturating_sub(3))?;
        }
        Ok(())
    }

    fn symlinks(&mut self) -> io::Result<()> {
        self.file("symlinks/target", 50)?;
        fs::create_dir_all(self.path("symlinks/dir/below")?)?;
        let long = "x/".repeat(1000);
        let targets: [(&str, &[u8]); 13] = [
            ("to-file", b"target"),
            ("to-dir", b"dir"),
            ("to-link", b"to-file"),
            ("dangling", b"no/such/file"),
            ("absolute", b"/etc/hostname"),
            ("escaping", b"../../../../../../../../etc/passwd"),
            ("self", b"self"),
            ("loop-a", b"loop-b"),
            ("loop-b", b"loop-a"),
            ("dot", b"."),
            ("non-utf8", b"caf\xe9\xff"),
            ("newline", b"two\nlines"),
            ("long", long.as_bytes()),
        ];
        for (name, target) in targets {
            symlink(OsStr::from_bytes(target), self.path(Path::new("symlinks").join(name))?)?;
        }
        self.times.push(("symlinks/dangling".into(), -1, 1));
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.path(from)?, self.path(to)?)
    }

    fn hard_links(&mut self) -> io::Result<()> {
        self.file("links/z-first", 70_000)?;
        for to in ["links/a-second", "links/below/third", "links-elsewhere/fourth"] {
            self.link("links/z-first", to)?;
        }
        // The same bytes, but another file.
        fs::copy(self.path("links/z-first")?, self.path("links/copy")?)?;
        self.file("links/empty", 0)?;
        self.link("links/empty", "links/empty-linked")?;
        symlink("copy", self.path("links/symlink")?)?;
        self.link("links/symlink", "links/symlink-linked")
    }

    fn node(&mut self, relative: &str, kind: FileType, device: u64) -> io::Result<()> {
        mknodat(CWD, self.path(relative)?, kind, Mode::from_raw_mode(0o640), device)?;
        Ok(())
    }

    fn xattr(&mut self, relative: &str, name: &str, value: &[u8]) -> io::Result<()> {
        let path = self.path(relative)?;
        if fs::symlink_metadata(&path).is_err() {
            self.file(relative, 20)?;
        }
        Ok(lsetxattr(&path, name, value, XattrFlags::empty())?)
    }

    fn user_xattrs(&mut self) -> io::Result<()> {
        self.xattr("xattrs/user", "user.text", "värde".as_bytes())?;
        self.xattr("xattrs/user", "user.empty", b"")?;
        self.xattr("xattrs/user", "user.binary", &[0, 255, 0, 10])?;
        let mut large = vec![0; 2000];
        self.rng.fill(&mut large);
        self.xattr("xattrs/user", "user.large", &large)?;
        fs::create_dir_all(self.path("xattrs/dir")?)?;
        self.xattr("xattrs/dir", "user.on-a-directory", b"1")?;
        for number in 0..20 {
            self.xattr("xattrs/many", &format!("user.name{number}"), &[number; 30])?;
        }
        Ok(())
    }

    /// An ACL in the kernel's form: version 2, then (tag, permissions, id) by rising tags.
    fn acl(&mut self, relative: &str, name: &str) -> io::Result<()> {
        const NO_ID: u32 = u32::MAX;
        let mut value = 2u32.to_le_bytes().to_vec();
        let entries: [(u16, u16, u32); 6] = [
            (0x01, 6, NO_ID),
            (0x02, 4, 1234),
            (0x04, 4, NO_ID),
            (0x08, 6, 5678),
            (0x10, 6, NO_ID),
            (0x20, 0, NO_ID),
        ];
        for (tag, permissions, id) in entries {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        self.xattr(relative, name, &value)
    }

    fn modes(&mut self) -> io::Result<()> {
        for mode in [0o4755, 0o2755, 0o6711, 0o1644, 0o444, 0o777, 0o600] {
            let relative = format!("modes/{mode:o}");
            self.file(&relative, 10)?;
            self.modes.push((relative.into(), mode));
        }
        for mode in [0o1777, 0o2775, 0o700] {
            let relative = format!("modes/dir-{mode:o}");
            fs::create_dir_all(self.path(&relative)?)?;
            self.modes.push((relative.into(), mode));
        }
        self.file("modes/read-only-dir/file", 10)?;
        self.file("modes/read-only-dir/below/file", 10)?;
        self.modes.push(("modes/read-only-dir/below".into(), 0o555));
        self.modes.push(("modes/read-only-dir".into(), 0o555));
        Ok(())
    }

    /// Only as root, which can read them all the same: no other user could make a copy.
    fn unreadable(&mut self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Errno::PERM.into());
        }
        for (name, mode) in
            [("unreadable/none", 0), ("unreadable/write", 0o200), ("unreadable/execute", 0o111)]
        {
            self.file(name, 3000)?;
            self.modes.push((name.into(), mode));
        }
        self.file("unreadable/dir/file", 30)?;
        self.modes.push(("unreadable/dir".into(), 0));
        Ok(())
    }

    fn owners(&mut self) -> io::Result<()> {
        let file = self.file("owners/file", 10)?;
        lchown(file, Some(1234), Some(5678))?;
        let file = self.file("owners/setuid", 10)?;
        lchown(file, Some(65_534), Some(65_534))?;
        self.modes.push(("owners/setuid".into(), 0o6755));
        let link = self.path("owners/symlink")?;
        symlink("file", &link)?;
        lchown(link, Some(4_000_000_000), Some(1))?;
        let dir = self.path("owners/dir/file")?;
        fs::write(&dir, b"")?;
        lchown(self.path("owners/dir")?, Some(1), Some(2))
    }

    /// `cap_net_bind_service=ep` as revision 2 of the kernel's structure. A restore that sets the owner after the
    /// attributes loses it.
    fn capabilities(&mut self) -> io::Result<()> {
        let words: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.xattr("xattrs/capable", "security.capability", &value)
    }

    fn times(&mut self) -> io::Result<()> {
        let times: [(&str, i64, u32); 9] = [
            ("before-1970", -86_400 * 365 * 10, 123_456_789),
            ("just-before-1970", -1, 999_999_999),
            ("1901", -2_147_483_648, 0),
            ("1970", 0, 0),
            ("one-nanosecond", 0, 1),
            ("2038", 2_147_483_648, 0),
            ("2100", 4_102_444_800, 999_999_999),
            ("microseconds", 1_600_000_000, 123_456_000),
            ("nanoseconds", 1_600_000_000, 123_456_789),
        ];
        for (name, secs, nanos) in times {
            let relative = Path::new("times").join(name);
            self.file(&relative, 10)?;
            self.times.push((relative, secs, nanos));
        }
        fs::create_dir_all(self.path("times/dir")?)?;
        self.times.push(("times/dir".into(), -5, 5));
        Ok(())
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
        // cp -a keeps everything: an independent witness that what compare_trees sees is real and copyable.
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
