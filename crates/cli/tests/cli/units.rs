//! The units in `systemd/` use only commands and options that the program knows; and the output of
//! `status --metrics`.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::copies::World;
use crate::run::Place;

struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command that serves metrics at `socket`, and waits until it does.
fn serve(mut command: Command, socket: &Path) -> Served {
    let child = Served(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < until, "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn scrape(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

#[track_caller]
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}")).parse().unwrap()
}

#[test]
fn a_stores_numbers_are_handed_out_until_a_signal() {
    let place = Place::new();
    place.write("a", b"content");
    place.done(&["put", "a"]);
    let socket = place.path("numbers");
    let address = format!("unix:{}", socket.display());
    let mut served = serve(place.command(&["status", "--metrics", &address]), &socket);
    let metrics = scrape(&socket);
    assert_eq!(value(&metrics, "outrigger_store_up"), 1.0);
    assert_eq!(value(&metrics, "outrigger_store_files"), 1.0);
    assert_eq!(value(&metrics, "outrigger_store_content_bytes"), 7.0);
    assert_eq!(value(&metrics, "outrigger_store_snapshots"), 0.0);
    assert_eq!(value(&metrics, "outrigger_store_packs_trouble"), 0.0);
    assert!(value(&metrics, "outrigger_store_packs{state=\"live\"}") >= 1.0);
    assert!(value(&metrics, "outrigger_store_pack_bytes{state=\"live\"}") >= 1.0);
    assert_eq!(value(&metrics, "outrigger_store_collecting"), 0.0);
    assert!(value(&metrics, "outrigger_store_place_bytes{place=\"in the store's directory\"}") >= 1.0);
    assert!(value(&metrics, "outrigger_store_place_free_bytes{place=\"in the store's directory\"}") >= 1.0);
    // Changes show up meanwhile, also after another database has taken this one's place.
    place.done(&["snapshot", "create", "s"]);
    assert_eq!(value(&scrape(&socket), "outrigger_store_snapshots"), 1.0);
    place.done(&["recover", "--anyway"]);
    place.done(&["snapshot", "create", "t"]);
    assert_eq!(value(&scrape(&socket), "outrigger_store_snapshots"), 2.0);
    // Nobody has run `gc` on this database.
    assert!(!scrape(&socket).contains("gc_ended"));
    assert!(place.done(&["status"]).text().contains("last gc    not known"));
    place.done(&["rm", "--no-snapshot", "a"]);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    place.done(&["snapshot", "delete", "s", "t"]);
    place.done(&["gc", "--dry-run"]);
    assert!(place.done(&["status", "--json"]).json()["last_gc"].is_null());
    let report = place.done(&["gc", "--json"]).json();
    let metrics = scrape(&socket);
    let ended = value(&metrics, "outrigger_store_gc_ended_timestamp_seconds");
    assert!(ended >= before as f64 && ended < before as f64 + 60.0, "{ended}, {before}");
    assert!(value(&metrics, "outrigger_store_gc_took_seconds") < 60.0);
    let last = place.done(&["status", "--json"]).json()["last_gc"].clone();
    assert_eq!(last["packs_removed"], report["packs_unlinked"]);
    assert!(last["packs_removed"].as_u64() > Some(0) && last["packs_unreadable"] == 0, "{last}");
    assert_eq!(value(&metrics, "outrigger_store_gc_freed_bytes"), last["bytes_freed"].as_f64().unwrap());
    let text = place.done(&["status"]).text();
    assert!(text.contains("last gc    20") && text.contains(", freed "), "{text}");
    let pid = rustix::process::Pid::from_child(&served.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(served.0.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
    let said = place.code(2, &["status", "--metrics", "0.0.0.0:9465"]);
    assert!(said.err.contains("a proxy before it"), "{}", said.err);
}

#[test]
fn a_copys_numbers_say_how_far_it_is_behind() {
    let Some(world) = World::new() else { return };
    world.done(&["-s", "a", "init"]);
    world.fill("a");
    let b = world.url();
    world.done(&["copy", "a", &b, "--packs", &world.dir_at("packs")]);
    let socket = world.place.path("numbers");
    let address = format!("unix:{}", socket.display());
    let _served = serve(world.command(&["-s", &b, "status", "--metrics", &address]), &socket);
    let first = value(&scrape(&socket), "outrigger_store_copy_behind_seconds");
    std::thread::sleep(Duration::from_millis(20));
    let later = value(&scrape(&socket), "outrigger_store_copy_behind_seconds");
    assert!(first > 0.0 && later > first, "{first}, {later}");
    // Its database is away, then it is there again.
    let schema = b.rsplit_once("schema=").unwrap().1;
    world.server.sql(&format!("ALTER SCHEMA {schema} RENAME TO {schema}_away"));
    let metrics = scrape(&socket);
    assert_eq!(value(&metrics, "outrigger_store_up"), 0.0);
    assert!(!metrics.contains("outrigger_store_files"), "{metrics}");
    world.server.sql(&format!("ALTER SCHEMA {schema}_away RENAME TO {schema}"));
    assert_eq!(value(&scrape(&socket), "outrigger_store_up"), 1.0);
}

/// The names and contents of the files in `systemd/`.
fn units() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd");
    let read = |unit: std::io::Result<std::fs::DirEntry>| {
        let unit = unit.unwrap();
        (unit.file_name().into_string().unwrap(), std::fs::read_to_string(unit.path()).unwrap())
    };
    let mut units: Vec<_> = std::fs::read_dir(dir).unwrap().map(read).collect();
    units.sort();
    units
}

const PROGRAM: &str = "/usr/local/bin/outrigger";

/// The program knows every command and option in a unit, and those in defaults of its variables.
#[test]
fn units_say_what_the_program_understands() {
    let place = Place::empty();
    let mut commands = Vec::new();
    for (unit, text) in units() {
        let defaults = text.lines().filter_map(|line| line.strip_prefix("Environment="));
        let defaults: Vec<_> = defaults.map(|pair| pair.trim_matches('"').split_once('=').unwrap()).collect();
        let starts = text.lines().filter(|line| line.starts_with("Exec"));
        for line in starts.filter_map(|line| line.split_once(PROGRAM)?.1.strip_prefix(' ')) {
            let words = line.split(' ').flat_map(|word| {
                let default = defaults.iter().find(|(name, _)| word.strip_prefix('$') == Some(*name));
                default.map_or(word, |(_, value)| *value).split(' ')
            });
            let words: Vec<&str> = words.collect();
            let mut plain = words.iter().filter(|word| !word.starts_with('-'));
            let mut command = vec![*plain.next().unwrap()];
            let help_of = |command: &[&str]| place.done(&[command, &["--help"]].concat()).text();
            let mut help = help_of(&command);
            let is_command = |word: &&&str| help.contains(&format!("\n  {word} "));
            if let (true, Some(word)) = (help.contains("<COMMAND>"), plain.next().filter(is_command)) {
                command.push(word);
                help = help_of(&command);
            }
            for option in words.iter().filter(|word| word.starts_with('-')) {
                let is_known =
                    help.split_whitespace().any(|word| word.trim_end_matches([',', ';', '.']) == *option);
                assert!(is_known, "{option} of {line} in {unit}");
            }
            // A unit explains the variables that are to be set.
            for name in words.iter().filter_map(|word| word.strip_prefix('$')) {
                let name = name.trim_matches(['{', '}']);
                assert!(text.matches(name).count() >= 2, "{name} is not explained in {unit}");
            }
            commands.push(command.join(" "));
        }
        if let Some(name) = unit.strip_suffix(".timer") {
            let service = format!("{name}.service");
            assert!(units().iter().any(|(unit, _)| *unit == service), "{unit} starts nothing");
        }
    }
    commands.sort();
    let all = "backup check copy gc keep mount node snapshot create status unmount unmount";
    assert_eq!(commands.join(" "), all);
}

/// systemd has no complaint about the units.
#[test]
fn units_are_what_systemd_takes() {
    let place = Place::empty();
    // systemd checks that the program exists.
    let program = env!("CARGO_BIN_EXE_outrigger");
    let put = |(unit, text): (String, String)| {
        let path = place.path(&unit);
        std::fs::write(&path, text.replace(PROGRAM, program)).unwrap();
        path
    };
    let paths: Vec<_> = units().into_iter().map(put).collect();
    assert_eq!(paths.len(), 12);
    match Command::new("systemd-analyze").arg("verify").args(&paths).output() {
        Err(error) => outrigger_workload::skipped!("systemd-analyze: {error}"),
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && !text.contains("outrigger-"), "{text}");
        }
    }
}
