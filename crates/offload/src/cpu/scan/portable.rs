//! Four interleaved loops in plain Rust: the additions of one hide the latency of the others'.

use outrigger_format::boundary::{GEAR, GearMasks};

use super::Lanes;

/// Appends the candidates of the lanes' bytes in any order; `false`, with some of them, when they are dense.
pub(super) fn scan(data: &[u8], lanes: &Lanes<4>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    let limit = !masks.loose;
    let enough = out.len() + lanes.dense;
    let [a, b, c, d] = lanes.starts.map(|start| &data[start..start + lanes.run]);
    let [mut ha, mut hb, mut hc, mut hd] = [0u32; 4];
    for (offset, (((&a, &b), &c), &d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
        ha = (ha << 1).wrapping_add(GEAR[a as usize]);
        hb = (hb << 1).wrapping_add(GEAR[b as usize]);
        hc = (hc << 1).wrapping_add(GEAR[c as usize]);
        hd = (hd << 1).wrapping_add(GEAR[d as usize]);
        // One well-predicted branch a lane costs less than joining them.
        if ha <= limit && report(0, offset, ha, lanes, masks, out) > enough {
            return false;
        }
        if hb <= limit && report(1, offset, hb, lanes, masks, out) > enough {
            return false;
        }
        if hc <= limit && report(2, offset, hc, lanes, masks, out) > enough {
            return false;
        }
        if hd <= limit && report(3, offset, hd, lanes, masks, out) > enough {
            return false;
        }
    }
    true
}

/// The rare case, kept out of the loop's registers; returns how many candidates there are.
#[cold]
#[inline(never)]
fn report(
    lane: usize,
    offset: usize,
    h: u32,
    lanes: &Lanes<4>,
    masks: GearMasks,
    out: &mut Vec<u32>,
) -> usize {
    lanes.emit(lane, offset, h, masks, out);
    out.len()
}
