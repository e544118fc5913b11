//! Section 5, bottleneck: where a write of random blocks through the mount spends its time, and
//! which resources it uses. `neck.rs` draws the conclusion.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_offload::Compressor;
use serde_json::Value;

use super::data::like_fio;
use super::fio::{command, median, note, parsed, ratio, verify};
use super::neck::{Case, Consumer, Phase, Which};
use super::tiers::codec;
use crate::lab::{Failed, Lab, Scale, check};
use crate::machine::{Ticks, ticks};
use crate::measure::Spread;
use crate::mounted::{Mount, needs};
use crate::record::{Axis, Form, Limit, Outcome, Plot, Series};
use crate::threads::{Seen, Watch, of_kernel};
use crate::wrote::disk_rate;

const CODECS: [&str; 5] = ["none", "gzip:6", "lz4", "zstd:1", "auto"];
/// Jobs of fio.
const JOBS: [u64; 2] = [1, 4];

/// One write.
struct Written {
    phases: Vec<Phase>,
    ratio: f64,
}

impl Written {
    fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// The share of all processors, over the whole write.
    fn processors(&self) -> f64 {
        self.phases.iter().map(|phase| phase.processors * phase.seconds).sum::<f64>() / self.seconds()
    }

    fn workers(&self) -> f64 {
        self.phases.iter().map(Phase::workers).sum()
    }
}

/// The start of a part.
struct Mark {
    at: Instant,
    ticks: Ticks,
    seen: Seen,
    kernel: f64,
}

impl Mark {
    fn now(watch: &Watch) -> Self {
        Self { at: Instant::now(), ticks: ticks(), seen: watch.now(), kernel: of_kernel() }
    }

    /// Ends a part: returns it, and the start of the next one.
    fn ends(self, which: Which, watch: &Watch, disk: f64) -> (Phase, Self) {
        let now = Self::now(watch);
        let seconds = (now.at - self.at).as_secs_f64().max(1e-6);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let processors = now.ticks.busy_since(self.ticks);
        let written = now.seen.written.saturating_sub(self.seen.written) as f64;
        let phase = Phase {
            which,
            seconds,
            processors,
            disk: written / seconds / disk,
            fio: 0.0,
            kernel: (now.kernel - self.kernel).max(0.0),
            roles: now.seen.roles_since(&self.seen),
            all: processors * cpus * seconds,
        };
        (phase, now)
    }
}

/// So many jobs of fio, each with its own file.
fn random_writes(lab: &Lab, count: u64, bytes: u64, point: &Path) -> Command {
    let mut command = command(lab, "randwrite", 128 << 10);
    command
        .arg(format!("--numjobs={count}"))
        .arg(format!("--size={}", bytes / count))
        .arg(format!("--directory={}", point.display()));
    command
}

/// A fio process whose jobs have begun.
struct Fio(Child);

impl Fio {
    /// Starts fio. It measures its clock and lays out files before its jobs begin; the first job
    /// reports when that is done.
    fn start(lab: &Lab, count: u64, bytes: u64, point: &Path, room: &Path) -> Result<Self, Failed> {
        let begun = room.join("begun");
        let child = random_writes(lab, count, bytes, point)
            .arg(format!("--exec_prerun=touch {}", begun.display()))
            .arg("--do_verify=0")
            .current_dir(room)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut fio = Self(child);
        while !begun.exists() && fio.0.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(fio)
    }

    /// Waits for its end, and returns its jobs' reports.
    fn ends(self) -> Result<Vec<Value>, Failed> {
        let out = self.0.wait_with_output()?;
        let said = String::from_utf8_lossy(&out.stdout);
        let why = || Failed::Program(format!("fio: {}{said}", String::from_utf8_lossy(&out.stderr)));
        if out.status.success() { parsed(&said) } else { Err(why()) }
    }
}

/// Processor seconds of fio's jobs.
fn seconds_of_jobs(jobs: &[Value]) -> f64 {
    let of = |job: &Value, name: &str| job[name].as_f64().unwrap_or(0.0);
    let seconds = |job| (of(job, "usr_cpu") + of(job, "sys_cpu")) / 100.0 * of(job, "job_runtime") / 1e3;
    jobs.iter().map(seconds).sum()
}

/// Random blocks of 128 KiB by so many jobs, each with its own file, in a new store.
fn one(lab: &Lab, codec: &str, count: u64, bytes: u64, disk: f64) -> Result<Written, Failed> {
    let room = lab.room()?;
    let mount = Mount::new(lab, room.path(), &["--codec", codec])?;
    let watch = Watch::start(mount.id());
    let fio = Fio::start(lab, count, bytes, &mount.point, room.path())?;
    let begun = Mark::now(&watch);
    let done = fio.ends()?;
    let (mut fio, begun) = begun.ends(Which::Fio, &watch, disk);
    fio.fio = seconds_of_jobs(&done);
    let written: f64 = done.iter().filter_map(|job| job["write"]["io_bytes"].as_f64()).sum();
    check(written >= bytes as f64 * 0.99, format!("fio did {written} of {bytes} bytes"))?;
    mount.drain()?;
    let (draining, begun) = begun.ends(Which::Draining, &watch, disk);
    mount.end()?;
    let (unmount, _) = begun.ends(Which::Unmount, &watch, disk);
    if lab.scale == Scale::Tiny {
        let mount = Mount::again(lab, room.path())?;
        verify(lab, random_writes(lab, count, bytes, &mount.point))?;
        mount.end()?;
    }
    let phases = vec![fio, draining, unmount];
    let seen: f64 = phases.iter().flat_map(|phase| &phase.roles).map(|role| role.seconds).sum();
    check(lab.scale == Scale::Tiny || seen > 0.0, "no thread of the mount was seen at work")?;
    Ok(Written { phases, ratio: ratio(lab, room.path())? })
}

