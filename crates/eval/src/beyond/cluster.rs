//! Plots of the records of `bench/cluster.py`: shared mounts on a cluster.

use serde_json::Value;

use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::recorded::{Recorded, spread};

const COMMAND: &str = "bench/cluster.py --outrigger target/release/outrigger --json docs/evaluation/records/DATE-cluster-MACHINE.json";
/// Sizes of packs, and of objects that the cluster's own benchmark writes.
const SIZES: [&str; 2] = ["16 MiB", "4 MiB"];
const SYSTEMS: [&str; 3] = ["outrigger", "rclone mount", "s3fs"];

/// Values by group and name.
struct Taken<'a>(&'a Value);

impl Taken<'_> {
    fn of(&self, group: &str, what: &str) -> Option<Spread> {
        spread(&self.0[group][what]["values"], Value::as_f64)
    }

    /// A line with a point for each name that was measured.
    fn line(&self, name: &str, group: &str, each: &[String]) -> Series {
        let mut line = Series::measured(name);
        for (at, what) in each.iter().enumerate() {
            self.of(group, what).into_iter().for_each(|spread| line.push(at as f64, spread));
        }
        line
    }
}

/// Throughput, operations on names, and bytes on the wire.
pub fn drawn(lab: &Lab) -> Result<Outcome, Failed> {
    let record = Recorded::newest(lab, "cluster", COMMAND)?;
    let taken = Taken(&record.json["taken"]);
    let mut outcome = Outcome::default();
    pool(&taken, &mut outcome);
    bucket(&taken, &mut outcome);
    names(&taken, &mut outcome);
    wire(&taken, &mut outcome);
    check(!outcome.plots.is_empty(), "the record says nothing")?;
    let more = format!(
        ", {:.0} MiB of data, a tree of {}",
        record.json["size"].as_f64().unwrap_or(0.0) / 1048576.0,
        record.json["tree"].as_str().unwrap_or("unknown")
    );
    record.note(&mut outcome, &more);
    outcome.note(
        "All hosts are network namespaces of one machine. A bucket's file systems are measured until all is in the bucket; its own table has the times until tar and fsync \
         came back, and processor times.",
    );
    Ok(outcome)
}

fn pool(taken: &Taken<'_>, outcome: &mut Outcome) {
    let each = |what: &str| SIZES.map(|size| format!("mount, {what}, packs of {size}"));
    let mut series: Vec<Series> =
        ["new data", "stored already", "read cold"].map(|what| taken.line(what, "pool", &each(what))).into();
    if series.iter().all(|line| line.points.is_empty()) {
        return;
    }
    for (way, name) in [("write", "rados bench, writing"), ("seq", "rados bench, reading")] {
        let points = SIZES.iter().enumerate().filter_map(|(at, size)| {
            let found = taken.of("pool", &format!("rados bench {way}, objects of {size}"))?;
            Some((at as f64, found.median))
        });
        series.push(Series::limit(name, &points.collect::<Vec<_>>()));
    }
    let mut ratio = |name: &str, what: &str, way: &str, asked: f64| {
        let ours = taken.of("pool", &format!("mount, {what}, packs of 16 MiB"));
        let theirs = taken.of("pool", &format!("rados bench {way}, objects of 16 MiB"));
        if let Some((ours, theirs)) = ours.zip(theirs) {
            outcome.find(name, ours.median / theirs.median, "x", Some(asked));
        }
    };
    ratio("stored already, over rados bench write", "stored already", "write", 2.0);
    ratio("new data, half of which compresses away, over rados bench write", "new data", "write", 0.8);
    ratio("read cold, over rados bench seq", "read cold", "seq", 0.7);
    outcome.plots.push(Plot {
        title: "A shared mount with packs in a Ceph pool".into(),
        form: Form::Bars,
        x: Axis::of("packs and objects of", SIZES),
        y: Axis::new("throughput", "MB/s"),
        series,
        limits: Vec::new(),
    });
}

