//! Commands of other backup programs, as their users type them here first.
//!
//! A command that means the same runs as ours. One that means nearly the same would surprise its
//! user. It does not run; instead the user gets the right command line, with the given arguments in
//! it.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Error};

use super::groups::{BACKUP, backup, command};
use super::suggest::suggest;
use crate::args::{no_profile, profiles};
use crate::exit::Failure;
use crate::output::quoted;

/// A backup is something to go back to: others take a snapshot with each.
const BACKUP_TAG: &str = "--tag=backup";

/// Commands of others that run as one of ours.
const SAME: [(&str, &[&str]); 7] = [
    ("backup", &["put", BACKUP_TAG]),
    ("snapshots", &["snapshot", "list"]),
    ("prune", &["gc"]),
    ("compact", &["gc"]),
    ("verify", &["check", "--read-data"]),
    ("umount", &["unmount"]),
    ("info", &["stats"]),
];

/// Commands that are not run: the user gets a command line to give instead.
const EXPLAINED: [&str; 11] = [
    "restore", "extract", "create", "forget", "dump", "list", "delete", "unlock", "undelete", "remove",
    "purge",
];

/// Options of others for the store. A `-r` after a command may have another meaning.
const REPOSITORY: [&str; 3] = ["-r", "--repo", "--repository"];

/// Options that people give from habit: of which of our commands, and what to know instead.
const HABITS: [(&str, &[&str], &str); 3] = [
    ("rm", &["-f", "--force"], "it never asks, and `outrigger undo` takes it back; leave that out"),
    (
        "rm",
        &["-n", "--dry-run"],
        "it takes a snapshot first; `outrigger ls -R PATH` lists what it would remove, and `outrigger undo` takes it back",
    ),
    ("ls", &["-a", "-A", "--all"], "it always lists names that begin with a dot; leave that out"),
];

/// Parses a command line, commands of other programs included.
///
/// # Errors
/// Those of the parser, as they are printed; or the command line that the user should have given.
pub fn parse(line: Vec<OsString>) -> Result<ArgMatches, Refused> {
    let error = match command().try_get_matches_from(&line) {
        Ok(matches) => return Ok(matches),
        Err(error) if error.kind() == ErrorKind::InvalidSubcommand => error,
        Err(error) => return Err(refused(error)),
    };
    if line.windows(2).any(|pair| pair[0] == "help" && pair[1] == BACKUP) {
        return help_of_backup();
    }
    let Some((before, word, rest)) = split(&line) else { return Err(error.into()) };
    let ours = match SAME.iter().find(|(theirs, _)| word == *theirs) {
        Some(_) if word == BACKUP && Words::of(rest).has(&["-h", "--help"]) => return help_of_backup(),
        Some(_) if word == BACKUP && names_profile(rest)? => &["profile", "run"][..],
        Some(_) if word == BACKUP && Words::of(rest).has(&["--tag"]) => &["put"],
        Some(_) if word == "prune" && Words::of(rest).has_rules() => {
            return Err(Refused::Explained(explain(&before[1..], word, rest)));
        }
        Some((_, ours)) => *ours,
        None if word == "restore" && Words::of(rest).option(&["--target", "-t"]).is_none() => &["get"],
        None if EXPLAINED.iter().any(|theirs| word == *theirs) => {
            return Err(Refused::Explained(explain(&before[1..], word, rest)));
        }
        None => {
            return Err(suggest(
                error,
                &word.to_string_lossy(),
                SAME.iter().map(|(word, _)| *word).chain(EXPLAINED),
            )
            .into());
        }
    };
    let words = before.iter().cloned().chain(ours.iter().map(OsString::from)).chain(rest.iter().cloned());
    command().try_get_matches_from(words).map_err(refused)
}

/// The parser's error, or what to know instead.
fn refused(error: Error) -> Refused {
    habit(&error).map_or_else(|| error.into(), Refused::Explained)
}

