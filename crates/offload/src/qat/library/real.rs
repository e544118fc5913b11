//! Tests the shim against the real library, if it is installed (or named by `OUTRIGGER_QATZIP`), on
//! a machine without a card. They cover its "no hardware" answers, and its sessions in software,
//! which have the same ABI. Without the library, the tests say so and do nothing.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_format::{Codec, CodecSpec};

use super::{Library, Session, Setup};
use crate::accelerator::Fault;
use crate::qat::{QatDevice, QatOptions, abi, lz4, room_for, status};
use crate::{Compressor, Decompressor};

/// The library's code for software in place of hardware.
const NO_HW: i32 = 11;
/// The library has one state for each process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn real() -> Option<(Arc<Library>, MutexGuard<'static, ()>)> {
    let named = std::env::var_os("OUTRIGGER_QATZIP");
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Library::open(named.as_deref()) {
        Ok(library) => Some((library, guard)),
        Err(why) if why.starts_with("no QATzip") => {
            outrigger_workload::lacking!("{why}");
            None
        }
        // It exists but is not the expected library.
        Err(why) => panic!("{why}"),
    }
}

fn text() -> Vec<u8> {
    (0..20_000)
        .flat_map(|n: u32| format!("{} is line {n}. ", n.wrapping_mul(2_654_435_761) >> 20).into_bytes())
        .collect()
}

#[test]
fn without_a_card_it_says_so() {
    let Some((library, _guard)) = real() else { return };
    if library.start().is_ok() {
        outrigger_workload::lacking!("there is a card");
        return;
    }
    for fault in
        [library.start().unwrap_err(), Session::new(&library, Setup::Gzip(1)).err().expect("no session")]
    {
        assert!(matches!(&fault, Fault::Lost(why) if why.contains("NO_HW")), "{fault}");
        assert!(fault.is_grave(), "the device stays out");
    }
    let why = QatDevice::open(&QatOptions::default()).err().expect("no device");
    assert!(why.contains("no QAT hardware"), "{why}");
    // Both are fine: a machine with memory that a card reaches, and one without.
    if let Some(region) = crate::device::HostMemory::allocate(&*library, 100_000) {
        assert!(region.bytes().len() >= 100_000 && region.bytes().as_ptr().addr().is_multiple_of(4096));
    }
}

#[test]
fn its_sessions_are_laid_out_as_ours() {
    let Some((library, _guard)) = real() else { return };
    let raw = text();
    for setup in [Setup::Gzip(1), Setup::Gzip(6), Setup::Deflate(4), Setup::Lz4] {
        let mut parameters = library.parameters(setup).expect("defaults");
        // Software is allowed only here, so that the test can check parameters and results.
        parameters.common.sw_backup = 1;
        let mut empty = abi::Session::EMPTY;
        // SAFETY: an empty session, which the call may fill.
        let code = unsafe { (library.init)(&raw mut empty, 1) };
        assert!([status::OK, status::DUPLICATE, NO_HW].contains(&code), "{}", status::name(code));
        let (mut session, code) = Session::set_up(&library, setup, &mut parameters);
        assert!([status::OK, status::DUPLICATE, NO_HW].contains(&code), "{}", status::name(code));
        assert!(session.room(raw.len()) >= raw.len() || session.room(raw.len()) == 0);
        let mut out = vec![0; room_for(raw.len()) + 4096];
        let (mut taken, mut made, mut more) = (raw.len() as c_uint, out.len() as c_uint, 0);
        // SAFETY: as in `Session::compress`.
        let code = unsafe {
            let (handle, source, target) = (&raw mut *session.raw, raw.as_ptr(), out.as_mut_ptr());
            (library.compress)(handle, source, &raw mut taken, target, &raw mut made, 1, &raw mut more)
        };
        assert_eq!((code, taken as usize), (status::OK, raw.len()), "{setup:?}: {}", status::name(code));
        out.truncate(made as usize);
        assert!(out.len() < raw.len() / 2, "{setup:?}: {} bytes of {}", out.len(), raw.len());
        let mut back = Vec::new();
        match setup {
            Setup::Lz4 => {
                // More than a block. Our device accepts at most 64 KiB.
                assert_eq!(out[..4], 0x184d_2204_u32.to_le_bytes());
                assert_eq!(lz4::block_of(&out).is_some(), raw.len() <= 64 << 10);
                continue;
            }
            Setup::Gzip(_) => Decompressor::new().decompress(Codec::Gzip, &out, raw.len(), &mut back),
            Setup::Deflate(_) => Decompressor::new().decompress(Codec::Deflate, &out, raw.len(), &mut back),
        }
        .unwrap_or_else(|why| panic!("{setup:?}: {why}"));
        assert!(back == raw, "{setup:?}");
        // It also reads the output of our codec.
        let codec = if matches!(setup, Setup::Gzip(_)) { Codec::Gzip } else { Codec::Deflate };
        let mut stored = Vec::new();
        Compressor::new().compress(CodecSpec { codec, level: 6 }, &raw, &mut stored);
        let mut back = vec![0; raw.len()];
        let (mut taken, mut made, mut more) = (stored.len() as c_uint, back.len() as c_uint, 0);
        // SAFETY: as in `Session::decompress`.
        let code = unsafe {
            let (handle, source, target) = (&raw mut *session.raw, stored.as_ptr(), back.as_mut_ptr());
            (library.decompress)(handle, source, &raw mut taken, target, &raw mut made, &raw mut more)
        };
        assert_eq!((code, made as usize), (status::OK, raw.len()), "{setup:?}: {}", status::name(code));
        assert!(back == raw, "{setup:?}");
    }
}
