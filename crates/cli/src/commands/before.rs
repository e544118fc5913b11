//! The snapshot that commands take before they remove or replace something, and `undo`, which
//! restores it.

use std::sync::Arc;

use clap::Args;
use outrigger_store::Store;
use outrigger_store::host::Identity;
use outrigger_store::meta::{At, SessionKind, SnapshotRow};
use outrigger_store::ops::restore::restore;
use outrigger_store::ops::snapshots;
use outrigger_store::policy::{SOURCE, parse_age};
use outrigger_store::snapshot::BeforeSnapshot;
use outrigger_store::snapshot::facts::{Counts, Facts, Kind};
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::set_policy;

use super::{Context, snapshot};
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, local, print_json, print_text};

const UNDO_EXAMPLES: &str = "\
Examples:
  outrigger undo           undo the last command of this host that removed or replaced something
  outrigger undo --redo    undo the last undo
  outrigger undo before-rm-20261127-121500.123    go back to before that command, in its paths

It works for `put`, `import`, `rm`, `mv`, `cp` and `run`, for 30 days (`outrigger keep --automatic`
sets the age). After that `gc` or `keep` deletes their snapshots; `outrigger snapshot list` shows
them. Other commands, jobs of rules, and changes in a mount cannot be undone.

Only the paths of the command change. They go back to their state before it, so later changes in
them are lost, too, also those made in a mount.";

/// The option of every command that can remove or replace content.
#[derive(Args)]
pub struct Before {
    /// Take no snapshot before something is removed or replaced; `outrigger undo` cannot undo it
    /// then
    #[arg(long)]
    no_snapshot: bool,
}

impl Before {
    /// The snapshot to take, for a command that works on `targets`.
    pub fn snapshot(
        &self,
        store: &Store,
        command: &str,
        sources: Vec<Vec<u8>>,
        targets: &[StorePath],
    ) -> Result<Option<Arc<BeforeSnapshot>>, Failure> {
        if self.no_snapshot {
            return Ok(None);
        }
        Ok(Some(before(store, command, sources, targets)?))
    }
}

fn before(
    store: &Store,
    command: &str,
    sources: Vec<Vec<u8>>,
    targets: &[StorePath],
) -> Result<Arc<BeforeSnapshot>, Failure> {
    Ok(snapshots::before(store, command, &snapshot::name_now(), sources, targets)?)
}

/// Ends the snapshot after the command, and returns its name if it stays. An error here does not
/// make the command fail.
pub fn settle(store: &Store, before: Option<&BeforeSnapshot>, counts: Counts) -> Option<String> {
    let before = before?;
    snapshots::settle(store, before, counts).unwrap_or_else(|error| {
        complain(&format!("the automatic snapshot could not record what the command changed: {error}"));
        before.taken()
    })
}

/// The sentence about `undo` for a command's summary.
pub fn hint(store: &Store, before: Option<&str>) -> String {
    let Some(name) = before else { return String::new() };
    // Without an answer, the sentence goes without the date.
    let age = snapshots::automatic_age(store).ok().and_then(|age| parse_age(&age).flatten());
    let until = age.zip(store.meta.now().ok()).map(|(age, now)| {
        let end = now.saturating_add(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        let end = local(outrigger_format::catalogue::Time::from_nanos(end));
        format!(" until {}", end.split(' ').next().unwrap_or_default())
    });
    format!("; `outrigger undo` undoes it{} (snapshot {name})", until.unwrap_or_default())
}

/// Undo the last command that removed or replaced something
#[derive(Args)]
#[command(after_help = UNDO_EXAMPLES)]
pub struct UndoArgs {
    /// The automatic snapshot to go back to; by default the newest that this host took
    name: Option<String>,
    /// Undo the last `undo`
    #[arg(long, conflicts_with = "name")]
    redo: bool,
}

pub fn undo(context: &Context, args: &UndoArgs) -> Outcome {
    let store = context.open_for_commits()?;
    let row = wanted(&store.meta.snapshots()?, args)?;
    let facts = Facts::of(&row);
    let own = before(&store, "undo", facts.sources.clone(), &facts.targets)?;
    let report = restore(&store, &row.name, &facts.targets, Some(&own))?;
    remember(&store, &facts)?;
    let kept = settle(&store, Some(&own), report.counts);
    context.settle(&store);
    let command = facts.command.as_deref().unwrap_or("a command");
    if context.json {
        let targets: Vec<String> = facts.targets.iter().map(StorePath::to_string).collect();
        print_json(
            Object::new()
                .with("undone", row.name.as_str())
                .with("command", command)
                .with("targets", targets)
                .with("entries_created", report.counts.created)
                .with("entries_changed", report.counts.changed)
                .with("entries_removed", report.counts.removed)
                .with("snapshot_before", kept),
        )?;
    } else if !context.quiet {
        let Counts { created, changed, removed } = report.counts;
        print_text(&format!(
            "undid `{command}` of {} on {}: {} restored, {changed} changed back, {removed} removed; `outrigger undo --redo` reverts this\n",
            local(outrigger_format::catalogue::Time::from_nanos(row.time)),
            snapshot::targets(&facts),
            counted(created, "entry", "entries"),
        ))?;
    }
    Ok(Exit::Done)
}

/// Restores the record of the source that each target mirrored.
fn remember(store: &Store, facts: &Facts) -> Result<(), Failure> {
    for (target, text) in &facts.mirrored {
        let Some(inode) = find(&*store.meta, At::Now, target)? else { continue };
        if store.meta.policies(inode.number)?.get(SOURCE) != Some(text) {
            let session = store.session(SessionKind::Writer, "undo")?;
            set_policy(store, &session, inode.number, SOURCE, Some(text))?;
        }
    }
    Ok(())
}

fn wanted(rows: &[SnapshotRow], args: &UndoArgs) -> Result<SnapshotRow, Failure> {
    let is_undoable = |row: &&SnapshotRow| {
        let facts = Facts::of(row);
        facts.kind == Kind::Automatic && !facts.targets.is_empty()
    };
    if let Some(name) = &args.name {
        let row = rows.iter().find(|row| row.name == *name);
        return row.filter(is_undoable).cloned().ok_or_else(|| {
            Failure::failed(format!(
                "`{name}` is not an automatic snapshot; `outrigger snapshot list` shows which there are, and `outrigger cp --at NAME` \
                 copies files from any snapshot"
            ))
        });
    }
    let host = Identity::this().name;
    let own = |row: &&SnapshotRow| is_undoable(row) && Facts::of(row).host.as_deref() == Some(&host);
    let found = rows.iter().rev().find(own).cloned().ok_or_else(|| {
        let others = match rows.iter().rev().find(is_undoable) {
            Some(other) => format!("; `outrigger undo {}` undoes another host's last command", other.name),
            None => String::new(),
        };
        Failure::failed(format!(
            "nothing to undo: no command on this host has removed or replaced anything{others}; changes made in a mount cannot be undone"
        ))
    })?;
    // `undo` does not undo an `undo`: the user may mean a later change without a snapshot.
    let is_undo = Facts::of(&found).command.as_deref() == Some("undo");
    if is_undo == args.redo {
        return Ok(found);
    }
    let taken = local(outrigger_format::catalogue::Time::from_nanos(found.time));
    Err(Failure::failed(match is_undo {
        true => format!(
            "the last undoable command was `undo`, on {taken}; `outrigger undo --redo` reverts it; for others, choose a NAME from `outrigger snapshot list` and run `outrigger undo NAME`"
        ),
        false => {
            format!("no undo to revert: the last command that took a snapshot, on {taken}, was not `undo`")
        }
    }))
}
