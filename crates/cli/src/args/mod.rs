//! What can be written on the command line. Each command's own arguments stand beside what it does, in `commands/`.

mod config;
mod elsewhere;
mod groups;
mod helper;
pub mod mount_options;
mod names;
mod suggest;
pub mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands as c;
use crate::operation::LogFlags;

pub use config::{Hook, Keep, Profile, profiles};
pub use elsewhere::{Refused, parse};
pub use groups::command;
pub use helper::command_line;
pub use mount_options::MountFlags;
pub use names::{Named, expand, expand_one, expand_paths};
pub use values::{
    age, check_store, chunker, codec, fingerprint, oracle, policy, profile, size, small_size, store_path,
    store_paths, threads,
};

const EXAMPLES: &str = "\
Examples:
  export OUTRIGGER_STORE=/backup/store
  outrigger init
  outrigger put ~/src --to src --tag daily
  outrigger get src ./restored
  outrigger ls -l src
  outrigger cat --at yesterday src/notes.txt
  outrigger mount --read-only /mnt

Exit codes: 0 done, 1 failed, 2 usage, 3 damaged data found, 4 done in part (what was skipped is named), 130 interrupted.";

/// Keeps every byte once: versioned, deduplicated, compressed.
#[derive(Parser)]
#[command(name = "outrigger", version, after_help = EXAMPLES, max_term_width = 110, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command understands.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options of every command")]
pub struct Globals {
    /// The store: its directory, or postgres://user@host:port/database?schema=NAME (the password comes from PGPASSWORD or ~/.pgpass)
    #[arg(short, long, env = "OUTRIGGER_STORE", global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print facts as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// Worker threads [default: one a processor]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// No progress and no summary; errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// A line for each file that is added (A), changed (C) or removed (R)
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    #[command(flatten)]
    pub log: LogFlags,
}

#[derive(Subcommand)]
pub enum Command {
    Init(c::init::InitArgs),
    #[command(subcommand)]
    Policy(c::policy::PolicyCommand),
    Put(c::put::PutArgs),
    Get(c::get::GetArgs),
    Cat(c::cat::CatArgs),
    Ls(c::ls::LsArgs),
    Find(c::find::FindArgs),
    Versions(c::versions::VersionsArgs),
    Where(c::whereabouts::WhereArgs),
    Diff(c::diff::DiffArgs),
    Rm(c::edit::RmArgs),
    Mv(c::edit::MvArgs),
    Cp(c::edit::CpArgs),
    Undo(c::before::UndoArgs),
    #[command(subcommand)]
    Snapshot(c::snapshot::SnapshotCommand),
    Keep(c::keep::KeepArgs),
    Stats(c::stats::StatsArgs),
    Status(c::status::StatusArgs),
    Check(c::check::CheckArgs),
    Gc(c::gc::GcArgs),
    Recompress(c::recompress::RecompressArgs),
    Rebalance(c::rebalance::RebalanceArgs),
    Localize(c::localize::LocalizeArgs),
    #[command(subcommand)]
    Bench(c::bench::BenchCommand),
    Mount(c::mount::MountArgs),
    Unmount(c::unmount::UnmountArgs),
    Export(c::export::ExportArgs),
    Import(c::import::ImportArgs),
    Copy(c::copy::CopyArgs),
    Recover(c::recover::RecoverArgs),
    Devices(c::devices::DevicesArgs),
    Calibrate(c::calibrate::CalibrateArgs),
    Advise(c::advise::AdviseArgs),
    Run(c::run::RunArgs),
    Jobs(c::job::JobsArgs),
    #[command(subcommand)]
    Job(c::job::JobCommand),
    Node(c::node::NodeArgs),
    #[command(subcommand)]
    Rule(c::rule::RuleCommand),
    #[command(subcommand)]
    Component(c::component::ComponentCommand),
    #[command(subcommand)]
    Profile(c::profile::ProfileCommand),
    Completions(c::shell::CompletionsArgs),
    Man(c::shell::ManArgs),
}
