//! Rules for files that are opened to be read (`--on read`).
//!
//! ```text
//!  a mount: files that were opened ─▶ those that a rule's glob matches ─▶ a note for each rule and file: when
//!  an agent: notes ─▶ jobs, each in the transaction that moves the rule's mark of the file on ─▶ the note goes
//! ```
//!
//! **One event** is the first read of a file's content, and after that one read in [`READ_EVERY`]
//! at most while the content stays the same. While a job of the same rule for the same file is
//! open, there is no further event: reads meanwhile wait, as one event. So each rule and file has
//! one record at most, however busy the file is.
//!
//! **Exactly once.** A mark is a content, and the time when it was read. A job is made only of a
//! record that is newer than the mark, by the transaction that moves the mark to it. If the agent
//! was killed after that and before the record was removed, the next look finds that they agree. A
//! record that was written anew meanwhile stays, as a record is removed only with the value that
//! was read.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_format::catalogue::Time;
use outrigger_fuse::reads::Reads;
use outrigger_store::meta::jobs::{JobId, JobRow, Note, Seen};
use outrigger_store::{Result, Store};

use super::{Rule, Trigger, files, list_known, mark};
use crate::inputs::{Found, StoreGlob};
use crate::job::spec::Spec;

/// The kind of record that says when a rule's file was read.
pub(super) const READ: &str = "read";
/// Reads of the same content within this time are one event.
pub const READ_EVERY: Duration = Duration::from_secs(60);

/// The name of a record on a file.
fn name_of(rule: &Rule, inode: u64) -> String {
    format!("{}/{inode}", rule.id)
}

/// In a mount: records which files were opened to read, for rules.
pub struct Readers {
    store: Arc<Store>,
    rules: Mutex<Vec<(Rule, StoreGlob)>>,
    any: AtomicBool,
    /// By rule and file: the last check, and its time.
    looked: Mutex<HashMap<(String, u64), (Time, u64)>>,
}

impl Readers {
    /// For a mount of this store.
    pub fn new(store: &Arc<Store>) -> Self {
        let (store, rules) = (Arc::clone(store), Mutex::default());
        Self { store, rules, any: AtomicBool::new(false), looked: Mutex::default() }
    }
}

impl Reads for Readers {
    fn refresh(&self) -> Result<()> {
        // Events of a paused rule wait, so they are recorded.
        let all = list_known(&self.store)?.into_iter().map(|(_, rule)| rule);
        let rules = all.filter(|rule| rule.on == Trigger::Read);
        let rules: Vec<_> =
            rules.filter_map(|rule| Some((StoreGlob::parse(&rule.glob).ok()?, rule))).collect();
        self.any.store(!rules.is_empty(), Ordering::Relaxed);
        *self.rules.lock().expect("no panic while held") =
            rules.into_iter().map(|(glob, rule)| (rule, glob)).collect();
        Ok(())
    }

    fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn opened(&self, opened: &HashMap<u64, Time>) -> Result<()> {
        let now = clock::now_nanos();
        let is_recent = |when: u64| u128::from(now.saturating_sub(when)) < READ_EVERY.as_nanos();
        let mut looked = self.looked.lock().expect("no panic while held");
        looked.retain(|_, (_, when)| is_recent(*when));
        let jobs = self.store.jobs()?;
        for (rule, glob) in &*self.rules.lock().expect("no panic while held") {
            let is_new = |(number, changed): &(&u64, &Time)| {
                let known = looked.get(&(rule.id.clone(), **number));
                known.is_none_or(|(before, _)| before != *changed)
            };
            let new: HashMap<u64, Time> =
                opened.iter().filter(is_new).map(|(number, changed)| (*number, *changed)).collect();
            if new.is_empty() {
                continue;
            }
            let matching = files(&self.store, glob)?.into_iter().map(|found| found.inode.number);
            for number in matching.filter(|number| new.contains_key(number)) {
                jobs.set_note(READ, &name_of(rule, number), Some(&now.to_string()))?;
            }
            looked
                .extend(new.into_iter().map(|(number, changed)| ((rule.id.clone(), number), (changed, now))));
        }
        Ok(())
    }
}

/// An event of a file, for a job, or to be removed.
pub(super) struct Event {
    pub found: Found,
    pub seen: Seen,
    note: Note,
}

