//! The hosts of the soak: mounts that are killed or fenced and come back, and commands that are
//! killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outrigger_workload::Rng;
use outrigger_workload::postgres::Server;

use super::model::Found;
use crate::run::{Place, Said};
use crate::shared::{Host, command};

const SCHEMA: &str = "soak";

/// The database, and where commands run.
pub struct Ground {
    pub server: Server,
    roles: AtomicU64,
    /// A killed client's lease sometimes lasts, and collectors wait for it.
    leases_last: bool,
}

impl Ground {
    pub fn new(leases_last: bool) -> Option<Self> {
        Some(Self { server: Server::start("fsync = off")?, roles: AtomicU64::new(0), leases_last })
    }

    /// A URL with its own role, by which the server processes of its client can be found.
    pub fn url(&self) -> (String, String) {
        let role = format!("r{}", self.roles.fetch_add(1, Ordering::SeqCst));
        self.server.sql(&format!("CREATE ROLE {role} SUPERUSER LOGIN"));
        (self.server.url_as(&role, SCHEMA), role)
    }

    /// Waits until the server does nothing for a killed process. It may still execute what the
    /// process had sent.
    fn has_gone(&self, role: &str) {
        let working = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'");
        for _ in 0..3000 {
            if self.server.sql(&working) == "0" {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server still works for {role}, whose process is gone");
    }

    /// Ends the session of a process, as if its lease were over.
    pub fn expire(&self, process: u32) {
        self.server.sql(&format!(
            "UPDATE {SCHEMA}.session SET lease_until = 1, lease_secs = 0 WHERE process = {process}"
        ));
    }

    fn may_expire(&self, process: u32, rng: &mut Rng) {
        if !self.leases_last || rng.permille(900) {
            self.expire(process);
        }
    }

    /// Ends all sessions in this way.
    pub fn expire_all(&self) {
        self.server.sql(&format!("UPDATE {SCHEMA}.session SET lease_until = 1, lease_secs = 0"));
    }

    /// Runs a statement, in which `SCHEMA` stands for the store's, and returns its output.
    pub fn sql(&self, statement: &str) -> String {
        self.server.sql(&statement.replace("SCHEMA", SCHEMA))
    }

    /// A number of rows in the database.
    pub fn count(&self, what: &str) -> u64 {
        self.sql(&format!("SELECT count(*) FROM {what}")).parse().unwrap()
    }
}

/// A host where commands run.
pub struct Shell<'a> {
    pub ground: &'a Ground,
    pub place: Place,
    url: String,
}

/// How a command ended.
pub enum End {
    Done(Said),
    /// Killed; the outcome is unknown.
    Killed,
}

impl<'a> Shell<'a> {
    pub fn new(ground: &'a Ground) -> Self {
        Self { ground, place: Place::empty(), url: ground.url().0 }
    }

    pub fn run(&self, args: &[&str]) -> Said {
        command(&self.place, &self.url, args).output().unwrap().into()
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    /// Runs a command, and now and then kills it while it runs.
    pub fn run_or_kill(&self, args: &[&str], rng: &mut Rng) -> End {
        if !rng.permille(120) {
            return End::Done(self.run(args));
        }
        let (url, role) = self.ground.url();
        let mut command = command(&self.place, &url, args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.skewed(400)));
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        let process = child.id();
        let output = child.wait_with_output().unwrap();
        if ended.is_some() {
            return End::Done(output.into());
        }
        self.ground.has_gone(&role);
        if output.status.success() {
            return End::Done(output.into());
        }
        self.ground.may_expire(process, rng);
        End::Killed
    }

    /// The content of a name in the store, as a command reads it.
    pub fn look(&self, name: &str) -> Found {
        let to = self.place.path("looked");
        let _ = fs::remove_dir_all(&to);
        let _ = fs::remove_file(&to);
        let said = self.run(&["get", name, to.to_str().unwrap()]);
        if said.code != 0 {
            assert!(said.err.contains("is not in the store"), "get {name}: {}", said.err);
            return None;
        }
        read(&to).unwrap()
    }
}

/// The content of a path: a file, or a directory of files.
///
/// # Errors
/// When it cannot be read. A missing path is no error.
pub fn read(path: &Path) -> std::io::Result<Found> {
    let is_gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if kind.is_file() {
        return Ok(Some([(String::new(), fs::read(path)?)].into()));
    }
    let mut found = std::collections::BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        found.insert(entry.file_name().into_string().unwrap(), fs::read(entry.path())?);
    }
    Ok(Some(found))
}

/// A mount that is killed now and then, and comes back.
pub struct Mount<'a> {
    ground: &'a Ground,
    pub root: PathBuf,
    /// Odd while the mount is being killed or is away. Operations may fail then.
    incarnation: AtomicU64,
    host: Mutex<(Host, String)>,
}

impl<'a> Mount<'a> {
    pub fn new(ground: &'a Ground) -> Self {
        let (url, role) = ground.url();
        let host = Host::new(url, &[]);
        Self { ground, root: host.path(""), incarnation: AtomicU64::new(0), host: Mutex::new((host, role)) }
    }

    /// Waits until the mount is there, and returns its incarnation.
    pub fn up(&self) -> u64 {
        loop {
            let incarnation = self.incarnation.load(Ordering::SeqCst);
            if incarnation.is_multiple_of(2) {
                return incarnation;
            }
            self.settled();
        }
    }

    pub fn is_still(&self, incarnation: u64) -> bool {
        self.incarnation.load(Ordering::SeqCst) == incarnation
    }

    /// Waits for the end of a kill, and of all that the server still did for the dead process.
    pub fn settled(&self) {
        drop(self.host.lock().unwrap());
    }

    pub fn kill(&self, rng: &mut Rng) {
        let mut held = self.host.lock().unwrap();
        let (host, role) = &mut *held;
        self.incarnation.fetch_add(1, Ordering::SeqCst);
        let process = host.child.id();
        if rng.permille(300) {
            // As if it was cut off for longer than its lease: from here on it may commit nothing.
            // The process is not stopped: a child of this process closes inherited files in the
            // mount, and would wait for it.
            self.ground.expire(process);
            std::thread::sleep(Duration::from_millis(rng.below(300)));
        }
        host.child.kill().unwrap();
        host.child.wait().unwrap();
        assert!(Command::new("umount").arg("-l").arg(&self.root).status().unwrap().success());
        self.ground.has_gone(role);
        self.ground.may_expire(process, rng);
        (host.url, *role) = self.ground.url();
        host.mount_again();
        self.incarnation.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends it as a user does.
    pub fn unmount(self) {
        let (mut host, _) = self.host.into_inner().unwrap();
        host.done(&["unmount", "mnt"]);
        assert!(host.child.wait().unwrap().success(), "{}", host.said());
    }
}
