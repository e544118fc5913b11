//! Figures 7 to 10: write throughput by file size.

use crate::lab::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::modelled::{self, CARDS};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::memory_rate;
use crate::wrote::{Put, Way, chunker, disk_rate, files, record, store, write};

/// Files back to back, as in the paper.
const FILES: usize = 40;

/// The default chunker of stores.
const DEFAULT: &str = "gear32:4K/16K/64K";

/// The paper's content-defined chunks: the MD5 of each window of 48 bytes decides, at every place.
const WINDOWS: &str = "lbfs-md5:256K/1M/4M";
/// Its line.
const OF_WINDOWS: &str = "CA-CPU, the paper's windows (lbfs-md5)";

/// Measures the processor with other chunks than the figure's, with so many files of each size.
fn cut_otherwise(
    lab: &Lab,
    name: &str,
    cut: &str,
    files_of: &[(usize, usize)],
    same: bool,
) -> Result<Series, Failed> {
    let (spec, mut line) = (chunker(cut)?, Series::measured(name));
    for &(bytes, count) in files_of {
        let room = lab.room()?;
        let source = files(lab, room.path(), count, bytes, same)?;
        let mut rates = Vec::new();
        for _ in 0..lab.scale.pick(1, 3, 5) {
            let at = room.path().join("store");
            let store = store(&at, "none")?;
            let put = write(lab, &store, &source, "a", spec, Way::Cpu, room.path())?;
            answer(&put, bytes, count, same)?;
            rates.push(put.bytes as f64 / put.seconds / 1e6);
            drop(store);
            std::fs::remove_dir_all(at)?;
        }
        line.push(bytes as f64, Spread::of(rates));
    }
    Ok(line)
}

/// Checks that all bytes were read, and that one file (`once`) or every file was stored.
fn answer(put: &Put, bytes: usize, count: usize, once: bool) -> Result<(), Failed> {
    let expected = if once { bytes } else { count * bytes } as u64;
    check(put.bytes == (count * bytes) as u64, "not all was read")?;
    check(put.new == expected, format!("{} new bytes instead of {expected}", put.new))
}

/// The paper's 40 files. Large sizes have fewer, down to four: only as many as come to so many
/// bytes, so that they fit this machine's memory and time.
fn count_of(lab: &Lab, bytes: usize) -> usize {
    let all: usize = lab.scale.pick(0, 320 << 20, 4 << 30);
    let count = FILES.min((all / bytes).max(4));
    lab.scale.pick(3, count, count)
}

/// Fewer files, because hashing windows is slow; at least two, so that something is found again.
fn count_of_windows(lab: &Lab, bytes: usize) -> usize {
    let all: usize = lab.scale.pick(0, 64 << 20, 256 << 20);
    count_of(lab, bytes).min((all / bytes).max(2))
}

