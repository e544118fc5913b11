//! Rules: programs that run by themselves for new files.
//!
//! An agent compares the tree with a record of what each rule has seen: a row for each file that
//! matches its glob, with a mark of the content. A file that is new, or has another mark, becomes a
//! job, in the transaction that moves the mark on: of several agents that see it, one makes the
//! job. So each event makes one job, however many agents there are and whenever they are killed;
//! and writers to the store need not know of rules.
//!
//! **No stale look can fire.** An agent reads the marks before the tree, and moves a mark on only
//! from the value that it read. So the tree is never older than the mark that it is compared with,
//! and if another agent has moved the mark meanwhile, the database refuses the job.
//!
//! Agents ignore rules for files that are *being* written (`write`): a mount makes their jobs
//! ([`crate::written`]).
//!
//! For rules on files that are *read*, mounts report which files are opened; agents make the jobs
//! (`rules/reads.rs`).
//!
//! Rules miss files that came and went between two looks, and contents that were replaced before
//! the next look.

mod marked;
mod reads;
mod watch;

use std::fmt;
use std::sync::Arc;

use outrigger_clock as clock;
use outrigger_store::meta::jobs::{JobId, Note, Seen};
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::View;
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

use crate::brought;
use crate::inputs::{Found, StoreGlob};
use crate::job::records::Records;
use crate::job::spec::Spec;
use crate::pattern::Pattern;
use crate::plan::{self, Splits};
use crate::written;

pub use reads::{READ_EVERY, Readers};
pub(crate) use watch::with_components;
pub use watch::{Looked, Watcher};

/// The kind of record that holds a rule.
const RULE: &str = "rule";
/// The kind of record that says why a rule made no job of a file.
const REFUSED: &str = "rule-refused";

/// The event that a rule waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Trigger {
    /// A new file.
    Create,
    /// A file with new content, also a new file.
    Close,
    /// A file that is made in a mount, from then on until it is closed.
    Write,
    /// A file that is opened in a mount to be read.
    Read,
    /// As [`Trigger::Close`], for a marker file, which says that other files are there: these are
    /// read. (A name of its own, so that agents of earlier versions ignore such rules.)
    Marker,
}

impl Trigger {
    /// Parses `create`, `close`, `write`, `read`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "create" => Ok(Self::Create),
            "close" => Ok(Self::Close),
            "write" => Ok(Self::Write),
            "read" => Ok(Self::Read),
            _ => Err(Error::new(ErrorKind::Invalid, format!("`{text}`: use create, close, write or read"))),
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Close | Self::Marker => "close",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// A rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Tells it apart from earlier rules of its name.
    pub id: String,
    /// The glob of its files.
    pub glob: String,
    /// Further files, each of which is awaited once; only in rules that a mount is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<String>,
    /// The event.
    pub on: Trigger,
    /// With [`Trigger::Marker`]: the files to read, as templates of globs with the marker's path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The job to make of each file.
    pub spec: Spec,
    /// Files to look at besides.
    pub with: Vec<String>,
    /// The number of splits; `None`: auto.
    pub splits: Option<u64>,
    /// True: new files wait until it goes on.
    pub paused: bool,
}

/// A file of which a rule made no job.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its path, and the reason.
    pub why: String,
    /// When, nanoseconds since 1970.
    pub when: u64,
}

/// All rules, by name. A rule that another version of this program has made is `Newer`, and does
/// not affect the others.
///
/// # Errors
/// Those of the database.
pub fn list(store: &Store) -> Result<Vec<(String, Result<Rule>)>> {
    Ok(store.jobs()?.notes(RULE)?.iter().map(|note| (note.name.clone(), decode(note))).collect())
}

/// The rules that this version of the program understands.
pub(crate) fn list_known(store: &Store) -> Result<Vec<(String, Rule)>> {
    Ok(list(store)?.into_iter().filter_map(|(name, rule)| Some((name, rule.ok()?))).collect())
}

/// Records why a rule makes no job of a file.
pub(crate) fn refuse_file(store: &Store, rule: &Rule, inode: u64, why: &str) -> Result<()> {
    store.jobs()?.set_note(REFUSED, &format!("{}{inode}", refused_of(rule)), Some(why))
}

/// A rule for the next files that are written, as a mount is asked for them: the first that matches
/// the glob, or with `#W->1W` one for each name.
///
/// # Errors
/// `Invalid` when it makes no sense.
pub fn for_next_files(globs: &[String], with: Vec<String>, mut spec: Spec) -> Result<String> {
    let invalid = |why: &str| Err(Error::new(ErrorKind::Invalid, why.to_string()));
    if spec.pattern == Pattern::ManyToFile {
        written::settle_together(&mut spec, globs)?;
    } else if globs.len() != 1 {
        return invalid("--follow waits for one file: give --in once, or use #W->1W");
    } else {
        StoreGlob::parse(&globs[0])?;
        written::settle_spec(&mut spec)?;
    }
    plan::settle_program(&mut spec)?;
    let Some((glob, more)) = globs.split_first() else { return invalid("--follow needs --in") };
    let (id, glob, more) = (format!("#{}", clock::now_nanos()), glob.to_string(), more.to_vec());
    let (on, members) = (Trigger::Write, Vec::new());
    encode(&Rule { id, glob, more, on, members, spec, with, splits: None, paused: false })
}

