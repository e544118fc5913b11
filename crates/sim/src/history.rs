//! Operations of programs and their answers, for the checkers of real clusters' histories
//! (`workload/src/history/`).

use std::collections::BTreeMap;

use outrigger_store::meta::jobs::JobId;
use outrigger_workload::history::{Action, Op, Outcome, check};

use crate::scheduler;
use crate::script::Asked;

/// How far an operation came before it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Nothing was changed.
    Before(rustix::io::Errno),
    /// Something may have been changed.
    After(rustix::io::Errno),
}

impl Failure {
    /// The error.
    pub fn errno(self) -> rustix::io::Errno {
        match self {
            Self::Before(errno) | Self::After(errno) => errno,
        }
    }
}

/// A requested job.
#[derive(Debug)]
pub struct AskedJob {
    /// As the script has it.
    pub asked: Asked,
    /// Its number, if the client got it.
    pub job: Option<JobId>,
    /// Set when a client has asked to cancel it; true if the answer said that it was cancelled.
    pub cancelled: Option<bool>,
}

/// All jobs of a run.
#[derive(Default)]
pub struct JobsAsked(pub BTreeMap<u64, AskedJob>);

/// See the module.
#[derive(Default)]
pub struct History {
    ops: Vec<Op>,
    /// Violations, in words.
    pub found: Vec<String>,
    /// Damage that mounts have reported; true for packs that have rotted, or were changed on the
    /// way.
    pub damage: Vec<(String, bool)>,
    /// Files that were open when another host took their name, or when the session ended: nothing
    /// is promised about them.
    gone: Vec<u64>,
    /// Numbers of operations that succeeded, and that failed.
    pub done: (usize, usize),
    /// Requested jobs.
    pub jobs: JobsAsked,
}

/// True if a message is about this inode.
pub(crate) fn names(what: &str, inode: u64) -> bool {
    what.contains(&format!("inode {inode}:"))
}

fn now() -> u64 {
    scheduler::elapsed().as_nanos() as u64
}

impl History {
    /// Records a program's call, and returns the call's number.
    pub fn begin(&mut self, client: &str, number: u64, key: &str, action: Action) -> usize {
        let outcome = Outcome::Unknown("never returned".into());
        let (client, key) = (client.to_owned(), key.to_owned());
        self.ops.push(Op { client, number, key, action, called: now(), returned: u64::MAX, outcome });
        self.ops.len() - 1
    }

    /// Records the call's return.
    pub fn end(&mut self, call: usize, done: &Result<String, Failure>) {
        let op = &mut self.ops[call];
        op.returned = now();
        op.outcome = match done {
            Ok(value) => Outcome::Done(value.clone()),
            Err(Failure::Before(errno)) => Outcome::Failed(errno.to_string()),
            Err(Failure::After(errno)) => Outcome::Unknown(errno.to_string()),
        };
    }

    /// All keys.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.ops.iter().map(|op| op.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// True if a client on another host may have changed a key since then.
    pub fn others_changed(&self, host: &str, key: &str, since: usize) -> bool {
        let changes = |op: &&Op| matches!(op.action, Action::Replace | Action::Remove);
        let began = self.ops[since].called;
        let others = self.ops.iter().filter(|op| op.key == key && op.host() != host).filter(changes);
        others.into_iter().any(|op| op.is_unknown() || op.returned >= began)
    }

    /// Records that a file was open when another host took its name, or when the session ended.
    pub fn is_gone(&mut self, inode: u64) {
        self.gone.push(inode);
    }

    /// All violations.
    pub fn violations(mut self) -> Vec<String> {
        let is_gone = |what: &str| self.gone.iter().any(|inode| names(what, *inode));
        let damage = self.damage.into_iter().filter(|(what, is_excused)| !is_excused && !is_gone(what));
        self.found.extend(damage.map(|(what, _)| what));
        let report = check(&self.ops);
        self.found.extend(report.violations().map(|violation| {
            let ops: Vec<_> = violation.ops.iter().map(|op| format!("\n    {op}")).collect();
            format!("{}: {}{}", violation.key, violation.why, ops.concat())
        }));
        self.found
    }
}
