//! Figure 9 through the product: the staging log of a mount and its flusher, without a kernel.

use std::sync::Arc;
use std::time::Duration;

use outrigger_format::catalogue::FileKind;
use outrigger_fuse::fs::{Caller, FileSystem, NewNode, OpenFlags, ROOT};
use outrigger_fuse::live::{LiveOptions, LiveVolume, Order};
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_fuse::report::Reports;
use outrigger_store::{Profile, Store};
use outrigger_workload::{Rewrite, rewrite_bytes, rewrites};
use rustix::fs::OFlags;

use crate::lab::{Failed, Lab, check};

const SEGMENT: usize = 32 << 10;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// Percent of the written bytes that a mount's flusher hashes and compresses, with `permille` of a
/// thousand requests that write again within a quarter of the log.
pub fn stored(lab: &Lab, order: Order, permille: u64) -> Result<f64, Failed> {
    let (staging_bytes, count) = lab.scale.pick((8 << 20, 1000), (32 << 20, 10_000), (256 << 20, 80_000));
    let dir = lab.room()?;
    let path = dir.path().join("store");
    Store::init(&path, &Profile::Default.config()?)?;
    let store = Arc::new(Store::open(&path, false)?);
    // Nothing is stored for being idle.
    let idle = Duration::from_secs(3600);
    let batch_bytes = staging_bytes / 2;
    let options = LiveOptions { order, staging_bytes, batch_bytes, idle, ..LiveOptions::new(lab.threads) };
    let volume = LiveVolume::open(store, options, Reports::new(|text| eprintln!("{text}")))?;
    let new = NewNode { kind: FileKind::File, mode: 0o644, umask: 0, rdev: 0 };
    let flags = OpenFlags::RDWR | OFlags::CREATE;
    let (entry, opened) = volume.create(CALLER, ROOT, b"file", new, flags).map_err(std::io::Error::from)?;
    let (number, handle) = (entry.attr.number, opened.handle);
    let mut bytes = vec![0; SEGMENT];
    let mut newest = Vec::new();
    for request in rewrites(1, count, permille, staging_bytes / SEGMENT as u64 / 4) {
        rewrite_bytes(1, request, &mut bytes);
        let offset = request.block * SEGMENT as u64;
        volume.write(CALLER, number, handle, offset, &bytes, false).map_err(std::io::Error::from)?;
        newest.resize(newest.len().max(request.block as usize + 1), request);
        newest[request.block as usize] = request;
    }
    volume.destage_all()?;
    is_what_was_written(&volume, (number, handle), &newest)?;
    volume.release(number, handle);
    let mut status = Status::default();
    volume.watch(&mut status);
    volume.close()?;
    Ok(100.0 * status.destaged_bytes as f64 / (count * SEGMENT as u64) as f64)
}

fn is_what_was_written(
    volume: &LiveVolume,
    (number, handle): (u64, u64),
    newest: &[Rewrite],
) -> Result<(), Failed> {
    let (mut expected, mut found) = (vec![0; SEGMENT], Vec::new());
    for request in newest {
        rewrite_bytes(1, *request, &mut expected);
        found.clear();
        let offset = request.block * SEGMENT as u64;
        volume.read(number, handle, offset, SEGMENT, &mut found).map_err(std::io::Error::from)?;
        check(found == expected, format!("block {} is not what was written", request.block))?;
    }
    Ok(())
}
