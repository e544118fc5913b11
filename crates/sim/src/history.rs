//! What programs did and saw, and whether that can be.
//!
//! A name is a register: each publication and each removal writes it, reads and what is seen in the end read it. A read may return a write that began before the read ended, unless another write that
//! succeeded began after that one had ended and ended before the read began. What failed may have happened or not, at any time after it began.

use std::collections::BTreeMap;
use std::time::Duration;

/// What a name held: a content by its id, or nothing.
pub type Held = Option<u32>;

/// What was done to a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// It was made to hold this.
    Wrote(Held),
    /// It held this.
    Saw(Held),
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The name.
    pub name: String,
    /// By which host.
    pub host: usize,
    /// What.
    pub did: Did,
    /// From when.
    pub begun: Duration,
    /// Until when it was acknowledged; `None`: it was not.
    pub ended: Option<Duration>,
}

impl Event {
    fn ends(&self) -> Duration {
        self.ended.unwrap_or(Duration::MAX)
    }
}

/// What cannot be, in words.
pub fn violations(events: &[Event]) -> Vec<String> {
    let mut names: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in events {
        names.entry(&event.name).or_default().push(event);
    }
    let mut found = Vec::new();
    for (name, events) in names {
        let writes: Vec<&&Event> = events.iter().filter(|event| matches!(event.did, Did::Wrote(_))).collect();
        if name.starts_with('c') && writes.iter().filter(|write| write.ended.is_some()).count() > 1 {
            found.push(format!("{name} was made more than once: {writes:?}"));
        }
        for read in events.iter().filter(|event| event.ended.is_some()) {
            let Did::Saw(held) = read.did else { continue };
            let overwritten = |since: Option<Duration>| {
                writes.iter().find(|write| {
                    write.ended.is_some_and(|ended| ended < read.begun)
                        && since.is_none_or(|since| write.begun > since)
                        && write.did != Did::Wrote(held)
                })
            };
            let may_be = writes
                .iter()
                .filter(|write| write.did == Did::Wrote(held) && write.begun < read.ends())
                .any(|write| overwritten(Some(write.ends())).is_none());
            let never_written = held.is_none() && overwritten(None).is_none();
            if !may_be && !never_written {
                found.push(format!("{read:?} cannot be; writes: {writes:?}"));
            }
        }
    }
    found
}