/// What to know about an option that other programs have.
fn habit(error: &Error) -> Option<Failure> {
    let given = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) if error.kind() == ErrorKind::UnknownArgument => given,
        _ => return None,
    };
    let text = error.to_string();
    let usage = text.lines().find_map(|line| line.trim().strip_prefix("Usage: outrigger "))?;
    let command = usage.split(' ').next().unwrap_or_default();
    let is_top = !command.starts_with(|first: char| first.is_ascii_lowercase());
    if REPOSITORY.contains(&given.as_str()) && (given != "-r" || is_top) {
        return Some(Failure::usage(format!(
            "{given} is another program's option; give the store with -s DIR, or set OUTRIGGER_STORE"
        )));
    }
    let mut known =
        HABITS.iter().filter(|(ours, options, _)| *ours == command && options.contains(&given.as_str()));
    known.next().map(|(ours, _, say)| Failure::usage(format!("`{ours}` has no {given}: {say}")))
}

/// Why a command line was not parsed.
pub enum Refused {
    /// The parser says why; or it has help to print.
    Parser(Box<Error>),
    /// It is a command of another program.
    Explained(Failure),
}

impl Refused {
    /// The reason for a program: one sentence, and what to do.
    pub fn into_failure(self) -> Failure {
        let error = match self {
            Self::Explained(failure) => return failure,
            Self::Parser(error) => error.to_string(),
        };
        let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
        let message = lines.next().unwrap_or_default().trim_start_matches("error: ").trim_end_matches(':');
        let rest: Vec<&str> = lines.collect();
        let tip = rest.iter().find_map(|line| line.strip_prefix("tip: "));
        // A user who gives an unknown option hardly means it as a value.
        let tip = tip.filter(|tip| !tip.starts_with("to pass")).map(str::to_string);
        let hint = tip.unwrap_or_else(|| {
            // The parser lists missing arguments in lines of their own.
            let named =
                rest.iter().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For "));
            let usage = rest.iter().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("outrigger");
            let is_command = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
            let command: Vec<&str> = usage.split(' ').take_while(is_command).collect();
            let help = format!("`{} --help` says what there is", command.join(" "));
            named.copied().chain([help.as_str()]).collect::<Vec<_>>().join(" ")
        });
        Failure::usage(format!("{message}; {hint}"))
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Explained(failure)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Parser(Box::new(error))
    }
}

/// True if the only word that is no option is a profile of the configuration file. It is an error
/// if it is neither that nor a file, and there are profiles: then a profile was meant.
fn names_profile(rest: &[OsString]) -> Result<bool, Failure> {
    match &Words::of(&without_globals(rest)).plain[..] {
        [name] if !name.contains('/') && name != "-" => {
            let profiles = profiles()?;
            let is_file = || std::fs::symlink_metadata(name).is_ok();
            if !profiles.is_empty() && !profiles.contains_key(name) && !is_file() {
                return Err(no_profile(name, &profiles));
            }
            Ok(profiles.contains_key(name))
        }
        _ => Ok(false),
    }
}

fn help_of_backup() -> Result<ArgMatches, Refused> {
    Ok(backup().try_get_matches_from(["outrigger", BACKUP, "--help"])?)
}

/// The words without our options of every command that have a value.
fn without_globals(rest: &[OsString]) -> Vec<OsString> {
    const GLOBALS: [&str; 6] = ["-s", "--store", "--key-file", "--threads", "--log", "--log-level"];
    let mut words = rest.iter();
    let mut own = Vec::new();
    while let Some(word) = words.next() {
        match GLOBALS.iter().any(|global| word == global) {
            true => drop(words.next()),
            false => own.push(word.clone()),
        }
    }
    own
}

/// The words before an unknown command, the command, and the words after it.
fn split(line: &[OsString]) -> Option<(&[OsString], &OsString, &[OsString])> {
    let matches = command().allow_external_subcommands(true).try_get_matches_from(line).ok()?;
    let (_, rest) = matches.subcommand()?;
    let rest = rest.try_get_many::<OsString>("").ok()?.map_or(0, Iterator::count);
    let at = line.len().checked_sub(rest + 1)?;
    Some((&line[..at], &line[at], &line[at + 1..]))
}

