//! The agents that live, and what they say of themselves: in the roles of their sessions, and in
//! the registry.

use outrigger_store::meta::jobs::JobId;
use outrigger_store::meta::{AgentRole, Role, SessionId, SessionOwner, is_gone};
use outrigger_store::registry::Record;
use outrigger_store::{Error, ErrorKind, Result, Store};
use serde::{Deserialize, Serialize};

use crate::job::spec::Spec;

/// A registry record that others read before they leave work to an agent.
#[derive(Serialize, Deserialize)]
pub(crate) struct Flag<const KIND: usize> {
    pub agent: String,
}

/// Somebody asks an agent to stop.
pub(crate) type Drain = Flag<0>;
/// An agent yields: it begins nothing while others wait on its host.
pub(crate) type Yields = Flag<1>;

impl<const KIND: usize> Record for Flag<KIND> {
    const KIND: &'static str = ["drain", "yields"][KIND];

    fn name(&self) -> String {
        self.agent.clone()
    }
}

/// An agent has its name by this, so that no two have the same.
#[derive(Serialize, Deserialize)]
pub(crate) struct Named {
    pub agent: String,
    pub session: SessionId,
}

impl Record for Named {
    const KIND: &'static str = "agent";

    fn name(&self) -> String {
        self.agent.clone()
    }

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }
}

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
    pub yields: bool,
}

/// The live agents, by name.
///
/// # Errors
/// Those of the database.
pub fn nodes(store: &Store) -> Result<Vec<Node>> {
    let locks = store.locks_dir();
    let (mut nodes, mut working) = (Vec::new(), Vec::new());
    let registry = store.registry();
    let drains: Vec<String> =
        registry.all()?.into_iter().map(|read| read.record).map(|Drain { agent }| agent).collect();
    let back: Vec<String> =
        registry.all()?.into_iter().map(|read| read.record).map(|Yields { agent }| agent).collect();
    for session in store.meta.sessions()? {
        let works = matches!(session.owner.role, Role::Job(_) | Role::Agent(_));
        if !works || is_gone(&session, Some(&locks)) {
            continue;
        }
        let SessionOwner { host, process, role, .. } = session.owner;
        match role {
            Role::Agent(role) => {
                let (drains, yields) = (drains.contains(&role.name), back.contains(&role.name));
                nodes.push(Node { role, host, process, jobs: Vec::new(), drains, yields });
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
    store.registry().put(&Drain { agent: name.to_owned() })
}
