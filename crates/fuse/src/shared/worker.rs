//! A thread of a mount's own, started once and waited for at the end.

use std::sync::Mutex;
use std::thread::JoinHandle;

use outrigger_store::{Context as _, Result};

/// See the module.
#[derive(Default)]
pub(super) struct Worker(Mutex<Option<JoinHandle<()>>>);

impl Worker {
    /// Starts the thread that does `work`, once.
    ///
    /// # Errors
    /// When there are too many threads.
    pub fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.to_string()).spawn(work);
        let thread = thread.context(|| "cannot start a thread".to_string())?;
        *self.0.lock().expect("no panic while held") = Some(thread);
        Ok(())
    }

    /// Waits until it has ended, if it was started: it must have been told to.
    pub fn join(&self) {
        if let Some(thread) = self.0.lock().expect("no panic while held").take() {
            let _ = thread.join();
        }
    }
}
