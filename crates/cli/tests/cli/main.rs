//! Drives the real binary: what is promised on the command line, in exit codes and in sentences.

mod active;
mod agents;
mod bad_input;
mod basics;
mod beside;
mod cluster;
mod codecs;
mod demo;
mod experiments;
mod history;
mod live;
mod load;
mod mounts;
mod offload;
mod packs;
mod postgres;
mod restoring;
mod rules;
mod run;
mod shared;
mod site;
mod tars;
mod trees;
mod writable;
