use std::io::IoSlice;

use super::*;
use crate::backend::MemoryBackend;
use crate::testing::{Fault, FaultyBackend, Op, Plan, conformance};

fn place(text: &str, backend: impl Backend + 'static) -> Place {
    Place::new(Tier::parse(text).unwrap(), Arc::new(backend))
}

fn write(backend: &dyn Backend, id: u64, bytes: &[u8]) -> Result<()> {
    let mut writer = backend.create(PackId(id))?;
    for part in bytes.chunks(1000) {
        writer.append(&[IoSlice::new(part)])?;
    }
    writer.finish()?;
    writer.seal()
}

fn read(backend: &dyn Backend, id: u64) -> Vec<u8> {
    let mut bytes = vec![0; backend.len(PackId(id)).unwrap().unwrap() as usize];
    backend.read_at(PackId(id), 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn conforms_whichever_tier_takes_the_packs() {
    for fill in ["1000G", "50000", "1"] {
        let first = place(&format!("file:/a?fill={fill}"), MemoryBackend::new());
        let last = place("file:/b", MemoryBackend::new());
        conformance::backend(&TieredBackend::new(vec![first, last]));
    }
}

/// A pool below a directory: ids of new packs can be chosen by where the pool will have them.
#[test]
fn packs_can_be_placed_where_one_tier_can_do_it() {
    let pool = MemoryBackend::on_hosts(&["h0", "h1", "h2"]);
    let tiers = vec![place("file:/a?fill=10K", MemoryBackend::new()), place("rados://p/n", pool.clone())];
    let backend = TieredBackend::new(tiers);
    assert_eq!(backend.hosts().unwrap(), pool.hosts().unwrap());
    assert_eq!(crate::backend::place_on(&backend, "h1").unwrap(), "h1");
    for id in 1..=8 {
        assert_eq!(backend.locate(PackId(id)).unwrap(), pool.locate(PackId(id)).unwrap());
        write(&backend, id, &[id as u8; 4096]).unwrap();
    }
    // The hosts of a directory are unknown.
    assert_eq!(backend.locate(PackId(1)).unwrap(), [""; 0]);
    assert_eq!(backend.locate(PackId(8)).unwrap(), pool.locate(PackId(8)).unwrap());
    let directories =
        vec![place("file:/a?fill=1", MemoryBackend::new()), place("file:/b", MemoryBackend::new())];
    assert_eq!(TieredBackend::new(directories).hosts().unwrap(), [""; 0]);
}

#[test]
fn new_packs_go_to_the_first_tier_below_its_bound() {
    let (a, b) = (MemoryBackend::new(), MemoryBackend::new());
    let tiers = vec![place("file:/a?fill=10K", a.clone()), place("file:/b", b.clone())];
    let backend = TieredBackend::new(tiers);
    for id in 1..=5 {
        write(&backend, id, &[id as u8; 4096]).unwrap();
    }
    assert_eq!(a.list().unwrap(), [1, 2, 3].map(PackId), "the third was begun below the bound");
    assert_eq!(b.list().unwrap(), [4, 5].map(PackId));
    for id in 1..=5 {
        assert_eq!(read(&backend, id), [id as u8; 4096]);
    }
    // Ids are used once in all of them.
    for id in [1, 5] {
        assert_eq!(write(&backend, id, b"x").unwrap_err().kind(), ErrorKind::Exists);
    }
    backend.remove(PackId(4)).unwrap();
    assert_eq!(backend.list().unwrap(), [1, 2, 3, 5].map(PackId));
    assert_eq!(backend.read_at(PackId(4), 0, &mut [0]).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Whichever call fails, and whenever: the pack is whole in a tier below, and nothing of it is
/// above.
#[test]
fn a_tier_that_is_full_is_passed_over() {
    let bytes: Vec<u8> = (0..10_000u32).map(|n| (n * 7 / 3) as u8).collect();
    let steps = [(Op::Create, 1), (Op::Append, 1), (Op::Append, 5), (Op::Append, 10), (Op::Seal, 1)];
    for (op, n) in steps {
        for fault in [Fault::Fail(ErrorKind::Full), Fault::FailAfter(ErrorKind::Full)] {
            let (a, b, c) = (MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new());
            let full =
                |inner: &MemoryBackend| FaultyBackend::new(inner.clone(), Plan::new(1).calls(op, n.., fault));
            let tiers = vec![
                place("file:/a?fill=1G", full(&a)),
                place("file:/b?fill=1G", full(&b)),
                place("file:/c", c.clone()),
            ];
            let backend = TieredBackend::new(tiers);
            write(&backend, 1, &bytes).unwrap();
            assert_eq!(read(&backend, 1), bytes, "{op:?} {n} {fault:?}");
            assert_eq!(a.list().unwrap(), [], "{op:?} {n}");
            // The second one gets the kept bytes in one piece, and so may take all of it.
            assert_eq!([b.list().unwrap(), c.list().unwrap()].concat(), [PackId(1)], "{op:?} {n}");
        }
    }
    // The last one has nowhere to go on to; and other errors are errors.
    let full = Plan::new(1).nth(Op::Append, 3, Fault::Fail(ErrorKind::Full));
    let tiers = vec![
        place("file:/a?fill=1", MemoryBackend::new()),
        place("file:/b", FaultyBackend::new(MemoryBackend::new(), full)),
    ];
    tiers[0].backend.claim("x").unwrap();
    write(&*tiers[0].backend, 9, b"full").unwrap();
    let error = write(&TieredBackend::new(tiers), 1, &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    let broken = Plan::new(1).nth(Op::Append, 3, Fault::Fail(ErrorKind::Io));
    let tiers = vec![
        place("file:/a?fill=1G", FaultyBackend::new(MemoryBackend::new(), broken)),
        place("file:/b", MemoryBackend::new()),
    ];
    assert_eq!(write(&TieredBackend::new(tiers), 1, &bytes).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn what_was_moved_is_found() {
    let (a, b) = (MemoryBackend::new(), MemoryBackend::new());
    let backend = TieredBackend::new(vec![place("file:/a?fill=1G", a.clone()), place("file:/b", b.clone())]);
    write(&backend, 1, b"bytes").unwrap();
    assert_eq!(read(&backend, 1), b"bytes");
    write(&b, 1, b"bytes").unwrap();
    a.remove(PackId(1)).unwrap();
    assert_eq!(read(&backend, 1), b"bytes");
    assert_eq!(backend.list().unwrap(), [PackId(1)]);
}

/// Every tier has every text; what an interruption left out is put by the same call.
#[test]
fn texts_are_in_all_tiers() {
    let (a, b) = (MemoryBackend::new(), MemoryBackend::new());
    let failing = FaultyBackend::new(b.clone(), Plan::default());
    let backend =
        TieredBackend::new(vec![place("file:/a?fill=1G", a.clone()), place("file:/b", failing.clone())]);
    failing.set_plan(Plan::new(1).nth(Op::Text, 2, Fault::Fail(ErrorKind::Io)));
    assert_eq!(backend.put_text("keys/a", "slot").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!((a.texts("keys").unwrap().len(), b.texts("keys").unwrap().len()), (1, 0));
    assert_eq!(backend.put_text("keys/a", "other").unwrap_err().kind(), ErrorKind::Exists);
    backend.put_text("keys/a", "slot").unwrap();
    assert_eq!(b.text("keys/a").unwrap().as_deref(), Some("slot"));
    assert_eq!(backend.put_text("keys/a", "slot").unwrap_err().kind(), ErrorKind::Exists);

    a.remove_text("keys/a").unwrap();
    b.put_text("keys/b", "slot").unwrap();
    assert_eq!(backend.texts("keys").unwrap(), ["a", "b"]);
    assert_eq!(backend.text("keys/a").unwrap().as_deref(), Some("slot"));
    backend.remove_text("keys/a").unwrap();
    assert_eq!(backend.texts("keys").unwrap(), ["b"]);

    // Whose packs they are, all tiers must say alike.
    a.claim("one").unwrap();
    assert_eq!(backend.claimed().unwrap(), None);
    b.claim("other").unwrap();
    assert_eq!(backend.claimed().unwrap(), None);
    assert_eq!(backend.claim("one").unwrap_err().kind(), ErrorKind::Exists);
}
