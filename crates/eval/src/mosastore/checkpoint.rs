//! Figure 11: images of a computation, one after the other, by the size of blocks.

use std::path::Path;

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::modelled::{self, CARDS};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::{checkpoints, memory_rate};
use crate::wrote::{Put, Way, chunker, disk_rate, record, store, write};

const FIXED: [&str; 4] = ["fixed:16K", "fixed:256K", "fixed:1M", "fixed:4M"];
const CONTENT: [&str; 4] =
    ["gear32:4K/16K/64K", "gear32:64K/256K/1M", "gear32:256K/1M/4M", "gear32:1M/4M/16M"];
/// The paper's own chunker, which hashes each window. It is slow, so it has fewer images and
/// rounds.
const WINDOWS: [&str; 3] = ["lbfs-md5:64K/256K/1M", "lbfs-md5:256K/1M/4M", "lbfs-md5:1M/4M/16M"];
const IMAGES_OF_WINDOWS: usize = 3;

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
        "{which}, {:.0} MB each; nothing is compressed. Content-defined chunks have a quarter of their average at least, and four times as much at most.",
        images.last().map_or(0, Vec::len) as f64 / 1e6
    ));
    drop(images);
    let names: Vec<&str> = FIXED.into_iter().chain(CONTENT).chain(WINDOWS).collect();
    let ways = Way::all(lab);
    let mut series: Vec<Series> = ways.iter().map(|way| Series::measured(way.name())).collect();
    let mut cards: Vec<Series> = CARDS.iter().map(|card| Series::model(card.name)).collect();
    let mut found = Series::measured("similarity found");
    for (at, name) in names.iter().enumerate() {
        let spec = chunker(name)?;
        let (by_windows, rounds) = (WINDOWS.contains(name), lab.scale.pick(1, 3, 5));
        let (count, rounds) =
            if by_windows { (dirs.len().min(IMAGES_OF_WINDOWS), 1) } else { (dirs.len(), rounds) };
        // Without similarity detection the paper does not cut at all.
        let ways_of = |way: &Way| !by_windows || matches!(way, Way::Cpu | Way::Infinite);
        let oracles: Vec<_> = (0..count).map(|n| room.path().join(format!("oracle-{n}"))).collect();
        dirs.iter().zip(&oracles).try_for_each(|(dir, oracle)| record(lab, dir, spec, oracle))?;
        for (line, way) in series.iter_mut().zip(ways.iter().copied()).filter(|(_, way)| ways_of(way)) {
            let mut runs = Vec::new();
            for _ in 0..rounds {
                runs.push(one_series(lab, room.path(), &dirs, &oracles, spec, way)?);
            }
            let similar = similarity(&runs[0]);
            check(
                runs.iter().all(|run| similarity(run) == similar),
                format!("{name}: rounds find different similarity"),
            )?;
            let rates = |seconds: &dyn Fn(&Put) -> f64| {
                let rate = |run: &Vec<Put>| {
                    run.iter().map(|put| put.bytes as f64).sum::<f64>() / run.iter().map(seconds).sum::<f64>()
                };
                Spread::of(runs.iter().map(|run| rate(run) / 1e6).collect())
            };
            line.push(at as f64, rates(&|put| put.seconds));
            match way {
                Way::Cpu => found.exact(at as f64, similar),
                Way::Infinite => {
                    let known = found.last();
                    check(similar == known, format!("{name}: the oracle finds {similar} %, not {known}"))?;
                    for (line, card) in cards.iter_mut().zip(&CARDS) {
                        line.push(at as f64, rates(&|put| card.seconds(put, spec)));
                    }
                }
                Way::NonCa | Way::Device => {}
            }
        }
    }
    // Images of a real process keep their pages in place, so fixed blocks may find as much. Images
    // of the generated search do not.
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
    let of = |line: &Series, at: usize| {
        let point = line.points.iter().find(|point| point.x == at as f64);
        point.map_or(0.0, |point| point.y)
    };
    let gain = |at: usize| of(&series[2], at) / of(&series[1], at);
    outcome.find("CA-Infinite over CA-CPU, gear32:256K/1M/4M", gain(6), "x", Some(5.0));
    let windows = (8..names.len()).map(|at| of(&series[1], at)).fold(0.0, f64::max);
    outcome.find("the paper's windows (lbfs-md5), best, CA-CPU", windows, "MB/s", Some(49.0));
    outcome.find("similarity, lbfs-md5:256K/1M/4M", of(&found, 9), "%", None);
    outcome.find("CA-Infinite over CA-CPU, lbfs-md5:256K/1M/4M", gain(9), "x", None);
    for card in &cards {
        let over = |others: &Series, at: usize| of(card, at) / of(others, at);
        let name = card.label();
        outcome.find(format!("{name}, over CA-CPU, fixed:1M"), over(&series[1], 2), "x", None);
        outcome.find(format!("{name}, over CA-CPU, gear32:256K/1M/4M"), over(&series[1], 6), "x", None);
        outcome.find(format!("{name}, over non-CA, gear32:256K/1M/4M"), over(&series[0], 6), "x", None);
        outcome.find(format!("{name}, over CA-CPU, lbfs-md5:256K/1M/4M"), over(&series[1], 9), "x", None);
    }
    outcome.note(format!(
        "Chunks by `lbfs-md5`, the paper's own, are of the first {} images, once: hashing each window is slow on today's processor, too. Less similarity can show in fewer images.",
        dirs.len().min(IMAGES_OF_WINDOWS)
    ));
    outcome.note(modelled::NOTE);
    outcome.plots.push(Plot {
        title: "Writing checkpoint images, by the way they are cut".into(),
        form: Form::Bars,
        x: Axis::of("chunker, average", names.iter().map(|name| short(name))),
        y: Axis::log("throughput", "MB/s"),
        series: series.into_iter().chain(cards).collect(),
        limits: vec![
            Limit { name: "the file system, for what is new".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 },
        ],
    });
    outcome.plots.push(Plot {
        title: "Similarity found in the series".into(),
        form: Form::Bars,
        x: Axis::of("chunker, average", names.iter().map(|name| short(name))),
        y: Axis::new("bytes that were stored already, without the first image", "%"),
        series: vec![found],
        limits: vec![Limit { name: "all".into(), y: 100.0 }],
    });
    if lab.scale == Scale::Short {
        outcome.note("The short form takes five images.");
    }
    Ok(outcome)
}

