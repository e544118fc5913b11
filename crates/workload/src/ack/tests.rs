use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::model::Model;
use super::*;

struct Run {
    _temp: tempfile::TempDir,
    dir: PathBuf,
    log: PathBuf,
}

impl Run {
    fn new(seed: u64, ops: u64) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (dir, log) = (temp.path().join("dir"), temp.path().join("log"));
        let report = ack_write(&dir, &log, &AckOptions { seed, ops, time: None, links: true }).unwrap();
        assert!(report.failed.is_none(), "{report:?}");
        assert_eq!(report.acked, ops);
        Self { _temp: temp, dir, log }
    }

    fn problems(&self, promise: Promise) -> Vec<String> {
        ack_verify(&self.dir, &self.log, promise).unwrap()
    }

    fn model(&self, promise: Promise) -> Model {
        let log = Log::parse(&fs::read_to_string(&self.log).unwrap()).unwrap();
        let mut model = Model::new(promise, log.seed);
        for (number, op) in log.acked.iter().enumerate() {
            model.apply(number as u64, op);
            model.acked(op);
        }
        model
    }

    /// The name of a file for which `good` holds.
    fn file(&self, promise: Promise, good: impl Fn(&model::File) -> bool) -> String {
        let model = self.model(promise);
        let file = model.files.iter().find(|file| file.names.len() == 1 && good(file));
        file.expect("such a file").names.first().unwrap().clone()
    }

    /// Cuts the log as if the operations from the `keep`th on had not returned, the first of them
    /// being in flight.
    fn cut_log(&self, keep: usize) {
        let text = fs::read_to_string(&self.log).unwrap();
        let lines: Vec<&str> = text.lines().take(1 + 2 * keep + 1).collect();
        fs::write(&self.log, lines.join("\n") + "\n").unwrap();
    }
}

fn flip(path: PathBuf, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55 | 1], at).unwrap();
}

#[test]
fn what_was_written_is_found_under_every_promise() {
    for seed in 0..6 {
        let run = Run::new(seed, 1500);
        for promise in [Promise::Acked, Promise::Names, Promise::Durable] {
            assert_eq!(run.problems(promise), [""; 0], "seed {seed}, {promise:?}");
        }
    }
}

#[test]
fn every_kind_of_operation_is_made_and_read_back_from_the_log() {
    let run = Run::new(7, 3000);
    let text = fs::read_to_string(&run.log).unwrap();
    for kind in [
        "create", "write", "append", "truncate", "rename d", "rename e", "link", "symlink", "unlink",
        "mkdir", "rmdir", "fsync ", "fsyncdir", "close",
    ] {
        let count = text.lines().filter(|line| line.contains(&format!(" {kind}"))).count();
        assert!(count >= 4, "{kind}: {count}");
    }
    let without = tempfile::tempdir().unwrap();
    let options = AckOptions { seed: 7, ops: 3000, time: None, links: false };
    ack_write(&without.path().join("dir"), &without.path().join("log"), &options).unwrap();
    assert!(!fs::read_to_string(without.path().join("log")).unwrap().contains(" link "));
    for line in text.lines().filter(|line| line.starts_with('>')) {
        let op = line.splitn(3, ' ').nth(2).unwrap();
        assert_eq!(Op::parse(op).unwrap().to_string(), op);
    }
}

#[test]
fn one_wrong_byte_is_found() {
    let run = Run::new(1, 800);
    let name = run.file(Promise::Acked, |file| file.len > 100);
    flip(run.dir.join(&name), 60);
    let problems = run.problems(Promise::Acked);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with(&format!("{name}: 1 of ")) && problems[0].contains("first at 60"));
}

#[test]
fn a_lost_a_shortened_and_an_invented_file_are_found() {
    for promise in [Promise::Acked, Promise::Names] {
        let run = Run::new(2, 800);
        let name = run.file(promise, |_| true);
        fs::remove_file(run.dir.join(&name)).unwrap();
        assert_eq!(run.problems(promise), [format!("{name}: nothing, expected a file")]);
    }
    let run = Run::new(3, 800);
    let name = run.file(Promise::Acked, |file| file.len > 10);
    let file = OpenOptions::new().write(true).open(run.dir.join(&name)).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 1).unwrap();
    assert_eq!(run.problems(Promise::Acked), [format!("{name}: {} bytes long, expected {len}", len - 1)]);
    file.set_len(0).unwrap();
    assert_eq!(run.problems(Promise::Acked), [format!("{name}: 0 bytes long, expected {len}")]);

    let run = Run::new(4, 300);
    fs::write(run.dir.join("d0/new"), "").unwrap();
    assert_eq!(run.problems(Promise::Durable), ["d0/new: never made"]);
}

