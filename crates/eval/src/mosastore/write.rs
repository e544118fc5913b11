//! Figures 7 to 10: write throughput by file size.

use crate::experiment::{Failed, Lab, Scale, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::similarity::memory_rate;
use crate::wrote::{Way, chunker, disk_rate, files, record, store, write};

/// Files back to back, as the paper has them.
const FILES: usize = 40;

/// What stores use unless told otherwise.
const DEFAULT: &str = "gear32:4K/16K/64K";

/// The processor's way with the chunks that stores have by default.
fn by_default(lab: &Lab, sizes: &[usize], same: bool) -> Result<Series, Failed> {
    let (spec, mut line) = (chunker(DEFAULT)?, Series::measured("CA-CPU, our default chunks"));
    for &bytes in sizes {
        let room = lab.room()?;
        let count = count_of(lab, bytes);
        let source = files(lab, room.path(), count, bytes, same)?;
        let mut rates = Vec::new();
        for _ in 0..lab.scale.pick(1, 3, 5) {
            let at = room.path().join("store");
            let store = store(&at, "none")?;
            let put = write(lab, &store, &source, "a", spec, Way::Cpu, room.path())?;
            check(put.bytes == (count * bytes) as u64, "not all was read")?;
            rates.push(put.bytes as f64 / put.seconds / 1e6);
            drop(store);
            std::fs::remove_dir_all(at)?;
        }
        line.push(bytes as f64, Spread::of(rates));
    }
    Ok(line)
}

/// The paper's 40; fewer of the largest, so that they fit this machine's memory.
fn count_of(lab: &Lab, bytes: usize) -> usize {
    let count = FILES.min(((4_usize << 30) / bytes).max(4));
    lab.scale.pick(3, count, count)
}

/// Different files, or one again and again.
pub fn by_size(lab: &Lab, same: bool, cut: &str) -> Result<Outcome, Failed> {
    let sizes: &[usize] = lab.scale.pick(
        &[64 << 10],
        &[64 << 10, 1 << 20, 8 << 20],
        &[16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20],
    );
    let (spec, mut outcome) = (chunker(cut)?, Outcome::default());
    let ways = Way::all(lab);
    let mut series: Vec<Series> = ways.iter().map(|way| Series::measured(way.name())).collect();
    for &bytes in sizes {
        let room = lab.room()?;
        let count = count_of(lab, bytes);
        let (source, oracle) = (files(lab, room.path(), count, bytes, same)?, room.path().join("oracle"));
        record(lab, &source, spec, &oracle)?;
        for (line, way) in series.iter_mut().zip(ways.iter().copied()) {
            let mut rates = Vec::new();
            for round in 0..lab.scale.pick(1, 3, 5) {
                let store = store(&room.path().join(format!("store-{}-{round}", way.name())), "none")?;
                let put = write(lab, &store, &source, "a", spec, way, &oracle)?;
                check(put.bytes == (count * bytes) as u64, "not all was read")?;
                let expected = if same && way != Way::NonCa { bytes } else { count * bytes } as u64;
                check(put.new == expected, format!("{} new bytes instead of {expected}", put.new))?;
                rates.push(put.bytes as f64 / put.seconds / 1e6);
                drop(store);
                std::fs::remove_dir_all(room.path().join(format!("store-{}-{round}", way.name())))?;
            }
            line.push(bytes as f64, Spread::of(rates));
        }
    }
    if cut != DEFAULT && !cut.starts_with("fixed") {
        series.push(by_default(lab, sizes, same)?);
    }
    for line in &series {
        outcome.find(format!("{}, largest files", line.name), line.last(), "MB/s", None);
    }
    let (non, cpu, infinite) = (series[0].last(), series[1].last(), series[2].last());
    outcome.find("CA-CPU over non-CA", cpu / non, "x", None);
    outcome.find(
        "CA-Infinite over CA-CPU: the most that any offloading could bring",
        infinite / cpu,
        "x",
        None,
    );
    let name =
        if same { "the file system, for what is new" } else { "the file system, one file made durable" };
    let mut limits = vec![Limit { name: name.into(), y: disk_rate(lab)? / 1e6 }];
    if same {
        // What is left to be done for each copy is reading it.
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
    if lab.scale == Scale::Short {
        outcome.note("The short form stops at files of 8 MiB.");
    }
    Ok(outcome)
}
