//! From globs to a job: which files, cut how.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_store::host;
use outrigger_store::meta::jobs::{JobId, JobInput, NewJob, NewSplit, Seen};
use outrigger_store::meta::{At, Meta};
use outrigger_store::ops::View;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::bundled;
use crate::cuts::{Cuts, cut};
use crate::identity::Permissions;
use crate::inputs::{Found, StoreGlob};
use crate::job::records::Records;
use crate::job::spec::Spec;
use crate::making::Making;
use crate::mount::SPLITS;
use crate::pattern::Pattern;
use crate::plugin;
use crate::signing;
use crate::template::{self, Subject, expand, subject_path};

pub use crate::cuts::Splits;

/// Makes a job of `spec` over the files that match `globs` now; its programs may look at those that
/// match `with`. From then on the job keeps all of them as they are now.
///
/// # Errors
/// `Invalid` if the request makes no sense, `NotFound` if a glob matches nothing, `Denied` if its
/// submitter may not read an input or write an output. Errors of a plug-in for its records.
pub fn submit(
    store: &Arc<Store>,
    spec: &Spec,
    globs: &[String],
    with: &[String],
    splits: Splits,
) -> Result<JobId> {
    submit_reporting(store, spec, globs, with, splits, &Making::default())
}

/// As [`submit`]; `making` reports progress, and can stop it.
///
/// # Errors
/// As there; `Cancelled` when it was stopped.
pub fn submit_reporting(
    store: &Arc<Store>,
    spec: &Spec,
    globs: &[String],
    with: &[String],
    splits: Splits,
    making: &Making,
) -> Result<JobId> {
    spec.check()?;
    store.require_writable()?;
    store.require_all_rights()?;
    if spec.pattern.needs_writer() {
        let why = format!(
            "{} is for a file that is being written: give --in - and a stream, or --follow and a file of a mount",
            spec.pattern
        );
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let view = View::open(store, "run", None)?;
    let mut found: Vec<Found> = Vec::new();
    for glob in globs {
        found.extend(StoreGlob::parse(glob)?.files(&*store.meta, view.at)?);
    }
    if found.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "a job needs inputs: name stored files with --in"));
    }
    make_reporting(store, &view, spec, found, (with, splits), None, making)
}

/// A job's data from the rule that makes it.
pub(crate) struct Fired {
    /// The file that the rule has seen.
    pub seen: Seen,
    /// The contents of the rule's components.
    pub components: Vec<JobInput>,
}

/// As [`submit`], for files that were found already in a view of the store, and for a rule that has
/// seen one of them.
pub(crate) fn make(
    store: &Arc<Store>,
    view: &View,
    spec: &Spec,
    found: Vec<Found>,
    with: &[String],
    splits: Splits,
    fired: Option<Fired>,
) -> Result<JobId> {
    make_reporting(store, view, spec, found, (with, splits), fired, &Making::default())
}

