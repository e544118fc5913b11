//! Histories of several clients at one shared directory: the calls of each, and their answers.
//!
//! A [`Client`] is a process. It does random operations and writes each call and each return to a
//! log of its own. [`check`] reads the logs of all clients and compares them with what the file
//! system promises:
//!
//! | keys | operations | what must hold |
//! | --- | --- | --- |
//! | `r…` registers | [`Action::Replace`] (write a new file, rename it), [`Action::Remove`], [`Action::Read`] | linearizable |
//! | `w…` registers | [`Action::Write`] (in place, fsync, close), [`Action::Read`] | linearizable, except what a read sees early on the writer's host |
//! | `flock…`, `fcntl…` | [`Action::Count`] (under a lock) | no acknowledged increment is lost |
//! | `log…` | [`Action::Append`], [`Action::Lines`] | each acknowledged line once, whole, in order |
//! | `n…` names | [`Action::Claim`], [`Action::Find`] | at most one winner, who stays |
//! | `d…` directories | [`Action::Claim`] (`mkdir`), [`Action::Remove`] (`rmdir`), [`Action::Find`] | linearizable |
//! | `m…` files that move | [`Action::Move`], [`Action::Stat`] | linearizable: found exactly once |
//!
//! An operation that fails may have been carried out: its outcome is [`Outcome::Unknown`]. It may
//! take effect at any later time, once, or never. Only where nothing can have been sent is it
//! [`Outcome::Failed`].
//!
//! All clients are on one machine, so that the monotonic clock orders their calls and returns.

mod check;
mod client;
mod linear;
mod sequences;
mod shim;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;

pub use check::{Report, Violation, check};
pub use client::{Client, content, now, prepare, value_of};

/// How a client tries to be the first to make a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `open` with `O_EXCL`, then a write and a close.
    Exclusive,
    /// `mkdir`.
    Directory,
    /// `link` of a file of its own.
    Link,
    /// `renameat2` with `RENAME_NOREPLACE` of a file of its own.
    Rename,
}

/// An operation on a key. The name of the operation itself ([`Op::id`]) is the value that it
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Overwrites a file in place: open, write, fsync, close.
    Write,
    /// Writes another file and renames it to the name.
    Replace,
    /// Open, read, close: the value, or [`ABSENT`], or [`TORN`].
    Read,
    /// Locks, reads the number, writes the next one, unlocks: the number that was read.
    Count,
    /// Appends a line with `O_APPEND` and closes.
    Append,
    /// All lines, separated by commas.
    Lines,
    /// [`WON`] or [`EXISTS`].
    Claim(How),
    /// Looks for the owner of the name: the winner's operation, `dir`, `empty`, or [`ABSENT`].
    Find,
    /// Removes the name: [`REMOVED`] or [`ABSENT`].
    Remove,
    /// Renames the file from one directory to another: [`MOVED`] or [`ABSENT`].
    Move {
        /// The directory where it is expected.
        from: u8,
        /// The directory where it goes.
        to: u8,
    },
    /// Looks for the file in a directory: [`HERE`] or [`ABSENT`].
    Stat(u8),
}

/// The name or the value is not there.
pub const ABSENT: &str = "absent";
/// The value of a register that is written in place before the first write.
pub const FIRST: &str = "first";
/// The bytes are no value that was ever written as a whole.
pub const TORN: &str = "TORN";
/// The client has made the name.
pub const WON: &str = "won";
/// Somebody else has made the name.
pub const EXISTS: &str = "exists";
/// The file was renamed.
pub const MOVED: &str = "moved";
/// The name was removed.
pub const REMOVED: &str = "removed";
/// The file is in that directory.
pub const HERE: &str = "here";

/// The answer that the client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this.
    Done(String),
    /// It failed before anything was changed.
    Failed(String),
    /// It failed, or never returned: it may have been carried out, or may still be.
    Unknown(String),
}

/// Bytes of a result that are shown.
const SHOWN: usize = 200;

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// `HOST.NUMBER`.
    pub client: String,
    /// The client's how-manieth operation.
    pub number: u64,
    /// The name of the file, or of the log.
    pub key: String,
    /// What was done.
    pub action: Action,
    /// When it was called, in nanoseconds of the monotonic clock.
    pub called: u64,
    /// When it returned; [`u64::MAX`] if it never did.
    pub returned: u64,
    /// The answer that the client got.
    pub outcome: Outcome,
}

impl Op {
    /// The operation's name, which is also the value that it writes.
    pub fn id(&self) -> String {
        format!("{}/{}", self.client, self.number)
    }

    /// The host on which it was done.
    pub fn host(&self) -> &str {
        self.client.split('.').next().unwrap_or_default()
    }

