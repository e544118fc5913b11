//! Turns the databases' errors into the store's.

use outrigger_format::PackId;
use rusqlite::{ErrorCode, ffi};

use super::ROOT_INODE;
use crate::error::{Error, ErrorKind, Result};

/// A failure inside a transaction.
#[derive(Debug)]
pub(in crate::meta) enum Fault {
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// PostgreSQL failed, or the connection to it is gone.
    Postgres(tokio_postgres::Error),
    /// The transaction must be repeated, because another one came between.
    Again {
        /// Run it while no other transaction changes the tree.
        alone: bool,
    },
    /// Our own checks failed.
    Store(Error),
}

impl Fault {
    /// The reason, for the message that the transaction is repeated.
    pub fn why(&self) -> String {
        match self {
            Self::Sqlite(error) => error.to_string(),
            Self::Postgres(error) => why(error),
            Self::Again { .. } => "another transaction came in between".to_owned(),
            Self::Store(error) => error.to_string(),
        }
    }
}

/// The server's message, or how the connection ended.
pub(in crate::meta) fn why(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// The result of a step inside a transaction.
pub(in crate::meta) type Outcome<T> = std::result::Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// A value of the wrong type, out of range, or a row that is always there and was not.
fn is_of_a_value(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as Sql;
    matches!(
        error,
        Sql::FromSqlConversionFailure(..)
            | Sql::IntegralValueOutOfRange(..)
            | Sql::InvalidColumnType(..)
            | Sql::QueryReturnedNoRows
    )
}

/// True if SQLite could not write or enlarge a file. It usually recognises a full disk, but not a
/// quota.
fn is_not_written(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    const CODES: [i32; 4] = [
        ffi::SQLITE_IOERR_WRITE,
        ffi::SQLITE_IOERR_TRUNCATE,
        ffi::SQLITE_IOERR_SHMOPEN,
        ffi::SQLITE_IOERR_SHMSIZE,
    ];
    code.is_some_and(|code| CODES.contains(&code))
}

fn kind_in_sqlite(error: &rusqlite::Error) -> ErrorKind {
    if is_not_written(error) {
        return ErrorKind::Full;
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::Busy,
        // The file exists, as was checked before. So if it, or a file beside it, cannot be opened,
        // permissions are the reason.
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
        None => ErrorKind::Io,
    }
}

/// By the class of the SQLSTATE (PostgreSQL's manual, appendix A), where one code does not say
/// more.
fn kind_in_postgres(error: &tokio_postgres::Error) -> ErrorKind {
    let Some(state) = error.code() else {
        // The error is not from the server: a value of the wrong type, or no connection.
        let of_value = std::error::Error::source(error)
            .is_some_and(|source| source.is::<tokio_postgres::types::WrongType>());
        return if of_value { ErrorKind::Damaged } else { ErrorKind::Io };
    };
    match state.code() {
        "40001" | "40P01" | "55P03" | "57P03" | "53300" => ErrorKind::Busy,
        "42501" | "25006" => ErrorKind::Denied,
        "53100" => ErrorKind::Full,
        "57014" => ErrorKind::Cancelled,
        "3D000" | "3F000" | "42P01" => ErrorKind::NotFound,
        code => match &code[..2] {
            "28" => ErrorKind::Denied,
            "23" | "22" => ErrorKind::Damaged,
            _ if code == "XX001" || code == "XX002" => ErrorKind::Damaged,
            _ => ErrorKind::Io,
        },
    }
}

/// The server's message in one line, with its hint.
fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => match db.hint() {
            Some(hint) => format!("{} ({hint})", db.message()),
            None => db.message().to_owned(),
        },
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                let cause_text = cause.to_string();
                if !text.contains(&cause_text) {
                    text = format!("{text}: {cause_text}");
                }
                source = cause.source();
            }
            text
        }
    }
}

/// An error of `kind`, as a fault: for `return Err(refuse(…))`.
pub(in crate::meta) fn refuse(kind: ErrorKind, context: impl Into<String>) -> Fault {
    Fault::Store(Error::new(kind, context))
}

/// A number of a row that is never negative.
pub(in crate::meta) fn unsigned(value: i64, what: &str) -> Outcome<u64> {
    u64::try_from(value).map_err(|_| refuse(ErrorKind::Damaged, format!("{what} is {value}")))
}

/// The id of a pack, from a row.
pub(in crate::meta) fn pack_id(value: i64) -> Outcome<PackId> {
    let id = PackId(unsigned(value, "a pack's id")?);
    match id.0 {
        0 => Err(refuse(ErrorKind::Damaged, "a pack's id is 0")),
        _ if id > PackId::MAX => Err(refuse(ErrorKind::Damaged, format!("a pack's id is {value}"))),
        _ => Ok(id),
    }
}

/// The next number of a counter.
pub(in crate::meta) fn next_number(counter: &str, value: i64) -> Outcome<u64> {
    let least = match counter {
        "next_inode" => ROOT_INODE + 1,
        "next_pack" | "next_session" => 1,
        _ => 0,
    };
    match unsigned(value, &format!("the counter {counter}"))? {
        next if next < least => Err(refuse(ErrorKind::Damaged, format!("the counter {counter} is {value}"))),
        next => Ok(next),
    }
}

/// Turns a fault into an error, with what was being done.
pub(in crate::meta) trait Explain<T> {
    fn explain(self, what: &str) -> Result<T>;
}

impl<T> Explain<T> for Outcome<T> {
    fn explain(self, what: &str) -> Result<T> {
        self.map_err(|fault| match fault {
            Fault::Store(error) => error.context(what),
            // SQLite's messages on columns give only their numbers, which help nobody.
            Fault::Sqlite(error) if is_of_a_value(&error) => Error::damaged(format!(
                "{what}: a row of the metadata database holds something that cannot be there; `outrigger check` names what is damaged, `outrigger recover` rebuilds it from the packs"
            )),
            Fault::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                Error::damaged(format!(
                    "{what}: it is not a database any more; rebuild it from the packs with `outrigger recover`"
                ))
            }
            Fault::Sqlite(error) if is_not_written(&error) => {
                let why = "metadata database: the disk is full, a quota is reached, or the disk fails";
                Error::new(ErrorKind::Full, format!("{what}: {why}")).caused_by(error)
            }
            Fault::Sqlite(error) => {
                Error::new(kind_in_sqlite(&error), format!("{what}: metadata database")).caused_by(error)
            }
            Fault::Postgres(error) => {
                let kind = kind_in_postgres(&error);
                Error::new(kind, format!("{what}: metadata database: {}", said(&error)))
            }
            Fault::Again { .. } => Error::new(
                ErrorKind::Busy,
                format!("{what}: other clients changed the same again and again; try again"),
            ),
        })
    }
}

impl<T> Explain<T> for rusqlite::Result<T> {
    fn explain(self, what: &str) -> Result<T> {
        self.map_err(Fault::Sqlite).explain(what)
    }
}
