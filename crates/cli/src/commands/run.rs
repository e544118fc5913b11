//! `run`: runs a program over stored files.

use std::any::Any;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use clap::{Args, Parser};
use outrigger_active::cgroup::{Groups, Where};
use outrigger_active::identity::Submitter;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::job::{Attach, Destination, Mode};
use outrigger_active::making::Making;
use outrigger_active::node::is_served;
use outrigger_active::pattern::Pattern;
use outrigger_active::plan::{Splits, settle_program, submit_told};
use outrigger_active::progress::Counters;
use outrigger_active::rules::for_next_files;
use outrigger_active::runner::{self, Nearby, Report, RunOptions};
use outrigger_active::sandbox::Sandbox;
use outrigger_active::through::keep_raw;
use outrigger_active::trust::Trust;
use outrigger_active::written::leave_to_others;
use outrigger_clock::Instant;
use outrigger_fuse::control::{Client, mounts_of};
use outrigger_store::Store;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::text::show;

use super::nearby::{describe_nearby, nearby_of};
use super::run_begin::Machine;
use super::run_end::{describe, describe_making, not_run, say, stopped, stopped_making, stopped_stream};
use super::trust::sandbox;
use super::{Context, beside};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::json::Object;
use crate::output::{complain, print_json, print_text};
use crate::progress::Bar;

const EXAMPLES: &str = "\
Examples:
  outrigger run --in in.txt --out out.txt --records lines -- awk '{print $1*2}'
  outrigger run --in 'logs/**/*.log' --out 'errors/{stem}' -- sed -n /ERROR/p
  outrigger run --in big.csv --out big.sorted --splits 1 -- sort
  outrigger run --in 'n/*' --out 'scaled/{name}' --records lines -- @scale 2.5
  outrigger run --in 'reads/*.bam' --out 'unmapped/{stem}.sam' --records bam -- samtools view -f 4 -
  outrigger run --in genome.fa --out n --records plugin:./fasta.sh -- grep -c '^>'
  # no output
  outrigger run --pattern '1R->0' --in 'runs/*' -- sh -c 'mail -s \"$AS_INPUT\" me@here'
  outrigger run --pattern '1R->0' --in 'runs/*.csv' --net db:5432 -- \\
      psql -h db -c '\\copy results from stdin csv'
  # several outputs, or several programs in one pass
  outrigger run --pattern '1W->#W' --in all.txt --out 'parts/' -- split -l 1000 - part-
  outrigger run --pattern '1W->#W' --in x --out good=good/{name} --out bad=bad/{name} -- \\
      sh -c 'awk \"NF==3\" RS=\"\\n\" | tee \"$AS_OUTPUT_good\" >/dev/null; : > \"$AS_OUTPUT_bad\"'
  outrigger run --in 'n/*' --out 'sums/{stem}' -- awk '{s+=$1} END {print s}' \\
      --and --out 'sorted/{stem}' -- sort -n
  # one output of many inputs; without a program they are joined, and no data is read
  outrigger run --pattern '#W->1W' --in 'parts/*' --out all.txt
  outrigger run --pattern '#W->1W' --in 'logs/*' --out found --records lines -- sed -n /ERROR/p
  # data that is being written
  pg_dump db | outrigger run --pattern '1W->1W' --in - --out dumps/db.zst -- zstd
  sensor | outrigger run --pattern '1W->2W' --in - --to raw.csv --out means.csv -- \\
      awk -F, '{s+=$2} END {print s/NR}'
  outrigger run --pattern '1W->2W' --in 'raw/*.csv' --out 'means/{stem}' --follow -- ./means
  outrigger run --pattern '#W->1W' --in raw/a --in raw/b --out both.zst --follow -- zstd
  # one result for each host that holds some of the data
  outrigger run --in big.log --out counts --records lines --splits hosts -- \\
      awk '/ERROR/ {n++} END {print n+0}'
  # a signed job, for `node --signed-by`
  outrigger run --detach --sign ~/.ssh/id_ed25519 --in x --out y -- sort

`--and --out TEMPLATE -- PROGRAM` adds another program with the same input, which is read once for
all of them; all must succeed. To give --and to a program as its argument, call it by `sh -c`.

Outputs appear all at once when the whole job has succeeded, or not at all. A program fails if its
exit code is not 0 (grep ends with 1 if it finds nothing). --tries says how often it is tried; then
its split is set aside, and the job fails. `outrigger job logs JOB` shows its standard error.

