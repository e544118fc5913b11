//! All integration tests of the store, in one executable: linking one a file took longer than most
//! of them run.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod checking;
mod cluster;
mod codecs;
mod concurrent;
mod conflicts;
mod crash;
mod damage;
mod deep;
mod devices;
mod encryption;
mod following;
mod frames;
mod gc;
mod gc_support;
mod golden;
mod hostile;
mod inline;
mod joining;
mod kill;
mod leftovers;
mod localize;
mod locks;
mod lost;
mod meta_conformance;
mod meta_interleaving;
mod meta_model;
mod meta_rates;
mod meta_support;
mod model;
mod model_reclaim;
mod opening;
mod oracle;
mod parity;
mod postgres;
mod readers;
mod recompress;
mod recover;
mod roles;
mod roundtrip;
mod sealed;
mod secured;
mod speculative;
mod splice;
mod stale;
mod tiers;
mod trusted;
mod untrusted;
mod verification;

// The stand-in for a card (`frames.rs`) looks for it here.
use frames::common;
