//! Every experiment of the papers that Outrigger grew from, repeated on the present machine, and a
//! report on them.
//!
//! ```text
//!   registry ──▶ Experiment::run(Lab) ──▶ Outcome ──▶ Record ── one JSON file ──▶ docs/evaluation/records/MACHINE/ID.json
//!                                                                                       │  (records of other machines beside it)
//!   report.md, report.html  ◀── report::write ◀── every record there is ◀───────────────┘
//! ```
//!
//! An experiment is one figure or table of a paper ([`Experiment`]). It states the paper's result;
//! the result here goes into a [`Record`]. It has three sizes ([`Scale`]): `tiny` runs among the
//! tests and checks its answers, `short` is `make eval`, `full` is `make eval-full`. An experiment
//! that meets a wrong answer fails, at any size; no time is ever asserted.
//!
//! Each line of a plot names its executor: the processor (one core, all cores), a device that is
//! there, or a *model*. A model is a simulated device ([`outrigger_offload::sim`]) with the papers'
//! bandwidths and latencies ([`models`]). A model's times are no measurement, and are drawn
//! differently ([`record::SeriesKind`]).
#![allow(clippy::disallowed_methods, reason = "it measures, and waits, in real time")]

mod active;
mod beyond;
pub mod experiment;
mod ghost;
mod kept;
pub mod lab;
mod lines;
mod machine;
pub mod measure;
mod modelled;
pub mod models;
mod mosastore;
mod mounted;
pub mod papers;
pub mod plot;
mod qzfs;
pub mod record;
mod recorded;
pub mod registry;
pub mod report;
mod rig;
mod shares;
mod similarity;
mod storegpu;
mod threads;
mod wrote;

pub use experiment::{Experiment, Paper};
pub use lab::{Failed, Lab, Scale};
pub use machine::Machine;
pub use record::Record;
