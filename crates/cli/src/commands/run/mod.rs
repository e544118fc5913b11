//! `run`: runs a program over stored files, or over data that is being written (`written`). For
//! stored files a job is made, which this process or another one then runs (`go`).

mod end;
mod go;
mod machine;
mod printed;
mod work;
mod written;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use clap::Args;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::making::Making;
use outrigger_active::node::is_served;
use outrigger_active::plan::{settle_program, submit_reporting};
use outrigger_active::through::keep_raw;
use outrigger_active::trust::Trust;
use outrigger_clock::Instant;
use outrigger_store::Store;
use outrigger_store::meta::jobs::JobId;

use self::end::{describe_making, stopped_making};
use self::go::{Means, detach, go_armed};
pub use self::go::{go, holder, spawn_runner};
use self::machine::Machine;
pub use self::work::WorkArgs;
use self::written::{follow, refuse_for_stream, through};
use super::Context;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::progress::Bar;

const EXAMPLES: &str = "\
Examples:
  outrigger run --in in.txt --out out.txt --records lines -- awk '{print $1*2}'
  outrigger run --in 'logs/**/*.log' --out 'errors/{stem}' -- sed -n /ERROR/p
  outrigger run --in big.csv --out big.sorted --splits 1 -- sort
  outrigger run --in 'logs/*' --out - --records lines -- sed -n /ERROR/p | sort | uniq -c
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
    if spec.prints() && (args.detach || context.json) {
        let option = if args.detach { "--detach" } else { "--json" };
        let why = format!("{option} leaves nobody to print results for: give `--out NAME`, or drop {option}");
        return Err(Failure::usage(why));
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
    let prints = spec.prints();
    let means = Means { slots: args.slots, groups: machine.groups(), trust: Trust::own(), prints };
    go_armed(context, &store, job, means, started, true)
}

/// Makes a job over stored files. A plug-in may search long for records, so a bar shows its
/// progress and a signal ends it. Once the job is made, a signal acts as for a running job.
fn make(context: &Context, store: &Arc<Store>, spec: &Spec, args: &RunArgs) -> Result<JobId, Failure> {
    let making = Arc::new(Making::signed_with(args.sign.clone()));
    let made: Arc<OnceLock<JobId>> = Arc::default();
    let stops = Arc::clone(&making);
    interrupt::arm_saying(store, stopped_making(store, &made, spec.prints()), move || stops.stop());
    let counters = Arc::clone(&making.counters);
    let has_plugin = matches!(spec.records, Records::Plugin(_));
    let bar =
        Bar::with(context.quiet || !has_plugin, move |elapsed| describe_making(&counters.view(), elapsed));
    let job = submit_reporting(store, spec, &args.inputs, &args.work.with, args.work.splits, &making);
    drop(bar);
    if making.is_stopped() {
        interrupt::wait_for_the_end();
    }
    let job = job?;
    let _ = made.set(job);
    Ok(job)
}
