//! `outrigger`: the command line. It parses, calls the store, and says what happened; nothing more.

mod args;
mod commands;
mod exit;
mod exporter;
mod interrupt;
mod log;
mod output;
mod progress;
mod tar;
mod when;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let given: Vec<_> = std::env::args_os().collect();
    if let Some(error) = outrigger_active::sandbox::net::begin(&given) {
        output::complain(&format!("the program's network cannot be made: {error}"));
        return ExitCode::from(exit::Exit::Failed as u8);
    }
    raise_file_limit();
    outrigger_store::wait::on_long_wait(output::complain);
    let cli = args::Cli::parse_from(args::command_line(given));
    let exit = match commands::run(cli) {
        Ok(exit) => exit,
        Err(failure) => {
            if !failure.message.is_empty() {
                output::complain(&failure.message);
            }
            failure.exit
        }
    };
    ExitCode::from(exit as u8)
}

/// Trees are walked with one open directory a level, and packs are kept open: the soft limit of 1024 is meant for `select`.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
