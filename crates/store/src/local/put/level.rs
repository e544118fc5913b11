//! Walks a directory tree, and compares each directory with the store's listing of it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use outrigger_format::Domain;
use outrigger_format::catalogue::FileKind;
use rustix::fs::Stat;

use super::Putter;
use super::entry::directory_attributes;
use super::leave_out::Here;
use crate::error::Result;
use crate::file::kind_of;
use crate::local::walk::{list, open_dir, stat};
use crate::meta::{At, Change, DirEntry, Inode, Meta};
use crate::policy::WritePolicy;
use crate::write::{Item, Step};

/// A directory being walked.
pub(super) struct Level {
    pub(super) dir: Arc<OwnedFd>,
    pub(super) display: PathBuf,
    pub(super) relative: Vec<u8>,
    pub(super) inode: u64,
    pub(super) domain: Domain,
    pub(super) device: u64,
    pub(super) policy: WritePolicy,
    pub(super) found: std::vec::IntoIter<Box<[u8]>>,
    pub(super) existing: Existing,
    pub(super) here: Here,
    /// It is the directory of a single file that is put.
    pub(super) is_top_parent: bool,
}

/// A directory's entries in the store, in order, a page at a time, as there may be a million.
/// Entries that this put commits meanwhile lie behind the page's end only if they were there
/// before.
#[derive(Default)]
pub(super) struct Existing {
    page: std::collections::VecDeque<DirEntry>,
    /// The directory, while there may be more pages.
    more: Option<u64>,
    after: Option<Vec<u8>>,
}

const PAGE: usize = 4096;

impl Existing {
    pub(super) fn of(inode: u64) -> Self {
        Self { more: Some(inode), ..Self::default() }
    }

