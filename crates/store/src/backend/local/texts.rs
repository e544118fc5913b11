//! Small texts as files in the directory above `packs`.
//!
//! A text is written under a temporary name that begins with a dot, synced, and then given its own
//! name by a link, which fails where there is one. So it is whole when it appears, and never
//! replaces another. The temporary name is removed again. A killed writer leaves it, and nobody
//! lists or reads it; removing the text removes that, too.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::backend::texts::{TEXT_MAX, TextName, decode, is_slot, refuse_read_only, taken};
use crate::error::{Context, Result};
use crate::home::identity;
use crate::owner::{self, open_below};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// See the module.
pub(super) struct Texts<'b> {
    /// The directory that `packs` lies in.
    pub above: &'b Path,
    /// Its name, for messages.
    pub shown: PathBuf,
    pub read_only: bool,
}

impl Texts<'_> {
    /// A text that no file has yet.
    pub(super) fn put(&self, name: TextName<'_>, text: &str) -> Result<()> {
        refuse_read_only(self.read_only, "write", self.name(name))?;
        let at = || format!("cannot write {name} in {}", self.shown.display());
        let (folder, file) = name.parts();
        let above = self.open_above().context(at)?;
        let dir = match folder {
            None => self.open_above(),
            Some(folder) => make_folder(&above, folder),
        };
        let dir = dir.context(at)?;
        let random = outrigger_clock::random::<8>()?;
        let temporary = format!("{}{:016x}", temporary_of(name), u64::from_le_bytes(random));
        let linked = link_whole(&dir, &temporary, name, text);
        // Also when another process has it there: it may not have synced it yet.
        if matches!(&linked, Ok(()) | Err(Errno::EXIST)) {
            rustix::fs::fsync(&dir).context(at)?;
            rustix::fs::fsync(&above).context(at)?;
        }
        match linked {
            Err(Errno::EXIST) => Err(taken(format!("{file} in {}", self.shown_folder(folder)))),
            linked => linked.context(at),
        }
    }

    /// A file's text; `None` when there is none.
    pub(super) fn get(&self, name: TextName<'_>) -> Result<Option<String>> {
        let shown = || self.name(name);
        let file = match self.open_to_read(name) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file.context(|| format!("cannot read {}", shown()))?),
        };
        let mut bytes = Vec::new();
        file.take(TEXT_MAX as u64 + 1)
            .read_to_end(&mut bytes)
            .context(|| format!("cannot read {}", shown()))?;
        decode(bytes, shown).map(Some)
    }

    /// The names in a folder, sorted. Files of other names are no texts.
    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>> {
        let names = self.open_folder(folder).and_then(|dir| names_in(&dir));
        let mut names = match names {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            names => names.context(|| format!("cannot list {}", self.shown_folder(Some(folder))))?,
        };
        names.retain(|name| is_slot(name));
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a file, if there is one, and what killed writers left of it.
    pub(super) fn remove(&self, name: TextName<'_>) -> Result<()> {
        refuse_read_only(self.read_only, "remove", self.name(name))?;
        let at = || format!("cannot remove {}", self.name(name));
        let (folder, file) = name.parts();
        let dir = match folder.map_or_else(|| self.open_above(), |folder| self.open_folder(folder)) {
            Err(Errno::NOENT) => return Ok(()),
            dir => dir.context(at)?,
        };
        unlink(&dir, file).context(at)?;
        let temporary = temporary_of(name);
        for left in names_in(&dir).context(at)?.iter().filter(|name| name.starts_with(&temporary)) {
            unlink(&dir, left).context(at)?;
        }
        // Also when it was gone already: the process that removed it may not have synced yet.
        rustix::fs::fsync(&dir).context(at)
    }

    fn open_above(&self) -> rustix::io::Result<OwnedFd> {
        rustix::fs::open(self.above, DIRECTORY, Mode::empty())
    }

    fn open_folder(&self, folder: &str) -> rustix::io::Result<OwnedFd> {
        open_below(self.open_above()?, folder, DIRECTORY, Mode::empty())
    }

    /// Directories are opened first: on a file system that other hosts mount, the kernel then asks
    /// the server for their present names.
    fn open_to_read(&self, name: TextName<'_>) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match name.parts() {
            // A user may have made a link of it.
            (None, file) => rustix::fs::openat(self.open_above()?, file, flags, Mode::empty()),
            (Some(folder), file) => open_below(self.open_folder(folder)?, file, flags, Mode::empty()),
        }
    }

    /// A text, for messages.
    fn name(&self, name: TextName<'_>) -> String {
        self.shown.join(name.as_str()).display().to_string()
    }

    fn shown_folder(&self, folder: Option<&str>) -> String {
        folder.map_or_else(|| self.shown.clone(), |folder| self.shown.join(folder)).display().to_string()
    }
}

/// The beginning of the temporary names of a text. No text's name begins like that; that of
/// `store.toml` begins like itself, as programs before key slots have it.
fn temporary_of(name: TextName<'_>) -> String {
    let (folder, file) = name.parts();
    format!("{}{file}.~", if folder.is_some() { "." } else { "" })
}

/// Opens a folder, and makes it if it is missing. The caller syncs the directory above.
fn make_folder(above: &OwnedFd, folder: &str) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(above, folder, Mode::RWXU) {
        Ok(()) => owner::give(above, folder),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    open_below(above, folder, DIRECTORY, Mode::empty())
}

/// Writes a file under a temporary name, makes it durable, and gives it its own name; `EXIST` if
/// that is taken.
fn link_whole(dir: &OwnedFd, temporary: &str, name: TextName<'_>, text: &str) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Hosts and users that share the packs read `store.toml`, as far as the umask lets them.
    let mode = if name.is_config() { Mode::from_raw_mode(0o666) } else { Mode::RUSR | Mode::WUSR };
    let file = File::from(open_below(dir, temporary, flags, mode)?);
    owner::give_file(dir, &file);
    let written = (&file).write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let file_name = name.parts().1;
    let linked = written
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        .and_then(|()| rustix::fs::linkat(dir, temporary, dir, file_name, AtFlags::empty()));
    let linked = match linked {
        // NFS repeats a request whose answer was lost, and finds our own file.
        Err(Errno::EXIST) if is_ours(dir, &file, file_name) => Ok(()),
        linked => linked,
    };
    unlink(dir, temporary).and(linked)
}

fn is_ours(dir: &OwnedFd, file: &File, name: &str) -> bool {
    let there = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    matches!((there, rustix::fs::fstat(file)), (Ok(there), Ok(file)) if identity(&there) == identity(&file))
}

fn unlink(dir: impl AsFd, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        unlinked => unlinked,
    }
}

/// All names in a directory that are text.
fn names_in(dir: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}
