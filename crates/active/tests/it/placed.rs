//! Locality: programs run, and outputs lie, on hosts that hold the packs, by an engine that knows
//! the holders.

use crate::support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_active::agent::{self, NodeOptions};
use outrigger_active::job::spec::Spec;
use outrigger_active::node::nodes;
use outrigger_active::pattern::Pattern::{ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::progress::Counters;
use outrigger_active::runner::{self, Measured, Nearby, nearby};
use outrigger_active::trust::Trust;
use outrigger_store::Store;
use outrigger_store::host;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::meta::{AgentRole, At, Role, SessionKind};
use outrigger_store::read::whereabouts::{Whereabouts, whereabouts};
use outrigger_store::testing::{self, Wrapped};
use outrigger_store::tree::{StorePath, require};
use outrigger_workload::Rng;
use support::{Place, go, lines, numbered, options, read, spec};

fn found(store: &Store, path: &str) -> Whereabouts {
    let path = StorePath::parse(path.as_bytes()).unwrap();
    whereabouts(store, At::Now, &require(&*store.meta, At::Now, &path).unwrap()).unwrap()
}

/// Opens the store of `place` again, with packs spread over these hosts.
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
    // Among many hosts an output cannot lie on this one by chance each time.
    let others: Vec<String> = (0..20).map(|number| format!("other{number}")).collect();
    let own = host::name();
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

#[test]
fn how_much_lies_here_is_told_before_and_how_much_was_read_here_after() {
    let place = Place::new();
    // Nothing in them repeats, so that each has packs of its own.
    let (far, near) = (Rng::new(1).bytes(300_000), Rng::new(2).bytes(500_000));
    place.put("far", &far);
    let before = place.store.committed_packs().unwrap();
    place.put("near", &near);
    let job = lines(spec(ReadToNothing, &["wc", "-c"]));
    let job = place.submit(&job, &["far", "near"], Splits::Count(3)).unwrap();
    let jobs = || place.store.jobs();
    let told = |store: &Store| {
        nearby(store, job, &Spec::decode(&jobs().job(job).unwrap().unwrap().spec).unwrap()).unwrap()
    };
    assert_eq!(told(&place.store), None, "a directory does not say");
    let mut store = Store::open(place.store.dir(), false).unwrap();
    let hosts = move |pack| vec![if before.contains(&pack) { "far".to_string() } else { host::name() }];
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).located(hosts));
    let store = Arc::new(store);
    let all = Nearby { bytes: 800_000, bytes_looked_at: 800_000, bytes_here: 500_000, bytes_with_agents: 0 };
    assert_eq!(told(&store), Some(all));
    let agent = store.session(SessionKind::Reader, agent_called("here")).unwrap();
    assert_eq!(told(&store), Some(Nearby { bytes_with_agents: 500_000, ..all }));
    drop(agent);
    let counters = Arc::new(Counters::default());
    assert_eq!(runner::run(&store, job, &options(2), &counters).unwrap().job.state, JobState::Done);
    let view = counters.view();
    // Where a split begins or ends within a chunk, both read it.
    let (here, elsewhere) = (500_000..900_000, 300_000..700_000);
    assert!(here.contains(&view.bytes_here) && elsewhere.contains(&view.bytes_elsewhere), "{view:?}");
    let noted = runner::measured(&store, job).unwrap();
    let sum = |of: fn(&Measured) -> Option<u64>| noted.values().map(|took| of(took).unwrap()).sum::<u64>();
    assert_eq!(sum(|took| took.bytes_here), view.bytes_here);
    assert_eq!(sum(|took| took.bytes_elsewhere), view.bytes_elsewhere);
    // Nothing is counted for packs whose holders are unknown.
    let counters = Arc::new(Counters::default());
    let job = lines(spec(ReadToNothing, &["wc", "-c"]));
    let job = place.submit(&job, &["far", "near"], Splits::Count(3)).unwrap();
    runner::run(&place.store, job, &options(2), &counters).unwrap();
    assert_eq!((counters.view().bytes_here, counters.view().bytes_elsewhere), (0, 0));
    assert!(runner::measured(&place.store, job).unwrap().values().all(|took| took.bytes_here.is_none()));
}

/// A place with two files: this host holds `near`, and another one, `elsewhere`, the other file: 25
/// MB, a fifth of a second of remote reads.
fn halves() -> (Place, Arc<Store>) {
    let place = Place::new();
    place.put("far", &Rng::new(1).bytes(25_000_000));
    let before = place.store.committed_packs().unwrap();
    place.put("near", &Rng::new(2).bytes(500_000));
    let mut store = Store::open(place.store.dir(), false).unwrap();
    let hosts = move |pack| vec![if before.contains(&pack) { "elsewhere".to_string() } else { host::name() }];
    store.backend = Arc::new(Wrapped::over(Arc::clone(&store.backend)).located(hosts));
    (place, Arc::new(store))
}

