//! `rule add|list|remove|pause|resume|log`: programs that run by themselves.

use std::sync::Arc;

use clap::{Args, Subcommand};
use outrigger_active::job::spec::Output;
use outrigger_active::node::nodes;
use outrigger_active::rules::{self, Trigger};
use outrigger_format::catalogue::Time;
use outrigger_fuse::control::mounts_of;
use outrigger_store::Store;

use super::Context;
use super::job::{outputs_json, state_text, writable};
use super::run::WorkArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{Out, complain, local};

const EXAMPLES: &str = "\
Examples:
  outrigger rule add shrink --on close --in 'scans/**/*.tif' --out 'small/{stem}.zst' -- zstd
  outrigger rule add tell --on create --in 'inbox/*' --pattern '1R->0' --net -- ./announce
  outrigger rule add means --on write --in 'raw/*.csv' --pattern '1W->2W' --out 'means/{stem}' -- \\
      awk -F, '{s+=$2} END {print s/NR}'
  outrigger rule add seen --on read --in 'papers/*' --pattern '1R->0' --net -- ./count-a-reader
  outrigger rule add join --on close --when 'runs/*/_DONE' --pattern '#W->1W' \\
      --in '{dir}/part-*' --out '{dir}/all' -- sort
  outrigger rule list
  outrigger rule log shrink
  outrigger rule pause shrink; outrigger rule resume shrink

Events of --on:
  close   a matching file has a content that the rule has not seen
  create  a matching file exists that the rule has not seen; an empty one counts after an hour
  write   a file is created or overwritten in a mount; the program reads it while it is written
          (1W->2W, 1W->1W, 1W->0, 1W->#W), and sees its end when the writer closes it
  read    a file is opened in a mount for reading only, but not by a job's program; a content counts
          once a minute at most, and not while a job of the rule for it is open

Agents (`outrigger node`) run the jobs of rules; without an agent, matching files wait.
Agents look for close and create about once a second, in the stored tree. They do not see a file
that came and went in between, and see only the last of several contents. They may see a file of a
mount before its writer closes it; close then counts the later content, too.
Existing files count only with --existing.
With --when, one job is for many files: closing a marker makes a job over all files that --in names.
Files that were closed in a mount before the marker are complete in it.";

/// Run a program automatically for each matching file
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum RuleCommand {
    /// Make a rule
    Add(Box<AddArgs>),
    /// Show all rules
    #[command(after_help = "Examples:\n  outrigger rule list\n  outrigger rule list --json")]
    List,
    /// Remove a rule; its jobs continue
    #[command(after_help = "Examples:\n  outrigger rule remove thumbnails")]
    Remove {
        /// The rule's name
        name: String,
    },
    /// Pause a rule; new files wait
    #[command(after_help = "Examples:\n  outrigger rule pause thumbnails")]
    Pause {
        /// The rule's name
        name: String,
    },
    /// Resume a rule; it starts with the files that waited
    #[command(after_help = "Examples:\n  outrigger rule resume thumbnails")]
    Resume {
        /// The rule's name
        name: String,
    },
    /// List a rule's jobs, newest first, and files for which no job could be made
    #[command(
        after_help = "Examples:\n  outrigger rule log thumbnails\n  outrigger rule log thumbnails --limit 3 --json"
    )]
    Log {
        /// The rule's name
        name: String,
        /// List at most so many jobs
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: usize,
    },
}

/// Make a rule
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct AddArgs {
    /// The rule's name
    name: String,
    /// The event: close (new content), create (a new file), write (a file that is created or
    /// overwritten in a mount; it is read while it is written) or read (a file that is opened in a
    /// mount to be read)
    #[arg(long, value_name = "EVENT", value_parser = trigger)]
    on: Trigger,
    /// Which files, as a glob; with --when several globs, in which {dir}, {name}, {stem}, {ext} and
    /// {path} come from the marker
    #[arg(long = "in", value_name = "GLOB", required = true)]
    inputs: Vec<String>,
    /// With #W->1W and --on close: which files are markers, as a glob. When a marker is closed, all
    /// files of --in are complete, and one job reads them. --out is filled in from the marker, too
    #[arg(long, value_name = "GLOB")]
    when: Option<String>,
    /// Also process files that exist already
    #[arg(long)]
    existing: bool,
    #[command(flatten)]
    work: WorkArgs,
}

fn trigger(text: &str) -> Result<Trigger, String> {
    Trigger::parse(text).map_err(|error| error.to_string())
}

pub fn run(context: &Context, command: RuleCommand) -> Outcome {
    match command {
        RuleCommand::Add(args) => add(context, *args),
        RuleCommand::List => list(context),
        RuleCommand::Remove { name } => changed(&writable(context)?, |store| rules::remove(store, &name)),
        RuleCommand::Pause { name } => changed(&writable(context)?, |store| rules::pause(store, &name, true)),
        RuleCommand::Resume { name } => {
            changed(&writable(context)?, |store| rules::pause(store, &name, false))
        }
        RuleCommand::Log { name, limit } => log(context, &name, limit),
    }
}

