//! Rules: which files fire them, which wait, and what goes on when one of them fails.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrigger_active::agent::{self, NodeOptions};
use outrigger_active::component;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::rules::{self, Looked, Rule, Trigger, Watcher};
use outrigger_active::trust::Trust;
use outrigger_store::ErrorKind;
use outrigger_store::gc::{self, GcOptions};
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::ops::{View, edit};
use outrigger_store::read::Reader;
use outrigger_store::tree::{StorePath, find};
use support::{Place, spec};

fn add(place: &Place, name: &str, on: Trigger, spec: Spec) -> Rule {
    let splits = Splits::Auto;
    rules::add(&place.store, name, on, ("in/*", Vec::new()), spec, splits, false).unwrap();
    rule(place, name)
}

fn rule(place: &Place, name: &str) -> Rule {
    let all = rules::list(&place.store).unwrap();
    all.into_iter().find(|(other, _)| other == name).unwrap().1.unwrap()
}

/// As an agent that has just begun.
fn look(place: &Place) -> Looked {
    Watcher::default().look(&place.store).unwrap()
}

fn remove(place: &Place, path: &str) {
    edit::remove(&place.store, &[StorePath::parse(path.as_bytes()).unwrap()], false, None).unwrap();
}

fn collect(place: &Place) {
    let options = GcOptions { grace_secs: 0, live_ratio: 1.0, ..GcOptions::default() };
    gc::collect(&place.store, &options, &Default::default()).unwrap();
}

/// Bytes that repeat in nothing, and begin as a script that says `says`.
fn script(says: &str) -> Vec<u8> {
    let mut state = says.bytes().fold(1u64, |state, byte| state * 257 + u64::from(byte));
    let mut bytes = format!("#!/bin/sh\necho {says}\nexit 0\n").into_bytes();
    bytes.extend((0..400_000).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    }));
    bytes
}

#[test]
fn a_program_that_lies_on_another_host_is_left_to_agents_there() {
    let place = Place::new();
    // Neither is here; that of the first rule could not even be named the way it is.
    let there = Spec { host: Some("elsewhere".into()), ..spec(ReadToNothing, &["/nowhere/announce"]) };
    add(&place, "tell", Trigger::Create, there);
    let same_path = Spec { host: Some("elsewhere".into()), ..spec(ReadToNothing, &["/etc/../etc/hostname"]) };
    add(&place, "same", Trigger::Create, same_path);
    place.put("in/a", b"x");
    let looked = look(&place);
    assert_eq!((looked.made.len(), looked.trouble.len()), (2, 0));
    for (name, job) in looked.made {
        let row = place.store.jobs().job(job).unwrap().unwrap();
        let (made, rule) = (Spec::decode(&row.spec).unwrap(), rule(&place, &name));
        assert_eq!(made.host.as_deref(), Some("elsewhere"));
        assert_eq!(made.program, rule.spec.program);
        assert!(rules::log(&place.store, &name, 9).unwrap().1.is_empty());
    }
}

#[test]
fn create_waits_for_the_content_of_a_file_that_was_just_made() {
    let place = Place::new();
    add(&place, "created", Trigger::Create, spec(ReadToFile, &["cat"]).output("out/{name}"));
    add(&place, "closed", Trigger::Close, spec(ReadToFile, &["cat"]).output("closed/{name}"));
    // As a mount of a shared store does when a file is opened to be written.
    place.put("in/a", b"");
    let made = look(&place).made;
    assert_eq!(made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["closed"]);
    place.put("in/a", b"content");
    let made = look(&place).made;
    assert_eq!(made.len(), 2);
    for (_, job) in made {
        assert_eq!(place.go(job).unwrap().job.state, JobState::Done);
    }
    assert_eq!(place.text("out/a"), "content");
    place.put("in/a", b"another");
    assert_eq!(look(&place).made.iter().filter(|(name, _)| name == "created").count(), 0);
}

