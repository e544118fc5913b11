//! Protects mirrors: a directory in the store that mirrors a directory of a host records which one,
//! and a put of another source may not replace it unasked.
//!
//! The record is the directory's policy `source`, so it moves with the directory, and is removed
//! with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;

use super::{PutOptions, Putter};
use crate::error::{Error, ErrorKind, Result};
use crate::meta::{At, Inode, Meta, ROOT_INODE, SessionKind};
use crate::patterns::Patterns;
use crate::policy::{Origin, Policies, SOURCE};
use crate::store::Store;
use crate::tree::{StorePath, find};
use crate::write::{CommitWhen, Progress, WriteOptions, Writer, set_policy};

/// Rules for a put of a directory, checked before it begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct MirrorRules {
    /// The target takes this source from now on, even if it mirrored another.
    pub replace_source: bool,
    /// The source may be empty although the target is not.
    pub allow_empty: bool,
}

/// A source of a mirror, and where it goes.
pub(super) struct Mirror<'a> {
    pub meta: &'a dyn Meta,
    /// Directory → the source that it remembers.
    pub sources: &'a BTreeMap<u64, String>,
    pub exclude: &'a Patterns,
    pub origin: Origin,
    /// The source has nothing.
    pub is_empty: bool,
    /// The command can leave what is there, and add to it.
    pub can_add: bool,
    pub target: &'a StorePath,
}

fn refused<T>(why: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, why))
}

impl Mirror<'_> {
    /// Refuses to replace content of another origin. Returns the record for the target, if it has
    /// none yet.
    pub fn check(&self, rules: MirrorRules) -> Result<Option<String>> {
        let (target, origin) = (self.target, &self.origin);
        let existing = find(self.meta, At::Now, target)?;
        let existing = existing.filter(|inode| inode.attributes.kind == FileKind::Directory);
        let holds = match &existing {
            Some(inode) => !self.meta.read_dir(At::Now, inode.number, None, 1)?.is_empty(),
            None => false,
        };
        if holds && !rules.allow_empty && self.is_empty {
            return refused(format!(
                "{} is empty, and would remove all that `{target}` holds: is its disk mounted? If that is meant, add --allow-empty",
                origin.path.display()
            ));
        }
        let known = existing.as_ref().and_then(|inode| self.sources.get(&inode.number));
        let text = origin.to_text();
        if !rules.replace_source {
            let before = known.and_then(|known| Origin::parse(known));
            self.check_target(origin, before.as_ref(), holds)?;
            if let Some(inode) = &existing {
                self.check_below(origin, inode)?;
            }
            let within = known.is_none() && self.is_part_of_mirror(origin)?;
            return Ok(Some(text).filter(|text| !within && known != Some(text)));
        }
        Ok(Some(text).filter(|text| known != Some(text)))
    }

    fn check_target(&self, origin: &Origin, before: Option<&Origin>, holds: bool) -> Result<()> {
        let target = self.target;
        match before {
            Some(before) if before.is_same_place(origin) => {
                if holds && !before.filesystem.is_same(origin.filesystem) {
                    return refused(format!(
                        "{origin} lies on another file system than when it was last put to `{target}`: is its disk mounted? If that is \
                         meant, add --replace-source"
                    ));
                }
                Ok(())
            }
            _ if target.components.is_empty() => refused(format!(
                "{origin} would replace everything in the store; name a directory, such as --to {}, or add --replace-source to \
                 allow it",
                origin.path.file_name().map_or("NAME".into(), |name| name.to_string_lossy())
            )),
            Some(before) if holds => refused(format!(
                "`{target}` mirrors {before}, and {origin} would replace it; choose another name with --to, or add --replace-source to \
                 allow it"
            )),
            None if holds && !self.is_part_of_mirror(origin)? => refused(format!(
                "`{target}` has entries that no directory was put over, and {origin} would replace them; choose another name with --to, {}\
                 or add --replace-source to replace it",
                if self.can_add { "add --keep-missing to add to it, " } else { "" }
            )),
            _ => Ok(()),
        }
    }

    /// A directory above the target mirrors one that has this origin at the same place.
    fn is_part_of_mirror(&self, origin: &Origin) -> Result<bool> {
        let (mut inode, mut found) = (ROOT_INODE, None);
        for (depth, name) in self.target.components.iter().enumerate() {
            if let Some(above) = self.sources.get(&inode).and_then(|text| Origin::parse(text)) {
                found = Some((above, depth));
            }
            let Some(below) = self.meta.lookup(At::Now, inode, name)? else { break };
            inode = below.number;
        }
        Ok(found.is_some_and(|(above, depth)| origin.is_within(&above, &self.target.components[depth..])))
    }

    /// Refuses a mirror that would contain directories that mirror something else.
    fn check_below(&self, origin: &Origin, target: &Inode) -> Result<()> {
        for (&inode, text) in self.sources {
            let Some(other) = Origin::parse(text).filter(|_| inode != target.number) else { continue };
            let Some(below) = self.path_below(target.number, inode)? else { continue };
            let left_out = (1..=below.len()).any(|depth| {
                let path = below[..depth].join(&b'/');
                below[..depth].last().is_some_and(|name| self.exclude.matches(name, &path))
            });
            if left_out || other.is_within(origin, &below) {
                continue;
            }
            let path = below.iter().fold(self.target.clone(), |path, name| path.join(name));
            return refused(format!(
                "`{path}` mirrors {other}, and {origin} would replace it; choose another name with --to, or add --replace-source if that \
                 is meant"
            ));
        }
        Ok(())
    }

    /// The names that lead from one directory down to another; `None` where that is not below it.
    fn path_below(&self, top: u64, mut inode: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let mut chain = Vec::new();
        while inode != top {
            match self.meta.parent_of(inode)? {
                Some(parent) if parent != inode => {
                    chain.push((parent, inode));
                    inode = parent;
                }
                _ => return Ok(None),
            }
        }
        let mut names = Vec::new();
        for (parent, child) in chain.into_iter().rev() {
            let Some(name) = self.name_of(parent, child)? else { return Ok(None) };
            names.push(name);
        }
        Ok(Some(names))
    }

    fn name_of(&self, parent: u64, child: u64) -> Result<Option<Vec<u8>>> {
        const PAGE: usize = 1024;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = self.meta.read_dir(At::Now, parent, after.as_deref(), PAGE)?;
            if let Some(entry) = page.iter().find(|entry| entry.inode.number == child) {
                return Ok(Some(entry.name.clone()));
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.name.clone()),
                _ => return Ok(None),
            }
        }
    }
}

