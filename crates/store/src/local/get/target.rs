//! Directories and files being restored: how they are created, and how they get their attributes
//! when their last user drops them.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_format::catalogue::{Attributes, DOMAIN_XATTR, FileKind};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::Restorer;
use crate::local::acl;
use crate::text::show;
use crate::write::{Progress, Step};

/// A directory being restored; the last user's drop gives it its attributes.
pub(super) struct Target<'a> {
    pub(super) fd: OwnedFd,
    pub(super) display: String,
    pub(super) attributes: Option<Attributes>,
    pub(super) context: &'a Restorer<'a>,
    /// Kept so that the parent is finished after this.
    pub(super) _parent: Option<Arc<Target<'a>>>,
}

/// A file being restored; the last user's drop gives it its attributes, or removes it when a part
/// failed.
pub(super) struct OpenFile<'a> {
    pub(super) fd: OwnedFd,
    pub(super) dir: Arc<Target<'a>>,
    pub(super) name: Vec<u8>,
    /// The name it is written under, when that is not its own yet.
    pub(super) temporary: Option<Vec<u8>>,
    pub(super) attributes: Attributes,
    pub(super) failed: AtomicBool,
    pub(super) mode_is_set: bool,
    /// Damaged ranges, which are zeros here.
    pub(super) lost: Mutex<Vec<Range<u64>>>,
}

/// Files up to this length are written under their own name. Longer files get another name until
/// they are whole, which costs one more system call and one more change of the directory for each.
/// That is nothing beside writing this much, but a tenth of the time that a small file takes. A
/// small file is incomplete for the moment between `open` and its only `write`, and a polite end of
/// the process waits for that (`Progress::cancel`).
const IN_PLACE_MAX: u64 = 128 << 10;

/// How many lost ranges of a file a message names.
const NAMED: usize = 8;

const EXISTS: &str = "exists already; use --overwrite to replace it";

/// The attributes of a file that were not restored, and why.
#[derive(Default)]
pub(super) struct Left(Vec<String>);

impl Left {
    fn out(&mut self, what: &str, why: impl std::fmt::Display) {
        self.0.push(format!("{what} ({why})"));
    }

    fn unless_set(&mut self, what: &str, set: Result<(), Errno>) -> bool {
        set.inspect_err(|errno| self.out(what, errno)).is_ok()
    }

    /// A message for the user, if anything was left out.
    fn told(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("restored, but not {}", self.0.join(", "))) }
    }
}

