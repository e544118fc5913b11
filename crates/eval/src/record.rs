//! Results as they are kept: one JSON file for each experiment and machine.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::lab::check;
use crate::lab::{Failed, Scale};
use crate::machine::Machine;
use crate::measure::Spread;

/// The version of the records' form. A reader refuses newer ones and reads all older ones.
pub const SCHEMA: u32 = 2;

/// An [`Outcome`] with its place, time and origin.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The experiment's id.
    pub experiment: String,
    /// How much was measured.
    pub scale: Scale,
    /// The day, `2026-11-22`, by UTC.
    pub date: String,
    /// Outrigger's version.
    pub version: String,
    /// The commit it was built from; empty where that is not known.
    pub commit: String,
    /// The machine.
    pub machine: Machine,
    /// The load average of the last minute at the start. It includes earlier work of this program.
    pub load: f64,
    /// Processors that other programs kept busy just before the start; older records do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// The command that repeats it.
    pub command: String,
    /// The duration of the whole run.
    pub seconds: f64,
    /// The results.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The results of an experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The plots.
    pub plots: Vec<Plot>,
    /// Single numbers, beside the paper's.
    pub findings: Vec<Finding>,
    /// Comparisons of a processor and a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duels: Vec<Duel>,
    /// The record of a script, if this outcome only draws it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_from: Option<String>,
    /// Notes for the reader: parameters of models, and what was left out and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit: `MB/s`, `x`, `%`.
    pub unit: String,
    /// The paper's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
}

/// A comparison of this processor with a device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Duel {
    /// The operation.
    pub what: String,
    /// All cores of this machine.
    pub processor: f64,
    /// The device.
    pub device: f64,
    /// The device's name, and whether its number was measured here, modelled, or is the paper's.
    pub device_is: String,
    /// `MB/s`: more is better.
    pub unit: String,
}

/// A drawing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// Its form.
    pub form: Form,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Its lines, or its bars' colours.
    pub series: Vec<Series>,
    /// Limits that nothing can pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

/// How points are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Points, joined.
    Lines,
    /// Bars side by side; `x` counts [`Axis::names`].
    Bars,
    /// Bars on top of each other; `x` counts [`Axis::names`].
    Stacked,
}

/// An axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Axis {
    /// Its label.
    pub label: String,
    /// Its unit; `bytes` is shown with binary prefixes.
    pub unit: String,
    /// True for a logarithmic axis.
    #[serde(default)]
    pub log: bool,
    /// For bars, the names at 0, 1, 2, ...
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Axis {
    /// A linear axis.
    pub fn new(label: &str, unit: &str) -> Self {
        Self { label: label.into(), unit: unit.into(), log: false, names: Vec::new() }
    }

    /// A logarithmic axis.
    pub fn log(label: &str, unit: &str) -> Self {
        Self { log: true, ..Self::new(label, unit) }
    }

    /// An axis of names.
    pub fn of(label: &str, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { names: names.into_iter().map(Into::into).collect(), ..Self::new(label, "") }
    }
}

/// A line, or bars of one colour.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The origin of its numbers.
    pub kind: SeriesKind,
    /// Ascending by `x`.
    pub points: Vec<Point>,
}

/// The origin of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Measured here.
    Measured,
    /// From a simulated device, or computed.
    Model,
    /// From the paper.
    Paper,
    /// A limit that differs by place.
    Limit,
}

/// A value with its spread.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The place.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// The least of all rounds.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// The number of rounds; 0 if nothing was repeated.
    pub rounds: u32,
}

/// A line that cannot be passed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// Its value.
    pub y: f64,
}

impl Series {
    /// A series without points.
    pub fn new(name: impl Into<String>, kind: SeriesKind) -> Self {
        Self { name: name.into(), kind, points: Vec::new() }
    }

    /// Measured here, without points.
    pub fn measured(name: impl Into<String>) -> Self {
        Self::new(name, SeriesKind::Measured)
    }

    /// A model's, without points.
    pub fn model(name: impl Into<String>) -> Self {
        Self::new(name, SeriesKind::Model)
    }

    /// A paper's numbers at these places.
    pub fn paper(name: impl Into<String>, points: &[(f64, f64)]) -> Self {
        let mut series = Self::new(name, SeriesKind::Paper);
        points.iter().for_each(|&(x, y)| series.exact(x, y));
        series
    }

    /// A limit at these places.
    pub fn limit(name: impl Into<String>, points: &[(f64, f64)]) -> Self {
        let mut series = Self::new(name, SeriesKind::Limit);
        points.iter().for_each(|&(x, y)| series.exact(x, y));
        series
    }

    /// Its name, with the origin of its numbers unless they were measured here.
    pub fn label(&self) -> String {
        let kind = match self.kind {
            SeriesKind::Measured => return self.name.clone(),
            SeriesKind::Model => "model",
            SeriesKind::Paper => "paper",
            SeriesKind::Limit => "limit",
        };
        format!("{} ({kind})", self.name)
    }

    /// Adds a point.
    pub fn push(&mut self, x: f64, spread: Spread) {
        let Spread { median, low, high, rounds } = spread;
        self.points.push(Point { x, y: median, low, high, rounds });
    }

    /// Adds a point without a spread.
    pub fn exact(&mut self, x: f64, y: f64) {
        self.points.push(Point { x, y, low: y, high: y, rounds: 0 });
    }

    /// The rightmost value.
    pub fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.y)
    }

    /// The largest value.
    pub fn most(&self) -> f64 {
        self.points.iter().map(|point| point.y).fold(0.0, f64::max)
    }
}