/// True when a directory has no entries; one that cannot be read is not empty.
pub(super) fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes `target` the mirror of a source that is no directory: it remembers that, and is made if it
/// is missing.
///
/// # Errors
/// `Invalid` if it holds data of another origin, unless `replace_source`; and failures of the store.
pub fn claim(
    store: &Store,
    origin: Origin,
    target: &StorePath,
    replace_source: bool,
    progress: &Arc<Progress>,
) -> Result<()> {
    let (policies, options) = (Policies::load(store)?, PutOptions::default());
    let (meta, sources, exclude) = (&*store.meta, policies.sources(), &options.leave_out.patterns);
    let mirror = Mirror { meta, sources, exclude, origin, is_empty: false, can_add: false, target };
    let text = mirror.check(MirrorRules { replace_source, allow_empty: false })?;
    let remembered = text.map(|text| (target.clone(), text)).into_iter().collect();
    match remember(store, remembered, &options, progress)?.first() {
        Some((target, _)) => {
            Err(Error::new(ErrorKind::Invalid, format!("`{target}` in the store is not a directory")))
        }
        None => Ok(()),
    }
}

/// Makes the targets, and lets them remember their sources. This comes before anything is put, so
/// that the same command can go on where it was interrupted. Returns the targets that are no
/// directories yet; the caller calls again once they are.
pub(super) fn remember(
    store: &Store,
    remembered: Vec<(StorePath, String)>,
    options: &PutOptions,
    progress: &Arc<Progress>,
) -> Result<Vec<(StorePath, String)>> {
    let mut late = Vec::new();
    if remembered.is_empty() {
        return Ok(late);
    }
    let session = store.session(SessionKind::Writer, "put")?;
    for (target, text) in remembered {
        let mut found = find(&*store.meta, At::Now, &target)?;
        if found.is_none() {
            let policies = Policies::load(store)?;
            let write =
                WriteOptions { threads: 1, chunk_max: policies.chunk_max()?, commit: CommitWhen::AsItComes };
            let mut writer = Writer::start(store, &session, &write, progress);
            let mut putter = Putter::new(store, policies, Some(&mut writer), progress, options, None);
            let made = putter.make_target_dir(&target, None);
            writer.finish()?;
            made?;
            found = find(&*store.meta, At::Now, &target)?;
        }
        match found {
            Some(found) if found.attributes.kind == FileKind::Directory => {
                set_policy(store, &session, found.number, SOURCE, Some(&text))?;
            }
            _ => late.push((target, text)),
        }
    }
    Ok(late)
}
