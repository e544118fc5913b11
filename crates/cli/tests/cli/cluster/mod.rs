//! Mounts on hosts of a real cluster (`make test-cluster`): metadata in its PostgreSQL, packs in its pool, and a cable that is pulled. Skipped, and said to be, where there is none.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use outrigger_workload::{TreeOptions, compare_trees, source_tree};

use crate::run::{Place, Said};

/// Longer than a lease.
const CUT_OFF: Duration = Duration::from_secs(75);

/// A host of the cluster: commands run in its network namespace. What it has mounted is unmounted when this is dropped.
struct Host {
    name: String,
    place: Place,
    url: String,
}

impl Host {
    fn command(&self, args: &[&str]) -> Command {
        let namespace = format!("--net=/run/netns/outrigger-{}", self.name);
        let mut command = Command::new("nsenter");
        command
            .arg(namespace)
            .arg(env!("CARGO_BIN_EXE_outrigger"))
            .args(args)
            .current_dir(self.place.path(""));
        command.env("OUTRIGGER_STORE", &self.url).env("OUTRIGGER_CACHE", self.place.path("cache"));
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn done(&self, args: &[&str]) {
        let said = Said::from(self.command(args).output().unwrap());
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
    }

    fn mount(&self) {
        fs::create_dir_all(self.place.path("mnt")).unwrap();
        self.done(&["mount", "mnt"]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
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
        let _ = Command::new("umount").arg("-l").arg(self.place.path("mnt")).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_host_that_is_cut_off_for_longer_than_its_lease_changes_nothing_when_it_is_back() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(database), Some(pool), Some(_)) = (
        variable("OUTRIGGER_TEST_POSTGRES"),
        variable("OUTRIGGER_TEST_RADOS"),
        variable("OUTRIGGER_TEST_FAULTS"),
    ) else {
        println!(
            "skipped: no cluster with PostgreSQL and a pool whose cables may be pulled (make test-cluster)"
        );
        return;
    };
    let (now, pid) = (std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis(), std::process::id());
    let url = format!("{database}?schema=mounts_{now}_{pid}&sslmode=disable");
    let host = |name: &str| Host { name: name.to_owned(), place: Place::empty(), url: url.clone() };
    let (one, two) = (host("h1"), host("h2"));
    one.done(&["init", "--packs", &pool.replacen("?", &format!("/mounts-{now}-{pid}?"), 1)]);
    one.mount();
    two.mount();
    let tree = one.place.path("tree");
    source_tree(&tree, &TreeOptions::new(3, 12)).unwrap();
    assert!(Command::new("cp").arg("-a").arg(&tree).arg(one.path("tree")).status().unwrap().success());
    assert_eq!(compare_trees(&tree, &two.path("tree")).unwrap(), []);
    fs::write(one.path("f"), "before").unwrap();
    let mut open = fs::OpenOptions::new().write(true).open(one.path("f")).unwrap();
    one.cable("down");
    open.write_all(b"never!").unwrap();
    std::thread::sleep(CUT_OFF);
    // The others go on, and a collector ends its session.
    fs::write(two.path("g"), "meanwhile").unwrap();
    two.done(&["gc"]);
    one.cable("up");
    // It may still be waiting for a connection that is gone.
    let synced = open.sync_all().unwrap_err();
    assert!([Some(116), Some(5)].contains(&synced.raw_os_error()), "{synced}");
    assert!(fs::write(one.path("new"), "x").is_err());
    drop(open);
    assert_eq!(fs::read(two.path("f")).unwrap(), b"before");
    assert!(!two.path("new").exists());
    // Mounted again, it is a host like any other.
    one.done(&["unmount", "mnt"]);
    one.mount();
    assert_eq!(fs::read(one.path("g")).unwrap(), b"meanwhile");
    fs::write(one.path("f"), "after").unwrap();
    assert_eq!(fs::read(two.path("f")).unwrap(), b"after");
    two.done(&["check", "--read-data"]);
}
