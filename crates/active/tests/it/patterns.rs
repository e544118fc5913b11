//! The promises of each pattern, over stored files and over files that are being written.

use crate::support;

use std::io::{Cursor, Read};
use std::sync::Arc;

use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{
    FileToMany, ManyToFile, ReadToFile, ReadToNothing, WriteToFile, WriteToNothing, WriteToTwo,
};
use outrigger_active::plan::Splits;
use outrigger_active::progress::Counters;
use outrigger_active::runner;
use outrigger_active::through;
use outrigger_store::ErrorKind;
use outrigger_store::meta::jobs::JobState;
use outrigger_workload::eventually;
use support::{Place, lines, numbered, options, spec};

const ONE: Splits = Splits::Count(1);

#[test]
fn a_stored_file_becomes_a_new_one() {
    let place = Place::new();
    place.put("in.txt", b"1\n2.5\n3\n");
    let double = spec(ReadToFile, &["awk", "{print $1*2}"]).output("out/{stem}.doubled");
    let report = place.run(&double, &["in.txt"], ONE).unwrap();
    assert_eq!(report.job.state, JobState::Done);
    assert_eq!(place.text("out/in.doubled"), "2\n5\n6\n");
    assert_eq!(report.files.len(), 1);
    place.assert_sound();
}

#[test]
fn several_inputs_each_become_a_file() {
    let place = Place::new();
    for name in ["a", "b", "sub/c"] {
        place.put(&format!("logs/{name}.log"), name.rsplit('/').next().unwrap().as_bytes());
    }
    place.put("other.txt", b"no");
    let upper = spec(ReadToFile, &["tr", "a-z", "A-Z"]).output("{dir}/{stem}.up");
    place.run(&upper, &["logs/**/*.log"], ONE).unwrap();
    assert_eq!((place.text("logs/a.up"), place.text("logs/sub/c.up")), ("A".into(), "C".into()));
    let same = spec(ReadToFile, &["cat"]).output("one");
    let error = place.submit(&same, &["logs/*.log"], ONE).unwrap_err();
    assert!(error.to_string().contains("two inputs would become `one`"), "{error}");
    let none = place.submit(&upper, &["nothing/*"], ONE).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
}

#[test]
fn splits_see_every_record_once_and_in_order() {
    let place = Place::new();
    let text = numbered(20_000);
    place.put("big", &text);
    for splits in [1, 2, 7, 64] {
        let copy = lines(spec(ReadToFile, &["cat"])).output("copy");
        let report = place.run(&copy, &["big"], Splits::Count(splits)).unwrap();
        assert_eq!(report.job.splits.iter().sum::<u64>(), splits);
        assert_eq!(place.get("copy").unwrap(), text, "{splits} splits");
        // A record that was cut would not have two fields.
        let broken = lines(spec(ReadToFile, &["awk", "NF != 2"])).output("broken");
        place.run(&broken, &["big"], Splits::Count(splits)).unwrap();
        assert_eq!(place.text("broken"), "", "{splits} splits");
    }
    let fixed = Spec { records: Records::Fixed(1000), ..spec(ReadToFile, &["wc", "-c"]) }.output("sizes");
    place.run(&fixed, &["big"], Splits::Count(3)).unwrap();
    let sizes: Vec<usize> = place.text("sizes").lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), text.len());
    assert!(sizes[..2].iter().all(|size| size % 1000 == 0), "{sizes:?}");
    let apart = lines(spec(ReadToFile, &["cat"])).output("parts/{split}");
    place.run(&apart, &["big"], Splits::Count(3)).unwrap();
    let parts: Vec<u8> = (0..3).flat_map(|part| place.get(&format!("parts/{part:05}")).unwrap()).collect();
    assert_eq!(parts, text);
}

#[test]
fn a_large_output_streams_and_is_whole() {
    let place = Place::new();
    let text = numbered(400_000);
    place.put("big", &text);
    let twice = spec(ReadToFile, &["awk", "{print; print}"]).output("twice");
    place.run(&twice, &["big"], ONE).unwrap();
    let wanted: Vec<u8> =
        text.split_inclusive(|&byte| byte == b'\n').flat_map(|line| [line, line].concat()).collect();
    assert!(place.get("twice").unwrap() == wanted);
    // The program fails after megabytes of output: nothing of it may be seen.
    let fails = spec(ReadToFile, &["sh", "-c", "cat; exit 3"]).output("partial");
    let report = place.run(&fails, &["big"], ONE).unwrap();
    assert_eq!(report.job.state, JobState::Failed);
    assert!(report.job.why.contains("exit code 3"), "{}", report.job.why);
    assert_eq!(place.get("partial"), None);
    place.assert_sound();
}

#[test]
fn a_program_may_stop_reading_and_need_not_write() {
    let place = Place::new();
    place.put("big", &numbered(400_000));
    let head = spec(ReadToFile, &["head", "-n", "2"]).output("head");
    place.run(&head, &["big"], ONE).unwrap();
    assert_eq!(place.text("head"), "0 0\n1 7919\n");
    let none = spec(ReadToFile, &["true"]).output("empty");
    place.run(&none, &["big"], ONE).unwrap();
    assert_eq!(place.text("empty"), "");
}

