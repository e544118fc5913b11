//! Tools for tests: what every backend must do, backends that fail on purpose, damage, and crash states.
//!
//! Compiled for this crate's own tests and with the feature `testing`; no part of the public interface.

pub mod conformance;
pub mod crash;
pub mod damage;
pub mod faulty;

pub use faulty::{Fault, FaultyBackend, Op, Plan};
