//! `bench`: measures this machine, without a store.

mod compress;
mod data;

use clap::Subcommand;

use super::Context;
use crate::exit::Outcome;

const EXAMPLES: &str = "\
Examples:
  outrigger bench compress
  outrigger bench compress /usr/lib --size 256M --json";

/// Measure what this machine does, without a store
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum BenchCommand {
    Compress(compress::CompressArgs),
}

pub fn run(context: &Context, command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Compress(args) => compress::run(context, &args),
    }
}
