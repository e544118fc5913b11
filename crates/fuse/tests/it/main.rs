//! All integration tests of mounts without the kernel, and through it, in one executable.

mod devices;
mod follow;
mod kernel;
mod live;
mod live_model;
mod nameless;
mod overrides;
mod recorder;
mod shared;
mod support;
mod transports;
mod view;
