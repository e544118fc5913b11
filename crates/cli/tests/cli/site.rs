//! A store that several processes use, over each metadata engine on this machine.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;

use crate::run::{Place, Said};

/// A store that several processes use, and one host's view of it.
pub struct Site {
    pub place: Place,
    pub store: String,
    _packs: Option<tempfile::TempDir>,
    pub postgres: Option<(&'static Server, String)>,
}

impl Site {
    pub fn sqlite() -> Self {
        let place = Place::empty();
        let store = place.path("shared").display().to_string();
        let site = Self { place, store, _packs: None, postgres: None };
        site.done(&["init"]);
        site
    }

    pub fn postgres() -> Option<Self> {
        Self::postgres_with(&[])
    }

    /// With more options of `init`.
    pub fn postgres_with(init: &[&str]) -> Option<Self> {
        let server = Server::shared()?;
        let schema = server.fresh();
        let packs = tempfile::tempdir().unwrap();
        let at = format!("file:{}", packs.path().display());
        let postgres = Some((server, schema.clone()));
        let site = Self { place: Place::empty(), store: server.url(&schema), _packs: Some(packs), postgres };
        site.done(&[&["init", "--packs", &at], init].concat());
        Some(site)
    }

    /// One store for each engine on this machine.
    pub fn all() -> Vec<Self> {
        std::iter::once(Self::sqlite()).chain(Self::postgres()).collect()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.command_at("cache", args)
    }

    /// A command of a host with another cache directory.
    pub fn command_at(&self, cache: &str, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("OUTRIGGER_STORE", &self.store).env("OUTRIGGER_CACHE", self.place.path(cache));
        command
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> Said {
        let said = Said::from(self.command(args).output().unwrap());
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    pub fn spawn(mut command: Command) -> Child {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts an agent, and waits until it is registered.
    pub fn agent(&self, name: &str, slots: &str) -> Child {
        let child = Self::spawn(self.command(&["node", "--allow-root", "--name", name, "--slots", slots]));
        self.until(|| self.done(&["node", "list"]).text().contains(name));
        child
    }

    #[track_caller]
    pub fn until(&self, is: impl FnMut() -> bool) {
        eventually("what the test waits for", is);
    }

    /// Queues a job over `numbers` with so many splits. Each split writes into `ran` when it
    /// begins.
    pub fn queue(&self, splits: &str, ran: &Path, more: &str) -> String {
        let script = format!("echo $AS_SPLIT >> {}; {more} cat", ran.display());
        let args =
            ["run", "--detach", "--sandbox", "off", "--in", "numbers", "--out", "out", "--records", "lines"];
        let rest = ["--tries", "50", "--splits", splits, "--", "sh", "-c", &script];
        self.done(&[&args[..], &rest[..]].concat()).text().trim().to_string()
    }

    pub fn put_numbers(&self, lines: usize) -> String {
        let text: String = (0..lines).map(|line| format!("{line}\n")).collect();
        self.place.write("numbers", &text);
        self.done(&["put", "numbers"]);
        text
    }

    pub fn splits(&self, job: &str, state: &str) -> u64 {
        self.done(&["job", "show", job, "--json"]).json()[format!("splits_{state}")].as_u64().unwrap()
    }
}
