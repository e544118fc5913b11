//! Compares the directory with the allowed states.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::model::{Model, Node};
use super::{Log, Promise};
use crate::about;

/// Compares the directory `dir` with the log `log` of [`super::ack_write`]; returns a line for each
/// violation. With an operation in flight, the state with it is as good as the one without.
///
/// # Errors
/// The log cannot be read or is not one, or the directory cannot be listed.
pub fn ack_verify(dir: &Path, log: &Path, promise: Promise) -> io::Result<Vec<String>> {
    let log = Log::parse(&fs::read_to_string(log).map_err(about(log))?)?;
    let mut model = Model::new(promise, log.seed);
    for (number, op) in log.acked.iter().enumerate() {
        model.apply(number as u64, op);
        model.acked(op);
    }
    let found = walk(dir)?;
    let Some(op) = log.in_flight else { return check(&model, dir, &found, promise) };
    let without = model.clone();
    model.apply(log.acked.len() as u64, &op);
    let problems = check(&model, dir, &found, promise)?;
    if problems.is_empty() || promise == Promise::Durable || !op.changes_names() {
        return Ok(problems);
    }
    // A change of names happens as a whole or not at all, so its two states are checked one by one.
    model.acked(&op);
    let with = check(&model, dir, &found, promise)?;
    let without = check(&without, dir, &found, promise)?;
    Ok(if with.len() < without.len() { with } else { without })
}

struct Found {
    node: Kind,
    inode: u64,
    links: u64,
}

#[derive(PartialEq, Eq)]
enum Kind {
    File,
    Dir,
    Symlink(String),
    Other,
}

fn walk(dir: &Path) -> io::Result<BTreeMap<String, Found>> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![String::new()]);
    while let Some(prefix) = todo.pop() {
        let list = dir.join(&prefix);
        for entry in fs::read_dir(&list).map_err(about(&list))? {
            let name = entry.map_err(about(&list))?.file_name().to_string_lossy().into_owned();
            let name = format!("{prefix}{name}");
            let path = dir.join(&name);
            let meta = fs::symlink_metadata(&path).map_err(about(&path))?;
            let kind = meta.file_type();
            let node = if kind.is_file() {
                Kind::File
            } else if kind.is_dir() {
                todo.push(format!("{name}/"));
                Kind::Dir
            } else if kind.is_symlink() {
                Kind::Symlink(fs::read_link(&path).map_err(about(&path))?.to_string_lossy().into_owned())
            } else {
                Kind::Other
            };
            found.insert(name, Found { node, inode: meta.ino(), links: meta.nlink() });
        }
    }
    Ok(found)
}

fn check(
    model: &Model,
    dir: &Path,
    found: &BTreeMap<String, Found>,
    promise: Promise,
) -> io::Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut bad: BTreeSet<&str> = BTreeSet::new();
    // The files that were found, by their names.
    let mut seen: BTreeSet<(usize, &str)> = BTreeSet::new();
    for (name, states) in &model.names {
        let there = found.get(name);
        if there.is_none() && fs::symlink_metadata(dir.join(name)).is_ok() {
            problems.push(format!("{name}: can be opened, but is not listed"));
        }
        let content = match there {
            Some(Found { node: Kind::File, .. }) => match fs::read(dir.join(name)) {
                Ok(bytes) => Some(bytes),
                Err(error) => {
                    problems.push(format!("{name}: cannot be read: {error}"));
                    continue;
                }
            },
            _ => None,
        };
        let mut why = None;
        let mut good = false;
        for state in states.iter().rev() {
            match (state, there.map(|found| &found.node)) {
                (None, None) | (Some(Node::Dir), Some(Kind::Dir)) => good = true,
                (Some(Node::Symlink(a)), Some(Kind::Symlink(b))) if a == b => good = true,
                (Some(Node::File(id)), Some(Kind::File)) => {
                    match model.accepts(*id, content.as_deref().unwrap_or_default()) {
                        Ok(()) => {
                            good = true;
                            seen.insert((*id, name));
                        }
                        Err(wrong) => why = why.or(Some(wrong)),
                    }
                }
                _ => {}
            }
        }
        if !good {
            bad.insert(name);
            problems.push(format!("{name}: {}", why.unwrap_or_else(|| differs(states, there))));
        }
    }
    problems.extend(
        found
            .keys()
            .filter(|name| !model.names.contains_key(*name))
            .map(|name| format!("{name}: never made")),
    );
    for (id, file) in model.files.iter().enumerate() {
        if promise == Promise::Durable {
            // A file that changes its name must not be lost.
            let found = |name: &String| seen.contains(&(id, name.as_str())) || bad.contains(name.as_str());
            if !file.found_under.is_empty() && !file.found_under.iter().any(found) {
                let names: Vec<&str> = file.found_under.iter().map(String::as_str).collect();
                problems
                    .push(format!("a file that was synced is under none of its names: {}", names.join(", ")));
            }
        } else {
            let there: Vec<&Found> = file.names.iter().filter_map(|name| found.get(name)).collect();
            let inodes: BTreeSet<u64> = there.iter().map(|found| found.inode).collect();
            if inodes.len() > 1 || there.iter().any(|found| found.links != file.names.len() as u64) {
                let names: Vec<&str> = file.names.iter().map(String::as_str).collect();
                problems.push(format!(
                    "{}: {} links expected, found {} inodes with {:?} links",
                    names.join(", "),
                    names.len(),
                    inodes.len(),
                    there.iter().map(|found| found.links).collect::<Vec<_>>()
                ));
            }
        }
    }
    Ok(problems)
}

fn differs(states: &[Option<Node>], found: Option<&Found>) -> String {
    let expected = match states.last().and_then(Option::as_ref) {
        None => "nothing".to_owned(),
        Some(Node::File(_)) => "a file".to_owned(),
        Some(Node::Dir) => "a directory".to_owned(),
        Some(Node::Symlink(target)) => format!("a symlink to {target}"),
    };
    let found = match found.map(|found| &found.node) {
        None => "nothing".to_owned(),
        Some(Kind::File) => "a file".to_owned(),
        Some(Kind::Dir) => "a directory".to_owned(),
        Some(Kind::Symlink(target)) => format!("a symlink to {target}"),
        Some(Kind::Other) => "something else".to_owned(),
    };
    format!("{found}, expected {expected}{}", if states.len() > 1 { " or an older state" } else { "" })
}
