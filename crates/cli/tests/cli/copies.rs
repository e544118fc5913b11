//! Copies between stores of every kind: off one machine, back, and on as a replica; interrupted,
//! damaged, and while writers work.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger_store::testing::s3::{ACCESS_KEY, HttpFault, S3Server};
use outrigger_workload::compare_trees;
use outrigger_workload::postgres::Server;

use crate::run::{Place, Said, noise};

/// A workplace, and an object store and a database server that its commands find.
pub struct World {
    pub place: Place,
    pub s3: S3Server,
    pub server: &'static Server,
    /// The keys for buckets that its commands have: a name, and the secret.
    pub keys: [String; 2],
}

impl World {
    pub fn new() -> Option<Self> {
        let keys = [ACCESS_KEY, "secret"].map(str::to_owned);
        Some(Self { server: Server::shared()?, place: Place::empty(), s3: S3Server::start(), keys })
    }

    /// The URL of a store in a new schema.
    pub fn url(&self) -> String {
        self.server.url(&self.server.fresh())
    }

    pub fn s3_at(&self, prefix: &str) -> String {
        format!("s3://bucket/{prefix}?endpoint={}&region=here", self.s3.endpoint)
    }

    pub fn dir_at(&self, name: &str) -> String {
        format!("file:{}", self.place.path(name).display())
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        let [id, secret] = &self.keys;
        command.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
        command.env("OUTRIGGER_CACHE", self.place.path("cache"));
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    #[track_caller]
    pub fn code(&self, code: i32, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, code, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> Said {
        self.code(0, args)
    }

    /// Files of several kinds; about 3 MB.
    pub fn write_tree(&self, name: &str, seed: u64) -> PathBuf {
        for number in 0..30u64 {
            let len = (number * 17_389) as usize % 60_000;
            let path = format!("{name}/dir{}/file{number}", number % 5);
            self.place.write(path, noise(seed * 100 + number, len));
        }
        self.place.write(format!("{name}/large"), noise(seed, 2_000_000));
        self.place.write(format!("{name}/empty"), b"");
        let path = |what: &str| self.place.path(format!("{name}/{what}"));
        for (what, target) in [("link", "large"), ("broken", "nowhere")] {
            let _ = std::fs::remove_file(path(what));
            std::os::unix::fs::symlink(target, path(what)).unwrap();
        }
        let _ = std::fs::remove_file(path("second"));
        std::fs::hard_link(path("large"), path("second")).unwrap();
        self.place.path(name)
    }

    /// A store with history: versions, a snapshot, a removed file, policies, a rule.
    pub fn fill(&self, store: &str) {
        let done = |args: &[&str]| self.done(&[&["-s", store], args].concat());
        self.write_tree("first", 1);
        done(&["policy", "set", "/", "versions=3"]);
        done(&["put", "first", "--to", "/tree"]);
        self.place.write("gone", noise(77, 200_000));
        done(&["put", "gone"]);
        done(&["snapshot", "create", "one", "--tag", "kept"]);
        self.write_tree("second", 2);
        done(&["put", "second", "--to", "/tree", "--replace-source", "--no-snapshot"]);
        done(&["rm", "--no-snapshot", "gone"]);
        done(&["mv", "/tree/dir1", "/tree/moved"]);
        done(&["policy", "set", "/tree/moved", "codec=none"]);
        let rule = ["rule", "add", "up", "--on", "close", "--in", "in/*", "--out", "up/{name}"];
        done(&[&rule[..], &["--sandbox", "off", "--", "tr", "a-z", "A-Z"]].concat());
    }

    /// The listings of a store's whole content.
    #[track_caller]
    pub fn about(&self, store: &str) -> String {
        let ask = |args: &[&str]| self.done(&[&["-s", store, "--json"], args].concat()).text();
        let tree = ask(&["ls", "-lR", "/"]) + &ask(&["ls", "-lR", "--at", "one", "/"]);
        let history = ask(&["versions", "/tree/large"]) + &self.snapshots(store);
        tree + &history + &ask(&["policy", "list"])
    }

    /// The list of snapshots, without who has taken them: roles are a server's, and not copied.
    fn snapshots(&self, store: &str) -> String {
        let list = self.done(&["-s", store, "--json", "snapshot", "list"]).text();
        list.replace("\"role\":\"tester\"", "\"role\":null")
    }

    fn rules(&self, store: &str) -> String {
        self.done(&["-s", store, "--json", "rule", "list"]).text()
    }

    /// Checks that `path` in `store` has the content of `tree`.
    #[track_caller]
    pub fn holds(&self, store: &str, args: &[&str], tree: &Path) {
        let out = tempfile::tempdir().unwrap();
        let to = out.path().join("out");
        self.done(&[&["-s", store, "get"], args, &[to.to_str().unwrap()]].concat());
        assert_eq!(compare_trees(tree, &to).unwrap(), [], "{store} {args:?}");
    }
}

/// A directory, then PostgreSQL with packs in an object store, then PostgreSQL with a shared
/// directory, then a directory again.
#[test]
fn a_store_outgrows_its_machine_and_comes_back() {
    let Some(world) = World::new() else { return };
    world.done(&["-s", "a", "init", "--pack-size", "1M"]);
    world.fill("a");
    // One URL is that of a pooler which gives every transaction another connection.
    let (b, c) = (format!("{}&pooling=transaction", world.url()), world.url());
    let said = world.code(2, &["copy", "a", &b]);
    assert!(said.err.contains("--packs"), "{}", said.err);
    let report = world.done(&["copy", "a", &b, "--packs", &world.s3_at("b"), "--json"]).json();
    assert!(report["packs_copied"].as_u64().unwrap() > 4 && report["snapshots"] == 1, "{report}");
    assert_eq!(report["packs_behind"], 0, "{report}");
    let shared = world.dir_at("shared");
    let report = world.done(&["copy", &b, &c, "--packs", &shared, "--verify", "--json"]).json();
    assert_eq!(report["packs_verified"], report["packs_copied"], "{report}");
    world.done(&["copy", &c, "d"]);
    assert!(world.place.path("d/packs").exists());
    let (about, rules) = (world.about("a"), world.rules("a"));
    for store in [&b, &c, "d"] {
        assert_eq!(world.about(store), about, "{store}");
        assert_eq!(world.rules(store), rules, "{store}");
        world.holds(store, &["--at", "one", "/tree"], &world.place.path("first"));
        world.done(&["-s", store, "check", "--read-data"]);
    }
    // Data stored before is not stored again, and new data goes where the copy's packs are.
    let objects = world.s3.objects().len();
    world.write_tree("second", 2);
    world.done(&["-s", &b, "put", "second", "--to", "/again"]);
    world.holds(&b, &["/again"], &world.place.path("second"));
    let more = world.s3.objects().len() - objects;
    // Names, and the record of what the new directory mirrors.
    assert!(more <= 4, "{more} packs for what was there");
    world.place.write("new", noise(5, 300_000));
    world.done(&["-s", "d", "put", "new"]);
    world.done(&["-s", "d", "gc"]);
    world.done(&["-s", "d", "check", "--read-data"]);
}

/// Only changes are copied, and data that the source has reclaimed is removed. A copy that was
/// written to is left alone.
#[test]
fn a_copy_in_postgresql_is_brought_up_to_date() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.url(), world.url());
    world.done(&["-s", &a, "init", "--packs", &world.dir_at("packs-a"), "--pack-size", "1M"]);
    world.fill(&a);
    world.place.write("junk", noise(9, 3_000_000));
    world.done(&["-s", &a, "put", "junk"]);
    let copy = ["copy", &a, &b, "--packs", &world.dir_at("packs-b"), "--json"];
    world.done(&copy);
    assert_eq!(world.about(&b), world.about(&a));
    // Nothing changed: no row is written again, or even locked.
    let schema = b.rsplit_once("schema=").unwrap().1;
    let written = ["inode", "dentry", "inode_old", "version", "pack"].map(|table| {
        format!(
            "(SELECT string_agg(concat(xmin, ' ', xmax, ' ', ctid), ',' ORDER BY ctid) FROM {schema}.{table})"
        )
    });
    let written = || world.server.sql(&format!("SELECT md5(concat({}))", written.join(", ")));
    let before = written();
    let report = world.done(&copy[..3]).text();
    assert!(report.starts_with("copied 0 packs"), "{report}");
    assert_eq!(written(), before);
    // Then few changes are copied.
    world.place.write("second/new", noise(8, 400_000));
    world.done(&["-s", &a, "put", "second", "--to", "/tree"]);
    world.done(&["-s", &a, "snapshot", "create", "two"]);
    let report = world.done(&copy).json();
    assert!(report["packs_copied"].as_u64().unwrap() <= 4, "{report}");
    world.holds(&b, &["/tree"], &world.place.path("second"));
    world.done(&["-s", &a, "snapshot", "delete", "one"]);
    world.done(&["-s", &a, "rm", "junk"]);
    world.done(&["-s", &a, "gc"]);
    let report = world.done(&copy).json();
    assert!(report["packs_removed"].as_u64().unwrap() >= 1, "{report}");
    world.done(&["-s", &b, "check", "--read-data"]);
    assert_eq!(world.snapshots(&b), world.snapshots(&a));

