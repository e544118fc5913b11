//! All integration tests of mounts without the kernel, and through it, in one executable.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod anonymous;
mod destage_order;
mod devices;
mod follow;
mod interrupts;
mod kernel;
mod live;
mod live_model;
mod overrides;
mod recorder;
mod shared;
mod support;
mod transports;
mod view;
