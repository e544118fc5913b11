//! The generators and the comparison for shell scripts: see `outrigger-workload --help`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use outrigger_workload as workload;

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
  compare A B        every difference between two trees

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
        other => return Err(Failure::Usage(format!("no command {other:?}"))),
    }
    Ok(ExitCode::SUCCESS)
}