fn bucket(taken: &Taken<'_>, outcome: &mut Outcome) {
    let below = taken.of("names", "store in a directory, untar").map_or(0.0, |found| found.median);
    for (what, title, y) in [
        ("untar", "Over a bucket: unpacking a tree, until all is in it", Axis::log("time", "s")),
        (
            "4 KiB writes",
            "Over a bucket: 4 KiB here and there, until all is in it",
            Axis::new("throughput", "MB/s"),
        ),
    ] {
        let each = SYSTEMS.map(|system| format!("{system}, {what} until all is in S3"));
        let line = taken.line(what, "gateway", &each);
        if line.points.len() < SYSTEMS.len() {
            continue;
        }
        let [ours, rclone, s3fs] = [0, 1, 2].map(|at| line.points[at].y);
        for (name, theirs) in [("rclone mount", rclone), ("s3fs", s3fs)] {
            let (text, times) = if what == "untar" {
                (format!("unpacking a tree: {name}'s time over ours"), theirs / ours)
            } else {
                (format!("4 KiB here and there: our rate over {name}'s"), ours / theirs)
            };
            outcome.find(text, times, "x", Some(3.0));
        }
        let limit = if what == "untar" {
            Limit { name: "a mount of a store in a directory".into(), y: below }
        } else {
            let pool =
                taken.of("pool", "rados bench write, objects of 4 MiB").map_or(0.0, |found| found.median);
            Limit { name: "rados bench, objects of 4 MiB".into(), y: pool }
        };
        let limits = if limit.y > 0.0 { vec![limit] } else { Vec::new() };
        let x = Axis::of("mount", SYSTEMS);
        // Systems that upload 4 KiB at a time are far slower than with large objects.
        let y = if what == "untar" { y } else { Axis::log("throughput", "MB/s") };
        outcome.plots.push(Plot { title: title.into(), form: Form::Bars, x, y, series: vec![line], limits });
    }
}

fn names(taken: &Taken<'_>, outcome: &mut Outcome) {
    let cases = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (4, 2)];
    let case = |(hosts, processes): (u32, u32), place: &str| {
        let (host, process) =
            (if hosts == 1 { "host" } else { "hosts" }, if processes == 1 { "process" } else { "processes" });
        format!("creations, {hosts} {host} with {processes} {process} each, {place}")
    };
    let mut series: Vec<Series> = ["one directory", "their own"]
        .map(|place| taken.line(place, "names", &cases.map(|one| case(one, place))))
        .into();
    if series.iter().all(|line| line.points.is_empty()) {
        return;
    }
    let commits: Vec<(f64, f64)> = cases
        .iter()
        .enumerate()
        .filter_map(|(at, (hosts, processes))| {
            let what = format!("PostgreSQL, commits of one row, {} at once", hosts * processes);
            Some((at as f64, taken.of("names", &what)?.median))
        })
        .collect();
    if let Some(one) = series[0].points.first() {
        outcome.find("exclusive creations, one process", one.y, "/s", Some(1500.0));
    }
    series.push(Series::limit("PostgreSQL, commits of one row, as many at once", &commits));
    outcome.plots.push(Plot {
        title: "Files made exclusively, by processes of several hosts".into(),
        form: Form::Bars,
        x: Axis::of("hosts x processes", cases.map(|(hosts, processes)| format!("{hosts} x {processes}"))),
        y: Axis::log("files made", "/s"),
        series,
        limits: Vec::new(),
    });
}

fn wire(taken: &Taken<'_>, outcome: &mut Outcome) {
    let kinds = ["different", "similar", "checkpoint"];
    let each = |what: &str| kinds.map(|kind| format!("{kind}: {what} / bytes written"));
    let series = vec![
        taken.line("at the client's interface", "wire", &each("bytes at the client's interface")),
        taken.line("received by OSDs, two copies", "wire", &each("bytes that OSDs receive")),
    ];
    if series[0].points.len() < kinds.len() {
        return;
    }
    for (kind, point) in kinds.iter().zip(&series[0].points) {
        outcome.find(
            format!("{kind}: bytes at the client's interface, of those written"),
            point.y,
            "x",
            None,
        );
    }
    outcome.plots.push(Plot {
        title: "Bytes on the wire for bytes that are written".into(),
        form: Form::Bars,
        x: Axis::of("data", kinds),
        y: Axis::new("bytes, of those written", "x"),
        series,
        limits: vec![Limit { name: "as they are".into(), y: 1.0 }],
    });
}
