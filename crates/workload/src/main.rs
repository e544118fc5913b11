//! The generators and the comparison for shell scripts: see `outrigger-workload --help`.
#![allow(clippy::disallowed_methods, reason = "it measures, and waits, in real time")]

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use outrigger_workload as workload;
use outrigger_workload::history;

const HELP: &str = "\
Seeded data for tests and benchmarks, and an exact comparison of two trees.

Usage: outrigger-workload COMMAND [ARGUMENTS] [OPTIONS]

  tree DIR           a tree of source-like files             --seed 1 --files 1000 --max BYTES
  mutate DIR         turn a tree into its next version       --seed 2
  small DIR          many files of up to 4 KB                --seed 1 --files 1000000
  nasty DIR          everything copies get wrong             --seed 1 --huge BYTES (one huge hole)
  image FILE         a virtual machine's disk                --seed 1 --len BYTES
  update-image FILE  writes of its guest                     --seed 2 --writes 1000
  stream             bytes on standard output                --seed 1 --len BYTES --dedup 0.0 --compress 0.5 --segment 8192
  reads              genomic reads on standard output        --seed 1 --count 100000 --format fastq|sam
  images DIR         images of a running search, core.1 ...  --seed 1 --len BYTES --count 8 --every MILLISECONDS
  compare A B        every difference between two trees
  ackwrite DIR LOG   random operations, each logged when it returned   --seed 1 --ops 10000 --seconds N --links 1
                     LOG on another file system; the first operation that fails ends it, exit code 1
  ackverify DIR LOG  is there what LOG says? one that was in flight may be; what is wrong is printed
                     --names     after the kill of a process behind a write-back cache: data since fsync or close may be lost
                     --durable   after a loss of power: all that was not synced may be lost
  stress DIR         several processes in one directory, all that they see checked --seed 1 --jobs 4 --steps 2000
  client DIR LOGS    random operations in a directory that others share, each logged --name HOST.NUMBER --seed 1 --seconds 10
                     --start NANOSECONDS of the monotonic clock, the same for all clients
  judge LOGS         is what the clients were told what a file system may tell? what is not is printed

Numbers may end in k, m or g (powers of 1024). The same seed gives the same data everywhere.
Exit codes: 0 done or the same, 1 different or failed, 2 usage.
";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.is_empty() || args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::from(if args.is_empty() { 2 } else { 0 });
    }
    match parse(args).and_then(run) {
        Ok(code) => code,
        Err(Failure::Usage(what)) => {
            eprintln!("outrigger-workload: {what} (see --help)");
            ExitCode::from(2)
        }
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Io(error)) => {
            eprintln!("outrigger-workload: {error}");
            ExitCode::from(1)
        }
    }
}

enum Failure {
    Usage(String),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Args {
    command: String,
    paths: Vec<PathBuf>,
    options: Vec<(String, String)>,
}

fn parse(args: Vec<OsString>) -> Result<Args, Failure> {
    let (mut words, mut options) = (Vec::new(), Vec::new());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str().and_then(|arg| arg.strip_prefix("--")) {
            Some(name @ ("names" | "durable")) => options.push((name.to_owned(), String::new())),
            Some(name) => {
                let value = args.next().and_then(|value| value.into_string().ok());
                options.push((
                    name.to_owned(),
                    value.ok_or_else(|| Failure::Usage(format!("--{name} needs a value")))?,
                ));
            }
            None => words.push(arg),
        }
    }
    let mut words = words.into_iter();
    let command = words.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
    Ok(Args { command, paths: words.map(PathBuf::from).collect(), options })
}

impl Args {
    fn number(&mut self, name: &str, default: u64) -> Result<u64, Failure> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let (digits, unit) = match value.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&value[..at], 1 << 10),
            Some((at, 'm' | 'M')) => (&value[..at], 1 << 20),
            Some((at, 'g' | 'G')) => (&value[..at], 1 << 30),
            _ => (value.as_str(), 1),
        };
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        number.ok_or_else(|| Failure::Usage(format!("--{name} {value}: not a number")))
    }

    fn rate(&mut self, name: &str, default: f64) -> Result<f64, Failure> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let rate = value.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
        rate.ok_or_else(|| Failure::Usage(format!("--{name} {value}: not between 0 and 1")))
    }

    fn seconds(&mut self) -> Result<Option<Duration>, Failure> {
        Ok(match self.number("seconds", u64::MAX)? {
            u64::MAX => None,
            seconds => Some(Duration::from_secs(seconds)),
        })
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(option, _)| option == name)?;
        Some(self.options.remove(at).1)
    }

    /// The `N` paths of the command, once all its options are taken.
    fn paths<const N: usize>(&self) -> Result<[PathBuf; N], Failure> {
        if let Some((name, _)) = self.options.first() {
            return Err(Failure::Usage(format!("{} does not take --{name}", self.command)));
        }
        let paths = self.paths.clone().try_into();
        paths.map_err(|_| Failure::Usage(format!("{} takes {N} paths", self.command)))
    }
}

