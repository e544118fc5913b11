//! The names, depths, sizes, holes, links and special files of a nasty tree.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::Nasty;

impl Nasty<'_> {
    pub(super) fn names(&mut self) -> io::Result<()> {
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

    pub(super) fn deep(&mut self) -> io::Result<()> {
        let mut many = PathBuf::from("deep/many");
        many.extend(std::iter::repeat_n("d", 200));
        self.file(many.join("bottom"), 100)?;
        let mut long = PathBuf::from("deep/long");
        long.extend(std::iter::repeat_n("n".repeat(150), 18));
        self.file(long.join("bottom"), 100).map(drop)
    }

    pub(super) fn sizes(&mut self) -> io::Result<()> {
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

    pub(super) fn holes(&mut self, huge: u64) -> io::Result<()> {
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

    pub(super) fn symlinks(&mut self) -> io::Result<()> {
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

    pub(super) fn link(&self, from: &str, to: &str) -> io::Result<()> {
        fs::hard_link(self.path(from)?, self.path(to)?)
    }

    pub(super) fn hard_links(&mut self) -> io::Result<()> {
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

    pub(super) fn node(&mut self, relative: &str, kind: FileType, device: u64) -> io::Result<()> {
        mknodat(CWD, self.path(relative)?, kind, Mode::from_raw_mode(0o640), device)?;
        Ok(())
    }
}