fn agent_called(name: &str) -> Role {
    Role::Agent(AgentRole { name: name.into(), slots: 1, uid: 0, place: name.into() })
}

/// A live agent of the other host, as the database shows it.
fn agent(place: &Place, store: &Arc<Store>) -> Arc<outrigger_store::session::Session> {
    let agent = store.session(SessionKind::Reader, agent_called("there")).unwrap();
    let db = testing::database(&place.store.dir().join("meta.db")).unwrap();
    let sql = "UPDATE session SET host = 'elsewhere' WHERE id = ?1";
    assert_eq!(db.execute(sql, [agent.id().0 as i64]).unwrap(), 1);
    agent
}

/// For each of the splits whose programs have begun, in this order: how long after the job.
fn begun(place: &Place, store: &Arc<Store>) -> Vec<(String, Duration)> {
    let order = place.dir.path().join("order");
    let _ = std::fs::remove_file(&order);
    let script = format!("echo $AS_INPUT $(date +%s%N) >> {}; cat > /dev/null", order.display());
    let job = spec(ReadToNothing, &["sh", "-c", &script]);
    let inputs = ["far".to_string(), "near".to_string()];
    let job = outrigger_active::plan::submit(store, &job, &inputs, &[], Splits::Auto).unwrap();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(go(store, job, 1).unwrap().job.state, JobState::Done);
    let text = std::fs::read_to_string(order).unwrap();
    let one = |line: &str| {
        let (input, nanos) = line.split_once(' ').unwrap();
        (input.to_string(), Duration::from_nanos(nanos.parse().unwrap()).saturating_sub(at))
    };
    text.lines().map(one).collect()
}

#[test]
fn a_split_is_left_for_a_while_to_the_agent_that_has_it_and_to_none_that_stands_back() {
    let (place, store) = halves();
    let there = agent(&place, &store);
    let began = Instant::now();
    let splits = begun(&place, &store);
    assert_eq!(splits.iter().map(|(input, _)| input.as_str()).collect::<Vec<_>>(), ["near", "far"]);
    assert!(splits[1].1 >= Duration::from_millis(200), "{splits:?}");
    // Its host does not take it, so it is not left alone for ever.
    assert!(began.elapsed() < Duration::from_secs(60));
    // One that stands back, for others wait there, or is drained, is not waited for: what it has
    // goes elsewhere.
    let records = store.meta.records();
    for kind in ["yields", "drain"] {
        records.set_record(kind, "there", Some("{\"agent\":\"there\"}")).unwrap();
        let node = nodes(&store).unwrap().remove(0);
        assert_eq!((node.yields, node.drains), (kind == "yields", kind == "drain"));
        let splits = begun(&place, &store);
        assert_eq!(splits.len(), 2, "{splits:?}");
        records.set_record(kind, "there", None).unwrap();
    }
    drop(there);
    assert_eq!(begun(&place, &store).len(), 2);
}

#[test]
fn an_agent_that_stands_back_says_so_and_another_runner_takes_its_splits() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (place, store) = halves();
    let busy = Arc::new(AtomicBool::new(true));
    let (asked, stop) = (Arc::clone(&busy), Arc::new(AtomicBool::new(false)));
    let quiet = || Ok(Box::new(()) as Box<dyn std::any::Any>);
    let agent_options = NodeOptions {
        name: "back".to_string(),
        slots: 1,
        threads: 2,
        before_publish: &quiet,
        until_idle: false,
        make_way: Some(Arc::new(move || asked.load(Ordering::SeqCst))),
        idle: false,
        groups: None,
        trust: Arc::new(Trust { allow_root: true, ..Trust::default() }),
    };
    let job = spec(ReadToNothing, &["wc", "-c"]);
    let inputs = ["far".to_string(), "near".to_string()];
    let job = outrigger_active::plan::submit(&store, &job, &inputs, &[], Splits::Auto).unwrap();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| agent::run(&store, &agent_options, &stop, &mut |_| ()));
        let yields = || nodes(&store).unwrap().iter().any(|node| node.role.name == "back" && node.yields);
        let until = |is: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it never came to be");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        until(&yields);
        // Another runner takes the splits that it would have begun, also its local one.
        let report = runner::run(&store, job, &options(2), &Arc::new(Counters::default())).unwrap();
        assert_eq!((report.job.state, report.elsewhere.splits), (JobState::Done, 0));
        busy.store(false, Ordering::SeqCst);
        // The agent reports it as soon as it looks again: when there is something to do.
        let more = spec(ReadToNothing, &["wc", "-c"]);
        let more = outrigger_active::plan::submit(&store, &more, &inputs, &[], Splits::Auto).unwrap();
        until(&|| store.jobs().job(more).unwrap().unwrap().state == JobState::Done);
        assert!(!yields());
        stop.store(true, Ordering::SeqCst);
        agent.join().unwrap().unwrap();
    });
    place.assert_sound();
}
