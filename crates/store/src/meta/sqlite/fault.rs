//! From SQLite's errors to the store's.

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind, Result};

/// What can go wrong inside a transaction.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite said no.
    Sql(rusqlite::Error),
    /// We did.
    Store(Error),
}

/// The result of a step inside a transaction.
pub(super) type Outcome<T> = std::result::Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

fn kind_of(error: &rusqlite::Error) -> ErrorKind {
    use rusqlite::Error as Sql;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::Busy,
        // That the file is there was seen before: what cannot be opened or made beside it is a matter of permissions.
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => ErrorKind::Denied,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::ConstraintViolation) => {
            ErrorKind::Damaged
        }
        Some(ErrorCode::DiskFull) => ErrorKind::Full,
        Some(ErrorCode::TooBig) => ErrorKind::Invalid,
        Some(ErrorCode::OperationInterrupted) => ErrorKind::Cancelled,
        Some(_) => ErrorKind::Io,
        None => match error {
            // A value of the wrong type, out of range, or a row that is always there and was not.
            Sql::FromSqlConversionFailure(..)
            | Sql::IntegralValueOutOfRange(..)
            | Sql::InvalidColumnType(..)
            | Sql::QueryReturnedNoRows => ErrorKind::Damaged,
            _ => ErrorKind::Io,
        },
    }
}

/// An error of `kind`, as a fault: for `return Err(refuse(…))`.
pub(super) fn refuse(kind: ErrorKind, context: impl Into<String>) -> Fault {
    Fault::Store(Error::new(kind, context))
}

/// Leaves the inside: says what was being done.
pub(super) trait Explain<T> {
    fn explain(self, what: &str) -> Result<T>;
}

impl<T> Explain<T> for Outcome<T> {
    fn explain(self, what: &str) -> Result<T> {
        self.map_err(|fault| match fault {
            Fault::Store(error) => error.context(what),
            Fault::Sql(error) => {
                Error::new(kind_of(&error), format!("{what}: metadata database")).caused_by(error)
            }
        })
    }
}

impl<T> Explain<T> for rusqlite::Result<T> {
    fn explain(self, what: &str) -> Result<T> {
        self.map_err(Fault::Sql).explain(what)
    }
}
