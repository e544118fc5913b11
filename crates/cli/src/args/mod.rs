//! Shared arguments: the options of all commands, and parsers of values, names and mount options.

mod config;
pub mod mount_options;
mod names;
pub mod values;

use std::path::PathBuf;

use clap::Args;

use crate::operation::LogFlags;

pub use config::{Hook, Keep, Profile, no_profile, profiles};
pub use mount_options::MountFlags;
pub use names::{Named, entry, expand, expand_one, expand_paths};
pub use values::{
    age, check_store, chunker, codec, fingerprint, oracle, parity, policy, profile, size, small_size, span,
    store_path, store_paths, threads,
};

/// Options that every command takes.
#[derive(Args, Clone)]
#[command(next_help_heading = "Options of every command")]
pub struct Globals {
    /// The store: its directory, or postgres://user@host:port/database?schema=NAME (the password
    /// comes from PGPASSWORD or ~/.pgpass)
    #[arg(short, long, env = "OUTRIGGER_STORE", global = true, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// The store comes from the command line, not from the environment.
    #[arg(skip)]
    pub is_store_given: bool,
    /// The file with the key of an encrypted store (`outrigger key --help` says what else is tried)
    #[arg(long, env = "OUTRIGGER_KEY_FILE", global = true, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// Worker threads [default: one per processor]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Print no progress and no summary; errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print a line for each file that is added (A), changed (C) or removed (R)
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    #[command(flatten)]
    pub log: LogFlags,
}