impl<'a> Restorer<'a> {
    /// Makes a file of `len` bytes, still empty.
    pub(super) fn create(
        &self,
        dir: &Arc<Target<'a>>,
        name: &[u8],
        attributes: Attributes,
        len: u64,
    ) -> Result<OpenFile<'a>, String> {
        if !self.progress.begin() {
            return Err("stopped".to_string());
        }
        let created = self.try_create(dir, name, attributes, len);
        if created.is_err() {
            self.progress.ended();
        }
        created
    }

    fn try_create(
        &self,
        dir: &Arc<Target<'a>>,
        name: &[u8],
        attributes: Attributes,
        len: u64,
    ) -> Result<OpenFile<'a>, String> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Most files can be created with their mode at once; others are private until they are
        // done. With an access control list the group's bits are its mask, which may allow more
        // than the group itself has.
        let plain = attributes.mode & 0o777;
        let listed = attributes.xattrs.iter().any(|(key, _)| key == acl::ACCESS);
        let mode_is_set =
            attributes.mode == plain && plain & self.umask == 0 && plain & 0o200 != 0 && !listed;
        let mode = Mode::from_raw_mode(if mode_is_set { plain } else { 0o600 });
        let open = |name: &[u8]| rustix::fs::openat(&dir.fd, name, flags, mode);
        let in_place =
            if len <= IN_PLACE_MAX { open(name).map(Some) } else { self.free(dir, name).map(|()| None) };
        let (fd, temporary) = match in_place {
            Ok(Some(fd)) => (fd, None),
            Ok(None) => self.open_temporary(dir, open)?,
            Err(Errno::EXIST) if self.options.overwrite => {
                self.may_replace(dir, name, &attributes)?;
                self.open_temporary(dir, open)?
            }
            Err(Errno::EXIST) => {
                // A restore that was killed may have left a part of a small file.
                let there = rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok();
                let there = there.filter(|there| there.st_size as u64 != len);
                let differs = |there: rustix::fs::Stat| {
                    EXISTS.replacen(';', &format!(", with {} bytes and not {len};", there.st_size), 1)
                };
                return Err(there.map_or_else(|| EXISTS.to_string(), differs));
            }
            Err(errno) => return Err(self.why(&dir.display, errno)),
        };
        let (dir, name, failed) = (Arc::clone(dir), name.to_vec(), AtomicBool::new(false));
        Ok(OpenFile { fd, dir, name, temporary, attributes, failed, mode_is_set, lost: Mutex::default() })
    }

    /// `EXIST` when there is something of this name.
    fn free(&self, dir: &Target<'a>, name: &[u8]) -> Result<(), Errno> {
        match rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn open_temporary(
        &self,
        dir: &Target<'a>,
        open: impl Fn(&[u8]) -> Result<OwnedFd, Errno>,
    ) -> Result<(OwnedFd, Option<Vec<u8>>), String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let (now, next) = (outrigger_clock::now_nanos(), NEXT.fetch_add(1, Ordering::Relaxed));
            let name = format!(".outrigger-{now:x}-{next:x}.tmp").into_bytes();
            match open(&name) {
                Ok(fd) => return Ok((fd, Some(name))),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(self.why(&dir.display, errno)),
            }
        }
    }

    /// A file or a link may be replaced. A device or a FIFO, such as `/dev/null`, is a door to
    /// something else. What may be replaced is counted.
    pub(super) fn may_replace(
        &self,
        dir: &Target<'a>,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<(), String> {
        let Ok(found) = rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
        match FileType::from_raw_mode(found.st_mode) {
            // It stays, and the error of what is tried names it.
            FileType::Directory => return Ok(()),
            FileType::RegularFile | FileType::Symlink => {}
            _ if self.options.special => {}
            _ => {
                return Err(
                    "a device, FIFO or socket is there; use --special with --overwrite to replace it"
                        .to_string(),
                );
            }
        }
        let there = (i128::from(found.st_mtime), i128::from(found.st_mtime_nsec));
        let stored = (i128::from(attributes.mtime.secs), i128::from(attributes.mtime.nanos));
        Progress::add(&self.progress.replaced, 1);
        Progress::add(&self.progress.replaced_newer, u64::from(there > stored));
        Ok(())
    }

    pub(super) fn make_other(
        &self,
        dir: &Target<'a>,
        name: &[u8],
        display: &str,
        attributes: &Attributes,
    ) -> Result<(), String> {
        match self.try_make_other(dir, name, attributes) {
            Err(Errno::EXIST) if self.options.overwrite => {
                self.may_replace(dir, name, attributes)?;
                rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty())
                    .and_then(|()| self.try_make_other(dir, name, attributes))
                    .map_err(|errno| self.why(display, errno))?;
            }
            Err(Errno::EXIST) => return Err(EXISTS.to_string()),
            Err(Errno::PERM) if !self.options.special => {
                return Err("a device; use --special to restore devices".to_string());
            }
            made => made.map_err(|errno| self.why(display, errno))?,
        }
        self.set_by_name(dir, name, attributes).told()
    }

    fn try_make_other(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o600);
        let kind = match attributes.kind {
            FileKind::Symlink => {
                return rustix::fs::symlinkat(attributes.target.as_slice(), &dir.fd, name);
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice if self.options.special => FileType::CharacterDevice,
            FileKind::BlockDevice if self.options.special => FileType::BlockDevice,
            _ => return Err(Errno::PERM),
        };
        rustix::fs::mknodat(&dir.fd, name, kind, mode, attributes.rdev)
    }

    /// Sets owner, extended attributes, mode and times of an entry that is not open. A failure of
    /// one does not stop the others.
    fn set_by_name(&self, dir: &Target<'a>, name: &[u8], attributes: &Attributes) -> Left {
        use rustix::fs::XattrFlags;
        let mut left = Left::default();
        let owned = self.owner(attributes).is_none_or(|(uid, gid)| {
            let set = rustix::fs::chownat(&dir.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            left.unless_set("its owner", set)
        });
        let path = crate::local::walk::proc_path(&dir.fd, name);
        let listed = self.set_xattrs(attributes, &mut left, |key, value| {
            rustix::fs::lsetxattr(path.as_slice(), key, value, XattrFlags::empty())
        });
        if attributes.kind != FileKind::Symlink {
            let mode = self.mode(attributes, owned, listed, &mut left);
            left.unless_set("its mode", rustix::fs::chmodat(&dir.fd, name, mode, AtFlags::empty()));
        }
        let set = rustix::fs::utimensat(&dir.fd, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW);
        left.unless_set("its time", set);
        left
    }

    /// The owner to set, if it is another one.
    fn owner(&self, attributes: &Attributes) -> Option<(Option<Uid>, Option<Gid>)> {
        (self.is_root && (attributes.uid, attributes.gid) != self.user)
            .then(|| (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid))))
    }

    /// Sets extended attributes. Attributes that give rights, as set-user-id bits do, are set only
    /// on request. False when there is an access control list that could not be set.
    fn set_xattrs(
        &self,
        attributes: &Attributes,
        left: &mut Left,
        set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> bool {
        let mut listed = true;
        for (key, value) in attributes.xattrs.iter().filter(|(key, _)| key != DOMAIN_XATTR) {
            let gives_rights = key.starts_with(b"security.") || key.starts_with(b"trusted.");
            if gives_rights && !self.options.special {
                // On systems with labels every file has one, which the system chooses.
                if key != b"security.selinux" {
                    left.out(&show(key), "use --special to restore it");
                }
                continue;
            }
            let is_set = match set(key, value) {
                Err(Errno::PERM) if gives_rights && !self.is_root => {
                    left.out(&show(key), "only root may set it");
                    false
                }
                set => left.unless_set(&show(key), set),
            };
            listed &= is_set || key != acl::ACCESS;
        }
        listed
    }

    /// The mode to set. It has no set-id bits that were not asked for, or that would be another
    /// owner's. If the access control list is missing, the group gets no bits that only the list's
    /// mask had.
    fn mode(&self, attributes: &Attributes, owned: bool, listed: bool, left: &mut Left) -> Mode {
        let mut mode = attributes.mode;
        if attributes.kind != FileKind::Directory && mode & 0o6000 != 0 {
            if !self.options.special {
                left.out("its set-id bits", "use --special to restore them");
                mode &= 0o1777;
            } else if !owned {
                left.out("its set-id bits", "they would be another owner's");
                mode &= 0o1777;
            }
        }
        if !listed {
            let list = attributes.xattrs.iter().find(|(key, _)| key == acl::ACCESS);
            let entries = list.and_then(|(_, value)| acl::decode(value)).unwrap_or_default();
            mode = acl::mode_without(mode, &entries);
        }
        Mode::from_raw_mode(mode)
    }

    /// Sets owner, extended attributes, mode and times of an open file. The owner comes before the
    /// mode, as changing it clears set-id bits.
    fn set_by_fd(&self, fd: impl AsFd, attributes: &Attributes, mode_is_set: bool) -> Left {
        use rustix::fs::XattrFlags;
        let (fd, mut left) = (fd.as_fd(), Left::default());
        let owned = self
            .owner(attributes)
            .is_none_or(|(uid, gid)| left.unless_set("its owner", rustix::fs::fchown(fd, uid, gid)));
        let listed = self.set_xattrs(attributes, &mut left, |key, value| {
            rustix::fs::fsetxattr(fd, key, value, XattrFlags::empty())
        });
        if !mode_is_set || !attributes.xattrs.is_empty() {
            let mode = self.mode(attributes, owned, listed, &mut left);
            left.unless_set("its mode", rustix::fs::fchmod(fd, mode));
        }
        left.unless_set("its time", rustix::fs::futimens(fd, &times(attributes)));
        left
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

impl OpenFile<'_> {
    /// Gives a whole file its own name. Without `overwrite`, an entry that appeared meanwhile is
    /// not replaced.
    fn publish(&self, temporary: &[u8]) -> Result<(), String> {
        let (dir, name) = (&self.dir.fd, self.name.as_slice());
        let renamed = if self.dir.context.options.overwrite {
            rustix::fs::renameat(dir, temporary, dir, name)
        } else {
            match rustix::fs::renameat_with(dir, temporary, dir, name, RenameFlags::NOREPLACE) {
                // Some file systems lack this kind of rename; nearly all of those have links.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    rustix::fs::linkat(dir, temporary, dir, name, AtFlags::empty())
                        .and_then(|()| rustix::fs::unlinkat(dir, temporary, AtFlags::empty()))
                }
                renamed => renamed,
            }
        };
        renamed.map_err(|errno| if errno == Errno::EXIST { EXISTS.to_string() } else { errno.to_string() })
    }

    /// Records damaged ranges.
    pub(super) fn lose(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        self.lost.lock().expect("no panic while held").extend(ranges);
    }

    /// `restored, but for bytes 4096..8192: they are damaged, and zeros here`.
    fn what_is_lost(&self) -> Option<String> {
        let mut lost = std::mem::take(&mut *self.lost.lock().expect("no panic while held"));
        lost.sort_unstable_by_key(|range| range.start);
        lost.dedup_by(|next, before| {
            let follows = before.end == next.start;
            if follows {
                before.end = next.end;
            }
            follows
        });
        let named: Vec<String> =
            lost.iter().take(NAMED).map(|range| format!("{}..{}", range.start, range.end)).collect();
        let more = lost.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more ranges") } else { String::new() };
        (!lost.is_empty()).then(|| {
            format!("restored, but for bytes {}{more}: they are damaged, and zeros here", named.join(", "))
        })
    }

    fn end(&self) {
        let context = self.dir.context;
        let written_as = self.temporary.as_ref().unwrap_or(&self.name);
        let remove = || {
            let _ = rustix::fs::unlinkat(&self.dir.fd, written_as.as_slice(), AtFlags::empty());
        };
        if self.failed.load(Ordering::Relaxed) {
            return remove();
        }
        let told = context.set_by_fd(&self.fd, &self.attributes, self.mode_is_set).told();
        if let Some(temporary) = &self.temporary
            && let Err(why) = self.publish(temporary)
        {
            context.progress.skip(self.display(), why);
            return remove();
        }
        if let Err(why) = told {
            context.progress.skip(self.display(), why);
        }
        if let Some(why) = self.what_is_lost() {
            Progress::add(&context.progress.damaged, 1);
            context.progress.skip(self.display(), why);
        }
        Progress::add(&context.progress.files_done, 1);
        context.progress.entry(Step::Added, || self.display().into_bytes());
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.end();
        self.dir.context.progress.ended();
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if let Some(attributes) = &self.attributes
            && let Err(why) = self.context.set_by_fd(&self.fd, attributes, false).told()
        {
            self.context.progress.skip(self.display.clone(), why);
        }
    }
}
