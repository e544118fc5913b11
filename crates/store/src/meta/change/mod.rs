//! Changes of the tree by a commit, for every engine alike.
//!
//! | file | holds |
//! | --- | --- |
//! | `commit.rs` | the meaning of each [`crate::meta::Change`], in order |
//! | `exact.rs` | changes that say what names and inodes are |
//! | `edit.rs` | the steps they are made of: each keeps the history, versions, links and totals right |
//! | `rows.rs` | an engine's part in them |
//! | `row.rs`, `times.rs` | the contents of an inode's row |
//! | `keep.rs`, `totals.rs` | how many contents are kept; totals, and the epochs that are still visible |

mod commit;
mod edit;
mod exact;
pub(super) mod keep;
pub(super) mod row;
mod rows;
pub(super) mod times;
pub(super) mod totals;

pub(super) use commit::{apply_all, check_name};
pub(super) use edit::{Editor, Start};
pub(super) use rows::Rows;
