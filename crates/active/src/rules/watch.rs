//! The agents' part of rules: looks for new files, and makes jobs of them.
//!
//! What is wrong with one rule (its component is gone, or damaged; it was made by a newer program)
//! is registered, and the others go on. Nothing counts as seen of which no job could be made for
//! such a reason, so nothing is lost when it is mended. A file of which the rule itself can make no
//! job does count: it would be refused again at every look.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;
use outrigger_format::catalogue::Time;
use outrigger_store::meta::jobs::{JobId, JobInput, JobState, Seen};
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::View;
use outrigger_store::registry::Registered;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::{Error, ErrorKind, Result, Store};

use super::marked;
use super::reads::{self, Event};
use super::{Refusal, Rule, Trigger, files, holder, mark, refusals, seen};
use crate::component;
use crate::inputs::{Found, StoreGlob};
use crate::job::is_bundled;
use crate::job::spec::Spec;
use crate::plan::{self, Fired, Splits};
use crate::template::{self, Subject, expand};

/// How often to look at the tree, if that is quick …
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// … and how many times longer than a look the pause is at least.
const PAUSE_FACTOR: u32 = 10;
/// How often each agent forgets files that are gone …
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// … and how many at once it asks for, at most.
const TIDY_MAX: usize = 1000;
/// A shared mount makes a file when it is opened, and gives it its content when it is closed. So
/// `create` waits this long, in seconds, for the content of an empty file, which may be large.
const EMPTY_SECS: i64 = 3600;

/// The outcome of a look.
#[derive(Default)]
pub struct Looked {
    /// Jobs that were made, with their rules' names.
    pub made: Vec<(String, JobId)>,
    /// Rules with errors; each error once for as long as it stays the same.
    pub trouble: Vec<(String, Error)>,
}

/// Looks for rules' files, for an agent.
#[derive(Default)]
pub struct Watcher {
    next: Option<Instant>,
    /// Each rule's error at the last look; empty: none.
    trouble: HashMap<String, String>,
    /// When to look next for files that are gone, by rule.
    tidy: HashMap<String, Instant>,
}

impl Watcher {
    /// Looks, if it is time to.
    ///
    /// # Errors
    /// Failures of the database. An error of one rule or file is recorded, and is in the rule's
    /// log.
    pub fn look(&mut self, store: &Arc<Store>) -> Result<Looked> {
        let began = Instant::now();
        let mut looked = Looked::default();
        if self.next.is_some_and(|next| began < next) {
            return Ok(looked);
        }
        for (name, rule) in super::list(store)? {
            let fired = match &rule {
                Ok(rule) if rule.paused => continue,
                // The mount that its files are written in sees them.
                Ok(rule) if rule.on == Trigger::Write => continue,
                Ok(rule) => {
                    let mut made = Vec::new();
                    let fired = self.fire(store, &name, rule, &mut made);
                    looked.made.extend(made.into_iter().map(|job| (name.clone(), job)));
                    fired
                }
                Err(_) => Ok(()),
            };
            let (rule, fired) = match rule {
                Ok(rule) => (Some(rule.id), fired),
                Err(error) => (None, Err(error)),
            };
            let why = fired.as_ref().err().map(ToString::to_string).unwrap_or_default();
            if self.trouble.get(&name) == Some(&why) {
                continue;
            }
            if let Some(rule) = rule {
                let refusal = Refusal { rule, inode: None, why: why.clone() };
                let registry = store.registry();
                if why.is_empty() { registry.remove(&refusal)? } else { registry.put(&refusal)? }
            }
            looked.trouble.extend(fired.err().map(|error| (name.clone(), error)));
            self.trouble.insert(name, why);
        }
        self.next = Some(Instant::now() + LOOK_EVERY.max(began.elapsed() * PAUSE_FACTOR));
        Ok(looked)
    }