    // A pack that the copy has lost is copied again.
    let packs = world.place.path("packs-b/packs");
    let lost = std::fs::read_dir(packs)
        .unwrap()
        .flatten()
        .find_map(|dir| std::fs::read_dir(dir.path()).unwrap().flatten().map(|file| file.path()).next());
    std::fs::remove_file(lost.unwrap()).unwrap();
    assert_eq!(world.done(&copy).json()["packs_copied"], 1);
    world.done(&["-s", &b, "check", "--read-data"]);
}

#[test]
fn a_copy_in_postgresql_says_that_it_is_one_and_does_not_change_under_its_user() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.url(), world.url());
    world.done(&["-s", &a, "init", "--packs", &world.dir_at("packs-a"), "--pack-size", "1M"]);
    world.fill(&a);
    let copy = ["copy", &a, &b, "--packs", &world.dir_at("packs-b"), "--json"];
    world.done(&copy);
    let schema = b.rsplit_once("schema=").unwrap().1;
    let status = world.done(&["-s", &b, "status", "--json"]).json();
    assert_eq!(status["copy_of"], a.as_str(), "{status}");
    assert!(status["copy_behind_ms"].as_u64().is_some(), "{status}");
    assert!(world.done(&["-s", &b, "status"]).text().contains("copy       of postgres://"));
    // A copy in use does not change under its user.
    let session = format!(
        "{schema}.session VALUES (1000000, 1, 60, 9223372036854775807, 9000000000000000000, 'x', 'host', 1, '\"mount\"')"
    );
    world.server.sql(&format!("INSERT INTO {session}"));
    let said = world.code(1, &copy);
    assert!(said.err.contains("in use") && said.err.contains("mount on host, process 1"), "{}", said.err);
    world.server.sql(&format!("DELETE FROM {schema}.session"));
    world.done(&copy);
    // A copy that was written to is a store of its own.
    world.done(&["-s", &b, "put", "first", "--to", "/own"]);
    let said = world.code(1, &copy);
    assert!(said.err.contains("a store of its own"), "{}", said.err);
    world.holds(&b, &["/own"], &world.place.path("first"));
    assert_eq!(world.done(&["-s", &b, "status", "--json"]).json()["copy_of"], serde_json::Value::Null);
    // A copy does not touch other stores.
    let c = world.url();
    world.done(&["-s", &c, "init", "--packs", &world.dir_at("packs-c")]);
    let said = world.code(1, &["copy", &a, &c]);
    assert!(said.err.contains("another store"), "{}", said.err);
    let said = world.code(2, &["copy", &a, &world.url(), "--packs", &world.dir_at("packs-a")]);
    assert!(said.err.contains("where the source's do"), "{}", said.err);
}

