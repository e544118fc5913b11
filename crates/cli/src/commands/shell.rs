//! `completions`, `man`: what an installed program brings along.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Context;
use crate::args::Cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::print_text;

/// Print a shell's completion script
#[derive(Args)]
#[command(
    after_help = "Examples:\n  outrigger completions bash > ~/.local/share/bash-completion/completions/outrigger\n  \
outrigger completions zsh > ~/.zfunc/_outrigger"
)]
pub struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// Write man pages into a directory, one a command
#[derive(Args)]
#[command(after_help = "Examples:\n  outrigger man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The directory; it is made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn completions(args: CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "outrigger", &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub fn man(context: &Context, args: ManArgs) -> Outcome {
    let at =
        |path: &Path, error: &std::io::Error| Failure::io(format!("cannot write {}", path.display()), error);
    std::fs::create_dir_all(&args.dir).map_err(|error| at(&args.dir, &error))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, "outrigger", &mut pages);
    for (name, page) in &pages {
        let path = args.dir.join(format!("{name}.1"));
        let written = std::fs::File::create(&path).and_then(|mut file| file.write_all(page));
        written.map_err(|error| at(&path, &error))?;
    }
    if !context.quiet {
        print_text(&format!("wrote {} man pages into {}\n", pages.len(), args.dir.display()))?;
    }
    Ok(Exit::Done)
}

fn collect(command: &clap::Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) {
    let mut page = Vec::new();
    // Writing into memory cannot fail.
    let renamed = command.clone().name(name.to_string()).display_name(name.to_string());
    if clap_mangen::Man::new(renamed).render(&mut page).is_ok() {
        pages.push((name.to_string(), page));
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        collect(below, &format!("{name}-{}", below.get_name()), pages);
    }
}
