//! `completions`, `man`: the files that go with an installed program.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;

use super::groups::command;
use crate::commands::Context;
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

/// Write man pages into a directory, one per command
#[derive(Args)]
#[command(after_help = "Examples:\n  outrigger man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn completions(args: CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "outrigger", &mut script);
    print_text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub fn man(context: &Context, args: ManArgs) -> Outcome {
    let at =
        |path: &Path, error: &std::io::Error| Failure::io(format!("cannot write {}", path.display()), error);
    std::fs::create_dir_all(&args.dir).map_err(|error| at(&args.dir, &error))?;
    let mut command = command().disable_help_subcommand(true);
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
    // Writing into memory cannot fail.
    if let Ok(page) = page(command, name) {
        pages.push((name.to_string(), page));
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        collect(below, &format!("{name}-{}", below.get_name()), pages);
    }
}

/// A command's page. The examples and the tables after the help go in verbatim; tables come under
/// NOTES.
fn page(command: &clap::Command, name: &str) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // The usage line of the help, because it shows which arguments may be repeated.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_string();
    let renamed = command.clone().name(name.to_string()).display_name(name.to_string()).override_usage(usage);
    let man = clap_mangen::Man::new(renamed);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, notes) = match after.strip_prefix("Examples:\n") {
        Some(after) => after.split_once("\n\n").unwrap_or((after, "")),
        None => ("", after.as_str()),
    };
    verbatim("EXAMPLES", examples, &mut page)?;
    verbatim("NOTES", notes, &mut page).and_then(|()| {
        if command.get_version().is_some() { man.render_version_section(&mut page) } else { Ok(()) }
    })?;
    Ok(page)
}

/// A section whose lines are kept, in a monospaced font.
fn verbatim(title: &str, text: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    writeln!(page, ".SH {title}\n.nf\n.ft CW")?;
    for line in text.lines() {
        let line = line.strip_prefix("  ").unwrap_or(line);
        // In roff, a line that begins with a dot or an apostrophe is a request, and a bare hyphen
        // may be typeset as another sign.
        writeln!(page, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq"))?;
    }
    writeln!(page, ".ft R\n.fi")
}