/// A copy is interrupted by errors and killed at several moments. The destination is no store until
/// it is complete, and packs that were copied are not copied again.
#[test]
fn an_interrupted_copy_goes_on_where_it_was() {
    let Some(world) = World::new() else { return };
    world.done(&["-s", "a", "init", "--pack-size", "1M"]);
    world.fill("a");
    let b = world.url();
    let copy = ["copy", "a", &b, "--packs", &world.s3_at("b"), "--json"];
    world.s3.fault("PUT", 5..=1000, HttpFault::Status(403));
    world.code(1, &copy);
    let said = world.code(1, &["-s", &b, "ls"]);
    assert!(said.err.contains("has no store"), "{}", said.err);
    world.s3.heal();
    world.s3.fault("PUT", 1..=1000, HttpFault::Late(150));
    for round in 1..4 {
        let mut child = world.command(&copy).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 * round));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    world.s3.heal();
    let report = world.done(&copy).json();
    assert!(report["packs_kept"].as_u64().unwrap() >= 2, "{report}");
    assert_eq!(world.about(&b), world.about("a"));
    world.done(&["-s", &b, "check", "--read-data"]);
    // Copied back and killed again, and this host's record of what was copied is lost, too.
    for round in 1..4 {
        let mut child =
            world.command(&["copy", &b, "c"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let _ = std::fs::remove_file(world.place.path("c/copy.journal"));
    }
    world.done(&["copy", &b, "c"]);
    assert_eq!(world.about("c"), world.about("a"));
    world.done(&["-s", "c", "check", "--read-data"]);
    // A killed copy holds nothing up.
    world.done(&["-s", &b, "gc"]);
}

/// Damage in packs or rows is named, and does not get into the copy.
#[test]
fn damage_in_the_source_is_refused_and_named() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.url(), world.url());
    world.done(&[
        "-s",
        &a,
        "init",
        "--no-encryption",
        "--packs",
        &world.dir_at("packs-a"),
        "--pack-size",
        "1M",
    ]);
    world.fill(&a);
    let files = std::fs::read_dir(world.place.path("packs-a/packs")).unwrap().flatten();
    let files = files.flat_map(|dir| std::fs::read_dir(dir.path()).unwrap().flatten());
    let largest = files.map(|file| file.path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let whole = std::fs::read(&largest).unwrap();
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&largest, &bytes).unwrap();
    let copy = ["copy", &a, &b, "--packs", &world.dir_at("packs-b")];
    let said = world.code(3, &copy);
    let name = largest.file_stem().unwrap().to_str().unwrap();
    assert!(said.err.contains("checksum") && said.err.contains(name), "{}", said.err);
    assert!(world.code(1, &["-s", &b, "ls"]).err.contains("has no store"));
    std::fs::write(&largest, &whole).unwrap();
    // A row with another content.
    let schema = a.rsplit_once("schema=").unwrap().1;
    let number = world.server.sql(&format!("SELECT inode FROM {schema}.dentry WHERE name = 'large'"));
    world.server.sql(&format!("UPDATE {schema}.inode SET mode = mode + 1 WHERE number = {number}"));
    for copy in [&copy[..], &["copy", &a, "c"]] {
        let said = world.code(3, copy);
        assert!(said.err.contains(&format!("table inode ({number})")), "{}", said.err);
    }
    world.server.sql(&format!("UPDATE {schema}.inode SET mode = mode - 1 WHERE number = {number}"));
    world.done(&copy);
    assert_eq!(world.about(&b), world.about(&a));
    // The same in a directory's database.
    world.done(&["copy", &a, "c"]);
    let database = world.place.path("c/meta.db");
    let whole = std::fs::read(&database).unwrap();
    let at = whole.windows(5).position(|window| window == b"moved").unwrap();
    let mut bytes = whole.clone();
    bytes[at] ^= 1;
    std::fs::write(&database, &bytes).unwrap();
    let said = world.code(3, &["copy", "c", &world.url(), "--packs", &world.dir_at("packs-d")]);
    assert!(said.err.contains("not what was written"), "{}", said.err);
}

