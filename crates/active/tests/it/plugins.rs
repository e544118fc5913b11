//! Records that a program of users' own finds (`--records plugin:PROGRAM`).

use crate::support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use outrigger_active::job::Mode;
use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::making::Making;
use outrigger_active::pattern::Pattern::{FileToMany, ManyToFile, ReadToFile};
use outrigger_active::plan::{Splits, submit, submit_reporting};
use outrigger_store::meta::jobs::JobState;
use outrigger_store::testing::Wrapped;
use outrigger_store::{ErrorKind, Store};
use outrigger_workload::eventually;
use support::{Place, can_sandbox, go, read, spec};

/// The example's program.
fn fasta() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/active/records/fasta.sh");
    path.display().to_string()
}

fn records(spec: Spec, plugin: &str) -> Spec {
    Spec { records: Records::parse(&format!("plugin:{plugin}")).unwrap(), ..spec }
}

/// Sequences of many lengths, the first one long.
fn sequences(count: usize) -> Vec<u8> {
    let line = |number: usize, line: usize| format!("{:070}\n", number * 7919 + line).replace('0', "A");
    let one = |number: usize| {
        let lines = if number == 0 { 1600 } else { number * 31 % 17 };
        format!(">sequence {number}\n") + &(0..lines).map(|at| line(number, at)).collect::<String>()
    };
    (0..count).map(one).collect::<String>().into_bytes()
}

/// A program of this host.
fn program(place: &Place, name: &str, script: &str) -> String {
    let path = place.dir.path().join(name);
    outrigger_workload::write_program(&path, format!("#!/bin/sh\n{script}\n").as_bytes());
    path.display().to_string()
}

#[test]
fn the_example_cuts_fasta_where_sequences_begin() {
    let place = Place::new();
    let text = sequences(500);
    place.put("in.fa", &text);
    let whole =
        "echo $AS_OFFSET $AS_LENGTH $AS_SPLITS > $AS_OUTPUT_told; head -c 1 | tee $AS_OUTPUT_first; cat";
    let job = records(spec(FileToMany, &["sh", "-c", whole]), &fasta());
    let job = job.output("out/{split}").output("told=told/{split}").output("first=first/{split}");
    let id = place.submit(&job, &["in.fa"], Splits::Count(8)).unwrap();
    assert_eq!(place.go(id).unwrap().job.state, JobState::Done);
    let splits = place.store.jobs().splits(id).unwrap();
    // The first sequence is longer than a split, so there is one less at least; none is empty.
    assert!((5..8).contains(&splits.len()), "{}", splits.len());
    let mut all = Vec::new();
    for (number, split) in splits.iter().enumerate() {
        assert_eq!(place.text(&format!("first/{number:05}")), ">");
        let told = format!("{} {} {}\n", all.len(), split.range.to - split.range.from, splits.len());
        assert_eq!(place.text(&format!("told/{number:05}")), told);
        all.extend(place.get(&format!("out/{number:05}")).unwrap());
    }
    assert!(all == text);
    // Each sequence once, whoever counts them.
    let count = records(spec(ReadToFile, &["grep", "-c", "^>"]), &fasta()).output("counts");
    place.run(&count, &["in.fa"], Splits::Count(4)).unwrap();
    let counts: usize = place.text("counts").lines().map(|count| count.parse::<usize>().unwrap()).sum();
    assert_eq!(counts, 500);
    place.assert_sound();
}

#[test]
fn a_component_and_its_arguments_are_kept_in_and_noted_by_its_hash() {
    if !can_sandbox() {
        return;
    }
    let place = Place::new();
    // Nothing is there but what it is given.
    let every = format!(
        "#!/bin/sh\n[ -z \"$CARGO_MANIFEST_DIR\" ] && [ ! -e {} ] || exit 9\ncat > x\nawk -v n=$1 -v all=$AS_LENGTH 'BEGIN {{ for (at = 0; at < all; at += n) print at }}'\n",
        place.dir.path().display()
    );
    let every = every.as_bytes();
    place.put(".components/every", every);
    place.put("a", &vec![b'a'; 10_007]);
    place.put("b", &vec![b'b'; 999]);
    let job = Spec { sandbox: Mode::Strict, ..records(spec(ManyToFile, &["wc", "-c"]), "@every 1000") };
    let id = place.submit(&job.output("sizes"), &["a", "b"], Splits::Count(3)).unwrap();
    let row = place.store.jobs().job(id).unwrap().unwrap();
    let Records::Plugin(words) = Spec::decode(&row.spec).unwrap().records else { panic!("{}", row.spec) };
    let hash = blake3::hash(every).to_hex();
    assert_eq!(words, [format!("@every:{hash}"), "1000".to_string()]);
    // It has done its work: what becomes of it is nothing to the job.
    place.put(".components/every", b"#!/bin/sh\nexit 1\n");
    assert_eq!(place.go(id).unwrap().job.state, JobState::Done);
    assert_eq!(place.text("sizes"), "4000\n3000\n3007\n999\n");
}

