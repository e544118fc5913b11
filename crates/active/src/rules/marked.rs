//! Rules for files that belong together: a closed *marker* says that all of them are there.
//!
//! The marker may be in the tree before them. A mount that owns its store stores closed files in an
//! order of its own, and a shared mount may have deferred closes that are not committed yet. So a
//! barrier comes first: it ends when all closes that any mount acknowledged before are in the
//! store. Then the rule looks at the tree anew.

use std::collections::BTreeSet;
use std::time::Duration;

use outrigger_fuse::{control, shared};
use outrigger_store::ops::View;
use outrigger_store::tree::StorePath;
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::Rule;
use crate::inputs::{Found, StoreGlob};
use crate::job::spec::Spec;
use crate::template::{Subject, expand, expand_glob, of_path};

/// How long to wait for mounts; after that the marker waits for the next look.
const WAITS_MAX: Duration = Duration::from_secs(10);

/// Waits until all that was closed before, in any mount, is in the store.
///
/// # Errors
/// When a mount cannot do it, or not in time.
pub(super) fn await_closed(store: &Store) -> Result<()> {
    for mut mount in control::mounts_of(store)? {
        mount.answers_within(WAITS_MAX)?;
        mount.ask("closed")?;
    }
    if store.is_shared() { shared::await_closed(store, WAITS_MAX) } else { Ok(()) }
}

/// The globs of a marker's files, and the job's specification for them, with its outputs settled.
fn settled(rule: &Rule, spec: &Spec, marker: &StorePath) -> Result<(Vec<StoreGlob>, Spec)> {
    let subject = Subject { path: Some(marker), input: 0, split: None };
    let globs = rule.members.iter().map(|template| StoreGlob::parse(&expand_glob(template, &subject)?));
    let globs = globs.collect::<Result<Vec<_>>>()?;
    let mut spec = spec.clone();
    for output in &mut spec.outputs {
        output.template = of_path(&expand(&output.template, &subject)?)?;
    }
    Ok((globs, spec))
}

/// Refuses a rule whose output would be a marker, or one of the files that are read when the marker
/// comes again.
pub(super) fn check(rule: &Rule, when: &StoreGlob, marker: &StorePath) -> Result<(Vec<StoreGlob>, Spec)> {
    check_of(rule, &rule.spec, when, marker)
}

fn check_of(
    rule: &Rule,
    spec: &Spec,
    when: &StoreGlob,
    marker: &StorePath,
) -> Result<(Vec<StoreGlob>, Spec)> {
    let (globs, settled) = settled(rule, spec, marker)?;
    let subject = Subject { path: Some(marker), input: 0, split: None };
    for output in &spec.outputs {
        let target = expand(&output.template, &subject)?;
        if when.matches(&target) || globs.iter().any(|glob| glob.matches(&target)) {
            let why = format!(
                "its output `{target}` (of `{marker}`) would be read by the same rule, or set it off, when the marker comes again: say with --out where neither --when nor --in matches"
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    }
    Ok((globs, settled))
}

/// A marker's files, in the order of --in and of their paths, each once, without the marker; and
/// the job's specification. `spec` is the rule's as it is run.
///
/// # Errors
/// `NotFound` if there are none; as [`check`].
pub(super) fn members(
    store: &Store,
    view: &View,
    (rule, spec): (&Rule, &Spec),
    when: &StoreGlob,
    marker: &StorePath,
) -> Result<(Vec<Found>, Spec)> {
    let (globs, spec) = check_of(rule, spec, when, marker)?;
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for glob in globs {
        let files = glob.files(&*store.meta, view.at)?.into_iter();
        found.extend(files.filter(|file| file.path != *marker && seen.insert(file.path.clone())));
    }
    if found.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "there is nothing but the marker"));
    }
    Ok((found, spec))
}
