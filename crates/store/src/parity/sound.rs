//! Verifies a whole pack, as it lies in any engine.

use outrigger_format::Fingerprint;

use crate::error::{Error, Result};
use crate::meta::PackRow;
use crate::packs::PackReader;

/// Checks that `packs` has the pack of `row`, and that every chunk in it has its fingerprint.
///
/// # Errors
/// `Damaged`, with the reason; those of the engine.
pub(super) fn verify(packs: &PackReader, row: &PackRow) -> Result<()> {
    let damaged = |what: &str| Err(Error::damaged(format!("pack {}: {what}", row.id)));
    let header = packs.read_header(row.id)?;
    let footer = packs.read_footer(row.id)?;
    if header.kind != row.kind || footer.fingerprints().len() != row.chunks as usize {
        return damaged("it is another pack than its row describes");
    }
    let mut expected: Vec<Vec<Option<Fingerprint>>> =
        footer.frames().iter().map(|frame| vec![None; frame.chunks.into()]).collect();
    for (slot, fingerprint) in (0..).zip(footer.fingerprints()) {
        let place = footer.position(slot).and_then(|(frame, position)| {
            expected.get_mut(usize::from(frame))?.get_mut(usize::from(position))
        });
        match place {
            Some(place) => *place = Some(*fingerprint),
            None => return damaged("its footer names a chunk that it has no place for"),
        }
    }
    // Nobody can say more of a pack that nobody can read.
    if packs.is_destroyed(row.id)? {
        return Ok(());
    }
    for (number, expected) in (0u16..).zip(&expected) {
        let frame = packs.load(row.id, &footer, number)?;
        let names = frame.names();
        // A second copy of a chunk in the pack has no slot of its own.
        let is_right = |(name, expected): (&Fingerprint, &Option<Fingerprint>)| match expected {
            Some(expected) => name == expected,
            None => footer.find(name).is_some(),
        };
        if names.len() != expected.len() || !names.iter().zip(expected).all(is_right) {
            return damaged(&format!("frame {number} has chunks that do not match their fingerprints"));
        }
    }
    Ok(())
}