Variables of a program: AS_JOB, AS_SPLIT, AS_SPLITS, AS_ATTEMPT, AS_TASK_ID, AS_INPUTS, AS_INPUT,
AS_OFFSET, AS_LENGTH. More: docs/active-storage.md";

/// Run a program over stored files; results appear all at once
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Stored files to read, as a glob, in this order; `-` is standard input while it is written
    #[arg(long = "in", required = true, value_name = "GLOB")]
    inputs: Vec<String>,
    /// With --in -: where the raw data is stored too (1W->2W, 1W->0, 1W->#W)
    #[arg(long, value_name = "PATH")]
    to: Option<String>,
    /// With a 1W pattern: wait until a file of this name is made or overwritten in the mount, and
    /// read it while it is written; the first match counts. With #W->1W: one for each --in
    #[arg(long, conflicts_with = "to")]
    follow: bool,
    /// Splits that run at once [default: one per processor]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Print the job's number; leave the job to agents or, without any, to a background process
    #[arg(long)]
    detach: bool,
    /// Sign the job with this OpenSSH key (Ed25519, for example), for agents with --signed-by; for
    /// a public key the SSH agent or a token has the secret
    #[arg(long, value_name = "KEY", conflicts_with = "follow")]
    sign: Option<PathBuf>,
    #[command(flatten)]
    work: WorkArgs,
}

