//! Compares two databases: the trees as they are, those of snapshots, and policies.
//!
//! These are not compared:
//!
//! - times of access and of the inode's last change: only mounts keep them;
//! - earlier versions of files: they are reclaimed without a record;
//! - jobs, sessions and locks: the catalogue has nothing of them.

use std::collections::{BTreeMap, HashSet};

use outrigger_format::catalogue::{Attributes, FileKind};

use super::merged::{Directory, Merged};
use crate::error::Result;
use crate::meta::{At, DirEntry, Inode, Meta, ROOT_INODE, SnapshotRow};
use crate::snapshot::facts::Facts;
use crate::text::show;

/// Differences that are named; more are only counted.
const NAMED: usize = 100;

/// What differs.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// In sentences.
    pub named: Vec<String>,
    /// How many more there are.
    pub more: u64,
}

impl Differences {
    fn add(&mut self, what: impl FnOnce() -> String) {
        if self.named.len() < NAMED {
            self.named.push(what());
        } else {
            self.more += 1;
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

/// The difference between `replayed`, which the catalogue was replayed into, and the database `present` at
/// this time.
pub(crate) fn compare(replayed: &dyn Meta, present: &dyn Meta, now: At) -> Result<Differences> {
    let mut differences = Differences::default();
    let is_of_then = |row: &SnapshotRow| match now {
        At::Now => true,
        At::Epoch(now) => row.epoch < now,
    };
    let by_name = |rows: Vec<SnapshotRow>| -> BTreeMap<String, SnapshotRow> {
        rows.into_iter().map(|row| (row.name.clone(), row)).collect()
    };
    let snapshots = by_name(present.snapshots()?.into_iter().filter(is_of_then).collect());
    let mut wanted = by_name(replayed.snapshots()?);
    for (name, row) in snapshots {
        let Some(wanted) = wanted.remove(&name) else {
            differences.add(|| format!("snapshot {} is not in the catalogue", show(name.as_bytes())));
            continue;
        };
        if (wanted.time, facts(&wanted)) != (row.time, facts(&row)) {
            differences.add(|| format!("snapshot {} has another time, or other tags", show(name.as_bytes())));
        }
        let trees =
            Trees { replayed, present, at: (At::Epoch(wanted.epoch), At::Epoch(row.epoch)), of: Some(&name) };
        trees.compare(&mut differences)?;
    }
    for name in wanted.into_keys() {
        differences.add(|| format!("snapshot {} is missing in the database", show(name.as_bytes())));
    }
    Trees { replayed, present, at: (At::Now, now), of: None }.compare(&mut differences)?;
    compare_policies(replayed, present, now, &mut differences)?;
    Ok(differences)
}

/// A snapshot's facts as the catalogue has them: without the counts that its command set in the end.
fn facts(row: &SnapshotRow) -> Facts {
    Facts { counts: None, ..Facts::of(row) }
}

fn compare_policies(
    replayed: &dyn Meta,
    present: &dyn Meta,
    now: At,
    differences: &mut Differences,
) -> Result<()> {
    let (wanted, found) = (replayed.all_policies()?, present.all_policies()?);
    let inodes: HashSet<u64> = wanted.keys().chain(found.keys()).copied().collect();
    let mut inodes: Vec<u64> = inodes.into_iter().collect();
    inodes.sort_unstable();
    for inode in inodes {
        // One that is gone has no policies, whatever a row says.
        if present.inode(now, inode)?.is_none() || replayed.inode(At::Now, inode)?.is_none() {
            continue;
        }
        let (wanted, found) = (wanted.get(&inode), found.get(&inode));
        if wanted.cloned().unwrap_or_default() != found.cloned().unwrap_or_default() {
            let path = path_of(present, now, inode)?;
            differences.add(|| format!("{path}: policies"));
        }
    }
    Ok(())
}

/// The path of a directory; the database may be damaged.
fn path_of(present: &dyn Meta, now: At, directory: u64) -> Result<String> {
    let (mut path, mut at, mut seen) = (String::new(), directory, HashSet::new());
    while at != ROOT_INODE && seen.insert(at) {
        let Some(parent) = present.parent_of(at)? else { break };
        let entries = present.read_dir(now, parent, None, usize::MAX)?;
        let Some(entry) = entries.into_iter().find(|entry| entry.inode.number == at) else { break };
        path = format!("/{}{path}", show(&entry.name));
        at = parent;
    }
    Ok(if path.is_empty() { "/".to_owned() } else { path })
}

/// A tree in two databases.
struct Trees<'a> {
    replayed: &'a dyn Meta,
    present: &'a dyn Meta,
    at: (At, At),
    /// The snapshot that it is of.
    of: Option<&'a str>,
}

/// A directory that is being compared.
struct Level<'a> {
    names: Merged<'a>,
    path: String,
}

impl<'a> Trees<'a> {
    fn compare(&self, differences: &mut Differences) -> Result<()> {
        // A directory has one place; one that comes again lies below itself.
        let mut seen = HashSet::from([ROOT_INODE]);
        let mut levels = vec![self.level((ROOT_INODE, ROOT_INODE), String::new())];
        while let Some(level) = levels.last_mut() {
            let Some((replayed, present)) = level.names.next()? else {
                levels.pop();
                continue;
            };
            let name =
                replayed.as_ref().or(present.as_ref()).map(|entry| show(&entry.name)).unwrap_or_default();
            let path = format!("{}/{name}", level.path);
            self.entry(&path, replayed.as_ref(), present.as_ref(), differences);
            let (Some(replayed), Some(present)) = (replayed, present) else { continue };
            let are_directories = is_directory(&replayed) && is_directory(&present);
            if are_directories && seen.insert(present.inode.number) {
                levels.push(self.level((replayed.inode.number, present.inode.number), path));
            }
        }
        Ok(())
    }

