//! Active storage: programs that run where the data lies, over deduplicated and compressed files,
//! with results that appear whole or not at all.
//!
//! ```text
//!  globs ─ inputs.rs ─▶ plan.rs: a job, cut into splits by cuts.rs ─▶ rows of the metadata (outrigger_store::meta::jobs)
//!                                                                │ claim
//!                          runner/: slots ◀──────────────────────┘
//!                             │  attempt/: feed ▶ program, kept in by sandbox/ ▶ output
//!                             ▼
//!                          the store's write pipeline ▶ private contents ▶ runner/publish.rs: one transaction
//! ```
//!
//! Files that programs write in a mount are tailed while they are written: `written/`.
//!
//! Runners share a job's splits: those of one process, and those of agents (`agent/`) on any number
//! of hosts.
//!
//! `docs/active-storage.md` is for users; `docs/decisions/0011-active-storage.md` says why it is
//! so.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]

pub mod agent;
pub mod attempt;
pub mod bam;
mod bundled;
pub mod cgroup;
pub mod component;
mod content;
pub mod cuts;
pub mod foreground;
pub mod identity;
pub mod inputs;
#[cfg(feature = "testing")]
pub mod instead;
pub mod job;
pub mod maker;
pub mod making;
pub mod mount;
pub mod node;
pub mod pattern;
pub mod plan;
mod plugin;
pub mod progress;
pub mod rules;
pub mod runner;
pub mod sandbox;
pub mod scratch;
pub mod signing;
pub mod template;
pub mod through;
pub mod trust;
pub mod written;
