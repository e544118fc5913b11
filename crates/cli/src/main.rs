//! `outrigger`: the command line. It parses the arguments, calls the store and reports the result.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]

mod args;
mod command_line;
mod commands;
mod exit;
mod exporter;
mod interrupt;
mod json;
mod log;
mod operation;
mod output;
mod progress;
mod tar;
mod when;

use clap::FromArgMatches;
use clap::parser::ValueSource;
use zeroize::Zeroizing;

fn main() {
    let given: Vec<_> = std::env::args_os().collect();
    if let Some(error) = outrigger_active::sandbox::net::begin(&given) {
        output::complain(&format!("cannot set up the program's network: {error}"));
        std::process::exit(exit::Exit::Failed as i32);
    }
    raise_file_limit();
    refuse_core_dumps();
    outrigger_store::wait::on_long_wait(output::complain);
    outrigger_store::keys::secrets::ask_by(ask_passphrase);
    outrigger_store::keys::known::begin();
    let json = given.iter().any(|word| word == "--json");
    let matches = match command_line::parse(command_line::command_line(given)) {
        Ok(matches) => matches,
        Err(command_line::Refused::Parser(error)) if !json || !error.use_stderr() => error.exit(),
        Err(refused) => {
            let failure = refused.into_failure();
            output::fail(&failure, json);
            std::process::exit(failure.exit as i32);
        }
    };
    let mut cli = command_line::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.globals.is_store_given = matches.value_source("store") == Some(ValueSource::CommandLine);
    let exit = match command_line::run(cli, &name(&matches)) {
        Ok(exit) => {
            operation::ended(exit, None);
            exit
        }
        Err(failure) => {
            operation::ended(failure.exit, Some(&failure.message));
            if !operation::is_on_stderr() {
                output::fail(&failure, json);
            }
            failure.exit
        }
    };
    // A device's driver may still be running.
    outrigger_offload::end_process(exit as u8)
}

/// The command's name, with that of its part: `gc`, `node list`.
fn name(matches: &clap::ArgMatches) -> String {
    let Some((name, rest)) = matches.subcommand() else { return String::new() };
    match rest.subcommand_name() {
        Some(part) => format!("{name} {part}"),
        None => name.to_owned(),
    }
}

/// Asks for a passphrase on the terminal, which does not show it; `None` without a terminal.
fn ask_passphrase(question: &str) -> outrigger_store::Result<Option<Zeroizing<String>>> {
    Ok(rpassword::prompt_password(question).ok().filter(|words| !words.is_empty()).map(Zeroizing::new))
}

/// A dump of this process's memory would have keys in it. The kernel takes a limit of 1 to mean no dump
/// also where dumps go to a program, which a limit of 0 does not (core(5)).
fn refuse_core_dumps() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Core).maximum;
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum });
}

/// Walks keep one open directory per level, and packs stay open. The soft limit of 1024 is meant
/// for `select`.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A refusal leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
