//! `bench`: measures this machine, without a store.

mod compress;
mod data;

use clap::Subcommand;

use super::Context;
use crate::exit::Outcome;

/// Measure what this machine does, without a store
#[derive(Subcommand)]
pub enum BenchCommand {
    Compress(compress::CompressArgs),
}

pub fn run(context: &Context, command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Compress(args) => compress::run(context, &args),
    }
}
