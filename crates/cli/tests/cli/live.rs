//! Watching a mount. Without FUSE these tests say so and pass.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::run::{Place, Said};
use crate::shared::{Host, Shared};

const BYTES: usize = 3 << 20;

/// A workplace with a store and an empty directory `mnt`; unmounted when dropped.
struct Mounts(Place);

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path("mnt")).stderr(Stdio::null()).status();
    }
}

/// `None` without FUSE.
fn place() -> Option<Mounts> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
        return None;
    }
    let place = Place::new();
    std::fs::create_dir(place.path("mnt")).unwrap();
    Some(Mounts(place))
}

fn write_and_sync(place: &Place, name: &str) {
    let mut file = File::create(place.path(format!("mnt/{name}"))).unwrap();
    let mut bytes = vec![0; BYTES];
    outrigger_workload::Rng::new(7).fill(&mut bytes);
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
}

fn sample(place: &Place) -> Value {
    place.done(&["stats", "--live", "--count", "1", "--json"]).json()
}

fn scraped(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_string()
}

fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}")).parse().unwrap()
}

fn by_socket(path: &Path) -> String {
    scraped(UnixStream::connect(path).unwrap())
}

#[test]
fn what_a_program_writes_again_and_again_is_stored_less_often() {
    let Some(Mounts(place)) = &place() else { return };
    place.done(&["mount", "--staging-size", "8M", "--staging-order", "lrw", "mnt"]);
    let file = File::create(place.path("mnt/hot")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    for round in 0..64 {
        outrigger_workload::Rng::new(round).fill(&mut bytes);
        file.write_all_at(&bytes, 0).unwrap();
    }
    let told = sample(place);
    let of = |name: &str| told[name].as_u64().unwrap();
    assert_eq!(of("written_bytes"), 64 << 20);
    assert!(of("destaged_bytes") <= 16 << 20, "{told}");
    assert!(std::fs::read(place.path("mnt/hot")).unwrap() == bytes);
    drop(file);
    place.done(&["unmount", "mnt"]);
    assert!(place.done(&["cat", "hot"]).out == bytes);
}

#[test]
fn a_mount_says_what_was_written_and_what_became_of_it() {
    let Some(Mounts(place)) = &place() else { return };
    let socket = place.path("metrics.sock");
    let address = format!("unix:{}", socket.display());
    place.done(&["mount", "--metrics", &address, "mnt"]);
    write_and_sync(place, "file");
    let staged = sample(place);
    assert_eq!(staged["written_bytes"], BYTES);
    assert!(staged["per_second"]["written_bytes"].as_f64().unwrap() > 0.0, "{staged}");
    assert!(staged["operations_write"].as_u64() >= Some(1) && staged["operations_sync"] == 1, "{staged}");
    // Any command makes the mount store it first.
    assert_eq!(place.lines(&["ls"]), ["file"]);
    let stored = sample(place);
    assert_eq!((&stored["destaged_bytes"], &stored["new_bytes"]), (&BYTES.into(), &BYTES.into()));
    assert!(stored["stored_bytes"].as_u64() >= Some(BYTES as u64), "{stored}");
    let batches = stored["destage_seconds"]["count"].as_f64().unwrap();
    assert!(batches >= 1.0, "{stored}");
    for error in ["errors_io", "errors_full", "errors_stale", "destage_failures"] {
        assert_eq!(stored[error], 0);
    }
    let metrics = by_socket(&socket);
    for name in ["written_bytes", "destaged_bytes", "new_bytes"] {
        assert_eq!(value(&metrics, &format!("outrigger_{name}_total")), BYTES as f64);
    }
    assert_eq!(value(&metrics, "outrigger_destage_seconds_count"), batches);
    assert!(value(&metrics, "outrigger_pack_write_seconds_count") >= 1.0, "{metrics}");
    assert!(value(&metrics, "outrigger_pack_write_seconds_bucket{le=\"+Inf\"}") >= 1.0, "{metrics}");
    assert_eq!(stored["errors"], serde_json::json!([]));
    assert_eq!(value(&metrics, "outrigger_staging_capacity_bytes"), (256 << 20) as f64);
    // Every number has both names.
    for (name, shown) in stored.as_object().unwrap() {
        if shown.is_number() && name != "interval_seconds" {
            let (family, kind) = name.split_once('_').unwrap();
            let names = [
                format!("outrigger_{name} "),
                format!("outrigger_{name}_total "),
                format!("outrigger_{family}_total{{kind=\"{kind}\"}} "),
            ];
            assert!(names.iter().any(|name| metrics.contains(name)), "{name} is not in\n{metrics}");
        }
    }
    // People get a heading and one line per sample.
    let lines = place.lines(&["stats", "--live", "--count", "3", "--interval", "0.1"]);
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines[0].contains("written/s") && lines[3].contains("0 B/s"), "{lines:#?}");
    place.done(&["unmount", "mnt"]);
    assert!(!socket.exists());
    // The socket of a killed mount is replaced, but an address in use is refused.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    place.done(&["mount", "-o", &format!("ro,metrics={address}"), "mnt"]);
    assert_eq!(std::fs::read(place.path("mnt/file")).unwrap().len(), BYTES);
    let metrics = by_socket(&socket);
    assert_eq!(value(&metrics, "outrigger_read_bytes_total"), BYTES as f64);
    assert!(value(&metrics, "outrigger_frame_cache_hits_total") > 0.0);
    let said = place.code(1, &["stats", "--live"]);
    assert!(said.err.contains("outrigger mount MOUNTPOINT"), "a read-only mount is none: {}", said.err);
    std::fs::create_dir(place.path("other")).unwrap();
    let said = place.code(1, &["mount", "--read-only", "--metrics", &address, "other"]);
    assert!(said.err.contains("another process listens there"), "{}", said.err);
    place.done(&["unmount", "mnt"]);
    // A read-only mount has nothing to store, so its process is not waited for.
    let gone = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !socket.exists()
    });
    assert!(gone, "the socket is still there");
}

