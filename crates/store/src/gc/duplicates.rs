//! Compares the copy of a chunk that counts with its fingerprint, before other copies are given up.
//!
//! If a chunk has several copies, the mark goes to one (rule 16), and the others go with their
//! packs. That one's pack may be corrupt, and its footer only claim the chunk: then the last good
//! copy would go. So, where other clients' footers are not trusted (`verified/`), the marked copy's
//! frame is read first, unless this host has done that before. If it is bad, the victim's copy is
//! marked too, and copied with the pack's other chunks in use. Later marks avoid the corrupt pack
//! if there is another copy.
//!
//! Only chunks with several copies cost anything: those that two clients stored at once, and those
//! that were stored again because the first copy could not be verified.

use std::collections::BTreeSet;

use outrigger_format::{Fingerprint, PackId, Place};

use super::mark::Marker;
use super::report::GcReport;
use crate::error::Result;
use crate::meta::PackRow;
use crate::store::Store;

/// Chunks looked up at once.
const LOOKUPS: usize = 512;

/// Marks chunks of `victims` that are in use and whose marked copies elsewhere do not match their
/// packs' footers.
///
/// # Errors
/// Those of the index.
pub(super) fn keep_unproven(
    store: &Store,
    victims: &[&PackRow],
    marker: &Marker,
    report: &mut GcReport,
) -> Result<()> {
    let Some(verified) = store.verified() else { return Ok(()) };
    let mut doubted = BTreeSet::new();
    for victim in victims {
        let Some(footer) = store.index.footers().get(victim.id)? else { continue };
        let bits = marker.bits.pack(victim.id);
        let unmarked = (0..).zip(footer.fingerprints());
        let unmarked: Vec<(u32, Fingerprint)> = unmarked
            .filter(|(slot, _)| bits.is_none_or(|bits| !bits.get(*slot)))
            .map(|(slot, fingerprint)| (slot, *fingerprint))
            .collect();
        for part in unmarked.chunks(LOOKUPS) {
            let names: Vec<Fingerprint> = part.iter().map(|(_, fingerprint)| *fingerprint).collect();
            let mut found = Vec::new();
            store.index.lookup_batch(&names, &mut found);
            for (&(slot, fingerprint), candidates) in part.iter().zip(&found) {
                let mut marked = Vec::new();
                for place in candidates.iter().filter(|place| place.pack != victim.id) {
                    if is_marked(store, marker, place, &fingerprint)? {
                        marked.push(place);
                    }
                }
                if marked.is_empty() {
                    // Nothing needs it.
                    continue;
                }
                let mut is_proven = false;
                for place in &marked {
                    is_proven = is_proven || verified.proves(&store.packs, &store.index, *place)?;
                }
                if !is_proven {
                    marker.bits.set(Place { pack: victim.id, slot })?;
                    doubted.extend(marked.iter().map(|place| place.pack));
                }
            }
        }
    }
    report.unreadable.extend(doubted.iter().map(|pack| why(*pack)));
    Ok(())
}

/// True if the footer at `place` has that fingerprint, and the place is marked.
fn is_marked(store: &Store, marker: &Marker, place: Place, fingerprint: &Fingerprint) -> Result<bool> {
    if !marker.bits.pack(place.pack).is_some_and(|bits| bits.get(place.slot)) {
        return Ok(false);
    }
    let footer = store.index.footers().get(place.pack)?;
    Ok(footer.is_some_and(|footer| footer.fingerprints().get(place.slot as usize) == Some(fingerprint)))
}

fn why(pack: PackId) -> String {
    format!(
        "pack {pack}: its footer names chunks that it does not have; other copies of them were kept. `outrigger check --read-data` names the files that need it"
    )
}