/// Options of other programs that have a value.
const VALUED: [&str; 30] = [
    "--target",
    "-t",
    "--include",
    "-i",
    "--exclude",
    "-e",
    "--path",
    "--host",
    "-H",
    "--tag",
    "--keep-last",
    "-l",
    "--keep-hourly",
    "--keep-daily",
    "-d",
    "--keep-weekly",
    "-w",
    "--keep-monthly",
    "-m",
    "--keep-yearly",
    "-y",
    "--keep-tag",
    "--keep-within",
    "--group-by",
    "-g",
    "-a",
    "--prefix",
    "--compression",
    "-C",
    "-P",
];

/// Arguments of another program.
struct Words {
    plain: Vec<String>,
    options: Vec<(String, Option<String>)>,
}

impl Words {
    fn of(rest: &[OsString]) -> Self {
        let (mut plain, mut options) = (Vec::new(), Vec::new());
        let mut words = rest.iter().map(|word| word.to_string_lossy().into_owned());
        while let Some(word) = words.next() {
            if !word.starts_with('-') || word == "-" {
                plain.push(word);
            } else if let Some((name, value)) = word.split_once('=') {
                options.push((name.to_string(), Some(value.to_string())));
            } else {
                let value = if VALUED.contains(&word.as_str()) { words.next() } else { None };
                options.push((word, value));
            }
        }
        Self { plain, options }
    }

    fn option(&self, names: &[&str]) -> Option<&str> {
        let found = self.options.iter().find(|(name, _)| names.contains(&name.as_str()));
        found.map(|(_, value)| value.as_deref().unwrap_or_default())
    }

    /// The values given under `names`, each after the name of our option.
    fn renamed<'a>(&'a self, names: [&'a str; 2], ours: &'a str) -> impl Iterator<Item = &'a str> {
        let of = self.options.iter().filter(move |(name, _)| names.contains(&name.as_str()));
        of.flat_map(move |(_, value)| [ours, value.as_deref().unwrap_or_default()])
    }

    /// True with an option that says which snapshots stay.
    fn has_rules(&self) -> bool {
        let short = ["-H", "-d", "-w", "-m", "-y"];
        self.options.iter().any(|(name, _)| name.starts_with("--keep-") || short.contains(&name.as_str()))
    }

    fn has(&self, names: &[&str]) -> bool {
        self.option(names).is_some()
    }
}