/// The program and its treatment of inputs, for `run` and for rules.
#[derive(Args)]
pub struct WorkArgs {
    /// Where input comes from and output goes: 1R->1W, 1R->0, 1W->#W or #W->1W; for a file that is
    /// being written 1W->2W, 1W->1W, 1W->0 or 1W->#W
    #[arg(long, default_value = "1R->1W", value_parser = pattern)]
    pattern: Pattern,
    /// The output's name, with {path}, {dir}, {name}, {stem}, {ext}, {input} and {split}.
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

pub fn run(context: &Context, args: RunArgs) -> Outcome {
    let started = Instant::now();
    outrigger_active::sandbox::keep_inherited()?;
    let mut spec = args.work.spec()?;
    let written = args.inputs == ["-"];
    if args.follow {
        return follow(context, &args, spec);
    }
    if written {
        refuse_for_stream(&args, &spec)?;
    }
    if !written && (spec.pattern.needs_writer() || args.to.is_some()) {
        let why = "is for a file that is being written; give it on standard input (--in -), or name one of a mount (--follow)";
        let what = if args.to.is_some() { "--to".to_string() } else { spec.pattern.to_string() };
        return Err(Failure::usage(format!("{what} {why}")));
    }
    let mut machine = Machine::prepare(&spec, !args.detach);
    let store = Arc::new(context.open()?);
    // If the machine lacks something, this fails before a job is made.
    machine.check()?;
    if written {
        if let Some(to) = &args.to {
            spec = keep_raw(spec, to);
        }
        return through(context, &store, spec, machine, started);
    }
    let served = args.detach && is_served(&store, &spec)?;
    if !served {
        spec.own_variables()?;
    }
    settle_program(&mut spec)?;
    let job = make(context, &store, &spec, &args)?;
    if args.detach {
        return detach(context, job, args.slots, served);
    }
    let means = Means { slots: args.slots, groups: machine.groups(), trust: Trust::own() };
    go_armed(context, &store, job, means, started, true)
}

/// Refuses options that need stored files: one program reads a stream once, from start to end.
fn refuse_for_stream(args: &RunArgs, spec: &Spec) -> Result<(), Failure> {
    let work = &args.work;
    let why = if args.sign.is_some() {
        "--sign: this process runs the job, no agent does; remove it"
    } else if !work.with.is_empty() {
        "--with: a job over a stream reads no stored files; run it over the stored file (--to) once that exists"
    } else if spec.records != Records::Whole {
        "--records: a stream is not split; remove it"
    } else if work.splits != Splits::Auto {
        "--splits: a stream is not split; remove it"
    } else if spec.attach != Attach::default() {
        "--attach: it needs files in a mount; remove it"
    } else if spec.wants_files() {
        "{in}: there is no file yet; the program reads standard input"
    } else {
        return Ok(());
    };
    Err(Failure::usage(format!("--in - with {why}")))
}

/// Makes a job over stored files. A plug-in may search long for records, so a bar shows its
/// progress and a signal ends it. Once the job is made, a signal acts as for a running job.
fn make(context: &Context, store: &Arc<Store>, spec: &Spec, args: &RunArgs) -> Result<JobId, Failure> {
    let making = Arc::new(Making::signed_with(args.sign.clone()));
    let made: Arc<OnceLock<JobId>> = Arc::default();
    let stops = Arc::clone(&making);
    interrupt::arm_saying(store, stopped_making(store, &made), move || stops.stop());
    let counters = Arc::clone(&making.counters);
    let has_plugin = matches!(spec.records, Records::Plugin(_));
    let bar =
        Bar::with(context.quiet || !has_plugin, move |elapsed| describe_making(&counters.view(), elapsed));
    let job = submit_told(store, spec, &args.inputs, &args.work.with, args.work.splits, &making);
    drop(bar);
    if making.is_stopped() {
        interrupt::wait_for_the_end();
    }
    let job = job?;
    let _ = made.set(job);
    Ok(job)
}

/// Waits for a file that is made in the mount, and runs the job that reads it while it is written.
fn follow(context: &Context, args: &RunArgs, spec: Spec) -> Outcome {
    if args.inputs.iter().any(|glob| glob == "-") {
        return Err(Failure::usage("--in - already follows its stream; remove --follow"));
    }
    if args.work.splits == Splits::Hosts {
        return Err(Failure::usage("one program reads a file that is being written; remove --splits hosts"));
    }
    Sandbox::find_for(&spec)?;
    if !args.detach {
        spec.own_variables()?;
    }
    let several = spec.pattern == Pattern::ManyToFile;
    let rule = for_next_files(&args.inputs, args.work.with.clone(), spec)?;
    let store = Arc::new(context.open()?);
    let mounts = mounts_of(&store)?;
    if mounts.is_empty() {
        return Err(Failure::failed(
            "this store is not mounted for writing on this host; run `outrigger mount MOUNTPOINT`, or give a stream with --in -",
        ));
    }
    if several && mounts.len() > 1 {
        return Err(Failure::usage(format!(
            "--follow with #W->1W needs a single mount, but this store is mounted {} times here; unmount the others, or remove --follow and join the files once they are closed",
            mounts.len()
        )));
    }
    let job = await_file(context, mounts, &rule, &args.inputs)?;
    let started = Instant::now();
    if args.detach {
        let row = store.jobs().job(job)?;
        let served = match row.map(|row| Spec::decode(&row.spec)).transpose()? {
            Some(spec) => is_served(&store, &spec)?,
            None => true,
        };
        return detach(context, job, args.slots, served);
    }
    // If an agent is to be in the file's path, it gets the job before this process.
    leave_to_others(&store, job, &|| true)?;
    go(context, &store, (job, Some(1), Trust::own()), started, true)
}

/// The job of the first file that the rule wants in these mounts; then the others stop waiting.
fn await_file(
    context: &Context,
    mounts: Vec<Client>,
    rule: &str,
    wanted: &[String],
) -> outrigger_store::Result<JobId> {
    let (sender, answers) = std::sync::mpsc::channel();
    let mut hang_up = Vec::new();
    for mut mount in mounts {
        hang_up.push(mount.hang_up()?);
        let (sender, rule) = (sender.clone(), rule.to_string());
        std::thread::spawn(move || {
            let awaits = || drop(sender.send(None));
            let answer = mount.next(&rule, awaits);
            drop(sender.send(Some(answer)));
        });
    }
    drop(sender);
    let mut silent = hang_up.len();
    let answer = loop {
        match answers.recv() {
            Ok(Some(answer)) => break answer,
            Ok(None) => silent -= 1,
            Err(_) => {
                let why = "the thread that asked the mount panicked: please report this";
                break Err(outrigger_store::Error::new(outrigger_store::ErrorKind::Io, why));
            }
        }
        if silent == 0 && !context.quiet {
            complain(&format!("waiting for {} to be written in the mount", wanted.join(" and ")));
        }
    };
    hang_up.into_iter().for_each(|hang_up| hang_up());
    answer
}

/// Runs a job over standard input while it comes.
fn through(context: &Context, store: &Arc<Store>, spec: Spec, machine: Machine, started: Instant) -> Outcome {
    spec.own_variables()?;
    let stdin = Box::new(std::io::stdin());
    let job = Arc::new(OnceLock::new());
    interrupt::arm_saying(store, stopped_stream(store, &job), || ());
    let means = Means { slots: Some(1), groups: machine.groups(), trust: Trust::own() };
    with_options(context, store, None, means, started, |options, counters| {
        let begun = |made: JobId| {
            let _ = job.set(made);
        };
        let ran = outrigger_active::through::run(store, spec, stdin, options, counters, &begun);
        ran.map_err(|error| match job.get() {
            Some(job) => not_run(store, *job, true, error),
            None => error.into(),
        })
    })
}

struct Means {
    slots: Option<usize>,
    groups: Result<Groups, String>,
    trust: Trust,
}

/// Runs a job in this process and reports it. If the process itself fails, `ends` ends the job,
/// too.
pub fn go(
    context: &Context,
    store: &Arc<Store>,
    (job, slots, trust): (JobId, Option<usize>, Trust),
    started: Instant,
    ends: bool,
) -> Outcome {
    interrupt::arm_saying(store, stopped(store, job), || ());
    let means = Means { slots, groups: Groups::begin(&Where::Auto, 0, false), trust };
    go_armed(context, store, job, means, started, ends)
}

/// As [`go`], if the signal handler is installed already.
fn go_armed(
    context: &Context,
    store: &Arc<Store>,
    job: JobId,
    means: Means,
    started: Instant,
    ends: bool,
) -> Outcome {
    let nearby = nearby_of(store, job);
    if let Some(nearby) = nearby.as_ref().filter(|_| !context.quiet && !context.json) {
        complain(&describe_nearby(nearby));
    }
    with_options(context, store, nearby, means, started, |options, counters| {
        runner::run(store, job, options, counters).map_err(|error| not_run(store, job, ends, error))
    })
}

fn with_options(
    context: &Context,
    store: &Arc<Store>,
    nearby: Option<Nearby>,
    Means { slots, groups, trust }: Means,
    started: Instant,
    run: impl FnOnce(&RunOptions<'_>, &Arc<Counters>) -> Result<Report, Failure>,
) -> Outcome {
    let counters: Arc<Counters> = Arc::default();
    let told = Arc::clone(&counters);
    let mut last = 0;
    let bar = Bar::with(context.quiet, move |elapsed| {
        let mut view = told.view();
        // A flowing stream waits for almost no time between two blocks, so that is not shown.
        view.waits_for_writer &= view.bytes_read == last;
        last = view.bytes_read;
        describe(&view, elapsed)
    });
    let hold = holder(store, context.threads);
    let slots = slots.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, usize::from));
    let (groups, without) = match groups {
        Ok(groups) => (Some(Arc::new(groups)), None),
        Err(why) => (None, Some(why)),
    };
    let options = RunOptions {
        slots,
        threads: context.threads,
        before_publish: &hold,
        drain: None,
        leave_rest: false,
        make_way: None,
        idle: false,
        groups,
        trust: Arc::new(trust),
    };
    let report = run(&options, &counters);
    drop(bar);
    let report = report?;
    context.settle(store);
    say(context, (&report, without.as_deref(), nearby), &counters.view(), started.elapsed().as_secs_f64())
}

