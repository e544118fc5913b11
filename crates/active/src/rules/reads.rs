//! Rules for files that are opened to be read (`--on read`).
//!
//! ```text
//!  a mount: files that were opened ─▶ those that a rule's glob matches ─▶ a record for each rule and file: when
//!  an agent: records ─▶ jobs, each in the transaction that moves the rule's mark of the file on ─▶ the record goes
//! ```
//!
//! **What is one event.** The first time that a file's content is read, and from then on once in
//! [`READ_EVERY`] at most while it stays the same; nothing while a job of the same rule for the
//! same file is open: what is read meanwhile waits, as one event. So there is one record for each
//! rule and file at most, however busy a file is.
//!
//! **Exactly once.** A mark is a content, and when that was read. A job is made only of a record
//! that is newer than the mark, by the transaction that moves the mark to it; if that has happened
//! and the agent was killed before the record went, the next look finds that they agree. A record
//! that was written anew meanwhile does not go, for it is removed only as what was read.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_format::catalogue::Time;
use outrigger_fuse::reads::Reads;
use outrigger_store::meta::jobs::{JobId, JobRow, Seen};
use outrigger_store::registry::{Record, Registered};
use outrigger_store::{Result, Store};
use serde::{Deserialize, Serialize};

use super::{Rule, Trigger, files, list_known, mark};
use crate::inputs::{Found, StoreGlob};
use crate::job::spec::Spec;

/// The same content is read once in this time, as far as rules are concerned.
pub const READ_EVERY: Duration = Duration::from_secs(60);

/// A file was read that a rule is for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Read {
    /// [`Rule::id`].
    pub rule: String,
    /// The file.
    pub inode: u64,
    /// When, nanoseconds since 1970 by the clock of the mount's host.
    pub when: u64,
}

impl Record for Read {
    const KIND: &'static str = "rule-read";

    fn name(&self) -> String {
        format!("{}/{}", self.rule, self.inode)
    }
}

/// In a mount: registers which files were opened to be read that rules are for.
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
        // What comes while a rule is paused waits, so it is registered.
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
            for inode in matching.filter(|number| new.contains_key(number)) {
                self.store.registry().put(&Read { rule: rule.id.clone(), inode, when: now })?;
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
    read: Registered<Read>,
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
    let reads = reads_of(store, rule)?;
    if reads.is_empty() {
        return Ok(Vec::new());
    }
    let mut found: HashMap<u64, Found> =
        files(store, glob)?.into_iter().map(|found| (found.inode.number, found)).collect();
    let busy = busy(store, name)?;
    let mut events = Vec::new();
    for read in reads {
        let Read { inode: number, when, .. } = read.record;
        // It is gone, or has another name by now.
        let Some(found) = found.remove(&number) else {
            forget(store, &read)?;
            continue;
        };
        let content = mark(&found.inode);
        let before = known.get(&number).cloned();
        if before.as_deref().is_some_and(|before| is_same(before, &content, when)) {
            forget(store, &read)?;
        } else if !busy.contains(&found.path.to_bytes()) {
            let mark = format!("{content}@{when}");
            let seen = Seen { rule: rule.id.clone(), inode: number, before, mark };
            events.push(Event { found, seen, read });
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
        forget(store, &self.read)
    }
}

fn reads_of(store: &Store, rule: &Rule) -> Result<Vec<Registered<Read>>> {
    let mut reads = store.registry().all::<Read>()?;
    reads.retain(|read| read.record.rule == rule.id);
    Ok(reads)
}

/// Removes all events of a rule.
pub(super) fn forget_all(store: &Store, rule: &Rule) -> Result<()> {
    reads_of(store, rule)?.iter().try_for_each(|read| forget(store, read))
}

fn forget(store: &Store, read: &Registered<Read>) -> Result<()> {
    store.registry().take_read(read).map(drop)
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
    let jobs = store.jobs();
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