    fn level(&self, (replayed, present): (u64, u64), path: String) -> Level<'a> {
        let replayed: Directory<'a> = (self.replayed, (self.at.0, replayed));
        Level { names: Merged::new(Some(replayed), (self.present, (self.at.1, present))), path }
    }

    fn entry(
        &self,
        path: &str,
        replayed: Option<&DirEntry>,
        present: Option<&DirEntry>,
        differences: &mut Differences,
    ) {
        let what = match (replayed, present) {
            (Some(replayed), Some(present)) => match difference(&replayed.inode, &present.inode) {
                Some(what) => what,
                None => return,
            },
            (Some(_), None) => "is missing in the database".to_owned(),
            (None, _) => "is not in the catalogue".to_owned(),
        };
        let of = self.of.map_or_else(String::new, |of| format!(" (in snapshot {})", show(of.as_bytes())));
        differences.add(|| format!("{path}{of}: {what}"));
    }
}

fn is_directory(entry: &DirEntry) -> bool {
    entry.inode.attributes.kind == FileKind::Directory
}

/// Describes the difference of two inodes.
fn difference(replayed: &Inode, present: &Inode) -> Option<String> {
    let (wanted, found) = (&replayed.attributes, &present.attributes);
    if (replayed.number, wanted.kind) != (present.number, found.kind) {
        return Some("is another file".to_owned());
    }
    let mut what = Vec::new();
    if wanted.kind == FileKind::File && replayed.root != present.root {
        let (wanted, found) = (replayed.root.len(), present.root.len());
        what.push(if wanted == found {
            "content".to_owned()
        } else {
            format!("content, {found} bytes where the catalogue has {wanted}")
        });
    }
    if wanted.mtime != found.mtime {
        what.push("time of the last modification".to_owned());
    }
    let plain =
        |attributes: &Attributes| Attributes { mtime: wanted.mtime, times: None, ..attributes.clone() };
    if plain(wanted) != plain(found) {
        what.push("mode, owner, target, device or extended attributes".to_owned());
    }
    (!what.is_empty()).then(|| what.join("; "))
}
