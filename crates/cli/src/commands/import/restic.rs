//! Repositories of restic.
//!
//! Its archives have no devices, pipes and sockets, no hard links, and times in seconds; its lists
//! have the whole times.

use std::ffi::OsString;
use std::process::Command;

use serde::Deserialize;

use super::child::output;
use super::tool::{Node, NodeKind, Original, Tool, file_time, parse_time, unreadable};
use crate::exit::Failure;

/// A repository of restic; its place is empty if restic knows it from the environment.
pub struct Restic {
    pub repository: OsString,
}

#[derive(Deserialize)]
struct Config {
    id: String,
}

#[derive(Deserialize)]
struct Snapshot {
    id: String,
    time: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

/// A line of `ls`; the first is about the snapshot and has no path.
#[derive(Deserialize)]
struct Line {
    path: Option<String>,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    mtime: String,
}

impl Restic {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("restic");
        if !self.repository.is_empty() {
            command.arg("-r").arg(&self.repository);
        }
        command.args(words);
        command
    }
}

impl Tool for Restic {
    fn name(&self) -> &'static str {
        "restic"
    }

    fn contents(&self) -> Result<(String, Vec<Original>), Failure> {
        let what = "restic cat config";
        let config = output(&mut self.command(&["cat", "config"]), what)?;
        let config: Config = serde_json::from_slice(&config).map_err(|error| unreadable(what, &error))?;
        let what = "restic snapshots";
        let list = output(&mut self.command(&["snapshots", "--json"]), what)?;
        let list: Option<Vec<Snapshot>> =
            serde_json::from_slice(&list).map_err(|error| unreadable(what, &error))?;
        let mut originals = Vec::new();
        for Snapshot { id, time, hostname, paths, tags } in list.unwrap_or_default() {
            let Some(time) = parse_time(&time) else {
                return Err(Failure::failed(format!("restic: snapshot {id} has no time: `{time}`")));
            };
            originals.push(Original {
                name: id.get(..8).unwrap_or(&id).to_string(),
                id,
                time,
                host: Some(hostname).filter(|host| !host.is_empty()),
                sources: paths.into_iter().map(String::into_bytes).collect(),
                tags: tags.unwrap_or_default(),
            });
        }
        originals.sort_by_key(|original| original.time);
        Ok((config.id, originals))
    }

    fn list(&self, original: &Original) -> Command {
        self.command(&["ls", "--json", &original.id])
    }

    fn node(&self, line: &str) -> Result<Option<Node>, serde_json::Error> {
        let Line { path, kind, size, mtime } = serde_json::from_str(line)?;
        let Some(path) = path else { return Ok(None) };
        let kind = match kind.as_str() {
            "file" => NodeKind::File { size },
            "dir" => NodeKind::Directory,
            "symlink" => NodeKind::Symlink,
            _ => NodeKind::Special,
        };
        let path = path.trim_start_matches('/').to_string();
        Ok(Some(Node { path, kind, mtime: file_time(&mtime), is_broken: false }))
    }

    fn replacement(&self) -> char {
        char::REPLACEMENT_CHARACTER
    }

    fn dump(&self, original: &Original) -> Result<Command, Failure> {
        Ok(self.command(&["dump", "--archive", "tar", &original.id, "/"]))
    }
}
