//! `status`: the present users of a store, and the work that waits.

use std::sync::{Arc, Mutex};

use clap::Args;
use outrigger_clock as clock;
use outrigger_format::catalogue::Time;
use outrigger_fuse::control::Client;
use outrigger_fuse::kernel::uring;
use outrigger_fuse::{live, measures};
use outrigger_store::copy::CopyNote;
use outrigger_store::gc::LastGc;
use outrigger_store::meta::{Role, SessionKind, SessionOwner};
use outrigger_store::ops::errors::{ErrorsStatus, Met};
use outrigger_store::ops::mounts::MountStatus;
use outrigger_store::ops::status::{SessionStatus, Standing, Status, TierStatus, status};
use outrigger_store::parity::Reach;
use outrigger_store::text::show;
use outrigger_store::{Store, shared};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Context, status_text};
use crate::exit::{Exit, Failure, Outcome};
use crate::exporter::{Address, Exporter};
use crate::json::{Object, rfc3339_nanos};
use crate::output::{count, counted, local, print_json, print_text, size};
use crate::progress::duration;

const EXAMPLES: &str = "\
Examples:
  outrigger status
  outrigger status --json | jq '.sessions[] | select(.standing != \"live\")'
  outrigger status --metrics 127.0.0.1:9465    serve http://127.0.0.1:9465/metrics until Ctrl-C

Sessions:
  live  it renews its lease
  gone  its process ran on this host and has ended
  over  its lease has run out
The next `outrigger gc` ends sessions that are gone or over. A later `gc` removes dead packs, when
their grace period is over.";

const METRICS_HELP: &str = "Serve Prometheus metrics at /metrics until Ctrl-C, on unix:/PATH, 127.0.0.1:PORT or [::1]:PORT. Only this machine can connect; to serve others, put a proxy before it";

/// Show who uses the store now, and what work waits
///
/// Prints sessions with their hosts, leases and file locks, mounts, packs by state, the last run of
/// `gc`, owners that hold contents, and errors of the packs' engine, which need not be reachable.
/// It changes nothing and does not wait for a mount.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse, help = METRICS_HELP)]
    metrics: Option<Address>,
}

const MOUNTED: &str = "mounted";

/// The fault of this host's mount of a store in a directory, if there is one.
fn mount_trouble(status: &Status, mount: Option<&str>) -> Option<&'static str> {
    let is_live = |session: &SessionStatus| {
        session.owner.role == Role::Mount
            && session.kind == SessionKind::Writer
            && session.standing == Standing::Live
    };
    let why = "the mount's session has ended, so it stores nothing; written data is in its log: unmount, then mount again";
    (mount == Some(MOUNTED) && !status.sessions.iter().any(is_live)).then_some(why)
}

/// The state of this host's mount of a store in a directory: whether it answers.
fn mount_of(context: &Context) -> Result<Option<&'static str>, crate::exit::Failure> {
    let dir = context.store_dir()?;
    if shared::url(dir).is_some() {
        return Ok(None);
    }
    Ok(Some(match (Client::connect(dir).ok().flatten(), live::staging_dir(dir).exists()) {
        (Some(_), _) => MOUNTED,
        (None, true) => "a mount was not unmounted cleanly",
        (None, false) => "not mounted",
    }))
}

pub fn run(context: &Context, args: &StatusArgs) -> Outcome {
    if let Some(address) = &args.metrics {
        return serve(context, address);
    }
    let store = Store::open_to_look(context.store_dir()?)?;
    // In this order, because a mount that begins has a session before it answers.
    let mount = mount_of(context)?;
    let status = status(&store)?;
    if context.json {
        let trouble = mount_trouble(&status, mount);
        print_json(json(&store, &status).with("mount", mount).with("mount_trouble", trouble))?;
    } else {
        print_text(&describe(&store, &status, mount))?;
    }
    Ok(Exit::Done)
}

