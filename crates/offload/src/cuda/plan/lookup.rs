//! `lookup`, and changes to a table on the device.

use outrigger_format::Fingerprint;

use super::super::kernel;
use super::super::lane::Argument::{At, Long, Word};
use super::super::lane::{Address, Area, Argument, Lane};
use super::{Step, word};
use crate::accelerator::Fault;
use crate::table::Table;

/// Keys of one block.
const THREADS: usize = 128;
const SLOT_BYTES: usize = 32;
const BUCKET_BYTES: usize = 64;
const BLOCK_BYTES: usize = 32;

/// A table in a device's memory: its slots, followed by its summary vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resident {
    pub(crate) at: Address,
    pub(crate) slot_bytes: usize,
    pub(crate) summary_bytes: usize,
}

impl Resident {
    /// The layout of a table at `at`.
    pub(crate) fn of(table: &Table, at: Address) -> Self {
        let (slot_bytes, summary_bytes) =
            (size_of_val(table.slot_words()), size_of_val(table.summary_words()));
        Self { at, slot_bytes, summary_bytes }
    }

    pub(crate) fn bytes(self) -> usize {
        self.slot_bytes + self.summary_bytes
    }

    pub(crate) fn slots(self) -> usize {
        self.slot_bytes / SLOT_BYTES
    }
}

/// The four kernel parameters that describe a table.
pub(super) fn arguments(table: Option<Resident>) -> [Argument; 4] {
    match table {
        Some(table) => [
            At(table.at),
            Long((table.slot_bytes / BUCKET_BYTES - 1) as u64),
            At(table.at.plus(table.slot_bytes)),
            Long((table.summary_bytes / BLOCK_BYTES - 1) as u64),
        ],
        None => [At(Address::NONE), Long(0), At(Address::NONE), Long(0)],
    }
}

fn send_keys(lane: &mut dyn Lane, keys: &[Fingerprint]) -> Result<Address, Fault> {
    lane.send(Area::List, keys.len() * 32, &mut |list| {
        list.as_chunks_mut().0.iter_mut().zip(keys).for_each(|(place, key)| *place = key.0);
    })
}

pub(crate) fn begin(
    lane: &mut dyn Lane,
    table: Option<Resident>,
    keys: &[Fingerprint],
) -> Result<Step, Fault> {
    if keys.is_empty() {
        return Ok(Step::default());
    }
    let list = send_keys(lane, keys)?;
    let bytes = keys.len() * 9;
    let places = lane.memory(Area::Result, bytes)?;
    let mut parameters = vec![At(list), Word(keys.len() as u32)];
    parameters.extend(arguments(table));
    parameters.extend([At(places), At(places.plus(keys.len() * 8))]);
    lane.launch(kernel::TABLE_LOOKUP, keys.len().div_ceil(THREADS), 0, &parameters)?;
    Ok(Step { bytes, ..Step::default() })
}

pub(crate) fn finish(count: usize, bytes: &[u8], out: &mut Vec<Option<u64>>) {
    let (places, found) = bytes.split_at(count * 8);
    let places = places.as_chunks().0.iter().map(|place| u64::from_le_bytes(*place));
    out.extend(places.zip(found).map(|(place, &found)| (found != 0).then_some(place)));
}

/// Inserts entries, or replaces their places. The keys must differ, and all entries must fit. The
/// result is one word: how many were added.
pub(crate) fn insert(
    lane: &mut dyn Lane,
    table: Resident,
    entries: &[(Fingerprint, u64)],
) -> Result<Step, Fault> {
    let count = entries.len();
    let list = lane.send(Area::List, count * 40, &mut |list| {
        let (keys, places) = list.split_at_mut(count * 32);
        keys.as_chunks_mut().0.iter_mut().zip(entries).for_each(|(slot, (key, _))| *slot = key.0);
        let places = places.as_chunks_mut().0.iter_mut();
        places.zip(entries).for_each(|(slot, (_, place))| *slot = place.to_le_bytes());
    })?;
    let counts = zeroed(lane)?;
    let mut parameters = vec![At(list), At(list.plus(count * 32)), Word(count as u32)];
    parameters.extend(arguments(Some(table)));
    parameters.push(At(counts));
    lane.launch(kernel::TABLE_INSERT, count.div_ceil(THREADS), 0, &parameters)?;
    Ok(Step { bytes: 8, ..Step::default() })
}

/// Removes entries. The result is one word: how many of them existed.
pub(crate) fn remove(lane: &mut dyn Lane, table: Resident, keys: &[Fingerprint]) -> Result<Step, Fault> {
    let list = send_keys(lane, keys)?;
    let counts = zeroed(lane)?;
    let mut parameters = vec![At(list), Word(keys.len() as u32)];
    parameters.extend(arguments(Some(table)));
    parameters.push(At(counts));
    lane.launch(kernel::TABLE_REMOVE, keys.len().div_ceil(THREADS), 0, &parameters)?;
    Ok(Step { bytes: 8, ..Step::default() })
}

/// Copies the entries of `old` into `new`, whose memory may hold anything. The new summary vector
/// has no removed entries. The result is one word: the number of entries.
pub(crate) fn refresh(lane: &mut dyn Lane, old: Resident, new: Address) -> Result<Step, Fault> {
    let words = old.bytes() / 8;
    lane.launch(kernel::TABLE_CLEAR, words.div_ceil(THREADS), 0, &[At(new), Long(words as u64)])?;
    let counts = zeroed(lane)?;
    let slots = old.slots();
    let mut parameters = vec![At(old.at), Long(slots as u64)];
    parameters.extend(arguments(Some(Resident { at: new, ..old })));
    parameters.push(At(counts));
    lane.launch(kernel::TABLE_REFRESH, slots.div_ceil(THREADS), 0, &parameters)?;
    Ok(Step { bytes: 8, ..Step::default() })
}

/// The zeroed counter of a change.
fn zeroed(lane: &mut dyn Lane) -> Result<Address, Fault> {
    let counts = lane.memory(Area::Result, 8)?;
    lane.launch(kernel::TABLE_CLEAR, 1, 0, &[At(counts), Long(1)])?;
    Ok(counts)
}

/// The counter's value after a change.
pub(crate) fn count(bytes: &[u8]) -> usize {
    word(bytes, 0) as usize
}
