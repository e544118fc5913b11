//! Sessions, as the database knows them: their purpose, their owner, their lease.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use outrigger_format::PackId;
use serde::{Deserialize, Serialize};

use super::PackMark;
use super::jobs::JobId;
use crate::error::Result;

/// The purpose of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SessionKind {
    /// Adds data: must acknowledge generations.
    Writer = 0,
    /// Reads at a pinned epoch: never relies on an index hit being kept.
    Reader = 1,
    /// The collector.
    Collector = 2,
}

/// What a writer may rely on (rules 1, 8 and 9 of `docs/decisions/0003-reclaim-protocol.md`): read
/// in one transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Generation {
    /// Raised each time packs are marked as deletion candidates.
    pub number: u64,
    /// Ids of all live packs, rising. Every other pack counts as absent. Empty for a reader's
    /// session, which relies on none.
    pub live: Vec<PackId>,
    /// The mark for [`Packs::changed_packs`](super::Packs::changed_packs), if the engine has one.
    pub mark: Option<PackMark>,
}

/// A session's number; rises, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A session as the database knows it.
#[derive(Clone, Debug)]
pub struct SessionRow {
    /// Its number.
    pub id: SessionId,
    /// Its purpose.
    pub kind: SessionKind,
    /// The newest generation it has acknowledged.
    pub acknowledged: u64,
    /// When its lease ends, nanoseconds by the clock that the database judges leases by.
    pub lease_until: u64,
    /// The lease has ended, by the database's clock.
    pub lease_is_over: bool,
    /// Whole seconds left of it, by the same clock; 0 when it is over.
    pub lease_left_secs: u64,
    /// The process that it belongs to.
    pub owner: SessionOwner,
}

/// The process that a session belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOwner {
    /// The process holds the file `LOCK.lock` locked, if the store has a directory for such files.
    pub lock: String,
    /// Its host.
    pub host: String,
    /// Its number there.
    pub process: u32,
    /// What it does.
    pub role: Role,
}

/// A process's task in the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It carries out a command.
    Command(String),
    /// It has the store mounted.
    Mount,
    /// It runs splits of a job, or publishes the job's outputs.
    Job(JobId),
    /// It is an agent, which runs jobs of others.
    Agent(AgentRole),
}

/// An agent, as others see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentRole {
    /// Its name.
    pub name: String,
    /// Splits that it runs at once.
    pub slots: u64,
    /// The user that it runs as.
    pub uid: u32,
    /// Where its packs lie.
    pub place: String,
}

impl SessionOwner {
    /// This process, with the name of the lock that it holds.
    pub fn this(lock: String, role: Role) -> Self {
        Self { lock, host: crate::host::name(), process: std::process::id(), role }
    }

    /// Its lock file among `locks`; `None` for a name that no process gives, and that could lead
    /// elsewhere.
    pub fn lock_file(&self, locks: &Path) -> Option<PathBuf> {
        let is_plain = !self.lock.is_empty() && self.lock.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_plain.then(|| locks.join(format!("{}.lock", self.lock)))
    }

    /// True for a session of this process, or of a process of the same number on another host of
    /// this name.
    pub fn is_this_process(&self) -> bool {
        self.process == std::process::id() && self.host == crate::host::name()
    }

    /// True if this process owns the session, and holds its lock file.
    pub(crate) fn is_held_here(&self, locks: &Path) -> bool {
        self.is_this_process() && self.lock_file(locks).and_then(|path| is_locked(&path)) == Some(true)
    }
}

impl Role {
    /// As a column of the database has it.
    pub(super) fn to_column(&self) -> String {
        serde_json::to_string(self).expect("it has nothing but numbers and texts")
    }

    /// A value that a later program has written becomes a command of that text.
    pub(super) fn from_column(text: String) -> Self {
        serde_json::from_str(&text).unwrap_or(Self::Command(text))
    }
}

impl From<&str> for Role {
    /// A command's name.
    fn from(command: &str) -> Self {
        Self::Command(command.to_owned())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(name) => f.write_str(name),
            Self::Mount => f.write_str("mount"),
            Self::Job(job) => write!(f, "job {job}"),
            Self::Agent(agent) => write!(f, "agent {}", agent.name),
        }
    }
}

