//! What a run needs of this machine, found out while its store is opened and its job is made: each of these waits more than it works.
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

/// See the module. Whoever drops it waits for what was begun, so that nothing is left of it.
pub struct Machine {
    kept_in: Option<JoinHandle<Result<()>>>,
    groups: Option<JoinHandle<std::result::Result<Groups, String>>>,
}

fn panicked() -> Error {
    Error::new(ErrorKind::Io, "a thread that looks at this machine panicked: please report this")
}

impl Machine {
    /// Begins to find out whether programs can be kept in as this job asks, and, where it is run here, to make groups for them.
    pub fn prepare(spec: &Spec, runs_here: bool) -> Self {
        // First this: it may want this process to be alone in its group.
        let groups = runs_here.then(|| {
            let groups = Groups::prepare(&Where::Auto, 0, false);
            std::thread::spawn(move || groups?.tried())
        });
        let spec = spec.clone();
        let kept_in = Some(std::thread::spawn(move || Sandbox::find_for(&spec).map(drop)));
        Self { kept_in, groups }
    }

    /// Waits until it is known whether programs can be kept in.
    ///
    /// # Errors
    /// Those of [`Sandbox::find_for`].
    pub fn check(&mut self) -> Result<()> {
        self.kept_in.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(|_| Err(panicked())))
    }

    /// Waits for the groups; if there are none, why.
    pub fn groups(mut self) -> std::result::Result<Groups, String> {
        let thread = self.groups.take().ok_or("they were not asked for")?;
        thread.join().unwrap_or_else(|_| Err(panicked().to_string()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.kept_in.take().map(JoinHandle::join);
        let _ = self.groups.take().map(JoinHandle::join);
    }
}
