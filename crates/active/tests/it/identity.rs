//! Programs run as who submitted them, over what he may read, and what they write is his. Needs root, who alone can run them so.

use crate::support;

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::sync::Arc;

use outrigger_active::identity::Submitter;
use outrigger_active::pattern::Pattern::{ManyToFile, ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::rules::{self, Trigger, Watcher};
use outrigger_active::sandbox::Mode;
use outrigger_active::spec::Spec;
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::JobState;
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;
use outrigger_store::{ErrorKind, Result};
use support::{Place, can_sandbox, spec};

const A: u32 = 41_001;
const B: u32 = 41_002;

fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        outrigger_workload::skipped!("only root can run programs as others");
    }
    is
}

/// A tree as it lies on this machine, with owners and modes.
struct Tree<'a>(&'a Place);

impl Tree<'_> {
    fn at(&self, path: &str) -> std::path::PathBuf {
        self.0.dir.path().join("tree").join(path)
    }

    fn own(&self, path: &str, uid: u32, mode: u32) {
        chown(self.at(path), Some(uid), Some(uid)).unwrap();
        std::fs::set_permissions(self.at(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn directory(&self, path: &str, uid: u32, mode: u32) {
        std::fs::create_dir_all(self.at(path)).unwrap();
        self.own(path, uid, mode);
    }

    fn file(&self, path: &str, uid: u32, mode: u32) {
        std::fs::write(self.at(path), format!("{path}\n")).unwrap();
        self.own(path, uid, mode);
    }

    fn put(&self) {
        let sources = vec![(Source::Path(self.at("")), StorePath::parse(b"t").unwrap())];
        put(&self.0.store, sources, &PutOptions::default(), 2, &Arc::new(Progress::default())).unwrap();
    }
}

/// `all` is for everybody, `b` for B alone, `listed` for B, and by a list for A; A has a directory of his own.
fn place() -> Place {
    let place = Place::new();
    let tree = Tree(&place);
    tree.directory("", 0, 0o755);
    tree.directory("closed", B, 0o700);
    tree.directory("of-a", A, 0o755);
    tree.directory("of-b", B, 0o755);
    tree.file("all", B, 0o644);
    tree.file("b", B, 0o600);
    tree.file("closed/open", B, 0o644);
    tree.file("of-b/kept", B, 0o644);
    tree.file("of-b/shared", B, 0o666);
    tree.put();
    place
}

fn by(uid: u32, spec: Spec) -> Spec {
    Spec { submitter: Some(Submitter { uid, gid: uid, groups: Vec::new() }), ..spec }
}

fn owner(place: &Place, path: &str) -> (u32, u32) {
    let inode =
        find(&*place.store.meta, At::Now, &StorePath::parse(path.as_bytes()).unwrap()).unwrap().unwrap();
    (inode.attributes.uid, inode.attributes.gid)
}

fn refused<T: std::fmt::Debug>(tried: Result<T>, names: &str) {
    let error = tried.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Denied, "{text}");
    assert!(text.contains(names) && text.contains("EACCES") && text.contains("41001"), "{text}");
}

#[test]
fn inputs_that_the_submitter_may_not_read_are_refused_by_name() {
    if !is_root() {
        return;
    }
    let place = place();
    let reads = |uid| by(uid, spec(ReadToNothing, &["true"]));
    let submit = |uid, input: &str| place.submit(&reads(uid), &[input], Splits::Auto);
    submit(A, "t/all").unwrap();
    refused(submit(A, "t/b"), "`t/b`");
    submit(B, "t/b").unwrap();
    refused(submit(A, "t/closed/open"), "`t/closed/open`");
    refused(submit(A, "t/**"), "EACCES");
    submit(0, "t/**").unwrap();
    // What it may only look at is read as well.
    let with = outrigger_active::plan::submit(
        &place.store,
        &reads(A),
        &["t/all".into()],
        &["t/b".into()],
        Splits::Auto,
    );
    refused(with, "`t/b`");
}

#[test]
fn a_list_gives_what_the_mode_does_not() {
    if !is_root() {
        return;
    }
    let place = place();
    let tree = Tree(&place);
    let listed = Command::new("setfacl").args(["-m", &format!("u:{A}:r")]).arg(tree.at("b")).status();
    if !listed.is_ok_and(|status| status.success()) {
        outrigger_workload::skipped!("no setfacl (package acl), or a file system without lists");
        return;
    }
    tree.put();
    place.submit(&by(A, spec(ReadToNothing, &["true"])), &["t/b"], Splits::Auto).unwrap();
}

#[test]
fn outputs_go_where_the_submitter_may_write_and_are_his() {
    if !is_root() {
        return;
    }
    let place = place();
    for mode in [Mode::Off, Mode::Strict] {
        if mode == Mode::Strict && !can_sandbox() {
            continue;
        }
        let job = |out: &str| {
            let program = ["sh", "-c", "cat; id -u; id -g; touch \"$AS_WORK/x\" && rm \"$AS_WORK/x\""];
            by(A, Spec { sandbox: mode, ..spec(ReadToFile, &program) }).output(out)
        };
        refused(place.run(&job("t/of-b/new"), &["t/all"], Splits::Auto), "`t/of-b/new`");
        refused(place.run(&job("t/of-b/kept"), &["t/all"], Splits::Auto), "`t/of-b/kept`");
        refused(place.run(&job("t/new/below"), &["t/all"], Splits::Auto), "`t/new/below`");
        let report = place.run(&job("t/of-a/new/out"), &["t/all"], Splits::Auto).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{:?} {:?}", report.job.why, report.set_aside);
        assert_eq!(place.text("t/of-a/new/out"), format!("all\n{A}\n{A}\n"), "{mode:?}");
        assert_eq!((owner(&place, "t/of-a/new"), owner(&place, "t/of-a/new/out")), ((A, A), (A, A)));
        // What is there and may be written gets another content, and stays whose it was.
        place.run(&job("t/of-b/shared"), &["t/all"], Splits::Auto).unwrap();
        assert_eq!(owner(&place, "t/of-b/shared"), (B, B));
        assert!(place.text("t/of-b/shared").starts_with("all"));
    }
    let root = by(0, spec(ManyToFile, &[])).output("t/of-b/joined");
    place.run(&root, &["t/all", "t/b"], Splits::Auto).unwrap();
    assert_eq!(owner(&place, "t/of-b/joined"), (0, 0));
}

#[test]
fn what_he_may_write_no_more_when_it_is_done_is_not_written() {
    if !is_root() {
        return;
    }
    let place = place();
    let tree = Tree(&place);
    let job = by(A, spec(ReadToFile, &["cat"])).output("t/of-a/out");
    let job = place.submit(&job, &["t/all"], Splits::Auto).unwrap();
    tree.own("of-a", B, 0o755);
    tree.put();
    refused(place.go(job), "`t/of-a/out`");
    assert_eq!(place.store.jobs().unwrap().job(job).unwrap().unwrap().state, JobState::Failed);
    assert_eq!(place.get("t/of-a/out"), None);
    place.assert_sound();
}

#[test]
fn a_rule_makes_no_job_of_what_its_owner_may_not_read_and_goes_on() {
    if !is_root() {
        return;
    }
    let place = place();
    let rule = by(A, spec(ReadToFile, &["cat"])).output("t/of-a/{name}");
    let glob = ("t/*", Vec::new());
    rules::add(&place.store, "copy", Trigger::Close, glob, rule, Splits::Auto, true).unwrap();
    let looked = Watcher::default().look(&place.store).unwrap();
    assert_eq!((looked.made.len(), looked.trouble.len()), (1, 0));
    place.go(looked.made[0].1).unwrap();
    assert_eq!((place.text("t/of-a/all"), owner(&place, "t/of-a/all")), ("all\n".into(), (A, A)));
    let (_, refused) = rules::log(&place.store, "copy", 9).unwrap();
    assert!(refused.len() == 1 && refused[0].why.contains("`t/b`: permission denied"), "{refused:?}");
}

#[test]
fn a_program_that_is_brought_along_must_be_one_that_its_submitter_may_read() {
    if !is_root() {
        return;
    }
    let place = place();
    // Below what everybody may enter, which a temporary directory is not.
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.dir.path().join("who");
    std::fs::write(&program, "#!/bin/sh\nid -u\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let job = by(A, spec(ReadToFile, &[program.to_str().unwrap()])).output("t/of-a/who");
    place.run(&job, &["t/all"], Splits::Auto).unwrap();
    assert_eq!(place.text("t/of-a/who"), format!("{A}\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = place.run(&job, &["t/all"], Splits::Auto).unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("41001"), "{error}");
}
