//! `stats`: the size of a store and of its content; with `--live`, samples of its mount (`live`).

use std::time::Duration;

use clap::Args;
use outrigger_format::Reason;
use outrigger_store::ops::stats::{FrameTotals, PackTotals, Stats, stats};
use outrigger_store::parity;
use serde_json::Value;

use super::live::Watch;
use super::{Context, live, offload};
use crate::args::values;
use crate::exit::{Exit, Outcome};
use crate::json::Object;
use crate::output::{count, counted, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger stats
  outrigger stats --json | jq '.stored_bytes / .logical_bytes'
  outrigger stats --live                                  watch the mount, every second
  outrigger stats --live --interval 10 --count 6          for a minute
  outrigger stats --live --json | jq -r .per_second.written_bytes

logical   the files of the current tree, each once
retained  the same with all kept versions and snapshots
unique    the retained data after deduplication
stored    what packs take on disk, compressed; includes what `outrigger gc` would free";

/// With more packs, only this many are sampled unless --exact is given: each frame costs one read.
const PACKS_SAMPLED: usize = 256;

/// Show how much is stored, deduplicated and compressed
///
/// With --live, watch the writable mount of the store: data written, read, staged and stored, with
/// rates since the sample before (the first time, since the mount began), and failures. Ctrl-C ends
/// it.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    /// Look at the frames of every pack, instead of at most 256 packs
    #[arg(long)]
    exact: bool,
    /// Watch the mount: refreshed on a terminal, else one line per sample; with --json one object
    /// per sample
    #[arg(long, conflicts_with = "exact")]
    live: bool,
    /// Seconds from one sample to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::interval, requires = "live")]
    interval: Duration,
    /// End after so many samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), requires = "live")]
    count: Option<u64>,
    /// The mount with this session, if this host has several mounts of one store (`outrigger
    /// status` lists them)
    #[arg(long, value_name = "N", requires = "live")]
    session: Option<u64>,
}

pub fn run(context: &Context, args: StatsArgs) -> Outcome {
    if args.live {
        return live::run(
            context,
            &Watch { interval: args.interval, count: args.count, session: args.session },
        );
    }
    let store = context.open()?;
    let stats = stats(&store, if args.exact { usize::MAX } else { PACKS_SAMPLED })?;
    // Elsewhere each parity file would cost a request: there `check` and `gc` say it.
    let parity = if store.backend.lists_cheaply() { parity::reach(&store)? } else { None };
    let key = store.keys().map(|keys| keys.table_cache_key());
    let table_cache = outrigger_store::table_cache::saved(store.dir(), store.config.id, key.as_ref());
    if context.json {
        let table_cache =
            table_cache.as_ref().map(|asked| serde_json::Value::from(offload::table_cache_json(asked)));
        let packs_at = store.config.packs.as_ref().map(ToString::to_string);
        let object =
            json(&stats).with("experiment", store.config.experiment).with("table_cache", table_cache);
        let parity = parity.map(|reach| {
            Object::new()
                .with("packs_protected", reach.packs_protected)
                .with("packs_unprotected", reach.packs_unprotected)
        });
        let object = object.with("parity", parity.map(Value::from));
        print_json(object.with("packs_at", packs_at).with("packs_trouble", store.backend.trouble()))?
    } else {
        let mut text = describe(&stats);
        if let Some(reach) = parity {
            text += &format!(
                "\nparity protects {}, and not {}\n",
                counted(reach.packs_protected, "pack", "packs"),
                counted(reach.packs_unprotected, "pack", "packs")
            );
        }
        if let Some(asked) = &table_cache {
            text += &format!("\n{}, since the store was made\n", offload::describe(asked));
        }
        if store.config.experiment {
            text.insert_str(
                0,
                "store      for experiments: some fingerprints may never have been computed\n",
            );
        }
        print_text(&text)?
    }
    Ok(Exit::Done)
}

/// `raw / stored`, 1 when there is nothing.
fn ratio(raw: u64, stored: u64) -> f64 {
    if stored == 0 { 1.0 } else { raw as f64 / stored as f64 }
}

