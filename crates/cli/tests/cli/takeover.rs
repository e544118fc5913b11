//! The primary is killed and its standby takes over, while a mount and commands work. The URL names
//! both servers. Acknowledged data is there. When the old primary comes back as a primary by
//! mistake, clients notice.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_workload::postgres::Server;

use crate::run::{Agents, Place, Said, noise};
use crate::shared::{Host, command};

/// The files' contents, in turn; some are large.
const CONTENTS: u64 = 6;

fn content(number: u64) -> Vec<u8> {
    let turn = number % CONTENTS;
    noise(turn, if turn.is_multiple_of(3) { 400_000 } else { 3_000 + turn as usize })
}

/// A primary with a synchronous standby, a store whose URL names both, and the place of its packs.
struct Pair {
    primary: Server,
    standby: Server,
    url: String,
    _packs: tempfile::TempDir,
}

impl Pair {
    /// `None`, with a line that says so, without FUSE or PostgreSQL.
    fn new() -> Option<Self> {
        if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return None;
        }
        let primary = Server::start("")?;
        let standby = primary.standby("");
        primary.wait_for_standbys();
        let (url, packs) = (primary.url_with(&standby, "store"), tempfile::tempdir().unwrap());
        let place = Place::empty();
        let packs_at = format!("file:{}", packs.path().display());
        let init = Said::from(command(&place, &url, &["init", "--packs", &packs_at]).output().unwrap());
        assert_eq!(init.code, 0, "{}", init.err);
        Some(Self { primary, standby, url, _packs: packs })
    }
}

/// A process that writes and syncs files until it is told to stop. If the test held them open
/// itself, each command that it starts would first have to store them.
struct Writer<'h> {
    host: &'h Host,
    process: Agents,
}

impl<'h> Writer<'h> {
    fn start(host: &'h Host) -> Self {
        for turn in 0..CONTENTS {
            host.place.write(format!("content/{turn}"), content(turn));
        }
        let script = format!(
            "n=0; while [ ! -e stop ]; do dd if=content/$((n % {CONTENTS})) of=mnt/f$n conv=fsync bs=1M status=none || exit 1; \
             echo $n >> stored; n=$((n + 1)); done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(host.place.path(""));
        let mut process = Agents::default();
        process.start(command);
        Self { host, process }
    }

    /// The number of files that the process knows to be stored.
    fn stored(&self) -> u64 {
        let told = fs::read_to_string(self.host.place.path("stored")).unwrap_or_default();
        told.lines().count() as u64
    }

    /// Waits until some more are stored.
    fn more(&mut self) {
        let (before, until) = (self.stored(), Instant::now() + Duration::from_secs(120));
        while self.stored() < before + 4 {
            let ended = self.process.0[0].try_wait().unwrap();
            assert!(ended.is_none(), "it was told {ended:?}; {}", self.host.said());
            assert!(Instant::now() < until, "nothing is stored; {}", self.host.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it, and returns the number of all files that it has stored.
    fn stop(mut self) -> u64 {
        self.host.place.write("stop", "");
        let ended = self.process.0[0].wait().unwrap();
        assert!(ended.success(), "{}", self.host.said());
        self.stored()
    }
}

#[test]
#[ignore = "slow: two servers, and waits for both"]
fn a_standby_takes_over_and_nothing_acknowledged_is_lost() {
    let Some(pair) = Pair::new() else { return };
    let host = Host::new(pair.url.clone(), &[]);
    let mut writer = Writer::start(&host);
    writer.more();
    // A command is in the middle of its work, too.
    for number in 0..40 {
        host.place.write(format!("tree/{number}"), noise(1000 + number, 300_000));
    }
    let mut put = command(&host.place, &host.url, &["put", "tree"]);
    put.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let put = put.spawn().unwrap();
    pair.primary.kill().unwrap();
    // For a moment no server is the primary, and clients do not take the standby for one.
    std::thread::sleep(Duration::from_secs(1));
    pair.standby.promote();
    writer.more();
    // The old primary comes back as a primary. No client goes back to it.
    pair.primary.run().unwrap();
    writer.more();
    let put = Said::from(put.wait_with_output().unwrap());
    assert_eq!(put.code, 0, "{}", put.err);
    let stored = writer.stop();
    for number in 0..stored {
        host.must_read(&format!("f{number}"), content(number));
    }
    // By a host that knows neither server, and whose URL also names the old one first.
    let other = Host::new(pair.url.clone(), &[]);
    for number in 0..stored {
        other.must_read(&format!("f{number}"), content(number));
    }
    for number in 0..40 {
        other.must_read(&format!("tree/{number}"), noise(1000 + number, 300_000));
    }
    other.done(&["check", "--read-data"]);
}

/// A client that names only a standby, or accepts any server, can read. Without a primary a command
/// says so.
#[test]
fn a_standby_is_read_by_who_says_so() {
    let Some(pair) = Pair::new() else { return };
    let place = Place::empty();
    let run = |url: &str, args: &[&str]| Said::from(command(&place, url, args).output().unwrap());
    place.write("f", "stored");
    assert_eq!(run(&pair.url, &["put", "f"]).code, 0);
    // The order in the URL does not say which server is the primary.
    let turned = pair.standby.url_with(&pair.primary, "store");
    place.write("f", "again");
    assert_eq!(run(&turned, &["put", "f"]).code, 0);
    for url in [pair.standby.url("store"), format!("{turned}&target_session_attrs=any")] {
        // The standby may be a moment behind: it confirms commits before it shows them.
        let until = Instant::now() + Duration::from_secs(60);
        while run(&url, &["cat", "f"]).text() != "again" {
            assert!(Instant::now() < until, "{url}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let said = run(&url, &["put", "f"]);
        assert!(said.code == 1 && said.err.contains("read-only"), "{}", said.err);
    }
}
