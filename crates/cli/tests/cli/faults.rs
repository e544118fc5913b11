//! Shared mounts under faults: a client that is killed at every step, clocks that differ, an object
//! store that is slow or away.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use outrigger_store::testing::s3::{ACCESS_KEY, HttpFault, S3Server};
use outrigger_workload::postgres::{Piece, Proxy, Server};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Place, Said, clock, noise};
use crate::shared::{Host, Shared, command};

/// Writes and syncs a file, and returns the outcome that the program saw.
fn synced(host: &Host, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(host.path(name))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A proxy between a mount and its database. After so many pieces it kills the mount's process.
struct Executioner {
    proxy: Proxy,
    left: Arc<AtomicI64>,
    victim: Arc<AtomicU32>,
    arrives: Arc<AtomicBool>,
}

impl Executioner {
    fn new(server: &Server) -> Self {
        let (left, victim) = (Arc::new(AtomicI64::new(i64::MAX)), Arc::new(AtomicU32::new(0)));
        let arrives = Arc::new(AtomicBool::new(false));
        let (counted, killed, passes) = (Arc::clone(&left), Arc::clone(&victim), Arc::clone(&arrives));
        let judge = move || {
            if counted.fetch_sub(1, Ordering::SeqCst) != 0 {
                return Piece::Pass;
            }
            // No child process does it: a new child closes inherited files, some of them in the
            // victim's mount, and would wait for this very thread.
            let victim = Pid::from_raw(killed.load(Ordering::SeqCst) as i32).unwrap();
            kill_process(victim, Signal::KILL).unwrap();
            if passes.load(Ordering::SeqCst) { Piece::PassAndEnd } else { Piece::Lose }
        };
        Self { proxy: Proxy::start(server, judge).unwrap(), left, victim, arrives }
    }

    /// Kills `victim` at this piece. `arrives` says whether the piece still reaches the other side.
    fn kill_after(&self, victim: &Host, pieces: i64, arrives: bool) {
        self.arrives.store(arrives, Ordering::SeqCst);
        self.victim.store(victim.child.id(), Ordering::SeqCst);
        self.left.store(pieces, Ordering::SeqCst);
    }

    fn has_killed(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    fn rest(&self) {
        self.left.store(i64::MAX, Ordering::SeqCst);
    }
}

/// A mount is killed while it writes, creates and renames, at one of the pieces that it exchanges
/// with its database. Every third piece is tried, which in turn arrives or does not; with
/// `OUTRIGGER_KILL_PIECES=all` (`make test-long`, some minutes) every piece, both ways.
/// Acknowledged changes are on the other host, others are there wholly or not at all, and nobody
/// waits for them.
#[test]
#[ignore = "slow: a mount is killed many times"]
fn a_client_killed_at_any_step_of_a_commit_has_done_it_or_not() {
    let Some(shared) = Shared::new() else { return };
    let executioner = Executioner::new(&shared.server);
    let other = shared.mount();
    let (old, new) = (noise(1, 300_000), noise(2, 400_000));
    let mut kills = 0;
    let all = std::env::var("OUTRIGGER_KILL_PIECES").is_ok_and(|which| which == "all");
    for round in 0.. {
        let (pieces, arrives) = if all { (round / 2, round % 2 == 0) } else { (3 * round, round % 2 == 0) };
        for name in ["large", "small", "moved"] {
            synced(&other, name, &old[..20_000]).unwrap();
        }
        synced(&other, "large", &old).unwrap();
        let _ = fs::remove_file(other.path("to"));
        let _ = fs::remove_dir(other.path("dir"));
        let mut victim = Host::new(executioner.proxy.url(&shared.schema), &[]);
        // Its statements are prepared after this.
        synced(&victim, "warm", &noise(pieces, 100_000)).unwrap();
        executioner.kill_after(&victim, pieces as i64, arrives);
        let large = synced(&victim, "large", &new).is_ok();
        let small = synced(&victim, "small", b"new").is_ok();
        let moved = fs::rename(victim.path("moved"), victim.path("to")).is_ok();
        let made = fs::create_dir(victim.path("dir")).is_ok();
        let is_killed = executioner.has_killed();
        executioner.rest();
        let at = format!("killed after {pieces} pieces, arrived: {arrives}: {large} {small} {moved} {made}");
        assert!(is_killed || large && small && moved && made, "{at}");
        if is_killed {
            kills += 1;
            victim.child.wait().unwrap();
        }
        let is_there = |name: &str| other.path(name).exists();
        let found = fs::read(other.path("large")).unwrap();
        // Opening it truncates it first, which is a change of its own.
        assert!(found == new || !large && (found == old || found.is_empty()), "{at}: {} bytes", found.len());
        let found = fs::read(other.path("small")).unwrap();
        assert!(
            found == b"new" || !small && (found == old[..20_000] || found.is_empty()),
            "{at}: {}",
            found.len()
        );
        assert!(is_there("moved") != is_there("to"), "{at}");
        assert!(!moved || is_there("to"), "{at}");
        assert!(!made || is_there("dir"), "{at}");
        other.done(&["check"]);
        drop(victim);
        if !is_killed {
            break;
        }
        // A collector does this when the lease is over.
        let over = "UPDATE SCHEMA.session SET lease_until = 1, lease_secs = 0 WHERE process = PID";
        let over = over.replace("SCHEMA", &shared.schema);
        shared.server.sql(&over.replace("PID", &executioner.victim.load(Ordering::SeqCst).to_string()));
        if round % 4 == 2 {
            other.done(&["gc"]);
        }
    }
    println!("killed {kills} times");
    assert!(kills > if all { 90 } else { 15 }, "{kills}");
    other.done(&["gc"]);
    shared.check(&other);
}

/// Some hosts' clocks are a day off, and one is right. Leases go by the server's clock, so all
/// live, and a collector on any host ends no session.
#[test]
fn clocks_that_differ_end_no_session_and_lose_nothing() {
    let (Some(day_ahead), Some(day_behind)) = (clock("+1d"), clock("-1d")) else { return };
    let Some(shared) = Shared::new() else { return };
    let right = shared.mount();
    let ahead = Host::new(shared.url(), &day_ahead);
    let behind = Host::new(shared.url(), &day_behind);
    let hosts = [&right, &ahead, &behind];
    let names = ["right", "ahead", "behind"];
    for (host, name) in hosts.into_iter().zip(names) {
        synced(host, name, &noise(7, 200_000)).unwrap();
        host.write(&format!("{name}-small"), name);
    }
    // This shows that the wrong clocks took effect.
    let age = |name: &str| {
        let modified = fs::metadata(right.path(name)).unwrap().mtime();
        modified - SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64
    };
    assert!(age("ahead") > 80_000 && age("behind") < -80_000, "{} {}", age("ahead"), age("behind"));
    for round in 0..3 {
        for (number, (host, skew)) in [(&ahead, day_ahead), (&behind, day_behind)].into_iter().enumerate() {
            for args in [&["gc", "--grace", "0"][..], &["check", "--read-data"]] {
                let mut command = command(&host.place, &host.url, args);
                let said = Said::from(command.envs(skew).output().unwrap());
                assert_eq!(said.code, 0, "{args:?}: {}", said.err);
            }
            // All hosts go on and see each other.
            let text = format!("{round} {number}");
            host.write("last", &text);
            for host in hosts {
                host.must_read("last", &text);
                synced(host, "over", &noise(round + 10, 150_000)).unwrap();
            }
        }
    }
    for host in hosts {
        for name in names {
            host.must_read(name, noise(7, 200_000));
            host.must_read(&format!("{name}-small"), name);
        }
        assert_eq!(host.said(), "");
    }
    let status = right.done(&["status", "--json"]).json();
    let sessions = status["sessions"].as_array().unwrap();
    let live =
        sessions.iter().filter(|session| session["standing"] == "live" && session["command"] == "mount");
    assert!(live.count() >= 3, "{status}");
    shared.check(&right);
}

/// The age of an unused pack goes by the database's clock, whatever clock the host has that marks
/// or removes it.
#[test]
fn grace_goes_by_the_clock_of_the_database() {
    if clock("+0").is_none() {
        return;
    }
    let Some(shared) = Shared::new() else { return };
    let place = Place::empty();
    let run = |by: &'static str, args: &[&str]| {
        let mut command = command(&place, &shared.url(), args);
        command.envs(clock(by).unwrap());
        let said = Said::from(command.output().unwrap());
        assert_eq!(said.code, 0, "{by} {args:?}: {}", said.err);
        said
    };
    let packs_unlinked = |by: &'static str, grace: &str| {
        let report = run(by, &["gc", "--grace", grace, "--json"]).json();
        (report["packs_unlinked"].as_u64().unwrap(), report["packs_waiting"].as_u64().unwrap())
    };
    for (buried, removed) in [("-1d", "+1d"), ("+1d", "-1d")] {
        fs::write(place.path("f"), noise(1, 300_000)).unwrap();
        run("+0", &["put", "f"]);
        run("+0", &["rm", "--no-snapshot", "f"]);
        let (gone, waiting) = packs_unlinked(buried, "3600");
        assert!(gone == 0 && waiting > 0, "{buried}: {gone} {waiting}");
        assert_eq!(packs_unlinked(removed, "3600").0, 0, "{buried}, {removed}: it is some seconds old");
        let (gone, waiting) = packs_unlinked(removed, "0");
        assert!(gone > 0 && waiting == 0, "{buried}, {removed}: {gone} {waiting}");
    }
}

