//! `run --out -`: the results of splits go to standard output, in the order of the splits, each as
//! soon as it and all before it are done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_store::meta::jobs::{JobId, JobState, SplitState};
use outrigger_store::read::Reader;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::output::Out;

/// How often it looks for results.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Prints a job's results.
pub(super) struct Printer {
    store: Arc<Store>,
    job: JobId,
    /// The first split whose result is not printed yet.
    next: Mutex<u64>,
    is_over: AtomicBool,
}

impl Printer {
    pub fn new(store: &Arc<Store>, job: JobId) -> Arc<Self> {
        Arc::new(Self { store: Arc::clone(store), job, next: Mutex::default(), is_over: false.into() })
    }

    /// Prints what is ready, again and again, until [`Printer::end`]. If standard output is closed,
    /// the job is cancelled: nobody wants its other results.
    pub fn run(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            if let Err(error) = self.print(false) {
                let _ = self.store.jobs().end_job(self.job, JobState::Cancelled, &error.to_string());
                return;
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Prints the results that are ready; `all` when the job is through. A split that was set aside
    /// has none, and holds up those behind it until then, as it may be tried again.
    ///
    /// # Errors
    /// Those of the store; `Cancelled` when standard output is closed.
    pub fn print(&self, all: bool) -> Result<()> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let splits = self.store.jobs().splits(self.job)?;
        let is_ready = |number: u64| match splits.get(number as usize).map(|split| split.state) {
            Some(SplitState::Done) => true,
            Some(SplitState::SetAside) => all,
            _ => false,
        };
        if !is_ready(*next) {
            return Ok(());
        }
        let outputs = self.store.jobs().outputs(self.job)?;
        let mut out = Out::new();
        while is_ready(*next) {
            for output in outputs.iter().filter(|output| output.split == *next) {
                self.print_one(&output.root, &mut out)?;
            }
            *next += 1;
        }
        out.flush().map_err(|_| closed())
    }

    fn print_one(&self, root: &outrigger_format::Root, out: &mut Out) -> Result<()> {
        Reader::new(&self.store).read(root, 0, u64::MAX, &mut |bytes| out.said(bytes).map_err(|_| closed()))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "standard output, where its results went, was closed")
}
