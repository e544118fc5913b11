//! Stores with metadata in PostgreSQL, from the command line: every command, several hosts at once,
//! and servers and clients that are killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outrigger_format::PackId;
use outrigger_store::testing::damage::corrupt;
use outrigger_workload::postgres::Server;
use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use crate::run::{Place, Said, noise};

/// A host: a workplace with a cache of its own, and the URL of the store that it shares.
struct Host {
    place: Place,
    url: String,
    packs: String,
}

impl Host {
    fn new(url: &str, packs: &Path) -> Self {
        Self { place: Place::empty(), url: url.to_owned(), packs: format!("file:{}", packs.display()) }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("OUTRIGGER_STORE", &self.url).env("OUTRIGGER_CACHE", self.place.path("cache"));
        command
    }

    #[track_caller]
    fn code(&self, code: i32, args: &[&str]) -> Said {
        let said = Said::from(self.command(args).output().unwrap());
        assert_eq!(said.code, code, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        self.code(0, args)
    }

    fn init(&self) {
        self.done(&["init", "--packs", &self.packs]);
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Checks that `name` in the store has the content of `tree`.
    #[track_caller]
    fn must_have(&self, name: &str, tree: &Path) {
        let copy = self.place.path(format!("copy-of-{name}"));
        self.done(&["get", name, copy.to_str().unwrap()]);
        assert_eq!(compare_trees(tree, &copy).unwrap(), [], "{name}");
        std::fs::remove_dir_all(copy).unwrap();
    }
}

/// A tree of some megabytes.
fn tree(place: &Place, name: &str, seed: u64, megabytes: u64) -> std::path::PathBuf {
    let path = place.path(name);
    source_tree(&path, &TreeOptions::new(seed, megabytes * 40)).unwrap();
    path
}

#[test]
fn every_command_works_and_hosts_see_each_other() {
    let Some(server) = Server::shared() else { return };
    let packs = tempfile::tempdir().unwrap();
    let url = server.url(&server.fresh());
    let (one, two) = (Host::new(&url, packs.path()), Host::new(&url, packs.path()));
    let said = one.code(1, &["ls"]);
    assert!(said.err.contains("init --packs"), "{}", said.err);
    let said = Said::from(one.command(&["init"]).output().unwrap());
    assert!(said.code != 0 && said.err.contains("init --packs"), "{}", said.err);
    one.init();
    let said = two.code(1, &["init", "--packs", &two.packs]);
    assert!(said.err.contains("already"), "{}", said.err);
    let (a, b) = (tree(&one.place, "a", 1, 2), tree(&two.place, "b", 1, 2));
    one.done(&["put", a.to_str().unwrap()]);
    two.must_have("a", &a);
    // The second host has the same bytes, and stores none of them.
    let before = two.done(&["stats", "--json"]).json();
    let said = two.done(&["put", b.to_str().unwrap(), "--json"]).json();
    // It read them when it fetched the tree, so they are verified.
    assert_eq!((&said["bytes_new"], &said["verified"]["packs_corrupt"]), (&0.into(), &serde_json::json!([])));
    let after = two.done(&["stats", "--json"]).json();
    assert!(after["database_bytes"].as_u64().unwrap() > 0);
    assert_eq!(after["files"].as_u64().unwrap(), 2 * before["files"].as_u64().unwrap());
    one.must_have("b", &b);
    one.done(&["snapshot", "create", "s"]);
    two.done(&["rm", "-r", "a"]);
    one.code(1, &["ls", "a"]);
    two.done(&["get", "--at", "s", "a", two.place.path("old").to_str().unwrap()]);
    two.done(&["snapshot", "delete", "s"]);
    two.done(&["mv", "b", "c"]);
    one.done(&["gc"]);
    one.must_have("c", &{
        let renamed = one.place.path("renamed");
        std::fs::create_dir(&renamed).unwrap();
        std::fs::rename(&b, renamed.join("c")).unwrap();
        renamed.join("c")
    });
    let said = one.done(&["check", "--read-data", "--json"]).json();
    assert_eq!(said["findings"].as_array().map_or(0, Vec::len), 0, "{said}");
    one.done(&["recover", "--anyway"]);
    two.must_have("c", &one.place.path("renamed/c"));
}

#[test]
fn a_client_whose_packs_lie_makes_nobody_else_lose_data() {
    let Some(server) = Server::shared() else { return };
    let packs = tempfile::tempdir().unwrap();
    let schema = server.fresh();
    let url = server.url(&schema);
    let (one, two) = (Host::new(&url, packs.path()), Host::new(&url, packs.path()));
    one.done(&["init", "--no-encryption", "--packs", &one.packs]);
    let file = two.place.write("f", noise(3, 700_000));
    let bytes = two.place.read("f");
    one.place.write("f", &bytes);
    one.done(&["put", "f", "--to", "of-one"]);
    for (id, row) in (1..).zip(server.sql(&format!("SELECT id FROM {schema}.pack ORDER BY id")).lines()) {
        assert_eq!(row, id.to_string());
        let path = packs.path().join(format!("packs/{id:02x}/{id:016x}.pack"));
        let pack = corrupt(&std::fs::read(&path).unwrap(), PackId(id));
        std::fs::write(&path, &pack).unwrap();
        server.sql(&format!("UPDATE {schema}.pack SET bytes = {} WHERE id = {id}", pack.len()));
    }
    let said = two.done(&["put", file.to_str().unwrap(), "--to", "of-two", "--json"]);
    assert_eq!(said.json()["bytes_new"], 700_000, "{}", said.text());
    assert!(!said.json()["verified"]["packs_corrupt"].as_array().unwrap().is_empty(), "{}", said.text());
    assert!(said.err.contains("so it is not used"), "{}", said.err);
    assert!(two.done(&["cat", "of-two"]).out == bytes);
    // The corrupt pack stays known, to the collector as well.
    let again = two.done(&["put", file.to_str().unwrap(), "--to", "again", "--json"]);
    assert_eq!(again.json()["bytes_new"], 0, "{}", again.text());
    assert!(again.err.is_empty(), "{}", again.err);
    two.done(&["gc"]);
    assert!(one.done(&["cat", "of-two"]).out == bytes);
}

#[test]
fn passwords_in_urls_are_refused_and_not_repeated() {
    let place = Place::empty();
    let said = place.run(&["-s", "postgres://me:secret@db/data", "ls"]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("PGPASSWORD") && !said.err.contains("secret"), "{}", said.err);
}

#[test]
fn a_put_goes_on_while_the_server_is_killed_and_started_again() {
    let Some(server) = Server::start("fsync = on") else { return };
    let packs = tempfile::tempdir().unwrap();
    let host = Host::new(&server.url("store"), packs.path());
    host.init();
    let trees: Vec<_> = (0..3).map(|seed| tree(&host.place, &format!("t{seed}"), seed, 4)).collect();
    for tree in &trees {
        let put = host.spawn(&["put", tree.to_str().unwrap()]);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(150));
            server.kill().unwrap();
            server.run().unwrap();
        }
        let said = Said::from(put.wait_with_output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
    }
    for (seed, tree) in trees.iter().enumerate() {
        host.must_have(&format!("t{seed}"), tree);
    }
    host.done(&["check", "--read-data"]);
}

#[test]
fn a_client_killed_at_any_moment_leaves_nothing_half_done_and_nothing_locked() {
    let Some(server) = Server::own_database() else { return };
    let packs = tempfile::tempdir().unwrap();
    let schema = server.fresh();
    let host = Host::new(&server.url(&schema), packs.path());
    host.init();
    let first = tree(&host.place, "kept", 1, 1);
    host.done(&["put", first.to_str().unwrap()]);
    let second = tree(&host.place, "second", 2, 4);
    for round in 0..8 {
        let mut put = host.spawn(&["put", second.to_str().unwrap()]);
        std::thread::sleep(Duration::from_millis(30 * (round + 1)));
        put.kill().unwrap();
        put.wait().unwrap();
        host.done(&["check"]);
        host.must_have("kept", &first);
    }
    // The next collector on this host fences the killed command, and a new one goes on from there.
    host.done(&["gc"]);
    host.done(&["put", second.to_str().unwrap()]);
    host.must_have("second", &second);
    host.done(&["check", "--read-data"]);
    assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.session")), "0");
    assert_eq!(server.advisory_locks(), 0);
}

#[test]
fn hosts_that_write_remove_snapshot_and_reclaim_at_once_lose_nothing() {
    let Some(server) = Server::shared() else { return };
    let packs = tempfile::tempdir().unwrap();
    let url = server.url(&server.fresh());
    let hosts: Vec<Host> = (0..3).map(|_| Host::new(&url, packs.path())).collect();
    hosts[0].init();
    std::thread::scope(|scope| {
        for (number, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..3 {
                    let name = format!("h{number}");
                    let seed = number as u64 / 2 + round;
                    let path = host.place.path(&name);
                    let _ = std::fs::remove_dir_all(&path);
                    source_tree(&path, &TreeOptions::new(seed, 60)).unwrap();
                    host.done(&["put", path.to_str().unwrap()]);
                    host.done(&["snapshot", "create", &format!("s{number}-{round}")]);
                    host.must_have(&name, &path);
                    if number == 0 {
                        // Two collectors at once are refused; this is the only one.
                        host.done(&["gc"]);
                    }
                }
            });
        }
    });
    for (number, host) in hosts.iter().enumerate() {
        let name = format!("h{number}");
        hosts[0].must_have(&name, &host.place.path(&name));
    }
    hosts[1].done(&["check", "--read-data"]);
}

/// This needs no server.
#[test]
fn whoever_waits_for_a_server_that_is_away_is_told_soon() {
    use std::io::{BufRead as _, BufReader};
    // The port is bound, and nobody listens.
    let address = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let host =
        Host::new(&format!("postgres://nobody@{address}/none?schema=s&sslmode=disable"), Path::new("/none"));
    let mut child = host.spawn(&["ls"]);
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.contains(&address.to_string()) && said.contains("trying again"), "{said}");
}