#[test]
fn a_link_that_became_a_copy_is_found() {
    let run = Run::new(5, 800);
    let model = run.model(Promise::Acked);
    let name = model.files.iter().find(|file| file.names.len() > 1).unwrap().names.first().unwrap().clone();
    let path = run.dir.join(&name);
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let problems = run.problems(Promise::Acked);
    assert!(problems.iter().any(|problem| problem.contains("links expected")), "{problems:?}");
}

#[test]
fn the_operation_in_flight_may_be_there_or_not_but_the_one_before_must() {
    let run = Run::new(6, 600);
    let text = fs::read_to_string(&run.log).unwrap();
    let log = Log::parse(&text).unwrap();
    let (mut checked, mut missed) = (0, 0);
    // The directory has one operation more than the log says returned, and then two more.
    for keep in 0..log.acked.len() {
        let again = tempfile::tempdir().unwrap();
        if keep < 6 || keep % 20 > 1 {
            continue;
        }
        let run = Run { dir: again.path().join("dir"), log: again.path().join("log"), _temp: again };
        let options = AckOptions { seed: 6, ops: keep as u64 + 1, time: None, links: true };
        ack_write(&run.dir, &run.log, &options).unwrap();
        run.cut_log(keep);
        for promise in [Promise::Acked, Promise::Names, Promise::Durable] {
            assert_eq!(run.problems(promise), [""; 0], "{keep} operations and {}", log.acked[keep]);
        }
        run.cut_log(keep - 1);
        let quiet = |op: &Op| matches!(op, Op::Fsync(_) | Op::FsyncDir(_) | Op::Close(_));
        let changed = !quiet(&log.acked[keep]);
        checked += u64::from(changed);
        missed += u64::from(changed && run.problems(Promise::Acked).is_empty());
    }
    // An operation that the log lacks shows, unless it happens to change nothing (or the same
    // again).
    assert!(checked > 20 && missed * 5 < checked, "{missed} of {checked} were not noticed");
}

#[test]
fn a_write_cut_off_is_accepted_only_in_flight_and_only_with_its_own_bytes() {
    let run = Run::new(8, 6);
    fs::write(
        &run.log,
        format!("{HEADER}9\n> 0 create a\n< 0\n> 1 write a 0 5000\n< 1\n> 2 write a 4000 4000\n"),
    )
    .unwrap();
    fs::remove_dir_all(&run.dir).unwrap();
    fs::create_dir(&run.dir).unwrap();
    let mut good = model::bytes(9, 1, 5000);
    let path = run.dir.join("a");
    fs::write(&path, &good).unwrap();
    assert_eq!(run.problems(Promise::Acked), [""; 0], "nothing of it");
    good.truncate(4000);
    good.extend(&model::bytes(9, 2, 4000)[..2096]);
    fs::write(&path, &good).unwrap();
    assert_eq!(run.problems(Promise::Acked), [""; 0], "half of it");
    good[4500] ^= 1;
    fs::write(&path, &good).unwrap();
    assert_eq!(run.problems(Promise::Acked).len(), 1, "a byte of neither");
    good[4500] ^= 1;
    good.extend([7; 3000]);
    fs::write(&path, &good).unwrap();
    assert_eq!(run.problems(Promise::Acked).len(), 1, "longer than both");
}

