//! Where programs run and where what they write lies: on hosts that hold the packs, by an engine that says so.

mod support;

use std::sync::Arc;

use outrigger_active::node::host;
use outrigger_active::pattern::Pattern::ReadToFile;
use outrigger_active::plan::Splits;
use outrigger_active::progress::Counters;
use outrigger_active::runner;
use outrigger_store::Store;
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::ops::whereabouts::{Whereabouts, whereabouts};
use outrigger_store::testing;
use outrigger_store::tree::{StorePath, require};
use support::{Place, go, lines, numbered, options, read, spec};

fn found(store: &Store, path: &str) -> Whereabouts {
    let path = StorePath::parse(path.as_bytes()).unwrap();
    whereabouts(store, At::Now, &require(&*store.meta, At::Now, &path).unwrap()).unwrap()
}

/// The store of `place` again, as one whose packs lie on these hosts.
fn spread(place: &Place, hosts: &[&str]) -> Arc<Store> {
    let mut store = Store::open(place.store.dir(), false).unwrap();
    testing::spread(&mut store, hosts);
    Arc::new(store)
}

#[test]
fn what_a_job_writes_lies_on_the_host_that_ran_it() {
    let place = Place::new();
    let text = numbered(20_000);
    place.put("in", &text);
    // Of many hosts: that it lies on this one by chance, each time, is out of the question.
    let others: Vec<String> = (0..20).map(|number| format!("other{number}")).collect();
    let own = host();
    let names: Vec<&str> = others.iter().map(String::as_str).chain([own.as_str()]).collect();
    let store = spread(&place, &names);
    // Small outputs, which are kept in memory, and large ones, which stream.
    for (name, program) in [
        ("small", &["sed", "s/^/x/"][..]),
        ("large", &["sh", "-c", "tr 0-9 a-j; yes a line of it | head -c 3000000"]),
    ] {
        let job = lines(spec(ReadToFile, program)).output(name);
        let job =
            outrigger_active::plan::submit(&store, &job, &["in".into()], &[], Splits::Count(4)).unwrap();
        assert_eq!(go(&store, job, 2).unwrap().job.state, JobState::Done);
        let found = found(&store, name);
        assert!(found.bytes > 0 && found.hosts[&own].bytes_first == found.bytes, "{name}: {found:?}");
    }
    let wanted: Vec<u8> =
        text.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [b"x", line].concat()).collect();
    assert!(read(&store, "small").unwrap() == wanted);
    place.assert_sound();
}

#[test]
fn where_this_host_has_no_packs_a_job_works_as_ever() {
    let place = Place::new();
    place.put("in", &numbered(100));
    let store = spread(&place, &["another", "one more"]);
    let job = spec(ReadToFile, &["cat"]).output("out");
    let job = outrigger_active::plan::submit(&store, &job, &["in".into()], &[], Splits::Auto).unwrap();
    let report = runner::run(&store, job, &options(1), &Arc::new(Counters::default())).unwrap();
    assert_eq!(report.job.state, JobState::Done);
    assert!(read(&store, "out").unwrap() == numbered(100));
}
