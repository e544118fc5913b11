//! `snapshot`: named moments of the whole tree.

use clap::{Args, Subcommand};
use jiff::Zoned;
use outrigger_format::catalogue::Time;
use outrigger_store::meta::SnapshotRow;
use outrigger_store::ops::snapshots;
use serde_json::Value;

use super::Context;
use crate::exit::{Exit, Outcome};
use crate::output::{Object, counted, local, print_json, print_text, rfc3339_nanos};

const EXAMPLES: &str = "\
Examples:
  outrigger snapshot create before-upgrade
  outrigger snapshot create --tag weekly
  outrigger snapshot list
  outrigger ls --at before-upgrade
  outrigger snapshot delete before-upgrade";

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
  outrigger snapshot delete old older && outrigger gc    also gives back the space";

/// Create, list and delete snapshots: named moments of the whole tree
///
/// A snapshot costs nothing but what later changes would have freed. `put --tag` makes one too; `keep` deletes old ones.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum SnapshotCommand {
    /// Take a snapshot of the tree as it is now
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// List snapshots, oldest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Delete snapshots; what only they had goes with the next `gc`
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(DeleteArgs),
}

#[derive(Args)]
pub struct CreateArgs {
    /// Its name; by default it is named by the time
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
pub struct DeleteArgs {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub fn run(context: &Context, command: SnapshotCommand) -> Outcome {
    match command {
        SnapshotCommand::Create(args) => create(context, &args),
        SnapshotCommand::List(args) => list(context, &args),
        SnapshotCommand::Delete(args) => delete(context, &args),
    }
}

/// A name for a snapshot that has none, such as `20261121-220451.123`.
pub fn name_now() -> String {
    Zoned::now().strftime("%Y%m%d-%H%M%S.%3f").to_string()
}

/// A snapshot's facts.
pub fn json(snapshot: &SnapshotRow) -> Object {
    Object::new()
        .with("name", snapshot.name.as_str())
        .with("time", rfc3339_nanos(snapshot.time))
        .with("tags", snapshot.tags.clone())
}

fn create(context: &Context, args: &CreateArgs) -> Outcome {
    let store = context.open_for_snapshot()?;
    let snapshot = snapshots::create(&store, args.name.as_deref(), &name_now(), &args.tag)?;
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
    let mut snapshots = store.meta.snapshots()?;
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
    for SnapshotRow { name, time, tags, .. } in &snapshots {
        let line = format!("{name:width$}  {}  {}", local(Time::from_nanos(*time)), tags.join(","));
        text += line.trim_end();
        text.push('\n');
    }
    print_text(&text)?;
    Ok(Exit::Done)
}

fn delete(context: &Context, args: &DeleteArgs) -> Outcome {
    let store = context.open_for_upkeep()?;
    let mut names = args.names.clone();
    names.sort();
    names.dedup();
    snapshots::delete(&store, &names)?;
    context.settle(&store);
    if context.json {
        print_json(Object::new().with("deleted", names))?;
    } else if !context.quiet {
        print_text(&format!("deleted {}\n", counted(names.len() as u64, "snapshot", "snapshots")))?;
    }
    Ok(Exit::Done)
}
