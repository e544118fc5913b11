//! Drives the real binary: what is promised on the command line, in exit codes and in sentences.

mod active;
mod bad_input;
mod basics;
mod beside;
mod codecs;
mod demo;
mod experiments;
mod history;
mod live;
mod mounts;
mod offload;
mod packs;
mod postgres;
mod readme;
mod restoring;
mod run;
mod sentences;
mod tars;
mod trees;
mod writable;
