//! Opens the database file: modes, settings, and the refusal of files of other programs.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger_clock::Instant;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, FileControl, MAIN_DB, OpenFlags, TransactionBehavior};
use zeroize::Zeroizing;

use crate::error::{Context as _, Error, ErrorKind, Result};
use crate::home::{Home, identity};
use crate::keys::Key;
use crate::meta::ROOT_INODE;
use crate::meta::change::row::root_attributes;
use crate::meta::fault::{Explain as _, Outcome, refuse};
use crate::wait;

/// How to open a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// Make a new one; `Exists` when there is one already.
    Create,
    /// For reading and writing.
    ReadWrite,
    /// For reading only. Nothing in the database changes; writing methods are `Denied`. If the
    /// directory cannot be written, nothing at all changes on disk; otherwise SQLite may keep its
    /// `-wal` and `-shm` files beside it.
    ReadOnly,
}

/// "OTRG": marks our databases, for `file` and in SQLite's header.
const APPLICATION_ID: i32 = 0x4f54_5247;
/// Raised with every schema that older programs cannot use.
const SCHEMA_VERSION: i32 = 4;
/// Measured in docs/decisions/0004-metadata-schema.md.
const PAGE_BYTES: u32 = 8192;
/// The log is copied into the database once it has grown by this much. That is rare enough that a
/// bulk load's pages are copied once or twice, and often enough that readers' lookups in the log
/// stay short.
const CHECKPOINT_BYTES: u32 = 16 << 20;
/// How long a transaction waits for another process's before it is `Busy`.
const BUSY: Duration = Duration::from_secs(30);
const WRITER_CACHE_KIB: u32 = 32 << 10;
const READER_CACHE_KIB: u32 = 8 << 10;
const STATEMENTS: usize = 128;

/// What further connections to the same database need: its directory, which may be moved meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Source {
    home: Arc<Home>,
    file: OsString,
    /// The identity of the file when it was found.
    identity: (u64, u64),
    /// Its name at that time, for messages.
    shown: PathBuf,
    /// Nobody can write it: SQLite then needs no lock files.
    is_immutable: bool,
    /// It is encrypted with this.
    key: Option<Key>,
}

impl Source {
    /// Finds out how `path` can be read.
    pub fn new(path: &Path, mode: OpenMode, key: Option<Key>) -> Result<Self> {
        let what = || format!("metadata database {}", path.display());
        let shown = std::fs::canonicalize(path).context(what)?;
        let file = shown.file_name().unwrap_or_default().to_owned();
        let home = Arc::new(Home::of(shown.parent().unwrap_or(Path::new("/"))));
        let identity = identity(&rustix::fs::stat(home.path().join(&file)).context(what)?);
        let is_immutable =
            mode == OpenMode::ReadOnly && !directory_is_writable(&shown) && !log_exists(&shown);
        Ok(Self { home, file, identity, shown, is_immutable, key })
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(&self.file)
    }

    /// Fails once the database was removed, or another one put in its place.
    pub fn still_there(&self) -> Result<()> {
        let now = rustix::fs::lstat(self.path());
        if now.is_ok_and(|now| identity(&now) == self.identity) {
            return Ok(());
        }
        let what = format!(
            "the store's database {} was removed or replaced while it was in use: nothing more can be stored",
            self.shown.display()
        );
        Err(Error::new(ErrorKind::Io, what))
    }

    /// A connection that only reads.
    pub fn reader(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let what = format!("opening metadata database {}", self.shown.display());
        let path = self.path();
        let connection = match self.is_immutable {
            true => Connection::open_with_flags(immutable_uri(&path), flags | OpenFlags::SQLITE_OPEN_URI),
            false => Connection::open_with_flags(&path, flags),
        };
        let mut connection = connection.explain(&what)?;
        settle(&mut connection, READER_CACHE_KIB, self.key.as_ref()).explain(&what)?;
        // SQLite opens the log by its name with the first read: that must happen before the
        // directory may be moved.
        connection.query_row("PRAGMA schema_version", [], |_| Ok(())).explain(&what)?;
        self.still_there()?;
        Ok(connection)
    }

    /// A connection that writes.
    pub fn writer(&self) -> Result<Connection> {
        let what = format!("opening metadata database {}", self.shown.display());
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(self.path(), flags).explain(&what)?;
        settle(&mut connection, WRITER_CACHE_KIB, self.key.as_ref()).explain(&what)?;
        // SQLite silently opens a write-protected file for reading.
        if connection.is_readonly("main").explain(&what)? {
            return Err(Error::new(ErrorKind::Denied, format!("{what}: the file is write-protected")));
        }
        write_ahead(&connection).explain(&what)?;
        Ok(connection)
    }
}

fn directory_is_writable(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

fn log_exists(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).is_ok_and(|log| log.len() > 0)
}

