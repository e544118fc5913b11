//! Several programs on one pass over an input: all get the same bytes, read once; all must succeed.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{FileToMany, ManyToFile, ReadToFile, ReadToNothing, WriteToTwo};
use outrigger_active::plan::Splits;
use outrigger_active::{runner, through};
use outrigger_store::Store;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::packs::PackReader;
use outrigger_store::testing::Wrapped;
use outrigger_workload::Rng;
use support::{Place, go, lines, numbered, options, spec};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[test]
fn the_store_is_read_once_however_many_programs_there_are() {
    let place = Place::new();
    let data = Rng::new(7).bytes(24 << 20);
    place.put("in", &data);
    let Place { dir, store } = place;
    let path = dir.path().join("store");
    drop(store);
    // Bytes read from packs, and given to programs; each run opens the store anew, so that no cache
    // helps.
    let ran = |spec: &Spec| -> (u64, u64) {
        let mut store = Store::open(&path, false).unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&read);
        let counting = Wrapped::over(Arc::clone(&store.backend)).before_reads(move |_, len| {
            counted.fetch_add(len as u64, Ordering::SeqCst);
        });
        let packs = PackReader::new(Arc::new(counting), store.config.id, store.config.fingerprint);
        store.packs = Arc::new(packs);
        let store = Arc::new(store);
        let job =
            outrigger_active::plan::submit(&store, spec, &["in".into()], &[], Splits::Count(3)).unwrap();
        let counters = Arc::default();
        let report = runner::run(&store, job, &options(1), &counters).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
        (read.load(Ordering::SeqCst), counters.view().bytes_read)
    };
    let fixed = |spec: Spec| Spec { records: outrigger_active::job::records::Records::Fixed(1000), ..spec };
    let one = ran(&fixed(spec(ReadToNothing, &["sh", "-c", "cat > /dev/null"])));
    let script = words(&["sh", "-c", "cat > /dev/null"]);
    let four = spec(ReadToNothing, &["sh", "-c", "cat > /dev/null"])
        .and(script.clone())
        .and(script.clone())
        .and(script);
    let four = ran(&fixed(four));
    assert!(one.0 >= data.len() as u64, "{one:?}: nothing was counted");
    assert_eq!((four.1, one.1), (data.len() as u64, data.len() as u64));
    assert_eq!(four.0, one.0, "bytes that were read of packs");
    // Large outputs of all of them, while each waits for the others.
    let copies = spec(ReadToFile, &["cat"])
        .output("a")
        .and(words(&["cat"]))
        .output("b")
        .and(words(&["tac", "-s", "x"]));
    ran(&fixed(copies.output("c")));
    let store = Arc::new(Store::open(&path, false).unwrap());
    assert!(support::read(&store, "a").unwrap() == data && support::read(&store, "b").unwrap() == data);
    assert_eq!(support::read(&store, "c").unwrap().len(), data.len());
}

#[test]
fn each_has_outputs_surroundings_and_an_identity_of_its_own() {
    let place = Place::new();
    place.put("in/a", b"3\n1\n2\n");
    place.put("in/b", b"5\n4\n");
    let both = spec(ReadToFile, &["awk", "{s+=$1} END {print s}"]).output("sums/{name}");
    let report =
        place.run(&both.and(words(&["sort"])).output("sorted/{name}"), &["in/*"], Splits::Auto).unwrap();
    assert_eq!((report.job.state, report.files.len()), (JobState::Done, 4));
    assert_eq!([place.text("sums/a"), place.text("sums/b")], ["6\n", "9\n"]);
    assert_eq!([place.text("sorted/a"), place.text("sorted/b")], ["1\n2\n3\n", "4\n5\n"]);
    // Outputs by name: each has a directory, which the other does not see.
    let script = "cat > $AS_OUTPUT_x; ls | wc -l >> $AS_OUTPUT_x";
    let named = spec(FileToMany, &["sh", "-c", script]).output("x=one").and(words(&["sh", "-c", script]));
    place.run(&named.output("x=two"), &["in/b"], Splits::Auto).unwrap();
    assert_eq!([place.text("one"), place.text("two")], ["5\n4\n1\n", "5\n4\n1\n"]);
    // Many inputs, and one of the programs reads them as files; errors name the program that writes
    // outside.
    let tasks = spec(ManyToFile, &["sh", "-c", "cat; echo $AS_TASK_ID"]).output("t1");
    place
        .run(&tasks.and(words(&["sh", "-c", "cat; echo $AS_TASK_ID"])).output("t2"), &["in/*"], Splits::Auto)
        .unwrap();
    let [one, two] = [place.text("t1"), place.text("t2")];
    assert!(
        one.starts_with("3\n1\n2\n5\n4\n") && two.starts_with("3\n1\n2\n5\n4\n") && one != two,
        "{one} {two}"
    );
    // Split, and joined in order for each.
    let text = numbered(5000);
    place.put("big", &text);
    let split =
        lines(spec(ReadToFile, &["cat"])).output("c1").and(words(&["awk", "{print $2}"])).output("c2");
    place.run(&split, &["big"], Splits::Count(7)).unwrap();
    let second: String = String::from_utf8(text.clone())
        .unwrap()
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.to_string() + "\n")
        .collect();
    assert!(place.get("c1").unwrap() == text && place.text("c2") == second);
    place.assert_sound();
}

