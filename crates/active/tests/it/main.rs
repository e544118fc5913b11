//! All integration tests of programs over stored data, in one executable.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

mod components;
mod foreground;
mod groups;
mod hosts;
mod identity;
mod jobs;
mod passes;
mod patterns;
mod placed;
mod plugins;
mod reads;
mod rules;
mod sandbox;
mod support;
mod written;
