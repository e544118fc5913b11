//! The agents that live, and what they say of themselves: in the descriptions of their sessions, and in notes.

use outrigger_store::meta::is_gone;
use outrigger_store::meta::jobs::JobId;
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::job::spec::Spec;

/// What the description of an agent's session has before its name.
pub(crate) const SAID: &str = " node ";
/// The kind of note that asks an agent to stop.
pub(crate) const DRAIN: &str = "drain";
/// Notes of agents that stand back.
pub(crate) const STANDS_BACK: &str = "stands_back";
/// The kind of note by which an agent has its name: the number of its session.
pub(crate) const NAMED: &str = "agent";

/// An agent that lives.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is called.
    pub name: String,
    /// Its host.
    pub host: String,
    /// What [`outrigger_fuse::control::place`] is there; `None` of an agent of an earlier version.
    pub place: Option<String>,
    /// Its process there.
    pub process: u32,
    /// Splits that it runs at once.
    pub slots: u32,
    /// What it works on.
    pub jobs: Vec<JobId>,
    /// It takes nothing more.
    pub drains: bool,
    /// It begins nothing just now, because others wait on its host.
    pub stands_back: bool,
    /// Whom it runs as: jobs of others are none of its, unless this is root.
    pub uid: Option<u32>,
}

/// The agents that live, by name.
///
/// # Errors
/// Those of the database.
pub fn nodes(store: &Store) -> Result<Vec<Node>> {
    let locks = store.locks_dir();
    let (mut nodes, mut working) = (Vec::new(), Vec::new());
    let drains: Vec<String> = store.jobs()?.notes(DRAIN)?.into_iter().map(|note| note.name).collect();
    let back: Vec<String> = store.jobs()?.notes(STANDS_BACK)?.into_iter().map(|note| note.name).collect();
    for session in store.meta.sessions()? {
        let words: Vec<&str> = session.description.split(' ').collect();
        let [_, host, process, what, which, rest @ ..] = words.as_slice() else { continue };
        let Ok(process) = process.parse::<u32>() else { continue };
        if !matches!(*what, "node" | "job") || is_gone(&session, Some(&locks)) {
            continue;
        }
        if let ("job", Ok(job)) = (*what, which.parse()) {
            working.push((host.to_string(), process, JobId(job)));
        }
        if *what == "node" {
            let word = |key: &str| rest.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            let of = |key: &str| word(key)?.parse().ok();
            let (slots, uid) = (of("slots").unwrap_or(0), of("uid"));
            let place = word("at").map(str::to_string);
            let (name, host) = (which.to_string(), host.to_string());
            let (drains, stands_back) = (drains.contains(&name), back.contains(&name));
            nodes.push(Node {
                name,
                host,
                place,
                process,
                slots,
                jobs: Vec::new(),
                drains,
                stands_back,
                uid,
            });
        }
    }
    for node in &mut nodes {
        let own = working.iter().filter(|(host, process, _)| (host, process) == (&node.host, &node.process));
        node.jobs = own.map(|(_, _, job)| *job).collect();
        node.jobs.sort_unstable();
        node.jobs.dedup();
    }
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(nodes)
}

/// True when an agent lives that would take this job.
///
/// # Errors
/// Those of the database.
pub fn is_served(store: &Store, spec: &Spec) -> Result<bool> {
    Ok(nodes(store)?.iter().any(|node| node.would_take(spec)))
}

impl Node {
    /// Whether it takes jobs like this one.
    pub(crate) fn would_take(&self, spec: &Spec) -> bool {
        let runs_for = match (self.uid, &spec.submitter) {
            (Some(uid), Some(submitter)) => uid == 0 || uid == submitter.uid,
            _ => true,
        };
        let is_here = spec.host.as_ref().is_none_or(|host| *host == self.host);
        !self.drains && is_here && runs_for
    }
}

/// Asks an agent to finish what it runs, and to stop.
///
/// # Errors
/// `NotFound` when no such agent lives.
pub fn drain(store: &Store, name: &str) -> Result<()> {
    if !nodes(store)?.iter().any(|node| node.name == name) {
        let why = format!("no agent `{name}` is running; `outrigger node list` shows those that are");
        return Err(Error::new(ErrorKind::NotFound, why));
    }
    store.jobs()?.set_note(DRAIN, name, Some(""))
}
