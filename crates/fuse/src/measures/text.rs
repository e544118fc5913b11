//! The two forms of a [`Status`]: JSON, and the text that Prometheus reads.

use std::fmt::Write as _;

use outrigger_store::latency::{BOUNDS, Spread};
use outrigger_store::ops::errors::{self, Met};

use super::status::{FIELDS, Field, HISTOGRAMS, Kind, Shown, Status, Unit};

/// Prefix of every name, for places where many programs' numbers meet.
const PREFIX: &str = "outrigger_";
/// The media type of [`exposition`], for an answer's header.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

fn shown(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Whole => value.to_string(),
        Unit::Seconds => seconds(value),
    }
}

/// `1.5`, from nanoseconds.
fn seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The bound of each class, and how many are in it or in those before it.
fn cumulative(spread: &Spread) -> impl Iterator<Item = (String, u64)> {
    let bounds = BOUNDS.iter().map(|millis| seconds(millis * 1_000_000)).chain(["+Inf".to_string()]);
    bounds.zip(spread.classes).scan(0, |below, (bound, count)| {
        *below += count;
        Some((bound, *below))
    })
}

/// A JSON object on one line: each field under its name, histograms as their buckets, count and
/// sum, and the last errors.
pub fn json(status: &Status, errors: &[Met]) -> String {
    let mut text = String::from("{");
    for Field { name, unit, get, .. } in FIELDS {
        let _ = write!(text, "\"{name}\":{},", shown(*unit, get(status)));
    }
    for Shown { name, get, .. } in HISTOGRAMS {
        let spread = get(status);
        let buckets = cumulative(&spread).map(|(bound, count)| format!("\"{bound}\":{count}"));
        let buckets = buckets.collect::<Vec<_>>().join(",");
        let (count, sum) = (spread.count(), seconds(spread.nanos));
        let _ = write!(text, "\"{name}\":{{\"buckets\":{{{buckets}}},\"count\":{count},\"sum\":{sum}}},");
    }
    let _ = write!(text, "\"errors\":{}}}", errors::json(errors));
    text
}

/// Prometheus' text format, version 0.0.4.
pub fn exposition(status: &Status) -> String {
    let (mut text, mut last) = (String::new(), String::new());
    for Field { name, kind, unit, label, help, get, .. } in FIELDS {
        let (word, end) = match kind {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        };
        let family = format!("{PREFIX}{}{end}", label.map_or(*name, |label| label.family));
        if family != last {
            let _ = write!(text, "# HELP {family} {help}\n# TYPE {family} {word}\n");
        }
        let labels = label.map(|label| format!("{{{}=\"{}\"}}", label.label, label.value));
        let _ = writeln!(text, "{family}{} {}", labels.unwrap_or_default(), shown(*unit, get(status)));
        last = family;
    }
    for Shown { name, help, get, .. } in HISTOGRAMS {
        let _ = write!(text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} histogram\n");
        let spread = get(status);
        for (bound, count) in cumulative(&spread) {
            let _ = writeln!(text, "{PREFIX}{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let (sum, count) = (seconds(spread.nanos), spread.count());
        let _ = write!(text, "{PREFIX}{name}_sum {sum}\n{PREFIX}{name}_count {count}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::time::Duration;

    use super::super::Histogram;
    use super::*;

    fn status() -> Status {
        let mut status = Status::default();
        for (value, field) in (1..).zip(FIELDS) {
            (field.set)(&mut status, value * 1_500_000_000);
        }
        let histogram = Histogram::default();
        [5, 200, 250, 1_000_000].iter().for_each(|millis| histogram.note(Duration::from_millis(*millis)));
        for shown in HISTOGRAMS {
            (shown.set)(&mut status, histogram.spread());
        }
        status
    }

    fn is_name(name: &str) -> bool {
        name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Every sample, by name and label; panics on a line that a reader of the format would not
    /// take.
    fn parse(text: &str) -> HashMap<String, f64> {
        let (mut samples, mut types, mut helped) = (HashMap::new(), HashMap::new(), HashSet::new());
        assert!(text.ends_with('\n') && !text.contains("\n\n"));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
                assert!(helped.insert(name), "{name} is explained twice");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(helped.contains(name), "the explanation comes first: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                assert_eq!(types.insert(name, kind), None, "{line}");
                continue;
            }
            let (key, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = key.split_once('{').unwrap_or((key, ""));
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let family =
                of_histogram.filter(|family| types.get(family) == Some(&"histogram")).unwrap_or(name);
            assert!(is_name(name) && types.contains_key(family), "{line}");
            assert!(name.starts_with("outrigger_"), "{line}");
            if !labels.is_empty() {
                let (label, value) = labels.strip_suffix("\"}").unwrap().split_once("=\"").unwrap();
                assert!(is_name(label) && !value.contains(['"', '\\']), "{line}");
            }
            assert_eq!(samples.insert(key.to_string(), value.parse().unwrap()), None, "{line}");
        }
        samples
    }

    #[test]
    fn every_line_can_be_read_and_every_number_is_there() {
        let samples = parse(&exposition(&status()));
        assert_eq!(samples.len(), FIELDS.len() + HISTOGRAMS.len() * (BOUNDS.len() + 3));
        assert_eq!(samples["outrigger_uptime_seconds"], 1.5);
        assert_eq!(samples["outrigger_written_bytes_total"], 3e9);
        assert_eq!(samples["outrigger_operations_total{kind=\"read\"}"], 6e9);
        assert_eq!(samples["outrigger_destage_seconds_bucket{le=\"0.01\"}"], 1.0);
        assert_eq!(samples["outrigger_destage_seconds_bucket{le=\"0.3\"}"], 3.0);
        assert_eq!(samples["outrigger_destage_seconds_bucket{le=\"100\"}"], 3.0);
        assert_eq!(samples["outrigger_destage_seconds_bucket{le=\"+Inf\"}"], 4.0);
        assert_eq!(samples["outrigger_destage_seconds_count"], 4.0);
        assert_eq!(samples["outrigger_destage_seconds_sum"], 1000.455);
        for name in ["database_transaction", "pack_read", "pack_write"] {
            assert_eq!(samples[&format!("outrigger_{name}_seconds_bucket{{le=\"0.003\"}}")], 0.0);
            assert_eq!(samples[&format!("outrigger_{name}_seconds_count")], 4.0);
        }
    }

    #[test]
    fn json_has_the_same_numbers() {
        let met = Met { time: 7, operation: "READ".into(), kind: "io".into(), text: "a \"b\"".into() };
        let text = json(&status(), &[met]);
        assert!(text.starts_with("{\"uptime_seconds\":1.5,\"written_bytes\":3000000000,"), "{text}");
        assert!(text.contains("\"0.3\":3,"), "{text}");
        assert!(text.contains("\"+Inf\":4},\"count\":4,\"sum\":1000.455},"), "{text}");
        let errors = r#""errors":[{"time":7,"operation":"READ","kind":"io","text":"a \"b\""}]}"#;
        assert!(text.ends_with(errors), "{text}");
        assert!(FIELDS.iter().all(|field| text.contains(&format!("\"{}\":", field.name))));
    }

    #[test]
    fn seconds_are_exact_and_short() {
        let texts = [0, 1, 1_000_000_000, 10_000_000_000, 1_500_000_000].map(seconds);
        assert_eq!(texts, ["0", "0.000000001", "1", "10", "1.5"]);
    }
}
