//! The runtime as its users see it: results, order, back-pressure, cancelling, ends; devices that
//! fail; placement.

mod basics;
mod choices;
mod common;
mod failures;
mod large;
mod order;
mod soak;
mod users;