fn decode(note: &Note) -> Result<Rule> {
    let mut rule: Rule = serde_json::from_str(&note.value).map_err(|error| {
        let why = format!("rule `{}` was made by another version of this program", note.name);
        Error::new(ErrorKind::Newer, why).caused_by(error)
    })?;
    // The database's row names the rule's owner, whatever the rule says. An unknown role becomes an
    // empty name, which no role has.
    let others = note.by.as_ref().filter(|by| by.role.as_ref() != Some(&by.asks));
    rule.spec.on_behalf = others.map(|by| by.role.clone().unwrap_or_default());
    Ok(rule)
}

/// The owner of the hold on a rule's component: for its first program, or another one.
fn holder(rule: &Rule, program: usize) -> String {
    match program {
        0 => format!("rule:{}", rule.id),
        other => format!("rule:{}/{other}", rule.id),
    }
}

/// Releases the contents of a rule's components.
fn release(store: &Store, rule: &Rule) -> Result<()> {
    (0..=rule.spec.also.len()).try_for_each(|number| store.meta.release(&holder(rule, number), None))
}

/// Prefix of a rule's records on files that it made no job of.
fn refused_of(rule: &Rule) -> String {
    format!("{}/", rule.id)
}

fn encode(rule: &Rule) -> Result<String> {
    serde_json::to_string(rule).map_err(std::io::Error::from).context(|| "writing down a rule".to_string())
}

/// Makes a rule. Existing files do not count, unless `existing`; later ones do.
///
/// # Errors
/// `Exists` when there is one of that name, `Invalid` when it makes no sense.
pub fn add(
    store: &Arc<Store>,
    name: &str,
    on: Trigger,
    (glob, with): (&str, Vec<String>),
    spec: Spec,
    splits: Splits,
    existing: bool,
) -> Result<()> {
    make(store, name, (on, glob, Vec::new()), with, spec, splits, existing)
}

/// As [`add`]: a rule for all files that match `members` when a marker has come, which is a file
/// that matches `when`. The members are templates of globs with the marker's path, like the
/// outputs' templates.
///
/// # Errors
/// As there.
pub fn add_marked(
    store: &Arc<Store>,
    name: &str,
    when: &str,
    (members, with): (Vec<String>, Vec<String>),
    spec: Spec,
    splits: Splits,
    existing: bool,
) -> Result<()> {
    make(store, name, (Trigger::Marker, when, members), with, spec, splits, existing)
}

fn make(
    store: &Arc<Store>,
    name: &str,
    (on, glob, members): (Trigger, &str, Vec<String>),
    with: Vec<String>,
    mut spec: Spec,
    splits: Splits,
    existing: bool,
) -> Result<()> {
    store.require_writable()?;
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        return invalid(format!("`{name}` cannot be a rule's name: use letters, digits and -._"));
    }
    if on == Trigger::Write {
        if existing || !matches!(splits, Splits::Auto | Splits::Count(1)) {
            return invalid("--on write is for files that are made from now on, each read by one program: leave --existing and --splits away".into());
        }
        written::settle_spec(&mut spec)?;
    } else if on == Trigger::Marker {
        if spec.pattern != Pattern::ManyToFile {
            return invalid(format!("{}: --when is for #W->1W, which makes one file of many", spec.pattern));
        }
        if members.is_empty() {
            return invalid(
                "--when says when; say with --in what is read then, such as '{dir}/part-*'".into(),
            );
        }
    } else if !matches!(spec.pattern, Pattern::ReadToFile | Pattern::ReadToNothing | Pattern::FileToMany) {
        let why = match spec.pattern {
            Pattern::ManyToFile => {
                "a glob does not say which files belong together: give --on close and --when, a marker that is closed when they are all there, such as --when 'runs/*/_DONE' --in '{dir}/part-*'"
            }
            _ => {
                "with create, close and read a file has been stored when a rule sees it; use --on write, or 1R->1W and 1R->0"
            }
        };
        return invalid(format!("{}: {why}", spec.pattern));
    }
    if on == Trigger::Read && existing {
        return invalid("--on read is for what is read from now on: leave --existing away".into());
    }
    if matches!(spec.records, Records::Plugin(_)) {
        return invalid("--records plugin:PROGRAM is for `run`: whoever makes a rule's jobs has other rules to look after, and cannot wait for it".into());
    }
    let parsed = StoreGlob::parse(glob)?;
    spec.check()?;
    plan::settle_program(&mut spec)?;
    // The component's content stays while this lives; by then the rule holds it, and runs it even
    // if the name changes.
    let view = View::open(store, "rule", None)?;
    let mut programs = brought::Programs::new(store);
    let components = brought::settle_all(store, &view, &mut spec, &mut programs)?;
    spec.rule = Some(name.to_string());
    let id = format!("{name}#{}", clock::now_nanos());
    let splits = match splits {
        Splits::Auto => None,
        Splits::Count(count) => Some(count),
        Splits::Hosts => {
            return invalid(
                "--splits hosts is for `run`: a rule's inputs are cut by --splits auto, where the host changes"
                    .into(),
            );
        }
    };
    let (glob, more) = (glob.to_string(), Vec::new());
    let rule = Rule { id, glob, more, on, members, spec, with, splits, paused: false };
    // Most rules that would fire themselves are refused before there is any file.
    let looks = matches!(on, Trigger::Create | Trigger::Close | Trigger::Marker);
    match parsed.example().filter(|_| looks) {
        Some(example) if on == Trigger::Marker => {
            marked::check(&rule, &parsed, &example)?;
        }
        Some(example) => watch::no_loop(&rule, &parsed, &example)?,
        None => {}
    }
    let jobs = store.jobs()?;
    if !existing && looks {
        // Before the rule exists: files that come meanwhile are new when it first looks.
        let there: Vec<Seen> =
            files(store, &parsed)?.iter().map(|found| seen(&rule, &found.inode, None)).collect();
        there.chunks(10_000).try_for_each(|some| jobs.see(some))?;
    }
    let text = encode(&rule)?;
    if !jobs.add_note(RULE, name, &text)? {
        jobs.forget_seen(&rule.id)?;
        let why = format!("there is a rule `{name}` already; `outrigger rule remove {name}` removes it");
        return Err(Error::new(ErrorKind::Exists, why));
    }
    // After the record: if this process ends here, the rule looks for its component by name, while
    // a hold without a rule would last for ever.
    if components.is_empty() {
        return Ok(());
    }
    let kept = rule.spec.components().enumerate().filter(|(_, kept)| kept.is_some());
    for ((number, _), component) in kept.zip(components) {
        store.meta.hold(&holder(&rule, number), &[component.root])?;
    }
    if !jobs.notes(RULE)?.iter().any(|note| note.name == name && is(&rule, note)) {
        release(store, &rule)?;
    }
    view.check()
}