#[test]
fn a_program_that_reads_by_fits_and_starts_is_given_all_and_it_is_counted() {
    let place = Place::new();
    let text = numbered(400_000);
    place.put("big", &text);
    // First slowly, then not at all for longer than any timed wait, then as fast as possible.
    let script = "dd bs=4096 count=100 2>&-; sleep 0.2; dd bs=512 count=1 2>&-; sleep 0.1; cat";
    let job = lines(spec(ReadToFile, &["sh", "-c", script])).output("out");
    let job = place.submit(&job, &["big"], ONE).unwrap();
    let counters = Arc::new(Counters::default());
    let report = runner::run(&place.store, job, &options(1), &counters).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert!(place.get("out").unwrap() == text);
    let seen = counters.view();
    let len = text.len() as u64;
    assert_eq!((seen.bytes_read, seen.records_read, seen.bytes_written), (len, 400_000, len));
}

#[test]
fn a_pattern_without_output_keeps_nothing_of_it() {
    let place = Place::new();
    place.put("in", b"some\nlines\n");
    let file = place.dir.path().join("elsewhere");
    let count = spec(
        ReadToNothing,
        &["sh", "-c", "wc -l >> \"$TO\"; echo $AS_TASK_ID $AS_ATTEMPT >> \"$TO\"; seq 1000000"],
    );
    let count = Spec { env: vec![("TO".into(), file.display().to_string())], ..count };
    let report = place.run(&count, &["in"], ONE).unwrap();
    assert!(report.files.is_empty());
    let told = std::fs::read_to_string(file).unwrap();
    let told: Vec<&str> = told.split_whitespace().collect();
    assert_eq!((told[0], told[2]), ("2", "1"));
    assert!(told[1].ends_with(&format!("-{}-0", report.job.id)), "{told:?}");
    assert_eq!(spec(ReadToNothing, &["cat"]).output("x").check().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn one_file_becomes_many() {
    let place = Place::new();
    place.put("all.txt", &numbered(1000));
    let parts = spec(FileToMany, &["split", "-l", "300", "-", "part-"]).output("parts/");
    let report = place.run(&parts, &["all.txt"], ONE).unwrap();
    assert_eq!(report.files.len(), 4);
    let joined: Vec<u8> = ["aa", "ab", "ac", "ad"]
        .iter()
        .flat_map(|end| place.get(&format!("parts/part-{end}")).unwrap())
        .collect();
    assert_eq!(joined, numbered(1000));
    let program = "awk '{ print > ENVIRON[$1 % 2 ? \"AS_OUTPUT_odd\" : \"AS_OUTPUT_even\"] }'; echo done";
    let named = spec(FileToMany, &["sh", "-c", program])
        .output("log")
        .output("odd={stem}.odd")
        .output("even={stem}.even");
    place.run(&named, &["all.txt"], ONE).unwrap();
    assert_eq!(place.text("all.odd").lines().count(), 500);
    assert_eq!(
        (place.text("all.even").lines().next().unwrap(), place.text("log")),
        ("0 0", "done\n".to_string())
    );
    let lazy = spec(FileToMany, &["true"]).output("x={stem}.x").output("y={stem}.y");
    let report = place.run(&lazy, &["all.txt"], ONE).unwrap();
    assert!(report.job.why.contains("did not write its output"), "{}", report.job.why);
}

#[test]
fn many_files_become_one() {
    let place = Place::new();
    for (name, text) in [("a", "3\n1\n"), ("b", "2\n"), ("c", "")] {
        place.put(&format!("in/{name}"), text.as_bytes());
    }
    let sort = spec(ManyToFile, &["sort"]).output("sorted");
    place.run(&sort, &["in/*"], ONE).unwrap();
    assert_eq!(place.text("sorted"), "1\n2\n3\n");
    let each = lines(spec(ManyToFile, &["sort"])).output("each");
    let report = place.run(&each, &["in/*"], Splits::Auto).unwrap();
    assert_eq!((report.job.splits.iter().sum::<u64>(), place.text("each")), (3, "1\n3\n2\n".to_string()));
    place.put("big", &numbered(300_000));
    let before = stored(&place);
    let joined = spec(ManyToFile, &[]).output("joined");
    place.run(&joined, &["big", "in/a", "big"], ONE).unwrap();
    assert_eq!(
        place.get("joined").unwrap(),
        [numbered(300_000), b"3\n1\n".to_vec(), numbered(300_000)].concat()
    );
    // No data was written: only names, a manifest and a catalogue block.
    assert!(stored(&place) < before + (256 << 10), "{} beside {before}", stored(&place));
    place.assert_sound();
}

fn stored(place: &Place) -> u64 {
    place.store.meta.packs().unwrap().iter().map(|pack| pack.bytes).sum()
}

fn written(place: &Place, spec: Spec, data: impl Read + Send + 'static) -> outrigger_active::runner::Report {
    let counters = Arc::new(Counters::default());
    through::run(&place.store, spec, Box::new(data), &options(1), &counters, &|_| ()).unwrap()
}

#[test]
fn a_file_that_is_written_is_kept_and_processed() {
    let place = Place::new();
    let text = numbered(300_000);
    let count = through::keep_raw(spec(WriteToTwo, &["wc", "-l"]).output("count"), "raw/data");
    let report = written(&place, count, Cursor::new(text.clone()));
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!((place.text("count").trim(), place.get("raw/data") == Some(text.clone())), ("300000", true));
    let only = spec(WriteToFile, &["gzip", "-c"]).output("data.gz");
    written(&place, only, Cursor::new(text.clone()));
    let back = spec(ReadToFile, &["gzip", "-dc"]).output("data");
    place.run(&back, &["data.gz"], ONE).unwrap();
    assert!(place.get("data").unwrap() == text);
    let nothing = through::keep_raw(spec(WriteToNothing, &["wc", "-l"]), "kept");
    let report = written(&place, nothing, Cursor::new(text.clone()));
    assert_eq!(report.files.len(), 1);
    assert!(place.get("kept").unwrap() == text);
    place.assert_sound();
}

#[test]
fn the_raw_file_survives_its_program_and_the_processed_one_does_not() {
    let place = Place::new();
    let two = through::keep_raw(spec(WriteToTwo, &["sh", "-c", "head -c 10; exit 1"]).output("out"), "raw");
    let report = written(&place, two, Cursor::new(numbered(1000)));
    assert_eq!((report.job.state, report.set_aside.len()), (JobState::Done, 1));
    assert_eq!((place.get("out"), place.get("raw")), (None, Some(numbered(1000))));
    let one = spec(WriteToFile, &["sh", "-c", "cat; exit 1"]).output("out");
    let report = written(&place, one, Cursor::new(numbered(1000)));
    assert_eq!((report.job.state, place.get("out")), (JobState::Failed, None));
}

/// Writes for a while, and then is lost.
struct Lost(Cursor<Vec<u8>>);

impl Read for Lost {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(room)? {
            0 => Err(std::io::Error::other("the line went dead")),
            len => Ok(len),
        }
    }
}

#[test]
fn a_lost_writer_is_no_end_of_file() {
    let place = Place::new();
    let seen = place.dir.path().join("seen");
    for keep in [true, false] {
        // A program that took the loss for the end would say so.
        let program = format!("cat > /dev/null; echo end >> {}", seen.display());
        let job = spec(if keep { WriteToTwo } else { WriteToFile }, &["sh", "-c", &program]).output("out");
        let job = if keep { through::keep_raw(job, "raw") } else { job };
        let report = written(&place, job, Lost(Cursor::new(numbered(100_000))));
        assert_eq!(report.job.state, JobState::Failed);
        assert!(report.job.why.contains("the line went dead"), "{}", report.job.why);
        assert_eq!((place.get("out"), place.get("raw"), seen.exists()), (None, None, false));
    }
    place.assert_sound();
}

#[test]
fn the_program_reads_while_the_writer_writes() {
    let place = Place::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let seen = place.dir.path().join("seen");
    let program = format!("read line; echo \"$line\" > {}; cat >/dev/null", seen.display());
    let job = through::keep_raw(spec(WriteToNothing, &["sh", "-c", &program]), "raw");
    std::thread::scope(|scope| {
        let counters = Arc::new(Counters::default());
        let (told, store) = (Arc::clone(&counters), &place.store);
        let running = scope
            .spawn(move || through::run(store, job, Box::new(reader), &options(1), &told, &|_| ()).unwrap());
        std::io::Write::write_all(&mut writer, b"first\n").unwrap();
        // The writer goes on only when the program has read what it wrote.
        eventually("the first line is read", || std::fs::read(&seen).is_ok_and(|line| line == b"first\n"));
        assert_eq!(place.get("raw"), None, "nothing is visible before the end");
        eventually("it waits for the writer", || counters.view().waits_for_writer);
        std::io::Write::write_all(&mut writer, b"second\n").unwrap();
        drop(writer);
        assert_eq!(running.join().unwrap().job.state, JobState::Done);
        assert!(!counters.view().waits_for_writer, "nobody waits after the end");
        assert_eq!((counters.view().splits, counters.view().splits_done), (1, 1));
    });
    assert_eq!(place.text("raw"), "first\nsecond\n");
}

#[test]
fn what_is_joined_as_it_is_has_no_splits() {
    let place = Place::new();
    place.put("a", b"1\n2\n");
    place.put("b", b"3\n");
    let job = lines(spec(ManyToFile, &[])).output("all");
    for splits in [Splits::Auto, Splits::Count(2), Splits::Hosts] {
        place.run(&job, &["a", "b"], splits).unwrap();
        assert_eq!(place.text("all"), "1\n2\n3\n", "{splits:?}");
    }
}
