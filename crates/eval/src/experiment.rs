//! What an experiment is.

use crate::lab::{Failed, Lab};
use crate::record::Outcome;

/// Where an experiment comes from, in the order of the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Paper {
    /// "On GPU's viability as a middleware accelerator".
    StoreGpu,
    /// "GPUs as Storage System Accelerators".
    MosaStore,
    /// "GHOST: GPGPU-Offloaded High Performance Storage I/O Deduplication for Primary Storage System".
    Ghost,
    /// "QZFS: QAT Accelerated Compression in File System for Application Agnostic and Cost Efficient Data Storage".
    Qzfs,
    /// "Evaluation of Active Storage Strategies for the Lustre Parallel File System".
    ActiveStorage,
    /// None: what the papers do not ask.
    Beyond,
}

impl Paper {
    /// Every one.
    pub const ALL: [Paper; 6] =
        [Self::StoreGpu, Self::MosaStore, Self::Ghost, Self::Qzfs, Self::ActiveStorage, Self::Beyond];

    /// As the report's headings have it.
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
    /// Whose.
    pub paper: Paper,
    /// Which there: `figure 4`.
    pub figure: &'static str,
    /// What is asked.
    pub title: &'static str,
    /// What the paper found, in our words, with its numbers.
    pub found: &'static str,
    /// Its numbers as they stand in its text and tables, by the name of what is found here: `("all cores, largest block", "about 6")`. They are joined
    /// to records when the report is drawn, so that one that is found later stands beside every record.
    pub said: &'static [(&'static str, &'static str)],
    /// What differs here and why: two sentences.
    pub differs: &'static str,
    /// Measures, and checks what comes out.
    pub run: fn(&Lab) -> Result<Outcome, Failed>,
}