fn immutable_uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            uri.push(byte.into());
        } else {
            write!(uri, "%{byte:02x}").expect("writing to a string");
        }
    }
    uri + "?immutable=1"
}

/// Waits a moment for another process's transaction, for the `times`th time. It waits as SQLite's
/// own handler does, but reports a long wait. False when it has lasted long enough.
fn wait_for_others(times: i32) -> bool {
    const FIRST_MS: [u64; 11] = [1, 2, 5, 10, 15, 20, 25, 25, 25, 50, 50];
    const LATER_MS: u64 = 100;
    let times = times.max(0) as usize;
    let ms = |times: usize| {
        let first = times.min(FIRST_MS.len());
        FIRST_MS[..first].iter().sum::<u64>() + LATER_MS * (times - first) as u64
    };
    let (waited, next) = (Duration::from_millis(ms(times)), Duration::from_millis(ms(times + 1)));
    if waited < wait::LONG && next >= wait::LONG {
        wait::tell("waiting for another process, which has the metadata database locked");
    }
    if next > BUSY {
        return false;
    }
    outrigger_clock::sleep(next - waited);
    true
}

/// Says that a database is encrypted with `key`: before its first page is read. SQLCipher encrypts
/// each page with AES-256 and authenticates it; the log holds pages so, too.
fn require_key(connection: &Connection, database: &str, key: Option<&Key>) -> rusqlite::Result<()> {
    let Some(key) = key else { return Ok(()) };
    // Its messages go to standard error otherwise; the errors say the same.
    connection.execute_batch(&format!(
        "PRAGMA cipher_log_level = NONE; PRAGMA {database}.key = {}; {}",
        *key_literal(Some(key)),
        cipher(database)
    ))
}

/// Settings of the cipher.
fn cipher(database: &str) -> String {
    format!(
        "PRAGMA {database}.cipher_page_size = {PAGE_BYTES}; PRAGMA {database}.cipher_hmac_algorithm = HMAC_SHA256;"
    )
}

/// A key as SQLCipher takes it, as it is and not as a passphrase.
fn key_literal(key: Option<&Key>) -> Zeroizing<String> {
    let digits = key
        .map(|key| Zeroizing::new(key.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>()));
    Zeroizing::new(digits.map_or_else(|| "''".to_string(), |digits| format!("\"x'{}'\"", *digits)))
}

/// Copies the database `from` to the new file `to`, as it is at one moment, from one key to
/// another.
pub(crate) fn copy_database(from: (&Path, Option<&Key>), to: (&Path, Option<&Key>)) -> Result<()> {
    let what = format!("copying the database to {}", to.0.display());
    let name = to.0.to_str().ok_or_else(|| Error::new(ErrorKind::Invalid, "the copy's path is not UTF-8"))?;
    let connection = Connection::open(from.0).explain(&what)?;
    let copy = || -> rusqlite::Result<()> {
        require_key(&connection, "main", from.1)?;
        connection.busy_timeout(BUSY)?;
        super::sums::register(&connection)?;
        if from.1.is_none() && to.1.is_none() {
            connection.execute("VACUUM INTO ?1", [name])?;
            return Ok(());
        }
        connection.execute(&format!("ATTACH ?1 AS copy KEY {}", *key_literal(to.1)), [name])?;
        if to.1.is_some() {
            connection.execute_batch(&cipher("copy"))?;
        }
        connection.execute_batch(&format!(
            "PRAGMA copy.page_size = {PAGE_BYTES}; PRAGMA copy.auto_vacuum = incremental; PRAGMA copy.synchronous = full;"
        ))?;
        connection.query_row("SELECT sqlcipher_export('copy')", [], |_| Ok(()))?;
        connection.execute_batch(&format!(
            "PRAGMA copy.application_id = {APPLICATION_ID}; PRAGMA copy.user_version = {SCHEMA_VERSION}; DETACH copy;"
        ))
    };
    copy().explain(&what)?;
    std::fs::File::open(to.0).and_then(|file| file.sync_all()).context(|| what)
}

/// Settings of every connection. A store may come from anybody, so nothing in its schema may run
/// code.
fn settle(connection: &mut Connection, cache_kib: u32, key: Option<&Key>) -> rusqlite::Result<()> {
    require_key(connection, "main", key)?;
    connection.busy_handler(Some(wait_for_others))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
    // Keeps plans independent of bound values. Without this, the bundled SQLite (built with STAT4)
    // prepares a statement with a range or a limit again for every new value, which made lookups
    // ten times as slow.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // The log and its index stay when the last connection closes, the log empty: on a full disk the
    // next process could not make them.
    connection.file_control(Some(MAIN_DB), FileControl::PersistWal(&mut 1))?;
    super::sums::register(connection)?;
    connection.pragma_update(None, "cache_size", -i64::from(cache_kib))?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "memory")
}

