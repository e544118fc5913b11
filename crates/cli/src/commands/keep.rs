//! `keep`: deletes snapshots that no rule keeps.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use outrigger_format::catalogue::Time;
use outrigger_store::meta::{ROOT_INODE, SessionKind, SnapshotRow};
use outrigger_store::ops::retention::{Candidate, Retention};
use outrigger_store::ops::snapshots;
use outrigger_store::policy::AUTOMATIC;
use outrigger_store::snapshot::facts::{Facts, Kind, in_order};
use outrigger_store::write::set_policy;
use serde_json::Value;

use super::Context;
use super::snapshot::{self, GONE};
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{counted, local, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger keep --last 10 --daily 7 --weekly 4 --monthly 12 --dry-run
  outrigger keep --daily 7 --tag release && outrigger gc
  outrigger keep --automatic 7d                from now on, keep automatic snapshots for a week
  outrigger keep --of nightly --last 30        apply the rules only to snapshots tagged nightly

The rules apply to dated snapshots, which `put --tag` and timers take. A tag is not a name.
Named snapshots (`snapshot create NAME`) and held ones always stay.
Automatic snapshots, which `undo` needs, go by their age alone: `keep` and `gc` delete those that
are older than --automatic says, 30 days at first.

A snapshot is kept if any rule keeps it. In each hour, day, ISO week, month or year (in the
machine's time zone) the newest snapshot counts. Periods without snapshots do not count.";

/// Keep snapshots by rules, and delete the others
///
/// The rules apply to dated snapshots only. Automatic ones go when they are old enough, and named
/// ones stay. Nothing is deleted without a rule, if no snapshot has a tag of --tag or --of, or if
/// all would go (unless --delete-all is given). `outrigger gc` then frees the space.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KeepArgs {
    /// Keep the newest N
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    last: usize,
    /// Keep the newest of each of N hours
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    hourly: usize,
    /// Keep the newest of each of N days
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    daily: usize,
    /// Keep the newest of each of N weeks
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    weekly: usize,
    /// Keep the newest of each of N months
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    monthly: usize,
    /// Keep the newest of each of N years
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    yearly: usize,
    /// Keep all with this tag; may be repeated
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Apply the rules only to snapshots with this tag, and leave all others alone
    #[arg(long, value_name = "TAG")]
    of: Option<String>,
    /// How long automatic snapshots stay from now on: days (30d, the initial setting), hours (12h)
    /// or forever
    #[arg(long, value_name = "AGE", value_parser = args::age)]
    automatic: Option<String>,
    /// Allow the rules to delete all snapshots that they apply to
    #[arg(long)]
    delete_all: bool,
    /// Only say what would be done
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// As if a snapshot with this tag had just been taken; for the dry run of a profile, whose run
    /// takes one before the rules apply
    #[arg(long, value_name = "TAG", hide = true, requires = "dry_run")]
    after_one_of: Vec<String>,
}

/// Why a snapshot stays; empty for one that is deleted.
type Reasons = Vec<&'static str>;

pub fn run(context: &Context, args: KeepArgs) -> Outcome {
    let retention = Retention {
        last: args.last,
        periods: [args.hourly, args.daily, args.weekly, args.monthly, args.yearly],
        tags: args.tag.clone(),
    };
    if retention.is_empty() && args.automatic.is_none() {
        return Err(Failure::usage(
            "no rule says what to keep; give at least one, such as --last 10 or --daily 7",
        ));
    }
    let store = if args.dry_run { context.open()? } else { context.open_for_upkeep()? };
    if let Some(age) = args.automatic.as_ref().filter(|_| !args.dry_run) {
        store.require_may_remove("say how long snapshots stay")?;
        let session = store.session(SessionKind::Writer, "keep")?;
        set_policy(&store, &session, ROOT_INODE, AUTOMATIC, Some(age))?;
    }
    let mut all = store.meta.snapshots()?;
    all.extend((!args.after_one_of.is_empty()).then(|| next(&args.after_one_of)));
    let rows = looked_at(&all, &retention, args.of.as_deref())?;
    let expired = snapshots::expired(&store, args.automatic.as_deref())?;
    let reasons = reasons(&rows, &retention, &expired);
    let gone: Vec<String> = rows
        .iter()
        .zip(&reasons)
        .filter(|(_, reasons)| reasons.is_empty())
        .map(|((row, _), _)| row.name.clone())
        .collect();
    let dated = |row: &(SnapshotRow, Facts)| row.1.kind == Kind::Dated;
    let (dated_rows, left) = (
        rows.iter().filter(|row| dated(row)).count(),
        rows.iter().zip(&reasons).filter(|(row, reasons)| dated(row) && !reasons.is_empty()).count(),
    );
    if !retention.is_empty() && dated_rows > 0 && left == 0 && !args.delete_all {
        return Err(Failure::usage(format!(
            "the rules keep none of {}, nothing was deleted; give --delete-all to delete them all",
            counted(dated_rows as u64, "dated snapshot", "dated snapshots")
        )));
    }
    if !args.dry_run {
        snapshots::delete(&store, &gone)?;
        context.settle(&store);
    }
    let orphaned = orphaned(&all, &gone);
    if context.json {
        let facts = |((row, _), reasons): (&(SnapshotRow, Facts), &Reasons)| -> Value {
            snapshot::json(row).with("kept", !reasons.is_empty()).with("rules", reasons.clone()).into()
        };
        let list = rows.iter().zip(&reasons).filter(|((row, _), _)| row.name != NEXT);
        let list: Vec<Value> = list.map(facts).collect();
        print_json(
            Object::new()
                .with("dry_run", args.dry_run)
                .with("automatic", snapshots::automatic_age(&store)?)
                .with("deleted", gone)
                .with("tags_gone", orphaned.into_iter().collect::<Vec<_>>())
                .with("snapshots", list),
        )?;
    } else if !context.quiet {
        let mut text = describe(&rows, &reasons, args.dry_run);
        for tag in orphaned {
            let has = if args.dry_run { "would have" } else { "has" };
            text += &format!("no snapshot {has} the tag `{tag}` any more\n");
        }
        if !gone.is_empty() && !args.dry_run {
            text += &format!("deleted {}{GONE}\n", counted(gone.len() as u64, "snapshot", "snapshots"));
        }
        print_text(&text)?;
    }
    Ok(Exit::Done)
}

/// The tags that only deleted snapshots have, in the order of the alphabet.
fn orphaned(all: &[SnapshotRow], gone: &[String]) -> BTreeSet<String> {
    let tags = |is_gone: bool| -> BTreeSet<String> {
        let of = all.iter().filter(|row| gone.contains(&row.name) == is_gone);
        of.flat_map(|row| Facts::of(row).tags).collect()
    };
    &tags(true) - &tags(false)
}

/// A name that no snapshot can have.
const NEXT: &str = "(of this run)";

/// The snapshot that a run would take now.
fn next(tags: &[String]) -> SnapshotRow {
    let facts = Facts { kind: Kind::Dated, tags: tags.to_vec(), ..Facts::default() };
    let time = outrigger_clock::now_nanos();
    SnapshotRow { name: NEXT.to_string(), epoch: u64::MAX, time, tags: facts.to_tags(), role: None }
}

/// The snapshots that the rules apply to, oldest first.
fn looked_at(
    all: &[SnapshotRow],
    retention: &Retention,
    of: Option<&str>,
) -> Result<Vec<(SnapshotRow, Facts)>, Failure> {
    // `--at` finds the newest by this order, too.
    let mut rows: Vec<_> = in_order(all.to_vec()).into_iter().map(|row| (Facts::of(&row), row)).collect();
    let has = |facts: &Facts, tag: &str| facts.tags.iter().any(|own| own == tag);
    // A mistyped tag would keep nothing, and the snapshots that it was meant to keep would go.
    if let Some(tag) = retention.tags.iter().find(|tag| !rows.iter().any(|(facts, _)| has(facts, tag))) {
        return Err(Failure::usage(format!(
            "no snapshot has the tag `{tag}`, nothing was deleted; `outrigger snapshot list` shows all tags"
        )));
    }
    if let Some(of) = of {
        rows.retain(|(facts, _)| has(facts, of));
        if rows.is_empty() {
            return Err(Failure::usage(format!(
                "--of {of}: no snapshot has that tag; `outrigger snapshot list` shows all tags"
            )));
        }
    }
    Ok(rows.into_iter().map(|(facts, row)| (row, facts)).collect())
}

/// For each snapshot, why it stays. The rules see dated ones only, so that an automatic one does
/// not take the place of a nightly one of the same day.
fn reasons(rows: &[(SnapshotRow, Facts)], retention: &Retention, expired: &[String]) -> Vec<Reasons> {
    let zone = TimeZone::system();
    // Each role's snapshots for themselves: one cannot displace another's.
    let mut decided: BTreeMap<&Option<String>, std::vec::IntoIter<Reasons>> = BTreeMap::new();
    for (row, _) in rows {
        decided.entry(&row.role).or_insert_with(|| {
            let dated = rows.iter().filter(|(of, facts)| facts.kind == Kind::Dated && of.role == row.role);
            let candidates: Vec<Candidate<'_>> = dated
                .map(|(row, facts)| Candidate { tags: &facts.tags, keys: keys(row.time, &zone) })
                .collect();
            // With only --automatic there is no rule for dated ones.
            match retention.is_empty() {
                true => vec![vec!["no rule"]; candidates.len()],
                false => retention.decide(&candidates),
            }
            .into_iter()
        });
    }
    rows.iter()
        .map(|(row, facts)| {
            let mut reasons = match facts.kind {
                Kind::Named => vec!["named"],
                Kind::Automatic if expired.contains(&row.name) => Vec::new(),
                Kind::Automatic => vec!["age"],
                Kind::Dated => decided.get_mut(&row.role).and_then(Iterator::next).unwrap_or_default(),
            };
            reasons.extend(facts.held.then_some("held"));
            reasons
        })
        .collect()
}

fn describe(rows: &[(SnapshotRow, Facts)], reasons: &[Reasons], dry_run: bool) -> String {
    let width = rows.iter().map(|(row, _)| row.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for ((row, _), reasons) in rows.iter().zip(reasons) {
        let verdict = match (reasons.is_empty(), dry_run) {
            (false, _) => format!("keep ({})", reasons.join(", ")),
            (true, true) => "would delete".to_string(),
            (true, false) => "deleted".to_string(),
        };
        text += &format!("{:width$}  {}  {verdict}\n", row.name, local(Time::from_nanos(row.time)));
    }
    text
}

/// Numbers that are equal within the same hour, day, week, month and year.
fn keys(nanos: u64, zone: &TimeZone) -> [i64; 5] {
    let time =
        Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone.clone());
    let week = time.date().iso_week_date();
    let (year, month, day) = (i64::from(time.year()), i64::from(time.month()), i64::from(time.day()));
    // When clocks are set back, one hour comes twice. Both count, because their offsets differ.
    let hour = time.timestamp().as_second().div_euclid(3600);
    let day = (year * 12 + month) * 31 + day;
    [hour, day, i64::from(week.year()) * 53 + i64::from(week.week()), year * 12 + month, year]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(time: &str) -> [i64; 5] {
        keys(time.parse::<Timestamp>().unwrap().as_nanosecond() as u64, &TimeZone::UTC)
    }

    #[test]
    fn periods_change_when_they_should() {
        let same =
            |a: &str, b: &str| -> Vec<bool> { key(a).iter().zip(key(b)).map(|(a, b)| *a == b).collect() };
        assert_eq!(same("2026-11-21T10:00:00Z", "2026-11-21T10:59:59Z"), [true; 5]);
        assert_eq!(same("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"), [false, true, true, true, true]);
        assert_eq!(same("2026-11-21T10:00:00Z", "2026-11-22T10:00:00Z"), [false, false, true, true, true]);
        assert_eq!(same("2026-11-22T10:00:00Z", "2026-11-23T10:00:00Z"), [false, false, false, true, true]);
        // ISO weeks run over the new year.
        assert_eq!(same("2025-12-31T10:00:00Z", "2026-01-01T10:00:00Z"), [false, false, true, false, false]);
    }
}
