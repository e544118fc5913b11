//! devices, calibrate, advise. The figures are the machine's; the tests check that they are there
//! and fit together.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Place, Said, noise};

fn run(place: &Place, args: &[&str]) -> Said {
    let mut command: Command = place.command(args);
    command.env("OUTRIGGER_CALIBRATION", place.path("calibration"));
    command.output().unwrap().into()
}

#[track_caller]
fn done(place: &Place, args: &[&str]) -> Said {
    let said = run(place, args);
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said
}

#[test]
fn devices_are_listed_and_what_is_missing_is_said() {
    let place = Place::empty();
    let said = done(&place, &["devices", "--json", "--sim", "integrated"]).json();
    let names: Vec<_> = said["devices"].as_array().unwrap().iter().map(|device| &device["name"]).collect();
    assert_eq!(names.first().unwrap().as_str(), Some("cpu"));
    assert_eq!(names.last().unwrap().as_str(), Some("sim:0"));
    let cuda_is_there = names.iter().any(|name| name.as_str().unwrap().starts_with("cuda"));
    let missing = said["missing"].as_array().unwrap();
    assert!(cuda_is_there || missing.iter().any(|one| one["kind"] == "cuda" && one["why"] != ""));
    let text = done(&place, &["devices"]).text();
    assert!(text.contains("outrigger calibrate"), "{text}");
    assert!(!Path::new(&place.path("calibration")).exists(), "looking leaves nothing behind");
    assert_eq!(run(&place, &["devices", "--sim", "fast"]).code, 2);
}

/// A library with QATzip's ABI, as the device's own tests use it. Without those tests' settings it
/// compresses nothing and rejects everything as not fitting.
fn standin(place: &Place) -> PathBuf {
    let (library, source) = (place.path("libqatzip-standin.so"), "../offload/tests/it/qat/standin.c");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", "-o"]);
    compiler.arg(&library).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
    assert!(compiler.status().unwrap().success());
    library
}

/// Runs with this library for QAT, and no other device.
fn with_qat(place: &Place, library: &Path, args: &[&str]) -> Said {
    let mut command: Command = place.command(args);
    command.env("OUTRIGGER_CALIBRATION", place.path("calibration"));
    command.env("OUTRIGGER_QATZIP", library).env("OUTRIGGER_NVCOMP", "/nowhere/libnvcomp.so");
    command.output().unwrap().into()
}

#[test]
fn a_card_that_compresses_nothing_is_cut_off_and_put_says_so() {
    let place = Place::new();
    let library = standin(&place);
    done(&place, &["policy", "set", "/", "codec=gzip:6@qat,gzip:1@cpu"]);
    let text: String = (0..400_000).map(|n| format!("{n} and {}\n", n * 7 % 1000)).collect();
    std::fs::write(place.path("file"), &text).unwrap();
    let offload = "auto,open_after=0,check_every=1,check_first=1000,codec_slack=1000000";
    let put = ["put", "file", "--offload", offload, "--json"];
    let said = with_qat(&place, &library, &put);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(
        said.err.contains("qat:0 was disabled: ") && said.err.contains(" x wrong result, "),
        "{}",
        said.err
    );
    let json = said.json();
    let card =
        &json["devices"].as_array().unwrap().iter().find(|device| device["name"] == "qat:0").unwrap().clone();
    assert!(card["trips"].as_u64() >= Some(1) && card["faults"]["wrong"].as_u64() >= Some(1), "{card}");
    assert_eq!(card["breaker"], "open");
    let found = frames(&place);
    assert!(found.iter().all(|(encoding, _)| encoding.starts_with("gzip")), "{found:?}");
    assert!(done(&place, &["cat", "file"]).text() == text);
    // No card at all is reported once, too.
    let put = ["put", "file", "--to", "again", "--no-dedup", "--offload", "auto,open_after=0"];
    let said = with_qat(&place, Path::new("/nowhere/libqatzip.so"), &put);
    assert!(said.err.contains("because their device is missing or not trusted"), "{}", said.err);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
}

