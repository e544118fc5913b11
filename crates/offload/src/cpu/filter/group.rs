//! Byte grouping: of elements of two, four or eight bytes, first all first bytes, then all second ones, and so on. What is
//! left at the end (less than an element) stays there.
//!
//! The exponents of floating-point numbers and the high bytes of counters then lie together, where an entropy coder finds
//! them, and the noise of mantissas lies together, where the codec stops trying.

/// Fills `out`, as long as `raw`.
pub(super) fn apply(width: usize, raw: &[u8], out: &mut [u8]) {
    let elements = raw.len() / width;
    let (planes, rest) = out.split_at_mut(elements * width);
    let (whole, left) = raw.split_at(elements * width);
    rest.copy_from_slice(left);
    match width {
        2 => split(whole, planes, elements, |pair: &[u8; 2]| *pair),
        4 => split(whole, planes, elements, |four: &[u8; 4]| *four),
        _ => {
            // Eight elements at a time, each a machine word: a byte matrix, turned over.
            let tiled = elements & !7;
            for at in (0..tiled).step_by(8) {
                let tile = transpose(std::array::from_fn(|row| word(whole, (at + row) * 8)));
                for (plane, row) in tile.into_iter().enumerate() {
                    planes[plane * elements + at..][..8].copy_from_slice(&row.to_le_bytes());
                }
            }
            for at in tiled..elements {
                for plane in 0..8 {
                    planes[plane * elements + at] = whole[at * 8 + plane];
                }
            }
        }
    }
}

/// Fills `out`, as long as `grouped`.
pub(super) fn undo(width: usize, grouped: &[u8], out: &mut [u8]) {
    let elements = grouped.len() / width;
    let (planes, left) = grouped.split_at(elements * width);
    let (whole, rest) = out.split_at_mut(elements * width);
    rest.copy_from_slice(left);
    if elements == 0 {
        return;
    }
    match width {
        2 => {
            let (first, second) = planes.split_at(elements);
            for ((pair, &a), &b) in whole.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
                *pair = [a, b];
            }
        }
        4 => {
            let (low, high) = planes.split_at(2 * elements);
            let ((first, second), (third, fourth)) = (low.split_at(elements), high.split_at(elements));
            let elements = whole.as_chunks_mut::<4>().0.iter_mut();
            for ((((four, &a), &b), &c), &d) in elements.zip(first).zip(second).zip(third).zip(fourth) {
                *four = [a, b, c, d];
            }
        }
        _ => {
            let tiled = elements & !7;
            for at in (0..tiled).step_by(8) {
                let tile = transpose(std::array::from_fn(|plane| word(planes, plane * elements + at)));
                for (row, value) in tile.into_iter().enumerate() {
                    whole[(at + row) * 8..][..8].copy_from_slice(&value.to_le_bytes());
                }
            }
            for at in tiled..elements {
                for plane in 0..8 {
                    whole[at * 8 + plane] = planes[plane * elements + at];
                }
            }
        }
    }
}

/// One loop a plane: strided loads that the compiler turns into shuffles.
fn split<const WIDTH: usize>(
    whole: &[u8],
    planes: &mut [u8],
    elements: usize,
    bytes: impl Fn(&[u8; WIDTH]) -> [u8; WIDTH],
) {
    if elements == 0 {
        return;
    }
    let chunks = whole.as_chunks::<WIDTH>().0;
    // In blocks that stay in the nearest cache while each plane passes over them.
    const BLOCK: usize = 2048;
    for (number, block) in chunks.chunks(BLOCK).enumerate() {
        for (index, plane) in planes.chunks_exact_mut(elements).enumerate() {
            let plane = &mut plane[number * BLOCK..][..block.len()];
            for (to, chunk) in plane.iter_mut().zip(block) {
                *to = bytes(chunk)[index];
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// Byte k of row i becomes byte i of row k.
fn transpose(mut rows: [u64; 8]) -> [u64; 8] {
    for (distance, mask) in
        [(4, 0x0000_0000_ffff_ffff_u64), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ff)]
    {
        let shift = 8 * distance;
        for row in (0..8).filter(|row| row & distance == 0) {
            let (upper, lower) = (rows[row], rows[row + distance]);
            rows[row] = (upper & mask) | (lower & mask) << shift;
            rows[row + distance] = (upper >> shift & mask) | (lower & !mask);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_follow_each_other_and_the_rest_stays() {
        for width in [2, 4, 8] {
            for elements in [0, 1, 7, 8, 9, 2047, 2048, 2049, 5000] {
                for left in 0..width {
                    let raw: Vec<u8> =
                        (0..elements * width + left).map(|at| (at * 7 + at / 251) as u8).collect();
                    let mut expected: Vec<u8> = (0..width)
                        .flat_map(|plane| raw[..elements * width].iter().skip(plane).step_by(width).copied())
                        .collect();
                    expected.extend_from_slice(&raw[elements * width..]);
                    let (mut grouped, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
                    apply(width, &raw, &mut grouped);
                    assert!(grouped == expected, "{elements} elements of {width}, {left} more");
                    undo(width, &grouped, &mut back);
                    assert!(back == raw, "{elements} elements of {width}, {left} more");
                }
            }
        }
    }
}
