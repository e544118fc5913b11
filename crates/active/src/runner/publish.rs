//! The last step: what the splits wrote gets its names, all in the transaction that ends the job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_format::{Domain, Root};
use outrigger_store::host::Identity;
use outrigger_store::local::put::made_now;
use outrigger_store::meta::jobs::{JobChange, NewSplit, SplitState};
use outrigger_store::meta::{At, Change, Meta, ROOT_INODE, Role, SessionKind};
use outrigger_store::ops::snapshots;
use outrigger_store::policy::Policies;
use outrigger_store::session::Session;
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::snapshot::facts::{Counts, Facts};
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::{CommitWhen, FileItem, Item, Progress, Target, WriteOptions, Writer};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::{Made, RunOptions, Shared};
use crate::content::joined;
use crate::identity::{Permissions, Submitter};
use crate::pattern::Pattern;
use crate::template::{self, Subject, expand, subject_path};

/// Where an output of a split goes.
pub(super) fn target(shared: &Shared, split: u64, range: &NewSplit, name: &[u8]) -> Result<StorePath> {
    let unknown = || Error::new(ErrorKind::Damaged, format!("job {} has no such output", shared.job));
    let (number, below) = match name.iter().position(|&byte| byte == b'/') {
        None => (name, None),
        Some(at) => (&name[..at], Some(&name[at + 1..])),
    };
    let number: usize =
        std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or_else(unknown)?;
    let output = shared.spec.outputs.get(number).ok_or_else(unknown)?;
    let path = subject_path(shared.spec.pattern, range, &shared.inputs.paths);
    let subject = Subject { path: path.as_ref(), input: range.input.unwrap_or(0).into(), split: Some(split) };
    let mut target = expand(&output.template, &subject)?;
    if let Some(below) = below.filter(|_| template::is_directory(&output.template)) {
        target.components.extend(StorePath::parse(below)?.components);
    }
    Ok(target)
}

/// Makes the job's outputs visible and ends it as done; returns them with their lengths.
///
/// # Errors
/// `Fenced` when the job is not running any more: then nothing has become visible. Others likewise.
pub(super) fn publish(shared: &Shared, options: &RunOptions<'_>) -> Result<Vec<(StorePath, u64)>> {
    let (store, jobs) = (&shared.store, shared.store.jobs());
    // From the first: by it others know that somebody does this.
    let session = store.session(SessionKind::Writer, Role::Job(shared.job))?;
    let splits = jobs.splits(shared.job)?;
    // An input of which a split was set aside has no output at all: half a file is worse than none.
    let undone = splits.iter().filter(|split| split.state != SplitState::Done);
    let invalidated: BTreeSet<Option<u32>> = undone.map(|split| split.range.input).collect();
    let mut targets: BTreeMap<StorePath, Vec<Root>> = BTreeMap::new();
    // Printed results were printed by now, and become no files.
    let outputs = if shared.spec.prints() { Vec::new() } else { jobs.outputs(shared.job)? };
    for output in outputs {
        let Some(split) = splits.get(output.split as usize) else { continue };
        // With several to one, what could be done is what was asked for; of a file that was
        // written, raw file and outputs stand for themselves.
        let apart = shared.spec.pattern == Pattern::ManyToFile || shared.inputs.paths.is_empty();
        if invalidated.contains(&split.range.input) && !apart {
            continue;
        }
        let target = target(shared, output.split, &split.range, &output.name)?;
        targets.entry(target).or_default().push(output.root);
    }
    let files: Vec<(StorePath, u64)> =
        targets.iter().map(|(path, roots)| (path.clone(), roots.iter().map(Root::len).sum())).collect();
    let held = (options.before_publish)()?;
    // Where he may write may have changed since the job was made.
    let owner = shared.spec.submitter.as_ref();
    let mut permissions = Permissions::new(&*store.meta, At::Now, owner);
    targets.keys().try_for_each(|path| permissions.require_writable(path))?;
    let before = before_replacing(shared, &files)?;
    if let Some((before, _)) = &before {
        session.take_before(before);
        before.destroys();
    }
    let count = files.len();
    let why = format!("{count} {}", if count == 1 { "file" } else { "files" });
    let made = Some(Made::of(&files).encode());
    let publish = Change::Job(JobChange::Publish { job: shared.job, why, made });
    commit(store, &session, options.threads, targets, owner, vec![publish])?;
    if let Some((before, counts)) = before {
        // The job is done whatever becomes of this: the snapshot stays, and does not say what the
        // job did.
        let _ = snapshots::settle(store, &before, counts);
    }
    drop(held);
    Ok(files)
}

/// The snapshot to take before outputs replace files, as commands take one. A rule's job replaces
/// them again and again, and takes none.
fn before_replacing(
    shared: &Shared,
    files: &[(StorePath, u64)],
) -> Result<Option<(Arc<BeforeSnapshot>, Counts)>> {
    if shared.spec.rule.is_some() {
        return Ok(None);
    }
    let mut targets = Vec::new();
    for (path, _) in files {
        if find(&*shared.store.meta, At::Now, path)?.is_some() {
            targets.push(path.clone());
        }
    }
    if targets.is_empty() {
        return Ok(None);
    }
    let changed = targets.len() as u64;
    let counts = Counts { created: files.len() as u64 - changed, changed, removed: 0 };
    let facts = Facts {
        host: Some(Identity::this().name),
        command: Some("run".to_string()),
        targets,
        ..Facts::default()
    };
    let name = format!("before-run-of-job-{}", shared.job);
    Ok(Some((Arc::new(BeforeSnapshot::new(name, facts)), counts)))
}

