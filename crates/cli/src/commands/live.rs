//! `stats --live`: samples of a mount's state, again and again.
//!
//! Each sample has the present values, and the rates since the sample before. The first sample has
//! the rates since the mount began.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use outrigger_clock::Instant;
use outrigger_clock::now_nanos;
use outrigger_fuse::control::{Client, mounts_of};
use outrigger_fuse::measures::{FIELDS, HISTOGRAMS, Kind, Spread, Status, Unit};
use outrigger_fuse::shared::dir_of_mount;
use outrigger_store::meta::SessionId;
use outrigger_store::text::show_but;
use outrigger_store::{Store, shared};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Context;
use super::live_text::{Rates, block, head, line};
use crate::exit::{Exit, Failure, INTERRUPTED, Outcome};
use crate::json::rfc3339_nanos;
use crate::output::Out;

const NANOS: f64 = 1e9;
/// Lines between two headings, where lines are appended.
const HEAD_EVERY: u64 = 20;

/// How often, and how many times.
pub struct Watch {
    /// Time from one sample to the next.
    pub interval: Duration,
    /// Samples; for ever if not given.
    pub count: Option<u64>,
    /// The session of the mount, if this host has several mounts of one store.
    pub session: Option<u64>,
}

pub fn run(context: &Context, watch: &Watch) -> Outcome {
    let mut mount = connect(context.store_dir()?, watch.session)?;
    let stop = until_signal();
    let terminal = io::stdout().is_terminal();
    let (mut before, mut drawn) = (None, 0);
    let mut due = Instant::now();
    for number in 0.. {
        let answer: Value = serde_json::from_str(&mount.ask("status")?)
            .map_err(|error| Failure::failed(format!("cannot parse the mount's answer: {error}")))?;
        let status = parse(&answer);
        let rates = Rates::between(before.as_ref(), &status);
        let mut out = Out::new();
        if context.json {
            out.json(sample(answer, &rates))?;
        } else if terminal {
            let text = show_but(block(&status, &rates).as_bytes(), "\n");
            if drawn > 0 {
                // Moves to the start of the last block and erases from there.
                out.bytes(format!("\x1b[{drawn}F\x1b[J").as_bytes())?;
            }
            drawn = text.lines().count();
            // A wrapped line would count as two, so a narrow terminal shows only its beginning.
            out.bytes(format!("\x1b[?7l{text}\x1b[?7h").as_bytes())?;
        } else {
            if number % HEAD_EVERY == 0 {
                out.line(head())?;
            }
            out.line(&line(&status, &rates))?;
        }
        out.finish()?;
        before = Some(status);
        if watch.count == Some(number + 1) {
            break;
        }
        due = (due + watch.interval).max(Instant::now());
        match stop.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    Ok(Exit::Done)
}

fn connect(dir: &Path, session: Option<u64>) -> Result<Client, Failure> {
    if shared::url(dir).is_none()
        && let Some(client) = Client::connect(dir)?
    {
        return Ok(client);
    }
    // If there is no store at all, the error should say so.
    let store = Store::open_to_look(dir)?;
    let mut listening = match session {
        Some(session) => Vec::from_iter(Client::connect(&dir_of_mount(&store, SessionId(session)))?),
        None => mounts_of(&store)?,
    };
    let shown = dir.display();
    match (listening.len(), session) {
        (1, _) => Ok(listening.remove(0)),
        (0, Some(session)) => Err(Failure::failed(format!(
            "session {session} is no mount of {shown} on this host; `outrigger status` lists sessions with their hosts"
        ))),
        (0, None) => Err(Failure::failed(format!(
            "{shown} is not mounted for writing on this host; run `outrigger mount MOUNTPOINT`, or remove --live"
        ))),
        (count, _) => Err(Failure::usage(format!(
            "this host has {count} mounts of {shown}; choose one with --session N (`outrigger status` lists them)"
        ))),
    }
}

/// Sends when a signal asks this command to end. A second signal ends the process at once, if the
/// mount does not answer.
fn until_signal() -> Receiver<()> {
    let (sender, stop) = mpsc::channel();
    // Without a handler the signal kills, which does no harm.
    if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        std::thread::spawn(move || {
            let mut signals = signals.forever();
            signals.next();
            let _ = sender.send(());
            signals.next();
            outrigger_offload::end_process(INTERRUPTED);
        });
    } else {
        std::mem::forget(sender);
    }
    stop
}

/// Parses the mount's answer. A mount of another version may leave fields out; they are zero.
fn parse(answer: &Value) -> Status {
    let nanos = |value: &Value| (value.as_f64().unwrap_or(0.0) * NANOS).round() as u64;
    let mut status = Status::default();
    for field in FIELDS {
        let value = &answer[field.name];
        let value = match field.unit {
            Unit::Whole => value.as_u64().unwrap_or(0),
            Unit::Seconds => nanos(value),
        };
        (field.set)(&mut status, value);
    }
    for shown in HISTOGRAMS {
        let said = &answer[shown.name];
        let mut spread = Spread { nanos: nanos(&said["sum"]), ..Spread::default() };
        // Only the number of events matters here.
        spread.classes[0] = said["count"].as_u64().unwrap_or(0);
        (shown.set)(&mut status, spread);
    }
    status
}

/// The mount's answer with its time, and the rates of all counters.
fn sample(answer: Value, rates: &Rates) -> Value {
    let counters = FIELDS.iter().filter(|field| field.kind == Kind::Counter);
    let per_second: Map<String, Value> =
        counters.map(|field| (field.name.to_string(), rates.per_second(field.get).into())).collect();
    let mut object = Map::new();
    object.insert("time".to_string(), rfc3339_nanos(now_nanos()).into());
    object.insert("interval_seconds".to_string(), rates.seconds.into());
    if let Value::Object(fields) = answer {
        object.extend(fields);
    }
    object.insert("per_second".to_string(), Value::Object(per_second));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use outrigger_fuse::measures;

    use super::*;

    #[test]
    fn what_a_mount_says_is_understood() {
        let mut said = Status::default();
        for (value, field) in (1..).zip(FIELDS) {
            (field.set)(&mut said, value * 1_000_000_001);
        }
        said.destage_seconds = Spread { nanos: 123_456_789_012, ..Spread::default() };
        said.destage_seconds.classes[0] = 7;
        let answer = serde_json::from_str(&measures::json(&said, &[])).unwrap();
        assert_eq!(parse(&answer), said);
        assert_eq!(parse(&serde_json::json!({})), Status::default());
    }

    #[test]
    fn a_sample_has_counters_and_their_rates() {
        let before = Status { uptime_seconds: 1_000_000_000, ..Status::default() };
        let now = Status { uptime_seconds: 3_000_000_000, written_bytes: 100, ..Status::default() };
        let answer = serde_json::from_str(&measures::json(&now, &[])).unwrap();
        let sample = sample(answer, &Rates::between(Some(&before), &now));
        assert_eq!(sample["written_bytes"], 100);
        assert_eq!(sample["interval_seconds"], 2.0);
        assert_eq!(sample["per_second"]["written_bytes"], 50.0);
        assert_eq!(sample["per_second"]["staging_used_bytes"], Value::Null);
    }
}