    /// Makes the jobs of one rule. `made` has also those that were made before an error.
    fn fire(&mut self, store: &Arc<Store>, name: &str, rule: &Rule, made: &mut Vec<JobId>) -> Result<()> {
        let jobs = store.jobs();
        // Before the tree: see above.
        let known: HashMap<u64, String> = jobs.seen(&rule.id)?;
        let Ok(glob) = StoreGlob::parse(&rule.glob) else { return Ok(()) };
        let now = Time::from_nanos(clock::now_nanos());
        let new = self.news(store, (name, rule), &glob, &known, now)?;
        if new.is_empty() {
            return Ok(());
        }
        if rule.on == Trigger::Marker {
            marked::await_closed(store)?;
        }
        // This view protects the contents until the jobs hold them. It may be newer than what was
        // just found.
        let view = View::open(store, "rules", None)?;
        let (rule_as_run, components) = with_components(store, rule, &view)?;
        let mut ended = Ok(());
        for (Found { path, .. }, event) in new {
            let is_it = |inode: &Inode| match &event {
                Some(event) => inode.number == event.found.inode.number,
                None => is_new(rule, &known, inode, now),
            };
            let inode = match find(&*store.meta, view.at, &path) {
                Ok(inode) => inode.filter(&is_it),
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            };
            let Some(inode) = inode else { continue };
            let seen = match &event {
                Some(event) => reads::at_content(&event.seen, &mark(&inode)),
                None => seen(rule, &inode, known.get(&inode.number).cloned()),
            };
            let found = Found { path: path.clone(), inode };
            let fired = Fired { seen: seen.clone(), components: components.clone() };
            let tried = make_job(store, &view, (rule, &rule_as_run.spec), &glob, found, fired);
            match tried {
                Ok(job) => {
                    made.push(job);
                    event.map_or(Ok(()), |event| event.done(store))?;
                }
                // Another agent was first.
                Err(error) if error.kind() == ErrorKind::Exists => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Denied
                    ) =>
                {
                    refuse(store, rule, seen, &format!("{path}: {error}"))?;
                    event.map_or(Ok(()), |event| event.done(store))?;
                }
                Err(error) => {
                    // Not seen: the next look tries again. Damaged rows of one file do not concern
                    // the next file.
                    let goes_on = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Newer);
                    ended = Err(error.context(&path));
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        if !components.is_empty() {
            unmake_if_removed(store, rule, made)?;
        }
        ended
    }

    /// The files that a rule has not had yet. Those of a rule on reads come with their events. From
    /// time to time it also forgets files that are gone.
    fn news(
        &mut self,
        store: &Arc<Store>,
        (name, rule): (&str, &Rule),
        glob: &StoreGlob,
        known: &HashMap<u64, String>,
        now: Time,
    ) -> Result<Vec<(Found, Option<Event>)>> {
        let found = if rule.on == Trigger::Read { Vec::new() } else { files(store, glob)? };
        if self.tidy.get(&rule.id).is_none_or(|next| *next <= Instant::now()) {
            tidy(store, rule, known, &found)?;
            self.tidy.insert(rule.id.clone(), Instant::now() + TIDY_EVERY);
        }
        Ok(match rule.on {
            Trigger::Read => {
                let events = reads::events(store, name, rule, glob, known)?.into_iter();
                events.map(|event| (event.found.clone(), Some(event))).collect()
            }
            _ => found
                .into_iter()
                .filter(|found| is_new(rule, known, &found.inode, now))
                .map(|found| (found, None))
                .collect(),
        })
    }
}

/// True if a rule has not had this file, or not with its present content.
fn is_new(rule: &Rule, known: &HashMap<u64, String>, inode: &Inode, now: Time) -> bool {
    match (known.get(&inode.number), rule.on) {
        (None, Trigger::Create) => !awaits_content(inode, now),
        (None, Trigger::Close | Trigger::Marker) => true,
        // Mounts report files that are read.
        (Some(_), Trigger::Create) | (_, Trigger::Write | Trigger::Read) => false,
        (Some(before), Trigger::Close | Trigger::Marker) => *before != mark(inode),
    }
}

/// Makes the job of one file, or of the files that belong to one marker. `spec` has the rule's
/// components.
fn make_job(
    store: &Arc<Store>,
    view: &View,
    (rule, spec): (&Rule, &Spec),
    glob: &StoreGlob,
    found: Found,
    fired: Fired,
) -> Result<JobId> {
    let (read, spec) = match rule.on {
        Trigger::Marker => marked::members(store, view, (rule, spec), glob, &found.path)?,
        _ => {
            no_loop(rule, glob, &found.path)?;
            (vec![found], spec.clone())
        }
    };
    let splits = rule.splits.map_or(Splits::Auto, Splits::Count);
    plan::make(store, view, &spec, read, &rule.with, splits, Some(fired))
}

/// The rule with its components, and their contents: those that the rule holds. A rule is recorded
/// before it holds them. Until then, or if its maker was killed in between, the components with
/// these names and hashes are used.
pub(crate) fn with_components(store: &Store, rule: &Rule, view: &View) -> Result<(Rule, Vec<JobInput>)> {
    let mut rule = rule.clone();
    let kept = rule.spec.components().enumerate();
    let kept: Vec<_> = kept.filter_map(|(number, kept)| Some((number, kept?.name.clone()))).collect();
    let mut held = Vec::new();
    for (number, name) in kept {
        let Some(root) = store.meta.held(&holder(&rule, number))?.into_iter().next() else {
            let mut programs = rule.spec.programs().zip(rule.spec.components());
            if programs.any(|(program, kept)| kept.is_some() && is_bundled(program)) {
                let why = "the program that it was made with is lost: remove it, and add it again";
                return Err(Error::new(ErrorKind::NotFound, why));
            }
            drop(programs);
            let components = component::settle(store, view, &mut rule.spec)?;
            return Ok((rule, components));
        };
        held.push(JobInput { path: component::kept_path(&name).to_bytes(), root });
    }
    Ok((rule, held))
}

/// A removed rule releases its component. If jobs were being made of it, their content may be gone.
fn unmake_if_removed(store: &Store, rule: &Rule, made: &mut Vec<JobId>) -> Result<()> {
    let jobs = store.jobs();
    if made.is_empty() || super::is_there(store, rule)? {
        return Ok(());
    }
    for job in made.drain(..) {
        if jobs.end_job(job, JobState::Cancelled, "its rule was removed while it was made")? {
            jobs.forget_job(job)?;
        }
    }
    Ok(())
}

/// Registers why there is no job of a content, and that it has been seen.
fn refuse(store: &Store, rule: &Rule, seen: Seen, why: &str) -> Result<()> {
    super::refuse_file(store, rule, seen.inode, why)?;
    store.jobs().see(&[seen])
}

/// True if a program may just have opened the file to write it.
fn awaits_content(inode: &Inode, now: Time) -> bool {
    let attributes = &inode.attributes;
    let changed = attributes.times.as_ref().map_or(attributes.mtime, |times| times.ctime);
    inode.root.is_empty() && now.secs.saturating_sub(changed.secs) < EMPTY_SECS
}

/// Forgets marks of files that are gone, and why the rule made no job of them. A file that was
/// moved out of the glob is not gone. A look during a move within the glob may see neither name,
/// and the file must not count as new at the next look.
fn tidy(store: &Store, rule: &Rule, known: &HashMap<u64, String>, found: &[Found]) -> Result<()> {
    let listed: HashSet<u64> = found.iter().map(|found| found.inode.number).collect();
    let mut gone = Vec::new();
    for &number in known.keys().filter(|number| !listed.contains(number)).take(TIDY_MAX) {
        // It was there when it was seen, and numbers are never reused.
        if store.meta.inode(At::Now, number)?.is_none() {
            gone.push(number);
        }
    }
    if gone.is_empty() {
        return Ok(());
    }
    store.jobs().forget_inodes(&rule.id, &gone)?;
    let of_gone = |read: &Registered<Refusal>| read.record.inode.is_some_and(|inode| gone.contains(&inode));
    let refusals = refusals(store, rule)?;
    refusals
        .iter()
        .filter(|read| of_gone(read))
        .try_for_each(|read| store.registry().take_read(read).map(drop))
}

/// Refuses a job whose output would fire the rule that made it.
pub(super) fn no_loop(rule: &Rule, glob: &StoreGlob, path: &StorePath) -> Result<()> {
    for output in &rule.spec.outputs {
        let subject = Subject { path: Some(path), input: 0, split: Some(0) };
        let mut target = expand(&output.template, &subject)?;
        if template::is_directory(&output.template) {
            target = target.join(b"x");
        }
        if glob.matches(&target) {
            let why = format!(
                "its output `{target}` (of `{path}`) would set off the same rule again: say with --out where `{}` does not match, or narrow --in",
                rule.glob
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use outrigger_format::Root;
    use outrigger_format::catalogue::{FileKind, OtherTimes};
    use outrigger_store::local::put::made_now;

    use super::*;

    #[test]
    fn an_empty_file_counts_when_nobody_has_given_it_a_content_for_long() {
        let now = Time { secs: 1_000_000, nanos: 0 };
        let empty = |changed: i64| {
            let mut attributes = made_now(FileKind::File, 0o600);
            attributes.times = Some(OtherTimes { atime: now, ctime: Time { secs: changed, nanos: 0 } });
            Inode { number: 7, attributes, root: Root::Empty, links: 1, stamp: 0 }
        };
        assert!(awaits_content(&empty(now.secs), now) && awaits_content(&empty(now.secs - 3599), now));
        assert!(awaits_content(&empty(now.secs + 90), now), "another host's clock");
        assert!(!awaits_content(&empty(now.secs - 3600), now) && !awaits_content(&empty(-5), now));
    }
}
