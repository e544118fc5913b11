//! An experiment and its origin.

use crate::lab::{Failed, Lab};
use crate::record::Outcome;

/// The paper of an experiment, in the order of the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Paper {
    /// "On GPU's viability as a middleware accelerator".
    StoreGpu,
    /// "GPUs as Storage System Accelerators".
    MosaStore,
    /// "GHOST: GPGPU-Offloaded High Performance Storage I/O Deduplication for Primary Storage
    /// System".
    Ghost,
    /// "QZFS: QAT Accelerated Compression in File System for Application Agnostic and Cost
    /// Efficient Data Storage".
    Qzfs,
    /// "Evaluation of Active Storage Strategies for the Lustre Parallel File System".
    ActiveStorage,
    /// None: a question that the papers do not ask.
    Beyond,
}

impl Paper {
    /// All papers.
    pub const ALL: [Paper; 6] =
        [Self::StoreGpu, Self::MosaStore, Self::Ghost, Self::Qzfs, Self::ActiveStorage, Self::Beyond];

    /// The heading in the report.
    pub fn title(self) -> &'static str {
        match self {
            Self::StoreGpu => "StoreGPU: On GPU's viability as a middleware accelerator (2009)",
            Self::MosaStore => "MosaStore, HashGPU, CrystalGPU: GPUs as Storage System Accelerators (2013)",
            Self::Ghost => "GHOST: GPGPU-Offloaded High Performance Storage I/O Deduplication (2012)",
            Self::Qzfs => "QZFS: QAT Accelerated Compression in File System (2019)",
            Self::ActiveStorage => {
                "Active Storage: Evaluation of Active Storage Strategies for the Lustre Parallel File System (2007)"
            }
            Self::Beyond => "Beyond the papers",
        }
    }
}

/// One figure or table.
pub struct Experiment {
    /// Its name on the command line and of its records: `storegpu-4`.
    pub id: &'static str,
    /// Its paper.
    pub paper: Paper,
    /// Its place in the paper: `figure 4`.
    pub figure: &'static str,
    /// The question.
    pub title: &'static str,
    /// The paper's result in our words, with its numbers.
    pub found: &'static str,
    /// Numbers from the paper's text and tables, by the name of our finding: `("all cores, largest
    /// block", "about 6")`. They join the records when the report is drawn, so a number that is
    /// found later stands beside every record.
    pub said: &'static [(&'static str, &'static str)],
    /// The differences here, and the reasons: two sentences.
    pub differs: &'static str,
    /// Measures, and checks the answers.
    pub run: fn(&Lab) -> Result<Outcome, Failed>,
}
