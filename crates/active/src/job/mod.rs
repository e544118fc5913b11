//! A job's data, as its row keeps it. Nothing here runs anything.

mod confinement;
mod held;
pub mod limits;
mod printed;
mod program;
pub mod records;
pub mod spec;
mod written;

pub use confinement::{DESTINATIONS_MAX, Destination, Mode};
pub use held::Held;
pub use program::Component;
pub(crate) use program::{is_bundled, names_inputs};
pub use written::{AHEAD, Attach, Written};
