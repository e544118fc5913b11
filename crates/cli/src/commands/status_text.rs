//! The state of a store as Prometheus reads it, for `status --metrics`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outrigger_store::Store;
use outrigger_store::backend::Fill;
use outrigger_store::ops::mounts::MountStatus;
use outrigger_store::ops::status::{Status, TierStatus, status};

use super::status::{behind_ms, kind, standing};

/// A text to which families of numbers are appended.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, help: &str) {
        let _ = write!(self.0, "# HELP outrigger_store_{name} {help}\n# TYPE outrigger_store_{name} gauge\n");
    }

    fn value(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.0, "outrigger_store_{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help);
        self.value(name, "", value);
    }
}

/// The metrics of `store`. If its database does not answer, they say only that.
pub fn exposition(store: &Store) -> String {
    let asked = status(store).and_then(|status| Ok((status, store.meta.totals()?)));
    let mut text = Text::default();
    text.one("up", "Whether the store's database answers.", u64::from(asked.is_ok()));
    let Ok((status, totals)) = asked else { return text.0 };
    text.one("files", "Regular files in the tree.", totals.files);
    text.one("directories", "Directories in the tree.", totals.directories);
    text.one("content_bytes", "Sum of the files' lengths.", totals.bytes);
    text.one("snapshots", "Snapshots.", status.snapshots);
    text.one("database_bytes", "Size of the database.", status.database_bytes);
    let trouble = u64::from(status.trouble.is_some());
    text.one("packs_trouble", "Whether the packs' engine reports an error.", trouble);
    text.one("holders", "Owners that hold contents, other than sessions.", status.holders.len() as u64);
    packs(&mut text, &status);
    tiers(&mut text, &status);
    sessions(&mut text, &status);
    mounts(&mut text, &status);
    if let Some(last) = &status.last_gc {
        let seconds = last.ended / 1_000_000_000;
        text.one("gc_ended_timestamp_seconds", "When gc last ended, seconds since 1970.", seconds);
        text.family("gc_took_seconds", "Duration of that run.");
        let _ = writeln!(
            text.0,
            "outrigger_store_gc_took_seconds {}.{:03}",
            last.took_ms / 1000,
            last.took_ms % 1000
        );
        text.one("gc_freed_bytes", "Bytes that that run freed.", last.bytes_freed);
        if let Some(parity) = last.parity {
            text.one("parity_packs", "Packs that parity protected after it.", parity.packs_protected);
            text.one("parity_missing_packs", "Packs that it did not protect.", parity.packs_unprotected);
        }
    }
    let collecting = status.collecting.as_ref();
    text.one("collecting", "Whether a collector runs.", u64::from(collecting.is_some()));
    if let Some(run) = collecting {
        text.family("collecting_seconds", "Age of the running collector, by its phase.");
        text.value("collecting_seconds", &format!("{{phase=\"{}\"}}", run.phase), run.age / 1_000_000_000);
    }
    if let Some(copy) = &status.copy {
        let help = "For a copy: age of the copied state of its source.";
        text.family("copy_behind_seconds", help);
        let millis = behind_ms(copy);
        let _ =
            writeln!(text.0, "outrigger_store_copy_behind_seconds {}.{:03}", millis / 1000, millis % 1000);
    }
    text.0
}

fn packs(text: &mut Text, status: &Status) {
    let state = |state: &str| format!("{{state=\"{state}\"}}");
    text.family("packs", "Packs by their state.");
    for (name, of) in &status.packs {
        text.value("packs", &state(name), of.packs);
    }
    text.family("pack_bytes", "Bytes of packs by their state.");
    for (name, of) in &status.packs {
        text.value("pack_bytes", &state(name), of.bytes);
    }
}

fn sessions(text: &mut Text, status: &Status) {
    let mut counts = BTreeMap::new();
    for session in &status.sessions {
        *counts.entry((kind(session), standing(session))).or_default() += 1;
    }
    text.family("sessions", "Sessions by kind and standing.");
    for ((kind, standing), count) in counts {
        text.value("sessions", &format!("{{kind=\"{kind}\",standing=\"{standing}\"}}"), count);
    }
    text.family("session_lease_seconds", "Time left in a session's lease.");
    for session in &status.sessions {
        let labels = format!("{{session=\"{}\",host=\"{}\"}}", session.id, label(&session.owner.host));
        text.value("session_lease_seconds", &labels, session.lease_left_secs);
    }
    let lag = status.sessions.iter().map(|session| session.lag).max().unwrap_or(0);
    text.one("session_lag", "Generations that the slowest session is behind the collector.", lag);
}

/// Escapes a label's value.
fn label(what: &str) -> String {
    what.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn tiers(text: &mut Text, status: &Status) {
    let place = |tier: &TierStatus| format!("{{place=\"{}\"}}", label(&tier.place));
    text.family("place_bytes", "Bytes of packs by the place where they lie.");
    for tier in &status.tiers {
        tier.bytes.iter().for_each(|bytes| text.value("place_bytes", &place(tier), *bytes));
    }
    text.family("place_free_bytes", "Free bytes of a place's file system.");
    for tier in &status.tiers {
        tier.free_bytes.iter().for_each(|bytes| text.value("place_free_bytes", &place(tier), *bytes));
    }
    text.family("place_bound_bytes", "Bytes of packs that a place may take.");
    for tier in &status.tiers {
        if let Some(Fill::Bytes(bytes)) = tier.bound {
            text.value("place_bound_bytes", &place(tier), bytes);
        }
    }
}

fn mounts(text: &mut Text, status: &Status) {
    text.one("mounts", "Number of mounts.", status.mounts.len() as u64);
    text.family("mount_since_timestamp_seconds", "When a mount began, seconds since 1970.");
    for MountStatus { mount, since, .. } in &status.mounts {
        let (host, point, user) = (label(&mount.process.host), label(&mount.point), label(&mount.user));
        let labels = format!("{{host=\"{host}\",point=\"{point}\",user=\"{user}\"}}");
        text.value("mount_since_timestamp_seconds", &labels, since / 1_000_000_000);
    }
}
