//! A virtual machine's disk, which is put every day while its guest writes in random places.

use outrigger_workload::{ImageUpdates, vm_image, vm_image_updates};

use crate::kept::restore;
use crate::lab::{Failed, Lab, check};
use crate::measure::Spread;
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::wrote::{Way, chunker, disk_rate, store, write};

const BLOCK: usize = 4096;
const CHUNKERS: [&str; 5] =
    ["fixed:4K", "fixed:64K", "gear32:4K/16K/64K", "gear32:64K/256K/1M", "gear32:256K/1M/4M"];

/// Bytes in blocks that have changed and are not zero.
fn changed(before: &[u8], after: &[u8]) -> u64 {
    let zero = [0; BLOCK];
    let pairs = before.chunks(BLOCK).zip(after.chunks(BLOCK));
    pairs
        .filter(|(old, new)| old != new && new[..] != zero[..new.len()])
        .map(|(_, new)| new.len() as u64)
        .sum()
}

/// Bytes that each chunker stores of a day's writes, and the speed of a day's put.
pub fn days(lab: &Lab) -> Result<Outcome, Failed> {
    let (len, days, writes) =
        lab.scale.pick((4_u64 << 20, 2, 40), (256 << 20, 4, 2_000), (2 << 30, 7, 20_000));
    let mut stored: Vec<Series> = CHUNKERS.map(Series::measured).into();
    let mut first = Series::measured("the first day, all of it");
    let mut later = Series::measured("a later day");
    let mut outcome = Outcome::default();
    for (at, name) in CHUNKERS.iter().enumerate() {
        let room = lab.room()?;
        let (source, spec) = (room.path().join("source"), chunker(name)?);
        let disk = source.join("disk");
        std::fs::create_dir(&source)?;
        vm_image(&disk, 31, len)?;
        let store = store(&room.path().join("store"), "zstd:1")?;
        let put = |day: u64| write(lab, &store, &source, &format!("day{day}"), spec, Way::Cpu, room.path());
        let whole = put(0)?;
        first.exact(at as f64, whole.bytes as f64 / whole.seconds / 1e6);
        let mut rates = Vec::new();
        for day in 1..=days {
            let before = std::fs::read(&disk)?;
            vm_image_updates(&disk, &ImageUpdates::new(31 + day, writes))?;
            let changed = changed(&before, &std::fs::read(&disk)?);
            let now = put(day)?;
            rates.push(now.bytes as f64 / now.seconds / 1e6);
            check(now.new > 0 && changed > 0, format!("{name}: nothing new on day {day}"))?;
            // Blocks of the guest's size hold nothing else.
            check(
                *name != "fixed:4K" || now.new <= changed,
                format!("{} bytes are new of {changed}", now.new),
            )?;
            stored[at].exact(day as f64, now.new as f64 / changed as f64);
        }
        later.push(at as f64, Spread::of(rates));
        let again = write(lab, &store, &source, "again", spec, Way::Cpu, room.path())?;
        check(again.new == 0, format!("{name}: {} bytes are new in a disk that is stored", again.new))?;
        restore(lab, &store, "again", &room.path().join("restored"))?;
        let same = std::fs::read(room.path().join("restored/disk"))? == std::fs::read(&disk)?;
        check(same, format!("{name}: what is restored is not the disk"))?;
        outcome.find(format!("{name}: stored of a day's changed blocks"), stored[at].last(), "x", None);
    }
    outcome.plots.push(Plot {
        title: "New bytes of each day, over the blocks of 4 KiB that its guest has changed".into(),
        form: Form::Lines,
        x: Axis::new("day", ""),
        y: Axis::log("new bytes over changed ones", "x"),
        series: stored,
        limits: vec![Limit { name: "the changed blocks, each once".into(), y: 1.0 }],
    });
    outcome.plots.push(Plot {
        title: format!("Putting a disk of {} again", crate::plot::bytes(len as f64)),
        form: Form::Bars,
        x: Axis::of("chunker", CHUNKERS),
        y: Axis::log("throughput, all of the disk", "MB/s"),
        series: vec![first, later],
        limits: vec![
            Limit { name: "the file system, for what is new".into(), y: disk_rate(lab)? / 1e6 },
            Limit { name: "memory, read by all cores".into(), y: crate::similarity::memory_rate(lab) / 1e6 },
        ],
    });
    outcome.note(format!(
        "A disk of {}, half of it holes, and {writes} writes of 4 to 64 KiB a day, most of them to a few hot places, some of them discards (`outrigger-workload image`, `update-image`, seeds 31 \
         on). All of the disk is read each day; new bytes are counted before compression (zstd:1).",
        crate::plot::bytes(len as f64)
    ));
    Ok(outcome)
}
