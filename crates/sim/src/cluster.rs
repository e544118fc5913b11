//! The machines of a run, and what they share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_store::ErrorKind;
use outrigger_store::gc::{GcOptions, GcProgress, collect};

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
    pub lines: [Line; PROGRAMS],
    pub lives: AtomicUsize,
}

/// All machines, and what they share.
pub(crate) struct Cluster {
    pub servers: Arc<Servers>,
    pub machines: Vec<Machine>,
    pub history: Mutex<History>,
}

impl Cluster {
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no panic while held")
    }
}

/// Reclaims what nothing refers to. Damage that it meets is remembered.
pub(crate) fn reclaim(cluster: &Cluster, host: &Host) -> Result<(), ErrorKind> {
    let options = GcOptions { live_ratio: 0.9, threads: 1, grace_secs: 0, ..GcOptions::default() };
    let done = collect(&host.store, &options, &GcProgress::default());
    if let Err(error) = &done
        && error.kind() == ErrorKind::Damaged
    {
        cluster.history().found.push(format!("gc says: {error}"));
    }
    done.map(drop).map_err(|error| error.kind())
}
