//! The column `times`: last access, then last change of the inode, each as its distance from the
//! last modification.
//!
//! Most files are made, written and read within seconds, so the distances are small. A time takes
//! two bytes if it equals the last modification's, and six if it is up to a minute from it.

use outrigger_format::catalogue::{OtherTimes, Time};
use outrigger_format::{Cursor, FormatError, Put as _};

const WHAT: &str = "times of an inode";
const SECOND: i64 = 1_000_000_000;

/// Encodes the times of an inode with this last modification.
pub(in crate::meta) fn encode(times: &OtherTimes, mtime: Time) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12);
    for time in [times.atime, times.ctime] {
        // Any two times have a distance: seconds wrap.
        bytes.put_varint(zigzag(time.secs.wrapping_sub(mtime.secs)));
        bytes.put_varint(zigzag(i64::from(time.nanos) - i64::from(mtime.nanos)));
    }
    bytes
}

/// The inverse of [`encode`].
pub(in crate::meta) fn decode(bytes: &[u8], mtime: Time) -> Result<OtherTimes, FormatError> {
    let mut cursor = Cursor::new(WHAT, bytes);
    let mut time = || -> Result<Time, FormatError> {
        let secs = mtime.secs.wrapping_add(unzigzag(cursor.varint()?));
        let nanos = unzigzag(cursor.varint()?).saturating_add(mtime.nanos.into());
        match u32::try_from(nanos) {
            Ok(nanos) if i64::from(nanos) < SECOND => Ok(Time { secs, nanos }),
            _ => Err(cursor.range("nanoseconds", nanos as u64)),
        }
    };
    let times = OtherTimes { atime: time()?, ctime: time()? };
    if !cursor.is_empty() {
        return Err(cursor.range("trailing bytes", cursor.rest().len() as u64));
    }
    Ok(times)
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        let times = [(0, 0), (-1, 999_999_999), (1_700_000_000, 5), (i64::MIN, 0), (i64::MAX, 999_999_999)]
            .map(|(secs, nanos)| Time { secs, nanos });
        for mtime in times {
            assert_eq!(encode(&OtherTimes { atime: mtime, ctime: mtime }, mtime), [0; 4]);
            for atime in times {
                for ctime in times {
                    let bytes = encode(&OtherTimes { atime, ctime }, mtime);
                    assert_eq!(decode(&bytes, mtime), Ok(OtherTimes { atime, ctime }));
                    (0..bytes.len()).for_each(|cut| assert!(decode(&bytes[..cut], mtime).is_err()));
                    assert!(decode(&[&bytes[..], &[0]].concat(), mtime).is_err());
                }
            }
        }
    }

    #[test]
    fn nanoseconds_out_of_range_are_refused() {
        let bytes = encode(&OtherTimes::default(), Time::default());
        assert!(decode(&bytes, Time { secs: 0, nanos: 1 }).is_ok());
        let bytes = encode(&OtherTimes::default(), Time { secs: 0, nanos: 1 });
        assert!(decode(&bytes, Time::default()).is_err());
        let late = Time { secs: 0, nanos: 999_999_999 };
        let bytes = encode(&OtherTimes { atime: late, ctime: late }, Time::default());
        assert!(decode(&bytes, Time { secs: 0, nanos: 1 }).is_err());
    }
}
