//! Does a file system keep what it acknowledged? A writer logs each operation after it returned,
//! and a check compares the later content with that log.
//!
//! [`ack_write`] makes random operations in an empty directory and writes two lines to its log for
//! each: `> N OPERATION` before, `< N` after it returned. The log lies on another file system,
//! which survives when the one under test is killed. [`ack_verify`] replays the log and compares.
//! At most one operation has no second line. It may have happened or not, and a write in part.

mod model;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

pub use verify::ack_verify;
pub use writer::{AckOptions, AckReport, ack_write};

use std::fmt;
use std::io;

/// A file system's promise about operations that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// All data is there after the file system's process was killed.
    Acked,
    /// Names are there; data once it was flushed by `fsync` or `close` (a mount behind the kernel's
    /// write-back cache).
    Names,
    /// Only what `fsync` returned for: a file's data and its names, a directory's entries (power
    /// loss).
    Durable,
}

/// One operation. Paths are relative to the directory under test and free of white space.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Create(String),
    Write { path: String, at: u64, len: u64 },
    Append { path: String, len: u64 },
    Truncate { path: String, len: u64 },
    Rename { from: String, to: String },
    Link { from: String, to: String },
    Symlink { path: String, target: String },
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Fsync(String),
    FsyncDir(String),
    Close(String),
}

impl Op {
    /// True if it changes which names exist, or what they stand for.
    fn changes_names(&self) -> bool {
        use Op::{Append, Close, Fsync, FsyncDir, Truncate, Write};
        !matches!(self, Write { .. } | Append { .. } | Truncate { .. } | Fsync(_) | FsyncDir(_) | Close(_))
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().ok();
        let path = |word: &str| word.to_owned();
        Some(match words[..] {
            ["create", a] => Self::Create(path(a)),
            ["write", a, at, len] => Self::Write { path: path(a), at: number(at)?, len: number(len)? },
            ["append", a, len] => Self::Append { path: path(a), len: number(len)? },
            ["truncate", a, len] => Self::Truncate { path: path(a), len: number(len)? },
            ["rename", a, b] => Self::Rename { from: path(a), to: path(b) },
            ["link", a, b] => Self::Link { from: path(a), to: path(b) },
            ["symlink", a, target] => Self::Symlink { path: path(a), target: path(target) },
            ["unlink", a] => Self::Unlink(path(a)),
            ["mkdir", a] => Self::Mkdir(path(a)),
            ["rmdir", a] => Self::Rmdir(path(a)),
            ["fsync", a] => Self::Fsync(path(a)),
            ["fsyncdir", a] => Self::FsyncDir(path(a)),
            ["close", a] => Self::Close(path(a)),
            _ => return None,
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(path) => write!(f, "create {path}"),
            Self::Write { path, at, len } => write!(f, "write {path} {at} {len}"),
            Self::Append { path, len } => write!(f, "append {path} {len}"),
            Self::Truncate { path, len } => write!(f, "truncate {path} {len}"),
            Self::Rename { from, to } => write!(f, "rename {from} {to}"),
            Self::Link { from, to } => write!(f, "link {from} {to}"),
            Self::Symlink { path, target } => write!(f, "symlink {path} {target}"),
            Self::Unlink(path) => write!(f, "unlink {path}"),
            Self::Mkdir(path) => write!(f, "mkdir {path}"),
            Self::Rmdir(path) => write!(f, "rmdir {path}"),
            Self::Fsync(path) => write!(f, "fsync {path}"),
            Self::FsyncDir(path) => write!(f, "fsyncdir {path}"),
            Self::Close(path) => write!(f, "close {path}"),
        }
    }
}

/// The first line of a log; the seed follows.
const HEADER: &str = "outrigger-workload ackwrite 1 seed ";

/// A parsed log: the operations that returned, and the one that did not.
struct Log {
    seed: u64,
    acked: Vec<Op>,
    in_flight: Option<Op>,
}

impl Log {
    fn parse(text: &str) -> io::Result<Self> {
        let bad = |line: usize| io::Error::other(format!("the log's line {} makes no sense", line + 1));
        // A killed writer may leave half a line, which does not count.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines().enumerate();
        let seed = lines.next().and_then(|(_, line)| line.strip_prefix(HEADER)?.parse().ok());
        let mut log = Self { seed: seed.ok_or_else(|| bad(0))?, acked: Vec::new(), in_flight: None };
        for (at, line) in lines {
            let (kind, rest) = line.split_once(' ').ok_or_else(|| bad(at))?;
            let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            if number.parse() != Ok(log.acked.len()) {
                return Err(bad(at));
            }
            match (kind, log.in_flight.take()) {
                (">", None) => log.in_flight = Some(Op::parse(rest).ok_or_else(|| bad(at))?),
                ("<", Some(op)) => log.acked.push(op),
                // It failed, and then the writer stopped: it may have happened in part.
                ("!", Some(op)) => log.in_flight = Some(op),
                _ => return Err(bad(at)),
            }
        }
        Ok(log)
    }
}
