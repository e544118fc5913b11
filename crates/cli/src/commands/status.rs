//! `status`: who uses a store just now, and what waits to be done.

use clap::Args;
use outrigger_fuse::control::Client;
use outrigger_fuse::live;
use outrigger_store::meta::SessionKind;
use outrigger_store::ops::status::{SessionStatus, Standing, Status, status};
use outrigger_store::{Store, shared};
use serde_json::Value;

use super::Context;
use crate::exit::{Exit, Outcome};
use crate::output::{Object, count, counted, print_json, print_text, size};

const EXAMPLES: &str = "\
Examples:
  outrigger status
  outrigger status --json | jq '.sessions[] | select(.standing != \"live\")'

A session is live while it renews its lease; gone, if its process ran on this host and has ended; over, if its lease has run out. The next `outrigger gc`
ends those that are gone or over. Packs that are dead are removed by a later `gc`, when their grace period is over.";

/// Show who uses the store just now, and what waits to be done
///
/// Sessions with their hosts and leases, packs by their state, what holds contents, and what is wrong with the packs' place. It changes nothing, and does not
/// wait for a mount.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {}

/// Whether this host's mount of a store in a directory answers.
fn mount_of(context: &Context) -> Result<Option<&'static str>, crate::exit::Failure> {
    let dir = context.store_dir()?;
    if shared::url(dir).is_some() {
        return Ok(None);
    }
    Ok(Some(match (Client::connect(dir).ok().flatten(), live::staging_dir(dir).exists()) {
        (Some(_), _) => "mounted",
        (None, true) => "a mount has ended without unmounting",
        (None, false) => "not mounted",
    }))
}

pub fn run(context: &Context, _: &StatusArgs) -> Outcome {
    let store = Store::open(context.store_dir()?, true)?;
    let (status, mount) = (status(&store)?, mount_of(context)?);
    if context.json {
        print_json(json(&store, &status).with("mount", mount))?;
    } else {
        print_text(&describe(&store, &status, mount))?;
    }
    Ok(Exit::Done)
}

fn kind(session: &SessionStatus) -> &'static str {
    match session.kind {
        SessionKind::Writer => "writer",
        SessionKind::Reader => "reader",
        SessionKind::Collector => "collector",
    }
}

fn standing(session: &SessionStatus) -> &'static str {
    match session.standing {
        Standing::Live => "live",
        Standing::Gone => "gone",
        Standing::Over => "over",
    }
}

fn packs_at(store: &Store) -> String {
    store.config.packs.as_ref().map_or_else(|| "in the store's directory".to_string(), ToString::to_string)
}

fn describe(store: &Store, status: &Status, mount: Option<&str>) -> String {
    let mut text = format!("store      {}\n", store.name().display());
    text += &format!("database   {}, {}\n", engine(store), size(status.database_bytes));
    text += &format!("packs      {}\n", packs_at(store));
    text += &format!("trouble    {}\n", status.trouble.as_deref().unwrap_or("none"));
    if let Some(mount) = mount {
        text += &format!("mount      {mount}\n");
    }
    text += &format!("snapshots  {}\n", count(status.snapshots));
    let held = status.holders.len() as u64;
    text += &format!("held       {} besides sessions\n", counted(held, "holder", "holders"));
    if status.loose_chunks > 0 {
        let chunks = counted(status.loose_chunks, "chunk", "chunks");
        text +=
            &format!("to pack    {chunks} of small files in the database, {}\n", size(status.loose_bytes));
    }
    text += "\npacks              count        bytes\n";
    for (state, packs) in &status.packs {
        text += &format!("  {state:11} {:>10}  {:>11}\n", count(packs.packs), size(packs.bytes));
    }
    text += &format!("\n{}\n", counted(status.sessions.len() as u64, "session", "sessions"));
    for session in &status.sessions {
        let SessionStatus { id, host, process, what, lag, .. } = session;
        let lag = if *lag > 0 { format!(", {lag} behind") } else { String::new() };
        let (kind, standing) = (kind(session), standing(session));
        text += &format!("  {id:>6}  {kind:9}  {standing:4}  {what} on {host}, process {process}{lag}\n");
    }
    text
}

fn engine(store: &Store) -> &'static str {
    if store.is_shared() { "PostgreSQL" } else { "SQLite" }
}

fn json(store: &Store, status: &Status) -> Object {
    let sessions: Vec<Value> = status
        .sessions
        .iter()
        .map(|session| {
            let object = Object::new().with("id", session.id).with("kind", kind(session));
            let object = object.with("standing", standing(session)).with("lag", session.lag);
            let object = object.with("host", session.host.as_str()).with("process", session.process.as_str());
            object.with("command", session.what.as_str()).into()
        })
        .collect();
    let packs: Vec<Value> = status
        .packs
        .iter()
        .map(|(state, packs)| {
            Object::new().with("state", *state).with("packs", packs.packs).with("bytes", packs.bytes).into()
        })
        .collect();
    Object::new()
        .with_name("store", store.name().as_os_str().as_encoded_bytes())
        .with("database", engine(store))
        .with("database_bytes", status.database_bytes)
        .with("packs_at", packs_at(store))
        .with("packs_trouble", status.trouble.clone())
        .with("snapshots", status.snapshots)
        .with("holders", status.holders.clone())
        .with("loose_chunks", status.loose_chunks)
        .with("loose_bytes", status.loose_bytes)
        .with("packs", packs)
        .with("sessions", sessions)
}
