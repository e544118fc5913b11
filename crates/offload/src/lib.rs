//! The work on bytes that Outrigger can hand to whichever processor does it best: finding chunk boundaries, hashing,
//! looking fingerprints up, compressing.
//!
//! This crate knows buffers and operations, never files. An operation is data ([`op`]): its inputs, its outputs and their
//! shape. What executes it is a [`Device`]; the processor ([`CpuDevice`]) is always there, and every other one must give
//! the same results: [`conformance::check`] is the one function that all of them pass.
//!
//! A thread that works on the processor anyway calls [`scan`], [`hash_many`], [`Ingester`], [`Compressor`] and [`Decompressor`]
//! directly: no queue, no lock, and in steady state few allocations. Instructions are chosen at run time ([`SimdLevel`]).
//! The [`runtime`] takes tasks that own their buffers ([`work`], [`pool`]) and has whatever device does them best do them:
//! [`placement`] says which that is, by measurement. A device works by itself ([`accelerator::Accelerator`]); one that is only
//! simulated ([`sim`]) is always there; [`cuda`] are GPUs; [`qat`] are cards that compress, and [`nvcomp`] are GPUs that do.
//!
//! `unsafe` is confined to the kernels in `cpu/{scan,lanes}/{avx2,avx512}.rs`, to `table/shim.rs`, and to
//! `cuda/host.rs`, `cuda/device/`, `cuda/driver/`, `loader.rs`, `qat/library.rs` and
//! `nvcomp/{library,memory,hand}.rs`.
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
    Compressor, CpuDevice, Decompressor, Hasher, Ingester, candidates, candidates_with, hash, hash_many,
    hash_many_with, pmd_hash, pmd_hash_with, scan, scan_with, window_hash, window_hash_with,
};
pub use cpu::{apply_filter, apply_filter_into, undo_filter, worst_case};
pub use detect::SimdLevel;
pub use device::{Device, TaskError};
pub use discover::{Discovered, Missing, discover, discover_few};
pub use loader::end_process;
pub use op::{CodecError, Operation, Task};
pub use opening::Opening;
