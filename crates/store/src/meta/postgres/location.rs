//! The location of a PostgreSQL store: `postgres://user@host:port/database?schema=NAME`, with
//! several servers `host:port,host:port`.
//!
//! Parts missing in the URL come from the environment, as for PostgreSQL's own programs: `PGUSER`,
//! `PGHOST`, `PGPORT`, `PGDATABASE`, `PGSSLMODE`, `PGSSLROOTCERT`. A password comes from
//! `PGPASSWORD` or the password file alone: URLs end up in lists of processes and in logs.

mod parse;

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Context as _, Error, ErrorKind, Result};

/// How a connection is secured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsMode {
    /// Never.
    Disable,
    /// If the server offers it, without checking its identity. For connections that stay on the
    /// machine.
    Prefer,
    /// Always, without checking the server's identity.
    Require,
    /// Always, and the server's certificate must be for its name and from an authority of this
    /// machine or of `sslrootcert`.
    VerifyFull,
}

/// How far this host trusts packs of other clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// It relies on them once it has compared them with their footers.
    Verify,
    /// It relies on their footers alone.
    Trust,
}

/// The address of one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// A name or address, or a directory with the server's socket.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Address {
    /// True when the server is reached through a socket in the directory `host`.
    pub(super) fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// True when the connection stays on this machine.
    fn is_local(&self) -> bool {
        self.is_socket() || matches!(self.host.as_str(), "localhost" | "127.0.0.1" | "::1")
    }
}

/// The metadata of a store in a schema of a PostgreSQL database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The servers that may have it, at least one. The first suitable one is used
    /// ([`Location::primary`]).
    pub servers: Vec<Address>,
    /// Skip a server that is read-only, such as a standby.
    pub primary: bool,
    /// The role to log in as.
    pub user: String,
    /// The database.
    pub database: String,
    /// The schema in it that has the store's tables.
    pub schema: String,
    /// How to secure the connection.
    pub tls: TlsMode,
    /// Authorities to trust instead of the machine's.
    pub root_certificates: Option<PathBuf>,
    /// A pooler in between gives every transaction to any server process: then nothing may be kept
    /// in one.
    pub pooled: bool,
    /// Connections at most.
    pub connections: usize,
    /// How long to wait for a server that is away before an operation fails.
    pub patience: Duration,
    /// Whether packs of other clients are compared with their data before anything relies on them.
    pub others: Others,
}

/// The schema, if the URL names none.
const SCHEMA: &str = "outrigger";
/// Connections, if the URL does not say.
const CONNECTIONS: usize = 8;
/// How long to wait for a server, if the URL does not say: as long as a lease lasts.
const PATIENCE: Duration = Duration::from_secs(60);
/// Names in PostgreSQL are at most this long, bytes.
pub(super) const NAME_MAX: usize = 63;
const HELP: &str = "use postgres://user@host:port/database?schema=NAME";

/// True for text that is meant as the URL of a PostgreSQL database.
pub fn is_postgres_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("the store's URL: {what}; {HELP}"))
}

impl Location {
    /// Reads a URL, and the environment for missing parts.
    ///
    /// # Errors
    /// `Invalid`, with the right form. A password is refused, and not repeated in the message.
    pub fn parse(url: &str) -> Result<Self> {
        Self::parse_with(url, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// True when all connections stay on this machine.
    fn is_local(&self) -> bool {
        self.servers.iter().all(Address::is_local)
    }

    /// The password, if there is one for this place on one of its servers.
    pub(super) fn password(&self, server: &Address) -> Result<Option<String>> {
        if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
            return Ok(Some(password));
        }
        let file = match std::env::var_os("PGPASSFILE") {
            Some(file) => PathBuf::from(file),
            None => match std::env::var_os("HOME") {
                Some(home) => Path::new(&home).join(".pgpass"),
                None => return Ok(None),
            },
        };
        let metadata = match std::fs::metadata(&file) {
            Ok(metadata) => metadata,
            Err(_) => return Ok(None),
        };
        if metadata.mode() & 0o077 != 0 {
            let why = format!("password file {} can be read by others; chmod 600 it", file.display());
            return Err(Error::new(ErrorKind::Denied, why));
        }
        let text = std::fs::read_to_string(&file).context(|| format!("password file {}", file.display()))?;
        let host = if server.is_socket() { "localhost" } else { server.host.as_str() };
        Ok(find_password(&text, [host, &server.port.to_string(), &self.database, &self.user]))
    }
}

/// As a URL, which never has a password.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@", encode(&self.user))?;
        let joined =
            |text: &dyn Fn(&Address) -> String| self.servers.iter().map(text).collect::<Vec<_>>().join(",");
        if self.servers.iter().any(Address::is_socket) {
            let (hosts, ports) = (joined(&|one| one.host.clone()), joined(&|one| one.port.to_string()));
            write!(f, "/{}?host={hosts}&port={ports}&", encode(&self.database))?;
        } else {
            let servers = joined(&|one| {
                let host = if one.host.contains(':') { format!("[{}]", one.host) } else { one.host.clone() };
                format!("{host}:{}", one.port)
            });
            write!(f, "{servers}/{}?", encode(&self.database))?;
        }
        write!(f, "schema={}", encode(&self.schema))
    }
}

fn password_refused() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the store's URL has a password, which others would see in lists of processes and in logs; take it out, and set \
         PGPASSWORD or write it to ~/.pgpass (host:port:database:user:password, mode 600)",
    )
}

fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The first line of a password file that matches host, port, database and user.
fn find_password(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = password_fields(line);
        let [host, port, database, user, password] = <[String; 5]>::try_from(fields).ok()?;
        let fits = [host, port, database, user]
            .iter()
            .zip(wanted)
            .all(|(field, wanted)| field == "*" || field == wanted);
        fits.then_some(password)
    })
}

/// Fields end at colons, unless a backslash stands before; the fifth one goes to the end of the
/// line.
fn password_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let last = fields.len() - 1;
        match character {
            '\\' => fields[last].extend(characters.next()),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields[last].push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location> {
        Location::parse_with(url, |name| (name == "PGUSER").then(|| "me".to_owned()))
    }

    /// The only server.
    fn only(location: &Location) -> (&str, u16) {
        let [server] = &location.servers[..] else { panic!("{location}") };
        (server.host.as_str(), server.port)
    }

    #[test]
    fn urls_say_where() {
        let location = parse("postgres://you@db.example:5433/data?schema=s%2F1").unwrap();
        assert_eq!((only(&location), location.primary), (("db.example", 5433), false));
        assert_eq!((location.user.as_str(), location.database.as_str()), ("you", "data"));
        assert_eq!((location.schema.as_str(), location.tls), ("s/1", TlsMode::VerifyFull));
        assert_eq!(location.to_string(), "postgres://you@db.example:5433/data?schema=s%2F1");
        let socket = parse("postgresql:///data?host=/run/postgresql&pooling=transaction").unwrap();
        assert_eq!((only(&socket), socket.user.as_str()), (("/run/postgresql", 5432), "me"));
        assert_eq!((socket.tls, socket.pooled), (TlsMode::Prefer, true));
        assert_eq!(socket.others, Others::Verify);
        assert_eq!(socket.patience, PATIENCE);
        let patient = parse("postgres://u@h/d?patience=300").unwrap();
        assert_eq!(patient.patience, Duration::from_secs(300));
        assert_eq!(parse("postgres://u@h/d?packs=trust").unwrap().others, Others::Trust);
        assert_eq!(parse(&socket.to_string()).unwrap().servers, socket.servers);
        let six = parse("postgres://u@[::1]:6000").unwrap();
        assert_eq!((only(&six), six.database.as_str()), (("::1", 6000), "u"));
        assert_eq!(only(&parse("postgres://u@%2Ftmp%2Fpg/d").unwrap()), ("/tmp/pg", 5432));
    }

    #[test]
    fn several_servers_are_one_primary_unless_it_is_said() {
        for (url, servers, primary) in [
            ("postgres://u@a,b:5433/d", vec![("a", 5432), ("b", 5433)], true),
            ("postgres://u@[::1]:1,[::2]/d", vec![("::1", 1), ("::2", 5432)], true),
            ("postgres://u@/d?host=/one,/two&port=7", vec![("/one", 7), ("/two", 7)], true),
            ("postgres://u@/d?host=/one,/two&port=7,8", vec![("/one", 7), ("/two", 8)], true),
            ("postgres://u@a,b/d?target_session_attrs=any", vec![("a", 5432), ("b", 5432)], false),
            ("postgres://u@a/d?target_session_attrs=read-write", vec![("a", 5432)], true),
        ] {
            let location = parse(url).unwrap();
            let found: Vec<_> = location.servers.iter().map(|one| (one.host.as_str(), one.port)).collect();
            assert_eq!((found, location.primary), (servers, primary), "{url}");
            assert_eq!(parse(&location.to_string()).unwrap().servers, location.servers, "{url}");
        }
        // Connections to the second server use the network.
        assert_eq!(parse("postgres://u@localhost,b/d").unwrap().tls, TlsMode::VerifyFull);
    }

    #[test]
    fn what_cannot_be_is_refused_and_says_what_to_do() {
        for (url, says) in [
            ("postgres://u:secret@h/d", "PGPASSWORD"),
            ("postgres://u@h/d?password=secret", "~/.pgpass"),
            ("postgres://u@h:port/d", "`port` is no port"),
            ("postgres://u@h/d?sslmode=maybe", "verify-full"),
            ("postgres://u@h/d?color=red", "`color`"),
            ("postgres://u@h/d?schema=", "1 to 63"),
            ("postgres://u@h/%zz", "%-escape"),
            ("postgres://u@h/d?connections=0", "1 to 64"),
            ("postgres://u@h/d?patience=0", "1 to 3600"),
            ("postgres://u@h/d?packs=maybe", "verify or trust"),
            ("postgres://u@h,/d", "has no name"),
            ("postgres://u@a,b,c/d?port=1,2", "2 ports of 3 servers"),
            ("postgres://u@a,b/d?target_session_attrs=standby", "read-write or any"),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn password_files_are_read_as_libpq_reads_them() {
        let file = "# comment\nother:*:*:*:no\ndb:5432:data:me:a\\:b\\\\c\n*:*:*:*:rest:of:line\n";
        assert_eq!(find_password(file, ["db", "5432", "data", "me"]).unwrap(), "a:b\\c");
        assert_eq!(find_password(file, ["x", "1", "y", "z"]).unwrap(), "rest:of:line");
        assert_eq!(find_password("db:1:d:u", ["db", "1", "d", "u"]), None);
    }
}
