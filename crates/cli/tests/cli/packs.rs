//! Stores with packs in an object store (with faults) or a shared directory, and copies between
//! all.

use std::path::Path;
use std::process::Command;

use outrigger_store::testing::s3::{ACCESS_KEY, HttpFault, S3Server};
use outrigger_workload::compare_trees;

use crate::run::{Place, Said, noise};

const SECRET: &str = "do-not-say-this";

/// A workplace, and an object store that its commands find.
struct Remote {
    place: Place,
    server: S3Server,
}

impl Remote {
    fn new() -> Self {
        let remote = Self { place: Place::empty(), server: S3Server::start() };
        let said = remote.done(&["init", "--packs", &remote.url("one")]);
        assert!(said.text().contains("packs of 16M in s3://bucket/one"), "{}", said.text());
        remote
    }

    fn url(&self, prefix: &str) -> String {
        format!("s3://bucket/{prefix}?endpoint={}&region=here", self.server.endpoint)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        let said: Said = self.command(args).output().unwrap().into();
        assert!(!said.err.contains(SECRET) && !said.text().contains(SECRET), "a secret was said");
        said
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    /// Files of several kinds; about 6 MB.
    fn write_tree(&self, name: &str, seed: u64) {
        for number in 0..30u64 {
            let len = (number * 17_389) as usize % 60_000;
            self.place
                .write(format!("{name}/dir{}/file{number}", number % 5), noise(seed * 100 + number, len));
        }
        self.place.write(format!("{name}/large"), noise(seed, 5_000_000));
        self.place.write(format!("{name}/empty"), b"");
    }

    #[track_caller]
    fn holds(&self, args: &[&str], tree: &str) {
        let out = self.place.path("out");
        let _ = std::fs::remove_dir_all(&out);
        self.done(&[&["-s"], args, &["out"]].concat());
        same(&self.place.path(tree), &out);
    }
}

#[track_caller]
fn same(a: &Path, b: &Path) {
    assert_eq!(compare_trees(a, b).unwrap(), []);
}

#[test]
fn a_store_works_with_its_packs_in_an_object_store() {
    let remote = Remote::new();
    remote.write_tree("tree", 1);
    remote.done(&["put", "tree", "--to", "/tree"]);
    assert!(!remote.place.path("store/packs").exists(), "no pack lies here");
    remote.done(&["snapshot", "create", "first"]);
    remote.place.write("tree/dir1/file1", b"changed");
    remote.done(&["put", "tree", "--to", "/tree"]);
    remote.holds(&["store", "get", "/tree"], "tree");
    remote.done(&["check", "--read-data"]);
    remote.done(&["rm", "-r", "/tree/large"]);
    remote.done(&["snapshot", "delete", "first"]);
    remote.done(&["keep", "--automatic", "0h"]);
    let before: usize = remote.server.objects().iter().map(|(_, len)| len).sum();
    remote.done(&["gc"]);
    let after: usize = remote.server.objects().iter().map(|(_, len)| len).sum();
    assert!(after + 4_000_000 < before, "{before} bytes, then {after}");
    std::fs::remove_file(remote.place.path("tree/large")).unwrap();
    remote.done(&["put", "tree", "--to", "/tree"]);
    remote.holds(&["store", "get", "/tree"], "tree");

    // The packs alone are enough to recover.
    std::fs::remove_file(remote.place.path("store/meta.db")).unwrap();
    remote.done(&["recover"]);
    remote.holds(&["store", "get", "/tree"], "tree");
    remote.done(&["check", "--read-data"]);
    std::fs::remove_dir_all(remote.place.path("store")).unwrap();
    let said = remote.run(&["-s", "new", "recover", "--packs", &remote.url("none")]);
    assert!(said.code == 1 && said.err.contains("holds no store's packs"), "{}", said.err);
    remote.done(&["recover", "--packs", &remote.url("one")]);
    remote.holds(&["store", "get", "/tree"], "tree");
    let stats = remote.done(&["stats", "--json"]).json();
    assert!(stats["packs_at"].as_str().unwrap().starts_with("s3://bucket/one?endpoint="), "{stats}");
}

/// A tenth of all requests fail, in all ways, and no user notices.
#[test]
fn faults_of_the_object_store_are_not_the_users() {
    let remote = Remote::new();
    remote.write_tree("tree", 2);
    for (number, fault) in [
        HttpFault::Status(500),
        HttpFault::DoneButStatus(503),
        HttpFault::Reset,
        HttpFault::DoneButReset,
        HttpFault::Half,
        HttpFault::Slow,
    ]
    .into_iter()
    .enumerate()
    {
        remote.server.heal();
        let number = number as u64;
        for method in ["PUT", "GET", "HEAD", "DELETE"] {
            remote.server.fault(method, 1 + number % 2..=2 + number % 2, fault);
        }
        let to = format!("/tree{number}");
        remote.place.write("tree/dir1/file1", noise(number + 99, 300_000));
        remote.done(&["put", "tree", "--to", &to]);
        remote.holds(&["store", "get", &to], "tree");
    }
    remote.server.heal();
    remote.done(&["check", "--read-data"]);
    assert!(remote.server.faults() >= 12, "{} faults", remote.server.faults());
}

/// Acknowledged data stays, other data is not there, and the store is whole when the object store
/// is back.
#[test]
fn an_object_store_that_goes_away_loses_nothing() {
    let remote = Remote::new();
    remote.write_tree("tree", 3);
    remote.done(&["put", "tree", "--to", "/first"]);
    remote.write_tree("more", 4);
    remote.server.go_down();
    let mut command = remote.command(&["put", "more", "--to", "/second"]);
    let said: Said = command.env("OUTRIGGER_PATIENCE_SECS", "1").output().unwrap().into();
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("given up after"), "{}", said.err);
    remote.server.heal();
    remote.done(&["check", "--read-data"]);
    remote.holds(&["store", "get", "/first"], "tree");
    remote.done(&["put", "more", "--to", "/second"]);
    remote.done(&["gc"]);
    remote.holds(&["store", "get", "/second"], "more");
    remote.done(&["check", "--read-data"]);
}

