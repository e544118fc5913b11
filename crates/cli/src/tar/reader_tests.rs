use super::*;
use tar::Builder;

fn sample() -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let pax: [(&str, &[u8]); 5] = [
        ("mtime", b"12.5"),
        ("SCHILY.xattr.user.a", b"1\n2"),
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.realsize", b"2000"),
        ("GNU.sparse.name", b"sparse"),
    ];
    builder.append_pax_extensions(pax).unwrap();
    let mut map = b"2\n10\n3\n1000\n4\n".to_vec();
    map.resize(BLOCK, 0);
    map.extend_from_slice(b"abcdefg");
    for (kind, name, data) in [(EntryType::Regular, "x", &map[..]), (EntryType::Directory, "d/", b"")] {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o640);
        builder.append_data(&mut header, name, data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An entry, where its data lies, and its stored bytes.
type Read = (Entry, Vec<Extent>, Vec<u8>);

fn read_all(bytes: &[u8]) -> Result<Vec<Read>> {
    let (mut archive, mut all) = (Archive::new(bytes), Vec::new());
    while let Some(entry) = archive.next()? {
        let extents = archive.extents();
        let (mut data, mut part) = (Vec::new(), [0; 5]);
        while data.len() < 1 << 16 {
            match archive.read(&mut part)? {
                0 => break,
                read => data.extend_from_slice(&part[..read]),
            }
        }
        all.push((entry, extents, data));
    }
    Ok(all)
}

#[test]
fn sparse_files_have_their_holes() {
    let all = read_all(&sample()).unwrap();
    let (file, extents, data) = &all[0];
    assert_eq!((file.path.as_slice(), file.size, file.mode), (&b"sparse"[..], 2000, 0o640));
    assert_eq!(file.mtime, Time { secs: 12, nanos: 500_000_000 });
    assert_eq!(file.xattrs, [(b"user.a".to_vec(), b"1\n2".to_vec())]);
    let extent = |hole_before, start, len| Extent { hole_before, start, len };
    assert_eq!(extents, &[extent(10, 10, 3), extent(987, 1000, 4), extent(996, 2000, 0)]);
    assert_eq!(data, b"abcdefg");
    assert_eq!((all[1].0.kind, all.len()), (Kind::Directory, 2));
}

#[test]
fn no_changed_byte_brings_it_down() {
    let sample = sample();
    for at in 0..sample.len() {
        for flip in [1, 0x40, 0xff, sample[at] ^ b'S', sample[at] ^ 0x80] {
            let mut bytes = sample.clone();
            bytes[at] ^= flip;
            // The checksum is correct, so that the reader believes the header.
            let start = at / BLOCK * BLOCK;
            let block: [u8; BLOCK] = bytes[start..start + BLOCK].try_into().unwrap();
            let sum = format!("{:06o}\0 ", checksum(&block));
            if !(148..156).contains(&(at % BLOCK)) && block[257..262] == *b"ustar" {
                bytes[start + 148..start + 156].copy_from_slice(sum.as_bytes());
            }
            let _ = read_all(&bytes);
            let _ = read_all(&bytes[..at]);
        }
    }
}

/// Extended headers of `kind` without an entry after them, each with a comment of `len` bytes.
fn extended(kind: EntryType, len: usize, number: usize) -> Vec<u8> {
    let mut records = Vec::new();
    pax::append(&mut records, b"comment", &vec![b'c'; len]);
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(records.len() as u64);
    header.set_cksum();
    let padding = records.len().next_multiple_of(BLOCK) - records.len();
    [header.as_bytes(), &records[..], &vec![0; padding]].concat().repeat(number)
}

#[test]
fn extended_headers_are_bounded_together() {
    let why = |bytes: &[u8]| match read_all(bytes) {
        Err(TarError::Format(why)) => why,
        other => panic!("{other:?}"),
    };
    for kind in [EntryType::XHeader, EntryType::XGlobalHeader, EntryType::GNULongName] {
        let endless = [extended(kind, 1000, 1200), sample()].concat();
        assert!(why(&endless).contains("extended headers of an entry"), "{kind:?}");
        let empty = [extended(kind, 0, 3000), sample()].concat();
        assert!(why(&empty).contains("extended headers of an entry"), "{kind:?}");
    }
    let long = [extended(EntryType::XGlobalHeader, GLOBAL_MAX, 1), sample()].concat();
    assert!(why(&long).contains("global"), "{long:?}");
    // Headers of other entries do not count, and a global header replaces the one before.
    let usual = [extended(EntryType::XGlobalHeader, 40_000, 1), sample()].concat();
    let usual = [&usual[..usual.len() - 2 * BLOCK], &usual].concat();
    let many = [extended(EntryType::XHeader, 40_000, 20), usual].concat();
    assert_eq!(read_all(&many).unwrap().len(), 4);
}