/// Puts as many images as there are oracles into a new store, one after the other.
fn one_series(
    lab: &Lab,
    room: &Path,
    dirs: &[std::path::PathBuf],
    oracles: &[std::path::PathBuf],
    spec: outrigger_format::ChunkerSpec,
    way: Way,
) -> Result<Vec<Put>, Failed> {
    let path = room.join("series");
    let store = store(&path, "none")?;
    let images = dirs.iter().zip(oracles).enumerate();
    let puts = images.map(|(n, (dir, oracle))| write(lab, &store, dir, &format!("i{n}"), spec, way, oracle));
    let puts = puts.collect::<Result<_, _>>()?;
    drop(store);
    std::fs::remove_dir_all(path)?;
    Ok(puts)
}

/// `gear32 1M` for `gear32:256K/1M/4M`, because many names stand side by side.
fn short(name: &str) -> String {
    let (function, sizes) = name.split_once(':').unwrap_or((name, ""));
    format!("{function} {}", sizes.split('/').nth(1).unwrap_or(sizes))
}

/// The percentage of bytes found again in all images but the first.
fn similarity(puts: &[Put]) -> f64 {
    let sum = |of: fn(&Put) -> u64| puts.iter().skip(1).map(of).sum::<u64>();
    100.0 * (1.0 - sum(|put| put.new) as f64 / sum(|put| put.bytes).max(1) as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_short_and_differ() {
        let names =
            super::FIXED.iter().chain(&super::CONTENT).chain(&super::WINDOWS).map(|name| super::short(name));
        let names: std::collections::BTreeSet<String> = names.collect();
        assert_eq!(names.len(), 11);
        assert!(
            names.contains("fixed 16K") && names.contains("gear32 1M") && names.contains("lbfs-md5 4M"),
            "{names:?}"
        );
    }
}