#[test]
fn a_row_of_a_device_that_is_not_there_is_marked() {
    let place = Place::empty();
    let bench = ["bench", "compress", "--size", "600K", "--blocks", "64K", "--codecs", "gzip:6,gzip:6@qat"];
    let said = with_qat(&place, Path::new("/nowhere/libqatzip.so"), &bench);
    assert!(
        said.err.contains("qat is missing: ") && said.err.contains("/nowhere/libqatzip.so"),
        "{}",
        said.err
    );
    let text = said.text();
    let row =
        |codec: &str| text.lines().find(|line| line.contains(&format!("{codec} "))).unwrap().to_string();
    assert!(row("gzip:6@qat").ends_with("0 %  no qat") && !row(" gzip:6").contains('%'), "{text}");
    let offload = ["--offload", "sim:pcie5-gpu,codec_slack=1000000", "--json"];
    let bench = [
        "bench",
        "compress",
        "--size",
        "600K",
        "--blocks",
        "64K",
        "--codecs",
        "gzip:6,gzip:6@sim,gzip:6@qat",
    ];
    let json = done(&place, &[&bench[..], &offload].concat()).json();
    let share = |row: usize| json["rows"][row]["device_share"].as_f64();
    assert_eq!((share(0), share(2)), (None, Some(0.0)), "{json}");
    assert!(share(1) > Some(0.0), "{json}");
    assert_eq!(json["rows"][2]["devices_missing"][0], "qat");
    assert_eq!(run(&place, &["bench", "compress", "--size", "0"]).code, 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("file"), "text").unwrap();
    for (args, why) in [
        (
            &["put", "file", "--offload", "auto,codec_min_bytes=2M,codec_max_bytes=1M"][..],
            "codec_min_bytes=2M is above",
        ),
        (&["calibrate", "--max-bytes", "1K"], "from 4K to 1G"),
        (&["advise", "--block", "4M", "--operation", "compress/lz4"], "2.00 MiB at most"),
        (&["advise", "--operation", "compress/none"], "cannot be measured"),
        (&["init", "--codec", "brotli"], "gzip:6@qat,zstd:3@cpu"),
    ] {
        let said = run(&place, args);
        assert!(said.code == 2 && said.err.contains(why), "{args:?}: {} {}", said.code, said.err);
    }
    // An invalid calibration file is reported, and does no harm.
    std::fs::write(place.path("calibration"), "nonsense\n\0\n").unwrap();
    let said = done(&place, &["devices"]);
    assert!(said.err.contains("2 lines are from another version"), "{}", said.err);
}

#[test]
fn devices_that_compress_are_found_by_their_library_or_missed_with_the_reason() {
    let place = Place::empty();
    let devices = |library: &Path| {
        let mut command: Command = place.command(&["devices", "--json"]);
        command.env("OUTRIGGER_CALIBRATION", place.path("calibration"));
        command.env("OUTRIGGER_QATZIP", library).env("OUTRIGGER_NVCOMP", "/nowhere/libnvcomp.so");
        Said::from(command.output().unwrap()).json()
    };
    let why = |said: &serde_json::Value, kind: &str| {
        let missing = said["missing"].as_array().unwrap().iter().find(|one| one["kind"] == kind);
        missing.map(|one| one["why"].as_str().unwrap().to_string())
    };
    let said = devices(Path::new("/nowhere/libqatzip.so"));
    assert!(why(&said, "qat").unwrap().contains("/nowhere/libqatzip.so"), "{said}");
    assert!(why(&said, "nvcomp").unwrap().contains("/nowhere/libnvcomp.so"), "{said}");
    let said = devices(&standin(&place));
    assert_eq!(why(&said, "qat"), None);
    let found = said["devices"].as_array().unwrap().iter().find(|device| device["name"] == "qat:0").unwrap();
    assert_eq!((&found["model"], &found["driver"]), (&"Intel QAT".into(), &"libqatzip-standin.so".into()));
}

