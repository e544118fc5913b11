//! Probes of this machine before a run. They run in threads while the store is opened and the job
//! is made, because each of these waits more than it computes.
//!
//! ```text
//!  prepare: control groups made ──┬─▶ a program can be put into one? ──────────────▶ groups
//!                                 ├─▶ programs can be kept in? ──▶ check
//!                                 └─▶ (the caller) the store is opened ─▶ check ─▶ the job is made ─▶ groups
//! ```

use std::thread::JoinHandle;

use outrigger_active::cgroup::{Groups, Where};
use outrigger_active::job::spec::Spec;
use outrigger_active::sandbox::Sandbox;
use outrigger_store::{Error, ErrorKind, Result};

/// The probes of the module. Dropping it waits for their threads, so that none is left over.
pub struct Machine {
    kept_in: Option<JoinHandle<Result<()>>>,
    groups: Option<JoinHandle<std::result::Result<Groups, String>>>,
}

fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a thread that looks at this machine panicked: please report this")
}

impl Machine {
    /// Starts to probe the sandbox that the job asks for. If the job runs here, it also makes
    /// control groups.
    pub fn prepare(spec: &Spec, runs_here: bool) -> Self {
        // The groups come first, because this process may have to be alone in its group.
        let groups = runs_here.then(|| {
            let groups = Groups::prepare(&Where::Auto, 0, false);
            std::thread::spawn(move || groups?.tried())
        });
        let spec = spec.clone();
        let kept_in = Some(std::thread::spawn(move || Sandbox::find_for(&spec).map(drop)));
        Self { kept_in, groups }
    }

    /// Waits until it is known whether the sandbox works.
    ///
    /// # Errors
    /// Those of [`Sandbox::find_for`].
    pub fn check(&mut self) -> Result<()> {
        self.kept_in.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(panicked())))
    }

    /// Waits for the groups. The error says why there are none.
    pub fn groups(mut self) -> std::result::Result<Groups, String> {
        let thread = self.groups.take().ok_or("no control groups were requested")?;
        thread.join().unwrap_or_else(|_| Err(panicked().to_string()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.kept_in.take().map(JoinHandle::join);
        let _ = self.groups.take().map(JoinHandle::join);
    }
}
