//! Pax records: `LENGTH KEY=VALUE\n`. The length counts itself and the line end, and the value may
//! hold any byte.

use outrigger_format::catalogue::Time;

/// Appends a record.
pub fn append(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(format!("{len} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The records, in order; `None` when they are not well formed.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut records = Vec::new();
    // Some programs pad with zeros.
    while bytes.first().is_some_and(|&byte| byte != 0) {
        let blank = bytes.iter().position(|&byte| byte == b' ')?;
        let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[len..];
    }
    Some(records)
}

/// Parses `-1.5` as seconds and nanoseconds: the nanoseconds count forward.
pub fn parse_time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (secs, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let secs: i64 = secs.parse().ok()?;
    let nanos: u32 = format!("{fraction:0<9}")[..9].parse().ok()?;
    Some(match (negative, nanos) {
        (false, _) => Time { secs, nanos },
        (true, 0) => Time { secs: -secs, nanos: 0 },
        (true, _) => Time { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
    })
}

/// The inverse of [`parse_time`].
pub fn print_time(time: Time) -> String {
    let Time { secs, nanos } = time;
    match (secs, nanos) {
        (_, 0) => secs.to_string(),
        (0.., _) => format!("{secs}.{nanos:09}"),
        _ => format!("-{}.{:09}", -(secs + 1), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_whatever_they_hold() {
        let mut bytes = Vec::new();
        let long = vec![b'x'; 990];
        let values: [&[u8]; 5] = [b"", b"a", b"with\nline\nends=", &[0, 255, b'\n'], &long];
        for value in values {
            append(&mut bytes, b"SCHILY.xattr.user.k", value);
        }
        let records = parse(&bytes).unwrap();
        assert_eq!(records.iter().map(|(_, value)| value.as_slice()).collect::<Vec<_>>(), values);
        assert!(parse(b"999 a=b\n").is_none() && parse(b"x a=b\n").is_none() && parse(b"5 ab\n").is_none());
        assert!(parse(b"2 a=b\n").is_none() && parse(b"0 a=b\n").is_none());
    }

    #[test]
    fn times_read_back() {
        for (secs, nanos) in [(0, 0), (5, 1), (-1, 500_000_000), (-3, 0), (-3, 999_999_999), (1 << 40, 123)] {
            let time = Time { secs, nanos };
            assert_eq!(parse_time(print_time(time).as_bytes()), Some(time));
        }
        assert_eq!(parse_time(b"1.5"), Some(Time { secs: 1, nanos: 500_000_000 }));
        assert_eq!(parse_time(b"1.1234567899"), Some(Time { secs: 1, nanos: 123_456_789 }));
        assert_eq!((parse_time(b"x"), parse_time(b"1.x"), parse_time(b"")), (None, None, None));
    }
}
