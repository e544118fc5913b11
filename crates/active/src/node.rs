//! The live agents, described by their sessions' roles and by registry records.

use outrigger_store::meta::jobs::JobId;
use outrigger_store::meta::{AgentRole, Role, SessionOwner, is_gone};
use outrigger_store::{Error, ErrorKind, Result, Store};

use crate::job::spec::Spec;

/// The kind of record that asks an agent to stop.
pub(crate) const DRAIN: &str = "drain";
/// Records of agents that yield.
pub(crate) const STANDS_BACK: &str = "stands_back";
/// The kind of record that reserves an agent's name: the number of its session.
pub(crate) const NAMED: &str = "agent";

/// A live agent.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its description of itself. Its place is [`outrigger_fuse::control::place`] there. It takes
    /// jobs of its own user only, unless that is root.
    pub role: AgentRole,
    /// Its host.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// Jobs that it works on.
    pub jobs: Vec<JobId>,
    /// It takes nothing more.
    pub drains: bool,
    /// It yields: it begins nothing now, because others wait on its host.
    pub stands_back: bool,
}

/// The live agents, by name.
///
/// # Errors
/// Those of the database.
pub fn nodes(store: &Store) -> Result<Vec<Node>> {
    let locks = store.locks_dir();
    let (mut nodes, mut working) = (Vec::new(), Vec::new());
    let drains: Vec<String> = store.jobs()?.notes(DRAIN)?.into_iter().map(|note| note.name).collect();
    let back: Vec<String> = store.jobs()?.notes(STANDS_BACK)?.into_iter().map(|note| note.name).collect();
    for session in store.meta.sessions()? {
        let works = matches!(session.owner.role, Role::Job(_) | Role::Agent(_));
        if !works || is_gone(&session, Some(&locks)) {
            continue;
        }
        let SessionOwner { host, process, role, .. } = session.owner;
        match role {
            Role::Agent(role) => {
                let (drains, stands_back) = (drains.contains(&role.name), back.contains(&role.name));
                nodes.push(Node { role, host, process, jobs: Vec::new(), drains, stands_back });
            }
            Role::Job(job) => working.push((host, process, job)),
            Role::Command(_) | Role::Mount => {}
        }
    }
    for node in &mut nodes {
        let own = working.iter().filter(|(host, process, _)| (host, process) == (&node.host, &node.process));
        node.jobs = own.map(|(_, _, job)| *job).collect();
        node.jobs.sort_unstable();
        node.jobs.dedup();
    }
    nodes.sort_by(|one, other| one.role.name.cmp(&other.role.name));
    Ok(nodes)
}

/// True if a live agent would take this job.
///
/// # Errors
/// Those of the database.
pub fn is_served(store: &Store, spec: &Spec) -> Result<bool> {
    Ok(nodes(store)?.iter().any(|node| node.would_take(spec)))
}

impl Node {
    /// True if it takes jobs like this one.
    pub(crate) fn would_take(&self, spec: &Spec) -> bool {
        let uid = self.role.uid;
        let runs_for = spec.submitter.as_ref().is_none_or(|submitter| uid == 0 || uid == submitter.uid);
        let is_here = spec.host.as_ref().is_none_or(|host| *host == self.host);
        !self.drains && is_here && runs_for
    }
}

/// Asks an agent to finish what it runs, and to stop.
///
/// # Errors
/// `NotFound` when no such agent lives.
pub fn drain(store: &Store, name: &str) -> Result<()> {
    if !nodes(store)?.iter().any(|node| node.role.name == name) {
        let why = format!("no agent `{name}` is running; `outrigger node list` shows those that are");
        return Err(Error::new(ErrorKind::NotFound, why));
    }
    store.jobs()?.set_note(DRAIN, name, Some(""))
}
