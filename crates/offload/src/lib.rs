//! The operations on bytes that Outrigger can hand to the best processor for them: finding chunk
//! boundaries, hashing, looking fingerprints up, compressing.
//!
//! This crate knows buffers and operations, never files. An operation is data ([`op`]): its inputs,
//! its outputs and their form. A [`Device`] executes it. The processor ([`CpuDevice`]) always
//! exists. All other devices must give the same results and pass the same function,
//! [`conformance::check`].
//!
//! A thread that works on the processor calls [`scan`], [`hash_many`], [`Ingester`], [`Compressor`]
//! and [`Decompressor`] directly. That takes no queue, no lock, and in steady state few
//! allocations. Instructions are chosen at run time ([`SimdLevel`]). The [`runtime`] takes tasks
//! that own their buffers ([`work`], [`pool`]) and executes each on the best device. [`placement`]
//! chooses it by measurements. Devices work asynchronously ([`accelerator::Accelerator`]): GPUs
//! ([`cuda`]), cards that compress ([`qat`]), and GPUs that compress ([`nvcomp`]). A simulated
//! device ([`sim`]) is always available.
//!
//! `unsafe` is confined to the kernels in `cpu/{scan,lanes}/{avx2,avx512,neon}.rs`, to
//! `table/shim.rs`, and to `cuda/host.rs`, `cuda/device/`, `cuda/driver/`, `loader.rs`,
//! `qat/library.rs` and `nvcomp/{library,memory,worker}.rs`.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait and measure in real time"))]

pub mod accelerator;
pub mod calibrate;
mod compress;
pub mod conformance;
mod cpu;
pub mod cuda;
mod detect;
pub mod device;
mod discover;
mod loader;
pub mod nvcomp;
pub mod op;
mod opening;
pub mod placement;
pub mod pool;
pub mod qat;
pub mod reference;
pub mod runtime;
pub mod sim;
pub mod table;
pub mod work;
mod worker_pool;

pub use compress::{
    Auto, Backlog, Budget, Compression, Decoded, Encoder, FrameCodec, FrameDecoder, FrameDevices, FramePlan,
    Made, Planned, Route, Wanted,
};
pub use cpu::{
    Compressor, CpuDevice, Decompressor, Hasher, Ingester, candidates, candidates_with, cut, hash, hash_many,
    hash_many_with, name_chunks, pmd_hash, pmd_hash_with, scan, scan_with, window_hash, window_hash_with,
};
pub use cpu::{apply_filter, apply_filter_into, undo_filter, worst_case};
pub use detect::SimdLevel;
pub use device::{Device, TaskError};
pub use discover::{Discovered, Missing, discover, discover_few};
pub use loader::{OPENS_NO_LIBRARIES, end_process};
pub use op::{CodecError, Operation, Task};
pub use opening::Opening;
