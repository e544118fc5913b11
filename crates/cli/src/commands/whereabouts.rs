//! `where`: the hosts that hold a file's data.

use std::ffi::OsString;

use clap::Args;
use outrigger_store::read::whereabouts::{Whereabouts, whereabouts};
use serde_json::Value;

use super::Context;
use crate::args;
use crate::exit::{Exit, Outcome};
use crate::json::Object;
use crate::output::{complain, counted, print_json, print_text, size};
use crate::when;

const EXAMPLES: &str = "\
Examples:
  outrigger where data/film.mkv
  outrigger where data --json | jq '.hosts[] | select(.host == \"osd1\") | .bytes_first'
  outrigger put data --place osd1        new data on that host

The hosts of packs are known in a Ceph pool, where CRUSH places them by their names. A directory
and an object store do not tell them.";

/// Show which hosts hold the data of files
///
/// Each byte counts once for every host that has a copy of it, and as `first` for the host to which
/// reads are sent.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct WhereArgs {
    /// A file or directory in the store
    #[arg(default_value = "/", hide_default_value = true)]
    path: OsString,
    #[arg(long, value_name = "WHEN", help = when::HELP, allow_hyphen_values = true)]
    at: Option<String>,
}

pub fn run(context: &Context, args: WhereArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let store = context.open()?;
    let view = context.view(&store, "where", args.at.as_deref())?;
    let top = args::entry(&store, view.at, &path)?;
    let found = whereabouts(&store, view.at, &top)?;
    let place = store
        .config
        .packs
        .as_ref()
        .map_or_else(|| store.dir().join("packs").display().to_string(), ToString::to_string);
    if context.json {
        print_json(json(&found).with_name("path", &path.to_bytes()).with("packs_at", place))?;
    } else {
        print_text(&describe(&found, &place))?;
    }
    if found.bytes_missing == 0 {
        return Ok(Exit::Done);
    }
    complain(&format!(
        "{} are in no known pack; `outrigger check` lists all damage",
        size(found.bytes_missing)
    ));
    Ok(Exit::Damaged)
}

pub fn json(found: &Whereabouts) -> Object {
    let hosts: Vec<Value> = found
        .hosts
        .iter()
        .map(|(host, share)| {
            Object::new()
                .with("host", host.as_str())
                .with("bytes", share.bytes)
                .with("bytes_first", share.bytes_first)
                .into()
        })
        .collect();
    Object::new()
        .with("files", found.files)
        .with("bytes", found.bytes)
        .with("packs", found.packs)
        .with("hosts", hosts)
        .with("bytes_unknown", found.bytes_unknown)
        .with("bytes_in_database", found.bytes_in_database)
        .with("bytes_missing", found.bytes_missing)
}

fn describe(found: &Whereabouts, place: &str) -> String {
    let mut text = format!(
        "{}, {} in {} at {place}\n",
        counted(found.files, "file", "files"),
        size(found.bytes),
        counted(found.packs, "pack", "packs")
    );
    if !found.hosts.is_empty() {
        text += &format!("{:<24} {:>10} {:>10}\n", "host", "has", "first");
    }
    for (host, share) in &found.hosts {
        text += &format!("{host:<24} {:>10} {:>10}\n", size(share.bytes), size(share.bytes_first));
    }
    if found.bytes_in_database > 0 {
        text += &format!("in the database, until it is packed: {}\n", size(found.bytes_in_database));
    }
    if found.bytes_unknown > 0 {
        text += &format!("the hosts of {} are unknown\n", size(found.bytes_unknown));
    }
    text
}
