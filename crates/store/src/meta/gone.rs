//! Tells sessions that have a process from those that have none.

use std::fs::File;
use std::path::Path;

use super::{SessionId, SessionRow};

/// Whether the session of this number is among these, and is not [gone](is_gone).
pub fn lives(sessions: &[SessionRow], id: SessionId, locks: Option<&Path>) -> bool {
    sessions.iter().any(|row| row.id == id && !is_gone(row, locks))
}

/// Rule 11: true when `session` certainly has no process any more: its lease is over, or its lock file can be locked.
pub fn is_gone(session: &SessionRow, locks: Option<&Path>) -> bool {
    if session.lease_is_over {
        return true;
    }
    let (Some(dir), Some(name)) = (locks, session.description.split(' ').next()) else { return false };
    let Ok(file) = File::open(dir.join(format!("{name}.lock"))) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}
