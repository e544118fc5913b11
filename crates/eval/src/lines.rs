//! The red and grey lines of a plot: limits that nothing can pass, and references for comparison.
//!
//! A line's name decides, in one place and when the report is drawn. So records from before the two
//! were told apart are drawn like later ones. A name means the same in every plot; names that once
//! did not are [renamed](name).

use crate::record::{Plot, SeriesKind};

/// References, which may be passed: other programs, the same work without compression or
/// similarity, and requirements.
const REFERENCES: &[&str] = &[
    "4 KiB made durable by the file system",
    "a plain write of the input",
    "as they are",
    "asked: 100 MB a TB",
    "copying the keys over the paper's bus, for a device",
    "copying the last batch's keys over the paper's bus",
    "cp of the second version",
    "exact",
    "fast storage, uncompressed (throttled)",
    "file system below",
    "half of the machine for each",
    "input and output, as they are",
    "mount without codec, or all of it",
    "one GTX 480's bus, 2.8 GB/s",
    "one core of today",
    "one core, ordinary function",
    "rados bench, objects of 4 MiB",
    "rados bench, reading",
    "rados bench, writing",
    "slow storage, uncompressed (throttled)",
    "the changed blocks, each once",
    "the file system below, one file made durable",
    "the file system below: as many files written, then synced once",
    "the file system, for what is new",
    "the paper's bus",
    "the quickest without codec",
    "uncompressed, in and out (throttled)",
    "unpacking on the file system below",
    "what was asked for 1 PB: 100 MB a TB",
    "what was asked of the index: 100 MB a TB",
    "what was asked: 600 bytes a file",
    "without codec, at best",
];

/// The experiment, the name in its older records, and the name today. If data is similar or
/// compresses, a disk's rate limits only the rest that is written.
const RENAMED: &[(&str, &str, &str)] = &[
    ("beyond-disk", "the file system, one file made durable", "the file system, for what is new"),
    ("beyond-growth", "the file system, one file made durable", "the file system, for what is new"),
    ("mosastore-10", "the file system, one file made durable", "the file system, for what is new"),
    ("mosastore-11", "the file system", "the file system, for what is new"),
    ("mosastore-12-14", "the file system", "the file system, for what is new"),
    ("mosastore-15-17", "the file system", "the file system, for what is new"),
    ("mosastore-9", "the file system, one file made durable", "the file system, for what is new"),
    ("qzfs-bottleneck", "all of it", "mount without codec, or all of it"),
];

/// The scatter of measurements: a limit is passed only by more than this.
const SCATTER: f64 = 0.05;

/// True if a line of this name may be passed.
pub fn is_reference(name: &str) -> bool {
    REFERENCES.contains(&name)
}

/// Today's name of a record's line.
pub fn name<'a>(experiment: &str, old: &'a str) -> &'a str {
    let renamed = RENAMED.iter().find(|(of, from, _)| *of == experiment && *from == old);
    renamed.map_or(old, |(_, _, to)| to)
}

/// Limits of this plot that have measured medians on both sides: they are no limits, or numbers are
/// wrong.
pub fn passed(plot: &Plot) -> Vec<&str> {
    let measured = || {
        let measured = plot.series.iter().filter(|series| series.kind == SeriesKind::Measured);
        measured.flat_map(|series| &series.points)
    };
    let both_sides = |pairs: &mut dyn Iterator<Item = (f64, f64)>| {
        let (mut above, mut below) = (false, false);
        for (value, limit) in pairs {
            above |= value > limit * (1.0 + SCATTER);
            below |= value < limit * (1.0 - SCATTER);
        }
        above && below
    };
    let lines = plot.limits.iter().filter(|limit| !is_reference(&limit.name));
    let lines = lines.filter(|limit| both_sides(&mut measured().map(|point| (point.y, limit.y))));
    let places =
        plot.series.iter().filter(|series| series.kind == SeriesKind::Limit && !is_reference(&series.name));
    let places = places.filter(|series| {
        let limit_at = |x: f64| series.points.iter().find(|limit| limit.x == x).map(|limit| limit.y);
        both_sides(&mut measured().filter_map(|point| Some((point.y, limit_at(point.x)?))))
    });
    lines.map(|limit| &*limit.name).chain(places.map(|series| &*series.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Axis, Form, Limit, Series};

    /// A limit may lie above or below all measurements, but not between them.
    #[test]
    fn a_limit_has_everything_on_one_side() {
        let mut line = Series::measured("a");
        [(0.0, 10.0), (1.0, 20.0)].into_iter().for_each(|(x, y)| line.exact(x, y));
        let limit = |name: &str, y: f64| Limit { name: name.into(), y };
        let plot = Plot {
            title: "a".into(),
            form: Form::Bars,
            x: Axis::of("x", ["0", "1"]),
            y: Axis::new("y", "s"),
            series: vec![
                line,
                Series::limit("each its own", &[(0.0, 10.2), (1.0, 25.0)]),
                Series::limit("wrong", &[(0.0, 5.0), (1.0, 25.0)]),
            ],
            limits: vec![
                limit("floor", 9.0),
                limit("roof", 19.5),
                limit("between", 15.0),
                limit("exact", 15.0),
            ],
        };
        assert_eq!(passed(&plot), ["between", "wrong"]);
    }

    #[test]
    fn older_names_are_those_of_today() {
        assert_eq!(
            name("mosastore-9", "the file system, one file made durable"),
            "the file system, for what is new"
        );
        assert_eq!(
            name("mosastore-7", "the file system, one file made durable"),
            "the file system, one file made durable"
        );
        assert!(RENAMED.iter().all(|(_, _, to)| is_reference(to)));
    }
}
