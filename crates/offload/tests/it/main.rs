//! All integration tests of the work on bytes, in one executable, but for those that need a process of their own: `no_allocation` (its allocator), `queues` (its scheduler) and `gpu` (it is carried to another machine).
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
