//! Repositories of Borg 1.
//!
//! Archives of Borg 1.2 have no extended attributes and access control lists, and times in seconds;
//! its lists have microseconds. A version that can write pax archives is told to.

use std::ffi::OsString;
use std::process::Command;

use serde::Deserialize;

use super::child::output;
use super::tool::{Node, NodeKind, Original, Tool, file_time, parse_time, unreadable};
use crate::exit::Failure;

/// A repository of Borg; its place is empty if Borg knows it from the environment.
pub struct Borg {
    pub repository: OsString,
}

#[derive(Deserialize)]
struct Contents {
    archives: Vec<Archive>,
    repository: Repository,
}

#[derive(Deserialize)]
struct Repository {
    id: String,
}

#[derive(Deserialize)]
struct Archive {
    id: String,
    name: String,
    start: String,
    #[serde(default)]
    hostname: String,
}

#[derive(Deserialize)]
struct Line {
    path: String,
    mode: String,
    size: u64,
    mtime: String,
    #[serde(default = "yes")]
    healthy: bool,
}

fn yes() -> bool {
    true
}

impl Borg {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("borg");
        // Borg prints local times without an offset.
        command.env("TZ", "UTC").args(words);
        command
    }

    fn archive(&self, original: &Original) -> OsString {
        let mut place = self.repository.clone();
        place.push("::");
        place.push(&original.name);
        place
    }
}

impl Tool for Borg {
    fn name(&self) -> &'static str {
        "borg"
    }

    fn contents(&self) -> Result<(String, Vec<Original>), Failure> {
        let what = "borg list";
        let mut command = self.command(&["list", "--json", "--format", "{hostname}"]);
        if !self.repository.is_empty() {
            command.arg(&self.repository);
        }
        let list = output(&mut command, what)?;
        let Contents { archives, repository } =
            serde_json::from_slice(&list).map_err(|error| unreadable(what, &error))?;
        let mut originals = Vec::new();
        for Archive { id, name, start, hostname } in archives {
            let Some(time) = parse_time(&start) else {
                return Err(Failure::failed(format!("borg: archive {name} has no time: `{start}`")));
            };
            originals.push(Original {
                id,
                time,
                host: Some(hostname).filter(|host| !host.is_empty()),
                sources: vec![name.as_bytes().to_vec()],
                tags: vec![name.clone()],
                name,
            });
        }
        originals.sort_by_key(|original| original.time);
        Ok((repository.id, originals))
    }

    fn list(&self, original: &Original) -> Command {
        let mut command = self.command(&["list", "--json-lines"]);
        command.arg(self.archive(original));
        command
    }

    fn node(&self, line: &str) -> Result<Option<Node>, serde_json::Error> {
        let Line { path, mode, size, mtime, healthy } = serde_json::from_str(line)?;
        let kind = match mode.chars().next() {
            Some('-') => NodeKind::File { size },
            Some('h') => NodeKind::HardLink,
            Some('d') => NodeKind::Directory,
            Some('l') => NodeKind::Symlink,
            _ => NodeKind::Special,
        };
        Ok(Some(Node { path, kind, mtime: file_time(&mtime), is_broken: !healthy }))
    }

    fn replacement(&self) -> char {
        '?'
    }

    fn dump(&self, original: &Original) -> Result<Command, Failure> {
        let help = output(&mut self.command(&["export-tar", "--help"]), "borg export-tar --help")?;
        let has_pax = String::from_utf8_lossy(&help).contains("--tar-format");
        let words: &[&str] = if has_pax { &["export-tar", "--tar-format=PAX"] } else { &["export-tar"] };
        let mut command = self.command(words);
        command.arg(self.archive(original)).arg("-");
        Ok(command)
    }
}