/// The command lines to give instead.
fn explain(globals: &[OsString], word: &OsStr, rest: &[OsString]) -> Failure {
    let word = word.to_string_lossy();
    let given = Words::of(rest);
    let line = |words: &[&str]| {
        let globals = globals.iter().map(|word| word.to_string_lossy());
        let words = words.iter().map(|word| (*word).into());
        let words: Vec<String> = globals.chain(words).map(|word| quoted(&word)).collect();
        format!("`outrigger {}`", words.join(" "))
    };
    let plain: Vec<&str> = given.plain.iter().map(String::as_str).collect();
    let with = |before: &[&'static str], after: &[&str]| -> String { line(&[before, after].concat()) };
    let say = match word.as_ref() {
        "restore" => line(&restore(&given)) + latest(plain.first().is_none_or(|one| is_latest(one))),
        "extract" => {
            let (archive, paths) = plain.split_first().map_or(("WHEN", &[][..]), |(one, more)| (*one, more));
            let paths = if paths.is_empty() { &["/"] } else { paths };
            line(&[&["get", "--at", archive_name(archive)], paths, &["."]].concat())
        }
        "create" => {
            let (archive, paths) = plain.split_first().map_or(("", &[][..]), |(one, more)| (*one, more));
            match archive.split_once("::") {
                Some((_, name)) => {
                    format!("{}, then {}", with(&["put"], paths), line(&["snapshot", "create", name]))
                }
                None => format!("{}, or {}", with(&["put"], &plain), with(&["snapshot", "create"], &plain)),
            }
        }
        "forget" | "prune" => forget(&given, &line),
        "dump" => match plain[..] {
            [snapshot, file] if is_latest(snapshot) => line(&["cat", "--at", "TAG", file]) + latest(true),
            [snapshot, file] => line(&["cat", "--at", snapshot, file]),
            _ => line(&["cat", "--at", "WHEN", "FILE"]),
        },
        "list" => format!("{} for files, or {}", with(&["ls"], &plain), line(&["snapshot", "list"])),
        "delete" => {
            let names: Vec<&str> = plain.iter().copied().map(archive_name).collect();
            let names = if names.is_empty() { vec!["NAME"] } else { names };
            format!(
                "{} for a snapshot, {} for files",
                with(&["snapshot", "delete"], &names),
                with(&["rm"], &names)
            )
        }
        "undelete" => format!(
            "{} for the snapshots that have it, then {}",
            with(&["find"], if plain.is_empty() { &["NAME"] } else { &plain }),
            line(&["get", "--at", "SNAPSHOT", "PATH", "DEST"])
        ),
        "remove" => with(&["rm"], if plain.is_empty() { &["PATH"] } else { &plain }),
        "purge" => format!(
            "{} to delete old snapshots by rules, then {} for the space",
            line(&["keep", "--daily", "7"]),
            line(&["gc"])
        ),
        _ => {
            return Failure::usage(format!(
                "no unlock is needed: locks end with their process; {} shows the sessions. {} keeps an encrypted store's key in the kernel",
                line(&["status"]),
                line(&["key", "unlock"])
            ));
        }
    };
    Failure::usage(format!("`{word}` is another program's command; give {say}"))
}

/// The archive of `REPOSITORY::ARCHIVE`.
fn archive_name(text: &str) -> &str {
    text.split_once("::").map_or(text, |(_, name)| name)
}

/// True for the word of other programs for the newest snapshot, alone or before a path.
fn is_latest(snapshot: &str) -> bool {
    snapshot == "latest" || snapshot.starts_with("latest:")
}

/// Which snapshot that is here. The present tree is none: it lacks what was removed by mistake.
fn latest(is_asked: bool) -> &'static str {
    if is_asked {
        ", where TAG is that of your backups, or a name from `outrigger snapshot list`"
    } else {
        ""
    }
}

fn restore(given: &Words) -> Vec<&str> {
    let snapshot = given.plain.first().map_or("latest", String::as_str);
    let (snapshot, path) = snapshot.split_once(':').unwrap_or((snapshot, "/"));
    let mut words = vec!["get", "--at", if is_latest(snapshot) { "TAG" } else { snapshot }];
    for (names, ours) in [(["--include", "-i"], "--include"), (["--exclude", "-e"], "--exclude")] {
        words.extend(given.renamed(names, ours));
    }
    words.extend([path, given.option(&["--target", "-t"]).unwrap_or("DEST")]);
    words
}

