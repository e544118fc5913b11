//! Which snapshots of a repository are to be imported, and the tags that they get.

use std::collections::HashSet;

use outrigger_store::Store;
use outrigger_store::meta::SnapshotRow;
use outrigger_store::ops::snapshots::check_name;
use outrigger_store::snapshot::facts::{Facts, Imported};
use outrigger_store::tree::StorePath;

use super::tool::Original;
use crate::exit::Failure;
use crate::output::complain;
use crate::when;

/// The state of a snapshot before the import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It is to be imported.
    Due,
    /// The store has it, below the same directory.
    Present,
    /// The store has a younger one, which the directory must not lose. It was deleted, or came late.
    Older,
}

/// The originals that a user means, oldest first.
///
/// # Errors
/// A usage failure if a name means none, or several.
pub fn select(all: Vec<Original>, names: &[String], host: Option<&str>) -> Result<Vec<Original>, Failure> {
    let of_host: Vec<Original> = match host {
        Some(host) => all.into_iter().filter(|one| one.host.as_deref() == Some(host)).collect(),
        None => all,
    };
    if let (Some(host), true) = (host, of_host.is_empty()) {
        return Err(Failure::usage(format!("the repository has no snapshot of the host `{host}`")));
    }
    if names.is_empty() {
        return Ok(of_host);
    }
    let mut ids = HashSet::new();
    for name in names {
        ids.insert(find(&of_host, name)?.id.clone());
    }
    Ok(of_host.into_iter().filter(|one| ids.contains(&one.id)).collect())
}

fn find<'a>(all: &'a [Original], name: &str) -> Result<&'a Original, Failure> {
    if let Some(exact) = all.iter().find(|one| one.id == name || one.name == name) {
        return Ok(exact);
    }
    if name == "latest"
        && let Some(newest) = all.last()
    {
        return Ok(newest);
    }
    let mut found = all.iter().filter(|one| !name.is_empty() && one.id.starts_with(name));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("several ids begin with `{name}`; give more letters of one")))
        }
        (None, _) => Err(Failure::usage(format!("the repository has no snapshot `{name}`"))),
    }
}

/// The states of these snapshots for an import below `to`. `is_chosen`: the user named them, so older
/// ones are meant, too.
pub fn states(
    rows: &[SnapshotRow],
    (tool, repository): (&str, &str),
    to: &StorePath,
    originals: &[Original],
    is_chosen: bool,
) -> Vec<State> {
    let (mut known, mut newest) = (HashSet::new(), 0);
    for row in rows {
        let facts = Facts::of(row);
        if let Some(Imported { tool: by, repository: of, snapshot }) = facts.imported
            && (by.as_str(), of.as_str()) == (tool, repository)
            && facts.targets.contains(to)
        {
            newest = newest.max(row.time);
            known.insert(snapshot);
        }
    }
    let state = |original: &Original| match known.contains(&original.id) {
        true => State::Present,
        false if !is_chosen && nanos(original) < newest => State::Older,
        false => State::Due,
    };
    originals.iter().map(state).collect()
}

/// The time of an original, as snapshots have it.
pub fn nanos(original: &Original) -> u64 {
    original.time.as_nanosecond().clamp(0, u64::MAX.into()) as u64
}

/// The tags of an imported snapshot: those of the user, and the original's as far as they can be
/// tags here.
pub fn tags(store: &Store, own: &[String], original: &Original) -> Vec<String> {
    let mut tags = own.to_vec();
    for tag in &original.tags {
        let is_bad = |c: char| matches!(c, '/' | ':' | ',') || c.is_control() || c.is_whitespace();
        let clean = tag.replace(is_bad, "-");
        let checked = check_name("tag", &clean).map_err(Failure::from);
        let checked = checked.and_then(|()| when::check_new(store, None, std::slice::from_ref(&clean)));
        match checked {
            Ok(()) if tags.contains(&clean) => {}
            Ok(()) => tags.push(clean),
            // The name of an archive that is a time: `--at` finds the snapshot by that time.
            Err(_) if *tag == original.name => {}
            Err(why) => complain(&format!("snapshot {} loses a tag: {}", original.name, why.message)),
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(id: &str, secs: i64) -> Original {
        Original {
            id: id.to_string(),
            name: id.get(..2).unwrap().to_string(),
            time: jiff::Timestamp::from_second(secs).unwrap(),
            host: Some(if secs < 15 { "a" } else { "b" }.to_string()),
            sources: Vec::new(),
            tags: Vec::new(),
        }
    }

    #[test]
    fn users_choose_snapshots_by_id_name_and_host() {
        let all = || vec![original("abc1", 10), original("abd2", 20), original("fff3", 30)];
        let chosen = |names: &[&str], host| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            let found = select(all(), &names, host).map_err(|failure| failure.message)?;
            Ok::<_, String>(found.into_iter().map(|one| one.id).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(chosen(&[], None).unwrap(), "abc1 abd2 fff3");
        assert_eq!(chosen(&["fff", "abd"], None).unwrap(), "abd2 fff3");
        assert_eq!(chosen(&["latest"], Some("a")).unwrap(), "abc1");
        assert_eq!(chosen(&["abc1"], None).unwrap(), "abc1");
        assert!(chosen(&["a"], None).unwrap_err().contains("several"));
        for (names, host) in [(&["x"][..], None), (&[""], None), (&[], Some("c")), (&["abc"], Some("b"))] {
            assert!(chosen(names, host).unwrap_err().contains("has no snapshot"));
        }
    }

    #[test]
    fn older_snapshots_do_not_come_back() {
        let to = StorePath::parse(b"docs").unwrap();
        let row = |snapshot: &str, secs: u64, target: &StorePath| {
            let imported = Imported {
                tool: "restic".to_string(),
                repository: "r".to_string(),
                snapshot: snapshot.to_string(),
            };
            let facts = Facts { imported: Some(imported), targets: vec![target.clone()], ..Facts::default() };
            SnapshotRow {
                name: String::new(),
                epoch: 1,
                time: secs * 1_000_000_000,
                tags: facts.to_tags(),
                role: None,
            }
        };
        let rows = [row("abd2", 20, &to), row("fff3", 30, &StorePath::default())];
        let all = [original("abc1", 10), original("abd2", 20), original("xyz", 20), original("fff3", 30)];
        let of = |repository, is_chosen| states(&rows, ("restic", repository), &to, &all, is_chosen);
        assert_eq!(of("r", false), [State::Older, State::Present, State::Due, State::Due]);
        assert_eq!(of("r", true), [State::Due, State::Present, State::Due, State::Due]);
        assert_eq!(of("other", false), [State::Due; 4]);
    }
}
