//! `--at`: finds the snapshot for a name, a tag or a time.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};
use outrigger_format::catalogue::Time;
use outrigger_store::Store;
use outrigger_store::meta::SnapshotRow;
use outrigger_store::snapshot::facts::{Facts, as_of, in_order, named};

use crate::exit::Failure;
use crate::output::local;

/// The values of `--at`, for help texts.
pub const HELP: &str = "The snapshot to use: by its name, by a tag (the newest snapshot with it), or by a time (the newest snapshot not after it). \
Times: RFC 3339 (2026-05-01T12:00:00Z), local (2026-05-01T12:00), the end of a day (2026-05-01, yesterday, today), now, \
or relative (-2h, '3 days ago')";

/// The snapshot that `text` means.
///
/// # Errors
/// When it is neither a name nor a tag nor a time, or no snapshot is that old.
pub fn resolve(store: &Store, text: &str) -> Result<SnapshotRow, Failure> {
    let snapshots = in_order(store.meta.snapshots()?);
    find(&snapshots, text, &Zoned::now())
}

/// Refuses a new snapshot if its name or one of its tags would make `--at` find another snapshot
/// than the text says.
///
/// # Errors
/// A usage failure that says what the name or the tag means already.
pub fn check_new(store: &Store, name: Option<&str>, tags: &[String]) -> Result<(), Failure> {
    let snapshots = store.meta.snapshots()?;
    if let Some(name) = name {
        if parse(name, &Zoned::now()).is_some() {
            return Err(Failure::usage(format!(
                "`{name}` is a time, and `--at {name}` would find this snapshot instead; choose another name"
            )));
        }
        if snapshots.iter().any(|snapshot| Facts::of(snapshot).tags.iter().any(|tag| tag == name)) {
            return Err(Failure::usage(format!(
                "`{name}` is a tag, and `--at {name}` would find this snapshot instead; choose another name"
            )));
        }
    }
    if let Some(tag) = tags.iter().find(|tag| parse(tag, &Zoned::now()).is_some()) {
        return Err(Failure::usage(format!(
            "`{tag}` is a time, and `--at {tag}` would find the snapshots with this tag instead; choose another tag"
        )));
    }
    match tags.iter().find(|tag| snapshots.iter().any(|snapshot| snapshot.name == **tag)) {
        Some(tag) => Err(Failure::usage(format!(
            "`{tag}` is a snapshot's name, and `--at {tag}` finds that snapshot; choose another tag"
        ))),
        None => Ok(()),
    }
}

fn find(snapshots: &[SnapshotRow], text: &str, now: &Zoned) -> Result<SnapshotRow, Failure> {
    if let Some(found) = named(snapshots, text) {
        return Ok(found.clone());
    }
    let Some(time) = parse(text, now) else {
        return Err(Failure::failed(format!(
            "`{text}` is no snapshot's name or tag, and no time; choose a name or tag from `outrigger snapshot list`, or give a time such as \
             2026-05-01T12:00:00Z, 2026-05-01T12:00, 2026-05-01, yesterday, today, now, -2h or '3 days ago'"
        )));
    };
    // A time before 1970 or after 2554 does not fit. It is older or newer than any snapshot.
    let nanos = time.as_nanosecond().clamp(0, u64::MAX.into()) as u64;
    as_of(snapshots, nanos).cloned().ok_or_else(|| {
        Failure::failed(format!(
            "no snapshot is that old{}",
            match snapshots.first() {
                Some(oldest) => {
                    let taken = local(Time::from_nanos(oldest.time));
                    format!("; the oldest is `{}`, of {taken}", oldest.name)
                }
                None => "; there is none yet, `outrigger snapshot create` takes one".to_string(),
            }
        ))
    })
}

fn parse(text: &str, now: &Zoned) -> Option<Timestamp> {
    let zone = now.time_zone();
    match text {
        "now" => return Some(now.timestamp()),
        "today" => return Some(end_of(now.date(), zone)),
        "yesterday" => return now.date().yesterday().ok().map(|day| end_of(day, zone)),
        _ => {}
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    if let Ok(time) = text.parse::<Zoned>() {
        return Some(time.timestamp());
    }
    // jiff also parses a date as a date-time, at midnight, but a user means the day's end.
    if let Ok(date) = text
        .parse::<Date>()
        .or(Err(()))
        .and_then(|date| if text.contains([':', 'T']) { Err(()) } else { Ok(date) })
    {
        return Some(end_of(date, zone));
    }
    if let Ok(time) = text.parse::<DateTime>() {
        return time.to_zoned(zone.clone()).ok().map(|time| time.timestamp());
    }
    let span: Span = text.parse().ok()?;
    // `2h` alone would be the future.
    (span.is_negative() || span.is_zero())
        .then(|| now.checked_add(span).ok())
        .flatten()
        .map(|time| time.timestamp())
}

/// The last moment of a day. For the last day that can be counted, its last countable moment.
fn end_of(date: Date, zone: &TimeZone) -> Timestamp {
    let next = date.tomorrow().and_then(|next| next.to_zoned(zone.clone()));
    next.and_then(|midnight| midnight.timestamp().checked_sub(jiff::SignedDuration::from_nanos(1)))
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        "2026-11-21T12:00:00[UTC]".parse().unwrap()
    }

    fn at(name: &str, time: &str, tag: &str) -> SnapshotRow {
        let time = time.parse::<Timestamp>().unwrap().as_nanosecond() as u64;
        SnapshotRow { name: name.into(), epoch: 1, time, tags: vec![tag.into()], role: None }
    }

    #[test]
    fn every_form_that_the_help_names_is_understood() {
        for text in [
            "2026-05-01T12:00:00Z",
            "2026-05-01T12:00",
            "2026-05-01",
            "yesterday",
            "today",
            "now",
            "-2h",
            "3 days ago",
        ] {
            assert!(parse(text, &now()).is_some(), "{text}");
            assert!(HELP.contains(text), "{text}");
        }
    }

    #[test]
    fn names_come_before_tags_and_tags_before_times() {
        let snapshots = [
            at("a", "2026-11-19T10:00:00Z", "nightly"),
            at("b", "2026-11-20T10:00:00Z", "nightly"),
            at("c", "2026-11-21T11:30:00Z", "x"),
        ];
        let found = |text: &str| find(&snapshots, text, &now()).map(|snapshot| snapshot.name).ok();
        for (text, name) in [
            ("a", Some("a")),
            ("nightly", Some("b")),
            ("2026-11-20", Some("b")),
            ("2026-11-20T09:59", Some("a")),
            ("2026-11-20T10:00:00Z", Some("b")),
            ("2026-11-20T10:00:00+02:00", Some("a")),
            ("-2h", Some("b")),
            ("1 minute ago", Some("c")),
            ("2 days ago", Some("a")),
            ("now", Some("c")),
            ("today", Some("c")),
            ("yesterday", Some("b")),
            ("9999-12-31", Some("c")),
            ("1969-12-31", None),
            ("2026-11-18", None),
            ("2h", None),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(found(text).as_deref(), name, "{text}");
        }
    }
}
