//! Mounting and unmounting. Without FUSE these tests say so and pass.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use outrigger_workload::TreeOptions;
use outrigger_workload::eventually;

use crate::run::{Place, Said};

/// A workplace with a tree in its store and an empty directory `mnt`; unmounted when dropped.
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
    outrigger_workload::source_tree(&place.path("src/tree"), &TreeOptions::new(1, 60)).unwrap();
    place.done(&["put", "src/tree", "--tag", "first"]);
    std::fs::create_dir(place.path("mnt")).unwrap();
    Some(Mounts(place))
}

fn is_mounted(place: &Place) -> bool {
    place.path("mnt/tree").exists()
}

fn foreground(place: &Place) -> Child {
    let mut command = place.command(&["mount", "--read-only", "--foreground", "mnt"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("mounting", || is_mounted(place));
    child
}

/// Who mounts is told once what a mount lacks, and where the snapshots are.
#[test]
fn a_mount_says_that_it_has_no_undo() {
    let Some(Mounts(place)) = &place() else { return };
    let point = place.path("mnt").canonicalize().unwrap().display().to_string();
    // The kernel of this machine may have it, and may offer it.
    let parameter = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let slower = match parameter.is_ok_and(|value| value == "N\n") {
        true => {
            "small operations are slower than they could be: the kernel's io_uring for FUSE is off; \
                 `echo Y > /sys/module/fuse/parameters/enable_uring` as root, then mount again\n"
        }
        false => "",
    };
    let snapshots = format!("; snapshots are in {point}/.snapshots\n{slower}");
    for (options, say) in [
        (&[][..], format!("mounted on {point}; `outrigger undo` takes back no changes there{snapshots}")),
        (&["--read-only"], format!("mounted on {point}{snapshots}")),
        (&["--at", "first"], format!("mounted on {point}\n{slower}")),
        (&["-q"], String::new()),
    ] {
        let said = place.done(&[&["mount", "mnt"][..], options].concat());
        assert_eq!(said.text(), say, "{options:?}");
        place.done(&["unmount", "mnt"]);
    }
    assert_eq!(place.done(&["mount", "mnt", "--json"]).json()["read_only"], false);
    assert_eq!(place.done(&["unmount", "mnt", "--json"]).json()["unmounted"], point.as_str());
}

#[test]
fn in_the_background_until_it_is_unmounted() {
    let Some(Mounts(place)) = &place() else { return };
    place.done(&["mount", "--read-only", "mnt"]);
    assert!(
        outrigger_workload::compare_trees(&place.path("src/tree"), &place.path("mnt/tree"))
            .unwrap()
            .is_empty()
    );
    assert_eq!(place.code(1, &["mount", "--read-only", "mnt"]).err.matches("already").count(), 1);
    // A file removed by a command stays in the read-only mount and in its snapshots.
    place.done(&["rm", "-r", "--no-snapshot", "tree"]);
    place.done(&["gc"]);
    let name = place.lines(&["snapshot", "list"])[0].split(' ').next().unwrap().to_string();
    for seen in ["mnt/tree".to_string(), format!("mnt/.snapshots/{name}/tree")] {
        assert_eq!(
            outrigger_workload::compare_trees(&place.path("src/tree"), &place.path(seen)).unwrap(),
            []
        );
    }
    place.done(&["unmount", "mnt"]);
    assert!(!is_mounted(place));
    // Its session ends with the mount, so nothing of it has to be waited for.
    place.done(&["snapshot", "delete", &name]);
    eventually("reclaiming", || {
        place.done(&["gc"]);
        place.done(&["stats", "--json"]).json()["unique_bytes"].as_u64() == Some(0)
    });
    place.done(&["check", "--read-data"]);
}

#[test]
fn a_snapshot_by_tag_and_options() {
    let Some(Mounts(place)) = &place() else { return };
    place.write("src/tree/later", "x");
    place.done(&["put", "src/tree"]);
    place.done(&["mount", "--at", "first", "mnt"]);
    assert!(!place.path("mnt/tree/later").exists() && !place.path("mnt/.snapshots").exists());
    place.done(&["unmount", "mnt"]);
    place.done(&["mount", "-o", "rw,at=first,noatime,nofail", "mnt"]);
    assert!(!place.path("mnt/tree/later").exists());
    place.done(&["unmount", "mnt"]);
}

#[test]
fn what_cannot_be_mounted_says_why() {
    let Some(Mounts(place)) = &place() else { return };
    for (code, args, word) in [
        (2, &["mount", "-o", "ro,big_writes", "mnt"][..], "big_writes"),
        (2, &["mount", "--staging-size", "1M", "mnt"], "8M"),
        (2, &["mount", "--read-only", "store/packs"], "inside the store"),
        (2, &["mount", "--read-only", "."], "hidden"),
        (1, &["mount", "--read-only", "nowhere"], "must be a directory"),
        (1, &["mount", "--at", "nonsense", "mnt"], "snapshot list"),
        (1, &["mount", "--read-only", "--store", "no-store", "mnt"], "no-store"),
        (1, &["unmount", "mnt"], "not a mounted store"),
    ] {
        let said = place.code(code, args);
        assert!(said.err.contains(word), "{args:?}: {}", said.err);
        assert_eq!(said.err.lines().count(), 1, "{args:?}: {}", said.err);
    }
    assert!(!is_mounted(place));
}

#[test]
fn a_view_is_unmounted_while_the_store_is_mounted_to_be_written() {
    let Some(Mounts(place)) = &place() else { return };
    place.done(&["mount", "mnt"]);
    std::fs::create_dir(place.path("view")).unwrap();
    let said = place.code(1, &["mount", "view"]);
    assert!(said.err.contains(place.path("mnt").to_str().unwrap()), "{}", said.err);
    place.done(&["mount", "--read-only", "view"]);
    assert!(place.path("view/tree").exists());
    place.done(&["unmount", "view"]);
    place.done(&["unmount", "mnt"]);
}

#[test]
fn what_is_open_keeps_it_mounted_unless_it_is_lazy() {
    let Some(Mounts(place)) = &place() else { return };
    place.done(&["mount", "--read-only", "mnt"]);
    let open = File::open(place.path("mnt/tree")).unwrap();
    assert!(place.code(1, &["unmount", "mnt"]).err.contains("--lazy"));
    place.done(&["unmount", "--lazy", "mnt"]);
    assert!(!is_mounted(place));
    drop(open);
}

#[test]
fn a_signal_unmounts_and_a_kill_leaves_the_store_well() {
    let Some(Mounts(place)) = &place() else { return };
    let child = foreground(place);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let said = Said::from(child.wait_with_output().unwrap());
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(!is_mounted(place));

    let mut child = foreground(place);
    let open = File::open(place.path("mnt/tree")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The second error is that of a request which the kernel was just handing over.
    let expected = [std::io::ErrorKind::NotConnected, std::io::ErrorKind::ConnectionAborted];
    let error = std::fs::read_dir(place.path("mnt")).unwrap_err();
    assert!(expected.contains(&error.kind()), "{error:?}");
    for command in ["mount", "unmount"] {
        let said = place.code(1, &[command, "mnt"]);
        assert!(said.err.contains("has ended") && said.err.contains("--lazy"), "{}", said.err);
    }
    drop(open);
    place.done(&["unmount", "mnt"]);
    place.done(&["rm", "-r", "tree"]);
    place.done(&["gc"]);
    place.done(&["check", "--read-data"]);
    place.done(&["mount", "--read-only", "mnt"]);
    place.done(&["unmount", "mnt"]);
}

#[test]
fn modes_hold_for_other_users() {
    let Some(Mounts(place)) = &place() else { return };
    if !rustix::process::geteuid().is_root() {
        outrigger_workload::skipped!("only root can be another user");
        return;
    }
    let modes = |name: &str, mode: u32| {
        let path = place.write(format!("src/tree/{name}"), "text");
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    modes("open", 0o644);
    modes("closed", 0o600);
    place.done(&["put", "src/tree"]);
    let reads = |name: &str| {
        let path = place.path(format!("mnt/tree/{name}"));
        let mut command = Command::new("cat");
        command.arg(path).uid(65534).gid(65534).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap().success()
    };
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    place.done(&["mount", "-o", "ro,allow_other", "mnt"]);
    assert!(reads("open") && !reads("closed"));
    place.done(&["unmount", "mnt"]);
    place.done(&["mount", "-o", "ro", "mnt"]);
    assert!(!reads("open"));
    place.done(&["unmount", "mnt"]);
}

#[test]
fn as_a_helper_of_mount() {
    let Some(Mounts(place)) = &place() else { return };
    let (store, point) = (place.path("store"), place.path("mnt"));
    let helper = |name: &str, options: &str| {
        let mut command = place.command(&[&store, &point]);
        Said::from(command.args(["-o", options]).arg0(name).env_remove("OUTRIGGER_STORE").output().unwrap())
    };
    for name in ["/sbin/mount.fuse.outrigger", "outrigger"] {
        for options in ["rw,dev,suid", "ro,dev,suid,nofail"] {
            let said = helper(name, options);
            assert_eq!(said.code, 0, "{}", said.err);
            assert!(is_mounted(place));
            let made = std::fs::write(point.join("new"), "bytes");
            assert_eq!(made.is_ok(), options.starts_with("rw"), "{made:?}");
            place.done(&["unmount", "mnt"]);
        }
    }
}

#[test]
fn what_is_written_is_stored_as_the_options_say() {
    let Some(Mounts(place)) = &place() else { return };
    let unique = || place.done(&["stats", "--json"]).json()["unique_bytes"].as_u64().unwrap();
    let before = unique();
    place.done(&["mount", "-o", "dedup=off,chunker=fixed:10000", "mnt"]);
    let bytes = vec![7; 100_000];
    std::fs::write(place.path("mnt/one"), &bytes).unwrap();
    std::fs::write(place.path("mnt/two"), &bytes).unwrap();
    place.done(&["unmount", "mnt"]);
    assert_eq!(unique() - before, 200_000);
    place.done(&["mount", "--dedup", "on", "--chunker", "fixed:10000", "mnt"]);
    assert_eq!(std::fs::read(place.path("mnt/two")).unwrap(), bytes);
    std::fs::write(place.path("mnt/three"), &bytes).unwrap();
    place.done(&["unmount", "mnt"]);
    assert_eq!(unique() - before, 200_000);
    place.code(2, &["mount", "-o", "dedup=perhaps", "mnt"]);
}

#[test]
fn a_users_store_is_the_users_to_work_in() {
    let Some(Mounts(place)) = &place() else { return };
    let uid = rustix::process::geteuid().as_raw();
    // Root uses another user's directory; a user uses his own.
    let user = if uid == 0 { 65_534 } else { uid };
    std::fs::create_dir(place.path("theirs")).unwrap();
    std::os::unix::fs::chown(place.path("theirs"), Some(user), None).unwrap();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o711)).unwrap();
    // The program may lie where that user may not go.
    let program = place.path("program");
    outrigger_workload::write_program(&program, &std::fs::read(env!("CARGO_BIN_EXE_outrigger")).unwrap());
    let mut init = Command::new(&program);
    let init = init
        .args(["--store", "theirs/store", "init", "--no-encryption"])
        .current_dir(place.path(""))
        .uid(user)
        .output()
        .unwrap();
    assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
    place.done(&["--store", "theirs/store", "mount", "mnt"]);
    let root = std::fs::metadata(place.path("mnt")).unwrap();
    assert_eq!((root.uid(), root.permissions().mode() & 0o777), (user, 0o755));
    place.done(&["unmount", "mnt"]);
}

/// An error number that a program got is a line of JSON in the log, with the program's request.
#[test]
fn what_goes_wrong_is_in_a_log_with_the_request_that_met_it() {
    let Some(Mounts(place)) = &place() else { return };
    place.done(&["mount", "--read-only", "mnt", "--log", "log.json"]);
    let file = some_file(&place.path("mnt/tree"));
    let inode = std::fs::metadata(&file).unwrap().ino();
    for pack in walk(&place.path("store/packs")) {
        let len = std::fs::metadata(&pack).unwrap().len();
        std::fs::write(&pack, vec![0xaa; len as usize]).unwrap();
    }
    let mut reader =
        Command::new("cat").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = reader.id();
    assert!(!reader.wait().unwrap().success(), "damaged data was read");
    place.done(&["unmount", "mnt"]);
    let log = String::from_utf8(place.read("log.json")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = lines.iter().find(|line| line["request"]["pid"] == pid).unwrap_or_else(|| panic!("{log}"));
    assert_eq!((said["kind"].as_str(), said["level"].as_str()), (Some("damaged"), Some("error")));
    assert_eq!(
        (said["request"]["operation"].as_str(), said["request"]["inode"].as_u64()),
        (Some("READ"), Some(inode))
    );
    assert!(said["request"]["id"].as_u64().unwrap() > 0 && said["time"].as_str().unwrap().ends_with('Z'));
}

/// All files below a directory.
fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// One that has bytes.
fn some_file(dir: &std::path::Path) -> std::path::PathBuf {
    walk(dir).into_iter().find(|path| std::fs::metadata(path).unwrap().len() > 10_000).unwrap()
}

#[test]
fn status_says_where_a_store_is_mounted_since_when_and_by_whom() {
    let Some(Mounts(place)) = &place() else { return };
    let mounts = || place.done(&["status", "--json"]).json()["mounts"].as_array().unwrap().clone();
    assert_eq!(mounts(), Vec::<serde_json::Value>::new());
    let point = place.path("mnt").canonicalize().unwrap();
    let host = outrigger_store::host::name();
    for (options, read_only, snapshot, shows) in [
        (&[][..], false, None, "process "),
        (&["--read-only"], true, None, ", read-only\n"),
        (&["--at", "first"], true, Some(()), ", shows "),
    ] {
        place.done(&[&["mount", "mnt"][..], options].concat());
        eventually("mounting", || is_mounted(place));
        let said = place.done(&["status", "--json"]).json();
        let [mount] = &said["mounts"].as_array().unwrap()[..] else { panic!("{said}") };
        assert_eq!(mount["point"].as_str(), point.to_str());
        assert_eq!((mount["host"].as_str(), mount["read_only"].as_bool()), (Some(&*host), Some(read_only)));
        assert_eq!(mount["snapshot"].is_null(), snapshot.is_none(), "{mount}");
        let since: jiff::Timestamp = mount["since"].as_str().unwrap().parse().unwrap();
        assert!((jiff::Timestamp::now().as_second() - since.as_second()).abs() < 60, "{mount}");
        let session = said["sessions"].as_array().unwrap().iter().find(|one| one["id"] == mount["session"]);
        assert_eq!(session.unwrap()["process"], mount["process"]);
        if rustix::process::getuid().is_root() {
            assert_eq!(mount["user"], "root");
        }
        let text = place.done(&["status"]).text();
        let line = text.lines().find(|line| line.trim_start().starts_with(point.to_str().unwrap()));
        assert!(format!("{}\n", line.unwrap()).contains(shows) && text.contains("\n1 mount\n"), "{text}");
        place.done(&["unmount", "mnt"]);
        eventually("its end", || mounts().is_empty());
    }
}
