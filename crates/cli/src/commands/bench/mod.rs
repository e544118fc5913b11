//! `bench`: measures this machine, without a store.

mod compress;
mod data;
mod primitives;

pub use data::of_paths;

use clap::Subcommand;

use super::Context;
use crate::exit::Outcome;

const EXAMPLES: &str = "\
Examples:
  outrigger bench compress
  outrigger bench compress /usr/lib --size 256M --json
  outrigger bench hash && outrigger bench ingest --tasks 64K,1M,16M";

/// Measure what this machine does, without a store
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum BenchCommand {
    Compress(Box<compress::CompressArgs>),
    /// Hash chunks: each function that names chunks, and StoreGPU's direct hashing
    Hash(primitives::PrimitiveArgs),
    /// Find the boundaries of chunks by their content
    Scan(primitives::PrimitiveArgs),
    /// Hash every window of a sliding window, as StoreGPU does
    Windows(primitives::PrimitiveArgs),
    /// Cut, hash and look up in one pass, as a store's writers do
    Ingest(primitives::PrimitiveArgs),
}

pub fn run(context: &Context, command: BenchCommand) -> Outcome {
    match command {
        BenchCommand::Compress(args) => compress::run(context, &args),
        BenchCommand::Hash(args) => primitives::run(context, &args, primitives::HASH),
        BenchCommand::Scan(args) => primitives::run(context, &args, primitives::SCAN),
        BenchCommand::Windows(args) => primitives::run(context, &args, primitives::WINDOWS),
        BenchCommand::Ingest(args) => primitives::run(context, &args, primitives::INGEST),
    }
}
