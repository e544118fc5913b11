//! Rules: programs that run by themselves over files that come.
//!
//! An agent compares the tree with what each rule has seen of it: a row for each file that matches its glob, with a mark of its content. What is new, or has another mark, becomes a job,
//! in the transaction that moves the mark on: of several agents that see the same, one makes it. So each event makes one job, however many agents there are and
//! whenever they are killed; and nothing that writes to the store needs to know of rules.
//!
//! **Why no stale look can fire.** Marks are read before the tree is, and a mark moves on only from what was read. So the tree that is compared with a mark is
//! never older than it, and if another agent has moved the mark meanwhile, the job is refused.
//!
//! What this cannot tell: files that came and went between two looks, contents that were replaced before the next look, and who read what.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_store::meta::jobs::{JobId, Seen};
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::View;
use outrigger_store::tree::find;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store, clock};
use serde::{Deserialize, Serialize};

use crate::component;
use crate::inputs::{Found, StoreGlob};
use crate::pattern::Pattern;
use crate::plan::{self, Splits};
use crate::spec::Spec;
use crate::template::{self, Subject, expand};

/// The kind of note that a rule is.
const RULE: &str = "rule";
/// The kind of note that says why a rule made no job of a file.
const REFUSED: &str = "rule-refused";
/// How often the tree is looked at, if that is quick …
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// … and how many times longer than a look the pause is at least.
const PAUSE_FACTOR: u32 = 10;

/// What a rule waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Trigger {
    /// A file that was not there.
    Create,
    /// A file with a new content, those that were not there among them.
    Close,
}

impl Trigger {
    /// Parses `create`, `close`.
    ///
    /// # Errors
    /// `Invalid`; for `read` with the reason.
    pub fn parse(text: &str) -> Result<Self> {
        let why = match text {
            "create" => return Ok(Self::Create),
            "close" => return Ok(Self::Close),
            "read" => {
                "nothing in the store tells who reads a file, so there can be no rule for it; use create or close"
            }
            _ => "use create or close",
        };
        Err(Error::new(ErrorKind::Invalid, format!("`{text}`: {why}")))
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Close => "close",
        })
    }
}

/// A rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Tells it from others that had its name.
    id: String,
    /// Which files.
    pub glob: String,
    /// What of them.
    pub on: Trigger,
    /// What to do with each.
    pub spec: Spec,
    /// Files to look at besides.
    pub with: Vec<String>,
    /// Into how many parts; `None`: auto.
    pub splits: Option<u64>,
    /// True: what comes waits until it goes on.
    pub paused: bool,
}

/// A file of which a rule made no job.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its path, and why.
    pub why: String,
    /// When, nanoseconds since 1970.
    pub when: u64,
}

/// All rules, by name.
///
/// # Errors
/// Those of the database; `Newer` for a rule of another version of this program.
pub fn list(store: &Store) -> Result<Vec<(String, Rule)>> {
    let newer = |name: &str| {
        Error::new(ErrorKind::Newer, format!("rule `{name}` was made by another version of this program"))
    };
    let decode = |name: String, text: &str| {
        serde_json::from_str(text).map_err(|error| newer(&name).caused_by(error)).map(|rule| (name, rule))
    };
    store.jobs()?.notes(RULE)?.into_iter().map(|note| decode(note.name, &note.value)).collect()
}

fn encode(rule: &Rule) -> Result<String> {
    serde_json::to_string(rule).map_err(std::io::Error::from).context(|| "writing down a rule".to_string())
}