/// A store with metadata in PostgreSQL and packs in an object store that fails on purpose.
struct Remote {
    server: &'static Server,
    s3: S3Server,
    schema: String,
}

impl Remote {
    fn new() -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        let server = Server::shared()?;
        let remote = Self { server, s3: S3Server::start(), schema: server.fresh() };
        let packs = format!("s3://bucket/store?endpoint={}&region=here", remote.s3.endpoint);
        remote.done(&["init", "--packs", &packs]);
        Some(remote)
    }

    fn keys() -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", "secret")]
    }

    fn mount(&self, patience: &str) -> Host {
        let more = [("OUTRIGGER_PATIENCE_SECS", patience)];
        Host::new(self.server.url(&self.schema), &[&Self::keys()[..], &more].concat())
    }

    fn run(&self, args: &[&str], patience: &str) -> Said {
        let place = Place::empty();
        let mut command = command(&place, &self.server.url(&self.schema), args);
        command.envs(Self::keys()).env("OUTRIGGER_PATIENCE_SECS", patience);
        command.output().unwrap().into()
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        let said = self.run(args, "60");
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        said
    }
}

#[test]
fn writers_wait_for_an_object_store_that_is_slow_or_gone_and_lose_nothing() {
    let Some(remote) = Remote::new() else { return };
    let (one, two) = (remote.mount("60"), remote.mount("60"));
    let bytes: Vec<_> = (0..4).map(|seed| noise(seed, 300_000)).collect();
    // Each request takes long; answers come in pieces.
    remote.s3.fault("PUT", 1..=1_000_000, HttpFault::Late(700));
    remote.s3.fault("GET", 1..=1_000_000, HttpFault::Slow);
    for (at, bytes) in bytes.iter().enumerate() {
        synced(&one, &format!("slow{at}"), bytes).unwrap();
        two.must_read(&format!("slow{at}"), bytes);
    }
    assert!(remote.s3.faults() > 8, "{}", remote.s3.faults());
    remote.s3.heal();
    // The bucket is away: a sync waits, small files do not need it, and all is well when it is
    // back.
    remote.s3.go_down();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| synced(&one, "gone", &bytes[0]));
        let before = remote.s3.faults();
        while remote.s3.faults() < before + 3 {
            std::thread::sleep(Duration::from_millis(20));
        }
        synced(&two, "small", b"in the database").unwrap();
        assert!(!syncing.is_finished(), "it cannot have stored this");
        remote.s3.heal();
        syncing.join().unwrap().unwrap();
    });
    two.must_read("gone", &bytes[0]);
    two.must_read("small", "in the database");
    // On a busy machine it waits long enough to say so.
    let said = one.said();
    assert!(said.lines().all(|line| line.contains("trying again for up to ")), "{said}");
    remote.done(&["check", "--read-data"]);
}