/// The inode of the database file of a store in a directory. A copy or a recovery replaces the
/// file.
fn database_file(store: &Store) -> Option<u64> {
    let path = store.dir().join(outrigger_store::DATABASE_FILE);
    std::fs::metadata(path).ok().map(|file| std::os::unix::fs::MetadataExt::ino(&file))
}

/// Serves metrics until a signal comes.
fn serve(context: &Context, address: &Address) -> Outcome {
    let dir = context.store_dir()?.to_path_buf();
    let store = Store::open_to_look(&dir)?;
    let refused = |error: &std::io::Error| Failure::io(format!("cannot serve metrics at {address}"), error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| refused(&error))?;
    let mut exporter = Exporter::bind(address).map_err(|error| refused(&error))?;
    let opened = Mutex::new((database_file(&store), store));
    let render = move || {
        let mut opened = opened.lock().ok()?;
        let file = database_file(&opened.1);
        // A store whose database lies elsewhere has no such file in both cases. Packs that were
        // unreachable at the opening may be reachable now.
        if (file != opened.0 || opened.1.backend.trouble().is_some())
            && let Ok(store) = Store::open_to_look(&dir)
        {
            *opened = (file, store);
        }
        Some(status_text::exposition(&opened.1))
    };
    exporter.start(measures::CONTENT_TYPE, Arc::new(render)).map_err(|error| refused(&error))?;
    if !context.quiet {
        print_text(&format!("metrics at {address}; Ctrl-C ends it\n"))?;
    }
    let _ = signals.forever().next();
    Ok(Exit::Done)
}

pub(super) fn kind(session: &SessionStatus) -> &'static str {
    match session.kind {
        SessionKind::Writer => "writer",
        SessionKind::Reader => "reader",
        SessionKind::Collector => "collector",
    }
}

pub(super) fn standing(session: &SessionStatus) -> &'static str {
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
    text += &format!("encrypted  {}\n", encrypted(store));
    let trouble = status.trouble.as_deref().or(mount_trouble(status, mount));
    text += &format!("trouble    {}\n", trouble.unwrap_or("none"));
    if let Some(mount) = mount {
        text += &format!("mount      {mount}\n");
        if uring::is_switched_off() {
            text += &format!("io_uring   off: {}\n", uring::SWITCH_ON);
        }
    }
    if let Some(dir) = status.unsaved.first().and_then(|file| file.parent()) {
        let files = counted(status.unsaved.len() as u64, "file", "files");
        text += &format!(
            "unsaved    {files} in {}: changes that a mount could not store; copy what you need, then remove them\n",
            dir.display()
        );
    }
    if let Some(copy) = &status.copy {
        let behind = duration(behind_ms(copy) as f64 / 1000.0);
        text += &format!("copy       of {}, as of {behind} ago\n", copy.source);
    }
    text += &format!("snapshots  {}\n", count(status.snapshots));
    let held = status.holders.len() as u64;
    text += &format!("held       {} besides sessions\n", counted(held, "holder", "holders"));
    if status.inline_chunks > 0 {
        let chunks = counted(status.inline_chunks, "chunk", "chunks");
        text +=
            &format!("to pack    {chunks} of small files in the database, {}\n", size(status.inline_bytes));
    }
    text += &format!("last gc    {}\n", status.last_gc.map_or_else(|| "not known".to_string(), told));
    if let Some(run) = &status.collecting {
        let age = duration(run.age as f64 / 1e9);
        text += &format!("collecting {}, session {}, for {age}\n", run.phase, run.session.0);
    }
    for tier in &status.tiers {
        text += &format!("place      {}{}\n", tier.place, told_of_tier(tier));
    }
    text += "\npacks              count        bytes\n";
    for (state, packs) in &status.packs {
        text += &format!("  {state:11} {:>10}  {:>11}\n", count(packs.packs), size(packs.bytes));
    }
    text += &format!("\n{}\n", counted(status.sessions.len() as u64, "session", "sessions"));
    for session in &status.sessions {
        let SessionStatus { id, owner, lag, locks, lease_left_secs, .. } = session;
        let mut lag = if *lag > 0 { format!(", {lag} behind") } else { String::new() };
        if *locks > 0 {
            lag += &format!(", {}", counted(*locks, "lock", "locks"));
        }
        if session.standing == Standing::Live {
            lag += &format!(", lease {lease_left_secs} s");
        }
        let (kind, standing) = (kind(session), standing(session));
        text += &format!("  {id:>6}  {kind:9}  {standing:4}  {owner}{lag}\n");
    }
    if !status.mounts.is_empty() {
        text += &format!("\n{}\n", counted(status.mounts.len() as u64, "mount", "mounts"));
    }
    for MountStatus { mount, since, .. } in &status.mounts {
        let shows = match (&mount.snapshot, mount.read_only) {
            (Some(snapshot), _) => format!(", shows {snapshot}"),
            (None, true) => ", read-only".to_string(),
            (None, false) => String::new(),
        };
        let since = local(Time::from_nanos(*since));
        text += &format!(
            "  {} on {}, since {since}, by {}, process {}{shows}\n",
            mount.point, mount.process.host, mount.user, mount.process.number
        );
    }
    text + &told_errors(&status.errors)
}