/// A store is copied again and again while writers and a collector work. Every copy is one whole
/// state.
#[test]
fn writers_go_on_while_a_store_is_copied() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.url(), world.url());
    world.done(&["-s", &a, "init", "--packs", &world.dir_at("packs-a"), "--pack-size", "1M"]);
    world.fill(&a);
    let copy = ["copy", &a, &b, "--packs", &world.dir_at("packs-b")];
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (world, a, ended) = (&world, &a, &ended);
            scope.spawn(move || {
                let mut round = 0;
                while !ended.load(Ordering::Relaxed) {
                    round += 1;
                    // Both files are of one round, whatever moment is copied.
                    let name = format!("w{writer}");
                    let bytes = noise(writer * 1000 + round, 300_000);
                    world.place.write(format!("{name}/one"), &bytes);
                    world.place.write(format!("{name}/two"), &bytes);
                    world.done(&["-s", a, "put", &name]);
                    if round % 3 == 0 {
                        world.done(&["-s", a, "rm", "-r", &name]);
                        // The collector is refused while a copy runs.
                        let said = world.run(&["-s", a, "gc"]);
                        assert!(said.code == 0 || said.err.contains("is collecting"), "{}", said.err);
                    }
                }
            });
        }
        let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..6 {
                // The copy has to wait while a collector works.
                let until = Instant::now() + Duration::from_secs(60);
                loop {
                    let said = world.run(&copy);
                    if said.code == 0 {
                        break;
                    }
                    assert!(said.err.contains("is collecting") && Instant::now() < until, "{}", said.err);
                    std::thread::sleep(Duration::from_millis(50));
                }
                world.done(&["-s", &b, "check", "--read-data"]);
                world.holds(&b, &["--at", "one", "/tree"], &world.place.path("first"));
                for name in ["w0", "w1"] {
                    let read = |half: &str| world.run(&["-s", &b, "cat", &format!("{name}/{half}")]).out;
                    assert!(read("one") == read("two"), "{name}: of two commits");
                }
            }
        }));
        ended.store(true, Ordering::Relaxed);
        copied.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    world.done(&copy);
    assert_eq!(world.about(&b), world.about(&a));
}

