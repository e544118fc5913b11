//! A function in the place of every program: for simulations, in which nothing runs beside their
//! own threads.

use std::sync::OnceLock;

use outrigger_store::meta::jobs::{Claimed, JobId};

/// An attempt, as the function sees it.
pub struct Call<'a> {
    /// The job.
    pub job: JobId,
    /// The program in whose place it is, and its arguments.
    pub program: &'a [String],
    /// The split, and which attempt at it this is.
    pub claimed: Claimed,
    /// All of its standard input.
    pub input: Vec<u8>,
    /// Says whether it is to end: nobody waits for what it returns then.
    pub is_killed: &'a dyn Fn() -> bool,
}

/// Returns standard output, or why it fails.
pub type Function = fn(&Call<'_>) -> std::result::Result<Vec<u8>, String>;

static FUNCTION: OnceLock<Function> = OnceLock::new();

/// From now on this runs in the place of programs, and nothing is asked of this machine to keep
/// them in. Only the first counts.
pub fn run_instead(function: Function) {
    let _ = FUNCTION.set(function);
}

pub(crate) fn function() -> Option<Function> {
    FUNCTION.get().copied()
}