/// Stops a mount of the store while outputs become visible.
pub fn holder(store: &Arc<Store>, threads: usize) -> impl Fn() -> outrigger_store::Result<Box<dyn Any>> {
    let store = Arc::clone(store);
    move || {
        let held = beside::hold(store.name(), threads).map_err(|failure| {
            outrigger_store::Error::new(outrigger_store::ErrorKind::Busy, failure.message)
        })?;
        Ok(Box::new(held))
    }
}

/// Leaves the job to agents or, if there are none, to another process of this program.
fn detach(context: &Context, job: JobId, slots: Option<usize>, served: bool) -> Outcome {
    if !served {
        spawn_runner(context, job, slots, &["--own".into()])?;
    }
    if context.json {
        print_json(Object::new().with("job", job.0))?;
    } else {
        print_text(&format!("{job}\n"))?;
    }
    Ok(Exit::Done)
}

/// Starts `job retry JOB` in the background, with these options.
pub fn spawn_runner(
    context: &Context,
    job: JobId,
    slots: Option<usize>,
    options: &[OsString],
) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt as _;
    let at = |error: std::io::Error| Failure::io("cannot start a process for the job", &error);
    let mut command = Command::new(std::env::current_exe().map_err(at)?);
    command.arg("--store").arg(context.store_dir()?).arg("--quiet");
    command.args(["job", "retry", &job.to_string(), "--ends"]).args(options);
    if let Some(slots) = slots {
        command.args(["--slots", &slots.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().map(drop).map_err(at)
}
