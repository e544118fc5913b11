//! The surroundings of an experiment ([`Lab`], [`Scale`]), and reasons for no result ([`Failed`]).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The size of the measurements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Seconds in all, among the tests: only answers count.
    Tiny,
    /// `make eval`: twenty minutes in all on two cores.
    Short,
    /// `make eval-full`: the papers' sizes where the machine has room for them.
    Full,
}

impl Scale {
    /// Parses its name.
    ///
    /// # Errors
    /// With the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = [Self::Tiny, Self::Short, Self::Full];
        all.into_iter()
            .find(|scale| scale.name() == text)
            .ok_or_else(|| format!("`{text}` is no scale; there are tiny, short and full"))
    }

    /// `tiny`, `short`, `full`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Short => "short",
            Self::Full => "full",
        }
    }

    /// The value for this scale.
    pub fn pick<T>(self, tiny: T, short: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The experiment lacks something here. It is reported, and is no failure.
    #[error("skipped: {0}")]
    Missing(String),
    /// An answer is wrong.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// An error of the file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An error of the store.
    #[error("{0}")]
    Store(#[from] outrigger_store::Error),
    /// A program that was run failed.
    #[error("{0}")]
    Program(String),
}

/// Fails with a wrong answer unless `right`.
///
/// # Errors
/// [`Failed::Wrong`] with the text `why`.
pub fn check(right: bool, why: impl fmt::Display) -> Result<(), Failed> {
    if right { Ok(()) } else { Err(Failed::Wrong(why.to_string())) }
}

/// The surroundings of experiments.
pub struct Lab {
    /// The size of the measurements.
    pub scale: Scale,
    /// An empty directory on the file system to measure. Leftovers in it are removed.
    pub work: PathBuf,
    /// The program `outrigger`, for measurements through mounts.
    pub outrigger: Option<PathBuf>,
    /// The output of `bench/data.sh`, for workloads of real data.
    pub data: Option<PathBuf>,
    /// Worker threads.
    pub threads: usize,
}

impl Lab {
    /// For tests: tiny, in `work`, without programs and data.
    pub fn tiny(work: &Path) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { scale: Scale::Tiny, work: work.to_path_buf(), outrigger: None, data: None, threads }
    }

    /// A new empty directory below [`Lab::work`], removed with the handle.
    ///
    /// # Errors
    /// Those of creating it.
    pub fn room(&self) -> Result<tempfile::TempDir, Failed> {
        Ok(tempfile::tempdir_in(&self.work)?)
    }
}
