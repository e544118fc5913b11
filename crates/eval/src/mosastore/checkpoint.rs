//! Figure 11: images of a computation, one after the other, by the size of blocks.

use std::path::Path;

use crate::experiment::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::{checkpoints, memory_rate};
use crate::wrote::{Way, chunker, disk_rate, record, store, write};

const FIXED: [&str; 4] = ["fixed:16K", "fixed:256K", "fixed:1M", "fixed:4M"];
const CONTENT: [&str; 4] =
    ["gear32:4K/16K/64K", "gear32:64K/256K/1M", "gear32:256K/1M/4M", "gear32:1M/4M/16M"];

/// Throughput and similarity.
pub fn by_block(lab: &Lab) -> Result<Outcome, Failed> {
    let (which, images) = checkpoints(lab)?;
    let (room, mut outcome) = (lab.room()?, Outcome::default());
    let mut dirs = Vec::new();
    for (n, image) in images.iter().enumerate() {
        let dir = room.path().join(format!("image-{n}"));
        std::fs::create_dir(&dir)?;
        std::fs::write(dir.join("image"), image)?;
        dirs.push(dir);
    }
    outcome.note(format!(
        "{which}, {:.0} MB each; nothing is compressed.",
        images.last().map_or(0, Vec::len) as f64 / 1e6
    ));
    drop(images);
    let names: Vec<&str> = FIXED.into_iter().chain(CONTENT).collect();
    let ways = Way::all(lab);
    let mut series: Vec<Series> = ways.iter().map(|way| Series::measured(way.name())).collect();
    let mut found = Series::measured("similarity found");
    for (at, name) in names.iter().enumerate() {
        let spec = chunker(name)?;
        let oracles: Vec<_> = (0..dirs.len()).map(|n| room.path().join(format!("oracle-{n}"))).collect();
        dirs.iter().zip(&oracles).try_for_each(|(dir, oracle)| record(lab, dir, spec, oracle))?;
        for (line, way) in series.iter_mut().zip(ways.iter().copied()) {
            let (mut rates, mut similar) = (Vec::new(), 0.0);
            for _ in 0..lab.scale.pick(1, 3, 5) {
                let (rate, share) = one_series(lab, room.path(), &dirs, &oracles, spec, way)?;
                rates.push(rate);
                similar = share;
            }
            line.push(at as f64, Spread::of(rates));
            if way == Way::Cpu {
                found.exact(at as f64, similar);
            }
        }
    }
    // Images of a process keep their pages in place, so that blocks may find as much; those of the search that is generated do not.
    let moved = lab.scale == Scale::Tiny;
    check(
        !moved || found.points[4].y > found.points[0].y,
        "contents find less than blocks though all has moved",
    )?;
    let best = |names: std::ops::Range<usize>| {
        series[1].points[names].iter().map(|point| point.y).fold(0.0, f64::max)
    };
    outcome.find("content-defined, best, CA-CPU", best(4..8), "MB/s", Some(49.0));
    outcome.find("fixed, best, CA-CPU", best(0..4), "MB/s", None);
    outcome.find("similarity, gear32:256K/1M/4M", found.points[6].y, "%", None);
    outcome.find("similarity, fixed:1M", found.points[2].y, "%", None);
    outcome.find("similarity, our default", found.points[4].y, "%", None);
    let gain = |at: usize| series[2].points[at].y / series[1].points[at].y;
    outcome.find("CA-Infinite over CA-CPU, gear32:256K/1M/4M", gain(6), "x", Some(5.0));
    outcome.plots.push(Plot {
        title: "Writing checkpoint images, by the way they are cut".into(),
        form: Form::Bars,
        x: Axis::of("chunker", names.iter().copied()),
        y: Axis::new("throughput", "MB/s"),
        series,
        limits: vec![
            Limit { name: "the file system, for what is new".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
        ],
    });
    outcome.plots.push(Plot {
        title: "Similarity found in the series".into(),
        form: Form::Bars,
        x: Axis::of("chunker", names),
        y: Axis::new("bytes that were stored already, without the first image", "%"),
        series: vec![found],
        limits: vec![Limit { name: "all".into(), y: 100.0 }],
    });
    if lab.scale == Scale::Short {
        outcome.note("The short form takes five images.");
    }
    Ok(outcome)
}

/// All images into a new store; MB/s, and the percentage found of all but the first.
fn one_series(
    lab: &Lab,
    room: &Path,
    dirs: &[std::path::PathBuf],
    oracles: &[std::path::PathBuf],
    spec: outrigger_format::ChunkerSpec,
    way: Way,
) -> Result<(f64, f64), Failed> {
    let path = room.join("series");
    let store = store(&path, "none")?;
    let (mut bytes, mut seconds, mut later, mut new) = (0, 0.0, 0, 0);
    for (n, (dir, oracle)) in dirs.iter().zip(oracles).enumerate() {
        let put = write(lab, &store, dir, &format!("i{n}"), spec, way, oracle)?;
        (bytes, seconds) = (bytes + put.bytes, seconds + put.seconds);
        if n > 0 {
            (later, new) = (later + put.bytes, new + put.new);
        }
    }
    drop(store);
    std::fs::remove_dir_all(path)?;
    Ok((bytes as f64 / seconds / 1e6, 100.0 * (1.0 - new as f64 / later.max(1) as f64)))
}
