//! Messages that name another command, or that tell of a wait.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run::{Place, Said};

#[test]
fn what_is_no_directory_is_no_store() {
    let place = Place::new();
    place.write("file", "no store");
    for no_store in ["file", "/dev/null"] {
        let said = place.code(1, &["-s", no_store, "ls"]);
        assert!(said.err.contains("is no store: it is not a directory"), "{}", said.err);
    }
    std::fs::create_dir(place.path("closed")).unwrap();
    if let Some(mut command) = place.unprivileged(&["-s", "closed", "ls"]) {
        std::fs::set_permissions(place.path("closed"), PermissionsExt::from_mode(0o000)).unwrap();
        let said: Said = command.output().unwrap().into();
        assert_eq!(said.code, 1);
        assert!(said.err.contains("cannot open the store closed: Permission denied"), "{}", said.err);
    } else {
        println!("not tried as somebody who may not enter");
    }
}

#[test]
fn a_long_wait_for_the_database_is_told_of() {
    let place = Place::plain();
    let database = outrigger_store::testing::database(&place.path("store/meta.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut child = place.command(&["ls"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The lock is released after a whole line: a sentence may come in several writes.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    database.execute_batch("ROLLBACK").unwrap();
    assert!(said.contains("waiting for another process, which has the metadata database locked"), "{said}");
    let until = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_second_collector_is_told_of_the_first() {
    let place = Place::plain();
    let store = outrigger_store::Store::open(&place.path("store"), false).unwrap();
    let session = store.session(outrigger_store::meta::SessionKind::Collector, "gc").unwrap();
    store.meta.take_collector(session.id()).unwrap();
    for dry in [&["gc"][..], &["gc", "-n"]] {
        let said = place.code(1, dry).err;
        assert!(
            said.contains(", a `gc` or `copy`, is collecting; try again when it has finished\n"),
            "{said}"
        );
        assert!(!said.contains("becoming"), "{said}");
    }
}

#[test]
fn patterns_may_be_anchored_and_need_not_be_text() {
    let place = Place::new();
    for path in ["src/target/a", "src/below/target/b", "src/keep"] {
        place.write(path, path);
    }
    for (to, anchored) in [("slash", "/target"), ("dot", "./target")] {
        place.done(&["put", "src", "--to", to, "--exclude", anchored]);
        assert_eq!(place.lines(&["ls", "-R", to]), ["below", "below/target", "below/target/b", "keep"]);
    }
    let latin = OsStr::from_bytes(b"caf\xe9");
    place.write(place.path("src").join(latin), "coffee");
    let args = [OsStr::new("put"), OsStr::new("src"), OsStr::new("--exclude"), latin];
    place.done(&args);
    assert_eq!(place.lines(&["ls", "src"]), ["below", "keep", "target"]);
    let said = place.code(2, &["put", "src", "--exclude", "/"]);
    assert!(said.err.contains("names nothing below the top"), "{}", said.err);
}

#[test]
fn a_slash_at_the_end_means_a_directory() {
    let place = Place::new();
    place.write("a", "a");
    place.done(&["put", "a"]);
    for command in ["mv", "cp"] {
        let said = place.code(2, &[command, "a", "z/"]);
        assert!(said.err.contains("`z/` is not a directory"), "{}", said.err);
    }
    assert_eq!(place.lines(&["ls"]), ["a"]);
}

#[test]
fn what_goes_is_counted() {
    let place = Place::new();
    for name in ["t/a", "t/d/b", "t/d/c", "lone"] {
        place.write(name, name);
    }
    place.done(&["put", "t", "lone", "--to", "x"]);
    assert_eq!(place.done(&["rm", "--no-snapshot", "x/lone"]).text(), "removed 1 file\n");
    assert_eq!(place.done(&["rm", "-r", "--no-snapshot", "x"]).text(), "removed 3 files and 3 directories\n");
}

#[test]
fn a_run_of_gc_frees_what_its_rehearsal_says() {
    let place = Place::new();
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed;
        (0..3_000_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    };
    place.write("src/goes", noise(1));
    place.write("src/stays", noise(2));
    place.done(&["put", "src"]);
    place.done(&["rm", "--no-snapshot", "src/goes"]);
    let freed = |said: String, before: &str| -> String {
        let (head, tail) = said.split_once(before).unwrap_or_else(|| panic!("{said}"));
        let word = if before == "freed " { tail } else { head.rsplit(", ").next().unwrap() };
        word.split(' ').take(2).collect::<Vec<_>>().join(" ")
    };
    let rehearsed = freed(place.done(&["gc", "-n"]).text(), " would be freed");
    let said = place.done(&["gc"]).text();
    let value = |text: &str| text.split(' ').next().unwrap().parse::<f64>().unwrap();
    let (rehearsed, done) = (value(&rehearsed), value(&freed(said.clone(), "freed ")));
    // Copied chunks are packed again, with other headers.
    assert!((rehearsed - done).abs() < rehearsed / 20.0, "{rehearsed} and then {said}");
}
