//! The options that say what a job does with its inputs, for `run` and for rules, and the job's
//! spec that they make. Programs after `--and` have options of their own.

use std::ffi::OsString;

use clap::{Args, Parser};
use outrigger_active::identity::Submitter;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::job::{Attach, Destination, Mode};
use outrigger_active::pattern::Pattern;
use outrigger_active::plan::Splits;
use outrigger_store::text::show;

use crate::commands::trust::sandbox;
use crate::exit::Failure;

/// The program and its treatment of inputs, for `run` and for rules.
#[derive(Args)]
pub struct WorkArgs {
    /// Where input comes from and output goes: 1R->1W, 1R->0, 1W->#W or #W->1W; for a file that is
    /// being written 1W->2W, 1W->1W, 1W->0 or 1W->#W
    #[arg(long, default_value = "1R->1W", value_parser = pattern)]
    pattern: Pattern,
    /// The output's name, with {path}, {dir}, {name}, {stem}, {ext}, {input} and {split}; `-` prints
    /// results in the order of the inputs, each when it and those before it are ready.
    /// NAME=TEMPLATE is the file $AS_OUTPUT_NAME; TEMPLATE/ takes all files made in $AS_WORK
    #[arg(long = "out", value_name = "TEMPLATE")]
    outputs: Vec<String>,
    /// The records of inputs: lines, fixed:BYTES, delimiter:TEXT, bam (FILE.bam.bai must lie beside
    /// each input) or plugin:PROGRAM (with arguments; @NAME: a component). A plugin runs once over
    /// each input when the job is made, and prints the rising offsets of records, one per line
    #[arg(long, default_value = "whole", value_parser = records)]
    records: Records,
    /// Parts of each input: auto (one per 64 MiB, and at each change of its host), a number, or
    /// hosts: one per host, with all that it holds, as one file. Outputs are then joined by host
    #[arg(long, default_value = "auto", value_parser = splits)]
    pub splits: Splits,
    /// Add to the program's environment, which is otherwise empty. NAME alone takes its value where
    /// the program runs (from this command or the agent), so a password is written down nowhere
    #[arg(long, value_name = "NAME=VALUE|NAME", value_parser = variable)]
    env: Vec<(String, Option<String>)>,
    /// Limits of one attempt: memory=SIZE,time=TIME,cpu=TIME,processes=N,output=SIZE; none lifts
    /// one [default: half the memory, 512 processes, 1 TiB of output; half the free disk for files]
    #[arg(long, value_name = "LIMITS")]
    limits: Vec<String>,
    /// Other stored files that the program may read, as a glob; each lies in $AS_IN under its path
    #[arg(long, value_name = "GLOB")]
    pub with: Vec<String>,
    /// Isolation: strict fails if the machine lacks a means, best does what it can, off has none
    #[arg(long, default_value = "strict", value_parser = sandbox)]
    sandbox: Mode,
    /// For a file written in a mount: beside never makes its writer wait. With path it waits while
    /// it is 64 MiB ahead of the program, which then reads from memory (10 s at most without reads)
    #[arg(long, default_value = "beside", value_name = "beside|path", value_parser = attach)]
    attach: Attach,
    /// Allow the network: all of it, or only these HOST:PORT (TCP, repeatable), by name or address
    #[arg(long, value_name = "HOST:PORT", num_args(0..=1), default_missing_value = EVERYTHING, value_parser = net)]
    net: Vec<Net>,
    /// Attempts at each split
    #[arg(long, default_value_t = 2, value_name = "N")]
    tries: u32,
    /// Publish partial results if some inputs fail: each is named, and the exit code is 4
    #[arg(long)]
    keep_going: bool,
    /// The program and its arguments: @NAME is a component (`outrigger component`), {in} its inputs
    /// as files ({in.1}, {in.2}: by number), {out.NAME} an output as a file. None with #W->1W joins
    /// the inputs. --and --out TEMPLATE -- PROGRAM adds another program in the same pass
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The value of `--net` without a destination.
const EVERYTHING: &str = "all";

#[derive(Clone, PartialEq)]
enum Net {
    All,
    Only(Destination),
}

/// A further program, after `--and`.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct AndArgs {
    #[arg(long = "out", value_name = "TEMPLATE")]
    outputs: Vec<String>,
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl WorkArgs {
    pub fn spec(&self) -> Result<Spec, Failure> {
        let word = |word: &OsString| {
            let not_text = || Failure::usage(format!("{} is not UTF-8", show(word.as_encoded_bytes())));
            word.to_str().map(str::to_string).ok_or_else(not_text)
        };
        let words = |words: &[OsString]| words.iter().map(word).collect::<Result<Vec<_>, _>>();
        let mut programs = self.program.split(|word| word == "--and");
        let mut spec = Spec::new(self.pattern, words(programs.next().unwrap_or_default())?);
        spec = self.outputs.iter().fold(spec, |spec, output| spec.output(output));
        for more in programs {
            let more = AndArgs::try_parse_from(more).map_err(|error| {
                let why = error.render().to_string();
                let why = why.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
                Failure::usage(format!(
                    "after --and come its outputs and its program, `--and --out TEMPLATE -- PROGRAM`: {why}"
                ))
            })?;
            spec = spec.and(words(&more.program)?);
            spec = more.outputs.iter().fold(spec, |spec, output| spec.output(output));
        }
        self.limits.iter().try_for_each(|limits| spec.limits.set(limits))?;
        spec.records = self.records.clone();
        for (name, value) in &self.env {
            match value {
                Some(value) => spec.env.push((name.clone(), value.clone())),
                None => spec.env_here.push(name.clone()),
            }
        }
        spec.sandbox = self.sandbox;
        spec.net = self.net.contains(&Net::All);
        for net in &self.net {
            match net {
                Net::Only(to) if !spec.reach.contains(to) => spec.reach.push(to.clone()),
                _ => {}
            }
        }
        spec.attach = self.attach;
        spec.tries = self.tries;
        spec.skip = self.keep_going;
        spec.submitter = Some(Submitter::here());
        Ok(spec)
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|error| error.to_string())
}

fn records(text: &str) -> Result<Records, String> {
    Records::parse(text).map_err(|error| error.to_string())
}

fn splits(text: &str) -> Result<Splits, String> {
    Splits::parse(text).map_err(|error| error.to_string())
}

fn net(text: &str) -> Result<Net, String> {
    if text == EVERYTHING {
        return Ok(Net::All);
    }
    Destination::parse(text)
        .map(Net::Only)
        .map_err(|error| format!("{error}; `--net` alone, before another option, gives all of the network"))
}

fn attach(text: &str) -> Result<Attach, String> {
    Attach::parse(text).map_err(|error| error.to_string())
}

/// `None` as a value means: the value where the program runs.
fn variable(text: &str) -> Result<(String, Option<String>), String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if name.is_empty() || text.contains('\0') {
        return Err(format!("`{text}` cannot be in an environment: give NAME=VALUE, or NAME"));
    }
    Ok((name.to_string(), value.map(str::to_string)))
}