    /// Its result, if it is known to have been carried out.
    pub fn done(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Done(value) => Some(value),
            _ => None,
        }
    }

    /// True if it may have been carried out, now or later, although the client got no such answer.
    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown(_))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.returned == u64::MAX { "never".to_owned() } else { millis(self.returned) };
        write!(f, "{} to {ended}  {}  {} {}: ", millis(self.called), self.id(), self.action, self.key)?;
        match &self.outcome {
            // All lines of a log are too many.
            Outcome::Done(value) if value.len() > SHOWN => {
                write!(f, "{} … {}", &value[..SHOWN / 2], &value[value.len() - SHOWN / 2..])
            }
            Outcome::Done(value) => f.write_str(value),
            Outcome::Failed(why) => write!(f, "failed ({why})"),
            Outcome::Unknown(why) => write!(f, "unknown ({why})"),
        }
    }
}

fn millis(nanos: u64) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos / 1000 % 1000)
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Write => "write",
            Self::Replace => "replace",
            Self::Read => "read",
            Self::Count => "count",
            Self::Append => "append",
            Self::Lines => "lines",
            Self::Claim(How::Exclusive) => "create",
            Self::Claim(How::Directory) => "mkdir",
            Self::Claim(How::Link) => "link",
            Self::Claim(How::Rename) => "noreplace",
            Self::Find => "find",
            Self::Remove => "remove",
            Self::Move { from, to } => return write!(f, "move:{from}:{to}"),
            Self::Stat(dir) => return write!(f, "stat:{dir}"),
        };
        f.write_str(word)
    }
}

impl Action {
    fn parse(word: &str) -> Option<Self> {
        let mut parts = word.split(':');
        let word = parts.next()?;
        let mut number = || parts.next()?.parse().ok();
        Some(match word {
            "write" => Self::Write,
            "replace" => Self::Replace,
            "read" => Self::Read,
            "count" => Self::Count,
            "append" => Self::Append,
            "lines" => Self::Lines,
            "create" => Self::Claim(How::Exclusive),
            "mkdir" => Self::Claim(How::Directory),
            "link" => Self::Claim(How::Link),
            "noreplace" => Self::Claim(How::Rename),
            "find" => Self::Find,
            "remove" => Self::Remove,
            "move" => Self::Move { from: number()?, to: number()? },
            "stat" => Self::Stat(number()?),
            _ => return None,
        })
    }
}

/// A client's log: `> NUMBER NANOS KEY ACTION` when it calls, `< NUMBER NANOS done|failed|unknown
/// TEXT` when that returns. The last line may have been cut off by the client's end.
fn parse(client: &str, log: &str) -> Option<Vec<Op>> {
    let mut ops = BTreeMap::new();
    for line in log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let words: Vec<_> = line.splitn(5, ' ').collect();
        let [mark, number, nanos, third, last] = words[..] else { return None };
        let (number, nanos) = (number.parse().ok()?, nanos.parse().ok()?);
        if mark == ">" {
            let (action, outcome) = (Action::parse(last)?, Outcome::Unknown("never returned".into()));
            let (client, key) = (client.to_owned(), third.to_owned());
            let op = Op { client, number, key, action, called: nanos, returned: u64::MAX, outcome };
            ops.insert(number, op);
        } else {
            let op = ops.get_mut(&number)?;
            op.returned = nanos;
            op.outcome = match third {
                "done" => Outcome::Done(last.into()),
                "failed" => Outcome::Failed(last.into()),
                _ => Outcome::Unknown(last.into()),
            };
        }
    }
    Some(ops.into_values().collect())
}

/// All operations of the clients whose logs (`CLIENT.log`) lie in a directory, in the order of
/// their calls.
///
/// # Errors
/// A log cannot be read, or is none.
pub fn load(dir: &Path) -> io::Result<Vec<Op>> {
    let mut ops = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let client = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let log = std::fs::read_to_string(&path).map_err(crate::about(&path))?;
        let found = parse(&client, &log);
        ops.extend(found.ok_or_else(|| io::Error::other(format!("{}: no log", path.display())))?);
    }
    ops.sort_by_key(|op| op.called);
    Ok(ops)
}

/// Notes a fault, or its end, beside the logs.
///
/// # Errors
/// It cannot be written.
pub fn note_fault(logs: &Path, what: &str) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::options().create(true).append(true).open(logs.join("faults"))?;
    writeln!(file, "{} {what}", client::now())
}

/// The faults of a history and when they were, as they were noted.
pub fn faults(logs: &Path) -> Vec<(u64, String)> {
    let text = std::fs::read_to_string(logs.join("faults")).unwrap_or_default();
    let fault =
        |line: &str| line.split_once(' ').and_then(|(at, what)| Some((at.parse().ok()?, what.to_owned())));
    text.lines().filter_map(fault).collect()
}