/// `forget` removes snapshots by name or by rules; here these are two commands.
fn forget(given: &Words, line: &dyn Fn(&[&str]) -> String) -> String {
    const RULES: [([&str; 2], &str); 8] = [
        (["--keep-last", "-l"], "--last"),
        (["--keep-hourly", "-H"], "--hourly"),
        (["--keep-daily", "-d"], "--daily"),
        (["--keep-weekly", "-w"], "--weekly"),
        (["--keep-monthly", "-m"], "--monthly"),
        (["--keep-yearly", "-y"], "--yearly"),
        (["--keep-tag", ""], "--tag"),
        (["--tag", ""], "--of"),
    ];
    let mut words = vec!["keep"];
    for (names, ours) in RULES {
        words.extend(given.renamed(names, ours));
    }
    let has_rules = words.len() > 1;
    if given.has(&["-n", "--dry-run"]) {
        words.push("-n");
    }
    let delete: Vec<&str> =
        ["snapshot", "delete"].into_iter().chain(given.plain.iter().map(String::as_str)).collect();
    let mut say = match (has_rules, given.plain.is_empty()) {
        (false, false) => line(&delete),
        (true, _) => line(&words),
        (false, true) => format!(
            "{} for rules, or {}",
            line(&["keep", "--daily", "7"]),
            line(&["snapshot", "delete", "NAME"])
        ),
    };
    if given.has(&["--prune"]) {
        say += &format!(", then {} for the space", line(&["gc"]));
    }
    say
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &str) -> Vec<OsString> {
        words.split(' ').map(OsString::from).collect()
    }

    fn explained(words: &str) -> String {
        match parse(line(words)) {
            Err(Refused::Explained(failure)) => failure.message,
            Err(Refused::Parser(error)) => error.to_string(),
            Ok(_) => String::new(),
        }
    }

    #[test]
    fn words_of_others_get_the_right_line() {
        for (theirs, ours) in [
            ("-s store restore abc --target /out", "`outrigger -s store get --at abc / /out`"),
            (
                "restore latest:home/me --target=/out -i *.txt",
                "`outrigger get --at TAG --include '*.txt' home/me /out`, where TAG is that of your backups",
            ),
            ("extract /r::monday home", "`outrigger get --at monday home .`"),
            ("create /r::monday ~/a b", "`outrigger put ~/a b`, then `outrigger snapshot create monday`"),
            (
                "forget --keep-daily 7 --keep-last=5 --prune -n",
                "`outrigger keep --last 5 --daily 7 -n`, then `outrigger gc`",
            ),
            ("forget one two", "`outrigger snapshot delete one two`"),
            ("restore --target out", "`outrigger get --at TAG / out`"),
            ("dump latest a", "`outrigger cat --at TAG a`"),
            ("prune --keep-daily 7 -n", "give `outrigger keep --daily 7 -n`"),
            ("-r /repo snapshots", "give the store with -s"),
            ("put a --repo=/repo", "give the store with -s"),
            ("unlock", "`outrigger status`"),
            ("undelete a", "`outrigger find a` for the snapshots that have it, then `outrigger get --at"),
            ("remove a b", "give `outrigger rm a b`"),
            ("purge", "`outrigger keep --daily 7` to delete old snapshots by rules, then `outrigger gc`"),
            ("rm -rf a", "`rm` has no -f: it never asks"),
            ("rm -n a", "`outrigger ls -R PATH` lists what it would remove"),
            ("ls -a", "names that begin with a dot"),
        ] {
            let said = explained(&format!("outrigger {theirs}"));
            assert!(said.contains(ours), "{theirs}: {said}");
        }
    }

    #[test]
    fn words_that_mean_the_same_are_ours() {
        for (theirs, ours) in [
            ("-s x backup a --to b", "-s x put --tag=backup a --to b"),
            ("backup a --tag b", "put a --tag b"),
            ("backup -n a", "put --tag=backup -n a"),
            ("restore a out", "get a out"),
            ("snapshots --tag t", "snapshot list --tag t"),
            ("-s snapshots prune -n", "-s snapshots gc -n"),
            ("verify --json", "check --read-data --json"),
            ("umount /mnt", "unmount /mnt"),
        ] {
            let parsed = |words: &str| parse(line(&format!("outrigger {words}"))).ok();
            assert_eq!(parsed(theirs).expect(theirs), parsed(ours).unwrap(), "{theirs}");
        }
    }

    #[test]
    fn suggestions_do_not_mislead() {
        for (wrong, meant) in [
            ("snapshto", "'snapshot'"),
            ("bakup", "'backup'"),
            ("restor", "'restore'"),
            ("forgt", "'forget'"),
            ("unmuont", "'unmount'"),
            ("statu", "'status'"),
            ("lst", "'ls'"),
        ] {
            let said = explained(&format!("outrigger {wrong}"));
            assert!(said.contains(meant), "{wrong}: {said}");
        }
        assert!(!explained("outrigger frobnicate").contains("similar"));
    }
}
