//! Table lookups.

use outrigger_format::{Fingerprint, FingerprintKind};

use super::run;
use crate::op::Lookup;
use crate::table::Table;
use crate::{Device, Task, hash};

pub(super) fn check_lookup(device: &mut dyn Device) {
    // Fingerprints that are spread evenly, and others that all begin in the same bucket.
    let uniform = |n: u64| hash(FingerprintKind::Blake3, &n.to_le_bytes());
    let crowded = |n: u64| {
        let mut fingerprint = uniform(n);
        fingerprint.0[..8].fill(0xff);
        fingerprint
    };
    for capacity in [0, 1, 5, 300, 20_000] {
        for make in [&uniform as &dyn Fn(u64) -> Fingerprint, &crowded] {
            // Probes over a whole crowded table take long.
            let entries = (capacity as u64).min(if make(0).0[0] == 0xff { 300 } else { u64::MAX });
            let mut table = Table::with_capacity(capacity);
            let there: Vec<_> = (0..entries).map(|n| (make(n), n << 32 | 7)).collect();
            table.insert_many(&there).expect("room");
            // Every third is removed. Half of the lookups ask for fingerprints that were never
            // inserted.
            let gone: Vec<Fingerprint> = (0..entries).step_by(3).map(make).collect();
            table.remove_many(&gone);
            for refreshed in [false, true] {
                if refreshed {
                    table.refresh();
                }
                for count in [0, 1, 31, 32, 33, 64, 2 * entries] {
                    let keys: Vec<Fingerprint> = (0..count).map(make).collect();
                    let mut got = vec![Some(1)];
                    run(device, Task::Lookup(Lookup { table: &table, keys: &keys, out: &mut got }))
                        .expect("lookup");
                    let known = |n: u64| (n < entries && !n.is_multiple_of(3)).then_some(n << 32 | 7);
                    let expected: Vec<_> = std::iter::once(Some(1)).chain((0..count).map(known)).collect();
                    assert!(got == expected, "{}: {count} keys, {entries} entries", device.name());
                }
            }
        }
    }
}