#[test]
fn a_calibration_is_kept_and_shown() {
    let place = Place::empty();
    let args = ["calibrate", "--max-bytes", "4K", "--sim", "integrated", "--json"];
    let said = done(&place, &args).json();
    let points = said["points"].as_array().unwrap();
    for operation in ["compress/gzip:6", "decompress/lz4", "decompress/deflate", "lookup"] {
        assert!(points.iter().any(|point| point["operation"] == operation), "{operation}: {said}");
    }
    let looked_up = |point: &&serde_json::Value| point["operation"].as_str().unwrap().ends_with("+lookup");
    assert!(
        points.iter().any(|point| looked_up(&point))
            && points.iter().all(|point| point["operation"] != "decompress/none")
    );
    for device in ["cpu", "sim:0"] {
        let of_device = points.iter().filter(|point| point["device"] == device);
        assert!(of_device.clone().count() >= 8, "{said}");
        assert!(of_device.clone().all(|point| point["bytes_per_second"].as_f64().unwrap() > 0.0));
    }
    let shown = done(&place, &["devices", "--json", "--sim", "integrated", "--check"]).json();
    let cpu = &shown["devices"][0];
    assert!(
        cpu["calibrated"].as_array().unwrap().iter().any(|point| point["operation"] == "hash_many/blake3")
    );
    let checked = shown["checked"].as_array().unwrap();
    assert!(checked.iter().any(|one| one["device"] == "sim:0"));
    assert!(
        checked
            .iter()
            .all(|one| one["predicted_ns"].as_f64() > Some(0.0) && one["actual_ns"].as_f64() > Some(0.0))
    );
    let text = done(&place, &["devices"]).text();
    assert!(text.contains("compress/zstd:2") && text.contains("off"), "{text}");
    // One device is measured again; the others stay.
    done(&place, &["calibrate", "--max-bytes", "4K", "--device", "cpu", "--quiet"]);
    let again = done(&place, &["devices", "--json", "--sim", "integrated"]).json();
    assert!(!again["devices"][1]["calibrated"].as_array().unwrap().is_empty());
    let unknown = run(&place, &["calibrate", "--device", "qat:7"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("there are cpu"), "{}", unknown.err);
}

#[test]
fn advice_has_its_reasons() {
    let place = Place::empty();
    let ask = |more: &[&str]| {
        let fixed = ["advise", "--json", "--operation", "hash_many/blake3", "--sim", "slow"];
        done(&place, &[&fixed[..], more].concat()).json()
    };
    let said = ask(&["--block", "256K"]);
    let operation = &said["operations"][0];
    let gpu = &operation["gpus"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(gpu["name"], "sim:0");
    // Nobody has measured a GPU, so none is recommended, at whatever price.
    assert_eq!(gpu["is_modelled"], true);
    assert_eq!(operation["advice"], "measure", "{said}");
    let cheap = ask(&["--block", "256K", "--cpu-price", "1000000", "--gpu-price", "0.001"]);
    assert_eq!(cheap["operations"][0]["advice"], "measure", "{cheap}");
    // The model's bandwidths, as fitted: 0.2 GB/s in, 0.1 GB/s of kernels.
    let per_byte = |term: &str| gpu["equation_1"][term]["ns_per_byte"].as_f64().unwrap();
    assert!(
        (per_byte("T_DataHtoG") - 5.0).abs() < 0.1 && (per_byte("T_Processing") - 10.0).abs() < 0.1,
        "{gpu}"
    );
    assert!(gpu["errors"].as_array().unwrap().len() >= 2);
    assert!(
        operation["with_cpu_bytes_per_second"].as_f64() > operation["all_threads_bytes_per_second"].as_f64()
    );
    // The lower of the predicted rate and that of a stream counts.
    let reached = gpu["stream_bytes_per_second"].as_f64().unwrap();
    let reached = reached.min(gpu["stream_modelled_bytes_per_second"].as_f64().unwrap());
    let with_gpu = operation["all_threads_bytes_per_second"].as_f64().unwrap() + reached;
    assert!((gpu["with_gpu_bytes_per_second"].as_f64().unwrap() / with_gpu - 1.0).abs() < 1e-9, "{gpu}");
    assert!(said["missing"].is_array());
    // A rate that nothing reaches.
    let much = ask(&["--rate", "1000000"]);
    assert_eq!(much["operations"][0]["advice"], "neither", "{much}");
    assert!(much["operations"][0]["why"].as_str().unwrap().contains("cannot be reached"));
    // Operations that `devices` names, but that `calibrate` leaves out by default.
    let other =
        ["advise", "--json", "--operation", "compress/zstd:1", "--operation", "lookup", "--block", "64K"];
    let other = done(&place, &other).json();
    assert_eq!(other["operations"].as_array().unwrap().len(), 2, "{other}");
    // A low rate needs nothing more.
    let little = ask(&["--rate", "0.000001"]);
    assert_eq!(little["operations"][0]["advice"], "nothing");
    assert_eq!(run(&place, &["advise", "--operation", "dance"]).code, 2);
    assert_eq!(run(&place, &["advise", "--cpu-price", "1"]).code, 2);
    assert_eq!(run(&place, &["advise", "--block", "1"]).code, 2);
}

#[test]
fn a_put_may_have_a_device_hash_and_stores_the_same() {
    let place = Place::new();
    outrigger_workload::source_tree(&place.path("src"), &outrigger_workload::TreeOptions::new(5, 200))
        .unwrap();
    let run = |args: &[&str]| done(&place, args);
    let spared = "sim:pcie5-gpu,objective=cpu,cpu_slack=1000";
    let first = run(&["put", "src", "--to", "tree", "--offload", spared, "--json"]).json();
    let devices = first["devices"].as_array().unwrap();
    assert_eq!(devices[1]["name"], "sim:0");
    let tasks = |at: usize| devices[at]["tasks"].as_u64().unwrap();
    assert!(tasks(0) + tasks(1) > 0, "{devices:?}");
    assert!(place.path("calibration").exists(), "what was learned is kept");
    // Without devices all chunks have the same fingerprints.
    let again = run(&["put", "src", "--to", "tree", "--rescan", "--offload", "off", "--json"]).json();
    assert_eq!((again["bytes_new"].as_u64(), &again["devices"]), (Some(0), &serde_json::Value::Null));
    let said = run(&["put", "src", "--to", "other", "--offload", "sim:integrated"]).text();
    assert!(said.contains("offloaded work: cpu"), "{said}");
    // Thresholds by name, frames by the device of a list, and the reasons in the statistics.
    let codec = "gzip:1@sim,zstd:1@cpu";
    run(&["policy", "set", "/", &format!("codec={codec}")]);
    let said = run(&["policy", "get", "/"]).text();
    assert!(said.contains(codec), "{said}");
    std::fs::write(place.path("log"), "one line like all others\n".repeat(200_000)).unwrap();
    let offload = "sim:pcie5-gpu,codec_min_bytes=8K,codec_slack=1000";
    run(&["put", "log", "--to", "logs/log", "--offload", offload]);
    run(&[
        "put",
        "log",
        "--to",
        "more/log",
        "--no-dedup",
        "--offload",
        &format!("{offload},codec_max_bytes=8K"),
    ]);
    let stats = run(&["stats"]).text();
    assert!(stats.contains("gzip:1") && stats.contains("a device did it"), "{stats}");
    assert!(stats.contains("zstd:1") && stats.contains("nothing for a device"), "{stats}");
    run(&["get", "logs/log", "back", "--offload", offload]);
    assert!(std::fs::read(place.path("back")).unwrap() == std::fs::read(place.path("log")).unwrap());
    let wrong = place.code(2, &["put", "src", "--to", "x", "--offload", "auto,codec_queue=8"]);
    assert!(wrong.err.contains("codec_queue_max"), "{}", wrong.err);
    let wrong = place.code(2, &["put", "src", "--to", "x", "--offload", "gpu"]);
    assert!(wrong.err.contains("auto, off or sim:PRESET"), "{}", wrong.err);
    run(&["check", "--read-data"]);
}

#[test]
fn nothing_waits_for_a_device_that_is_being_opened() {
    let place = Place::new();
    std::fs::write(place.path("small"), "123").unwrap();
    std::fs::write(place.path("large"), outrigger_workload::Rng::new(1).bytes(8 << 20)).unwrap();
    for (file, offload, complaint) in [
        // Opening it would take an hour.
        ("small", "sim:pcie5-gpu@3600", ""),
        ("large", "sim:pcie5-gpu@3600,open_after=1", ""),
        ("small", "sim:pcie5-gpu@never", ""),
        ("small", "sim:pcie5-gpu@never,open_after=0", "a device cannot be opened, and is left out: sim:0"),
    ] {
        let said = done(&place, &["put", file, "--offload", offload, "--json"]);
        assert!(said.err.contains(complaint) && said.err.is_empty() == complaint.is_empty(), "{}", said.err);
        assert_eq!(said.json()["devices"], serde_json::Value::Null, "{offload}");
        done(&place, &["get", file, "back", "--overwrite", "--offload", offload]);
        assert!(std::fs::read(place.path("back")).unwrap() == std::fs::read(place.path(file)).unwrap());
    }
    // A device that is opened before the first byte.
    let said = done(&place, &["put", "large", "--offload", "sim:pcie5-gpu@0,open_after=0", "--json"]).json();
    assert_eq!(said["devices"][1]["name"], "sim:0");
    done(&place, &["check", "--read-data"]);
}

/// Frames of data by encoding, with the reasons.
fn frames(place: &Place) -> Vec<(String, String)> {
    let stats = done(place, &["stats", "--json"]).json();
    let data = stats["frames"].as_array().unwrap().iter().filter(|frame| frame["kind"] == "data");
    let of = |frame: &serde_json::Value, key: &str| frame[key].as_str().unwrap_or_default().to_string();
    data.map(|frame| (of(frame, "encoding"), of(frame, "reason"))).collect()
}

#[test]
fn what_no_device_did_is_not_said_to_be_a_devices() {
    let text: String = (0..300_000).map(|n| format!("{n} and {}\n", n * 7 % 1000)).collect();
    let numbers: Vec<u8> =
        (0..1 << 20).flat_map(|n: u32| (n.wrapping_mul(0x9e37_79b1) >> 12).to_le_bytes()).collect();
    for (codec, bytes, offload) in [
        // All data is too dense.
        ("gzip:1@sim,lz4@cpu", text.as_bytes(), "sim:pcie5-gpu,codec_max_bits=0,offload_min_bytes=1G"),
        // Byte planes of numbers, for which no device makes Zstandard frames.
        ("zstd:3@sim,lz4@cpu", &numbers[..], "sim:pcie5-gpu,offload_min_bytes=1G"),
        // There is no such device.
        ("gzip:1@qat,lz4@cpu", text.as_bytes(), "off"),
        ("gzip:1@qat,lz4@cpu", text.as_bytes(), "sim:pcie5-gpu,offload_min_bytes=1G"),
    ] {
        let place = Place::new();
        done(&place, &["policy", "set", "/", &format!("codec={codec}")]);
        std::fs::write(place.path("file"), bytes).unwrap();
        let said = done(&place, &["put", "file", "--offload", offload, "--json"]).json();
        if let Some(devices) = said["devices"].as_array() {
            assert_eq!(devices[1]["tasks"].as_u64(), Some(0), "{codec}: {said}");
        }
        let found = frames(&place);
        assert!(!found.is_empty());
        let why = if codec.contains("qat") { "no device for it" } else { "nothing for a device" };
        for (encoding, reason) in &found {
            let kept = encoding.starts_with("none") && reason == "did not fit the budget";
            // The last frame is never offered to a device.
            let last = reason == "nothing for a device";
            assert!(kept || encoding.starts_with("lz4") && (reason == why || last), "{codec}: {found:?}");
        }
    }
}

#[test]
fn primitives_have_rates_on_each_device() {
    let place = Place::empty();
    for (primitive, operations) in [("hash", 7), ("scan", 1), ("windows", 2), ("ingest", 2)] {
        let args = ["bench", primitive, "--tasks", "64K,256K", "--sim", "slow", "--json"];
        let report = done(&place, &args).json();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * operations, "{report}");
        for row in rows {
            let device = row["devices"].as_array().unwrap().last().unwrap();
            assert_eq!((&device["name"], &device["is_modelled"]), (&"sim:0".into(), &true.into()), "{row}");
            for rate in [&row["one_thread_bytes_per_second"], &row["all_threads_bytes_per_second"]] {
                assert!(rate.as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let text = done(&place, &["bench", "scan", "--tasks", "64K", "--sim", "slow"]).text();
    assert!(text.contains("sim:0, a model") && text.contains('█'), "{text}");
    assert_eq!(run(&place, &["bench", "hash", "--tasks", "1"]).code, 2);
}

#[test]
fn similar_trees_share_what_contents_find_and_blocks_do_not() {
    let place = Place::empty();
    let bytes = noise(1, 1 << 20);
    place.write("a/file", &bytes);
    // Moved by one byte.
    place.write("b/file", [b"x", &bytes[..]].concat());
    let args = ["similarity", "a", "b", "--chunkers", "fixed:4K,gear32:1K/4K/16K", "--json"];
    let report = done(&place, &args).json();
    let share = |row: usize| report["rows"][row]["similarity"].as_f64().unwrap();
    assert!(share(0) == 0.0 && share(1) > 0.9, "{report}");
    let same = done(&place, &["similarity", "a", "a", "--json"]).json();
    assert!(same["rows"].as_array().unwrap().iter().all(|row| row["similarity"] == 1.0), "{same}");
    assert!(done(&place, &["similarity", "a", "b"]).text().contains("gear32:4K/16K/64K"));
    place.write("empty", "");
    assert_eq!(run(&place, &["similarity", "a", "empty"]).code, 2);
}
