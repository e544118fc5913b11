//! The last errors that a mount or an agent met, for those who ask (`status`, `stats --live`).
//!
//! They are kept in the process that met them, which registers them from time to time, so that
//! `status` shows them on any host. A record is named by host and process, as the sessions are, and
//! counts while one of these is live.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outrigger_clock as clock;
use serde::{Deserialize, Serialize};

use super::mounts::Process;
use super::status::{SessionStatus, Standing};
use crate::error::{ErrorKind, Result};
use crate::meta::records::{Record, Registry};
use crate::meta::{Meta, SessionOwner};
use crate::note;
use crate::store::Store;

/// Errors that are kept.
const KEPT: usize = 8;
/// Of a text so many bytes.
const TEXT_MAX: usize = 500;
/// How often they are registered, at most.
const NOTE_EVERY: Duration = Duration::from_secs(2);

/// One error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Met {
    /// When, nanoseconds since 1970 by the clock of whoever met it.
    pub time: u64,
    /// What was being done.
    pub operation: String,
    /// The kind of error.
    pub kind: String,
    /// What it said.
    pub text: String,
}

/// The last errors of a process, as it registers them.
#[derive(Serialize, Deserialize)]
struct MetRecord {
    process: Process,
    errors: Vec<Met>,
}

impl Record for MetRecord {
    const KIND: &'static str = "errors";

    fn name(&self) -> String {
        self.process.to_string()
    }
}

/// The errors that one process met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorsStatus {
    /// Which process that is.
    pub owner: SessionOwner,
    /// The last ones, the newest last.
    pub errors: Vec<Met>,
}

static MET: Mutex<VecDeque<Met>> = Mutex::new(VecDeque::new());
static COUNT: AtomicU64 = AtomicU64::new(0);

/// This process has met an error. Passwords are taken out of its text.
pub fn met(operation: &str, kind: ErrorKind, text: &str) {
    let mut text = note::clean(text);
    while text.len() > TEXT_MAX {
        text.pop();
    }
    let met = Met {
        time: clock::now_nanos(),
        operation: operation.to_owned(),
        kind: format!("{kind:?}").to_lowercase(),
        text,
    };
    let mut all = MET.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() == KEPT {
        all.pop_front();
    }
    all.push_back(met);
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// The last errors that this process has met, the newest last.
pub fn recent() -> Vec<Met> {
    MET.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// As a list in JSON.
pub fn json(errors: &[Met]) -> String {
    // Strings and numbers only: that does not fail.
    serde_json::to_string(errors).unwrap_or_else(|_| "[]".to_owned())
}

/// Registers the errors of this process until it is dropped.
pub struct Noting {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Noting {
    /// Begins. What cannot be registered now is registered later.
    pub fn begin(store: &Arc<Store>) -> Self {
        let (stop, stopped) = channel::<()>();
        // The store may be let go of while this goes on.
        let store = Arc::downgrade(store);
        let work = move || {
            let mut noted = 0;
            loop {
                let is_over = stopped.recv_timeout(NOTE_EVERY) != Err(RecvTimeoutError::Timeout);
                let Some(store) = store.upgrade() else { return };
                let count = COUNT.load(Ordering::Relaxed);
                if is_over && noted > 0 {
                    let _ = forget(&store);
                }
                if is_over {
                    return;
                }
                if count > noted && keep(&store).is_ok() {
                    noted = count;
                }
            }
        };
        let thread = std::thread::Builder::new().name("errors".to_owned()).spawn(work).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(store: &Store) -> Result<()> {
    store.registry().put(&MetRecord { process: Process::own(), errors: recent() })
}

fn forget(store: &Store) -> Result<()> {
    store.registry().remove(&MetRecord { process: Process::own(), errors: Vec::new() })
}

/// The errors of processes whose sessions are among these, and live. Only a later process of the
/// same number removes the records of another one.
pub(super) fn errors(meta: &dyn Meta, sessions: &[SessionStatus]) -> Result<Vec<ErrorsStatus>> {
    let live = || sessions.iter().filter(|session| session.standing == Standing::Live);
    let mut found = Vec::new();
    for read in Registry::of(meta).all::<MetRecord>()? {
        let MetRecord { process, errors } = read.record;
        if let Some(session) = live().find(|session| process.has(&session.owner)) {
            found.push(ErrorsStatus { owner: session.owner.clone(), errors });
        }
    }
    Ok(found)
}
