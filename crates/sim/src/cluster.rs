//! The machines of a run, and what they share.

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

/// One program of a machine, over the machine's lives.
#[derive(Default)]
pub(crate) struct Line {
    /// When each operation begins, and what it is.
    pub ops: Vec<(Duration, Op)>,
    /// The next operation.
    pub next: AtomicUsize,
    /// Since when one is under way: virtual microseconds, 0: none is.
    pub since: AtomicUsize,
    pub finished: AtomicBool,
}

/// One machine, and what is the same over its lives.
pub(crate) struct Machine {
    pub id: AtomicUsize,
    pub dir: PathBuf,
    pub condition: Arc<Condition>,
    /// Those of its programs, and of its agent.
    pub lines: [Line; PROGRAMS + 1],
    pub lives: AtomicUsize,
}

/// All machines, and what they share.
pub(crate) struct Cluster {
    pub servers: Arc<Servers>,
    pub machines: Vec<Machine>,
    pub history: Mutex<History>,
}

/// Reclaims all that can be, and then checks all there is; says how both went.
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

/// What may be the name of a pack or a chunk in a message.
pub(crate) fn names_in(what: &str) -> impl Iterator<Item = &str> {
    what.split(|c: char| !c.is_ascii_hexdigit()).filter(|name| matches!(name.len(), 16 | 64))
}

impl Cluster {
    /// True of a message that names a pack, or a chunk of one, which has rotted, or was changed on the way to this host.
    pub fn is_hit(&self, host: usize, what: &str) -> bool {
        let flipped = self.machines[host].condition.flipped.lock().expect("no panic while held");
        let rotten = self.servers.rotten();
        names_in(what).any(|name| flipped.contains(name) || rotten.names.contains(name))
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panic while held")
    }
}

/// Reclaims what nothing refers to. Damage that it meets is remembered.
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