/// Different files, or one again and again.
pub fn by_size(lab: &Lab, same: bool, cut: &str) -> Result<Outcome, Failed> {
    let sizes: &[usize] = lab.scale.pick(
        &[64 << 10],
        &[64 << 10, 1 << 20, 8 << 20, 64 << 20],
        &[16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20],
    );
    let (spec, mut outcome) = (chunker(cut)?, Outcome::default());
    let ways = Way::all(lab);
    let mut series: Vec<Series> = ways.iter().map(|way| Series::measured(way.name())).collect();
    let mut cards: Vec<Series> = CARDS.iter().map(|card| Series::model(card.name)).collect();
    for &bytes in sizes {
        let room = lab.room()?;
        let count = count_of(lab, bytes);
        let (source, oracle) = (files(lab, room.path(), count, bytes, same)?, room.path().join("oracle"));
        record(lab, &source, spec, &oracle)?;
        for (line, way) in series.iter_mut().zip(ways.iter().copied()) {
            let mut puts = Vec::new();
            for round in 0..lab.scale.pick(1, 3, 5) {
                let store = store(&room.path().join(format!("store-{}-{round}", way.name())), "none")?;
                let put = write(lab, &store, &source, "a", spec, way, &oracle)?;
                answer(&put, bytes, count, same && way != Way::NonCa)?;
                puts.push(put);
                drop(store);
                std::fs::remove_dir_all(room.path().join(format!("store-{}-{round}", way.name())))?;
            }
            let rates = |seconds: &dyn Fn(&Put) -> f64| {
                Spread::of(puts.iter().map(|put| put.bytes as f64 / seconds(put) / 1e6).collect())
            };
            line.push(bytes as f64, rates(&|put| put.seconds));
            if way == Way::Infinite {
                for (line, card) in cards.iter_mut().zip(&CARDS) {
                    line.push(bytes as f64, rates(&|put| card.seconds(put, spec)));
                }
            }
        }
    }
    let by_content = !cut.starts_with("fixed");
    if by_content {
        let files_of = |count: fn(&Lab, usize) -> usize| -> Vec<_> {
            sizes.iter().map(|&bytes| (bytes, count(lab, bytes))).collect()
        };
        let ours = cut_otherwise(lab, "CA-CPU, our default chunks", DEFAULT, &files_of(count_of), same)?;
        let theirs = cut_otherwise(lab, OF_WINDOWS, WINDOWS, &files_of(count_of_windows), same)?;
        series.extend([ours, theirs]);
    }
    for line in series.iter().chain(&cards) {
        outcome.find(format!("{}, largest files", line.label()), line.last(), "MB/s", None);
    }
    let (non, cpu, infinite) = (series[0].last(), series[1].last(), series[2].last());
    outcome.find("CA-CPU over non-CA", cpu / non, "x", None);
    outcome.find(
        "CA-Infinite over CA-CPU: the most that any offloading could bring",
        infinite / cpu,
        "x",
        None,
    );
    for line in &cards {
        outcome.find(format!("{}, over CA-CPU", line.label()), line.last() / cpu, "x", None);
        outcome.find(format!("{}, over non-CA", line.label()), line.last() / non, "x", None);
        let lost = 100.0 * (1.0 - line.last() / infinite);
        outcome.find(format!("{}, short of CA-Infinite", line.label()), lost, "%", None);
    }
    if let Some(windows) = series.iter().find(|line| line.name == OF_WINDOWS).map(Series::last) {
        outcome.find(format!("{OF_WINDOWS}, over non-CA"), windows / non, "x", None);
        for line in &cards {
            let name = format!("{}, over {OF_WINDOWS}", line.label());
            outcome.find(name, line.last() / windows, "x", None);
        }
        let fewer: Vec<String> = sizes
            .iter()
            .map(|&bytes| format!("{} of {}", count_of_windows(lab, bytes), crate::plot::bytes(bytes as f64)))
            .collect();
        outcome.note(format!(
            "`{OF_WINDOWS}` has MosaStore's own way of cutting, `{WINDOWS}`, on today's processor: of the same files fewer, as it is slow ({}).",
            fewer.join(", ")
        ));
    }
    series.extend(cards);
    let name =
        if same { "the file system, for what is new" } else { "the file system, one file made durable" };
    let mut limits = vec![Limit { name: name.into(), y: disk_rate(lab)? / 1e6 }];
    if same {
        // For each further copy only reading remains.
        limits.push(Limit { name: "memory, read by all cores".into(), y: memory_rate(lab) / 1e6 });
    }
    outcome.plots.push(Plot {
        title: format!(
            "Writing {FILES} {} files back to back, {cut}",
            if same { "equal" } else { "different" }
        ),
        form: Form::Lines,
        x: Axis::log("file", "bytes"),
        y: Axis::log("throughput", "MB/s"),
        series,
        limits,
    });
    outcome.note("Nothing is compressed; BLAKE3 names chunks. All files of a round are put by one call and are durable at its end.");
    outcome.note(modelled::NOTE);
    if lab.scale == Scale::Short {
        outcome.note(format!(
            "The short form stops at files of 64 MiB, of which there are {}.",
            count_of(lab, 64 << 20)
        ));
    }
    Ok(outcome)
}