/// The events of a rule that are to become jobs now; `known` was read before. Obsolete ones are
/// removed.
pub(super) fn events(
    store: &Store,
    name: &str,
    rule: &Rule,
    glob: &StoreGlob,
    known: &HashMap<u64, String>,
) -> Result<Vec<Event>> {
    let prefix = name_of_all(rule);
    let notes: HashMap<u64, Note> = store
        .jobs()?
        .notes(READ)?
        .into_iter()
        .filter_map(|note| Some((note.name.strip_prefix(&prefix)?.parse().ok()?, note)))
        .collect();
    if notes.is_empty() {
        return Ok(Vec::new());
    }
    let mut found: HashMap<u64, Found> =
        files(store, glob)?.into_iter().map(|found| (found.inode.number, found)).collect();
    let busy = busy(store, name)?;
    let mut events = Vec::new();
    for (number, note) in notes {
        // The file is gone, or has another name by now.
        let Some(found) = found.remove(&number) else {
            forget(store, &note)?;
            continue;
        };
        let read = note.value.parse().unwrap_or(0);
        let content = mark(&found.inode);
        let before = known.get(&number).cloned();
        if before.as_deref().is_some_and(|before| is_same(before, &content, read)) {
            forget(store, &note)?;
        } else if !busy.contains(&found.path.to_bytes()) {
            let mark = format!("{content}@{read}");
            let seen = Seen { rule: rule.id.clone(), inode: number, before, mark };
            events.push(Event { found, seen, note });
        }
    }
    Ok(events)
}

/// The event for the content that its job gets, which may be a newer one.
pub(super) fn at_content(seen: &Seen, content: &str) -> Seen {
    let read = seen.mark.rsplit_once('@').map_or("0", |(_, read)| read);
    Seen { mark: format!("{content}@{read}"), ..seen.clone() }
}

impl Event {
    /// Its job was made, or none can be.
    pub fn done(&self, store: &Store) -> Result<()> {
        forget(store, &self.note)
    }
}

fn name_of_all(rule: &Rule) -> String {
    format!("{}/", rule.id)
}

/// Removes all events of a rule.
pub(super) fn forget_all(store: &Store, rule: &Rule) -> Result<()> {
    let (jobs, prefix) = (store.jobs()?, name_of_all(rule));
    for note in jobs.notes(READ)?.iter().filter(|note| note.name.starts_with(&prefix)) {
        jobs.set_note(READ, &note.name, None)?;
    }
    Ok(())
}

fn forget(store: &Store, note: &Note) -> Result<()> {
    store.jobs()?.change_note(READ, &note.name, &note.value, None).map(drop)
}

/// True if a content that was read at this time (nanoseconds since 1970) is the event of a mark.
fn is_same(before: &str, content: &str, read: u64) -> bool {
    let Some((known, when)) = before.rsplit_once('@') else { return false };
    let when: u64 = when.parse().unwrap_or(0);
    // Hosts' clocks differ: one that is behind reports the past.
    known == content && u128::from(read) < u128::from(when) + READ_EVERY.as_nanos()
}

/// Paths of files that a rule's open jobs are for.
fn busy(store: &Store, name: &str) -> Result<HashSet<Vec<u8>>> {
    let jobs = store.jobs()?;
    let of_rule = |row: &JobRow| Spec::decode(&row.spec).is_ok_and(|spec| spec.rule.as_deref() == Some(name));
    let open: Vec<JobId> = jobs.open_jobs()?.iter().filter(|row| of_rule(row)).map(|row| row.id).collect();
    let mut busy = HashSet::new();
    for job in open {
        busy.extend(jobs.inputs(job)?.into_iter().next().map(|input| input.path));
    }
    Ok(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_is_read_once_in_a_while() {
        let (second, content) = (1_000_000_000, "12-abc");
        let before = format!("{content}@{}", 100 * second);
        assert!(is_same(&before, content, 100 * second) && is_same(&before, content, 159 * second));
        assert!(is_same(&before, content, 10 * second), "another host's clock");
        assert!(!is_same(&before, content, 160 * second) && !is_same(&before, "12-abd", 101 * second));
        assert!(!is_same("12-abc", content, 0));
    }
}
