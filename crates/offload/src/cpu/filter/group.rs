//! Byte grouping for elements of two, four or eight bytes: first the first bytes of all elements,
//! then all second bytes, and so on. An incomplete element at the end stays there.
//!
//! Exponents of floating-point numbers and high bytes of counters then lie together, where an
//! entropy coder profits from them. The noise of mantissas lies together too, where the codec gives
//! up early.
//!
//! The highest byte of a bfloat16 or float32 holds the sign and seven of the exponent's eight bits.
//! Signs are noise, and the eighth bit would lie in a noisy plane. If elements are *rotated* by one
//! bit before grouping, the exponent fills that byte. (The exponent of a float64 has eleven bits.
//! Eight of them then lie in the highest byte, where seven were.)

/// Groups `raw` into `out`, which is as long.
pub(super) fn apply(width: usize, rotated: bool, raw: &[u8], out: &mut [u8]) {
    let elements = raw.len() / width;
    let (planes, rest) = out.split_at_mut(elements * width);
    let (whole, left) = raw.split_at(elements * width);
    rest.copy_from_slice(left);
    match (width, rotated) {
        (2, false) => split(whole, planes, elements, |pair: &[u8; 2], plane| pair[plane]),
        (2, true) => split(whole, planes, elements, |pair: &[u8; 2], plane| {
            (u16::from_le_bytes(*pair).rotate_left(1) >> (8 * plane)) as u8
        }),
        (4, false) => split(whole, planes, elements, |four: &[u8; 4], plane| four[plane]),
        (4, true) => split(whole, planes, elements, |four: &[u8; 4], plane| {
            (u32::from_le_bytes(*four).rotate_left(1) >> (8 * plane)) as u8
        }),
        _ => split_eight(whole, planes, elements, u32::from(rotated)),
    }
}

fn split_eight(whole: &[u8], planes: &mut [u8], elements: usize, rotation: u32) {
    // Eight elements at a time: their eight words form a byte matrix, which is transposed.
    let tiled = elements & !7;
    for at in (0..tiled).step_by(8) {
        let tile = transpose(std::array::from_fn(|row| word(whole, (at + row) * 8).rotate_left(rotation)));
        for (plane, row) in tile.into_iter().enumerate() {
            planes[plane * elements + at..][..8].copy_from_slice(&row.to_le_bytes());
        }
    }
    for at in tiled..elements {
        let bytes = word(whole, at * 8).rotate_left(rotation).to_le_bytes();
        for (plane, byte) in bytes.into_iter().enumerate() {
            planes[plane * elements + at] = byte;
        }
    }
}

/// Undoes the grouping into `out`, which is as long as `grouped`.
pub(super) fn undo(width: usize, rotated: bool, grouped: &[u8], out: &mut [u8]) {
    let elements = grouped.len() / width;
    let (planes, left) = grouped.split_at(elements * width);
    let (whole, rest) = out.split_at_mut(elements * width);
    rest.copy_from_slice(left);
    if elements == 0 {
        return;
    }
    match (width, rotated) {
        (2, false) => join_two(planes, whole, |pair| pair),
        (2, true) => join_two(planes, whole, |pair| u16::from_le_bytes(pair).rotate_right(1).to_le_bytes()),
        (4, false) => join_four(planes, whole, |four| four),
        (4, true) => join_four(planes, whole, |four| u32::from_le_bytes(four).rotate_right(1).to_le_bytes()),
        _ => join_eight(planes, whole, elements, u32::from(rotated)),
    }
}

fn join_two(planes: &[u8], whole: &mut [u8], element: impl Fn([u8; 2]) -> [u8; 2]) {
    let (first, second) = planes.split_at(planes.len() / 2);
    for ((pair, &a), &b) in whole.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
        *pair = element([a, b]);
    }
}

