//! The command line: all commands, and the function that runs one.
//!
//! A command's own arguments stand beside its code in `commands/`. `elsewhere.rs` and `suggest.rs`
//! answer words that are no command. `helper.rs` translates calls by mount(8). `shell.rs` makes
//! completions and the manual.

mod elsewhere;
mod groups;
mod helper;
mod shell;
mod suggest;

use clap::{Parser, Subcommand};

use crate::args::Globals;
use crate::commands::{self as c, Context};
use crate::exit::Outcome;
use crate::operation;

pub use elsewhere::{Refused, parse};
pub use helper::command_line;

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
    #[command(subcommand)]
    Key(c::key::KeyCommand),
    Stats(c::stats::StatsArgs),
    Status(c::status::StatusArgs),
    Check(c::check::CheckArgs),
    Gc(c::gc::GcArgs),
    Recompress(c::recompress::RecompressArgs),
    Rebalance(c::rebalance::RebalanceArgs),
    Localize(c::localize::LocalizeArgs),
    #[command(subcommand)]
    Bench(c::bench::BenchCommand),
    Similarity(c::similarity::SimilarityArgs),
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
    Completions(crate::command_line::shell::CompletionsArgs),
    Man(crate::command_line::shell::ManArgs),
}

/// Runs the command.
///
/// # Errors
/// With the message for the user.
pub fn run(cli: Cli, name: &str) -> Outcome {
    let Cli { globals, command } = cli;
    // `mount` begins the log itself: it has own log options, and may go on as another process.
    if !matches!(command, Command::Mount(_)) {
        operation::begin(&globals.log, name, globals.store.as_deref())?;
    }
    outrigger_active::scratch::sweep();
    let context = Context::new(globals);
    let outcome = dispatch(&context, command);
    context.let_go();
    outcome
}

fn dispatch(context: &Context, command: Command) -> Outcome {
    match command {
        Command::Init(args) => c::init::run(context, args),
        Command::Policy(args) => c::policy::run(context, args),
        Command::Profile(command) => c::profile::run(context, command),
        Command::Put(args) => c::put::run(context, args),
        Command::Get(args) => c::get::run(context, args),
        Command::Cat(args) => c::cat::run(context, args),
        Command::Ls(args) => c::ls::run(context, args),
        Command::Find(args) => c::find::run(context, args),
        Command::Versions(args) => c::versions::run(context, args),
        Command::Where(args) => c::whereabouts::run(context, args),
        Command::Diff(args) => c::diff::run(context, args),
        Command::Rm(args) => c::edit::rm(context, args),
        Command::Mv(args) => c::edit::mv(context, args),
        Command::Cp(args) => c::edit::cp(context, args),
        Command::Undo(args) => c::before::undo(context, &args),
        Command::Snapshot(args) => c::snapshot::run(context, args),
        Command::Keep(args) => c::keep::run(context, args),
        Command::Key(command) => c::key::run(context, command),
        Command::Stats(args) => c::stats::run(context, args),
        Command::Status(args) => c::status::run(context, &args),
        Command::Copy(args) => c::copy::run(context, args),
        Command::Check(args) => c::check::run(context, args),
        Command::Gc(args) => c::gc::run(context, args),
        Command::Recompress(args) => c::recompress::run(context, args),
        Command::Rebalance(args) => c::rebalance::run(context, args),
        Command::Localize(args) => c::localize::run(context, args),
        Command::Bench(args) => c::bench::run(context, args),
        Command::Similarity(args) => c::similarity::run(context, args),
        Command::Mount(args) => c::mount::run(context, args),
        Command::Unmount(args) => c::unmount::run(context, &args),
        Command::Export(args) => c::export::run(context, args),
        Command::Import(args) => c::import::run(context, args),
        Command::Recover(args) => c::recover::run(context, args),
        Command::Devices(args) => c::devices::run(context, args),
        Command::Calibrate(args) => c::calibrate::run(context, args),
        Command::Advise(args) => c::advise::run(context, args),
        Command::Run(args) => c::run::run(context, args),
        Command::Jobs(args) => c::job::jobs(context, args),
        Command::Job(command) => c::job::job(context, command),
        Command::Node(args) => c::node::run(context, args),
        Command::Rule(command) => c::rule::run(context, command),
        Command::Component(command) => c::component::run(context, command),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(context, args),
    }
}
