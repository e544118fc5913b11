//! A real PostgreSQL for tests. It is made in its own directory, reached by a socket there, and
//! gone with the test.
//!
//! Nothing is installed: the server of Debian's package `postgresql` is used if it is there, else
//! [`Server::start`] says why not. The superuser must not run a server, so root runs it as
//! `postgres` or `nobody`. A watchdog process waits for the end of the test's process, however that
//! comes, and then ends the server and removes the directory.

mod authority;
mod pooler;
mod proxy;
mod standby;

pub use authority::{Authority, NO_OPENSSL};
pub use pooler::{NO_POOLER, Pooler};
pub use proxy::{Piece, Proxy};

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The database's superuser.
const USER: &str = "tester";
/// The database that every server has.
const DATABASE: &str = "postgres";
/// Names the socket's file.
const PORT: u16 = 5432;

/// A running server, and one of its databases.
pub struct Server {
    dir: PathBuf,
    binaries: PathBuf,
    owner: Option<(u32, u32)>,
    database: String,
    process: Mutex<Option<Child>>,
    /// The end of its input tells it that this process is over. None for a database of
    /// [`Server::shared`].
    watchdog: Option<Child>,
}

/// The newest installed server's programs; `None`, with a line that says so, if there are none.
fn installed() -> Option<PathBuf> {
    let found = binaries();
    if found.is_none() {
        crate::skipped!("PostgreSQL is not installed (apt-get install postgresql)");
    }
    found
}

fn binaries() -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            let path = entry.path().join("bin");
            path.join("initdb").exists().then_some((version, path))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// The user that runs the server instead of the superuser.
fn owner() -> io::Result<Option<(u32, u32)>> {
    let me = fs::metadata("/proc/self")?;
    if std::os::unix::fs::MetadataExt::uid(&me) != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let find = |name: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
    };
    find("postgres").or_else(|| find("nobody")).map(Some).ok_or_else(|| {
        io::Error::other("neither a user postgres nor a user nobody, and root must not run PostgreSQL")
    })
}

