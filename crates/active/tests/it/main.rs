//! All integration tests of programs over stored data, in one executable.

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