fn run(mut args: Args) -> Result<ExitCode, Failure> {
    match args.command.clone().as_str() {
        "tree" => {
            let mut options =
                workload::TreeOptions::new(args.number("seed", 1)?, args.number("files", 1000)?);
            options.file_bytes_max = args.number("max", u64::MAX)?;
            let [root] = args.paths()?;
            println!("{:?}", workload::source_tree(&root, &options)?);
        }
        "mutate" => {
            let options = workload::MutateOptions::new(args.number("seed", 2)?);
            let [root] = args.paths()?;
            println!("{:?}", workload::mutate_tree(&root, &options)?);
        }
        "small" => {
            let (seed, files) = (args.number("seed", 1)?, args.number("files", 1_000_000)?);
            let [root] = args.paths()?;
            println!("{:?}", workload::small_files(&root, seed, files)?);
        }
        "nasty" => {
            let mut options = workload::NastyOptions::new(args.number("seed", 1)?);
            options.huge_hole = args.number("huge", 0)?;
            let [root] = args.paths()?;
            let report = workload::nasty_tree(&root, &options)?;
            println!("made: {}", report.made.join(", "));
            for (what, why) in report.skipped {
                println!("skipped: {what}: {why}");
            }
        }
        "image" => {
            let (seed, len) = (args.number("seed", 1)?, args.number("len", 1 << 30)?);
            let [path] = args.paths()?;
            workload::vm_image(&path, seed, len)?;
        }
        "update-image" => {
            let updates = workload::ImageUpdates::new(args.number("seed", 2)?, args.number("writes", 1000)?);
            let [path] = args.paths()?;
            println!("{} bytes written", workload::vm_image_updates(&path, &updates)?);
        }
        "stream" => {
            let options = workload::StreamOptions {
                seed: args.number("seed", 1)?,
                len: args.number("len", 1 << 30)?,
                dedup_rate: args.rate("dedup", 0.0)?,
                compressibility: args.rate("compress", 0.5)?,
                segment: args.number("segment", 8192)? as usize,
            };
            let [] = args.paths()?;
            let mut out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
            io::copy(&mut workload::Stream::new(&options), &mut out)?;
            out.flush()?;
        }
        "compare" => {
            let [a, b] = args.paths()?;
            let found = workload::compare_trees(&a, &b)?;
            let mut out = io::BufWriter::new(io::stdout().lock());
            for difference in &found {
                writeln!(out, "{difference}")?;
            }
            out.flush()?;
            return Ok(ExitCode::from(u8::from(!found.is_empty())));
        }
        "ackwrite" => {
            let options = workload::AckOptions {
                seed: args.number("seed", 1)?,
                ops: args.number("ops", 10_000)?,
                time: args.seconds()?,
                links: args.number("links", 1)? != 0,
            };
            let [dir, log] = args.paths()?;
            let report = workload::ack_write(&dir, &log, &options)?;
            println!("{} operations acknowledged", report.acked);
            if let Some((op, error)) = report.failed {
                println!("then failed: {op}: {error}");
                return Ok(ExitCode::from(1));
            }
        }
        "ackverify" => {
            let promise = match (args.take("durable"), args.take("names")) {
                (None, None) => workload::Promise::Acked,
                (Some(_), _) => workload::Promise::Durable,
                (None, Some(_)) => workload::Promise::Names,
            };
            let [dir, log] = args.paths()?;
            let problems = workload::ack_verify(&dir, &log, promise)?;
            problems.iter().for_each(|problem| println!("{problem}"));
            return Ok(ExitCode::from(u8::from(!problems.is_empty())));
        }
        "stress" => {
            let options = workload::StressOptions {
                seed: args.number("seed", 1)?,
                jobs: args.number("jobs", 4)?,
                steps: args.number("steps", 2000)?,
            };
            let job = args.take("job");
            let [dir] = args.paths()?;
            match job.map(|job| job.parse()) {
                None => stress(&dir, &options)?,
                // A job that `stress` starts; it reports on its standard output.
                Some(Ok(job)) => {
                    let done = workload::stress_job(&dir, job, &options)?;
                    println!("{} {} {} {} {}", done.appended, done.flock, done.fcntl, done.won, done.lost);
                }
                Some(Err(_)) => return Err(Failure::Usage("--job: not a number".to_owned())),
            }
        }
        "client" => {
            let (seed, start) = (args.number("seed", 1)?, args.number("start", 0)?);
            let length = args.seconds()?.unwrap_or(Duration::from_secs(10));
            let name = args.take("name").ok_or_else(|| Failure::Usage("client needs --name".to_owned()))?;
            let [dir, logs] = args.paths()?;
            history::Client::new(&dir, &logs, &name)?.run(seed, start, length)?;
        }
        "judge" => {
            let [logs] = args.paths()?;
            let report = history::check(&history::load(&logs)?);
            print!("{}", report.told(&history::faults(&logs)));
            return Ok(ExitCode::from(u8::from(report.violations().next().is_some())));
        }
        "reads" => {
            let (seed, count) = (args.number("seed", 1)?, args.number("count", 100_000)?);
            let format = match args.take("format").as_deref() {
                None | Some("fastq") => workload::ReadFormat::Fastq,
                Some("sam") => workload::ReadFormat::Sam,
                Some(other) => return Err(Failure::Usage(format!("--format {other}: fastq or sam"))),
            };
            let [] = args.paths()?;
            workload::reads(seed, count, format, &mut io::BufWriter::new(io::stdout().lock()))?;
        }
        "images" => {
            let (seed, len) = (args.number("seed", 1)?, args.number("len", 64 << 20)?);
            let (count, every) = (args.number("count", 8)?, args.number("every", 500)?);
            let [dir] = args.paths()?;
            images(&dir, seed, len, count, Duration::from_millis(every))?;
        }
        // The process that `images` starts and takes images of. It ends with its standard input.
        "search" => {
            let (seed, len) = (args.number("seed", 1)?, args.number("len", 64 << 20)?);
            let [] = args.paths()?;
            std::thread::spawn(|| {
                let _ = io::copy(&mut io::stdin(), &mut io::sink());
                std::process::exit(0);
            });
            let mut search = workload::Search::new(seed, len as usize);
            println!("ready");
            loop {
                search.work(100);
            }
        }
        other => return Err(Failure::Usage(format!("no command {other:?}"))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets a process of this program search, and copies its stopped memory so many times.
fn images(dir: &Path, seed: u64, len: u64, count: u64, every: Duration) -> io::Result<()> {
    use std::io::BufRead;
    std::fs::create_dir_all(dir)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("search").args(["--seed", &seed.to_string(), "--len", &len.to_string()]);
    let mut search = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ready = String::new();
    if let Some(out) = search.stdout.as_mut() {
        io::BufReader::new(out).read_line(&mut ready)?;
    }
    let signal = |signal| -> io::Result<()> {
        let pid = rustix::process::Pid::from_child(&search);
        Ok(rustix::process::kill_process(pid, signal)?)
    };
    for number in 1..=count {
        std::thread::sleep(every);
        signal(rustix::process::Signal::STOP)?;
        let copied = workload::process_image(search.id(), &dir.join(format!("core.{number}")));
        signal(rustix::process::Signal::CONT)?;
        println!("core.{number}: {} KiB", copied? >> 10);
    }
    search.kill()?;
    search.wait()?;
    Ok(())
}

/// Starts the jobs as separate processes, waits for all, and checks their shared files.
fn stress(dir: &Path, options: &workload::StressOptions) -> io::Result<()> {
    workload::stress_start(dir)?;
    let program = std::env::current_exe()?;
    let mut jobs = Vec::new();
    for job in 0..options.jobs {
        let mut command = Command::new(&program);
        command.arg("stress").arg(dir).stdout(Stdio::piped());
        for (name, value) in
            [("seed", options.seed), ("jobs", options.jobs), ("steps", options.steps), ("job", job)]
        {
            command.arg(format!("--{name}")).arg(value.to_string());
        }
        jobs.push(command.spawn()?);
    }
    let (mut done, mut failed) = (Vec::new(), 0);
    for job in jobs {
        let out = job.wait_with_output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [appended, flock, fcntl, won, lost] if out.status.success() => {
                done.push(workload::Done { appended, flock, fcntl, won, lost });
            }
            _ => failed += 1,
        }
    }
    if failed > 0 {
        return Err(io::Error::other(format!("{failed} of {} jobs failed", options.jobs)));
    }
    workload::stress_finish(dir, &done)?;
    let all = |what: fn(&workload::Done) -> u64| done.iter().map(what).sum::<u64>();
    println!(
        "{} jobs: {} records appended, {} and {} counted, {} names won and {} lost",
        options.jobs,
        all(|d| d.appended),
        all(|d| d.flock),
        all(|d| d.fcntl),
        all(|d| d.won),
        all(|d| d.lost)
    );
    Ok(())
}