#[test]
fn an_earlier_version_that_a_job_is_to_run_stays_from_when_it_was_found() {
    let place = Place::new();
    let wanted = script("first");
    for name in ["tool", "other"] {
        place.put(&format!(".components/{name}"), &script(if name == "tool" { "first" } else { "third" }));
        place.put(&format!(".components/{name}"), &script(if name == "tool" { "second" } else { "fourth" }));
    }
    let other = find(&*place.store.meta, At::Now, &StorePath::parse(b".components/other").unwrap()).unwrap();
    let unpinned = place.store.meta.versions(other.unwrap().number).unwrap()[0].root.clone();
    let view = View::open(&place.store, "test", None).unwrap();
    let hash = blake3::hash(&wanted).to_hex();
    let mut asked = spec(ReadToFile, &[&format!("@tool:{}", &hash[..12])]).output("out");
    let found = component::settle(&place.store, &view, &mut asked).unwrap().remove(0);
    assert_eq!(asked.component.unwrap().hash, hash.as_str());
    remove(&place, ".components/tool");
    remove(&place, ".components/other");
    collect(&place);
    let read = |root: &outrigger_format::Root| {
        let mut bytes = Vec::new();
        let read = Reader::new(&place.store).read(root, 0, u64::MAX, &mut |some| {
            bytes.extend_from_slice(some);
            Ok(())
        });
        read.map(|_| bytes)
    };
    assert!(read(&found.root).unwrap() == wanted);
    assert!(read(&unpinned).is_err(), "a view alone does not keep earlier versions");
}

#[test]
fn a_rule_runs_the_component_that_it_was_made_with_whatever_becomes_of_the_name() {
    let place = Place::new();
    place.put(".components/tool", &script("first"));
    let rule = add(&place, "r", Trigger::Close, spec(ReadToFile, &["@tool"]).output("out/{name}"));
    remove(&place, ".components/tool");
    collect(&place);
    place.put(".components/tool", &script("second"));
    place.put("in/a", b"x");
    let looked = look(&place);
    assert_eq!((looked.made.len(), looked.trouble.len()), (1, 0));
    let report = place.go(looked.made[0].1).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!(place.text("out/a"), "first\n");
    rules::remove(&place.store, "r").unwrap();
    assert_eq!(place.store.meta.holders().unwrap(), [""; 0]);
    assert!(place.store.jobs().seen(&rule.id).unwrap().is_empty());
    place.assert_sound();
}

#[test]
fn what_is_wrong_with_one_rule_is_noted_and_the_others_go_on_and_nothing_is_lost() {
    let place = Place::new();
    place.put(".components/tool", &script("first"));
    let broken = add(&place, "broken", Trigger::Close, spec(ReadToFile, &["@tool"]).output("out/{name}"));
    add(&place, "fine", Trigger::Close, spec(ReadToFile, &["cat"]).output("fine/{name}"));
    let jobs = place.store.jobs();
    place.store.meta.records().set_record("rule", "newer", Some("{}")).unwrap();
    // As one of a version that did not hold it.
    place.store.meta.release(&format!("rule:{}", broken.id), None).unwrap();
    remove(&place, ".components/tool");
    place.put("in/a", b"x");
    let mut watcher = Watcher::default();
    let looked = watcher.look(&place.store).unwrap();
    assert_eq!(looked.made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["fine"]);
    let mut trouble: Vec<_> =
        looked.trouble.iter().map(|(name, error)| (name.as_str(), error.kind())).collect();
    trouble.sort_by_key(|(name, _)| *name);
    assert_eq!(trouble, [("broken", ErrorKind::NotFound), ("newer", ErrorKind::Newer)]);
    let listed = rules::list(&place.store).unwrap();
    let of = |name: &str| listed.iter().find(|(other, _)| other == name).map(|(_, rule)| rule.as_ref());
    assert!(of("broken").unwrap().is_ok());
    assert_eq!(of("newer").unwrap().unwrap_err().kind(), ErrorKind::Newer);
    assert!(jobs.seen(&broken.id).unwrap().is_empty(), "it waits");
    let refused = rules::log(&place.store, "broken", 9).unwrap().1;
    assert!(refused.len() == 1 && refused[0].why.contains("no component `tool`"), "{refused:?}");
    // It is mended.
    place.store.meta.records().set_record("rule", "newer", None).unwrap();
    place.put(".components/tool", &script("first"));
    let looked = look(&place);
    assert_eq!(looked.made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["broken"]);
    assert!(looked.trouble.is_empty() && rules::log(&place.store, "broken", 9).unwrap().1.is_empty());
    assert_eq!(place.go(looked.made[0].1).unwrap().job.state, JobState::Done);
    assert_eq!(place.text("out/a"), "first\n");
}

