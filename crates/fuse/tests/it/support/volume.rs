//! A writable volume of a [`Place`], and what a program does with it.

use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{FileSystem, Handle, NewNode, OpenFlags};
use outrigger_fuse::live::{LiveOptions, LiveVolume};
use outrigger_fuse::report::Reports;
use outrigger_store::ErrorKind;
use outrigger_store::gc::{GcOptions, GcProgress, collect};
use outrigger_workload::{Rng, eventually};
use rustix::fs::OFlags;

use super::{Place, ROOT_USER};

pub fn options() -> LiveOptions {
    LiveOptions {
        staging_bytes: 8 << 20,
        batch_bytes: 2 << 20,
        // Nothing is stored for being idle.
        idle: Duration::from_secs(3600),
        ..LiveOptions::new(2)
    }
}

pub fn mount(place: &Place, options: LiveOptions) -> LiveVolume {
    let reports = || {
        let said = Arc::clone(&place.said);
        Reports::new(move |text| said.lock().unwrap().push(text.to_string()))
    };
    mount_again(|| LiveVolume::open(Arc::new(place.open()), options.clone(), reports()))
}

/// Mounts where a volume was before. A child that another test starts has the lock of that one,
/// too, until it runs its program.
pub fn mount_again(open: impl Fn() -> outrigger_store::Result<LiveVolume>) -> LiveVolume {
    let mut mounted = None;
    eventually("no other mount has the staging directory", || {
        let opened = open();
        let is_busy = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
        mounted = Some(opened);
        !is_busy
    });
    mounted.expect("it was tried").unwrap()
}

pub fn create(volume: &LiveVolume, parent: u64, name: &[u8]) -> (u64, Handle) {
    let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
    let flags = OpenFlags::RDWR | OFlags::CREATE;
    let (entry, opened) = volume.create(ROOT_USER, parent, name, new, flags).unwrap();
    (entry.attr.number, opened.handle)
}

pub fn write(volume: &LiveVolume, (number, handle): (u64, Handle), offset: u64, data: &[u8]) {
    volume.write(ROOT_USER, number, handle, offset, data, false).unwrap();
}

pub fn read(volume: &LiveVolume, (number, handle): (u64, Handle), len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.read(number, handle, 0, len, &mut bytes).unwrap();
    bytes
}

pub fn close(volume: &LiveVolume, (number, handle): (u64, Handle)) {
    volume.flush(ROOT_USER, number, handle).unwrap();
    volume.release(number, handle);
}

pub fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Reclaims all that can be, beside the mount.
pub fn reclaim(place: &Place) {
    let options = GcOptions { live_ratio: 1.0, threads: 2, grace_secs: 0, ..GcOptions::default() };
    for _ in 0..2 {
        collect(&place.open(), &options, &GcProgress::default()).unwrap();
    }
}
