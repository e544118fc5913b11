//! Four interleaved loops in plain Rust. The additions of one hide the latency of the others'.

use outrigger_format::boundary::{GEAR, GearMasks};

use super::Lanes;

/// Appends the candidates of the lanes' bytes in any order. If they are dense, returns false with
/// only some of them.
pub(super) fn scan(data: &[u8], lanes: &Lanes<4>, masks: GearMasks, out: &mut Vec<u32>) -> bool {
    let limit = !masks.inline;
    let enough = out.len() + lanes.dense;
    let [a, b, c, d] = lanes.starts.map(|start| &data[start..start + lanes.run]);
    let [mut ha, mut hb, mut hc, mut hd] = [0u32; 4];
    for (offset, (((&a, &b), &c), &d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
        ha = (ha << 1).wrapping_add(GEAR[a as usize]);
        hb = (hb << 1).wrapping_add(GEAR[b as usize]);
        hc = (hc << 1).wrapping_add(GEAR[c as usize]);
        hd = (hd << 1).wrapping_add(GEAR[d as usize]);
        // One well-predicted branch for each lane costs less than joining them.
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

/// The rare case, in a function of its own to leave the loop's registers alone. Returns the number
/// of candidates.
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
