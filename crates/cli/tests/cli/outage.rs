//! PostgreSQL is killed under a running job and comes back. Some runner completes the job, and none
//! of it is visible before.

use std::process::Stdio;
use std::time::Duration;

use outrigger_workload::postgres::Server;

use crate::run::{Agents, Place, Said};

/// A store on a server of this test's own, with numbers in it.
struct Outage {
    server: Server,
    place: Place,
    url: String,
    _packs: tempfile::TempDir,
}

impl Outage {
    fn new(lines: usize) -> Option<(Self, String)> {
        let server = Server::start("")?;
        let (url, packs) = (server.url(&server.fresh()), tempfile::tempdir().unwrap());
        let outage = Self { server, place: Place::empty(), url, _packs: packs };
        outage.done(&["init", "--packs", &format!("file:{}", outage._packs.path().display())]);
        let text: String = (0..lines).map(|line| format!("{line}\n")).collect();
        outage.place.write("numbers", &text);
        outage.done(&["put", "numbers"]);
        Some((outage, text))
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.place.command(args);
        command.env("OUTRIGGER_STORE", &self.url).env("OUTRIGGER_CACHE", self.place.path("cache"));
        command
    }

    fn say(&self, args: &[&str]) -> Said {
        Said::from(self.command(args).output().unwrap())
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> Said {
        let said = self.say(args);
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    /// Each split writes into `ran` when it begins, and goes on when a file `go` exists.
    fn script(&self) -> String {
        let (ran, go) = (self.place.path("ran"), self.place.path("go"));
        format!(
            "echo $AS_SPLIT >> {}; while [ ! -e {} ]; do sleep 0.05; done; cat",
            ran.display(),
            go.display()
        )
    }

    /// Kills the server once so many splits have begun, lets them end while it is away, and starts
    /// it again.
    fn strike(&self, begun: usize) {
        let ran = self.place.path("ran");
        let mut rounds = 0;
        while std::fs::read_to_string(&ran).map_or(0, |text| text.lines().count()) < begun {
            std::thread::sleep(Duration::from_millis(20));
            rounds += 1;
            assert!(rounds < 3000, "it never began");
        }
        self.server.kill().unwrap();
        self.place.write("go", "");
        std::thread::sleep(Duration::from_secs(2));
        self.server.run().unwrap();
    }

    fn is_whole(&self, text: &str) {
        assert!(self.done(&["cat", "out"]).text() == text, "each split once, and in order");
        self.done(&["check"]);
    }
}

const RUN: [&str; 10] =
    ["run", "--sandbox", "off", "--in", "numbers", "--out", "out", "--records", "lines", "--tries"];

#[test]
fn a_job_of_agents_goes_on_when_its_database_is_back() {
    let Some((outage, text)) = Outage::new(5000) else { return };
    let mut agents = Agents::default();
    agents.start(outage.command(&["node", "--allow-root", "--name", "one", "--slots", "2"]));
    let script = outage.script();
    let more = ["50", "--splits", "6", "--detach", "--", "sh", "-c", &script];
    let job = outage.done(&[&RUN[..], &more].concat()).text().trim().to_string();
    outage.strike(2);
    // The agent's splits are free when it releases them, or when its lease is over.
    let said = outage.say(&["job", "wait", &job, "--timeout", "200"]);
    assert_eq!(said.code, 0, "{}", said.err);
    outage.is_whole(&text);
}

#[test]
fn a_job_of_one_command_is_done_or_is_to_be_tried_again() {
    let Some((outage, text)) = Outage::new(5000) else { return };
    let script = outage.script();
    let more = ["50", "--splits", "6", "--slots", "2", "--", "sh", "-c", &script];
    let mut command = outage.command(&[&RUN[..], &more].concat());
    let run = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    outage.strike(2);
    let said = Said::from(run.wait_with_output().unwrap());
    if said.code != 0 {
        assert!(said.err.contains("job 1"), "{}", said.err);
        assert_ne!(outage.say(&["cat", "out"]).code, 0, "all or nothing: {}", said.err);
        outage.done(&["job", "retry", "--allow-root", "1"]);
    }
    outage.is_whole(&text);
}