fn make_reporting(
    store: &Arc<Store>,
    view: &View,
    spec: &Spec,
    mut found: Vec<Found>,
    (with, splits): (&[String], Splits),
    fired: Option<Fired>,
    making: &Making,
) -> Result<JobId> {
    let mut cuts = cut(store, spec, &found, splits)?;
    check_targets(&*store.meta, spec, &found, &cuts.splits)?;
    let mut permissions = Permissions::new(&*store.meta, view.at, spec.submitter.as_ref());
    found.iter().try_for_each(|found| permissions.require_readable(&found.path, &found.inode))?;
    let mut spec = spec.clone();
    settle_program(&mut spec)?;
    plugin::settle(store, view, &mut spec, &found, &mut cuts, making)?;
    let Cuts { splits, by_host } = cuts;
    spec.by_host = by_host;
    let mut programs = bundled::Programs::new(store);
    let (seen, components) = match fired {
        Some(Fired { seen, components }) => (Some(seen), components),
        None => (None, bundled::settle_all(store, view, &mut spec, &mut programs)?),
    };
    if spec.records == Records::Bam {
        let indexes = found.iter().map(|found| index_of(&*store.meta, view.at, &found.path));
        let indexes = indexes.collect::<Result<Vec<_>>>()?;
        found.extend(indexes);
    }
    let before = found.len();
    for glob in with {
        found.extend(StoreGlob::parse(glob)?.files(&*store.meta, view.at)?);
    }
    // For splits by host, their mount has files that are not stored ones.
    let is_taken = |found: &&Found| found.path.components.first().is_some_and(|name| name == SPLITS);
    let has_splits = !spec.by_host.is_empty() && spec.wants_files();
    if let Some(taken) = found[before..].iter().find(is_taken).filter(|_| has_splits) {
        let why = format!(
            "`{}`: below .splits the program finds what each host holds; give --with files of other names",
            taken.path
        );
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    spec.with = u32::try_from(found.len() - before).unwrap_or(u32::MAX);
    found[before..].iter().try_for_each(|found| permissions.require_readable(&found.path, &found.inode))?;
    let input = |found: Found| JobInput { path: found.path.to_bytes(), root: found.inode.root };
    let inputs: Vec<JobInput> = found.into_iter().map(input).chain(components).collect();
    if let Some(key) = &making.sign_with {
        spec.signed = Some(signing::sign(store, key, spec.encode()?, &inputs)?);
    }
    let job = NewJob { spec: spec.encode()?, inputs, splits, seen };
    let id = store.jobs().create_job(&job)?;
    // The view's pin ends here: by now the job holds its inputs.
    view.check()?;
    drop(programs);
    Ok(id)
}

/// The index of a BAM file: `FILE.bam.bai` or `FILE.bai`.
fn index_of(meta: &dyn Meta, at: At, path: &StorePath) -> Result<Found> {
    let name = path.name().unwrap_or_default();
    let stem = name.strip_suffix(b".bam").unwrap_or(name);
    for stem in [name, stem] {
        let path = path.parent().join(&[stem, b".bai"].concat());
        if let Some(inode) = find(meta, at, &path)?.filter(|inode| inode.attributes.kind == FileKind::File) {
            return Ok(Found { path, inode });
        }
    }
    let why = format!("`{path}` has no index beside it; {}", crate::bam::ADVICE);
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Names a program of this host so that every process here finds it, and no other host looks for
/// it, unless its content becomes the job's (`bundled.rs`). A host that is set already stays: an
/// agent anywhere makes a rule's jobs, and on its own host that name may be another program.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn settle_program(spec: &mut Spec) -> Result<()> {
    if spec.host.is_some() || !spec.brings_program() {
        return Ok(());
    }
    bundled::find_all(spec)?;
    spec.host = Some(host::name());
    Ok(())
}

/// Refuses a job whose outputs would overwrite each other, or a directory, or lie where its
/// submitter may not write.
pub(crate) fn check_targets(meta: &dyn Meta, spec: &Spec, found: &[Found], cuts: &[NewSplit]) -> Result<()> {
    let paths: Vec<StorePath> = found.iter().map(|found| found.path.clone()).collect();
    let mut permissions = Permissions::new(meta, At::Now, spec.submitter.as_ref());
    let mut others = BTreeSet::new();
    for output in spec.outputs.iter().filter(|_| !spec.prints()) {
        let (mut taken, mut last) = (BTreeSet::new(), None);
        for (number, cut) in cuts.iter().enumerate() {
            let joined = !template::names_splits(&output.template);
            if joined && last == Some(cut.input) {
                continue;
            }
            last = Some(cut.input);
            let path = subject_path(spec.pattern, cut, &paths);
            let subject = Subject {
                path: path.as_ref(),
                input: cut.input.unwrap_or(0).into(),
                split: Some(number as u64),
            };
            let target = expand(&output.template, &subject)?;
            let shared = spec.pattern == Pattern::ManyToFile;
            if !taken.insert(target.clone()) && !shared {
                let why = format!(
                    "two inputs would become `{target}`; put {{name}}, {{stem}} or {{input}} into --out"
                );
                return Err(Error::new(ErrorKind::Invalid, why));
            }
            if others.contains(&target) && !template::is_directory(&output.template) {
                let why = format!("two outputs would become `{target}`; give their --out different names");
                return Err(Error::new(ErrorKind::Invalid, why));
            }
            permissions.require_writable(&target)?;
            let is_directory = |path: &StorePath| -> Result<Option<bool>> {
                Ok(find(meta, At::Now, path)?.map(|inode| inode.attributes.kind == FileKind::Directory))
            };
            if !template::is_directory(&output.template) && is_directory(&target)? == Some(true) {
                let why = format!(
                    "`{target}` is a directory; say what the file in it is called: {target}/{{name}}"
                );
                return Err(Error::new(ErrorKind::Invalid, why));
            }
        }
        others.append(&mut taken);
    }
    Ok(())
}
