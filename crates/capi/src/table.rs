//! The fingerprint table.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use outrigger_format::Fingerprint;
use outrigger_offload::table::{Table, TableFull};

use crate::raw::{self, handle};
use crate::status::outrigger_status::{OUTRIGGER_DATA, OUTRIGGER_FULL};
use crate::status::{Error, outrigger_status, status, value};
use crate::types::outrigger_fingerprint;

/// Fingerprints with a number for each, and a summary vector that ends most lookups of fingerprints
/// which were never inserted. Many threads may look up at once, and changes wait for them. A task
/// uses the table in its state at the request: a change while such tasks are alive first copies the
/// table.
pub struct outrigger_table(RwLock<Arc<Table>>);

impl outrigger_table {
    fn new(table: Table) -> Option<Box<Self>> {
        Some(Box::new(Self(RwLock::new(Arc::new(table)))))
    }

    /// The present table.
    pub fn now(&self) -> Arc<Table> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(Arc::make_mut(&mut self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// An empty table for `capacity` entries, which does not grow. It takes 45 to 91 bytes for each
/// entry. Null after an error. Free it with outrigger_table_free().
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_new(capacity: usize) -> Option<Box<outrigger_table>> {
    value(None, || {
        // No larger table is addressable, and the attempt to allocate it would end the process.
        if capacity > 1 << 40 {
            return Err(Error::invalid(format!("a table for {capacity} entries")));
        }
        Ok(outrigger_table::new(Table::with_capacity(capacity)))
    })
}

/// Frees it. Tasks that look up in it may continue. Null is no error.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_free(table: Option<Box<outrigger_table>>) {
    drop(table);
}

/// The number of entries; 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_len(table: Option<&outrigger_table>) -> usize {
    value(0, || Ok(handle(table, "table")?.now().len()))
}

/// The most entries; 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_capacity(table: Option<&outrigger_table>) -> usize {
    value(0, || Ok(handle(table, "table")?.now().capacity()))
}

/// Inserts `count` entries, or replaces the numbers of existing ones. If the table becomes full
/// (OUTRIGGER_FULL), the entries before the one that did not fit are inserted. Their number is
/// stored in `inserted`, unless it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_table_insert(
    table: Option<&outrigger_table>,
    keys: *const outrigger_fingerprint,
    places: *const u64,
    count: usize,
    inserted: *mut usize,
) -> outrigger_status {
    status(|| {
        let table = handle(table, "table")?;
        // SAFETY: C's contract.
        let (keys, places, inserted) = unsafe {
            let inserted = raw::room(inserted, usize::from(!inserted.is_null()), "inserted")?;
            (raw::slice(keys, count, "keys")?, raw::slice(places, count, "places")?, inserted.first_mut())
        };
        let entries: Vec<(Fingerprint, u64)> =
            keys.iter().zip(places).map(|(key, place)| ((*key).into(), *place)).collect();
        let done = table.change(|table| table.insert_many(&entries));
        if let Some(inserted) = inserted {
            inserted.write(done.map_or_else(|full: TableFull| full.inserted, |()| entries.len()));
        }
        done.map_err(|full| Error::new(OUTRIGGER_FULL, full.to_string()))
    })
}

/// Removes `count` entries, and stores how many of them existed in `removed`, unless it is null.
/// Until outrigger_table_refresh(), the summary vector may still answer "perhaps" for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_table_remove(
    table: Option<&outrigger_table>,
    keys: *const outrigger_fingerprint,
    count: usize,
    removed: *mut usize,
) -> outrigger_status {
    status(|| {
        let table = handle(table, "table")?;
        // SAFETY: C's contract.
        let (keys, removed) = unsafe {
            let removed = raw::room(removed, usize::from(!removed.is_null()), "removed")?;
            (raw::slice(keys, count, "keys")?, removed.first_mut())
        };
        let keys: Vec<Fingerprint> = keys.iter().map(|key| (*key).into()).collect();
        let gone = table.change(|table| table.remove_many(&keys));
        if let Some(removed) = removed {
            removed.write(gone);
        }
        Ok(())
    })
}

/// Looks `count` fingerprints up: `found[i]` is 1 and `places[i]` the number of the entry, or both
/// are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_table_lookup(
    table: Option<&outrigger_table>,
    keys: *const outrigger_fingerprint,
    count: usize,
    places: *mut u64,
    found: *mut u8,
) -> outrigger_status {
    /// Keys of a batch: enough to overlap their waits for memory, and few enough for the stack.
    const TOGETHER: usize = 256;
    status(|| {
        let table = handle(table, "table")?.now();
        // SAFETY: C's contract.
        let (keys, places, found) = unsafe {
            let places = raw::room(places, count, "places")?;
            (raw::slice(keys, count, "keys")?, places, raw::room(found, count, "found")?)
        };
        let mut answers = Vec::with_capacity(TOGETHER.min(count));
        let outs = places.chunks_mut(TOGETHER).zip(found.chunks_mut(TOGETHER));
        for (keys, (places, found)) in keys.chunks(TOGETHER).zip(outs) {
            let mut some = [Fingerprint([0; 32]); TOGETHER];
            some.iter_mut().zip(keys).for_each(|(some, key)| *some = (*key).into());
            answers.clear();
            table.lookup_many(&some[..keys.len()], &mut answers);
            for ((place, found), answer) in places.iter_mut().zip(found).zip(&answers) {
                place.write(answer.unwrap_or(0));
                found.write(answer.is_some().into());
            }
        }
        Ok(())
    })
}

/// Rebuilds the table and its summary vector without the removed entries.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_refresh(table: Option<&outrigger_table>) -> outrigger_status {
    status(|| {
        handle(table, "table")?.change(Table::refresh);
        Ok(())
    })
}

/// Removes all entries.
#[unsafe(no_mangle)]
pub extern "C" fn outrigger_table_clear(table: Option<&outrigger_table>) -> outrigger_status {
    status(|| {
        handle(table, "table")?.change(Table::clear);
        Ok(())
    })
}

/// The table as bytes, to be stored. At most `room` of them go to `out`. Their number, 24 for each
/// entry and 40, is stored in `written` (if not null), even if they do not fit (OUTRIGGER_SPACE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_table_save(
    table: Option<&outrigger_table>,
    out: *mut u8,
    room: usize,
    written: *mut usize,
) -> outrigger_status {
    status(|| {
        let table = handle(table, "table")?.now();
        // SAFETY: C's contract.
        let (out, written) = unsafe {
            let written = raw::room(written, usize::from(!written.is_null()), "written")?;
            (raw::room(out, room, "out")?, written.first_mut())
        };
        let mut bytes = Vec::new();
        table.save(&mut bytes);
        raw::put(&bytes, out, written)
    })
}

/// The table that outrigger_table_save() wrote, with room for `capacity` entries. Entries that do
/// not fit are dropped. Null if the bytes are damaged or something else, or after another error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outrigger_table_load(
    data: *const c_void,
    len: usize,
    capacity: usize,
) -> Option<Box<outrigger_table>> {
    value(None, || {
        // SAFETY: C's contract.
        let bytes = unsafe { raw::bytes(data, len, "data")? };
        if capacity > 1 << 40 {
            return Err(Error::invalid(format!("a table for {capacity} entries")));
        }
        let table =
            Table::load(bytes, capacity).map_err(|why| Error::new(OUTRIGGER_DATA, why.to_string()))?;
        Ok(outrigger_table::new(table))
    })
}
