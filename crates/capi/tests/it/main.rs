//! All integration tests of the C library, in one executable.

mod common;
mod examples;
mod header;
mod install;
mod misuse;
