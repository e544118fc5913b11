//! Mounts on hosts of a real cluster (`make test-cluster`), with metadata in its PostgreSQL and
//! packs in its pool or bucket. Between them things fail: cables are pulled, OSDs and servers are
//! killed, room runs out. Without a cluster the tests are skipped, and say so.
//!
//! After each test all acknowledged data is there, `check --read-data` finds nothing, and no lock
//! is left.

mod cables;
mod copies;
mod full;
mod histories;
mod readers;
mod servers;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Place, Said};

/// The cluster. Tests may break parts of it.
struct Cluster {
    database: String,
    pool: String,
    bucket: String,
}

/// A store on the cluster, with its own schema and place for packs.
struct Site {
    database: String,
    schema: String,
}

/// A host of the cluster: commands run in its network namespace. Dropping it unmounts its store.
struct Host {
    name: String,
    place: Place,
    url: String,
    child: Option<Child>,
}

impl Cluster {
    /// The cluster. `None`, with a line that says so, if there is none or no part of it may be
    /// broken.
    fn here() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let here = || {
            variable("OUTRIGGER_TEST_FAULTS")?;
            Some(Self {
                database: variable("OUTRIGGER_TEST_POSTGRES")?,
                pool: variable("OUTRIGGER_TEST_RADOS")?,
                bucket: variable("OUTRIGGER_TEST_S3")?,
            })
        };
        let here = here();
        if here.is_none() {
            outrigger_workload::skipped!(
                "no cluster with PostgreSQL, a pool and a bucket, parts of which may be broken (make test-cluster)"
            );
        }
        here
    }

    /// A name that is used nowhere else on the cluster.
    fn fresh() -> String {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        format!("test_{now}_{}", std::process::id())
    }

    /// A new store with its packs in its own place in the pool.
    fn in_pool(&self) -> Site {
        self.store(&self.pool)
    }

    /// A new store with its packs below this URL.
    fn store(&self, packs: &str) -> Site {
        let site = Site { database: self.database.clone(), schema: Self::fresh() };
        let packs = packs.replacen('?', &format!("/{}?", site.schema), 1);
        site.host("c3").done(&["init", "--packs", &packs]);
        site
    }
}

impl Site {
    /// A host that has not mounted the store yet.
    fn host(&self, name: &str) -> Host {
        let url = format!("{}?schema={}&sslmode=disable", self.database, self.schema);
        Host { name: name.to_owned(), place: Place::empty(), url, child: None }
    }

    fn mount(&self, name: &str) -> Host {
        let mut host = self.host(name);
        host.mount();
        host
    }

    fn sql(&self, sql: &str) -> String {
        let url = format!("{}?sslmode=disable", self.database);
        let output =
            Command::new("psql").args(["-X", "-q", "-A", "-t", "-d", &url, "-c", sql]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Checks that the store is sound and that no lock is left.
    #[track_caller]
    fn check(&self, host: &Host) {
        host.done(&["check", "--read-data"]);
        // A client that renews its lease holds locks for a moment.
        wait_until("locks are gone", || {
            self.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0"
        });
    }
}

impl Host {
    fn command(&self, args: &[&str]) -> Command {
        self.command_by(&[], args)
    }

    /// A command on this host that `by` runs.
    fn command_by(&self, by: &[&str], args: &[&str]) -> Command {
        let namespace = format!("--net=/run/netns/outrigger-{}", self.name);
        let mut command = Command::new("nsenter");
        command
            .arg(namespace)
            .args(by)
            .arg(env!("CARGO_BIN_EXE_outrigger"))
            .args(args)
            .current_dir(self.place.path(""));
        command.env("OUTRIGGER_STORE", &self.url).env("OUTRIGGER_CACHE", self.place.path("cache"));
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// The output of `status`, within a minute.
    #[track_caller]
    fn status(&self) -> serde_json::Value {
        let mut command = self.command_by(&["timeout", "--kill-after=5", "60"], &["status", "--json"]);
        let said = Said::from(command.output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.json()
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    fn mount(&mut self) {
        self.mount_with(&[]);
    }

    /// As `mount`, with options.
    fn mount_with(&mut self, options: &[&str]) {
        fs::create_dir_all(self.place.path("mnt")).unwrap();
        let said = File::options().create(true).append(true).open(self.place.path("said")).unwrap();
        let mut command = self.command(&[&["mount", "--foreground", "mnt"], options].concat());
        let mut child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        let is_mounted = || {
            let mounted =
                fs::metadata(self.path("")).map(|mounted| std::os::unix::fs::MetadataExt::dev(&mounted));
            mounted.is_ok_and(|mounted| {
                mounted != std::os::unix::fs::MetadataExt::dev(&fs::metadata(self.place.path("")).unwrap())
            })
        };
        wait_until("it is mounted", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", self.said());
            is_mounted()
        });
        self.child = Some(child);
    }

    /// Unmounts as its user would.
    fn unmount(&mut self) {
        self.done(&["unmount", "mnt"]);
        let _ = self.child.take().unwrap().wait();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    /// The messages of the mount.
    fn said(&self) -> String {
        fs::read_to_string(self.place.path("said")).unwrap()
    }

    /// Writes a file. When this returns, the file is durable and visible on other hosts.
    fn synced(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let ended = self.sync_beside(name, bytes).wait()?;
        fs::remove_file(self.place.path(name))?;
        if ended.success() { Ok(()) } else { Err(std::io::Error::other(format!("writing it: {ended}"))) }
    }

    /// As `synced`, by a process that need not end. The test itself must not hold the file open: a
    /// child that it starts closes inherited files, and waits if they cannot be stored. Then a
    /// command that is to restart a server would start only after the operation has given up.
    fn sync_beside(&self, name: &str, bytes: &[u8]) -> Child {
        fs::write(self.place.path(name), bytes).unwrap();
        let (from, to) = (self.place.path(name), self.path(name));
        let copies = [format!("if={}", from.display()), format!("of={}", to.display())];
        Command::new("dd").args(copies).args(["conv=fsync", "bs=1M", "status=none"]).spawn().unwrap()
    }

    #[track_caller]
    fn must_read(&self, name: &str, bytes: &[u8]) {
        let found = fs::read(self.path(name)).unwrap();
        assert!(found == bytes, "{name} on {}: {} bytes of {}", self.name, found.len(), bytes.len());
    }

    /// Pulls its cable, or plugs it in again.
    fn cable(&self, state: &str) {
        let link = format!("ov-{}", self.name);
        assert!(Command::new("ip").args(["link", "set", &link, state]).status().unwrap().success());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.cable("up");
        let Some(mut child) = self.child.take() else { return };
        let _ = Command::new("umount").arg("-l").arg(self.place.path("mnt")).stderr(Stdio::null()).status();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A command of Ceph's.
fn ceph(program: &str, args: &[&str]) -> String {
    let conf = format!("{}/ceph.conf", std::env::var("OUTRIGGER_CLUSTER").unwrap());
    let output = limited(60, program, &["-c", &conf]).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program that is ended when it takes longer than so many seconds.
fn limited(secs: u32, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &secs.to_string(), program]).args(args).stdin(Stdio::null());
    command
}

/// Looks again and again, for three minutes at most.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(180);
    while !is_so() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
