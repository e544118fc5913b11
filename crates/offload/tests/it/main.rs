//! All integration tests of this crate in one executable, except those that need their own process:
//! `no_allocation` (its allocator), `queues` (its scheduler) and `gpu` (which is copied to another
//! machine).
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod codecs;
mod common;
mod conformance;
mod grid;
mod kernels;
mod nvcomp;
mod qat;
mod routes;
mod runtime;
mod tensors;
mod vectors;