/// Gives contents their names, in one transaction with `changes`. Directories that are missing are
/// made; what is made belongs to `owner`.
///
/// # Errors
/// `Invalid` where something else is in the way, and those of the store.
pub(crate) fn commit(
    store: &Store,
    session: &Arc<Session>,
    threads: usize,
    targets: BTreeMap<StorePath, Vec<Root>>,
    owner: Option<&Submitter>,
    changes: Vec<Change>,
) -> Result<()> {
    let policies = Policies::load(store)?;
    let write = WriteOptions { threads, chunk_max: policies.chunk_max()?, commit: CommitWhen::AtTheEnd };
    let mut writer = Writer::start(store, session, &write, &Arc::new(Progress::default()));
    let mut tree = Tree { meta: &*store.meta, owner, made: BTreeMap::new() };
    let submitted = (|| -> Result<()> {
        for (path, mut roots) in targets {
            let name = path.name().unwrap_or_default().to_vec();
            let (parent, domain, existed) = tree.directory(&path.parent(), &mut writer)?;
            let existing = if existed { tree.meta.lookup(At::Now, parent, &name)? } else { None };
            let inode = match &existing {
                Some(existing) if existing.attributes.kind == FileKind::File => existing.number,
                Some(existing) if existing.attributes.kind == FileKind::Directory => {
                    return Err(Error::new(ErrorKind::Invalid, format!("`{path}` is a directory by now")));
                }
                _ => tree.meta.reserve_inodes(1)?.start,
            };
            let attributes = match existing.filter(|existing| existing.attributes.kind == FileKind::File) {
                Some(existing) => Attributes {
                    mtime: made_now(FileKind::File, 0).mtime,
                    times: None,
                    ..existing.attributes
                },
                None => made_by(owner, FileKind::File, 0o644).in_domain(domain),
            };
            if roots.len() == 1 {
                let root = roots.remove(0);
                let change = Change::Put { parent, name, inode, attributes, root, stamp: 0, replace: false };
                writer.submit(Item::Change(change))?;
                continue;
            }
            let policy = policies.at(tree.meta, &path.parent())?;
            writer.submit(Item::File(FileItem::under(
                Target::Put { parent, name, inode, replace: false },
                attributes,
                joined(roots.into_iter()),
                policy,
            )))?;
        }
        changes.into_iter().try_for_each(|change| writer.submit(Item::Change(change)))
    })();
    match submitted {
        Ok(()) => writer.finish().map(drop),
        // A pipeline that stopped knows why better than who noticed.
        Err(error) if error.kind() == ErrorKind::Cancelled => Err(writer.finish().err().unwrap_or(error)),
        Err(error) => Err(error),
    }
}

/// Attributes of something that `owner` makes now; of this process without one.
fn made_by(owner: Option<&Submitter>, kind: FileKind, mode: u32) -> Attributes {
    let made = made_now(kind, mode);
    match owner {
        Some(owner) => Attributes { uid: owner.uid, gid: owner.gid, ..made },
        None => made,
    }
}

/// Finds directories, and makes those that are missing.
struct Tree<'a> {
    meta: &'a dyn Meta,
    owner: Option<&'a Submitter>,
    made: BTreeMap<StorePath, (u64, Domain)>,
}

impl Tree<'_> {
    /// The directory's inode and domain, and whether the store has it already.
    fn directory(&mut self, path: &StorePath, writer: &mut Writer) -> Result<(u64, Domain, bool)> {
        let (mut parent, mut domain) = (ROOT_INODE, Domain::COMMON);
        let (mut existed, mut at) = (true, StorePath::default());
        for name in &path.components {
            at = at.join(name);
            if let Some(&made) = self.made.get(&at) {
                ((parent, domain), existed) = (made, false);
                continue;
            }
            let existing = if existed { self.meta.lookup(At::Now, parent, name)? } else { None };
            if let Some(existing) = existing {
                if existing.attributes.kind != FileKind::Directory {
                    return Err(Error::new(ErrorKind::Invalid, format!("`{at}` is not a directory")));
                }
                (parent, domain) = (existing.number, existing.attributes.domain());
                continue;
            }
            let inode = self.meta.reserve_inodes(1)?.start;
            writer.submit(Item::Change(Change::Put {
                parent,
                name: name.clone(),
                inode,
                attributes: made_by(self.owner, FileKind::Directory, 0o755).in_domain(domain),
                root: Root::Empty,
                stamp: 0,
                replace: false,
            }))?;
            self.made.insert(at.clone(), (inode, domain));
            (parent, existed) = (inode, false);
        }
        Ok((parent, domain, existed))
    }
}