/// Switches to a write-ahead log. SQLite does not wait when another process is about to do the same
/// (its busy handler is not asked for this lock), so this waits.
fn switch_to_log(connection: &Connection) -> rusqlite::Result<String> {
    let until = Instant::now() + BUSY;
    loop {
        match connection.query_row("PRAGMA journal_mode = wal", [], |row| row.get(0)) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && Instant::now() < until =>
            {
                outrigger_clock::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// Durability: every commit syncs the log before it returns.
fn write_ahead(connection: &Connection) -> Outcome<()> {
    let mode = switch_to_log(connection)?;
    if mode != "wal" {
        let why = format!("its file system does not support a write-ahead log (SQLite says {mode})");
        return Err(refuse(ErrorKind::Invalid, why));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    let page_bytes: u32 =
        connection
            .query_row("SELECT CAST(page_size AS INTEGER) FROM pragma_page_size", [], |row| row.get(0))?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_BYTES / page_bytes.max(512))?;
    connection.pragma_update(None, "journal_size_limit", CHECKPOINT_BYTES * 4)?;
    Ok(())
}

/// Makes the database at `path`.
pub(super) fn create(path: &Path, key: Option<&Key>) -> Result<()> {
    let what = format!("creating metadata database {}", path.display());
    let exists = || Error::new(ErrorKind::Exists, format!("{what}: it exists already"));
    if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Err(exists());
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).explain(&what)?;
    settle(&mut connection, WRITER_CACHE_KIB, key).explain(&what)?;
    // Before the first page is written; later they have no effect.
    connection.pragma_update(None, "page_size", PAGE_BYTES).explain(&what)?;
    connection.pragma_update(None, "auto_vacuum", "incremental").explain(&what)?;
    write_ahead(&connection).explain(&what)?;
    let made = (|| -> Outcome<bool> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Two processes may have found the file absent; the second one finds the first one's schema
        // here.
        if transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))? > 0 {
            return Ok(false);
        }
        transaction.execute_batch(include_str!("schema.sql"))?;
        let (mode, uid, gid) = root_attributes();
        let digest = super::row::traits_digest(mode, uid, gid, &None);
        transaction
            .execute("INSERT INTO traits VALUES (0, ?1, ?2, ?3, ?4, NULL)", (digest, mode, uid, gid))?;
        transaction.execute(
            "INSERT INTO inode VALUES (?1, 1, 0, 1, 1, 0, 0, 0, 0, NULL, NULL, NULL)",
            [ROOT_INODE as i64],
        )?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()?;
        Ok(true)
    })()
    .explain(&what)?;
    if made { Ok(()) } else { Err(exists()) }
}

/// True when this database has never stored anything: its creation was interrupted, or no client
/// has used it. A database that cannot be read is not unused.
pub(super) fn is_unused(path: &Path, key: Option<&Key>) -> bool {
    let read = || -> rusqlite::Result<bool> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        require_key(&connection, "main", key)?;
        connection.busy_timeout(BUSY)?;
        super::sums::register(&connection)?;
        if connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(true);
        }
        let sql = "SELECT next_pack = 1 AND next_sequence = 1 AND NOT EXISTS (SELECT 1 FROM pack) \
                   AND NOT EXISTS (SELECT 1 FROM dentry) FROM state";
        connection.query_row(sql, [], |row| row.get(0))
    };
    read().unwrap_or(false)
}

/// Refuses a database of another program, or of a newer version.
pub(super) fn recognise(connection: &Connection, path: &Path) -> Result<()> {
    let shown = path.display();
    let what = format!("metadata database {shown}");
    let read =
        |pragma: &str| connection.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i32>(0));
    let application = match read("application_id") {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            let why = format!(
                "{shown} is not a database, or not one of this store's key; rebuild it from the packs with `outrigger recover`"
            );
            return Err(Error::damaged(why).caused_by(error));
        }
        other => other.explain(&what)?,
    };
    if application != APPLICATION_ID {
        // Where a store is, one was made: `init` writes `store.toml` after the database.
        let tables =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
        if tables == Ok(0) {
            let why = format!(
                "{shown} is empty, and its data is lost; rebuild it from the packs with `outrigger recover`"
            );
            return Err(Error::damaged(why));
        }
        let why = format!("{shown} is a database, but not one of Outrigger's");
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    let version = read("user_version").explain(&what)?;
    if version != SCHEMA_VERSION {
        let kind = if version > SCHEMA_VERSION { ErrorKind::Newer } else { ErrorKind::Damaged };
        return Err(Error::new(
            kind,
            format!("{shown} has schema version {version}, this program knows version {SCHEMA_VERSION}"),
        ));
    }
    Ok(())
}
