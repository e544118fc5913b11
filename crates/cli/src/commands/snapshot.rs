//! `snapshot`: named moments of the whole tree.

use clap::{Args, Subcommand};
use jiff::Zoned;
use outrigger_format::catalogue::Time;
use outrigger_store::Store;
use outrigger_store::host::Identity;
use outrigger_store::meta::SnapshotRow;
use outrigger_store::ops::snapshots;
use outrigger_store::snapshot::facts::{Counts, Facts, Imported, Kind, in_order};
use outrigger_store::text::show;
use outrigger_store::tree::StorePath;
use serde_json::Value;

use super::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{count, counted, local, print_json, print_text, size};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger snapshot create before-upgrade
  outrigger snapshot create --tag weekly
  outrigger snapshot list
  outrigger ls --at before-upgrade
  outrigger snapshot hold before-upgrade
  outrigger snapshot delete before-upgrade";

const HOLD_EXAMPLES: &str = "\
Examples:
  outrigger snapshot hold before-put-20261127-121500.123     protects it from deletion
  outrigger snapshot release before-put-20261127-121500.123";

const CREATE_EXAMPLES: &str = "\
Examples:
  outrigger snapshot create before-upgrade
  outrigger snapshot create --tag weekly          named by the time";

const LIST_EXAMPLES: &str = "\
Examples:
  outrigger snapshot list
  outrigger snapshot list --tag weekly";

const DELETE_EXAMPLES: &str = "\
Examples:
  outrigger snapshot delete before-upgrade
  outrigger snapshot delete old older && outrigger gc    also frees the space

This is final: `undo` restores neither snapshots nor files that only a deleted snapshot had.";

/// Create, list and delete snapshots of the whole tree
///
/// A snapshot costs only the space that later changes would have freed. There are three kinds.
/// Named ones have a name that a user gave, and stay until they are deleted by it. Dated ones are
/// named by their time, as by `put --tag`; `keep` deletes old ones by its rules. Automatic ones are
/// taken by commands before they remove or replace something, for `undo`, and are deleted by their
/// age.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum SnapshotCommand {
    /// Take a snapshot of the tree as it is now
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// List snapshots, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Delete snapshots for good; the next `gc` frees the space of data that only they had
    #[command(after_help = DELETE_EXAMPLES, visible_alias = "rm")]
    Delete(NamesArgs),
    /// Protect snapshots of any kind: neither age nor rules nor `delete` remove them
    #[command(after_help = HOLD_EXAMPLES)]
    Hold(NamesArgs),
    /// End the protection of snapshots by `hold`
    #[command(after_help = HOLD_EXAMPLES)]
    Release(NamesArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Its name [default: the time]
    name: Option<String>,
    /// A tag; may be repeated
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
}

