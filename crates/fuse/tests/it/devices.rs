//! Write-back through a device that works, fails, hangs, writes wrong results, or lies about the
//! chunks that it has found. Every acknowledged byte is read back, before a crash and after, and
//! nothing in the store is damaged.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use outrigger_fuse::fs::{FileSystem, Handle, ROOT};
use outrigger_fuse::live::LiveVolume;
use outrigger_fuse::measures::{Status, Watched};
use outrigger_fuse::report::Reports;
use outrigger_offload::placement::{Objective, Policy};
use outrigger_offload::runtime::Runtime;
use outrigger_offload::sim::{Faults, SimControl, SimDevice, SimOptions, Speed};
use outrigger_store::check::{CheckOptions, CheckProgress, check};
use outrigger_store::table_cache::TableCacheOptions;

use support::volume::{close, create, mount, options, random, read, write};
use support::{Place, find, read_whole};

/// A volume over a device that gets whatever it can do.
struct Mounted {
    volume: LiveVolume,
    control: SimControl,
    runtime: Arc<Runtime>,
}

fn mount_with(place: &Place, faults: Faults) -> Mounted {
    let options_of_device =
        SimOptions { faults, time_scale: 0.1, ..SimOptions::new("sim:0", Speed::PCIE5_GPU) };
    let device = SimDevice::new(options_of_device);
    let control = device.control();
    // Every result is compared: a wrong fingerprint that got through would fail the reader. A hung
    // device is not waited for long.
    let policy = Policy {
        objective: Objective::Cpu,
        cpu_slack: 1000.0,
        check_every: 1,
        hang_floor: Duration::from_millis(100),
        hang_factor: 1.0,
        retry_first: Duration::from_millis(1),
        retry_last: Duration::from_millis(20),
        ..Policy::default()
    };
    let runtime = Arc::new(Runtime::builder().cpu_threads(2).device(Box::new(device)).policy(policy).build());
    let store = place.open();
    store.use_devices(Arc::clone(&runtime), Some(TableCacheOptions::default()));
    let said = Arc::clone(&place.said);
    let reports = Reports::new(move |text| said.lock().unwrap().push(text.to_string()));
    let volume = LiveVolume::open(Arc::new(store), options(), reports).unwrap();
    Mounted { volume, control, runtime }
}

/// Half noise, half what was there before, so that something is new and something is found.
fn content(seed: u64) -> Vec<u8> {
    [random(seed, 3 << 20), random(1000, 3 << 20)].concat()
}

fn sync(volume: &LiveVolume, (number, handle): (u64, Handle)) {
    volume.fsync(number, handle, false).unwrap();
}

#[test]
fn what_was_acknowledged_stays_whatever_the_device_does() {
    let place = Place::new();
    let mut mounted = mount_with(&place, Faults::default());
    let kinds = [
        ("nothing", Faults::default()),
        ("fails", Faults { fail_every: 2, busy_every: 3, memory_every: 5, ..Faults::default() }),
        ("wrong", Faults { wrong_every: 2, ..Faults::default() }),
        ("stale", Faults { stale_every: 2, ..Faults::default() }),
        ("lies", Faults { lie_every: 1, ..Faults::default() }),
        ("hangs", Faults { hang_every: 3, ..Faults::default() }),
        ("lost", Faults { lost_every: 3, resets_failing: 2, ..Faults::default() }),
    ];
    let (mut injected, mut trips) = (0, 0);
    for (number, (name, faults)) in kinds.into_iter().enumerate() {
        let Mounted { volume, control, .. } = &mounted;
        control.set(faults);
        let mut expected = content(number as u64);
        let file = create(volume, ROOT, name.as_bytes());
        write(volume, file, 0, &expected);
        sync(volume, file);
        volume.destage_all().unwrap();
        assert!(read(volume, file, expected.len()) == expected, "{name}: what was stored is read back");
        // Written in the middle, synced, and not yet stored when the process ends.
        let patch = random(50 + number as u64, 300_000);
        write(volume, file, 1_000_001, &patch);
        expected[1_000_001..1_300_001].copy_from_slice(&patch);
        sync(volume, file);
        assert!(read(volume, file, expected.len()) == expected, "{name}: what was synced is read back");
        injected += control.injected();
        let tasks: u64 = mounted.runtime.metrics().devices.iter().map(|device| device.tasks).sum();
        assert!(tasks > 0, "{name}: destaging went through the runtime");
        // The mount's status shows how the device fared.
        let (before, mut status) = (mounted.runtime.metrics().devices.swap_remove(1), Status::default());
        volume.watch(&mut status);
        assert!(status.device_tasks >= before.tasks && status.device_given_up >= before.given_up, "{name}");
        assert!(status.device_trips >= before.trips, "{name}");
        trips += status.device_trips;
        drop(mounted);
        // The next mount goes on with a device of the same kind, and stores what was left.
        mounted = mount_with(&place, faults);
        let entry = find(&mounted.volume, name);
        assert!(
            read_whole(&mounted.volume, &entry, 1 << 20).unwrap() == expected,
            "{name}: after the process ended"
        );
        mounted.volume.destage_all().unwrap();
    }
    assert!(injected > 5 && trips > 0, "{injected} faults, {trips} trips");
    mounted.volume.close().unwrap();
    drop(mounted);
    // By the processor alone.
    let volume = mount(&place, options());
    for (number, (name, _)) in kinds.into_iter().enumerate() {
        let mut expected = content(number as u64);
        expected[1_000_001..1_300_001].copy_from_slice(&random(50 + number as u64, 300_000));
        let entry = find(&volume, name);
        assert!(read_whole(&volume, &entry, 1 << 20).unwrap() == expected, "{name}: without a device");
    }
    let again = create(&volume, ROOT, b"again");
    write(&volume, again, 0, &content(0));
    close(&volume, again);
    volume.close().unwrap();
    drop(volume);
    let options = CheckOptions { read_data: true, repair: false, threads: 2 };
    let report = check(&place.open(), &options, &CheckProgress::default()).unwrap();
    assert_eq!(report.damaged, 0, "{:?}", report.findings);
}
