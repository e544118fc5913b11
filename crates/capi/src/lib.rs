//! Outrigger's hashing, chunking, lookup and offload runtime, for C and languages that can call C.
//!
//! cbindgen makes `include/outrigger.h` from this crate (`scripts/header.sh`), with the comments of
//! this crate. `docs/c-api.md` introduces it. The library is built as `liboutrigger_capi` and
//! installed as `liboutrigger` (`make install`).
//!
//! ```text
//! hash.rs  dirty.rs  table.rs  storegpu.rs    on the calling thread: outrigger_offload's functions
//! runtime.rs  task/  buffer.rs              tasks: outrigger_offload::runtime
//! operation.rs                              operations of the caller's own
//! status.rs                                 errors, and the wall that no panic passes
//! raw.rs                                    C's pointers become slices, strings, references
//! ```
//!
//! The types of handles say what C cannot. `Option<&T>` may be null and is only read, and
//! `Option<Box<T>>` gives ownership away. The rest is one contract, at the head of the header: each
//! pointer is null or valid as described, for as long as described. `SAFETY` comments call it *C's
//! contract*.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]
#![allow(unsafe_code, reason = "every function is called by C")]
#![allow(non_camel_case_types, reason = "these are C's names")]

mod buffer;
mod builder;
mod cut;
mod handles;
mod hash;
mod metrics;
mod operation;
mod raw;
mod runtime;
mod status;
mod storegpu;
mod table;
mod task;
mod types;

#[cfg(test)]
mod tests;