/// Makes a rule. Files that are there do not count, unless `existing`; those that come from now on do.
///
/// # Errors
/// `Exists` when there is one of that name, `Invalid` when it makes no sense.
pub fn add(
    store: &Arc<Store>,
    name: &str,
    on: Trigger,
    (glob, with): (&str, Vec<String>),
    mut spec: Spec,
    splits: Splits,
    existing: bool,
) -> Result<()> {
    store.require_writable()?;
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        return invalid(format!("`{name}` cannot be a rule's name: use letters, digits and -._"));
    }
    if !matches!(spec.pattern, Pattern::ReadToFile | Pattern::ReadToNothing | Pattern::FileToMany) {
        let why = match spec.pattern {
            Pattern::ManyToFile => "a rule runs for one file at a time, so it cannot join many",
            Pattern::WriteToFile => {
                "what is written is visible before a rule sees it; use `run --in -`, or 1R->1W"
            }
            _ => "a rule sees a file when it has been stored; use 1R->1W or 1R->0",
        };
        return invalid(format!("{}: {why}", spec.pattern));
    }
    let parsed = StoreGlob::parse(glob)?;
    spec.check()?;
    plan::settle_program(&mut spec)?;
    // Pinned: the rule goes on with this content, whatever becomes of the component's name.
    component::settle(store, At::Now, &mut spec)?;
    spec.component = None;
    spec.rule = Some(name.to_string());
    let id = format!("{name}#{}", clock::now_nanos());
    let splits = match splits {
        Splits::Auto => None,
        Splits::Count(count) => Some(count),
    };
    let rule = Rule { id, glob: glob.to_string(), on, spec, with, splits, paused: false };
    let jobs = store.jobs()?;
    if !existing {
        // Before the rule is there: what comes meanwhile is new when it is looked for.
        let there: Vec<Seen> =
            files(store, &parsed)?.iter().map(|found| seen(&rule, &found.inode, None)).collect();
        there.chunks(10_000).try_for_each(|some| jobs.see(some))?;
    }
    if !jobs.add_note(RULE, name, &encode(&rule)?)? {
        jobs.forget_seen(&rule.id)?;
        let why = format!("there is a rule `{name}` already; `outrigger rule remove {name}` removes it");
        return Err(Error::new(ErrorKind::Exists, why));
    }
    Ok(())
}

fn one(store: &Store, name: &str) -> Result<Rule> {
    let found = list(store)?.into_iter().find(|(other, _)| other == name);
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            format!("there is no rule `{name}`; `outrigger rule list` shows them"),
        )
    };
    found.map(|(_, rule)| rule).ok_or_else(missing)
}

/// Removes a rule; jobs that it made stay.
///
/// # Errors
/// `NotFound`.
pub fn remove(store: &Store, name: &str) -> Result<()> {
    let (rule, jobs) = (one(store, name)?, store.jobs()?);
    jobs.set_note(RULE, name, None)?;
    jobs.forget_seen(&rule.id)?;
    for note in jobs.notes(REFUSED)?.iter().filter(|note| note.name.starts_with(&format!("{}/", rule.id))) {
        jobs.set_note(REFUSED, &note.name, None)?;
    }
    Ok(())
}

/// Has a rule stand still, or go on: then it does what it missed.
///
/// # Errors
/// `NotFound`.
pub fn pause(store: &Store, name: &str, paused: bool) -> Result<()> {
    let rule = Rule { paused, ..one(store, name)? };
    store.jobs()?.set_note(RULE, name, Some(&encode(&rule)?))
}

/// Jobs that a rule made, newest first, and files of which it made none.
///
/// # Errors
/// `NotFound`.
pub fn log(store: &Store, name: &str, limit: usize) -> Result<(Vec<JobId>, Vec<Refused>)> {
    let rule = one(store, name)?;
    let jobs = store.jobs()?;
    let of_rule = |text: &str| Spec::decode(text).is_ok_and(|spec| spec.rule.as_deref() == Some(name));
    let made = jobs.jobs(usize::MAX)?.into_iter().filter(|row| of_rule(&row.spec)).map(|row| row.id);
    let refused =
        jobs.notes(REFUSED)?.into_iter().filter(|note| note.name.starts_with(&format!("{}/", rule.id)));
    let refused = refused.map(|note| Refused { why: note.value, when: note.changed });
    Ok((made.take(limit).collect(), refused.collect()))
}

/// Tells contents of a file apart.
fn mark(inode: &Inode) -> String {
    format!("{}-{:016x}", inode.root.len(), outrigger_format::checksum(&[&inode.root.encode()]))
}