#[test]
fn by_tcp_and_until_a_signal() {
    let Some(Mounts(place)) = &place() else { return };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    place.done(&["mount", "--metrics", &free.to_string(), "mnt"]);
    let metrics = scraped(TcpStream::connect(free).unwrap());
    assert!(value(&metrics, "outrigger_uptime_seconds") > 0.0);
    let mut command = place.command(&["stats", "--live", "--json", "--interval", "0.1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first sample comes at once, after the signal handler is installed.
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    place.done(&["unmount", "mnt"]);
}

#[test]
fn what_cannot_be_watched_says_why() {
    let place = Place::new();
    std::fs::create_dir(place.path("mnt")).unwrap();
    for (code, args, word) in [
        (1, &["stats", "--live"][..], "outrigger mount MOUNTPOINT"),
        (1, &["stats", "--live", "--store", "nowhere"], "nowhere"),
        (2, &["stats", "--live", "--interval", "0"], "0.1"),
        (2, &["stats", "--live", "--count", "0"], "1.."),
        (2, &["stats", "--interval", "2"], "--live"),
        (2, &["mount", "--metrics", "0.0.0.0:9464", "mnt"], "a proxy before it"),
        (2, &["mount", "-o", "metrics=9464", "mnt"], "127.0.0.1:PORT"),
    ] {
        let said = place.code(code, args);
        assert!(said.err.contains(word), "{args:?}: {}", said.err);
    }
}

#[test]
fn transactions_and_reads_of_a_shared_mount_are_timed() {
    let Some(shared) = Shared::new() else { return };
    let (one, two) = (shared.mount(), shared.mount());
    one.write("f", vec![7; 3 << 20]);
    two.must_read("f", vec![7; 3 << 20]);
    let count = |host: &Host, name: &str| {
        let said = host.done(&["stats", "--live", "--count", "1", "--json"]).json();
        let spread = &said[name];
        let all = &spread["buckets"]["+Inf"];
        assert_eq!(*all, spread["count"], "{said}");
        spread["count"].as_u64().unwrap()
    };
    // A command first makes the mount store its data.
    one.done(&["ls"]);
    assert!(count(&one, "database_transaction_seconds") >= 1);
    assert!(count(&one, "pack_write_seconds") >= 1);
    assert!(count(&two, "pack_read_seconds") >= 1);
}

#[test]
fn the_last_errors_of_a_mount_are_shown_as_long_as_it_is_there() {
    let Some(Mounts(place)) = &place() else { return };
    place.write("file", crate::run::noise(1, 300_000));
    place.done(&["put", "file"]);
    place.done(&["mount", "mnt"]);
    assert_eq!(sample(place)["errors"], serde_json::json!([]));
    let mut dirs = vec![place.path("store/packs")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let len = std::fs::metadata(&path).unwrap().len();
                std::fs::write(&path, vec![0xaa; len as usize]).unwrap();
            }
        }
    }
    // A separate process, so that the last reader is not this one.
    let read = Command::new("cat").arg(place.path("mnt/file")).output().unwrap();
    assert!(!read.status.success(), "damaged data was read");
    let errors = &sample(place)["errors"];
    let met = &errors[0];
    assert_eq!((&met["operation"], &met["kind"]), (&"READ".into(), &"damaged".into()), "{errors}");
    assert!(met["time"].as_u64().unwrap() > 0 && met["text"].as_str().unwrap().contains("pack"), "{errors}");
    let status = || place.done(&["status", "--json"]).json()["errors"].clone();
    while status() == serde_json::json!([]) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let noted = &status()[0];
    assert_eq!((&noted["text"], &noted["command"]), (&met["text"], &"mount".into()));
    assert!(noted["host"].is_string() && noted["process"].is_u64() && noted["time"].is_string(), "{noted}");
    let text = place.done(&["status"]).text();
    assert!(text.contains("last errors of mount on ") && text.contains("READ, damaged: "), "{text}");
    place.done(&["unmount", "mnt"]);
    assert_eq!(status(), serde_json::json!([]));
}