#[test]
fn one_that_has_read_enough_does_not_stop_the_others_and_one_that_fails_fails_the_attempt() {
    let place = Place::new();
    let text = numbered(300_000);
    place.put("in", &text);
    let head =
        spec(ReadToFile, &["head", "-n", "1"]).output("first").and(words(&["wc", "-l"])).output("lines");
    let report = place.run(&head, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!((place.text("first"), place.text("lines").trim()), ("0 0\n".into(), "300000"));
    // The second program fails at its first attempt, early. The first, which wrote much, runs again
    // with it, and nothing of the attempt stays.
    let ran = place.dir.path().join("ran");
    let first = format!("echo $AS_ATTEMPT >> {}; cat; echo $AS_ATTEMPT", ran.display());
    let second = "head -c 1000 > /dev/null; test $AS_ATTEMPT -gt 1 || { echo not yet >&2; exit 3; }; wc -l";
    let mut both = spec(ReadToFile, &["sh", "-c", &first])
        .output("x/all")
        .and(words(&["sh", "-c", second]))
        .output("x/count");
    let failed = place.run(&both, &["in"], Splits::Auto).unwrap();
    assert_eq!(failed.job.state, JobState::Failed);
    assert!(failed.job.why.contains("`sh`: exit code 3: not yet"), "{}", failed.job.why);
    assert!(place.get("x/all").is_none() && place.get("x/count").is_none());
    both.tries = 2;
    std::fs::remove_file(&ran).unwrap();
    let report = place.run(&both, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "1\n2\n");
    assert!(place.text("x/all").ends_with("\n2\n") && place.get("x/all").unwrap().len() == text.len() + 2);
    // Each program's log is kept apart.
    let says = spec(ReadToNothing, &["sh", "-c", "echo one >&2"]).and(words(&["sh", "-c", "echo two >&2"]));
    let report = place.run(&says, &["in"], Splits::Auto).unwrap();
    let log = place.store.jobs().split(report.job.id, 0).unwrap().unwrap().log;
    assert_eq!(String::from_utf8(log).unwrap(), "--- sh\none\n--- sh\ntwo\n");
    // One that cannot be started, whichever: the others do not wait for it.
    for missing in [0, 1, 2] {
        let programs: Vec<Vec<String>> = (0..3)
            .map(|number| words(&[if number == missing { "/usr/bin/no-such-program" } else { "cat" }]))
            .collect();
        let mut three = spec(ReadToNothing, &[]);
        three.program.clone_from(&programs[0]);
        let three = three.and(programs[1].clone()).and(programs[2].clone());
        assert_eq!(place.run(&three, &["in"], Splits::Auto).unwrap().job.state, JobState::Failed);
    }
    place.assert_sound();
}

#[test]
fn what_is_damaged_is_given_to_none_as_if_it_were_all() {
    let place = Place::new();
    place.put("in", &Rng::new(7).bytes(4 << 20));
    let job = spec(ReadToFile, &["cat"]).output("a").and(words(&["cat"])).output("b");
    let job = place.submit(&job, &["in"], Splits::Auto).unwrap();
    for pack in std::fs::read_dir(place.store.dir().join("packs")).unwrap().flat_map(|dir| {
        let dir = dir.unwrap().path();
        if dir.is_dir() {
            std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect()
        } else {
            vec![dir]
        }
    }) {
        let mut bytes = std::fs::read(&pack).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::write(&pack, bytes).unwrap();
    }
    let Place { dir, store } = place;
    drop(store);
    let store = Arc::new(Store::open(&dir.path().join("store"), false).unwrap());
    let report = go(&store, job, 1).unwrap();
    assert_eq!(report.job.state, JobState::Failed);
    assert!(report.job.why.contains("reading `in`"), "{}", report.job.why);
    assert!(support::read(&store, "a").is_none() && support::read(&store, "b").is_none());
}

#[test]
fn a_stream_feeds_several_and_the_raw_file() {
    let place = Place::new();
    let text = numbered(200_000);
    let both =
        spec(WriteToTwo, &["wc", "-l"]).output("count").and(words(&["head", "-n", "2"])).output("head");
    let both = through::keep_raw(both, "raw");
    let stream = Box::new(std::io::Cursor::new(text.clone()));
    let report = through::run(&place.store, both, stream, &options(1), &Arc::default(), &|_| ()).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!((place.text("count").trim(), place.text("head")), ("200000", "0 0\n1 7919\n".to_string()));
    assert_eq!(place.get("raw").unwrap(), text);
    place.assert_sound();
}