/// Processor seconds per byte of fio's data, in frames as mounts make them. `auto` chooses `zstd:1`
/// for this data.
fn cost(lab: &Lab, name: &str) -> Result<f64, Failed> {
    const FRAME: usize = 256 << 10;
    let spec = match name {
        "none" => return Ok(0.0),
        "auto" => codec("zstd:1")?,
        name => codec(name)?,
    };
    let (data, mut compressor, mut out) =
        (like_fio(lab.scale.pick(FRAME, 4 << 20, 16 << 20)), Compressor::new(), Vec::new());
    let all = || {
        for frame in data.chunks(FRAME) {
            out.clear();
            compressor.compress(spec, frame, &mut out);
        }
    };
    Ok(lab.seconds(all).median / data.len() as f64)
}

/// Section 5.4.
pub fn bottleneck(lab: &Lab) -> Result<Outcome, Failed> {
    needs("fio", "fio")?;
    let (bytes, rounds) = (lab.scale.pick(2 << 20, 128 << 20, 2 << 30), lab.scale.pick(1, 3, 3));
    let disk = disk_rate(lab)?;
    let all = |count: u64| -> Result<Vec<Vec<Written>>, Failed> {
        let each = |codec: &&str| {
            let mut runs: Vec<Written> =
                (0..rounds).map(|_| one(lab, codec, count, bytes, disk)).collect::<Result<_, _>>()?;
            runs.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
            Ok(runs)
        };
        CODECS.iter().map(each).collect()
    };
    let by_jobs = [all(JOBS[0])?, all(JOBS[1])?];
    let mut outcome = Outcome::default();
    in_use(&by_jobs[0], bytes, disk, &mut outcome);
    let middle: Vec<Vec<&Written>> =
        by_jobs.iter().map(|all| all.iter().map(|runs| &runs[runs.len() / 2]).collect()).collect();
    let names: Vec<String> = CODECS
        .iter()
        .flat_map(|codec| JOBS.map(|jobs| format!("{codec}, {jobs} job{}", if jobs > 1 { "s" } else { "" })))
        .collect();
    let mut parts = [Which::Fio, Which::Draining, Which::Unmount].map(|which| Series::measured(which.name()));
    let mut consumers = Consumer::ALL.map(|consumer| Series::measured(consumer.name()));
    let costs = CODECS.iter().map(|codec| cost(lab, codec)).collect::<Result<Vec<f64>, _>>()?;
    let mut said = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let (codec, n) = (at / JOBS.len(), at % JOBS.len());
        let written = middle[n][codec];
        let compressing = (bytes as f64 * costs[codec] / written.workers().max(1e-9)).min(1.0);
        let gain = middle[0][codec].phases[0].seconds / middle[1][codec].phases[0].seconds;
        for (line, phase) in parts.iter_mut().zip(&written.phases) {
            line.exact(at as f64, phase.seconds);
        }
        let mut sums = [0.0; Consumer::ALL.len()];
        for phase in &written.phases {
            let of = phase.consumers(compressing);
            sums.iter_mut().zip(of).for_each(|(sum, (_, seconds))| *sum += seconds);
        }
        for (line, sum) in consumers.iter_mut().zip(sums) {
            line.exact(at as f64, 100.0 * sum / written.seconds());
        }
        outcome.find(
            format!("{name}: until all is stored"),
            bytes as f64 / written.seconds() / 1e6,
            "MB/s",
            None,
        );
        let busiest = written.phases.iter().filter_map(Phase::busiest).map(|(_, share)| share);
        outcome.find(
            format!("{name}: the mount's busiest thread, at most"),
            100.0 * busiest.fold(0.0, f64::max),
            "%",
            None,
        );
        let case = Case { phases: &written.phases, compressing, gain_of_jobs: gain };
        said.push((name, case.neck().map_or_else(String::new, |neck| neck.to_string()), case.sentence()));
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    outcome.plots.push(Plot {
        title: format!("Where the time of writing {} goes", crate::plot::bytes(bytes as f64)),
        form: Form::Stacked,
        x: Axis::of("codec, jobs of fio", &names),
        y: Axis::new("time", "s"),
        series: parts.into(),
        limits: vec![Limit { name: "a plain write of the input".into(), y: bytes as f64 / disk }],
    });
    outcome.plots.push(Plot {
        title: "What the processors do meanwhile".into(),
        form: Form::Stacked,
        x: Axis::of("codec, jobs of fio", &names),
        y: Axis::new("of one processor", "%"),
        series: consumers.into(),
        limits: vec![Limit { name: "all processors".into(), y: 100.0 * cpus }],
    });
    for (jobs, all) in JOBS.iter().zip(&middle) {
        outcome.plots.push(by_thread(*jobs, all, cpus));
    }
    outcome.notes.extend(notes(&said));
    outcome.note(
        "The rule is in `crates/eval/src/qzfs/neck.rs`: of the part that takes longest, the bottleneck is the disk, if four fifths of what it takes are used; else whoever took most of the \
         processors, if four fifths of those are (of a machine that others keep busy nothing is said); else a thread of the mount that was busy for four fifths of the time; else one job, if four are 1.2 times as fast until fio ends; else what is waited for.",
    );
    outcome.note(
        "fio ends when the mount has acknowledged all, unsynced; then the mount is asked to store all (`draining`), and unmounted. Threads' times are from /proc; of the workers' time so much is compression as the codec takes for the same bytes by itself, \
         for `auto` as if it were zstd:1. The paper's numbers are those of its card, which stand beside `auto`.",
    );
    note(&mut outcome);
    Ok(outcome)
}

