//! What is being restored: directories and files that get their attributes when the last user lets go of them, and how
//! everything is created.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_format::catalogue::{Attributes, FileKind};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::Restorer;
use crate::tree::show;
use crate::write::Progress;

/// A directory being restored; the last user's drop gives it its attributes.
pub(super) struct Target<'a> {
    pub(super) fd: OwnedFd,
    pub(super) display: String,
    pub(super) attributes: Option<Attributes>,
    pub(super) context: &'a Restorer<'a>,
    /// Kept so that the parent is finished after this.
    pub(super) _parent: Option<Arc<Target<'a>>>,
}

/// A file being restored; the last user's drop gives it its attributes, or removes it when a part failed.
pub(super) struct OpenFile<'a> {
    pub(super) fd: OwnedFd,
    pub(super) dir: Arc<Target<'a>>,
    pub(super) name: Vec<u8>,
    /// The name it is written under, when that is not its own yet.
    pub(super) temporary: Option<Vec<u8>>,
    pub(super) attributes: Attributes,
    pub(super) failed: AtomicBool,
    pub(super) mode_is_set: bool,
}

impl<'a> Restorer<'a> {
    pub(super) fn create(
        &self,
        dir: &Arc<Target<'a>>,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<OpenFile<'a>, String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Most files can be created with their mode at once; others are private until they are done.
        let plain = attributes.mode & 0o777;
        let mode_is_set = attributes.mode == plain && plain & self.umask == 0 && plain & 0o200 != 0;
        let mode = Mode::from_raw_mode(if mode_is_set { plain } else { 0o600 });
        let mut temporary = None;
        let fd = match rustix::fs::openat(&dir.fd, name, flags, mode) {
            Err(Errno::EXIST) if self.options.overwrite => {
                let other = format!(".outrigger-{:x}.tmp", crate::clock::now_nanos()).into_bytes();
                let fd = rustix::fs::openat(&dir.fd, other.as_slice(), flags, mode);
                temporary = Some(other);
                fd
            }
            Err(Errno::EXIST) => return Err("exists already; use --overwrite to replace it".to_string()),
            opened => opened,
        };
        let fd = fd.map_err(|errno| errno.to_string())?;
        let (dir, name, failed) = (Arc::clone(dir), name.to_vec(), AtomicBool::new(false));
        Ok(OpenFile { fd, dir, name, temporary, attributes, failed, mode_is_set })
    }

    pub(super) fn make_other(
        &self,
        dir: &Target<'a>,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<(), String> {
        let made = self.try_make_other(dir, name, attributes);
        match made {
            Err(Errno::EXIST) if self.options.overwrite => {
                let again = rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())
                    .and_then(|()| self.try_make_other(dir, name, attributes));
                again.map_err(|errno| errno.to_string())
            }
            Err(Errno::EXIST) => Err("exists already; use --overwrite to replace it".to_string()),
            Err(Errno::PERM) if !self.options.special => {
                Err("a device; use --special to restore devices".to_string())
            }
            made => made.map_err(|errno| errno.to_string()),
        }
    }

    fn try_make_other(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        use rustix::fs::FileType;
        let mode = Mode::from_raw_mode(0o600);
        let kind = match attributes.kind {
            FileKind::Symlink => {
                rustix::fs::symlinkat(attributes.target.as_slice(), &dir.fd, name)?;
                return self.set_by_name(dir, name, attributes);
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice if self.options.special => FileType::CharacterDevice,
            FileKind::BlockDevice if self.options.special => FileType::BlockDevice,
            _ => return Err(Errno::PERM),
        };
        rustix::fs::mknodat(&dir.fd, name, kind, mode, attributes.rdev)?;
        self.set_by_name(dir, name, attributes)?;
        rustix::fs::chmodat(&dir.fd, name, self.mode(attributes), AtFlags::empty())
    }

    /// Owner, extended attributes and times of what is not opened.
    fn set_by_name(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        use rustix::fs::{Gid, Uid, XattrFlags};
        if self.is_root && (attributes.uid, attributes.gid) != self.user {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            rustix::fs::chownat(&dir.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let path = crate::local::walk::proc_path(&dir.fd, name);
        for (key, value) in &attributes.xattrs {
            match rustix::fs::lsetxattr(path.as_slice(), key.as_slice(), value, XattrFlags::empty()) {
                Err(errno) if !self.is_root && errno == Errno::PERM => {}
                set => set?,
            }
        }
        rustix::fs::utimensat(&dir.fd, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn mode(&self, attributes: &Attributes) -> Mode {
        let keep =
            if self.options.special || attributes.kind == FileKind::Directory { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(attributes.mode & keep)
    }

    /// Owner, extended attributes, mode and times of what is open. Owner before mode: changing it clears set-id bits.
    fn set_by_fd(&self, fd: impl AsFd, attributes: &Attributes, mode_is_set: bool) -> Result<(), Errno> {
        use rustix::fs::{Gid, Uid, XattrFlags};
        let fd = fd.as_fd();
        let chown = self.is_root && (attributes.uid, attributes.gid) != self.user;
        if chown {
            rustix::fs::fchown(fd, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))?;
        }
        for (key, value) in &attributes.xattrs {
            match rustix::fs::fsetxattr(fd, key.as_slice(), value, XattrFlags::empty()) {
                // Attributes of the trusted and security name spaces are root's to set.
                Err(errno) if !self.is_root && errno == Errno::PERM => {}
                set => set?,
            }
        }
        if !mode_is_set || !attributes.xattrs.is_empty() {
            rustix::fs::fchmod(fd, self.mode(attributes))?;
        }
        rustix::fs::futimens(fd, &times(attributes))
    }
}

fn times(attributes: &Attributes) -> Timestamps {
    let time = Timespec { tv_sec: attributes.mtime.secs, tv_nsec: attributes.mtime.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

pub(super) fn write_at(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

impl OpenFile<'_> {
    pub(super) fn display(&self) -> String {
        format!("{}/{}", self.dir.display, show(&self.name))
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        let context = self.dir.context;
        let written_as = self.temporary.as_ref().unwrap_or(&self.name);
        if self.failed.load(Ordering::Relaxed) {
            let _ = rustix::fs::unlinkat(&self.dir.fd, written_as.as_slice(), AtFlags::empty());
            return;
        }
        if let Err(errno) = context.set_by_fd(&self.fd, &self.attributes, self.mode_is_set) {
            context.progress.skip(self.display(), format!("restored, but not its attributes: {errno}"));
        }
        if let Some(temporary) = &self.temporary {
            let renamed =
                rustix::fs::renameat(&self.dir.fd, temporary.as_slice(), &self.dir.fd, self.name.as_slice());
            if let Err(errno) = renamed {
                context.progress.skip(self.display(), errno.to_string());
            }
        }
        Progress::add(&context.progress.files_done, 1);
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if let Some(attributes) = &self.attributes
            && let Err(errno) = self.context.set_by_fd(&self.fd, attributes, false)
        {
            self.context
                .progress
                .skip(self.display.clone(), format!("restored, but not its attributes: {errno}"));
        }
    }
}
