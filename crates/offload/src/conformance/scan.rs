//! Boundary candidates.

use outrigger_format::boundary::{GearMasks, scan_reference};

use super::{LENGTHS, contents, run};
use crate::op::Scan;
use crate::{Device, Task};

pub(super) fn check_scan(device: &mut dyn Device) {
    for length in LENGTHS {
        for (name, content) in contents(length + 77) {
            // History of 0 to 32 bytes and more, with unaligned starts.
            for history in [0, 1, 31, 32, 33, 77] {
                let (before, data) = content[..length + history].split_at(history);
                for bits in [7, 8, 12, 14, 20] {
                    let masks = GearMasks::for_average(1 << bits);
                    // Elements that the vectors already have must stay.
                    let (mut expected, mut got) = (vec![1], vec![1]);
                    scan_reference(before, data, masks, &mut expected);
                    let task = Scan { history: before, data, masks, out: &mut got };
                    run(device, Task::Scan(task)).expect("scan");
                    assert!(
                        expected == got,
                        "{}: scan of {length} bytes of {name} after {history}, average 2^{bits}: {} candidates \
                         instead of {}",
                        device.name(),
                        got.len() - 1,
                        expected.len() - 1,
                    );
                }
            }
        }
    }
}