/// Changes rules, and tells the mounts on this host.
fn changed(store: &Store, change: impl FnOnce(&Store) -> outrigger_store::Result<()>) -> Outcome {
    change(store)?;
    // A mount that does not answer, or is on another host, notices within a second, or has no
    // rules.
    for mut mount in mounts_of(store).unwrap_or_default() {
        let _ = mount.ask("rules");
    }
    Ok(Exit::Done)
}

fn add(context: &Context, args: AddArgs) -> Outcome {
    // Opening the store makes a mount store its staged data before the rule begins.
    let store = Arc::new(context.open()?);
    let AddArgs { name, on, inputs, when, existing, work } = args;
    let (spec, splits) = (work.spec()?, work.splits);
    if spec.prints() {
        return Err(Failure::usage("a rule has nobody to print results for: give --out a name"));
    }
    match (when, inputs.as_slice()) {
        (Some(_), _) if on != Trigger::Close => {
            return Err(Failure::usage("--when waits for a file to be closed; give --on close"));
        }
        (Some(when), _) => {
            let files = (inputs, work.with);
            changed(&store, |_| rules::add_marked(&store, &name, &when, files, spec, splits, existing))?;
        }
        (None, [input]) => {
            changed(&store, |_| rules::add(&store, &name, on, (input, work.with), spec, splits, existing))?;
        }
        (None, _) => {
            let why = "a rule handles one file at a time: give --in once, or use --when NAME with #W->1W for files that belong together";
            return Err(Failure::usage(why));
        }
    }
    if nodes(&store)?.is_empty() && !context.quiet {
        complain("no agent is running; start one with `outrigger node`, or matching files will wait");
    }
    Ok(Exit::Done)
}

fn list(context: &Context) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let (mut rules, mut exit) = (Vec::new(), Exit::Done);
    for (name, rule) in rules::list(&store)? {
        match rule {
            Ok(rule) => rules.push((name, rule)),
            Err(error) => {
                complain(&format!("{error}; this version cannot show the rule, and its agents ignore it"));
                exit = Exit::Partial;
            }
        }
    }
    let mut out = Out::new();
    if context.json {
        let object = |(name, rule): &(String, rules::Rule)| -> serde_json::Value {
            Object::new()
                .with("name", name.clone())
                .with("on", rule.on.to_string())
                .with("glob", rule.glob.clone())
                .with("members", rule.members.clone())
                .with("pattern", rule.spec.pattern.text())
                .with("program", rule.spec.program.clone())
                .with("also", rule.spec.also.iter().map(|also| also.program.clone()).collect::<Vec<_>>())
                .with("outputs", outputs_json(&rule.spec))
                .with("paused", rule.paused)
                .into()
        };
        out.json(Object::new().with("rules", rules.iter().map(object).collect::<Vec<_>>()))?;
    } else {
        for (name, rule) in rules {
            let paused = if rule.paused { "  (paused)" } else { "" };
            let (pattern, told) = (rule.spec.pattern, rule.spec.describe());
            let to: Vec<String> = rule.spec.outputs.iter().map(Output::describe).collect();
            let to = if to.is_empty() { String::new() } else { format!("  to {}", to.join(" and ")) };
            let of = rule.members.join(" and ");
            let to = if of.is_empty() { to } else { format!("  of {of}{to}") };
            out.line(&format!(
                "{name:<16}  {:<6}  {:<24}  {pattern}  {told}{to}{paused}",
                rule.on.to_string(),
                rule.glob
            ))?;
        }
    }
    out.finish()?;
    Ok(exit)
}

fn log(context: &Context, name: &str, limit: usize) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let (jobs, refused) = rules::log(&store, name, limit)?;
    let mut out = Out::new();
    let mut made: Vec<serde_json::Value> = Vec::new();
    for job in jobs {
        let Some(row) = store.jobs().job(job)? else { continue };
        let input = store.jobs().inputs(job)?.into_iter().next().map(|input| input.path).unwrap_or_default();
        if context.json {
            let object = Object::new().with("job", job.0).with("state", state_text(row.state));
            made.push(object.with_name("input", &input).with("created", rfc3339_nanos(row.created)).into());
            continue;
        }
        let when = local(Time::from_nanos(row.created));
        let input = outrigger_store::text::show(&input);
        let why = if row.why.is_empty() { String::new() } else { format!(": {}", row.why) };
        out.line(&format!("{when}  job {job:<6} {input}  {}{why}", state_text(row.state)))?;
    }
    if context.json {
        let object = |refused: &rules::Refused| -> serde_json::Value {
            Object::new().with("why", refused.why.clone()).with("when", rfc3339_nanos(refused.when)).into()
        };
        let refused: Vec<_> = refused.iter().map(object).collect();
        out.json(Object::new().with("jobs", made).with("refused", refused))?;
    } else {
        for refused in refused {
            out.line(&format!("{}  no job: {}", local(Time::from_nanos(refused.when)), refused.why))?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}