fn describe(stats: &Stats) -> String {
    let (data, all) = (stats.committed(Some("data")), stats.committed(None));
    let tree = &stats.tree;
    let memory = &stats.memory;
    let mut text = format!(
        "tree       {}, {}, {}; {}\n",
        counted(tree.files, "file", "files"),
        counted(tree.directories, "directory", "directories"),
        counted(tree.others, "other", "others"),
        counted(stats.snapshots, "snapshot", "snapshots"),
    );
    text += &format!("logical    {}\n", size(tree.bytes));
    text += &format!("retained   {}\n", size(stats.retained_bytes));
    let deduplicated = ratio(stats.retained_bytes, data.raw_bytes);
    text += &format!("unique     {} ({deduplicated:.2} x smaller by deduplication)\n", size(data.raw_bytes));
    let total = ratio(stats.retained_bytes, all.stored_bytes);
    text += &format!("stored     {} ({total:.2} x smaller in all)\n", size(all.stored_bytes));
    text += &format!(
        "chunks     {}, {} on average\n",
        count(data.chunks),
        size(data.raw_bytes / data.chunks.max(1))
    );
    text += &format!("database   {}\n", size(stats.database_bytes));
    text += &format!(
        "index      {} of memory: {} filter, {} fences, {} recent, {} locality; {}\n",
        size((memory.filter + memory.fences + memory.recent + memory.locality) as u64),
        size(memory.filter as u64),
        size(memory.fences as u64),
        size(memory.recent as u64),
        size(memory.locality as u64),
        counted(stats.index.runs as u64, "run", "runs"),
    );
    text += "\npacks                     count      stored         raw\n";
    for ((kind, state), totals) in &stats.packs {
        let PackTotals { packs, stored_bytes, raw_bytes, .. } = *totals;
        let what = format!("{kind} {state}");
        text += &format!(
            "  {what:18} {:>10}  {:>10}  {:>10}\n",
            count(packs),
            size(stored_bytes),
            size(raw_bytes)
        );
    }
    let sampled = match (stats.packs_sampled, stats.packs_readable) {
        (some, all) if some < all => format!(" (of {some} of {all} packs)"),
        _ => String::new(),
    };
    text += &format!("\nframes                         count      stored         raw   ratio{sampled}\n");
    for (key, totals) in &stats.frames {
        let FrameTotals { frames, raw_bytes, stored_bytes } = *totals;
        let (what, ratio) = (format!("{} {}", key.kind, key.encoding), ratio(raw_bytes, stored_bytes));
        let line = format!(
            "  {what:23} {:>10}  {:>10}  {:>10}  {ratio:>6.2}  {}",
            count(frames),
            size(stored_bytes),
            size(raw_bytes),
            if key.reason == Reason::Unstated { "" } else { key.reason.text() },
        );
        text += line.trim_end();
        text.push('\n');
    }
    if stats.packs_unreadable > 0 {
        text += &format!(
            "\n{} could not be read: see `outrigger check`\n",
            counted(stats.packs_unreadable, "pack", "packs")
        );
    }
    text
}

fn json(stats: &Stats) -> Object {
    let (data, all) = (stats.committed(Some("data")), stats.committed(None));
    let packs: Vec<Value> = stats
        .packs
        .iter()
        .map(|((kind, state), totals)| {
            Object::new()
                .with("kind", *kind)
                .with("state", *state)
                .with("packs", totals.packs)
                .with("stored_bytes", totals.stored_bytes)
                .with("raw_bytes", totals.raw_bytes)
                .with("chunks", totals.chunks)
                .into()
        })
        .collect();
    let frames: Vec<Value> = stats
        .frames
        .iter()
        .map(|(key, totals)| {
            Object::new()
                .with("kind", key.kind)
                .with("codec", key.codec)
                .with("encoding", key.encoding.as_str())
                .with("reason", key.reason.text())
                .with("frames", totals.frames)
                .with("stored_bytes", totals.stored_bytes)
                .with("raw_bytes", totals.raw_bytes)
                .with("ratio", ratio(totals.raw_bytes, totals.stored_bytes))
                .into()
        })
        .collect();
    let memory = &stats.memory;
    let index = Object::new()
        .with("memory_bytes", memory.filter + memory.fences + memory.recent + memory.locality)
        .with("filter_bytes", memory.filter)
        .with("fences_bytes", memory.fences)
        .with("recent_bytes", memory.recent)
        .with("locality_bytes", memory.locality)
        .with("runs", stats.index.runs)
        .with("entries", stats.index.run_entries + stats.index.recent_entries as u64);
    Object::new()
        .with("files", stats.tree.files)
        .with("directories", stats.tree.directories)
        .with("others", stats.tree.others)
        .with("snapshots", stats.snapshots)
        .with("logical_bytes", stats.tree.bytes)
        .with("retained_bytes", stats.retained_bytes)
        .with("unique_bytes", data.raw_bytes)
        .with("stored_bytes", all.stored_bytes)
        .with("stored_data_bytes", data.stored_bytes)
        .with("stored_meta_bytes", all.stored_bytes - data.stored_bytes)
        .with("chunks", data.chunks)
        .with("database_bytes", stats.database_bytes)
        .with("index", index)
        .with("packs", packs)
        .with("frames", frames)
        .with("packs_sampled", stats.packs_sampled)
        .with("packs_unreadable", stats.packs_unreadable)
}