impl fmt::Display for SessionOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}, process {}", self.role, self.host, self.process)
    }
}

/// True if this session is among these, and is not [gone](is_gone).
pub fn lives(sessions: &[SessionRow], id: SessionId, locks: Option<&Path>) -> bool {
    sessions.iter().any(|row| row.id == id && !is_gone(row, locks))
}

/// True if a session's process has its lock file locked; `None` when that cannot be found out.
fn is_locked(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    Some(rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Rule 11: true when `session` certainly has no process any more: its lease is over, or its lock
/// file can be locked.
pub fn is_gone(session: &SessionRow, locks: Option<&Path>) -> bool {
    if session.lease_is_over {
        return true;
    }
    let Some(path) = locks.and_then(|locks| session.owner.lock_file(locks)) else { return false };
    is_locked(&path) == Some(false)
}

/// The sessions of clients, and the generations that they have acknowledged.
pub trait Sessions: Send + Sync {
    /// Opens a session with a lease of `lease_secs`, and returns the current generation, which it
    /// has acknowledged.
    fn open_session(
        &self,
        kind: SessionKind,
        owner: &SessionOwner,
        lease_secs: u32,
    ) -> Result<(SessionId, Generation)>;
    /// Extends the lease and returns the current generation's number.
    ///
    /// # Errors
    /// `Fenced` when the session is no longer live.
    fn renew(&self, session: SessionId, lease_secs: u32) -> Result<u64>;
    /// Rule 8, in one transaction: candidates among `relied` become live again, and the session
    /// acknowledges the current generation, which is returned.
    fn acknowledge(&self, session: SessionId, relied: &[PackId]) -> Result<Generation>;
    /// Fails once this database was removed or replaced: data stored from then on would be lost.
    /// Asks only this machine.
    fn still_there(&self) -> Result<()> {
        Ok(())
    }
    /// The current generation's number.
    fn generation(&self) -> Result<u64>;
    /// Ends a session, if it is not over yet: its row is over, its pins go; packs it left `Writing`
    /// or `Sealed` await [`Packs::sweep_packs`](super::Packs::sweep_packs).
    fn close_session(&self, session: SessionId) -> Result<()>;
    /// Ends another's session whose lease is over, or whose process is gone as the caller knows.
    fn fence(&self, session: SessionId) -> Result<()>;
    /// Sessions that are not over (closed or fenced); the lease of some may be (see
    /// [`SessionRow::lease_until`]).
    fn sessions(&self) -> Result<Vec<SessionRow>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_lies_among_locks_whatever_a_row_says() {
        let dir = tempfile::tempdir().unwrap();
        let locks = dir.path().join("sessions");
        std::fs::create_dir(&locks).unwrap();
        for path in [locks.join("00ff.lock"), dir.path().join("theirs.lock")] {
            std::fs::write(path, "").unwrap();
        }
        // A file that cannot be opened, such as another user's, decides nothing.
        let _closed = std::os::unix::net::UnixListener::bind(locks.join("00aa.lock")).unwrap();
        for (lock, gone) in
            [("00ff", true), ("00aa", false), ("other", false), ("../theirs", false), ("", false)]
        {
            let owner = SessionOwner::this(lock.to_owned(), Role::Mount);
            assert_eq!(
                owner.lock_file(&locks).is_some(),
                matches!(lock, "00ff" | "00aa" | "other"),
                "{lock}"
            );
            let row = SessionRow {
                id: SessionId(1),
                kind: SessionKind::Writer,
                acknowledged: 0,
                lease_until: 1,
                lease_is_over: false,
                lease_left_secs: 1,
                owner,
            };
            assert_eq!(is_gone(&row, Some(&locks)), gone, "{lock}");
        }
    }

    #[test]
    fn roles_come_back_and_what_is_unknown_is_a_command() {
        let agent = AgentRole { name: "a b".into(), slots: 2, uid: 7, place: "here".into() };
        for role in [Role::Mount, "put".into(), Role::Job(JobId(3)), Role::Agent(agent)] {
            assert_eq!(Role::from_column(role.to_column()), role);
        }
        assert_eq!(Role::from_column("{\"later\":1}".into()), Role::Command("{\"later\":1}".into()));
    }
}