/// A cloud's metadata service is asked only on request: outside a cloud it does not answer.
#[test]
fn missing_credentials_are_said_to_be_before_anything_is_sent() {
    let remote = Remote::new();
    let mut command = remote.command(&["stats"]);
    command.env_remove("AWS_ACCESS_KEY_ID").env("HOME", remote.place.path("nobody"));
    let said: Said = command.output().unwrap().into();
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("AWS_ACCESS_KEY_ID") && said.err.contains("credentials"), "{}", said.err);
    // With the variable set it is asked.
    let server = &remote.server.endpoint;
    command.env("AWS_METADATA_ENDPOINT", server).env("OUTRIGGER_PATIENCE_SECS", "1");
    let said: Said = command.output().unwrap().into();
    assert!(!said.err.contains("no credentials for S3"), "{}", said.err);
}

#[test]
fn the_wrong_place_is_said_to_be() {
    let remote = Remote::new();
    remote.write_tree("tree", 5);
    remote.done(&["put", "tree", "--to", "/tree"]);
    // Another store cannot take this one's place.
    let said = remote.run(&["-s", "other", "init", "--packs", &remote.url("one")]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("another store's"), "{}", said.err);
    // Credentials do not belong in the URL, and are not repeated in the error.
    let said = remote.run(&["-s", "other", "init", "--packs", &format!("s3://me:{SECRET}@bucket/x")]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("docs/packs.md"), "{}", said.err);
    // No credentials, or the wrong ones.
    let said: Said = remote.command(&["ls"]).env("AWS_ACCESS_KEY_ID", "WHO").output().unwrap().into();
    assert_eq!(said.code, 1);
    assert!(said.err.contains("credentials") && !said.err.contains(SECRET), "{}", said.err);
    // A shared directory that is not mounted.
    let shared = remote.place.path("shared");
    remote.done(&["-s", "third", "init", "--packs", &format!("file:{}", shared.display())]);
    std::fs::rename(&shared, remote.place.path("elsewhere")).unwrap();
    std::fs::create_dir_all(shared.join("packs")).unwrap();
    let said = remote.run(&["-s", "third", "ls"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("right file system mounted"), "{}", said.err);
}

/// A store is copied from the directory into an object store, into a shared directory, and back.
/// Nothing is lost.
#[test]
fn a_store_moves_from_engine_to_engine() {
    let remote = Remote::new();
    remote.done(&["-s", "a", "init", "--pack-size", "1M"]);
    remote.write_tree("first", 6);
    remote.done(&["-s", "a", "policy", "set", "/", "versions=3"]);
    remote.done(&["-s", "a", "put", "first", "--to", "/tree"]);
    remote.done(&["-s", "a", "snapshot", "create", "one", "--tag", "kept"]);
    remote.write_tree("second", 7);
    remote.done(&["-s", "a", "put", "second", "--to", "/tree", "--replace-source", "--no-snapshot"]);
    remote.place.write("junk", noise(9, 3_000_000));
    remote.done(&["-s", "a", "put", "junk"]);

    let shared = format!("file:{}", remote.place.path("shared").display());
    let to_s3 = ["copy", "a", "b", "--packs", &remote.url("two"), "--json"];
    // A copy that was interrupted in the middle goes on from there.
    let mut command = remote.command(&to_s3);
    remote.server.fault("PUT", 5..=1000, HttpFault::Status(403));
    let said: Said = command.output().unwrap().into();
    assert_eq!(said.code, 1, "{}", said.err);
    remote.server.heal();
    let report = remote.done(&to_s3).json();
    assert!(report["packs_kept"].as_u64().unwrap() >= 2, "{report}");
    assert!(report["packs_copied"].as_u64().unwrap() >= 1, "{report}");
    let report = remote.done(&["copy", "b", "c", "--packs", &shared, "--json", "--verify"]).json();
    assert!(report["packs_verified"].as_u64().unwrap() > 5, "{report}");
    remote.done(&["copy", "c", "d"]);
    assert!(remote.place.path("d/packs").exists());
    let about = |store: &str| {
        let ask = |args: &[&str]| remote.done(&[&["-s", store], args].concat()).text();
        let lists = ask(&["ls", "-lR", "/"]) + &ask(&["versions", "/tree/large"]);
        lists + &ask(&["snapshot", "list"]) + &ask(&["policy", "get", "/"])
    };
    for store in ["b", "c", "d"] {
        assert_eq!(about(store), about("a"), "{store}");
        remote.holds(&[store, "get", "/tree"], "second");
        remote.holds(&[store, "get", "--at", "one", "/tree"], "first");
        remote.done(&["-s", store, "check", "--read-data"]);
    }

    // Only later changes are copied.
    remote.place.write("second/new", noise(8, 400_000));
    remote.done(&["-s", "a", "put", "second", "--to", "/tree", "--replace-source", "--no-snapshot"]);
    let report = remote.done(&["copy", "a", "b", "--json"]).json();
    assert!(report["packs_copied"].as_u64().unwrap() <= 4, "{report}");
    remote.holds(&["b", "get", "/tree"], "second");
    // Data reclaimed in the source goes from the copy.
    remote.done(&["-s", "a", "snapshot", "delete", "one"]);
    remote.done(&["-s", "a", "rm", "--no-snapshot", "junk"]);
    remote.done(&["-s", "a", "gc"]);
    let report = remote.done(&["copy", "a", "b", "--json"]).json();
    assert!(report["packs_removed"].as_u64().unwrap() >= 1, "{report}");
    remote.holds(&["b", "get", "/tree"], "second");
    remote.done(&["-s", "b", "check", "--read-data"]);

    // A copy that was changed is not overwritten.
    remote.done(&["-s", "d", "put", "first", "--to", "/own"]);
    let said = remote.run(&["copy", "a", "d"]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("a store of its own"), "{}", said.err);
    remote.holds(&["d", "get", "/own"], "first");
}

/// Damage in the source does not get into the copy unnoticed.
#[test]
fn a_copy_is_checked_on_its_way() {
    let remote = Remote::new();
    remote.done(&["-s", "a", "init", "--no-encryption"]);
    remote.write_tree("tree", 9);
    remote.done(&["-s", "a", "put", "tree", "--to", "/tree"]);
    let packs = remote.place.path("a/packs");
    let largest =
        std::fs::read_dir(packs).unwrap().flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
    let largest =
        largest.map(|file| file.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let whole = std::fs::read(&largest).unwrap();
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&largest, &bytes).unwrap();
    let said = remote.run(&["copy", "a", "b"]);
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(said.err.contains("checksum"), "{}", said.err);
    assert!(!remote.place.path("b/store.toml").exists(), "what is not whole is no store");
    std::fs::write(&largest, &whole).unwrap();
    remote.done(&["copy", "a", "b"]);
    remote.holds(&["b", "get", "/tree"], "tree");
}

/// `status` prints what the database knows even if the packs' place is away, and says what is wrong
/// there.
#[test]
fn status_needs_no_packs() {
    let place = Place::empty();
    place.write("file", noise(1, 100_000));
    let packs = format!("file:{}", place.path("packs").display());
    std::fs::create_dir(place.path("packs")).unwrap();
    place.done(&["init", "--packs", &packs]);
    place.done(&["put", "file"]);
    std::fs::rename(place.path("packs"), place.path("elsewhere")).unwrap();
    place.code(1, &["put", "file", "--to", "again"]);
    let status = place.done(&["status", "--json"]).json();
    assert!(status["packs_trouble"].as_str().unwrap().contains("packs"), "{status}");
    let live = status["packs"].as_array().unwrap().iter().find(|packs| packs["state"] == "live");
    assert!(live.unwrap()["packs"].as_u64() > Some(0), "{status}");
    assert!(place.done(&["status"]).text().contains("trouble    "));
    std::fs::rename(place.path("elsewhere"), place.path("packs")).unwrap();
    assert!(place.done(&["status", "--json"]).json()["packs_trouble"].is_null());
}

#[test]
fn gc_locks_new_packs_where_the_place_says_so() {
    let remote = Remote { place: Place::empty(), server: S3Server::start() };
    let packs = format!("{}&lock=30", remote.url("locked"));
    remote.done(&["init", "--no-encryption", "--packs", &packs]);
    remote.place.write("one", noise(1, 300_000));
    remote.done(&["put", "one"]);
    assert!(remote.server.locks().is_empty(), "that is the collector's");
    let locked = || remote.done(&["gc", "--json"]).json()["packs_locked"].as_u64().unwrap();
    let first = locked();
    assert!(first >= 2 && remote.server.locks().len() as u64 == first, "{first}");
    assert_eq!(locked(), 0, "they stay locked for long enough");
    remote.place.write("two", noise(2, 300_000));
    remote.done(&["put", "two"]);
    assert!((1..=first).contains(&locked()), "new packs");
    // A key that may not lock: the command says so, and what it reclaimed stays so.
    remote.place.write("three", noise(3, 300_000));
    remote.done(&["put", "three"]);
    remote.server.fault("PUT", 1..=u64::MAX, HttpFault::Status(403));
    let said = remote.run(&["gc"]);
    assert!(said.code == 1 && said.err.contains("cannot lock"), "{} {}", said.code, said.err);
}
