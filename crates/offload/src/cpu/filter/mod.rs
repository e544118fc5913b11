//! Filters, which change a frame's bytes before the codec, and are undone after it.
//! [`crate::Encoder`] decides when to use them. `docs/format.md` has their exact rules.

mod arm64;
mod group;
mod x86;

use outrigger_format::Filter;

/// Replaces `out` by the filtered bytes of `raw`, which have the same length. [`Filter::None`]
/// copies.
///
/// ```
/// use outrigger_format::Filter;
/// let (mut grouped, mut back) = (Vec::new(), Vec::new());
/// outrigger_offload::apply_filter(Filter::Group2, b"1a2b3c", &mut grouped);
/// assert_eq!(grouped, b"123abc");
/// outrigger_offload::undo_filter(Filter::Group2, &grouped, &mut back);
/// assert_eq!(back, b"1a2b3c");
/// ```
pub fn apply_filter(filter: Filter, raw: &[u8], out: &mut Vec<u8>) {
    // Every old byte is overwritten.
    out.resize(raw.len(), 0);
    apply_filter_into(filter, raw, out);
}

/// [`apply_filter`] into memory of the length of `raw`.
///
/// # Panics
/// If `out` has another length.
pub fn apply_filter_into(filter: Filter, raw: &[u8], out: &mut [u8]) {
    match filter {
        Filter::None | Filter::X86 | Filter::Arm64(_) => {
            out.copy_from_slice(raw);
            in_place(filter, out, Direction::Apply);
        }
        _ => group::apply(filter.planes(), is_rotated(filter), raw, out),
    }
}

/// Replaces `out` by the bytes that [`apply_filter`] turned into `filtered`. Accepts any bytes:
/// even if no filter wrote them, it produces bytes of the same length.
pub fn undo_filter(filter: Filter, filtered: &[u8], out: &mut Vec<u8>) {
    match filter {
        Filter::None | Filter::X86 | Filter::Arm64(_) => {
            out.clear();
            out.extend_from_slice(filtered);
            undo_in_place(filter, out);
        }
        _ => {
            out.resize(filtered.len(), 0);
            group::undo(filter.planes(), is_rotated(filter), filtered, out);
        }
    }
}

/// True if [`undo_in_place`] can undo the filter.
pub(crate) fn is_in_place(filter: Filter) -> bool {
    matches!(filter, Filter::None | Filter::X86 | Filter::Arm64(_))
}

/// [`undo_filter`] in place. Does nothing for grouping.
pub(crate) fn undo_in_place(filter: Filter, bytes: &mut [u8]) {
    in_place(filter, bytes, Direction::Undo);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Apply,
    Undo,
}

fn in_place(filter: Filter, bytes: &mut [u8], direction: Direction) {
    match filter {
        Filter::X86 => x86::convert(bytes, direction),
        Filter::Arm64(phase) => arm64::convert(bytes, phase, direction),
        _ => {}
    }
}

/// True if elements are rotated before they are grouped.
fn is_rotated(filter: Filter) -> bool {
    matches!(filter, Filter::Float2 | Filter::Float4 | Filter::Float8)
}

/// The share, from 0 to 1, of `bytes` that are calls and addresses which [`Filter::X86`] would
/// convert, if the bytes are code for x86-64.
pub(crate) fn x86_density(bytes: &[u8]) -> f32 {
    x86::density(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in which opcodes of both machines are frequent.
    fn opcodes(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let byte = (state >> 56) as u8;
                match byte % 11 {
                    0 => 0xe8,
                    1 => 0xe9,
                    2 => 0x8b,
                    3 => 0x8d,
                    4 => 0x05,
                    5 => 0xff,
                    6 => 0x00,
                    7 => 0x25,
                    8 => 0x94,
                    9 => 0x90,
                    _ => byte,
                }
            })
            .collect()
    }

    #[test]
    fn everything_comes_back_at_every_length() {
        let (mut filtered, mut back) = (Vec::new(), Vec::new());
        for filter in Filter::ALL {
            for len in (0..300).chain([4095, 4096, 4097, 70_001]) {
                let raw = opcodes(len, len as u64 * 31 + u64::from(filter.byte()));
                apply_filter(filter, &raw, &mut filtered);
                assert_eq!(filtered.len(), len);
                undo_filter(filter, &filtered, &mut back);
                assert!(back == raw, "{filter:?}, {len} bytes");
                // And in reverse: every sequence of bytes is the filtered form of exactly one raw
                // frame.
                undo_filter(filter, &raw, &mut back);
                apply_filter(filter, &back, &mut filtered);
                assert!(filtered == raw, "{filter:?}, {len} bytes, undone first");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_comes_back(raw: Vec<u8>, seed: u64) {
            let (mut filtered, mut back) = (Vec::new(), Vec::new());
            for filter in Filter::ALL {
                for raw in [&raw, &opcodes(raw.len() * 7, seed)] {
                    apply_filter(filter, raw, &mut filtered);
                    undo_filter(filter, &filtered, &mut back);
                    assert_eq!(&back, raw);
                }
            }
        }
    }
}
