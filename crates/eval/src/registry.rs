//! Every experiment, in the order of the papers' figures.

use crate::experiment::Experiment;

/// All of them.
pub fn all() -> Vec<Experiment> {
    let mut all = Vec::new();
    all.extend(crate::storegpu::experiments());
    all.extend(crate::mosastore::experiments());
    all.extend(crate::ghost::experiments());
    all.extend(crate::qzfs::experiments());
    all.extend(crate::active::experiments());
    all.extend(crate::beyond::experiments());
    all
}