/// A child that is killed when this is dropped.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A replica follows its source, says how far behind it is, and goes on after an outage of the
/// object store.
#[test]
fn a_follower_has_what_is_new_and_says_how_old_it_is() {
    let Some(world) = World::new() else { return };
    let b = world.url();
    world.done(&["-s", "a", "init", "--pack-size", "1M"]);
    world.fill("a");
    let args = ["copy", "a", &b, "--packs", &world.s3_at("b"), "--follow", "1", "--json"];
    let mut command = world.command(&args);
    command.env("OUTRIGGER_PATIENCE_SECS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut follower = Follower(command.spawn().unwrap());
    let mut rounds = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let complaints = follower.0.stderr.take().unwrap();
    let mut next = || -> serde_json::Value {
        serde_json::from_str(&rounds.next().expect("it goes on").unwrap()).unwrap()
    };
    assert!(next()["packs_copied"].as_u64().unwrap() > 4);
    world.place.write("second/new", noise(8, 400_000));
    world.done(&["-s", "a", "put", "second", "--to", "/tree"]);
    let after = outrigger_clock::now_nanos();
    // The first round that began after the put has it.
    let report = std::iter::repeat_with(&mut next).find(|round| round["as_of"].as_u64().unwrap() > after);
    let report = report.unwrap();
    assert!(report["behind_ms"].as_u64().is_some() && report["packs_behind"] == 0, "{report}");
    world.holds(&b, &["/tree"], &world.place.path("second"));
    // The object store is away: the copy says so and tries again.
    world.s3.go_down();
    // Other complaints about its present step may come first.
    let mut complaints = BufReader::new(complaints).lines().map(Result::unwrap);
    let said = complaints.find(|said| said.contains("trying again in 1 s"));
    assert!(said.is_some(), "it has ended");
    world.place.write("later", noise(6, 200_000));
    world.done(&["-s", "a", "put", "later"]);
    let after = outrigger_clock::now_nanos();
    world.s3.heal();
    std::iter::repeat_with(&mut next).find(|round| round["as_of"].as_u64().unwrap() > after);
    drop(follower);
    assert_eq!(world.done(&["-s", &b, "cat", "later"]).out, noise(6, 200_000));
    let status = world.done(&["-s", &b, "status", "--json"]).json();
    assert_eq!(status["copy_of"], "a", "{status}");
    world.done(&["-s", &b, "check", "--read-data"]);
}

/// A role that can only read the source can copy it. A role that may not create a schema is told
/// before anything is copied.
#[test]
fn rights_are_asked_for_before_anything_is_copied() {
    let Some(world) = World::new() else { return };
    let schema = world.server.fresh();
    let a = world.server.url(&schema);
    world.done(&["-s", &a, "init", "--packs", &world.dir_at("packs-a"), "--pack-size", "1M"]);
    world.fill(&a);
    let role = format!("reader_{schema}");
    world.server.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    ));
    let reader = world.server.url_as(&role, &schema);
    world.done(&["copy", &reader, "b"]);
    assert_eq!(world.about("b"), world.about(&a));
    let b = world.server.url_as(&role, &world.server.fresh());
    let said = world.code(1, &["copy", &a, &b, "--packs", &world.dir_at("packs-b")]);
    assert!(said.err.contains("GRANT CREATE ON DATABASE"), "{}", said.err);
    assert!(!world.place.path("packs-b").exists(), "nothing was copied");
}
