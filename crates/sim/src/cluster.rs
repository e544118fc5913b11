//! The machines of a run, and their shared state.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_store::check::{CheckOptions, CheckProgress, Finding, check};
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_store::{Error, ErrorKind};

use crate::history::History;
use crate::host::Host;
use crate::link::Condition;
use crate::script::{Op, PROGRAMS};
use crate::servers::Servers;

/// One program of a machine, over all lives of the machine.
#[derive(Default)]
pub(crate) struct Line {
    /// When each operation begins, and the operation.
    pub ops: Vec<(Duration, Op)>,
    /// The next operation.
    pub next: AtomicUsize,
    /// When the present operation began, in virtual microseconds; 0: there is none.
    pub since: AtomicUsize,
    pub finished: AtomicBool,
}

/// One machine, and its state that lasts over its lives.
pub(crate) struct Machine {
    pub id: AtomicUsize,
    pub dir: PathBuf,
    pub condition: Arc<Condition>,
    /// Its programs' lines, and its agent's.
    pub lines: [Line; PROGRAMS + 1],
    pub lives: AtomicUsize,
}

/// All machines, and their shared state.
pub(crate) struct Cluster {
    pub servers: Arc<Servers>,
    pub machines: Vec<Machine>,
    pub history: Mutex<History>,
}

/// Collects all that can be, and then checks everything; returns both results.
///
/// # Errors
/// Failures of the check.
pub(crate) fn collect_and_check(host: &Host) -> Result<(Result<(), Error>, Vec<Finding>), Error> {
    let options = GcOptions { live_ratio: 1.0, threads: 1, grace_secs: 0, ..GcOptions::default() };
    let collected = collect(&host.store, &options, &GcProgress::default()).map(drop);
    let options = CheckOptions { read_data: true, repair: false, threads: 1 };
    let report = check(&host.store, &options, &CheckProgress::default())?;
    Ok((collected, report.findings))
}

/// An error in words.
pub(crate) fn told(error: Error) -> String {
    error.to_string()
}

/// Words of a message that may name a pack or a chunk.
pub(crate) fn names_in(what: &str) -> impl Iterator<Item = &str> {
    what.split(|c: char| !c.is_ascii_hexdigit()).filter(|name| matches!(name.len(), 16 | 64))
}

impl Cluster {
    /// True if a message names a pack, or a chunk of one, that has rotted or was changed on the way
    /// to this host.
    pub fn is_hit(&self, host: usize, what: &str) -> bool {
        let flipped = self.machines[host].condition.flipped.lock().expect("no panic while held");
        let rotten = self.servers.rotten();
        names_in(what).any(|name| flipped.contains(name) || rotten.names.contains(name))
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panic while held")
    }
}

/// Frees the space of data that nothing refers to. Damage that it meets is recorded.
pub(crate) fn reclaim(cluster: &Cluster, number: usize, host: &Host) -> Result<(), ErrorKind> {
    let options = GcOptions { live_ratio: 0.9, threads: 1, grace_secs: 0, ..GcOptions::default() };
    let done = collect(&host.store, &options, &GcProgress::default());
    if let Err(error) = &done
        && error.kind() == ErrorKind::Damaged
        && !cluster.is_hit(number, &error.to_string())
    {
        cluster.history().found.push(format!("gc says: {error}"));
    }
    done.map(drop).map_err(|error| error.kind())
}
