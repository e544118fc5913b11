//! The snapshot that a command takes before it removes or replaces something.
//!
//! The committer takes it in front of the command's first transaction, so it has the tree as it was
//! before. It is taken when a submitted item removes or replaces stored data, or when a later one
//! may. If none did in the end, [`settle`](crate::ops::snapshots::settle) deletes the snapshot. If
//! a command fails after the snapshot, it stays: it has what the command's transactions removed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_clock as clock;
use outrigger_format::catalogue::Record;

use crate::error::{ErrorKind, Result};
use crate::meta::Meta;
use crate::publish;
use crate::snapshot::facts::{Facts, Kind};

/// A snapshot that is taken when it is needed.
#[derive(Debug)]
pub struct BeforeSnapshot {
    name: String,
    facts: Facts,
    may_destroy: AtomicBool,
    destroys: AtomicBool,
    /// Its name, and the facts with the size that the tree had.
    taken: Mutex<Option<(String, Facts)>>,
}

/// A snapshot that was just taken: the data of its catalogue record.
pub(crate) struct Taken {
    pub record: Record,
    /// There were changes of mounts that were not published yet.
    was_unpublished: bool,
}

impl BeforeSnapshot {
    /// One that will be named `name`, with these facts.
    pub fn new(name: String, facts: Facts) -> Self {
        Self {
            name,
            facts: Facts { kind: Kind::Automatic, ..facts },
            may_destroy: AtomicBool::new(false),
            destroys: AtomicBool::new(false),
            taken: Mutex::new(None),
        }
    }

    /// Notes that the command works on existing entries, and so may remove or replace something.
    pub fn may_destroy(&self) {
        self.may_destroy.store(true, Ordering::Relaxed);
    }

    /// Notes that the next item removes or replaces something.
    pub fn destroys(&self) {
        self.may_destroy();
        self.destroys.store(true, Ordering::Relaxed);
    }

    /// The name of the snapshot, if it was taken and still stands.
    pub fn taken(&self) -> Option<String> {
        self.taken.lock().expect("no panic while held").as_ref().map(|(name, _)| name.clone())
    }

    /// Takes the snapshot, if that is due before a transaction; `is_last`: nothing will be
    /// submitted any more.
    pub(crate) fn take(&self, meta: &dyn Meta, is_last: bool) -> Result<Option<Taken>> {
        let due = if is_last { &self.destroys } else { &self.may_destroy };
        let mut taken = self.taken.lock().expect("no panic while held");
        if taken.is_some() || !due.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let facts = self.facts.clone().sized(meta)?;
        let (tags, time) = (facts.to_tags(), clock::now_nanos());
        let was_unpublished = publish::is_unpublished(meta)?;
        let (mut name, mut number) = (self.name.clone(), 2);
        loop {
            match meta.create_snapshot(&name, time, &tags) {
                Err(error) if error.kind() == ErrorKind::Exists => {
                    name = format!("{}-{number}", self.name);
                    number += 1;
                }
                created => {
                    created?;
                    break;
                }
            }
        }
        *taken = Some((name.clone(), facts));
        let tags = tags.into_iter().map(String::into_bytes).collect();
        Ok(Some(Taken { record: Record::Snapshot { name: name.into_bytes(), time, tags }, was_unpublished }))
    }

    /// Its name and facts, if it was taken and still exists; and whether the command removed or
    /// replaced something.
    pub(crate) fn outcome(&self) -> Option<(String, Facts, bool)> {
        let (name, facts) = self.taken.lock().expect("no panic while held").clone()?;
        // A file that was read again may have been unchanged.
        Some((name, facts, self.destroys.load(Ordering::Relaxed)))
    }

    /// It was deleted.
    pub(crate) fn forget(&self) {
        *self.taken.lock().expect("no panic while held") = None;
    }
}

impl Taken {
    /// Called after the transaction whose catalogue block has this sequence: marks the catalogue
    /// for a rewrite if the snapshot's record in it may be wrong.
    pub fn settle(&self, meta: &dyn Meta, sequence: u64) -> Result<()> {
        if self.was_unpublished || publish::is_unpublished(meta)? {
            publish::set_due(meta, "snapshot")?;
        }
        publish::settle(meta, sequence, "snapshot")
    }
}
