//! PgBouncer before a server, where Debian's package `pgbouncer` is installed.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{DATABASE, PORT, Server, USER, as_owner, url_in};

/// A running PgBouncer, which gives each transaction any of a few server processes (`pool_mode =
/// transaction`).
pub struct Pooler {
    dir: PathBuf,
    /// A shell that ends PgBouncer when its input ends: with this value, or with this process.
    shell: Child,
}

/// Why there is no pooler.
pub const NO_POOLER: &str = "PgBouncer is not installed (apt-get install pgbouncer)";

/// Server processes that clients share: fewer than the clients at one time.
const PROCESSES: usize = 4;

impl Pooler {
    /// The pooler of [`Server::shared`] that all tests of a process share; `None`, with a line that
    /// says so, if it or a server is not installed.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Pooler>> = OnceLock::new();
        let server = Server::shared()?;
        let pooler = SHARED.get_or_init(|| Self::start(server));
        if pooler.is_none() {
            crate::skipped!("{NO_POOLER}");
        }
        pooler.as_ref()
    }

    /// Starts one; `None` when it is not installed.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start(server: &Server) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].map(Path::new);
        let program = program.into_iter().find(|program| program.exists())?;
        match Self::make(server, program) {
            Ok(pooler) => Some(pooler),
            Err(error) => panic!("PgBouncer does not start: {error}"),
        }
    }

    fn make(server: &Server, program: &Path) -> io::Result<Self> {
        let dir = server.dir().join("pooler");
        fs::create_dir(&dir)?;
        let (below, here) = (server.dir().display(), dir.display());
        let config = format!(
            "[databases]\n* = host={below} port={PORT}\n[pgbouncer]\nlisten_port = {PORT}\nunix_socket_dir = {here}\nauth_type = trust\n\
             auth_file = {here}/users\nlogfile = {here}/log\npool_mode = transaction\ndefault_pool_size = {PROCESSES}\nmax_client_conn = 500\n"
        );
        fs::write(dir.join("config"), config)?;
        fs::write(dir.join("users"), format!("\"{USER}\" \"\"\n"))?;
        server.give(&dir)?;
        let script = "\"$0\" -q \"$1/config\" & pid=$!; cat > /dev/null; kill $pid";
        let shell = as_owner(Command::new("sh").args(["-c", script]).arg(program).arg(&dir), server.owner)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pooler = Self { dir, shell };
        let until = Instant::now() + Duration::from_secs(20);
        while server.psql_at(&pooler.dir, USER, "SELECT 1").is_err() {
            if Instant::now() > until {
                let log = fs::read_to_string(pooler.dir.join("log")).unwrap_or_default();
                return Err(io::Error::other(format!("it does not answer; its log says:\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(pooler)
    }

    /// The URL of a store in a schema of the server, through the pooler.
    pub fn url(&self, schema: &str) -> String {
        format!("{}&pooling=transaction", url_in(&self.dir, USER, DATABASE, schema))
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
