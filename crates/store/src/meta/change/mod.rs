//! What a commit does to the tree, for every engine alike.
//!
//! | file | holds |
//! | --- | --- |
//! | `commit.rs` | what each [`crate::meta::Change`] means, in order |
//! | `exact.rs` | those that say what names and inodes are |
//! | `edit.rs` | the steps they are made of: each keeps the history, versions, links and totals right |
//! | `rows.rs` | what an engine does for them |
//! | `row.rs`, `times.rs` | what is in an inode's row |
//! | `keep.rs`, `totals.rs` | how many contents are kept; totals, and the epochs at which somebody may look |

mod commit;
mod edit;
mod exact;
pub(super) mod keep;
pub(super) mod row;
mod rows;
pub(super) mod times;
pub(super) mod totals;

pub(super) use commit::apply_all;
pub(super) use edit::{Editor, Start};
pub(super) use rows::Rows;