#[test]
fn files_that_are_gone_are_forgotten_and_those_that_were_moved_are_not() {
    let place = Place::new();
    let rule = add(&place, "r", Trigger::Close, spec(ReadToFile, &["cat"]).output("out/{name}"));
    // Where its outputs would be there are directories: its files are refused.
    let barred = add(&place, "barred", Trigger::Close, spec(ReadToFile, &["cat"]).output("taken/{name}"));
    for name in ["gone", "moved", "stays"] {
        place.put(&format!("taken/{name}/below"), b"x");
        place.put(&format!("in/{name}"), name.as_bytes());
    }
    assert_eq!(look(&place).made.len(), 3);
    let jobs = place.store.jobs();
    let refused = || rules::log(&place.store, "barred", 9).unwrap().1.len();
    assert_eq!(
        (jobs.seen(&rule.id).unwrap().len(), jobs.seen(&barred.id).unwrap().len(), refused()),
        (3, 3, 3)
    );
    remove(&place, "in/gone");
    let path = |text: &str| StorePath::parse(text.as_bytes()).unwrap();
    place.put("other/x", b"x");
    edit::rename(&place.store, &[path("in/moved")], &path("other"), None).unwrap();
    assert!(look(&place).made.is_empty());
    assert_eq!(
        (jobs.seen(&rule.id).unwrap().len(), jobs.seen(&barred.id).unwrap().len(), refused()),
        (2, 2, 2)
    );
}

#[test]
fn of_agents_that_begin_at_once_with_one_name_one_has_it() {
    const AGENTS: usize = 6;
    let place = Place::new();
    let stop = Arc::new(AtomicBool::new(false));
    let refused = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AGENTS {
            scope.spawn(|| {
                let options = NodeOptions {
                    name: "one".into(),
                    slots: 1,
                    threads: 1,
                    before_publish: &|| Ok(Box::new(()) as Box<dyn std::any::Any>),
                    until_idle: false,
                    make_way: None,
                    idle: false,
                    groups: None,
                    trust: Arc::new(Trust { allow_root: true, ..Trust::default() }),
                };
                let ran = agent::run(&place.store, &options, &stop, &mut |_| ());
                if let Err(error) = ran {
                    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // The agent that has the name goes on until all others were refused; or for long, if
        // several have it.
        let end = Instant::now() + Duration::from_secs(60);
        while refused.load(Ordering::SeqCst) < AGENTS - 1 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(refused.into_inner(), AGENTS - 1);
    // Its name is free again.
    let options = NodeOptions {
        name: "one".into(),
        slots: 1,
        threads: 1,
        before_publish: &|| Ok(Box::new(()) as Box<dyn std::any::Any>),
        until_idle: true,
        make_way: None,
        idle: false,
        groups: None,
        trust: Arc::new(Trust { allow_root: true, ..Trust::default() }),
    };
    agent::run(&place.store, &options, &Arc::new(AtomicBool::new(false)), &mut |_| ()).unwrap();
}