/// The load of threads over the whole write, those of one name together.
fn by_thread(jobs: u64, all: &[&Written], cpus: f64) -> Plot {
    let of = |written: &Written, name: &str| {
        let roles = written.phases.iter().flat_map(|phase| &phase.roles).filter(|role| role.name == name);
        100.0 * roles.map(|role| role.seconds).sum::<f64>() / written.seconds()
    };
    let phases = all.iter().flat_map(|written| &written.phases);
    let names: BTreeSet<&str> = phases.flat_map(|phase| &phase.roles).map(|role| &*role.name).collect();
    // A hundredth of the total can hardly be seen, so idle threads are left out, unless all are
    // idle.
    let seen = |name: &&&str| all.iter().any(|written| of(written, name) >= cpus);
    let busy: Vec<&str> = names.iter().filter(seen).copied().collect();
    let names: Vec<&str> = if busy.is_empty() { names.into_iter().collect() } else { busy };
    let series = CODECS.iter().zip(all).map(|(codec, written)| {
        let mut line = Series::measured(*codec);
        names.iter().enumerate().for_each(|(at, name)| line.exact(at as f64, of(written, name)));
        line
    });
    Plot {
        title: format!("How busy the mount's threads are with {jobs} job{}", if jobs > 1 { "s" } else { "" }),
        form: Form::Bars,
        x: Axis::of("threads, those of a name together", names.iter().copied()),
        y: Axis::new("of one processor", "%"),
        series: series.collect(),
        limits: vec![Limit { name: "all processors".into(), y: 100.0 * cpus }],
    }
}

/// The sentence about the last case, which is the paper's (many jobs, a chosen codec), and the
/// bottleneck of each other case.
fn notes(said: &[(&String, String, String)]) -> Vec<String> {
    let Some(((name, _, sentence), others)) = said.split_last() else { return Vec::new() };
    let others: Vec<String> = others.iter().map(|(name, neck, _)| format!("{name}: {neck}")).collect();
    vec![
        format!("{sentence} (That is `{name}`, the paper's case.)"),
        format!("The others' bottlenecks. {}.", others.join("; ")),
    ]
}

/// The share of each resource in use, with one job.
fn in_use(all: &[Vec<Written>], bytes: u64, disk: f64, outcome: &mut Outcome) {
    let mut series = [
        Series::measured("processors"),
        Series::measured("disk, of what it takes"),
        Series::measured("mount, of what it does without codec"),
    ];
    let mut bare = 0.0;
    for (at, (codec, runs)) in CODECS.iter().zip(all).enumerate() {
        let rate = Spread::of(runs.iter().map(|run| bytes as f64 / run.seconds()).collect());
        if at == 0 {
            bare = rate.median;
        }
        let ratio = median(&runs.iter().map(|run| run.ratio).collect::<Vec<_>>());
        let busy = Spread::of(runs.iter().map(|run| 100.0 * run.processors()).collect());
        let paper = |value: f64| (*codec == "auto").then_some(value);
        outcome.find(format!("{codec}: processors in use"), busy.median, "%", paper(20.2));
        let taken = rate.map(|rate| 100.0 * rate / ratio / disk);
        outcome.find(format!("{codec}: disk in use"), taken.median, "%", paper(39.8));
        series[0].push(at as f64, busy);
        series[1].push(at as f64, taken);
        series[2].push(at as f64, rate.map(|rate| 100.0 * rate / bare));
    }
    outcome.plots.push(Plot {
        title: "What is in use while one job writes random blocks of 128 KiB through the mount".into(),
        form: Form::Bars,
        x: Axis::of("codec", CODECS),
        y: Axis::new("in use", "%"),
        series: series.into(),
        limits: vec![Limit { name: "mount without codec, or all of it".into(), y: 100.0 }],
    });
}
