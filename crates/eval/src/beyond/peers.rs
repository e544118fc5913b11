//! What `bench/peers.py` recorded, drawn.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::experiment::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};

const TOOLS: [&str; 4] = ["outrigger", "restic", "borg", "rustic"];
const SETS: [&str; 4] = ["trees", "tars", "cores", "random"];

/// The newest record of a whole run.
fn newest() -> Result<PathBuf, Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evaluation/records");
    let places = [PathBuf::from("docs/evaluation/records"), source];
    let is_record = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.contains("-peers-") && name.ends_with(".json")
    };
    let in_place =
        |place: PathBuf| std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = places.into_iter().flat_map(in_place).filter(is_record).max();
    found.ok_or_else(|| {
        Failed::Missing("there is no record of `bench/peers.py` in docs/evaluation/records".into())
    })
}

/// Rates and sizes by data set.
pub fn drawn(_: &Lab) -> Result<Outcome, Failed> {
    let path = newest()?;
    let record: Value = serde_json::from_slice(&std::fs::read(&path)?).map_err(std::io::Error::from)?;
    let mut outcome = Outcome::default();
    let runs =
        |set: &str, tool: &str| record["sets"][set]["tools"][tool].as_array().cloned().unwrap_or_default();
    let spread = |set: &str, tool: &str, value: &dyn Fn(&Value) -> Option<f64>| {
        let values: Vec<f64> = runs(set, tool).iter().filter_map(value).collect();
        (!values.is_empty()).then(|| Spread::of(values))
    };
    for (phase, title) in [
        ("put 1", "First version put"),
        ("put 2", "Second version put"),
        ("restore", "Second version restored"),
    ] {
        plot(&mut outcome, title, "time", "s", &|set, tool| {
            spread(set, tool, &|run| run[phase]["wall"].as_f64())
        })?;
    }
    plot(&mut outcome, "Stored, both versions", "size", "MB", &|set, tool| {
        spread(set, tool, &|run| run["stored"]["bytes"].as_f64().map(|bytes| bytes / 1e6))
    })?;
    for set in SETS {
        let time = |tool| {
            spread(set, tool, &|run| Some(run["put 1"]["wall"].as_f64()? + run["put 2"]["wall"].as_f64()?))
        };
        let best = TOOLS[1..]
            .iter()
            .filter_map(|tool| time(tool))
            .map(|spread| spread.median)
            .fold(f64::MAX, f64::min);
        if let Some(ours) = time("outrigger").filter(|_| best < f64::MAX) {
            outcome.find(
                format!("{set}: both puts, the quickest peer's time over ours"),
                best / ours.median,
                "x",
                None,
            );
        }
    }
    let of = |name: &str| record[name].as_str().unwrap_or("unknown").to_string();
    let cpu = record["machine"]["cpu"].as_str().unwrap_or("unknown");
    let cpus = record["machine"]["cpus"].as_u64().unwrap_or(0);
    outcome.note(format!(
        "Of {}, on {cpu} with {cpus} CPUs, revision {}, {} rounds: `docs/evaluation/records/{}`.",
        of("date"),
        of("revision"),
        record["rounds"],
        path.file_name().unwrap_or_default().to_string_lossy()
    ));
    Ok(outcome)
}

/// One plot with a bar for each tool and set.
fn plot(
    outcome: &mut Outcome,
    title: &str,
    what: &str,
    unit: &str,
    value: &dyn Fn(&str, &str) -> Option<Spread>,
) -> Result<(), Failed> {
    let mut series: Vec<Series> = TOOLS.map(Series::measured).into();
    for (line, tool) in series.iter_mut().zip(TOOLS) {
        for (at, set) in SETS.iter().enumerate() {
            value(set, tool).into_iter().for_each(|spread| line.push(at as f64, spread));
        }
    }
    series.retain(|line| !line.points.is_empty());
    check(
        series.first().is_some_and(|line| line.name == "outrigger"),
        "the record says nothing of outrigger",
    )?;
    let limits: Vec<Limit> = Vec::new();
    let (x, y) = (Axis::of("data set", SETS), Axis::log(what, unit));
    outcome.plots.push(Plot { title: title.into(), form: Form::Bars, x, y, series, limits });
    Ok(())
}
