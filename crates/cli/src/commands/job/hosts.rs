//! Hosts in `job show`: which held the job's data when it was made (if splits belong to hosts), and
//! which ran how many splits, of their own and of others.

use std::collections::BTreeMap;

use outrigger_active::job::Held;
use outrigger_active::runner::{Forecast, Measured};
use outrigger_store::backend::is_same_host;
use outrigger_store::meta::jobs::SplitRow;

use crate::json::Object;
use crate::output::{counted, size};
use crate::progress::duration;

/// The part of a job that one host has run.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ran {
    splits: u64,
    /// Those of them whose data lay mostly on another host.
    splits_of_others: u64,
    secs: f64,
    /// The predicted time of those splits, from the rest of the job, and the time that they took.
    /// Both leave out splits without a prediction.
    others_predicted: Option<f64>,
    others_secs: f64,
}

/// The data of a job by host, and its splits by the host that ran them.
pub struct Hosts {
    /// Splits, and their bytes.
    held: BTreeMap<String, (u64, u64)>,
    ran: BTreeMap<String, Ran>,
}

/// True if most of a split was read from other hosts; `None` if that is unknown.
fn is_of_another(took: &Measured, held: Option<&Held>) -> Option<bool> {
    if let (Some(here), Some(elsewhere)) = (took.bytes_here, took.bytes_elsewhere) {
        return Some(elsewhere > here);
    }
    // Bytes that a program reads as files are not counted by host.
    held.filter(|held| !held.host.is_empty()).map(|held| !is_same_host(&held.host, &took.host))
}

impl Hosts {
    /// Counts the splits that have a time in `times`, which are those that have ended.
    pub fn new(
        splits: &[SplitRow],
        by_host: &[Held],
        times: &BTreeMap<u64, Measured>,
        forecast: &Forecast,
    ) -> Self {
        let (mut held, mut ran): (BTreeMap<String, (u64, u64)>, BTreeMap<String, Ran>) = Default::default();
        for one in by_host {
            let sum = held.entry(one.host.clone()).or_default();
            *sum = (sum.0 + 1, sum.1 + one.bytes());
        }
        for split in splits {
            let Some(took) = times.get(&split.number) else { continue };
            let sum = ran.entry(took.host.clone()).or_default();
            sum.splits += 1;
            sum.secs += took.secs;
            if is_of_another(took, by_host.get(split.number as usize)) == Some(true) {
                sum.splits_of_others += 1;
                if let Some(secs) = forecast.secs(split) {
                    sum.others_secs += took.secs;
                    sum.others_predicted = Some(sum.others_predicted.unwrap_or(0.0) + secs);
                }
            }
        }
        Self { held, ran }
    }

    /// Lines of `job show`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (host, (splits, bytes)) in &self.held {
            let host = if host.is_empty() { "an unknown host" } else { host };
            text += &format!(
                "  held      by {host}: {}, {}\n",
                counted(*splits, "split", "splits"),
                size(*bytes)
            );
        }
        for (host, ran) in &self.ran {
            let of_others = match (ran.splits_of_others, ran.others_predicted) {
                (0, _) => String::new(),
                (count, None) => format!("; {count} of them held by others"),
                (count, Some(predicted)) => format!(
                    "; {count} of them held by others, in {} (predicted: {})",
                    duration(ran.others_secs),
                    duration(predicted)
                ),
            };
            let splits = counted(ran.splits, "split", "splits");
            text += &format!("  ran       on {host}: {splits}, {}{of_others}\n", duration(ran.secs));
        }
        text
    }

    /// For `job show --json`: the data by host, and the splits by the host that ran them.
    pub fn json(&self) -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
        let held = |(host, (splits, bytes)): (&String, &(u64, u64))| {
            Object::new().with("host", host.clone()).with("splits", *splits).with("bytes", *bytes).into()
        };
        let ran = |(host, ran): (&String, &Ran)| {
            Object::new()
                .with("host", host.clone())
                .with("splits", ran.splits)
                .with("seconds", ran.secs)
                .with("splits_of_others", ran.splits_of_others)
                .with("seconds_of_others", ran.others_predicted.map(|_| ran.others_secs))
                .with("seconds_of_others_predicted", ran.others_predicted)
                .into()
        };
        (self.held.iter().map(held).collect(), self.ran.iter().map(ran).collect())
    }
}

#[cfg(test)]
mod tests {
    use outrigger_store::meta::SessionId;
    use outrigger_store::meta::jobs::{NewSplit, SplitState};

    use super::*;

    fn split(number: u64, bytes: u64) -> SplitRow {
        SplitRow {
            number,
            range: NewSplit { input: Some(0), from: 0, to: bytes },
            state: SplitState::Done,
            attempt: 1,
            session: SessionId(1),
            why: String::new(),
            log: Vec::new(),
        }
    }

    fn took(host: &str, secs: f64, bytes: Option<(u64, u64)>) -> Measured {
        let (here, elsewhere) = (bytes.map(|bytes| bytes.0), bytes.map(|bytes| bytes.1));
        Measured {
            host: host.to_string(),
            secs,
            bytes_here: here,
            bytes_elsewhere: elsewhere,
            cpu_secs: None,
            memory: None,
        }
    }

    #[test]
    fn it_is_said_what_a_host_took_of_others_and_how_long_that_was_beside_what_was_expected() {
        let splits: Vec<SplitRow> = (0..3).map(|number| split(number, 1000)).collect();
        let times = [took("a", 2.0, Some((900, 100))), took("a", 4.0, Some((0, 1000))), took("b", 2.0, None)];
        let times: BTreeMap<u64, Measured> = (0..).zip(times).collect();
        let hosts = Hosts::new(&splits, &[], &times, &Forecast::new(&splits, &times));
        assert_eq!(
            hosts.text(),
            "  ran       on a: 2 splits, 6.0 s; 1 of them held by others, in 4.0 s (predicted: 2.0 s)\n  ran       on b: 1 split, 2.0 s\n"
        );
        // A split without counts is judged by the host that held it.
        let held = |host: &str| Held { host: host.to_string(), ranges: vec![(0, 0, 1000)] };
        let by_host = [held("a"), held("b"), held("a")];
        let hosts = Hosts::new(&splits, &by_host, &times, &Forecast::new(&splits, &times));
        assert!(hosts.text().starts_with("  held      by a: 2 splits, 1.95 KiB\n  held      by b: 1 split"));
        let (held, ran) = hosts.json();
        assert_eq!((held[0]["splits"].as_u64(), ran[1]["splits_of_others"].as_u64()), (Some(2), Some(1)));
    }
}