fn seen(rule: &Rule, inode: &Inode, before: Option<String>) -> Seen {
    Seen { rule: rule.id.clone(), inode: inode.number, before, mark: mark(inode) }
}

fn files(store: &Store, glob: &StoreGlob) -> Result<Vec<Found>> {
    match glob.files(&*store.meta, At::Now) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => Ok(Vec::new()),
        found => found,
    }
}

/// Looks for what rules wait for, for an agent.
#[derive(Default)]
pub struct Watcher {
    next: Option<Instant>,
}

impl Watcher {
    /// Looks, if it is time to; returns the jobs that were made, with their rules' names.
    ///
    /// # Errors
    /// Failures of the store. What is wrong with one rule or file is noted, and is in its log.
    pub fn look(&mut self, store: &Arc<Store>) -> Result<Vec<(String, JobId)>> {
        let began = Instant::now();
        if self.next.is_some_and(|next| began < next) {
            return Ok(Vec::new());
        }
        let mut made = Vec::new();
        for (name, rule) in list(store)?.into_iter().filter(|(_, rule)| !rule.paused) {
            for job in fire(store, &rule)? {
                made.push((name.clone(), job));
            }
        }
        self.next = Some(Instant::now() + LOOK_EVERY.max(began.elapsed() * PAUSE_FACTOR));
        Ok(made)
    }
}

fn fire(store: &Arc<Store>, rule: &Rule) -> Result<Vec<JobId>> {
    let jobs = store.jobs()?;
    // Before the tree: see above.
    let known: HashMap<u64, String> = jobs.seen(&rule.id)?;
    let Ok(glob) = StoreGlob::parse(&rule.glob) else { return Ok(Vec::new()) };
    let is_new = |inode: &Inode| match known.get(&inode.number) {
        None => true,
        Some(before) => rule.on == Trigger::Close && *before != mark(inode),
    };
    let new: Vec<Found> = files(store, &glob)?.into_iter().filter(|found| is_new(&found.inode)).collect();
    if new.is_empty() {
        return Ok(Vec::new());
    }
    // What is read from here on stays until the jobs hold it. It may be newer than what was just found.
    let view = View::open(store, "rules", None)?;
    let mut made = Vec::new();
    for Found { path, .. } in new {
        let Some(inode) = find(&*store.meta, view.at, &path)?.filter(&is_new) else { continue };
        let seen = seen(rule, &inode, known.get(&inode.number).cloned());
        let found = Found { path: path.clone(), inode };
        let tried = no_loop(rule, &glob, &found).and_then(|()| {
            let splits = rule.splits.map_or(Splits::Auto, Splits::Count);
            plan::make(store, &view, &rule.spec, vec![found], &rule.with, splits, Some(seen.clone()))
        });
        match tried {
            Ok(job) => made.push(job),
            // Another agent was first.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound) => {
                jobs.set_note(
                    REFUSED,
                    &format!("{}/{}", rule.id, seen.inode),
                    Some(&format!("{path}: {error}")),
                )?;
                jobs.see(&[seen])?;
            }
            Err(error) => return Err(error),
        }
    }
    view.check()?;
    Ok(made)
}

/// Refuses a job whose output would set off the rule that made it.
fn no_loop(rule: &Rule, glob: &StoreGlob, found: &Found) -> Result<()> {
    for output in &rule.spec.outputs {
        let subject = Subject { path: Some(&found.path), input: 0, split: Some(0) };
        let mut target = expand(&output.template, &subject)?;
        if template::is_directory(&output.template) {
            target = target.join(b"x");
        }
        if glob.matches(&target) {
            let why = format!(
                "its output `{target}` would set off the same rule again: put it where `{}` does not match",
                rule.glob
            );
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_read_and_read_is_refused_with_the_reason() {
        for trigger in [Trigger::Create, Trigger::Close] {
            assert_eq!(Trigger::parse(&trigger.to_string()).unwrap(), trigger);
        }
        assert!(Trigger::parse("read").unwrap_err().to_string().contains("who reads"));
        assert!(Trigger::parse("open").is_err());
    }
}