/// The last errors of mounts and agents, each one's in order of time.
fn told_errors(errors: &[ErrorsStatus]) -> String {
    let mut text = String::new();
    for ErrorsStatus { owner, errors } in errors {
        text += &format!("\nlast errors of {owner}\n");
        for Met { time, operation, kind, text: said } in errors {
            text += &format!("  {}  {operation}, {kind}: {said}\n", local(Time::from_nanos(*time)));
        }
    }
    text
}

fn told_of_tier(tier: &TierStatus) -> String {
    let bytes = tier.bytes.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
    let bound = tier.bound.map(|bound| format!(" of {bound}")).unwrap_or_default();
    let free = tier.free_bytes.map(|free| format!(", {} free", size(free))).unwrap_or_default();
    bytes + &bound + &free
}

fn told(last: LastGc) -> String {
    let LastGc { ended, took_ms, packs_removed, bytes_freed, packs_unreadable, parity } = last;
    let (ended, took) = (local(Time::from_nanos(ended)), duration(took_ms as f64 / 1000.0));
    let packs = counted(packs_removed, "pack", "packs");
    let mut text = format!("{ended}, took {took}, freed {} and removed {packs}", size(bytes_freed));
    if packs_unreadable > 0 {
        text += &format!("; {} could not be read", counted(packs_unreadable, "pack", "packs"));
    }
    if let Some(Reach { packs_protected, packs_unprotected }) = parity {
        text += &format!("; parity for {}", counted(packs_protected, "pack", "packs"));
        if packs_unprotected > 0 {
            text += &format!(", none for {packs_unprotected}");
        }
    }
    text
}

/// The age of the state that a copy has, in milliseconds.
pub(super) fn behind_ms(copy: &CopyNote) -> u64 {
    clock::now_nanos().saturating_sub(copy.as_of) / 1_000_000
}

fn encrypted(store: &Store) -> String {
    match store.keys().map(|keys| keys.epochs()) {
        None => "no".to_string(),
        Some(1) => "yes".to_string(),
        Some(epochs) => format!("yes, keys were rotated {}", counted(u64::from(epochs) - 1, "time", "times")),
    }
}

fn engine(store: &Store) -> &'static str {
    if store.is_shared() { "PostgreSQL" } else { "SQLite" }
}

fn of_owner(object: Object, owner: &SessionOwner) -> Object {
    let object = object.with("host", owner.host.as_str()).with("process", owner.process);
    object.with("command", owner.role.to_string())
}

fn json_of_session(session: &SessionStatus) -> Value {
    let object = Object::new().with("id", session.id).with("kind", kind(session));
    let object = object.with("standing", standing(session)).with("lag", session.lag);
    let object = object.with("lease_left_secs", session.lease_left_secs);
    of_owner(object, &session.owner).with("locks", session.locks).into()
}

