//! `profile`: puts, keeps and runs what a profile of the configuration file says.
//!
//! ```text
//!  before ──▶ put ──▶ keep ──▶ after ──▶ on-failure ──▶ always
//!     │ fails                    ▲
//!     └──────────────────────────┘
//! ```
//!
//! Each step is a process of this program, so that a profile does exactly what its commands do.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Context;
use crate::args::{self, Hook, Keep, Profile};
use crate::exit::{Exit, Failure, INTERRUPTED, Outcome};
use crate::json::Object;
use crate::output::{complain, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger profile list
  outrigger backup home             runs the profile `home`
  outrigger backup home -n          show what it would put and delete; no hooks run
  systemctl enable --now outrigger-backup@home.timer

In ~/.config/outrigger/config.toml or /etc/outrigger/config.toml, or the file that OUTRIGGER_CONFIG
names:
  [profiles.home]
  store = \"/backup/store\"
  sources = [\"/home/me\"]
  to = \"home\"
  exclude = [\"*.tmp\"]
  keep = { daily = 7, weekly = 4 }
  on-failure = [\"mail -s 'backup failed' me\"]

More: docs/profiles.md";

/// Run profiles of the configuration file
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum ProfileCommand {
    /// Put, take a snapshot, and delete snapshots by rules, as a profile says
    #[command(after_help = EXAMPLES)]
    Run(RunArgs),
    /// List the profiles
    #[command(after_help = EXAMPLES)]
    List,
}

#[derive(Args)]
pub struct RunArgs {
    /// The profile
    name: String,
    /// Only say what would be put and deleted; hooks do not run
    #[arg(long, short = 'n')]
    dry_run: bool,
}

pub fn run(context: &Context, command: ProfileCommand) -> Outcome {
    let profiles = args::profiles()?;
    let RunArgs { name, dry_run } = match command {
        ProfileCommand::List => return list(context, profiles.into_iter().collect()),
        ProfileCommand::Run(args) => args,
    };
    let Some(profile) = profiles.get(&name) else {
        return Err(args::no_profile(&name, &profiles));
    };
    let store = store(context, &name, profile)?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Without the handler a signal would end the run before its commands in `after`.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stopped));
    }
    let said = Object::new();
    let mut steps = Steps { context, name: &name, profile, store, dry_run, stopped, said };
    let exit = steps.all();
    let is_stopped = steps.is_stopped();
    if context.json {
        let Steps { said, store, .. } = steps;
        let store = store.map(|store| store.to_string_lossy().into_owned());
        print_json(said.with("profile", name.as_str()).with("store", store).with("exit", exit as u8))?;
    }
    if is_stopped {
        complain("stopped; run the profile again to go on");
        std::process::exit(INTERRUPTED.into());
    }
    Ok(exit)
}

/// The store of a run. What the shell exports for other commands must not send a profile's data,
/// and its rules for old snapshots, to another store than its own.
fn store(context: &Context, name: &str, profile: &Profile) -> Result<Option<OsString>, Failure> {
    let own = profile.store.as_deref().map(Path::new).filter(|own| !own.as_os_str().is_empty());
    let store = context.store_given().or(own).or_else(|| context.store_named());
    if let Some(store) = store.filter(|_| !context.quiet && !context.json) {
        let unused = context.store_named().filter(|named| *named != store);
        let unused = unused.map(|_| ", not to that of OUTRIGGER_STORE").unwrap_or_default();
        print_text(&format!("profile `{name}`: to {}{unused}\n", store.display()))?;
    }
    Ok(store.map(OsString::from))
}

fn sources(profile: &Profile) -> Vec<String> {
    profile.sources.iter().map(|source| source.display().to_string()).collect()
}

fn list(context: &Context, profiles: Vec<(String, Profile)>) -> Outcome {
    if context.json {
        let facts = |(name, profile): &(String, Profile)| -> Value {
            let sources = sources(profile);
            let object = Object::new().with("name", name.as_str()).with("store", profile.store.clone());
            object.with("sources", sources).with("to", profile.to.clone()).into()
        };
        print_json(Object::new().with("profiles", profiles.iter().map(facts).collect::<Vec<_>>()))?;
        return Ok(Exit::Done);
    }
    let width = profiles.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, profile): &(String, Profile)| {
        let sources = sources(profile);
        let to = profile.to.as_ref().map_or_else(String::new, |to| format!(" to {to}"));
        format!("{name:width$}  {}{to}\n", sources.join(" "))
    };
    print_text(&profiles.iter().map(line).collect::<String>())?;
    Ok(Exit::Done)
}

/// A run of a profile.
struct Steps<'a> {
    context: &'a Context,
    name: &'a str,
    profile: &'a Profile,
    store: Option<OsString>,
    dry_run: bool,
    /// A signal has come: no further step starts, except those that clean up.
    stopped: Arc<AtomicBool>,
    /// The steps' own output, as JSON.
    said: Object,
}