#[test]
fn what_a_plug_in_does_wrong_is_said_and_no_job_is_made() {
    let place = Place::new();
    place.put("in", &sequences(50));
    let of = |name: &str, script: &str| {
        let job = records(spec(ReadToFile, &["cat"]), &program(&place, name, script)).output("out");
        place.submit(&job, &["in"], Splits::Count(2)).map(drop)
    };
    for (name, script, says) in [
        ("words", "echo 0; echo here", "line 2 of what it printed is `here`"),
        ("falls", "echo 7; echo 3", "line 2 of what it printed is 3, after 7"),
        ("far", "echo 999999999", "print offsets in it"),
        ("fails", "echo 0; echo no such thing >&2; exit 4", "exit code 4: no such thing"),
        // It is stopped, and not waited for.
        ("endless", "yes", "line 1 of what it printed is `y`"),
    ] {
        let error = of(name, script).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(name) && text.contains("`in`"), "{text}");
    }
    let job = records(spec(ReadToFile, &["cat"]), "/nowhere/at/all").output("out");
    assert!(place.submit(&job, &["in"], Splits::Count(2)).is_err());
    assert!(place.store.jobs().jobs(10).unwrap().is_empty());
    // One that finds nothing leaves one split, and what is one split anyhow is not looked at.
    of("nothing", "cat > /dev/null").unwrap();
    let job = records(spec(ReadToFile, &["cat"]), &program(&place, "unasked", "exit 1")).output("out2");
    place.run(&job, &["in"], Splits::Auto).unwrap();
    let jobs = place.store.jobs().jobs(10).unwrap();
    assert_eq!(jobs.iter().map(|job| job.splits.iter().sum::<u64>()).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn what_is_not_the_requests_fault_keeps_its_kind() {
    let place = Place::new();
    place.put("in", &sequences(2000));
    let of = |name: &str, script: &str, limits: &str| {
        let mut job = records(spec(ReadToFile, &["cat"]), &program(&place, name, script)).output("out");
        job.limits.set(limits).unwrap();
        place.submit(&job, &["in"], Splits::Count(2)).unwrap_err()
    };
    let error = of("slow", "sleep 60", "time=100ms");
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("longer than it may"), "{error}");
    let error = of("writes", "exec yes > $AS_WORK/x", "output=5M,time=300s");
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("wrote more into files"), "{error}");
    let error = of(
        "litters",
        "while :; do i=$((i+1)); head -c 100000 /dev/zero > $AS_WORK/$i; done",
        "output=5M,time=300s",
    );
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("into files"), "{error}");
    // Every pack is damaged: the input cannot be read.
    let packs = place.store.dir().join("packs");
    let mut waiting = vec![packs];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                waiting.push(entry.path());
                continue;
            }
            let mut bytes = std::fs::read(entry.path()).unwrap();
            let middle = bytes.len() / 3;
            bytes[middle..middle * 2].fill(0x55);
            std::fs::set_permissions(entry.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
    let store = Arc::new(Store::open(place.store.dir(), false).unwrap());
    let job = records(spec(ReadToFile, &["cat"]), &program(&place, "reads", "cat > /dev/null")).output("out");
    let error = submit(&store, &job, &["in".into()], &[], Splits::Count(2)).unwrap_err();
    assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("over `in`"), "{error}");
}

#[test]
fn a_job_that_is_being_made_can_be_stopped() {
    let place = Place::new();
    place.put("in", &sequences(50));
    let begun = place.dir.path().join("begun");
    let script = format!("echo $$ > {}; sleep 600", begun.display());
    let job = records(spec(ReadToFile, &["cat"]), &program(&place, "waits", &script)).output("out");
    let making = Making::default();
    let error = std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            submit_reporting(&place.store, &job, &["in".into()], &[], Splits::Count(2), &making).unwrap_err()
        });
        eventually("it has begun", || std::fs::read_to_string(&begun).is_ok_and(|pid| !pid.is_empty()));
        making.stop();
        made.join().unwrap()
    });
    assert_eq!((error.kind(), making.is_stopped()), (ErrorKind::Cancelled, true), "{error}");
    let pid = std::fs::read_to_string(&begun).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    assert!(stat.as_ref().map_or(true, |stat| stat.contains(") Z ")), "{stat:?}");
    assert_eq!(making.counters.view().bytes_expected, sequences(50).len() as u64);
}

#[test]
fn hosts_splits_end_where_a_plug_in_says() {
    let place = Place::new();
    // Two parts that nothing shares, of 6 MB each, on a host each.
    let sequences: Vec<u8> = sequences(22_000);
    let half = sequences.len() / 2;
    let (a, b) = sequences.split_at(half);
    place.put("a", a);
    let near = place.store.committed_packs().unwrap();
    place.put("in", &[a, b].concat());
    let mut store = Store::open(place.store.dir(), false).unwrap();
    let hosts = move |pack| vec![if near.contains(&pack) { "h1".to_string() } else { "h2".to_string() }];
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).located(hosts));
    let store = Arc::new(store);
    let job = records(spec(ReadToFile, &["cat"]), &fasta()).output("out/{split}");
    let id = submit(&store, &job, &["in".into()], &[], Splits::Hosts).unwrap();
    assert_eq!(go(&store, id, 2).unwrap().job.state, JobState::Done);
    let (first, second) = (read(&store, "out/00000").unwrap(), read(&store, "out/00001").unwrap());
    assert!(first.len().abs_diff(half) < 4 << 20 && second.starts_with(b">sequence"));
    assert!([first, second].concat() == sequences);
}