fn json_of_mount(MountStatus { mount, since, session }: &MountStatus) -> Value {
    let (host, number) = (mount.process.host.as_str(), mount.process.number);
    let object = Object::new().with("point", mount.point.as_str()).with("host", host);
    let object = object.with("process", number).with("user", mount.user.as_str());
    let object = object.with("since", rfc3339_nanos(*since)).with("session", *session);
    object.with("read_only", mount.read_only).with("snapshot", mount.snapshot.clone()).into()
}

fn json_of_error(owner: &SessionOwner, met: &Met) -> Value {
    let object = of_owner(Object::new(), owner).with("time", rfc3339_nanos(met.time));
    let object = object.with("operation", met.operation.as_str()).with("kind", met.kind.as_str());
    object.with("text", met.text.as_str()).into()
}

fn json_of_tier(tier: &TierStatus) -> Value {
    let object = Object::new().with("place", tier.place.as_str()).with("bytes", tier.bytes);
    let object = object.with("bound", tier.bound.map(|bound| bound.to_string()));
    object.with("free_bytes", tier.free_bytes).into()
}

fn json(store: &Store, status: &Status) -> Object {
    let sessions: Vec<Value> = status.sessions.iter().map(json_of_session).collect();
    let mounts: Vec<Value> = status.mounts.iter().map(json_of_mount).collect();
    let errors =
        status.errors.iter().flat_map(|of| of.errors.iter().map(|met| json_of_error(&of.owner, met)));
    let last_gc = status.last_gc.map(|last| {
        let object = Object::new().with("ended", rfc3339_nanos(last.ended)).with("took_ms", last.took_ms);
        let object = object.with("packs_removed", last.packs_removed).with("bytes_freed", last.bytes_freed);
        let object = object.with("packs_unreadable", last.packs_unreadable);
        let parity = last.parity.map(|Reach { packs_protected, packs_unprotected }| {
            let object = Object::new().with("packs_protected", packs_protected);
            Value::from(object.with("packs_unprotected", packs_unprotected))
        });
        Value::from(object.with("parity", parity))
    });
    let collecting = status.collecting.as_ref().map(|run| {
        let object = Object::new().with("session", run.session.0).with("phase", run.phase.as_str());
        Value::from(object.with("began", rfc3339_nanos(run.began)).with("age_ms", run.age / 1_000_000))
    });
    let tiers: Vec<Value> = status.tiers.iter().map(json_of_tier).collect();
    let packs = status.packs.iter().map(|(state, packs)| {
        Value::from(Object::new().with("state", *state).with("packs", packs.packs).with("bytes", packs.bytes))
    });
    Object::new()
        .with_name("store", store.name().as_os_str().as_encoded_bytes())
        .with("database", engine(store))
        .with("database_bytes", status.database_bytes)
        .with("packs_at", packs_at(store))
        .with("encrypted", store.config.is_encrypted())
        .with("key_epochs", store.keys().map(|keys| keys.epochs()))
        .with("packs_trouble", status.trouble.clone())
        .with(
            "unsaved",
            status.unsaved.iter().map(|file| show(file.as_os_str().as_encoded_bytes())).collect::<Vec<_>>(),
        )
        .with("copy_of", status.copy.as_ref().map(|copy| copy.source.clone()))
        .with("copy_as_of", status.copy.as_ref().map(|copy| rfc3339_nanos(copy.as_of)))
        .with("copy_behind_ms", status.copy.as_ref().map(behind_ms))
        .with("snapshots", status.snapshots)
        .with("holders", status.holders.clone())
        .with("inline_chunks", status.inline_chunks)
        .with("inline_bytes", status.inline_bytes)
        .with("last_gc", last_gc)
        .with("collecting", collecting)
        .with("places", tiers)
        .with("packs", packs.collect::<Vec<_>>())
        .with("sessions", sessions)
        .with("mounts", mounts)
        .with("errors", errors.collect::<Vec<_>>())
}
