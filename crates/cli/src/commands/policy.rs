//! `policy`: how files below a directory are cut, compressed and kept.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::{Args, Subcommand};
use outrigger_format::catalogue::FileKind;
use outrigger_store::Store;
use outrigger_store::meta::{At, ROOT_INODE, SessionKind};
use outrigger_store::policy::{NOTES, PARITY, Policies};
use outrigger_store::tree::{StorePath, listing, require};
use outrigger_store::write::set_policy;
use serde_json::Value;

use super::Context;
use crate::args;
use crate::exit::{Exit, Failure, Outcome};
use crate::json::Object;
use crate::output::{print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  outrigger policy set docs versions=all
  outrigger policy set images chunker=fixed:64K codec=lz4
  outrigger policy set scratch dedup=off versions=none
  outrigger policy set / codec=gzip:6@qat,zstd:3@cpu    gzip on a QAT card; when it is busy, zstd:3
  outrigger policy set images --unset codec
  outrigger policy set / parity=10+2                    the whole store; then run gc
  outrigger policy get images/2026
  outrigger policy list

Keys:
  versions  how many earlier contents of a file are kept: a number, all or none (10)
  codec     auto (auto:throughput, auto:ratio, auto:cpu), zstd:LEVEL, gzip:LEVEL, deflate:LEVEL,
            lz4, zle, lzjb or none; or up to four with devices, the preferred one first:
            gzip:6@qat,zstd:3@cpu (also @nvcomp, @sim, @any; docs/compression.md)
  filters   on or off: whether to rearrange numbers and machine code before compression
  budget    largest size of a compressed frame, in per cent of its source (90); a frame that
            would be larger is stored uncompressed
  chunker   gear32:MIN/AVG/MAX or fixed:SIZE
  dedup     on or off: whether to look for stored copies of new data
  parity    PACKS+FILES, as 10+2, or off (off); only of /: `gc` makes that many parity files
            for each so many packs, and `check --repair` makes as many lost or rotten packs
            of a group anew from it (docs/packs.md)";

const SET_EXAMPLES: &str = "\
Examples:
  outrigger policy set docs versions=all
  outrigger policy set images chunker=fixed:64K codec=lz4
  outrigger policy set images --unset codec

`outrigger policy --help` explains the keys.";

const GET_EXAMPLES: &str = "\
Examples:
  outrigger policy get images/2026
  outrigger policy get / --json";

const LIST_EXAMPLES: &str = "\
Examples:
  outrigger policy list
  outrigger policy list --json | jq '.directories[].path'";

/// Set and show how files below a directory are stored
///
/// A policy holds for a directory and everything below it, unless a policy further down replaces
/// it. It applies to files that are put later.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum PolicyCommand {
    /// Set (or unset) policies of a directory
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Show the policies that hold in a directory, and where each is set
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArgs),
    /// List all policies that are set
    #[command(after_help = LIST_EXAMPLES)]
    List,
}

#[derive(Args)]
pub struct SetArgs {
    /// A directory in the store
    path: OsString,
    /// For example versions=5, codec=zstd:9, chunker=fixed:64K, dedup=off
    #[arg(value_name = "KEY=VALUE", value_parser = args::policy, required_unless_present = "unset")]
    policies: Vec<(String, String)>,
    /// Keys to inherit again
    #[arg(long, value_name = "KEY", value_parser = ["versions", "codec", "filters", "budget", "chunker", "dedup", "parity"])]
    unset: Vec<String>,
}

#[derive(Args)]
pub struct GetArgs {
    /// A directory in the store
    path: OsString,
}

pub fn run(context: &Context, command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Set(args) => set(context, &args),
        PolicyCommand::Get(args) => get(context, &args),
        PolicyCommand::List => list(context),
    }
}

fn directory(store: &Store, path: &StorePath) -> Result<u64, Failure> {
    let inode = require(&*store.meta, At::Now, path)?;
    if inode.attributes.kind != FileKind::Directory {
        return Err(Failure::usage(format!("`{path}` is not a directory; set policies on directories")));
    }
    Ok(inode.number)
}

fn set(context: &Context, args: &SetArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let store = context.open_for_changes()?;
    let inode = directory(&store, &path)?;
    let before = versions(&store, &path)?;
    let session = store.session(SessionKind::Writer, "policy")?;
    for (key, value) in &args.policies {
        set_policy(&store, &session, inode, key, Some(value))?;
    }
    for key in &args.unset {
        set_policy(&store, &session, inode, key, None)?;
    }
    drop(session);
    context.settle(&store);
    if context.json {
        print_json(Object::new().with_name("path", &path.to_bytes()).with("policies", own(&store, inode)?))?;
    } else if !context.quiet {
        let after = versions(&store, &path)?;
        if count_of(&after) < count_of(&before) {
            let which = match count_of(&after) {
                0 => "all its earlier contents".to_string(),
                some => format!("its earlier contents but the newest {some}"),
            };
            print_text(&format!(
                "`{path}` kept {before} earlier contents of a file until now; the next write of a file there deletes {which}\n"
            ))?;
        }
    }
    Ok(Exit::Done)
}

