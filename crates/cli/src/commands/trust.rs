//! Options of `node` and `job retry` that say which jobs are run, and as which user.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use outrigger_active::identity::Submitter;
use outrigger_active::job::Mode;
use outrigger_active::trust::{Roles, Trust};

use crate::exit::Failure;

/// See the module.
#[derive(Args)]
pub struct TrustArgs {
    /// Map roles of the database to users of this host: lines `ROLE USER`, or `ROLE *` for a role
    /// that acts for others (mounts, other agents). Without a line, only jobs of this process's own
    /// role run. In a store in a directory, its owner submits all jobs
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Run all programs as this user, whoever submitted them (needs root)
    #[arg(long, value_name = "USER")]
    run_as: Option<String>,
    /// Run jobs of these users only, by names or numbers
    #[arg(long, value_name = "USER,…", value_delimiter = ',')]
    users: Option<Vec<String>>,
    /// Isolate every program at least this strictly, whatever its job says
    #[arg(long, default_value = "off", value_parser = sandbox)]
    sandbox: Mode,
    /// Run only signed jobs (`run --sign`) of users in this file of allowed signers: lines `USER
    /// KEY`, see ssh-keygen(1). Roles of the database no longer count then, and jobs of rules do
    /// not run
    #[arg(long, value_name = "FILE", conflicts_with = "map")]
    signed_by: Option<PathBuf>,
    /// Run root's jobs as root if they ask for no sandbox. Anyone who may write to the
    /// store's database can make such a job
    #[arg(long)]
    allow_root: bool,
}

fn user(option: &str, name: &str) -> Result<Submitter, Failure> {
    Submitter::named(name).map_err(|error| Failure::usage(format!("{option}: {error}")))
}

/// `off`, `best` or `strict`.
pub fn sandbox(text: &str) -> Result<Mode, String> {
    Mode::parse(text).map_err(|error| error.to_string())
}

impl TrustArgs {
    /// The trust that these options state.
    pub fn trust(&self) -> Result<Trust, Failure> {
        let run_as = self.run_as.as_deref().map(|name| user("--run-as", name)).transpose()?;
        if run_as.as_ref().is_some_and(Submitter::is_root) {
            return Err(Failure::usage(
                "--run-as: programs of other users cannot run as root; name another user",
            ));
        }
        if run_as.is_some() && !rustix::process::geteuid().is_root() {
            return Err(Failure::usage("--run-as: only root can run programs as another user"));
        }
        let uid = |name: &String| user("--users", name).map(|who| who.uid);
        let users = self.users.as_ref().map(|users| users.iter().map(uid).collect()).transpose()?;
        let roles = match &self.map {
            None => Roles::default(),
            Some(path) => {
                let at =
                    |why: &dyn std::fmt::Display| Failure::usage(format!("--map {}: {why}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|error| at(&error))?;
                Roles::parse(&text).map_err(|error| at(&error))?
            }
        };
        if let Some(path) = &self.signed_by {
            std::fs::File::open(path)
                .map_err(|error| Failure::usage(format!("--signed-by {}: {error}", path.display())))?;
        }
        let (allow_root, sandbox, signed_by) = (self.allow_root, self.sandbox, self.signed_by.clone());
        Ok(Trust { is_own: false, allow_root, run_as, users, roles, sandbox, signed_by })
    }

    /// The same options for another process.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
        for (option, file) in [("--map", &self.map), ("--signed-by", &self.signed_by)] {
            if let Some(file) = file {
                add(option, std::path::absolute(file).unwrap_or_else(|_| file.clone()).into());
            }
        }
        if let Some(who) = &self.run_as {
            add("--run-as", who.into());
        }
        if let Some(users) = &self.users {
            add("--users", users.join(",").into());
        }
        add("--sandbox", self.sandbox.name().into());
        words.extend(self.allow_root.then(|| "--allow-root".into()));
        words
    }
}