fn join_four(planes: &[u8], whole: &mut [u8], element: impl Fn([u8; 4]) -> [u8; 4]) {
    let (low, high) = planes.split_at(planes.len() / 2);
    let ((first, second), (third, fourth)) = (low.split_at(low.len() / 2), high.split_at(high.len() / 2));
    let elements = whole.as_chunks_mut::<4>().0.iter_mut();
    for ((((four, &a), &b), &c), &d) in elements.zip(first).zip(second).zip(third).zip(fourth) {
        *four = element([a, b, c, d]);
    }
}

fn join_eight(planes: &[u8], whole: &mut [u8], elements: usize, rotation: u32) {
    let tiled = elements & !7;
    for at in (0..tiled).step_by(8) {
        let tile = transpose(std::array::from_fn(|plane| word(planes, plane * elements + at)));
        for (row, value) in tile.into_iter().enumerate() {
            whole[(at + row) * 8..][..8].copy_from_slice(&value.rotate_right(rotation).to_le_bytes());
        }
    }
    for at in tiled..elements {
        let bytes = std::array::from_fn(|plane| planes[plane * elements + at]);
        let element = u64::from_le_bytes(bytes).rotate_right(rotation);
        whole[at * 8..][..8].copy_from_slice(&element.to_le_bytes());
    }
}

/// One loop for each plane, whose strided loads the compiler turns into shuffles.
fn split<const WIDTH: usize>(
    whole: &[u8],
    planes: &mut [u8],
    elements: usize,
    byte: impl Fn(&[u8; WIDTH], usize) -> u8,
) {
    if elements == 0 {
        return;
    }
    let chunks = whole.as_chunks::<WIDTH>().0;
    // In blocks that stay in the nearest cache while each plane reads them.
    const BLOCK: usize = 2048;
    for (number, block) in chunks.chunks(BLOCK).enumerate() {
        for (index, plane) in planes.chunks_exact_mut(elements).enumerate() {
            let plane = &mut plane[number * BLOCK..][..block.len()];
            for (to, chunk) in plane.iter_mut().zip(block) {
                *to = byte(chunk, index);
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

    /// The element before grouping, computed bit by bit.
    fn turned(element: &[u8]) -> Vec<u8> {
        let bits = 8 * element.len();
        let bit = |at: usize| element[at / 8] >> (at % 8) & 1;
        let byte = |place: usize| (0..8).map(|at| bit((8 * place + at + bits - 1) % bits) << at).sum();
        (0..element.len()).map(byte).collect()
    }

    #[test]
    fn planes_follow_each_other_and_the_rest_stays() {
        for (width, rotated) in [2, 4, 8].into_iter().flat_map(|width| [(width, false), (width, true)]) {
            for elements in [0, 1, 7, 8, 9, 2047, 2048, 2049, 5000] {
                for left in 0..width {
                    let raw: Vec<u8> =
                        (0..elements * width + left).map(|at| (at * 7 + at / 251) as u8).collect();
                    let (whole, rest) = raw.split_at(elements * width);
                    let whole: Vec<u8> =
                        if rotated { whole.chunks(width).flat_map(turned).collect() } else { whole.to_vec() };
                    let mut expected: Vec<u8> = (0..width)
                        .flat_map(|plane| whole.iter().skip(plane).step_by(width).copied())
                        .collect();
                    expected.extend_from_slice(rest);
                    let (mut grouped, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
                    apply(width, rotated, &raw, &mut grouped);
                    assert!(grouped == expected, "{elements} elements of {width}, {rotated}, {left} more");
                    undo(width, rotated, &grouped, &mut back);
                    assert!(back == raw, "{elements} elements of {width}, {rotated}, {left} more");
                }
            }
        }
    }

    #[test]
    fn exponents_are_alone_in_the_last_plane() {
        let numbers: [f32; 4] = [1.5, -1.25, 2.0, -0.75];
        let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut grouped = vec![0; raw.len()];
        apply(4, true, &raw, &mut grouped);
        assert_eq!(grouped[12..], [127, 127, 128, 126]);
        assert_eq!(grouped[..4], [0, 1, 0, 1], "signs come last");
    }
}
