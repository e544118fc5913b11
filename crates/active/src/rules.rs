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
use outrigger_store::meta::jobs::{JobId, Seen};
use outrigger_store::meta::{At, Inode};
use outrigger_store::ops::View;
use outrigger_store::registry::{Record, Registered};
use outrigger_store::{Context as _, Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

use crate::bundled;
use crate::inputs::{Found, StoreGlob};
use crate::job::records::Records;
use crate::job::spec::Spec;
use crate::pattern::Pattern;
use crate::plan::{self, Splits};
use crate::written;

pub use reads::{READ_EVERY, Readers};
pub(crate) use watch::with_components;
pub use watch::{Looked, Watcher};

/// What a rule waits for.
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
    /// read.
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
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it is called; empty for one that a mount is told of for the next files.
    pub name: String,
    /// Tells it from others that had its name.
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

impl Record for Rule {
    const KIND: &'static str = "rule";

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Why a rule makes no job of a file, or of no file at all.
#[derive(Serialize, Deserialize)]
struct Refusal {
    /// [`Rule::id`].
    rule: String,
    /// The file; `None`: all of them.
    inode: Option<u64>,
    why: String,
}

impl Record for Refusal {
    const KIND: &'static str = "rule-refused";

    fn name(&self) -> String {
        format!("{}/{}", self.rule, self.inode.map(|inode| inode.to_string()).unwrap_or_default())
    }
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
    let rules = store.registry().each()?.into_iter();
    Ok(rules.map(|(name, read)| (name, read.map(|read| of_maker(read).record))).collect())
}

/// The rules that this version of the program understands.
pub(crate) fn list_known(store: &Store) -> Result<Vec<(String, Rule)>> {
    Ok(list(store)?.into_iter().filter_map(|(name, rule)| Some((name, rule.ok()?))).collect())
}

/// Registers why a rule makes no job of a file.
pub(crate) fn refuse_file(store: &Store, rule: &Rule, inode: u64, why: &str) -> Result<()> {
    let (rule, why) = (rule.id.clone(), why.to_owned());
    store.registry().put(&Refusal { rule, inode: Some(inode), why })
}

/// Why a rule makes no jobs, of which files and since when.
fn refusals(store: &Store, rule: &Rule) -> Result<Vec<Registered<Refusal>>> {
    let mut refusals = store.registry().all::<Refusal>()?;
    refusals.retain(|read| read.record.rule == rule.id);
    Ok(refusals)
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
    let (on, members, name) = (Trigger::Write, Vec::new(), String::new());
    encode(&Rule { name, id, glob, more, on, members, spec, with, splits: None, paused: false })
}

/// Whose a rule is the row says, whatever the rule does. If its role is not known that is an empty
/// name, which no role has.
fn of_maker(mut read: Registered<Rule>) -> Registered<Rule> {
    let others = read.by.as_ref().filter(|by| by.role.as_ref() != Some(&by.asks));
    read.record.spec.on_behalf = others.map(|by| by.role.clone().unwrap_or_default());
    read
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

/// Checks what a rule is asked for, and settles the spec of one on files that are being written.
fn check(
    name: &str,
    on: Trigger,
    members: &[String],
    spec: &mut Spec,
    splits: Splits,
    existing: bool,
) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
        return invalid(format!("`{name}` cannot be a rule's name: use letters, digits and -._"));
    }
    if on == Trigger::Write {
        if existing || !matches!(splits, Splits::Auto | Splits::Count(1)) {
            return invalid("--on write is for files made from now on, each read by one program; remove --existing and --splits".into());
        }
        written::settle_spec(spec)?;
    } else if on == Trigger::Marker {
        if spec.pattern != Pattern::ManyToFile {
            return invalid(format!("{}: --when is for #W->1W, which makes one file of many", spec.pattern));
        }
        if members.is_empty() {
            return invalid("--when needs --in for the files to read, such as '{dir}/part-*'".into());
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
        return invalid("--on read is for files that are read from now on; remove --existing".into());
    }
    if matches!(spec.records, Records::Plugin(_)) {
        return invalid(
            "--records plugin:PROGRAM is for `run` only: it may take long, and would delay other rules"
                .into(),
        );
    }
    Ok(())
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
    store.require_all_rights()?;
    check(name, on, &members, &mut spec, splits, existing)?;
    let parsed = StoreGlob::parse(glob)?;
    spec.check()?;
    plan::settle_program(&mut spec)?;
    // The component's content stays while this lives; by then the rule holds it, and runs it even
    // if the name changes.
    let view = View::open(store, "rule", None)?;
    let mut programs = bundled::Programs::new(store);
    let components = bundled::settle_all(store, &view, &mut spec, &mut programs)?;
    spec.rule = Some(name.to_string());
    let id = format!("{name}#{}", clock::now_nanos());
    let splits = match splits {
        Splits::Auto => None,
        Splits::Count(count) => Some(count),
        Splits::Hosts => {
            let why = "--splits hosts is for `run`: a rule's inputs are cut by --splits auto, where the host changes";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    };
    let (glob, more) = (glob.to_string(), Vec::new());
    let rule = Rule { name: name.to_owned(), id, glob, more, on, members, spec, with, splits, paused: false };
    // Of most rules that set themselves off this is known before there is any file.
    let looks = matches!(on, Trigger::Create | Trigger::Close | Trigger::Marker);
    match parsed.example().filter(|_| looks) {
        Some(example) if on == Trigger::Marker => {
            marked::check(&rule, &parsed, &example)?;
        }
        Some(example) => watch::no_loop(&rule, &parsed, &example)?,
        None => {}
    }
    let jobs = store.jobs();
    if !existing && looks {
        // Before the rule exists: files that come meanwhile are new when it first looks.
        let there: Vec<Seen> =
            files(store, &parsed)?.iter().map(|found| seen(&rule, &found.inode, None)).collect();
        there.chunks(10_000).try_for_each(|some| jobs.see(some))?;
    }
    if !store.registry().add(&rule)? {
        jobs.forget_seen(&rule.id)?;
        let why = format!("there is a rule `{name}` already; `outrigger rule remove {name}` removes it");
        return Err(Error::new(ErrorKind::Exists, why));
    }
    // After the record: were this process to end here, the rule would look for its component by
    // name, while a hold without a rule would last for ever.
    if components.is_empty() {
        return Ok(());
    }
    let kept = rule.spec.components().enumerate().filter(|(_, kept)| kept.is_some());
    for ((number, _), component) in kept.zip(components) {
        store.meta.hold(&holder(&rule, number), &[component.root])?;
    }
    if !is_there(store, &rule)? {
        release(store, &rule)?;
    }
    view.check()
}

/// Whether a rule is still there, and not another one of its name.
fn is_there(store: &Store, rule: &Rule) -> Result<bool> {
    Ok(store.registry().find(|other: &Rule| other.id == rule.id)?.is_some())
}

/// The rule of this name, as it is kept.
fn one(store: &Store, name: &str) -> Result<Registered<Rule>> {
    let found = store.registry().each()?.into_iter().find(|(of, _)| of == name);
    let missing = || {
        Error::new(
            ErrorKind::NotFound,
            format!("there is no rule `{name}`; `outrigger rule list` shows them"),
        )
    };
    let (_, read) = found.ok_or_else(missing)?;
    Ok(of_maker(read?))
}

/// Removes a rule; jobs that it made stay.
///
/// # Errors
/// `NotFound`.
pub fn remove(store: &Store, name: &str) -> Result<()> {
    let rule = loop {
        let read = one(store, name)?;
        // Before the record, by which it is found: were this process to end in between, the rule
        // could be removed again.
        release(store, &read.record)?;
        // Not another one that has its name by now.
        if store.registry().take_read(&read)? {
            break read.record;
        }
    };
    store.jobs().forget_seen(&rule.id)?;
    reads::forget_all(store, &rule)?;
    refusals(store, &rule)?.iter().try_for_each(|read| store.registry().take_read(read).map(drop))
}

/// Pauses a rule, or lets it go on: then it does what it missed.
///
/// # Errors
/// `NotFound`.
pub fn pause(store: &Store, name: &str, paused: bool) -> Result<()> {
    loop {
        let read = one(store, name)?;
        // Only what was read: a rule that was removed meanwhile must not come back, having seen
        // nothing.
        if store.registry().replace(&read, &Rule { paused, ..read.record.clone() })? {
            return Ok(());
        }
    }
}

/// Jobs that a rule made, newest first, and files that it made none of.
///
/// # Errors
/// `NotFound`.
pub fn log(store: &Store, name: &str, limit: usize) -> Result<(Vec<JobId>, Vec<Refused>)> {
    let rule = one(store, name)?.record;
    let of_rule = |text: &str| Spec::decode(text).is_ok_and(|spec| spec.rule.as_deref() == Some(name));
    let made = store.jobs().jobs(usize::MAX)?.into_iter().filter(|row| of_rule(&row.spec)).map(|row| row.id);
    let refused = refusals(store, &rule)?.into_iter();
    let refused = refused.map(|read| Refused { why: read.record.why, when: read.changed });
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