    pub(super) fn next_if(
        &mut self,
        meta: &dyn Meta,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<DirEntry>> {
        if self.page.is_empty()
            && let Some(inode) = self.more
        {
            self.page = meta.read_dir(At::Now, inode, self.after.as_deref(), PAGE)?.into();
            self.after = self.page.back().map(|entry| entry.name.clone());
            self.more = (self.page.len() == PAGE).then_some(inode);
        }
        Ok(if self.page.front().is_some_and(|entry| wanted(&entry.name)) {
            self.page.pop_front()
        } else {
            None
        })
    }
}

impl Putter<'_> {
    pub(super) fn walk(
        &mut self,
        dir: Arc<OwnedFd>,
        display: PathBuf,
        (inode, domain): (u64, Domain),
        existed: bool,
        policy: WritePolicy,
    ) -> Result<()> {
        let device = rustix::fs::fstat(&dir).map_or(0, |stat| stat.st_dev);
        let Some(top) = self.enter(
            dir,
            display,
            Vec::new(),
            (inode, domain),
            (device, &Here::default()),
            existed,
            policy,
        )?
        else {
            return Ok(());
        };
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.found.next() else {
                let level = levels.pop().expect("just seen");
                self.remove_rest(level)?;
                continue;
            };
            // Entries that sort before this one in the store are gone from the source.
            while let Some(gone) = level.existing.next_if(self.meta, |existing| existing < &*name)? {
                self.remove(level, &gone)?;
            }
            let existing = level.existing.next_if(self.meta, |existing| existing == &*name)?;
            let existing = existing.map(|entry| entry.inode);
            let stat = match stat(&level.dir, &name) {
                Ok(Some(stat)) => stat,
                // It vanished since it was listed; the next put removes it from the store.
                Ok(None) => continue,
                Err(errno) => {
                    self.progress.skip(display_of(level, &name).display().to_string(), errno.to_string());
                    continue;
                }
            };
            if self.is_left_out(level, &name, &stat) {
                continue;
            }
            if kind_of(stat.st_mode) == Some(FileKind::Directory) {
                let level = levels.last().expect("still there");
                if let Some(below) = self.descend(level, &name, &stat, existing)? {
                    levels.push(below);
                }
            } else {
                let level = levels.pop().expect("still there");
                let put = self.put_entry(&level, &name, &name, &stat, existing.as_ref());
                levels.push(level);
                put?;
            }
        }
        Ok(())
    }

    pub(super) fn is_left_out(&self, level: &Level, name: &[u8], stat: &Stat) -> bool {
        let is_own = self.own == Some((stat.st_dev, stat.st_ino));
        let is_left = self.options.one_file_system || self.options.own_devices.contains(&stat.st_dev);
        let foreign = is_left && stat.st_dev != level.device;
        let is_directory = kind_of(stat.st_mode) == Some(FileKind::Directory);
        is_own || foreign || self.leaves_out(level, name, is_directory)
    }

    /// Reports the step for an entry, by its path in the store.
    pub(super) fn tell(&self, level: &Level, name: &[u8], step: Step) {
        self.progress.entry(step, || {
            let below = join(&level.relative, name);
            match (&self.top.components[..], level.is_top_parent) {
                ([], _) => below,
                (_, true) => self.top.to_bytes(),
                _ => join(&self.top.to_bytes(), &below),
            }
        });
    }

    fn leaves_out(&self, level: &Level, name: &[u8], is_directory: bool) -> bool {
        self.options.leave_out.has(&level.here, name, &join(&level.relative, name), is_directory)
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of the level it makes")]
    pub(super) fn enter(
        &mut self,
        dir: Arc<OwnedFd>,
        display: PathBuf,
        relative: Vec<u8>,
        (inode, domain): (u64, Domain),
        (device, above): (u64, &Here),
        existed: bool,
        policy: WritePolicy,
    ) -> Result<Option<Level>> {
        // The rest is stored all the same.
        if let Err(error) = self.require_key(domain) {
            self.progress.skip(display.display().to_string(), error.to_string());
            return Ok(None);
        }
        self.summary.directories += 1;
        let found = match list(&dir) {
            Ok(found) => found,
            Err(errno) => {
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(None);
            }
        };
        let here = self.options.leave_out.enter(&dir, &relative, &found, above, &mut |name, why| {
            self.progress.skip(display.join(OsStr::from_bytes(name)).display().to_string(), why);
        });
        let found = found.into_iter();
        let existing = if existed { Existing::of(inode) } else { Existing::default() };
        Ok(Some(Level {
            dir,
            display,
            relative,
            inode,
            domain,
            device,
            policy,
            found,
            existing,
            here,
            is_top_parent: false,
        }))
    }

    /// Fails unless contents can be stored in a domain.
    fn require_key(&self, domain: Domain) -> Result<()> {
        if domain == Domain::COMMON { Ok(()) } else { self.packs.domain_key(domain).map(drop) }
    }

    pub(super) fn descend(
        &mut self,
        level: &Level,
        name: &[u8],
        stat: &Stat,
        existing: Option<Inode>,
    ) -> Result<Option<Level>> {
        let display = display_of(level, name);
        let opened = open_dir(&level.dir, name)
            .and_then(|dir| directory_attributes(&dir, stat).map(|attributes| (dir, attributes)));
        let (dir, attributes) = match opened {
            Ok(opened) => opened,
            Err(errno) => {
                self.progress.skip(display.display().to_string(), errno.to_string());
                return Ok(None);
            }
        };
        let was_there = existing.is_some();
        let kept = existing.filter(|existing| existing.attributes.kind == FileKind::Directory);
        let (inode, domain) = match &kept {
            Some(kept) => (kept.number, kept.attributes.domain()),
            None => (self.next_inode()?, level.domain),
        };
        let attributes = attributes.in_domain(domain);
        if kept.as_ref().is_none_or(|kept| kept.attributes != attributes) {
            let over = was_there && kept.is_none();
            if !was_there || over {
                self.tell(level, name, if was_there { Step::Changed } else { Step::Added });
            }
            self.submit_plain(level.inode, name, inode, attributes, false, over)?;
        }
        let policy = self.policies.below(level.policy, inode)?;
        let above = (level.device, &level.here);
        self.enter(dir, display, join(&level.relative, name), (inode, domain), above, kept.is_some(), policy)
    }

    pub(super) fn remove_rest(&mut self, mut level: Level) -> Result<()> {
        while let Some(gone) = level.existing.next_if(self.meta, |_| true)? {
            self.remove(&level, &gone)?;
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, level: &Level, gone: &DirEntry) -> Result<()> {
        let (parent, name) = (level.inode, &gone.name);
        let is_directory = gone.inode.attributes.kind == FileKind::Directory;
        if self.options.keep_missing || self.leaves_out(level, name, is_directory) {
            return Ok(());
        }
        self.summary.removed += 1;
        self.tell(level, name, Step::Removed);
        if self.writer.is_none() {
            self.plan.remove(self.meta, &self.top, &join(&level.relative, name), &gone.inode)?;
        }
        let name = name.clone();
        self.submit(Item::Change(Change::Remove { parent, name, recursive: true }), true)
    }
}

pub(super) fn join(relative: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = relative.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

pub(super) fn display_of(level: &Level, name: &[u8]) -> PathBuf {
    level.display.join(OsStr::from_bytes(name))
}