/// True if it is this rule, and not another one of its name.
fn is(rule: &Rule, note: &Note) -> bool {
    decode(note).is_ok_and(|other| other.id == rule.id)
}

/// A rule, and its stored text.
fn one(store: &Store, name: &str) -> Result<(Rule, String)> {
    let found = store.jobs()?.notes(RULE)?.into_iter().find(|note| note.name == name);
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            format!("there is no rule `{name}`; `outrigger rule list` shows them"),
        )
    };
    let note = found.ok_or_else(missing)?;
    Ok((decode(&note)?, note.value))
}

/// Removes a rule; jobs that it made stay.
///
/// # Errors
/// `NotFound`.
pub fn remove(store: &Store, name: &str) -> Result<()> {
    let jobs = store.jobs()?;
    let rule = loop {
        let (rule, text) = one(store, name)?;
        // Before the record, which is needed to find it: if this process ends in between, the rule
        // can be removed again.
        release(store, &rule)?;
        // Not another rule that has its name by now.
        if jobs.change_note(RULE, name, &text, None)? {
            break rule;
        }
    };
    jobs.forget_seen(&rule.id)?;
    reads::forget_all(store, &rule)?;
    for note in jobs.notes(REFUSED)?.iter().filter(|note| note.name.starts_with(&refused_of(&rule))) {
        jobs.set_note(REFUSED, &note.name, None)?;
    }
    Ok(())
}

/// Pauses a rule, or lets it go on: then it does what it missed.
///
/// # Errors
/// `NotFound`.
pub fn pause(store: &Store, name: &str, paused: bool) -> Result<()> {
    loop {
        let (rule, text) = one(store, name)?;
        // Only what was read: a rule that was removed meanwhile must not come back without its
        // marks.
        if store.jobs()?.change_note(RULE, name, &text, Some(&encode(&Rule { paused, ..rule })?))? {
            return Ok(());
        }
    }
}

/// Jobs that a rule made, newest first, and files that it made none of.
///
/// # Errors
/// `NotFound`.
pub fn log(store: &Store, name: &str, limit: usize) -> Result<(Vec<JobId>, Vec<Refused>)> {
    let (rule, _) = one(store, name)?;
    let jobs = store.jobs()?;
    let of_rule = |text: &str| Spec::decode(text).is_ok_and(|spec| spec.rule.as_deref() == Some(name));
    let made = jobs.jobs(usize::MAX)?.into_iter().filter(|row| of_rule(&row.spec)).map(|row| row.id);
    let refused = jobs.notes(REFUSED)?.into_iter().filter(|note| note.name.starts_with(&refused_of(&rule)));
    let refused = refused.map(|note| Refused { why: note.value, when: note.changed });
    Ok((made.take(limit).collect(), refused.collect()))
}

/// A mark, which tells contents of a file apart.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_read_as_they_are_written() {
        for trigger in [Trigger::Create, Trigger::Close, Trigger::Write, Trigger::Read] {
            assert_eq!(Trigger::parse(&trigger.to_string()).unwrap(), trigger);
        }
        assert!(Trigger::parse("open").is_err());
    }
}