impl Steps<'_> {
    fn all(&mut self) -> Exit {
        let mut exit = self.before();
        if self.is_stopped() {
            exit = Exit::Failed;
        }
        if exit == Exit::Done {
            exit = self.step("put", self.put());
            // The put has named what it skipped, and taken its snapshot.
            let goes_on = matches!(exit, Exit::Done | Exit::Partial) && !self.is_stopped();
            if let Some(keep) = self.profile.keep.filter(|_| goes_on) {
                exit = worse(exit, self.step("keep", self.keep(keep)));
            }
        }
        exit = worse(exit, self.hooks("after", &self.profile.after, exit));
        if exit != Exit::Done {
            self.hooks("on-failure", &self.profile.on_failure, exit);
        }
        worse(exit, self.hooks("always", &self.profile.always, exit))
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn before(&self) -> Exit {
        for hook in self.profile.before.iter().take_while(|_| !self.is_stopped()) {
            let exit = self.hooks("before", std::slice::from_ref(hook), Exit::Done);
            if exit != Exit::Done {
                return exit;
            }
        }
        Exit::Done
    }

    fn tags(&self) -> Vec<String> {
        match &self.profile.tags[..] {
            [] => vec![self.name.to_string()],
            tags => tags.to_vec(),
        }
    }

    fn put(&self) -> Vec<OsString> {
        let profile = self.profile;
        let mut words: Vec<OsString> = vec!["put".into()];
        let mut option = |name: &str, value: OsString| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value);
            words.push(word);
        };
        // Several sources go into the root by their names. Said so, a missing one is only skipped.
        let root = (profile.sources.len() > 1).then_some("/");
        profile.to.as_deref().or(root).iter().for_each(|to| option("to", to.into()));
        profile.exclude.iter().for_each(|glob| option("exclude", glob.into()));
        profile.exclude_from.iter().for_each(|file| option("exclude-from", file.into()));
        profile.exclude_if_present.iter().for_each(|name| option("exclude-if-present", name.into()));
        profile.ignore_file.iter().for_each(|name| option("ignore-file", name.into()));
        self.tags().iter().for_each(|tag| option("tag", tag.into()));
        let flags = [
            (profile.exclude_caches, "--exclude-caches"),
            (profile.one_file_system, "--one-file-system"),
            (self.dry_run, "--dry-run"),
        ];
        words.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| OsString::from(flag)));
        words.push("--".into());
        words.extend(profile.sources.iter().map(OsString::from));
        words
    }

    /// The rules see only the snapshots of this profile.
    fn keep(&self, keep: Keep) -> Vec<OsString> {
        let Keep { last, hourly, daily, weekly, monthly, yearly } = keep;
        let mut words = vec!["keep".to_string(), format!("--of={}", self.tags()[0])];
        let rules = [
            ("last", last),
            ("hourly", hourly),
            ("daily", daily),
            ("weekly", weekly),
            ("monthly", monthly),
            ("yearly", yearly),
        ];
        words.extend(rules.iter().filter(|(_, n)| *n > 0).map(|(rule, n)| format!("--{rule}={n}")));
        if self.dry_run {
            // The run's own snapshot counts, too, and may be the first with the tag.
            words.push("--dry-run".to_string());
            words.extend(self.tags().iter().map(|tag| format!("--after-one-of={tag}")));
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Runs a command of this program.
    fn step(&mut self, name: &str, words: Vec<OsString>) -> Exit {
        let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "outrigger".into()));
        if let Some(store) = &self.store {
            command.env("OUTRIGGER_STORE", store);
        }
        command.args(self.context.flags()).args(words).stdin(Stdio::null());
        if self.context.json {
            command.stdout(Stdio::piped());
        }
        let output = command.spawn().and_then(std::process::Child::wait_with_output);
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                complain(&format!("cannot run `outrigger {name}`: {error}"));
                return Exit::Failed;
            }
        };
        if self.context.json {
            let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            self.said = std::mem::take(&mut self.said).with(name, value);
        }
        Exit::of(output.status.code())
    }

    /// Runs all hooks, even if some fail. Each gets the outcome so far.
    fn hooks(&self, when: &str, hooks: &[Hook], so_far: Exit) -> Exit {
        let mut exit = Exit::Done;
        for hook in hooks.iter().filter(|_| !self.dry_run) {
            let (program, words) = match hook {
                Hook::Shell(text) => ("sh", vec!["-c".to_string(), text.clone()]),
                Hook::Words(words) => match words.split_first() {
                    Some((program, words)) => (program.as_str(), words.to_vec()),
                    None => continue,
                },
            };
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null());
            command.env("OUTRIGGER_PROFILE", self.name).env("OUTRIGGER_EXIT", (so_far as u8).to_string());
            if let Some(store) = &self.store {
                command.env("OUTRIGGER_STORE", store);
            }
            // Standard output is for JSON, or for the output of the commands.
            if self.context.json {
                command.stdout(std::io::stderr());
            }
            let why = match command.status() {
                Ok(status) if status.success() => continue,
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            complain(&format!("a `{when}` command of the profile `{}` failed: {program}: {why}", self.name));
            exit = Exit::Failed;
        }
        exit
    }
}

/// The first of two failures counts. A failure outweighs a partial success.
fn worse(first: Exit, then: Exit) -> Exit {
    match (first, then) {
        (Exit::Done, then) => then,
        (Exit::Partial, then) if then != Exit::Done => then,
        (first, _) => first,
    }
}