impl Server {
    /// The one server that all tests of a process share; `None`, with a line that says so, if
    /// PostgreSQL is not installed. Its commits are not durable.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        installed()?;
        SHARED
            .get_or_init(|| {
                Self::start("fsync = off\nsynchronous_commit = on\nautovacuum = off\njit = off\n")
            })
            .as_ref()
    }

    /// A new database of the shared server, which is dropped with the value. It is for tests that
    /// look at locks, because it does not show those of other tests.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn own_database() -> Option<Self> {
        let shared = Self::shared()?;
        let database = format!("d{}", shared.fresh());
        shared.sql(&format!("CREATE DATABASE {database}"));
        let (dir, binaries) = (shared.dir.clone(), shared.binaries.clone());
        Some(Self { dir, binaries, owner: shared.owner, database, process: Mutex::default(), watchdog: None })
    }

    /// Starts a server with more lines of configuration; `None`, with a line that says so, if
    /// PostgreSQL is not installed. It is for tests that end the server or change settings of a
    /// whole server; others share one.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start(config: &str) -> Option<Self> {
        Self::start_with(|_| Ok(config.to_owned()))
    }

    /// As [`Server::start`], if the lines depend on the server's directory. `config` may put files
    /// there, which become the server's own.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start_with(config: impl FnOnce(&Path) -> io::Result<String>) -> Option<Self> {
        let binaries = installed()?;
        match Self::make(binaries, config) {
            Ok(server) => Some(server),
            Err(error) => panic!("PostgreSQL does not start: {error}"),
        }
    }

    fn make(binaries: PathBuf, config: impl FnOnce(&Path) -> io::Result<String>) -> io::Result<Self> {
        let (server, config) = Self::lay(binaries, config)?;
        let template = Self::template(&server.binaries)?.data();
        server.carry_out(Command::new("cp").arg("-a").arg(template).arg(server.data()))?;
        server.configure(&config)?;
        server.run()?;
        Ok(server)
    }

    /// The result of `initdb`, made once per process, because a copy takes a tenth of the time. It
    /// ends with the process.
    fn template(binaries: &Path) -> io::Result<&'static Self> {
        static TEMPLATE: OnceLock<Result<Server, String>> = OnceLock::new();
        let make = || {
            let (server, _) = Self::lay(binaries.to_owned(), |_| Ok(String::new()))?;
            let mut initdb = Command::new(binaries.join("initdb"));
            initdb.args(["-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"]);
            server.carry_out(initdb.arg(server.data()))?;
            Ok(server)
        };
        let made = TEMPLATE.get_or_init(|| make().map_err(|error: io::Error| error.to_string()));
        made.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    /// A directory for a server, and the watchdog that removes it.
    fn lay(
        binaries: PathBuf,
        config: impl FnOnce(&Path) -> io::Result<String>,
    ) -> io::Result<(Self, String)> {
        let owner = owner()?;
        // A socket's path must be short.
        let dir = (0..u32::MAX)
            .map(|number| std::env::temp_dir().join(format!("otr-pg-{}-{number}", std::process::id())))
            .find_map(|dir| match fs::create_dir(&dir) {
                Ok(()) => Some(Ok(dir)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                Err(error) => Some(Err(error)),
            })
            .ok_or_else(|| io::Error::other("no free directory"))??;
        let config = config(&dir)?;
        give(&dir, owner)?;
        let script = "cat > /dev/null; read pid < \"$0/data/postmaster.pid\" && kill -QUIT $pid 2> /dev/null; \
                      for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $pid 2> /dev/null || break; sleep 0.2; done; rm -rf \"$0\"";
        let watchdog = as_owner(Command::new("sh").args(["-c", script]).arg(&dir), owner)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let (database, process, watchdog) = (DATABASE.to_owned(), Mutex::default(), Some(watchdog));
        Ok((Self { dir, binaries, owner, database, process, watchdog }, config))
    }

    /// Runs a program of PostgreSQL's as the server's owner.
    fn carry_out(&self, command: &mut Command) -> io::Result<()> {
        let output = as_owner(command, self.owner).current_dir("/").output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(())
    }

    /// Adds to its configuration; later settings replace earlier ones.
    fn configure(&self, config: &str) -> io::Result<()> {
        let settings = format!(
            "\nlisten_addresses = ''\nport = {PORT}\nunix_socket_directories = '{}'\nmax_connections = 1000\n\
             shared_buffers = 128MB\nmax_wal_size = 1GB\nlogging_collector = off\n\
             dynamic_shared_memory_type = mmap\n{config}\n",
            self.dir.display()
        );
        let file = self.data().join("postgresql.conf");
        fs::write(&file, fs::read_to_string(&file)? + &settings)
    }

    /// Makes the server's user the owner of a directory and the files in it.
    fn give(&self, dir: &Path) -> io::Result<()> {
        give(dir, self.owner)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// The directory of its socket.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts it again after [`Server::kill`], and waits until it answers.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub fn run(&self) -> io::Result<()> {
        self.spawn()?;
        let until = Instant::now() + Duration::from_secs(60);
        while self.psql(USER, "SELECT 1").is_err() {
            if Instant::now() > until {
                let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                return Err(io::Error::other(format!("it does not answer; its log says:\n{log}")));
            }
            std::thread::sleep(Duration::from_millis(50));
            // It does not start while a process of a killed one is still there.
            let ended = match &mut *self.process.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(child) => child.try_wait()?.is_some(),
                None => false,
            };
            if ended {
                self.spawn()?;
            }
        }
        Ok(())
    }

    fn spawn(&self) -> io::Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(self.binaries.join("postgres"));
        command.arg("-D").arg(self.data());
        let child = as_owner(&mut command, self.owner)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    /// Kills the server and all its processes at once, as a machine that goes down would.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&self) -> io::Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = process.take().ok_or_else(|| io::Error::other("it does not run"))?;
        let server = Pid::from_child(&child);
        // A stopped server starts no process and does not notice the end of one, so that none is
        // missed.
        kill_process(server, Signal::STOP)?;
        while !matches!(state(server), None | Some('T' | 'Z')) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // If a process ends while the list is read, others may be missing from it. So it is read
        // again, until none in it lives.
        loop {
            let mut alive = children(server);
            alive.retain(|one| !matches!(state(*one), None | Some('Z')));
            if alive.is_empty() {
                break;
            }
            for one in alive {
                // It may be gone already.
                let _ = kill_process(one, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Stops the server and all its processes, as on a sleeping machine: its kernel still takes
    /// connections and packets.
    ///
    /// # Errors
    /// When it does not run.
    pub fn stand_still(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn go_on(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let server =
            process.as_ref().map(Pid::from_child).ok_or_else(|| io::Error::other("it does not run"))?;
        kill_process(server, signal)?;
        for child in children(server) {
            // It may be gone already.
            let _ = kill_process(child, signal);
        }
        Ok(())
    }

    /// Runs a statement as `user` and returns its output, with columns divided by bars.
    ///
    /// # Errors
    /// The server's error.
    pub fn psql(&self, user: &str, sql: &str) -> io::Result<String> {
        self.psql_at(&self.dir, user, sql)
    }

    fn psql_at(&self, socket: &Path, user: &str, sql: &str) -> io::Result<String> {
        run_psql(&self.binaries, socket, user, &self.database, sql)
    }

    /// A session of psql as the superuser, which executes its standard input.
    ///
    /// # Panics
    /// When psql cannot be started.
    pub fn psql_session(&self) -> Child {
        Command::new(self.binaries.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-p", &PORT.to_string()])
            .args(["-d", &self.database, "-h"])
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start psql: {error}"))
    }

    /// As [`Server::psql`], as the superuser.
    ///
    /// # Panics
    /// On the server's error.
    pub fn sql(&self, sql: &str) -> String {
        self.psql(USER, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The number of locks that transactions and mounts hold in the database, or wait for.
    ///
    /// # Panics
    /// On the server's error.
    pub fn advisory_locks(&self) -> u64 {
        let held = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database \
                    WHERE locktype = 'advisory' AND datname = current_database()";
        self.sql(held).parse().expect("a count")
    }

    /// The URL of a store in a schema of this server.
    pub fn url(&self, schema: &str) -> String {
        self.url_as(USER, schema)
    }

    /// The same, as another user.
    pub fn url_as(&self, user: &str, schema: &str) -> String {
        url_in(&self.dir, user, &self.database, schema)
    }

    /// The URL of a store in a schema, by an address that the server listens on. It says nothing
    /// about TLS.
    pub fn url_by(&self, address: &str, user: &str, schema: &str) -> String {
        format!("postgres://{user}@{address}:{PORT}/{}?schema={schema}", self.database)
    }

    /// A name that no other test of this process has.
    pub fn fresh(&self) -> String {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        format!("t{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that was killed does not run.
        let _ = self.kill();
        let Some(watchdog) = &mut self.watchdog else {
            // It is dropped with the server at the latest.
            let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
            let _ = run_psql(&self.binaries, &self.dir, USER, DATABASE, &drop);
            return;
        };
        drop(watchdog.stdin.take());
        let _ = watchdog.wait();
    }
}

/// The letter for a process' state; `None` if there is no process.
fn state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name may contain anything.
    stat.rsplit(") ").next()?.chars().next()
}

fn children(process: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
}

/// The URL of a store that is reached by the socket in a directory.
fn url_in(dir: &Path, user: &str, database: &str, schema: &str) -> String {
    format!("postgres://{user}@/{database}?host={}&port={PORT}&schema={schema}", dir.display())
}

fn run_psql(binaries: &Path, socket: &Path, user: &str, database: &str, sql: &str) -> io::Result<String> {
    let output = Command::new(binaries.join("psql"))
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", user, "-p", &PORT.to_string()])
        .args(["-d", database, "-c", sql, "-h"])
        .arg(socket)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn give(dir: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    std::os::unix::fs::chown(dir, Some(uid), Some(gid))?;
    for entry in fs::read_dir(dir)? {
        std::os::unix::fs::chown(entry?.path(), Some(uid), Some(gid))?;
    }
    Ok(())
}

fn as_owner(command: &mut Command, owner: Option<(u32, u32)>) -> &mut Command {
    match owner {
        Some((uid, gid)) => command.uid(uid).gid(gid),
        None => command,
    }
}