#[derive(Args)]
pub struct ListArgs {
    /// Only those with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

#[derive(Args)]
pub struct NamesArgs {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(context: &Context, command: SnapshotCommand) -> Outcome {
    match command {
        SnapshotCommand::Create(args) => create(context, &args),
        SnapshotCommand::List(args) => list(context, &args),
        SnapshotCommand::Delete(args) => delete(context, &args),
        SnapshotCommand::Hold(args) => hold(context, &args, true),
        SnapshotCommand::Release(args) => hold(context, &args, false),
    }
}

/// A name for a snapshot that has none, such as `20261121-220451.123`.
pub fn name_now() -> String {
    name_of(&Zoned::now())
}

/// A name for a snapshot of this time.
pub fn name_of(time: &Zoned) -> String {
    time.strftime("%Y%m%d-%H%M%S.%3f").to_string()
}

/// A snapshot with these tags, which a command takes when it is done.
pub fn tagged(
    store: &Store,
    tags: &[String],
    command: &str,
    sources: Vec<Vec<u8>>,
) -> Result<SnapshotRow, Failure> {
    when::check_new(store, None, tags)?;
    let facts = Facts { command: Some(command.to_string()), sources, ..facts_now(tags) };
    Ok(snapshots::create_with(store, None, &name_now(), facts)?)
}

fn facts_now(tags: &[String]) -> Facts {
    Facts { host: Some(Identity::this().name), tags: tags.to_vec(), ..Facts::default() }
}

/// A snapshot's facts.
pub fn json(snapshot: &SnapshotRow) -> Object {
    let facts = Facts::of(snapshot);
    let changes = facts.counts.map(|Counts { created, changed, removed }| {
        Value::from(Object::new().with("created", created).with("changed", changed).with("removed", removed))
    });
    let imported = facts.imported.map(|Imported { tool, repository, snapshot }| {
        Value::from(
            Object::new().with("tool", tool).with("repository", repository).with("snapshot", snapshot),
        )
    });
    let sources: Vec<String> = facts.sources.iter().map(|source| show(source)).collect();
    let targets: Vec<String> = facts.targets.iter().map(StorePath::to_string).collect();
    Object::new()
        .with("name", snapshot.name.as_str())
        .with("time", rfc3339_nanos(snapshot.time))
        .with("kind", facts.kind.name())
        .with("held", facts.held)
        .with("host", facts.host)
        .with("role", snapshot.role.clone())
        .with("command", facts.command)
        .with("sources", sources)
        .with("targets", targets)
        .with("files", facts.size.map(|(files, _)| files))
        .with("bytes", facts.size.map(|(_, bytes)| bytes))
        .with("changes", changes)
        .with("imported", imported)
        .with("tags", facts.tags)
}

/// The paths that a command worked on, shortened.
pub fn targets(facts: &Facts) -> String {
    match &facts.targets[..] {
        [] => String::new(),
        [one] => one.to_string(),
        [one, more @ ..] => format!("{one} and {}", counted(more.len() as u64, "other path", "other paths")),
    }
}

/// A snapshot's tags, its host, and the command that took it with its effects.
fn about(facts: &Facts) -> String {
    let mut parts = Vec::new();
    parts.extend((!facts.tags.is_empty()).then(|| facts.tags.join(",")));
    parts.extend(facts.host.as_ref().map(|host| format!("on {}", show(host.as_bytes()))));
    if let Some(command) = &facts.command {
        let sources: Vec<String> = facts.sources.iter().take(3).map(|source| show(source)).collect();
        let more = if facts.sources.len() > 3 { " …" } else { "" };
        let before = if facts.kind == Kind::Automatic { "before " } else { "" };
        let at = if facts.targets.is_empty() { String::new() } else { format!(" at {}", targets(facts)) };
        let from = if sources.is_empty() { String::new() } else { format!(" {}{more}", sources.join(" ")) };
        parts.push(format!("{before}{command}{from}{at}"));
    }
    parts.extend(facts.imported.as_ref().map(|Imported { tool, snapshot, .. }| {
        format!("{tool} {}", show(snapshot.get(..8).unwrap_or(snapshot).as_bytes()))
    }));
    parts.extend(
        facts.size.map(|(files, bytes)| format!("{}, {}", counted(files, "file", "files"), size(bytes))),
    );
    parts.extend(facts.counts.map(|Counts { created, changed, removed }| {
        format!("{} new, {} changed, {} removed", count(created), count(changed), count(removed))
    }));
    parts.join("  ")
}

fn create(context: &Context, args: &CreateArgs) -> Outcome {
    let store = context.open_for_snapshot()?;
    when::check_new(&store, args.name.as_deref(), &args.tag)?;
    let facts = facts_now(&args.tag);
    let snapshot = snapshots::create_with(&store, args.name.as_deref(), &name_now(), facts)?;
    context.settle(&store);
    if context.json {
        print_json(json(&snapshot))?;
    } else if !context.quiet {
        print_text(&format!("{}\n", snapshot.name))?;
    }
    Ok(Exit::Done)
}

fn list(context: &Context, args: &ListArgs) -> Outcome {
    let store = context.open()?;
    let mut snapshots = in_order(store.meta.snapshots()?);
    if let Some(tag) = &args.tag {
        snapshots.retain(|snapshot| snapshot.tags.contains(tag));
    }
    if context.json {
        let snapshots: Vec<Value> = snapshots.iter().map(|snapshot| json(snapshot).into()).collect();
        print_json(Object::new().with("snapshots", snapshots))?;
        return Ok(Exit::Done);
    }
    let width = snapshots.iter().map(|snapshot| snapshot.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in &snapshots {
        let (SnapshotRow { name, time, .. }, facts) = (row, Facts::of(row));
        let kind =
            if facts.held { format!("{}, held", facts.kind.name()) } else { facts.kind.name().to_string() };
        let line = format!("{name:width$}  {}  {kind:9}  {}", local(Time::from_nanos(*time)), about(&facts));
        text += line.trim_end();
        text.push('\n');
    }
    print_text(&text)?;
    Ok(Exit::Done)
}

fn hold(context: &Context, args: &NamesArgs, held: bool) -> Outcome {
    let store = context.open_for_upkeep()?;
    snapshots::hold(&store, &args.names, held)?;
    context.settle(&store);
    let what = if held { "held" } else { "released" };
    if context.json {
        print_json(Object::new().with(what, args.names.clone()))?;
    } else if !context.quiet {
        print_text(&format!("{what} {}\n", counted(args.names.len() as u64, "snapshot", "snapshots")))?;
    }
    Ok(Exit::Done)
}

/// What no command can take back, after deleted snapshots are named.
pub const GONE: &str = "; what nothing else has is gone for good, and `outrigger gc` frees its space";

fn delete(context: &Context, args: &NamesArgs) -> Outcome {
    let store = context.open_for_upkeep()?;
    let mut names = args.names.clone();
    names.sort();
    names.dedup();
    snapshots::delete(&store, &names)?;
    context.settle(&store);
    if context.json {
        print_json(Object::new().with("deleted", names))?;
    } else if !context.quiet {
        print_text(&format!("deleted {}{GONE}\n", counted(names.len() as u64, "snapshot", "snapshots")))?;
    }
    Ok(Exit::Done)
}
