//! Durations of attempts, and the expected duration of a split.
//!
//! The runner that finishes a split records its measurements with it (`JobChange::Finish`). A
//! split's expected duration follows from the other splits of its job, in proportion to their
//! bytes: programs differ too much to use measurements of other jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_store::host;
use outrigger_store::meta::jobs::{JobId, NewSplit, SplitRow};
use outrigger_store::{Result, Store};
use serde::{Deserialize, Serialize};

use crate::cgroup::Usage;

/// Measurements of an attempt that finished a split.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Its host.
    pub host: String,
    /// From its start until its programs had ended.
    pub secs: f64,
    /// Processor time of all its processes, where it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_secs: Option<f64>,
    /// The most memory that they had at once, bytes, if it was counted; for several programs, the
    /// sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Bytes that it read from packs on its own host, if the packs' engine knows which host holds
    /// which pack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_here: Option<u64>,
    /// As these, for packs elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_elsewhere: Option<u64>,
}

impl Measured {
    /// Measurements of an attempt on this host; `seen`: bytes that it read from packs here and
    /// elsewhere.
    pub(super) fn here(took: Duration, usage: Usage, seen: Option<(u64, u64)>) -> Self {
        let cpu_secs = usage.cpu.map(|cpu| cpu.as_secs_f64());
        let (bytes_here, bytes_elsewhere) = seen.unzip();
        let (host, secs) = (host::name(), took.as_secs_f64());
        Self { host, secs, cpu_secs, memory: usage.memory, bytes_here, bytes_elsewhere }
    }

    pub(super) fn encode(&self) -> String {
        serde_json::to_string(self).expect("names and numbers serialise")
    }
}

/// The recorded measurements of a job's finished splits, by split number.
///
/// # Errors
/// Those of the database.
pub fn measured(store: &Store, job: JobId) -> Result<BTreeMap<u64, Measured>> {
    let noted = store.jobs().measured(job)?.into_iter();
    // What another version wrote otherwise is not understood, and not needed.
    Ok(noted.filter_map(|(split, text)| Some((split, serde_json::from_str(&text).ok()?))).collect())
}

/// Predicts the durations of splits.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// Bytes and seconds of each finished split.
    known: BTreeMap<u64, (u64, f64)>,
    bytes: u64,
    secs: f64,
}

impl Forecast {
    /// From what is known of a job.
    pub fn new(splits: &[SplitRow], measured: &BTreeMap<u64, Measured>) -> Self {
        let mut forecast = Self::default();
        for split in splits {
            if let Some(measured) = measured.get(&split.number) {
                let bytes = bytes_of(&split.range);
                forecast.bytes += bytes;
                forecast.secs += measured.secs;
                forecast.known.insert(split.number, (bytes, measured.secs));
            }
        }
        forecast
    }

    /// Expected seconds of a split, from the *other* splits; `None` if none has finished, or its
    /// length is not known yet.
    pub fn secs(&self, split: &SplitRow) -> Option<f64> {
        let (own, count) = match self.known.get(&split.number) {
            Some(own) => (*own, self.known.len() - 1),
            None => ((0, 0.0), self.known.len()),
        };
        if count == 0 || split.range.is_open() {
            return None;
        }
        let (bytes, secs) = (self.bytes - own.0, self.secs - own.1);
        // Without bytes, each is like the others.
        let part = if bytes == 0 { 1.0 / count as f64 } else { bytes_of(&split.range) as f64 / bytes as f64 };
        Some((secs * part).max(0.0))
    }
}

fn bytes_of(range: &NewSplit) -> u64 {
    if range.is_open() { 0 } else { range.to.saturating_sub(range.from) }
}

#[cfg(test)]
mod tests {
    use outrigger_store::meta::SessionId;
    use outrigger_store::meta::jobs::{OPEN_END, SplitState};

    use super::*;

    fn split(number: u64, bytes: u64) -> SplitRow {
        SplitRow {
            number,
            range: NewSplit { input: Some(0), from: 5, to: 5 + bytes },
            state: SplitState::Done,
            attempt: 1,
            session: SessionId(1),
            why: String::new(),
            log: Vec::new(),
        }
    }

    fn took(secs: f64) -> Measured {
        Measured {
            host: "a".into(),
            secs,
            cpu_secs: None,
            memory: None,
            bytes_here: None,
            bytes_elsewhere: None,
        }
    }

    #[test]
    fn a_split_is_expected_to_take_what_the_others_took_by_their_bytes() {
        let splits = [split(0, 100), split(1, 300), split(2, 50)];
        let none = Forecast::new(&splits, &BTreeMap::new());
        assert_eq!(none.secs(&splits[0]), None);
        let known = BTreeMap::from([(0, took(2.0)), (1, took(2.0))]);
        let forecast = Forecast::new(&splits, &known);
        // 400 bytes took 4 s.
        assert!((forecast.secs(&splits[2]).unwrap() - 0.5).abs() < 1e-9);
        // A split's own duration is no part of its forecast.
        assert!((forecast.secs(&splits[0]).unwrap() - 2.0 / 3.0).abs() < 1e-9);
        assert!((forecast.secs(&splits[1]).unwrap() - 6.0).abs() < 1e-9);
        let open = SplitRow { range: NewSplit { to: OPEN_END, ..splits[2].range }, ..splits[2].clone() };
        assert_eq!(forecast.secs(&open), None);
        let alone = Forecast::new(&splits, &BTreeMap::from([(0, took(2.0))]));
        assert_eq!(alone.secs(&splits[0]), None);
        let empty = [split(0, 0), split(1, 0)];
        let forecast = Forecast::new(&empty, &BTreeMap::from([(0, took(3.0))]));
        assert_eq!(forecast.secs(&empty[1]), Some(3.0));
    }

    #[test]
    fn what_is_noted_is_read_again_and_what_is_not_known_left_out() {
        let usage = Usage { cpu: Some(Duration::from_millis(1500)), memory: None };
        let measured = Measured::here(Duration::from_secs(2), usage, Some((7, 0)));
        let text = measured.encode();
        assert!(!text.contains("memory") && text.contains("bytes_elsewhere"), "{text}");
        assert_eq!(serde_json::from_str::<Measured>(&text).unwrap(), measured);
    }
}
