//! All integration tests of the C library, in one executable.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod common;
mod examples;
mod header;
mod install;
mod misuse;