/// How many earlier contents of a file are kept in a directory, as the policy says it.
fn versions(store: &Store, path: &StorePath) -> Result<String, Failure> {
    let held = effective(store, path)?.into_iter().find(|held| held.0 == "versions");
    Ok(held.map(|held| held.1).unwrap_or_default())
}

/// The number that a value of `versions` means.
fn count_of(versions: &str) -> u32 {
    match versions {
        "none" => 0,
        number => number.parse().unwrap_or(u32::MAX),
    }
}

/// Removes the keys under which commands record facts about a directory.
fn forget_notes(policies: &mut BTreeMap<String, String>) {
    policies.retain(|key, _| !NOTES.contains(&key.as_str()));
}

fn own(store: &Store, inode: u64) -> Result<Object, Failure> {
    let mut policies = store.meta.policies(inode)?;
    forget_notes(&mut policies);
    Ok(policies.into_iter().fold(Object::new(), |object, (key, value)| object.with(&key, value)))
}

/// A policy that holds: key, value, where it is set; `None`: the store's default.
type Holding = (&'static str, String, Option<StorePath>);

/// The policies that hold in a directory.
fn effective(store: &Store, path: &StorePath) -> Result<Vec<Holding>, Failure> {
    let default = Policies::load(store)?.store_default();
    let mut holding = vec![
        ("chunker", default.chunker.to_string(), None),
        ("codec", default.codec.codec.to_string(), None),
        ("filters", if default.codec.filters { "on" } else { "off" }.to_string(), None),
        ("budget", default.codec.budget.percent().to_string(), None),
        ("dedup", "on".to_string(), None),
        ("versions", "10".to_string(), None),
        (PARITY, "off".to_string(), None),
    ];
    for depth in 0..=path.components.len() {
        let at = StorePath { components: path.components[..depth].to_vec() };
        for (key, value) in store.meta.policies(directory(store, &at)?)? {
            if let Some(held) = holding.iter_mut().find(|held| held.0 == key) {
                (held.1, held.2) = (value, Some(at.clone()));
            }
        }
    }
    Ok(holding)
}

fn get(context: &Context, args: &GetArgs) -> Outcome {
    let path = args::store_path(&args.path)?;
    let store = context.open()?;
    directory(&store, &path)?;
    let holding = effective(&store, &path)?;
    if context.json {
        let policies = holding.into_iter().fold(Object::new(), |object, (key, value, from)| {
            let mut policy = Object::new().with("value", value);
            policy = match from {
                Some(from) => policy.with_name("from", &from.to_bytes()),
                None => policy.with("from", Value::Null),
            };
            object.with(key, policy)
        });
        print_json(Object::new().with_name("path", &path.to_bytes()).with("policies", policies))?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for (key, value, from) in holding {
        let from = from.map_or("the store's default".to_string(), |from| format!("set on {from}"));
        text += &format!("{key:8}  {value:20}  {from}\n");
    }
    print_text(&text)?;
    Ok(Exit::Done)
}

fn list(context: &Context) -> Outcome {
    let store = context.open()?;
    let mut all = store.meta.all_policies()?;
    all.retain(|_, policies| {
        forget_notes(policies);
        !policies.is_empty()
    });
    let mut found = Vec::new();
    if all.contains_key(&ROOT_INODE) {
        found.push((b"/".to_vec(), ROOT_INODE));
    }
    listing::walk::<Failure>(&*store.meta, At::Now, ROOT_INODE, !all.is_empty(), &mut |path, entry| {
        if all.contains_key(&entry.inode.number) {
            found.push((path.to_vec(), entry.inode.number));
        }
        Ok(())
    })?;
    if context.json {
        let mut list: Vec<Value> = Vec::new();
        for (path, inode) in &found {
            list.push(Object::new().with_name("path", path).with("policies", own(&store, *inode)?).into());
        }
        print_json(Object::new().with("directories", list))?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for (path, inode) in &found {
        let policies: Vec<String> = all[inode].iter().map(|(key, value)| format!("{key}={value}")).collect();
        text += &format!("{}  {}\n", outrigger_store::text::show(path), policies.join(" "));
    }
    print_text(&text)?;
    Ok(Exit::Done)
}
