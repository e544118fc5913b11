//! Jobs whose results are printed, and become no files.

use outrigger_store::{Error, ErrorKind, Result};

use super::spec::Spec;
use crate::pattern::Pattern;

/// The template of an output that is printed.
const PRINTED: &str = "-";

impl Spec {
    /// True if its results go to standard output of the process that made it, and are no files.
    pub fn prints(&self) -> bool {
        self.outputs.iter().any(|output| output.template == PRINTED)
    }

    /// Checks that a job that prints prints one result of each split, and nothing else.
    ///
    /// # Errors
    /// `Invalid`, saying what to remove.
    pub(super) fn check_printed(&self) -> Result<()> {
        let prints_one = matches!(&self.outputs[..], [only] if only.name.is_empty());
        let is_stored = matches!(self.pattern, Pattern::ReadToFile | Pattern::ManyToFile);
        if !self.prints() || prints_one && is_stored && self.also.is_empty() {
            return Ok(());
        }
        let why = "`--out -` prints one result of stored files: remove the other --out and --and, and use 1R->1W or #W->1W";
        Err(Error::new(ErrorKind::Invalid, why))
    }
}
