//! The order in which a shared mount makes room: data that is written again before its turn is not
//! stored.

use outrigger_fuse::fs::OpenFlags;
use outrigger_fuse::live::Order;
use outrigger_fuse::measures::{Status, Watched as _};
use outrigger_fuse::shared::SharedOptions;
use rustix::fs::OFlags;

use super::hosts::Cluster;
use crate::support::rewritten::{ROOM, Rewritten};

/// Percent of the written bytes that a mount stored.
fn stored_of_rewritten(order: Order) -> Option<f64> {
    let cluster = Cluster::new()?;
    let options = SharedOptions { order, staging_bytes: ROOM, ..SharedOptions::new(2) };
    let (one, two) = (cluster.mount_with(options), cluster.mount());
    let open = one.open("file", OpenFlags::RDWR | OFlags::CREATE).unwrap();
    let mut workload = Rewritten::new(10_000, 800);
    workload.run(usize::MAX, |offset, bytes| open.write(offset, bytes).unwrap());
    assert!(workload.is(&open.read().unwrap()));
    open.close().unwrap();
    assert!(workload.is(&two.cat("file").unwrap()));
    let mut status = Status::default();
    one.volume.watch(&mut status);
    println!("{order:?}: {} and {} of {} bytes", status.destaged_bytes, status.new_bytes, workload.written);
    assert_eq!((status.destage_failures, status.outside_changes), (0, 0));
    // What is due is seldom a part of a chunk. In other orders, committed chunks are cut again.
    let is_whole = status.new_bytes * 100 <= status.destaged_bytes * 105;
    assert!(is_whole || order != Order::default(), "neighbours of what is due were cut again");
    cluster.check();
    Some(100.0 * status.destaged_bytes as f64 / workload.written as f64)
}

#[test]
fn data_that_is_written_again_soon_is_stored_once() {
    let Some(destage_aware) = stored_of_rewritten(Order::LeastRecentlyWritten) else { return };
    let reverse = stored_of_rewritten(Order::MostRecentlyWritten).unwrap();
    // A fifth of the requests are new.
    assert!((19.0..=24.0).contains(&destage_aware), "{destage_aware} %");
    assert!(reverse > destage_aware + 12.0, "{reverse} % and {destage_aware} %");
}

#[test]
fn two_hosts_that_write_to_a_file_with_full_logs_lose_nothing() {
    let Some(cluster) = Cluster::new() else { return };
    let mount = || cluster.mount_with(SharedOptions { staging_bytes: ROOM, ..SharedOptions::new(2) });
    let (one, two) = (mount(), mount());
    let open = one.open("file", OpenFlags::RDWR | OFlags::CREATE).unwrap();
    let mut workload = Rewritten::new(4_000, 800);
    workload.run(2_000, |offset, bytes| open.write(offset, bytes).unwrap());
    // Behind all that the first one writes.
    let behind = 64 << 20;
    let other = two.open("file", OpenFlags::RDWR).unwrap();
    other.write(behind, b"behind").unwrap();
    other.close().unwrap();
    workload.run(2_000, |offset, bytes| open.write(offset, bytes).unwrap());
    open.close().unwrap();
    assert_eq!(two.stat("file").unwrap().size, behind + 6);
    let found = two.cat("file").unwrap();
    assert!(workload.is(&found[..workload.len()]));
    let (hole, rest) = found[workload.len()..].split_at(behind as usize - workload.len());
    assert!(hole.iter().all(|byte| *byte == 0) && rest == b"behind");
    cluster.check();
}
