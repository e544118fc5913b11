//! A job's program: which content it is, and what its words say of it.

use serde::{Deserialize, Serialize};

/// Which content a job runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// Its name.
    pub name: String,
    /// BLAKE3 of its content, in hexadecimal digits.
    pub hash: String,
}

/// True when this program is told of its inputs as files.
pub(crate) fn names_inputs(program: &[String]) -> bool {
    program.iter().any(|word| word == "{in}" || (word.starts_with("{in.") && word.ends_with('}')))
}

/// True when this program is one of a file on this host.
pub(crate) fn is_bundled(program: &[String]) -> bool {
    program.first().is_some_and(|program| {
        program.contains('/') && !program.starts_with("/usr") && !program.starts_with("/bin")
    })
}
