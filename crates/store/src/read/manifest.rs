//! Walks a manifest: the entries of a byte range, in order, reading only the nodes that the range
//! needs.

use outrigger_format::{Entry, Fingerprint, Node, Root};

use crate::error::{Context, Result};

/// Reads manifest nodes by name.
pub trait NodeSource {
    /// The verified bytes of a node.
    ///
    /// # Errors
    /// When it is missing or damaged.
    fn read_node(&self, fingerprint: &Fingerprint) -> Result<Vec<u8>>;
}

/// Calls `visit` with the position in the file and each entry that overlaps `from..to`, in order,
/// until it returns `false`.
///
/// # Errors
/// Those of the source, of `visit`, and `Damaged` for a node that does not match its parent's
/// record.
pub fn walk_entries(
    source: &dyn NodeSource,
    root: &Root,
    from: u64,
    to: u64,
    visit: &mut dyn FnMut(u64, Entry) -> Result<bool>,
) -> Result<()> {
    match root {
        Root::Empty => Ok(()),
        Root::Inline(entries) => walk_leaf(entries, 0, from, to, visit).map(|_| ()),
        Root::Tree { level, len, fingerprint } => {
            walk_node(source, fingerprint, *level, *len, 0, from, to, visit).map(|_| ())
        }
    }
}

fn walk_leaf(
    entries: &[Entry],
    mut at: u64,
    from: u64,
    to: u64,
    visit: &mut dyn FnMut(u64, Entry) -> Result<bool>,
) -> Result<bool> {
    for entry in entries {
        let end = at + entry.len();
        if at >= to {
            return Ok(false);
        }
        if end > from && !visit(at, *entry)? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

#[expect(clippy::too_many_arguments, reason = "one recursion; a struct would only rename them")]
fn walk_node(
    source: &dyn NodeSource,
    fingerprint: &Fingerprint,
    level: u8,
    len: u64,
    mut at: u64,
    from: u64,
    to: u64,
    visit: &mut dyn FnMut(u64, Entry) -> Result<bool>,
) -> Result<bool> {
    let bytes = source.read_node(fingerprint)?;
    let node = Node::decode(&bytes, level, len).context(|| format!("manifest node {fingerprint}"))?;
    match node {
        Node::Leaf(entries) => walk_leaf(&entries, at, from, to, visit),
        Node::Inner { level, children } => {
            for (child, child_len) in children {
                if at >= to {
                    return Ok(false);
                }
                let end = at + child_len;
                if end > from && !walk_node(source, &child, level - 1, child_len, at, from, to, visit)? {
                    return Ok(false);
                }
                at = end;
            }
            Ok(true)
        }
    }
}
