//! The overview that `outrigger --help` prints: the commands, grouped by what they are for.

use clap::{Command, CommandFactory};

use super::Cli;

/// The groups, and the commands of each in the order of the overview.
const GROUPS: [(&str, &[&str]); 9] = [
    ("Store", &["init", "key", "status", "stats", "policy", "profile"]),
    ("Files", &["put", "backup", "get", "ls", "find", "cat", "diff", "rm", "mv", "cp", "export", "import"]),
    ("Snapshots and versions", &["snapshot", "keep", "versions", "undo"]),
    ("Mount", &["mount", "unmount"]),
    ("Maintenance", &["check", "gc", "recover", "copy", "recompress"]),
    ("Placement", &["where", "localize", "rebalance"]),
    ("Programs", &["run", "jobs", "job", "node", "rule", "component"]),
    ("Devices", &["devices", "calibrate", "advise", "bench", "similarity"]),
    ("Help", &["help", "completions", "man"]),
];

/// A profile's run, or a `put` with a tag: `elsewhere.rs` makes one of them of it.
pub const BACKUP: &str = "backup";
const BACKUP_ABOUT: &str = "Run a profile, or put and take a tagged snapshot";
const BACKUP_HELP: &str = "\
Examples:
  outrigger backup home             runs the profile `home` of the configuration file
  outrigger backup home -n          show what it would put and delete; no hooks run
  outrigger backup ~/src            as `outrigger put ~/src --tag backup`
  outrigger backup ~/src --tag day  with another tag

A profile wins over a file of its name: write ./NAME for the file. `outrigger profile --help`
explains profiles, and `outrigger put --help` the other options. Those of every command work, too:
-s, --store DIR; -q, --quiet; -v, --verbose; --json.";

/// A parser that has nothing but the help of `backup`.
pub fn backup() -> Command {
    let backup = Command::new(BACKUP).about(BACKUP_ABOUT).after_help(BACKUP_HELP);
    let usage = "outrigger backup PROFILE [-n]\n       outrigger backup [OPTIONS OF PUT] <SRC>...";
    Command::new("outrigger").subcommand(backup.override_usage(usage))
}

/// The command line's parser.
pub fn command() -> Command {
    let command = Cli::command();
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (heading, names) in GROUPS {
        text += &format!("\n{}\n", styled(heading));
        for name in names {
            let about = command.find_subcommand(name).and_then(|found| found.get_about());
            let about = match *name {
                BACKUP => BACKUP_ABOUT.to_string(),
                _ => about.map_or_else(|| "Print the help of a command".to_string(), ToString::to_string),
            };
            text += &format!("  {name:12} {about}\n");
        }
    }
    text += &format!("\n{}\n{{options}}{{after-help}}", styled("Options of every command"));
    command.help_template(text)
}

/// A heading in clap's style. Clap strips the escapes when the output is not a terminal.
fn styled(heading: &str) -> String {
    format!("\u{1b}[1m\u{1b}[4m{heading}:\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.sort_unstable();
        let command = Cli::command();
        let mut all: Vec<_> =
            command.get_subcommands().map(Command::get_name).chain(["help", BACKUP]).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_overview_fits_a_terminal() {
        let help = command().term_width(80).render_help().to_string();
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
        }
        let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, [""; 0]);
    }

    #[test]
    fn options_of_a_command_come_before_those_of_all() {
        for (name, own) in [("put", "--to"), ("get", "--overwrite"), ("mount", "--read-only")] {
            let mut command = command();
            command.build();
            let help = command.find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.find(own) < help.find("--store"), "{help}");
            assert!(help.contains("\nOptions of every command:\n"), "{help}");
        }
    }

    #[test]
    fn options_for_experiments_are_out_of_sight() {
        let mut command = command();
        command.build();
        for (name, option) in [("put", "--oracle"), ("init", "--experiment"), ("get", "--table-cache")] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(!help.contains(&format!("{option} ")) && !help.contains("xperiment"), "{name}: {help}");
        }
    }
}
