//! Numbers from the papers' texts and tables, as lines of plots and beside this processor's. They
//! join the records when the report is drawn, so a number that is read again needs no new record.
//! Numbers of the papers in older records are left out.

use crate::record::{Duel, Plot, Record, Series, SeriesKind};

/// Where a paper's line has its points.
enum At {
    /// At these places.
    Places(&'static [(f64, f64)]),
    /// From the first measured place to the last.
    Across(f64),
    /// At the last measured place.
    Last(f64),
}

/// A paper's line.
struct Line {
    experiment: &'static str,
    /// The number of its plot.
    plot: usize,
    name: &'static str,
    at: At,
}

const fn line(experiment: &'static str, plot: usize, name: &'static str, at: At) -> Line {
    Line { experiment, plot, name, at }
}

const LINES: &[Line] = &[
    line("storegpu-4", 0, "GeForce 8800", At::Places(&[(716_800.0, 1.0), (96e6, 6.0)])),
    line("storegpu-5", 0, "8800, both", At::Places(&[(716_800.0, 1.0), (96e6, 6.0)])),
    line("storegpu-6", 0, "8800, both", At::Places(&[(96e6, 6.0)])),
    line("storegpu-7", 0, "GeForce 8800", At::Places(&[(16e6, 20.0)])),
    line("storegpu-8", 0, "GeForce 8800", At::Places(&[(16e6, 25.0)])),
    line(
        "storegpu-tables-3-4",
        0,
        "images of another search",
        At::Places(&[(0.0, 23.0), (4.0, 82.0), (5.0, 80.0)]),
    ),
    line(
        "storegpu-tables-3-4",
        1,
        "one core",
        At::Places(&[(0.0, 155.76), (1.0, 234.17), (2.0, 8.06), (3.0, 11.05)]),
    ),
    line(
        "storegpu-tables-3-4",
        1,
        "GeForce 8800",
        At::Places(&[(0.0, 1015.9), (1.0, 1101.6), (2.0, 194.24), (3.0, 255.21)]),
    ),
    line("mosastore-5", 0, "GTX 480, over its own core", At::Last(125.0)),
    line("mosastore-6", 0, "GTX 480, over its own core", At::Last(28.0)),
    line("mosastore-8", 0, "CA-CPU", At::Across(46.0)),
    line("mosastore-10", 0, "CA-CPU", At::Across(46.0)),
    // The text has only ranges, and says that smaller blocks find more. The values between are
    // unknown.
    line(
        "mosastore-11",
        1,
        "BLAST, 5 minutes apart",
        At::Places(&[(1.0, 23.0), (3.0, 21.0), (5.0, 90.0), (7.0, 76.0)]),
    ),
    line(
        "ghost-table-2",
        0,
        "Xeon 3 GHz",
        At::Places(&[
            (40e3, 30.0),
            (80e3, 98.0),
            (160e3, 160.0),
            (320e3, 370.0),
            (640e3, 649.0),
            (1280e3, 1452.0),
        ]),
    ),
    line(
        "ghost-table-2",
        0,
        "GTX 480",
        At::Places(&[(40e3, 1.0), (80e3, 1.0), (160e3, 1.0), (320e3, 3.0), (640e3, 4.0), (1280e3, 8.0)]),
    ),
    line("ghost-3", 0, "one thread of a Xeon", At::Places(&[(128e3, 25.0), (128e6, 25.0)])),
    line("ghost-3", 0, "GTX 480", At::Places(&[(128e6, 2600.0)])),
    line("ghost-4", 0, "GTX 480", At::Places(&[(128e6, 2600.0)])),
    line("ghost-12", 0, "GHOST, all in its table cache", At::Across(1500.0)),
    line("ghost-12", 0, "processor alone, at most", At::Across(300.0)),
];

/// Where a record has this processor's rate.
enum Ours {
    /// A number of this name.
    Finding(&'static str),
    /// The last point of a measured line.
    Line(&'static str),
}

/// This processor beside a paper's device.
struct Beside {
    experiment: &'static str,
    what: &'static str,
    ours: Ours,
    /// MB/s.
    device: f64,
    device_is: &'static str,
}

const fn beside(
    experiment: &'static str,
    what: &'static str,
    ours: Ours,
    device: f64,
    device_is: &'static str,
) -> Beside {
    Beside { experiment, what, ours, device, device_is }
}

const GTX_480: &str = "the paper's GTX 480";
const GEFORCE_8800: &str = "the paper's GeForce 8800";

/// Comparisons of the same algorithm come first. One of another algorithm says so.
const BESIDE: &[Beside] = &[
    beside(
        "ghost-3",
        "cutting into segments of 4 KB on average, by Rabin as the paper does",
        Ours::Line("rabin, all cores"),
        2600.0,
        GTX_480,
    ),
    beside(
        "ghost-3",
        "the same by `gear32`, a cheaper function that the paper did not have",
        Ours::Line("gear32, all cores"),
        2600.0,
        "the paper's GTX 480, by Rabin",
    ),
    beside("ghost-4", "SHA-1 of segments of 4 KB", Ours::Line("SHA-1, all cores"), 2600.0, GTX_480),
    beside(
        "ghost-12",
        "GHOST as a whole (SHA-1, fixed segments, look-up)",
        Ours::Finding("all cores, most"),
        1500.0,
        "the paper's GHOST on a GTX 480",
    ),
    beside(
        "storegpu-tables-3-4",
        "similarity, fixed, SHA-1",
        Ours::Finding("fixed, SHA-1: all cores"),
        1015.9,
        GEFORCE_8800,
    ),
    beside(
        "storegpu-tables-3-4",
        "similarity, fixed, MD5",
        Ours::Finding("fixed, MD5: all cores"),
        1101.6,
        GEFORCE_8800,
    ),
    beside(
        "storegpu-tables-3-4",
        "similarity, variable, SHA-1",
        Ours::Finding("variable, SHA-1: all cores"),
        194.24,
        GEFORCE_8800,
    ),
    beside(
        "storegpu-tables-3-4",
        "similarity, variable, MD5",
        Ours::Finding("variable, MD5: all cores"),
        255.21,
        GEFORCE_8800,
    ),
];

/// Older records have their own comparison with a paper's device. Writing images over the paper's
/// network (`mosastore-11`) cannot be compared at all.
fn is_joined(experiment: &str) -> bool {
    experiment == "mosastore-11" || BESIDE.iter().any(|beside| beside.experiment == experiment)
}

/// Adds today's lines of the papers to plot number `at` of an experiment.
pub fn join(experiment: &str, at: usize, plot: &mut Plot) {
    plot.series.retain(|series| series.kind != SeriesKind::Paper);
    let mut places: Vec<f64> =
        plot.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
    places.sort_by(f64::total_cmp);
    let ends = places.first().zip(places.last()).map_or((0.0, 0.0), |(first, last)| (*first, *last));
    for line in LINES.iter().filter(|line| line.experiment == experiment && line.plot == at) {
        let series = match line.at {
            At::Places(points) => Series::paper(line.name, points),
            At::Across(y) if ends.0 < ends.1 => Series::paper(line.name, &[(ends.0, y), (ends.1, y)]),
            At::Across(y) | At::Last(y) => Series::paper(line.name, &[(ends.1, y)]),
        };
        plot.series.push(series);
    }
}

/// All comparisons of a record: with models as measured, and with the papers' devices as they are
/// known today.
pub fn duels(record: &Record) -> Vec<Duel> {
    let own = |duel: &&Duel| !(is_joined(&record.experiment) && duel.device_is.starts_with("the paper's"));
    let mut duels: Vec<Duel> = record.outcome.duels.iter().filter(own).cloned().collect();
    for beside in BESIDE.iter().filter(|beside| beside.experiment == record.experiment) {
        if let Some(processor) = ours(record, &beside.ours) {
            duels.push(Duel {
                what: beside.what.into(),
                processor,
                device: beside.device,
                device_is: beside.device_is.into(),
                unit: "MB/s".into(),
            });
        }
    }
    duels
}

fn ours(record: &Record, ours: &Ours) -> Option<f64> {
    match ours {
        Ours::Finding(name) => {
            let found = record.outcome.findings.iter().find(|finding| finding.name == *name);
            found.map(|finding| finding.value)
        }
        Ours::Line(name) => {
            let mut lines = record.outcome.plots.iter().flat_map(|plot| &plot.series);
            let line = lines.find(|series| series.kind == SeriesKind::Measured && series.name == *name);
            line.map(Series::last)
        }
    }
}

/// Entries that match nothing in a record: lines without a plot, comparisons without our side.
pub fn unplaced(record: &Record) -> Vec<&'static str> {
    let id = record.experiment.as_str();
    let lines = LINES.iter().filter(|line| line.experiment == id);
    let lines = lines.filter(|line| line.plot >= record.outcome.plots.len()).map(|line| line.name);
    let besides = BESIDE.iter().filter(|beside| beside.experiment == id);
    let besides = besides.filter(|beside| ours(record, &beside.ours).is_none()).map(|beside| beside.what);
    lines.chain(besides).collect()
}