/// From some request on the bucket takes nothing more. Commands end at once, and nothing is lost.
#[test]
fn a_bucket_that_is_full_at_any_step_loses_nothing() {
    let Some(remote) = Remote::new() else { return };
    let place = Place::empty();
    let run = |args: &[&str]| {
        let mut command = command(&place, &remote.server.url(&remote.schema), args);
        Said::from(command.envs(Remote::keys()).output().unwrap())
    };
    let done = |args: &[&str]| {
        let said = run(args);
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        said
    };
    let kept = noise(1, 300_000);
    place.write("kept", &kept);
    done(&["put", "kept"]);
    let mut failed = 0;
    for n in 1..=6 {
        let tree = format!("tree{n}");
        for (file, len) in [("large", 900_000), ("middle", 200_000), ("small", 10)] {
            place.write(format!("{tree}/{file}"), noise(n * 1_000_000 + len as u64, len));
        }
        remote.s3.fault("PUT", n..=1_000_000, HttpFault::Status(507));
        let said = run(&["put", &tree]);
        if said.code != 0 {
            failed += 1;
            assert!(said.code == 1 && said.err.contains("StorageFull"), "{n}: {} {}", said.code, said.err);
        }
        assert!(done(&["cat", "kept"]).out == kept);
        remote.s3.heal();
        done(&["check", "--read-data"]);
        done(&["put", &tree]);
        done(&["get", &tree, &format!("back{n}")]);
        for file in ["large", "middle", "small"] {
            let back = place.read(format!("back{n}/{file}"));
            assert!(back == place.read(format!("{tree}/{file}")), "{n} {file}");
        }
    }
    assert!(failed > 0, "no command was refused");
    done(&["gc"]);
    done(&["check", "--read-data"]);
}