impl Outcome {
    /// Adds a number.
    pub fn find(&mut self, name: impl Into<String>, value: f64, unit: &str, paper: Option<f64>) {
        self.findings.push(Finding { name: name.into(), value, unit: unit.into(), paper });
    }

    /// Adds a comparison with the processor.
    pub fn duel(&mut self, what: &str, processor: f64, device: f64, device_is: &str, unit: &str) {
        let (what, device_is, unit) = (what.into(), device_is.into(), unit.into());
        self.duels.push(Duel { what, processor, device, device_is, unit });
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Checks that it can be drawn and read.
    ///
    /// # Errors
    /// [`Failed::Wrong`] with the fault: an invalid number, a plot without points or without a
    /// limit, an axis without a label.
    pub fn check(&self) -> Result<(), Failed> {
        check(!self.plots.is_empty() || !self.findings.is_empty(), "nothing was found")?;
        for finding in &self.findings {
            check(finding.value.is_finite(), format!("{} is no number", finding.name))?;
        }
        for plot in &self.plots {
            let of = |what: &str| format!("plot `{}`: {what}", plot.title);
            check(!plot.x.label.is_empty() && !plot.y.label.is_empty(), of("an axis has no label"))?;
            check(!plot.y.unit.is_empty(), of("no unit"))?;
            check(plot.series.iter().any(|series| !series.points.is_empty()), of("no points"))?;
            check(plot.form == Form::Lines || !plot.x.names.is_empty(), of("bars without names"))?;
            let limited =
                !plot.limits.is_empty() || plot.series.iter().any(|series| series.kind == SeriesKind::Limit);
            check(limited, of("no limit"))?;
            for series in &plot.series {
                for point in &series.points {
                    let Point { x, y, low, high, .. } = *point;
                    let numbers = [x, y, low, high].into_iter().all(f64::is_finite);
                    check(numbers && low <= y && y <= high, of(&format!("{}: {point:?}", series.name)))?;
                    check(!plot.y.log || low > 0.0, of(&format!("{}: 0 on powers", series.name)))?;
                    check(!plot.x.log || x > 0.0, of(&format!("{}: 0 on powers", series.name)))?;
                    let named = plot.form == Form::Lines || (x as usize) < plot.x.names.len();
                    check(named, of("a bar without a name"))?;
                }
            }
        }
        Ok(())
    }
}

/// The command that repeats an experiment, to be pasted into a shell in the checkout. Its data may
/// lie anywhere; `bench/data.sh` puts them there.
pub fn command(experiment: &str, scale: Scale, with_data: bool) -> String {
    let data = if with_data { "BENCH_DATA=./bench-data " } else { "" };
    match scale {
        Scale::Tiny => format!("{data}target/release/outrigger-eval run {experiment} --scale tiny"),
        Scale::Short => format!("{data}make eval EVAL=\"{experiment}\""),
        Scale::Full => format!("{data}make eval-full EVAL=\"{experiment}\""),
    }
}

impl Record {
    /// Writes it to `DIR/MACHINE/EXPERIMENT.json`, in place of an older one.
    ///
    /// # Errors
    /// Those of writing.
    pub fn save(&self, dir: &Path) -> Result<PathBuf, Failed> {
        let dir = dir.join(self.machine.slug());
        std::fs::create_dir_all(&dir)?;
        let path = dir.join(format!("{}.json", self.experiment));
        let mut text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        text.push('\n');
        // Written atomically, because `--resume` relies on existing files.
        let mut file = tempfile::NamedTempFile::new_in(&dir)?;
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o644)).map_err(std::io::Error::from)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(path)
    }

    /// The record of one experiment on this machine, if there is one.
    ///
    /// # Errors
    /// As [`Self::load_all`].
    pub fn of(dir: &Path, machine: &Machine, experiment: &str) -> Result<Option<Self>, Failed> {
        let path = dir.join(machine.slug()).join(format!("{experiment}.json"));
        if path.exists() { Self::load(&path).map(Some) } else { Ok(None) }
    }

    /// Every record below `dir`, by machine and experiment.
    ///
    /// # Errors
    /// Names the file that is no record, or is newer than this program.
    pub fn load_all(dir: &Path) -> Result<Vec<Self>, Failed> {
        let mut records: Vec<Self> = Vec::new();
        let machines = std::fs::read_dir(dir)?.flatten().map(|entry| entry.path());
        for machine in machines.filter(|path| path.is_dir()) {
            for file in std::fs::read_dir(machine)?.flatten().map(|entry| entry.path()) {
                if file.extension().is_some_and(|extension| extension == "json") {
                    records.push(Self::load(&file)?);
                }
            }
        }
        records.sort_by_key(|record| (record.machine.slug(), record.experiment.clone()));
        Ok(records)
    }

    fn load(file: &Path) -> Result<Self, Failed> {
        let about = |why: String| Failed::Wrong(format!("{}: {why}", file.display()));
        let value: serde_json::Value =
            serde_json::from_slice(&std::fs::read(file)?).map_err(|error| about(error.to_string()))?;
        match value["schema"].as_u64() {
            Some(schema) if schema <= u64::from(SCHEMA) => {
                serde_json::from_value(value).map_err(|error| about(error.to_string()))
            }
            Some(schema) => Err(about(format!("schema {schema} is newer than this program ({SCHEMA})"))),
            None => Err(about("no record: it has no schema".into())),
        }
    }
}
