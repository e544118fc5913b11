//! How a command ends: exit codes, and failures with what to do next.

use std::fmt;

use outrigger_store::{Error, ErrorKind};

/// The exit code of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// All was done.
    Done = 0,
    /// It could not be done.
    Failed = 1,
    /// The request makes no sense as given.
    Usage = 2,
    /// Damaged data was found.
    Damaged = 3,
    /// Some inputs were skipped; each was named.
    Partial = 4,
}

impl Exit {
    /// The outcome of a process of this program, from its exit code.
    pub fn of(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Done,
            Some(2) => Self::Usage,
            Some(3) => Self::Damaged,
            Some(4) => Self::Partial,
            _ => Self::Failed,
        }
    }
}

/// The exit code after Ctrl-C, as in shells: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Why a command could not do what was asked.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One sentence. It is empty if nobody is left to read it, as after a closed pipe.
    pub message: String,
}

/// The result of a command.
pub type Outcome = Result<Exit, Failure>;

impl Failure {
    /// The request makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// The command could not be done.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into() }
    }

    /// Reading or writing on this machine failed.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self { exit: Exit::Done, message: String::new() };
        }
        Self::failed(format!("{what}: {}", plain(error)))
    }
}

/// An I/O error without the number that Rust appends.
pub fn plain(error: &std::io::Error) -> String {
    without_numbers(&error.to_string())
}

/// A message without the numbers of I/O errors.
pub fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(" (os error ") {
        out.push_str(&rest[..at]);
        rest = rest[at + 1..].split_once(')').map_or("", |(_, rest)| rest);
    }
    out + rest
}

const RECOVER: &str = "; `outrigger recover` rebuilds it from the packs";

/// The next step for the user, if the message does not name one itself.
fn advice(kind: ErrorKind, message: &str) -> &'static str {
    match kind {
        // The message says when to try again.
        ErrorKind::Busy if message.contains("try again") => "",
        ErrorKind::Busy => "; another process is using it, try again in a moment",
        ErrorKind::Full => {
            "; free space with `outrigger rm -r --no-snapshot` or `outrigger snapshot delete`, then `outrigger gc`, and run the command again: \
             committed data is kept. What a plain `rm` removes stays in its snapshot `before-rm-…` for 30 days: delete that to free it now"
        }
        ErrorKind::Damaged => {
            "; run `outrigger check --repair` to find and repair damage, or `outrigger get --salvage` to restore the undamaged parts of a file"
        }
        _ => "",
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::Damaged => Exit::Damaged,
            _ => Exit::Failed,
        };
        let mut message = without_numbers(&error.to_string());
        if !message.contains("outrigger ") {
            let lost_database = exit == Exit::Damaged && message.contains("metadata database");
            let next = if lost_database { RECOVER } else { advice(error.kind(), &message) };
            message.push_str(next);
        }
        Self { exit, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_for_programs() {
        assert_eq!(without_numbers("a: gone (os error 2); try b"), "a: gone; try b");
        assert_eq!(without_numbers("plain"), "plain");
    }

    #[test]
    fn kinds_become_codes_and_advice() {
        let failure = Failure::from(Error::damaged("pack 1"));
        assert_eq!(failure.exit, Exit::Damaged);
        assert!(failure.message.contains("check"), "{}", failure.message);
        // A plain `rm` frees nothing for 30 days.
        let full = Failure::from(Error::new(ErrorKind::Full, "the disk is full")).message;
        assert!(full.contains("rm -r --no-snapshot") && full.contains("`before-rm-…`"), "{full}");
        assert_eq!(Failure::from(Error::new(ErrorKind::Invalid, "no")).exit, Exit::Usage);
        for busy in ["the store is locked", "session 7 is collecting; try again when it has finished"] {
            let failure = Failure::from(Error::new(ErrorKind::Busy, busy));
            assert_eq!(failure.message.matches("try again").count(), 1, "{}", failure.message);
        }
    }
}
