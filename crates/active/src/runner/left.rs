//! Files that a program left in its work directory.
//!
//! The directory belongs to the user that the program ran as, who can change it at any time, also
//! from outside the sandbox. Root reads it. So everything in it is opened below it without
//! following links, and looked at once it is open: it is a regular file of that user's, or no
//! output.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use outrigger_store::{Context as _, Error, ErrorKind, Result, open_below};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, statat};

/// See the module.
pub(super) struct Left {
    dir: OwnedFd,
    /// The user whose files count; `None`: any user's.
    owner: Option<u32>,
    /// Regular files below it, and their lengths, in order of their names.
    pub files: Vec<(Vec<u8>, u64)>,
}

impl Left {
    /// Looks for files below `dir`. Links and devices are no outputs.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn below(dir: &Path, owner: Option<u32>) -> Result<Self> {
        let at = || "looking for what the program wrote".to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty()).context(at)?;
        let (mut files, mut waiting) = (Vec::new(), vec![Vec::new()]);
        while let Some(name) = waiting.pop() {
            let path: &[u8] = if name.is_empty() { b"." } else { &name };
            let opened = open_below(&dir, path, flags, Mode::empty()).context(at)?;
            for entry in Dir::read_from(&opened).context(at)? {
                let entry = entry.context(at)?;
                let own = entry.file_name();
                if matches!(own.to_bytes(), b"." | b"..") {
                    continue;
                }
                let found = statat(&opened, own, AtFlags::SYMLINK_NOFOLLOW).context(at)?;
                let below = match name.is_empty() {
                    true => own.to_bytes().to_vec(),
                    false => [&name, b"/".as_slice(), own.to_bytes()].concat(),
                };
                match FileType::from_raw_mode(found.st_mode) {
                    FileType::Directory => waiting.push(below),
                    FileType::RegularFile => files.push((below, found.st_size as u64)),
                    _ => {}
                }
            }
        }
        files.sort();
        Ok(Self { dir, owner, files })
    }

    /// Opens one of the files to be read.
    ///
    /// # Errors
    /// `Denied` when it is another user's or no file any more; when it cannot be opened.
    pub fn open(&self, name: &[u8]) -> Result<File> {
        let shown = || format!("the output {}", outrigger_store::text::show(name));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(open_below(&self.dir, name, flags, Mode::empty()).context(shown)?);
        let about = file.metadata().context(shown)?;
        if !about.is_file() || self.owner.is_some_and(|owner| owner != about.uid()) {
            let why = "is no file of the user that the program ran as";
            return Err(Error::new(ErrorKind::Denied, format!("{} {why}", shown())));
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_became_a_link_since_is_not_followed() {
        let (work, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, theirs) = (work.path(), secret.path());
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::create_dir(theirs.join("b")).unwrap();
        for path in [dir.join("a/b/c"), dir.join("d"), theirs.join("b/c"), theirs.join("d")] {
            fs::write(path, "12345").unwrap();
        }
        symlink(theirs.join("d"), dir.join("link")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let left = Left::below(dir, Some(own)).unwrap();
        assert_eq!(left.files, [(b"a/b/c".to_vec(), 5), (b"d".to_vec(), 5)]);
        assert_eq!(left.open(b"d").unwrap().metadata().unwrap().len(), 5);
        assert_eq!(
            Left::below(dir, Some(own + 1)).unwrap().open(b"d").unwrap_err().kind(),
            ErrorKind::Denied
        );
        fs::remove_file(dir.join("d")).unwrap();
        symlink(theirs.join("d"), dir.join("d")).unwrap();
        fs::rename(dir.join("a"), dir.join("away")).unwrap();
        symlink(theirs, dir.join("a")).unwrap();
        for name in ["d", "a/b/c", "link", "../work"] {
            assert!(left.open(name.as_bytes()).is_err(), "{name}");
        }
        fs::remove_file(dir.join("a")).unwrap();
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        assert_eq!(left.open(b"a/b/c").unwrap_err().kind(), ErrorKind::Denied);
    }
}
