//! Which host this is.

/// Its name, as the kernel has it.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A host's identity for a store that several hosts put into: its name, and a mark that
/// distinguishes it from another host of that name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// A digest of the machine's id, where there is one.
    pub machine: Option<String>,
}

impl Identity {
    /// This host. `OUTRIGGER_HOST` names it if the kernel's name changes, as in containers; then
    /// nothing else counts.
    pub fn this() -> Self {
        if let Some(name) = std::env::var_os("OUTRIGGER_HOST").filter(|name| !name.is_empty()) {
            return Self { name: name.to_string_lossy().into_owned(), machine: None };
        }
        // The id itself is not to be handed on (machine-id(5)).
        let digest = |id: String| outrigger_format::checksum(&[b"outrigger host", id.trim().as_bytes()]);
        let id = std::fs::read_to_string("/etc/machine-id").ok().filter(|id| !id.trim().is_empty());
        Self { name: name(), machine: id.map(|id| format!("{:016x}", digest(id))) }
    }

    /// True unless they are known to be two hosts.
    pub fn is_same(&self, other: &Self) -> bool {
        let machines = self.machine.as_ref().zip(other.machine.as_ref());
        self.name == other.name && machines.is_none_or(|(one, two)| one == two)
    }
}
