//! Devices that are opened while a writer is at work: a short put does not wait for them, a long
//! one uses them, and none depends on them.
#![cfg(feature = "testing")]

use std::io::{self, Read};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::gc_support;

use gc_support::{put_bytes, put_stream, read, scratch, unique};
use outrigger_format::{CodecChoice, Reason};
use outrigger_offload::Opening;
use outrigger_offload::placement::{Objective, Policy};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{SimDevice, SimOptions, Speed};
use outrigger_store::ops::stats::stats;
use outrigger_store::table_cache::TableCacheOptions;
use outrigger_store::{Profile, Store, StoreConfig};
use outrigger_workload::eventually;

/// A runtime that spares the processor wherever it can.
fn runtime() -> Runtime {
    let sim = SimDevice::new(SimOptions { time_scale: 0.1, ..SimOptions::new("sim:0", Speed::PCIE5_GPU) });
    let policy =
        Policy { objective: Objective::Cpu, cpu_slack: 1000.0, codec_slack: 1e6, ..Policy::default() };
    Runtime::builder().cpu_threads(2).device(Box::new(sim)).policy(policy).build()
}

fn init(dir: &std::path::Path, codec: &str) -> Store {
    let codec = CodecChoice::parse(codec).unwrap();
    Store::init(&dir.join("store"), &StoreConfig { codec, ..Profile::Default.config().unwrap() }).unwrap()
}

/// Bytes of which the second half comes when devices are open.
struct Halves {
    bytes: Vec<u8>,
    at: usize,
    opening: Arc<Opening>,
    lets: Mutex<Option<std::sync::mpsc::Sender<()>>>,
}

impl Read for Halves {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let half = self.bytes.len() / 2;
        if self.at == half
            && let Some(lets) = self.lets.lock().unwrap().take()
        {
            drop(lets);
            eventually("the devices are open", || self.opening.is_over());
        }
        let end = if self.at < half { half } else { self.bytes.len() };
        let len = buffer.len().min(end - self.at);
        buffer[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

#[test]
fn a_put_that_has_begun_gets_the_devices_that_are_open_by_then() {
    let dir = scratch();
    let store = init(dir.path(), "zstd:1");
    let (lets, go) = channel::<()>();
    let opening = Opening::after(1 << 20, move || {
        let _ = go.recv();
        Some(runtime())
    });
    store.use_devices_once_open(Arc::clone(&opening), Some(TableCacheOptions::default()));
    assert!(store.devices().is_none() && store.table_cache().is_none() && store.frame_devices().is_none());
    let bytes: Vec<u8> = unique(1, 48 << 20).into_iter().map(|byte| byte & 0x3f).collect();
    let source = Halves { bytes: bytes.clone(), at: 0, opening, lets: Mutex::new(Some(lets)) };
    put_stream(&store, "file", source).unwrap();
    let runtime = store.devices().expect("they are open");
    let device = &runtime.metrics().devices[1];
    assert!(device.tasks > 5 && device.given_up == 0, "{device:?}");
    assert!(store.table_cache().is_some() && store.frame_devices().is_some());
    assert!(read(&store, "file") == bytes);
}

#[test]
fn a_small_put_opens_nothing_and_one_that_ends_meanwhile_waits_for_nothing() {
    let dir = scratch();
    let store = init(dir.path(), "zstd:1");
    let (says, said) = channel();
    let (lets, go) = channel::<()>();
    let opening = Opening::after(4 << 20, move || {
        says.send(()).expect("somebody listens");
        let _ = go.recv();
        Some(runtime())
    });
    store.use_devices_once_open(Arc::clone(&opening), None);
    put_bytes(&store, "small", vec![1, 2, 3]).unwrap();
    assert!(said.try_recv().is_err(), "three bytes are no work for a device");
    let bytes = unique(2, 12 << 20);
    put_bytes(&store, "large", bytes.clone()).unwrap();
    said.recv().expect("they are being opened");
    assert!(!opening.is_over() && read(&store, "large") == bytes);
    drop(store);
    lets.send(()).expect("they are still being opened");
    eventually("it ends by itself", || opening.is_over());
}

#[test]
fn devices_that_cannot_be_opened_leave_the_processor_to_do_it() {
    let dir = scratch();
    for (codec, reason) in [("zstd:1", Reason::Policy), ("gzip:1@sim,zstd:1@cpu", Reason::Unsuitable)] {
        let dir = dir.path().join(codec);
        let store = init(&dir, codec);
        let opening = Opening::after(1, || panic!("a driver is broken"));
        store.use_devices_once_open(Arc::clone(&opening), Some(TableCacheOptions::default()));
        let bytes: Vec<u8> = unique(3, 12 << 20).into_iter().map(|byte| byte & 0x3f).collect();
        put_bytes(&store, "file", bytes.clone()).unwrap();
        eventually("it has failed", || opening.is_over());
        put_bytes(&store, "more", bytes.iter().map(|byte| byte ^ 0x15).collect()).unwrap();
        assert!(store.devices().is_none() && read(&store, "file") == bytes);
        let frames = stats(&store, usize::MAX).unwrap().frames;
        let expected = [reason, if reason == Reason::Policy { reason } else { Reason::Absent }];
        let mut data = frames.iter().filter(|(key, _)| key.kind == "data" && key.codec == "zstd");
        assert!(data.all(|(key, _)| expected.contains(&key.reason)), "{frames:?}");
    }
}

/// A device that does not help gets copies of a few tasks, by which that is found out, and no task
/// that the writer waits for.
#[test]
fn a_device_that_would_be_late_is_left_alone() {
    let dir = scratch();
    let store = init(dir.path(), "zstd:1");
    let sim = SimDevice::new(SimOptions { time_scale: 20.0, ..SimOptions::new("sim:0", Speed::SLOW) });
    let policy = Policy { explore_every: 0, check_every: 0, check_first: 0, ..Policy::default() };
    let runtime = Arc::new(Runtime::builder().cpu_threads(2).device(Box::new(sim)).policy(policy).build());
    store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
    let bytes: Vec<u8> = unique(4, 64 << 20).into_iter().map(|byte| byte & 0x3f).collect();
    put_bytes(&store, "file", bytes.clone()).unwrap();
    // Two of each class and decade of sizes; there are two classes, and frames of two decades.
    let device = &runtime.metrics().devices[1];
    assert!(device.tasks + device.waiting as u64 + device.running as u64 <= 8, "{device:?}");
    assert_eq!(runtime.metrics().devices[0].tasks, 0, "the writer's own threads did all");
    assert!(read(&store, "file") == bytes);
    let frames = stats(&store, usize::MAX).unwrap().frames;
    // On a machine with busy processors it may be in time now and then.
    let data = |of_device: bool| {
        let frames = frames.iter().filter(|(key, _)| key.kind == "data");
        frames
            .filter(|(key, _)| !of_device || key.reason == Reason::Device)
            .map(|(_, of)| of.frames)
            .sum::<u64>()
    };
    assert!(8 * data(true) <= data(false), "{frames:?}");
}
