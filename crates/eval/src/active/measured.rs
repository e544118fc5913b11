//! Measurements of `bench/active.py`: its newest record, or in tiny runs a run of it.

use std::sync::{Mutex, OnceLock};

use serde_json::Value;

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::Outcome;
use crate::recorded::{Recorded, run_tiny, spread};

/// The paper's programs.
pub const PROGRAMS: [&str; 2] = ["dscal", "aminogen"];

/// The output of a tiny run, which all experiments share.
static TINY: OnceLock<Mutex<Option<Value>>> = OnceLock::new();

/// The command that makes a record.
const COMMAND: &str = "bench/active.py --outrigger target/release/outrigger --work DIR --record";

/// A record of `bench/active.py`.
pub struct Report {
    record: Recorded,
}

/// One program in it.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// Its name.
    pub name: &'a str,
    json: &'a Value,
}

impl Report {
    /// The newest record, or in tiny runs one that is made now.
    ///
    /// # Errors
    /// `Missing` if there is no record, or no program to make one with.
    pub fn find(lab: &Lab) -> Result<Self, Failed> {
        if lab.scale == Scale::Tiny {
            let mut known = TINY.get_or_init(Mutex::default).lock().expect("no panic while held");
            if known.is_none() {
                let options = "--mib 1 --feed-mib 1 --made-mib 1 --splits 20 --rate 4";
                let tools = [("cc", "build-essential"), ("bwrap", "bubblewrap")];
                *known = Some(run_tiny(lab, "active.py", options, &tools)?);
            }
            return Ok(Self { record: Recorded::made(known.clone().unwrap_or_default(), COMMAND) });
        }
        Ok(Self { record: Recorded::newest(lab, "active", COMMAND)? })
    }

    /// One program.
    ///
    /// # Errors
    /// `Missing` if the record leaves it out.
    pub fn program<'a>(&'a self, name: &'a str) -> Result<Program<'a>, Failed> {
        let json = &self.with_hosts()?[name];
        if json.is_null() {
            return Err(Failed::Missing(format!("{name} was left out of the record")));
        }
        Ok(Program { name, json })
    }

    fn with_hosts(&self) -> Result<&Value, Failed> {
        let found = &self.record.json["parts"]["with hosts"];
        if found.is_null() {
            return Err(Failed::Missing(format!("no hosts in the record: {}", self.record.json["left_out"])));
        }
        Ok(found)
    }

    /// Numbers of storage hosts.
    ///
    /// # Errors
    /// As [`Self::program`].
    pub fn hosts(&self) -> Result<Vec<u64>, Failed> {
        let hosts = self.with_hosts()?["hosts"].as_array();
        Ok(hosts.into_iter().flatten().filter_map(Value::as_u64).collect())
    }

    /// Bytes per second of limited programs together, and their limit.
    ///
    /// # Errors
    /// `Wrong` if the record has none.
    pub fn scale(&self, hosts: u64) -> Result<(f64, f64), Failed> {
        let found = &self.with_hosts()?["scale"][hosts.to_string()];
        let both = found["bytes_per_s"].as_f64().zip(found["limit_bytes_per_s"].as_f64());
        both.ok_or_else(|| Failed::Wrong(format!("the record has no rates for {hosts} hosts")))
    }

    /// Two percentages: of the limited programs' input, the part that came from other hosts; and
    /// all bytes that came to their hosts, relative to the packed bytes that they read. Older
    /// records lack the first.
    pub fn elsewhere(&self, hosts: u64) -> [Option<f64>; 2] {
        let Ok(found) = self.with_hosts() else { return [None; 2] };
        let found = &found["scale"][hosts.to_string()];
        let share = |part: &str, of: &str| Some(found[part].as_f64()? / found[of].as_f64()? * 100.0);
        [share("fed_elsewhere", "fed"), share("remote_bytes", "packed_bytes")]
    }

    /// The costs of splits and of feeding programs.
    ///
    /// # Errors
    /// `Wrong` if the record has neither.
    pub fn costs(&self, outcome: &mut Outcome) -> Result<(), Failed> {
        let (splits, feed) = (&self.record.json["parts"]["splits"], &self.record.json["parts"]["feed"]);
        let alone = splits["start_alone_ms"].as_f64().unwrap_or(0.0);
        for mode in ["off", "strict"] {
            if let Some(took) = splits[mode]["ms_a_split"].as_f64() {
                let name =
                    format!("a split beside its program, sandbox {mode}, {} splits", splits[mode]["splits"]);
                outcome.find(name, took - alone, "ms", None);
            }
        }
        for (name, one) in feed.as_object().into_iter().flatten() {
            let found = [
                ("ratio", "stored over a plain file, time", "x", 1.0),
                ("rate_ratio", "stored over a plain file, time of a byte more", "x", 1.0),
                ("fixed_s", "a job's begin and end", "ms", 1e3),
            ];
            for (key, what, unit, factor) in found {
                if let Some(value) = one[key].as_f64() {
                    outcome.find(format!("{name}: {what}"), value * factor, unit, None);
                }
            }
        }
        check(!outcome.findings.is_empty(), "the record says nothing of splits and feeding")
    }

    /// Adds a note about the origin of the record.
    pub fn note(&self, outcome: &mut Outcome) {
        let megabytes = self.record.json["bytes"].as_f64().unwrap_or(0.0) / 1e6;
        self.record.note(outcome, &format!(", {megabytes:.0} MB of numbers"));
    }
}

impl Program<'_> {
    /// All rounds of one way of running.
    pub fn spread(&self, way: &str, hosts: u64, key: &str) -> Option<Spread> {
        spread(&self.json[way][hosts.to_string()], |round| round[key].as_f64())
    }

    /// Bytes of input and output.
    ///
    /// # Errors
    /// `Wrong` if the record does not say.
    pub fn bytes(&self) -> Result<(f64, f64), Failed> {
        let both = self.json["input_bytes"].as_f64().zip(self.json["output_bytes"].as_f64());
        both.ok_or_else(|| {
            Failed::Wrong(format!("the record does not say what {} reads and writes", self.name))
        })
    }
}