#[test]
fn unsynced_data_may_be_lost_and_synced_data_may_not() {
    let run = Run::new(10, 8);
    let make = |tail: &str| {
        let log = format!(
            "{HEADER}9\n> 0 create a\n< 0\n> 1 write a 0 5000\n< 1\n> 2 fsync a\n< 2\n> 3 write a 4000 2000\n< 3\n{tail}"
        );
        fs::write(&run.log, log).unwrap();
    };
    fs::remove_dir_all(&run.dir).unwrap();
    fs::create_dir(&run.dir).unwrap();
    let synced = model::bytes(9, 1, 5000);
    let mut all = synced.clone();
    all.resize(6000, 0);
    all[4000..].copy_from_slice(&model::bytes(9, 3, 2000));
    let path = run.dir.join("a");
    let judge = |bytes: &[u8], promise| {
        fs::write(&path, bytes).unwrap();
        let problems = run.problems(promise);
        println!("{promise:?}: {problems:?}");
        problems.len()
    };
    make("");
    for promise in [Promise::Names, Promise::Durable] {
        assert_eq!(judge(&synced, promise), 0);
        assert_eq!(judge(&all, promise), 0);
        assert_eq!(judge(&synced[..4999], promise), 1, "shorter than what was synced");
        let mut extended = synced.clone();
        extended.resize(6000, 0);
        assert_eq!(judge(&extended, promise), 0, "its length came first");
        extended[3999] = 0;
        assert_eq!(judge(&extended, promise), 1, "synced bytes are gone");
        extended[3999] = synced[3999];
        extended[5500] = all[5500] ^ 1;
        assert_eq!(judge(&extended, promise), 1, "bytes nobody wrote");
    }
    assert_eq!(judge(&synced, Promise::Acked), 1);
    // A close flushes to the file system's process, not to the disk.
    make("> 4 close a\n< 4\n");
    assert_eq!(judge(&synced, Promise::Names), 1);
    assert_eq!(judge(&synced, Promise::Durable), 0);
    // A rename may be lost, but not the file.
    make("> 4 rename a b\n< 4\n");
    assert_eq!(judge(&synced, Promise::Durable), 0);
    assert_eq!(judge(&synced, Promise::Names), 2);
    fs::rename(&path, run.dir.join("b")).unwrap();
    assert_eq!(run.problems(Promise::Durable), [""; 0]);
    fs::remove_file(run.dir.join("b")).unwrap();
    assert_eq!(run.problems(Promise::Durable), ["a file that was synced is under none of its names: a, b"]);
    make("> 4 rename a b\n< 4\n> 5 fsyncdir .\n< 5\n");
    assert_eq!(judge(&synced, Promise::Durable), 2);
}

#[test]
fn a_rename_in_flight_is_whole() {
    let run = Run::new(11, 6);
    fs::write(
        &run.log,
        format!("{HEADER}9\n> 0 create a\n< 0\n> 1 write a 0 50\n< 1\n> 2 create b\n< 2\n> 3 rename a b\n! 3 killed\n"),
    )
    .unwrap();
    fs::remove_dir_all(&run.dir).unwrap();
    fs::create_dir(&run.dir).unwrap();
    let (a, b) = (run.dir.join("a"), run.dir.join("b"));
    fs::write(&a, model::bytes(9, 1, 50)).unwrap();
    fs::write(&b, "").unwrap();
    assert_eq!(run.problems(Promise::Acked), [""; 0], "before");
    fs::remove_file(&b).unwrap();
    assert_ne!(run.problems(Promise::Acked), [""; 0], "the target is gone");
    fs::rename(&a, &b).unwrap();
    assert_eq!(run.problems(Promise::Acked), [""; 0], "after");
    fs::hard_link(&b, &a).unwrap();
    assert_ne!(run.problems(Promise::Acked), [""; 0], "both");
}

#[test]
fn a_failing_operation_ends_the_writer_and_is_the_one_in_flight() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, log) = (temp.path().join("dir"), temp.path().join("log"));
    let options =
        AckOptions { seed: 1, ops: u64::MAX, time: Some(std::time::Duration::from_secs(20)), links: true };
    let pulled = dir.clone();
    let puller = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        fs::rename(&pulled, pulled.with_extension("away")).unwrap();
    });
    let report = ack_write(&dir, &log, &options).unwrap();
    puller.join().unwrap();
    assert!(report.failed.is_some(), "{report:?}");
    let read = Log::parse(&fs::read_to_string(&log).unwrap()).unwrap();
    assert_eq!(read.acked.len() as u64, report.acked);
    assert!(read.in_flight.is_some());
    assert_eq!(ack_verify(&dir.with_extension("away"), &log, Promise::Acked).unwrap(), [""; 0]);
}

#[test]
fn a_log_that_is_none_and_a_directory_in_use_are_refused() {
    let run = Run::new(1, 20);
    assert!(ack_write(&run.dir, &run.log, &AckOptions { seed: 1, ops: 1, time: None, links: true }).is_err());
    fs::write(&run.log, "something else\n").unwrap();
    assert!(ack_verify(&run.dir, &run.log, Promise::Acked).is_err());
    fs::write(&run.log, format!("{HEADER}9\n< 0\n")).unwrap();
    assert!(ack_verify(&run.dir, &run.log, Promise::Acked).is_err());
}
