//! Plots of the records of `bench/peers.py`.

use serde_json::Value;

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Outcome, Plot, Series};
use crate::recorded::{Recorded, spread};

const TOOLS: [&str; 4] = ["outrigger", "restic", "borg", "rustic"];
const SETS: [&str; 4] = ["trees", "tars", "cores", "random"];

/// Rates and sizes by data set.
pub fn drawn(lab: &Lab) -> Result<Outcome, Failed> {
    let found = Recorded::newest(lab, "peers", "make bench")?;
    let record = &found.json;
    let mut outcome = Outcome::default();
    let all = |set: &str, tool: &str, value: &dyn Fn(&Value) -> Option<f64>| {
        spread(&record["sets"][set]["tools"][tool], value)
    };
    for (phase, title) in [
        ("put 1", "First version put"),
        ("put 2", "Second version put"),
        ("restore", "Second version restored"),
    ] {
        plot(
            &mut outcome,
            title,
            "time",
            "s",
            &|set, tool| all(set, tool, &|run| run[phase]["wall"].as_f64()),
            ("cp of the second version", &|set| record["sets"][set]["limits"]["cp"]["wall"].as_f64()),
        )?;
    }
    plot(
        &mut outcome,
        "Stored, both versions",
        "size",
        "MB",
        &|set, tool| all(set, tool, &|run| run["stored"]["bytes"].as_f64().map(|bytes| bytes / 1e6)),
        ("both versions as they are", &|set| Some(record["sets"][set]["bytes"].as_f64()? / 1e6)),
    )?;
    for set in SETS {
        let time = |tool| {
            all(set, tool, &|run| Some(run["put 1"]["wall"].as_f64()? + run["put 2"]["wall"].as_f64()?))
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
    found.note(&mut outcome, "");
    outcome.note("`cp -a` reads and writes all of the second version with one thread: who has several, or less to write, can pass it.");
    Ok(outcome)
}

/// A limit's name, and its value for each set.
type Bounds<'a> = (&'a str, &'a dyn Fn(&str) -> Option<f64>);

/// One plot with a bar for each tool and set.
fn plot(
    outcome: &mut Outcome,
    title: &str,
    what: &str,
    unit: &str,
    value: &dyn Fn(&str, &str) -> Option<Spread>,
    bounds: Bounds<'_>,
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
    let bound = |(at, set): (usize, &&str)| Some((at as f64, bounds.1(set)?));
    series.push(Series::limit(bounds.0, &SETS.iter().enumerate().filter_map(bound).collect::<Vec<_>>()));
    let limits = Vec::new();
    let (x, y) = (Axis::of("data set", SETS), Axis::log(what, unit));
    outcome.plots.push(Plot { title: title.into(), form: Form::Bars, x, y, series, limits });
    Ok(())
}