#[test]
fn when_patience_with_an_object_store_ends_that_is_said_and_what_was_written_stays() {
    let Some(remote) = Remote::new() else { return };
    let (impatient, other) = (remote.mount("1"), remote.mount("60"));
    let (kept, later) = (noise(1, 300_000), noise(2, 300_000));
    synced(&impatient, "kept", &kept).unwrap();
    remote.s3.go_down();
    let mut open = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(impatient.path("later"))
        .unwrap();
    open.write_all(&later).unwrap();
    let error = open.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    assert!(impatient.said().contains("given up after"), "{}", impatient.said());
    // This host can read it, and other hosts see none of it yet.
    let mut found = Vec::new();
    File::open(impatient.path("later")).unwrap().read_to_end(&mut found).unwrap();
    assert!(found == later);
    other.must_read("later", "");
    // Names do not need packs.
    fs::create_dir(impatient.path("dir")).unwrap();
    assert!(other.path("dir").exists());
    // The list of clients comes from the database.
    let said = remote.run(&["status", "--json"], "1");
    println!("status while the object store is gone: code {}: {}{}", said.code, said.text(), said.err);
    remote.s3.heal();
    open.sync_all().unwrap();
    other.must_read("later", &later);
    other.must_read("kept", &kept);
    drop(open);
    remote.done(&["check", "--read-data"]);
}
