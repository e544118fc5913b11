//! The one error type at the store's public edge. Its kind says what a caller can do about it.

use std::fmt;

use outrigger_format::FormatError;

/// How a caller can react to an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    /// The request makes no sense as given: fix it.
    Invalid,
    /// The name, snapshot or store does not exist.
    NotFound,
    /// It exists already.
    Exists,
    /// Another process holds it: try again.
    Busy,
    /// Another client changed what the request relied on. Look again, and decide again.
    Changed,
    /// Permission denied, or opened read-only.
    Denied,
    /// Written by a newer version of this program.
    Newer,
    /// Stored data is damaged: `check` names it, `check --repair` may mend it.
    Damaged,
    /// Its key was destroyed (`key destroy`): nobody can read it.
    Destroyed,
    /// This session was fenced: its work so far is committed or discarded, start again.
    Fenced,
    /// No space left.
    Full,
    /// The machine failed the request (I/O, memory).
    Io,
    /// The caller asked to stop.
    Cancelled,
}

/// A transaction in doubt: its answer was lost, and its outcome could not be found out in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Unanswered {
    /// Where it was to leave a mark, and which.
    pub(crate) lane: i64,
    pub(crate) token: i64,
}

/// An error with what was being done and why it failed.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    /// Apart, as few errors have it and all are moved about.
    unanswered: Option<Box<Unanswered>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result with the store's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<outrigger_clock::NoRandom> for Error {
    fn from(error: outrigger_clock::NoRandom) -> Self {
        Self::new(ErrorKind::Io, "random bytes").caused_by(error)
    }
}

impl Error {
    /// An error of `kind`; `context` is a clause a user can read.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), unanswered: None, source: None }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Marks the error: the failed transaction may have happened all the same.
    #[must_use]
    pub(crate) fn without_answer(mut self, unanswered: Unanswered) -> Self {
        self.unanswered = Some(Box::new(unanswered));
        self
    }

    /// The transaction that failed, if it may have happened all the same:
    /// [`Session::has_happened`](crate::session::Session::has_happened) finds that out.
    pub fn unanswered(&self) -> Option<Unanswered> {
        self.unanswered.as_deref().copied()
    }

    /// Damage: `context` names the object.
    pub fn damaged(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, context)
    }

    /// How a caller can react to it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// A copy of the error, for another caller that fails because of it.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::new(self.kind, self.to_string())
    }

    /// Puts `context` before the present message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.context = format!("{context}: {}", self.context);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Adds what was being done to an error of another layer.
pub trait Context<T> {
    /// Wraps the error; its kind follows from it.
    ///
    /// # Errors
    /// The wrapped error.
    fn context(self, context: impl FnOnce() -> String) -> Result<T>;
}

fn kind_of_io(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => ErrorKind::NotFound,
        Io::AlreadyExists => ErrorKind::Exists,
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::Full,
        Io::WouldBlock | Io::ResourceBusy => ErrorKind::Busy,
        _ => ErrorKind::Io,
    }
}

impl<T> Context<T> for std::result::Result<T, std::io::Error> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::new(kind_of_io(&error), context()).caused_by(error))
    }
}

impl<T> Context<T> for std::result::Result<T, rustix::io::Errno> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(std::io::Error::from).context(context)
    }
}

impl<T> Context<T> for std::result::Result<T, FormatError> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| {
            let kind = match error {
                FormatError::Newer { .. } => ErrorKind::Newer,
                FormatError::Text(_) => ErrorKind::Invalid,
                _ => ErrorKind::Damaged,
            };
            Error::new(kind, context()).caused_by(error)
        })
    }
}

impl<T> Context<T> for Result<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::context(error, context()))
    }
}
