//! Programs run as their submitter, over inputs that this user may read, and the user owns their
//! outputs. Needs root, as only root can run them so.

use crate::support;

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::sync::Arc;

use outrigger_active::identity::Submitter;
use outrigger_active::job::Mode;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{FileToMany, ManyToFile, ReadToFile, ReadToNothing};
use outrigger_active::plan::Splits;
use outrigger_active::rules::{self, Trigger, Watcher};
use outrigger_active::runner::{self, Report, RunOptions};
use outrigger_active::sandbox::Sandbox;
use outrigger_active::signing::{self, Signed};
use outrigger_active::trust::Trust;
use outrigger_format::{Fingerprint, Root};
use outrigger_store::local::put::{PutOptions, Source, put};
use outrigger_store::meta::At;
use outrigger_store::meta::jobs::{JobId, JobInput, JobState};
use outrigger_store::tree::{StorePath, find};
use outrigger_store::write::Progress;
use outrigger_store::{ErrorKind, Result, Store};
use support::{Place, can_sandbox, options, spec};

/// Users of every Debian: `games`, whose only group is its own, and `www-data`.
const A: u32 = 5;
const B: u32 = 33;
const A_GROUP: u32 = 60;
/// No user has this number.
const UNKNOWN: u32 = 41_001;

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

/// `all` is for everybody, `b` for B alone, `listed` for B, and by a list for A; A has a directory
/// of its own.
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
    assert!(text.contains(names) && text.contains("EACCES") && text.contains("uid 5 "), "{text}");
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
    // Inputs that programs may only look at are read as well.
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
        assert_eq!(place.text("t/of-a/new/out"), format!("all\n{A}\n{A_GROUP}\n"), "{mode:?}");
        assert_eq!(
            (owner(&place, "t/of-a/new"), owner(&place, "t/of-a/new/out")),
            ((A, A_GROUP), (A, A_GROUP))
        );
        // An existing file that may be written gets new content, and keeps its owner.
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
    assert_eq!(place.store.jobs().job(job).unwrap().unwrap().state, JobState::Failed);
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
    assert_eq!((place.text("t/of-a/all"), owner(&place, "t/of-a/all")), ("all\n".into(), (A, A_GROUP)));
    let (_, refused) = rules::log(&place.store, "copy", 9).unwrap();
    assert!(refused.len() == 1 && refused[0].why.contains("`t/b`: permission denied"), "{refused:?}");
}

#[test]
fn a_program_that_is_brought_along_must_be_one_that_its_submitter_may_read() {
    if !is_root() {
        return;
    }
    let place = place();
    // Below a directory that everybody may enter, unlike a temporary directory.
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.dir.path().join("who");
    outrigger_workload::write_program(&program, b"#!/bin/sh\nid -u\n");
    let job = by(A, spec(ReadToFile, &[program.to_str().unwrap()])).output("t/of-a/who");
    place.run(&job, &["t/all"], Splits::Auto).unwrap();
    assert_eq!(place.text("t/of-a/who"), format!("{A}\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = place.run(&job, &["t/all"], Splits::Auto).unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("uid 5 "), "{error}");
}

#[test]
fn groups_are_those_of_this_host_and_a_user_it_does_not_know_is_refused() {
    if !is_root() {
        return;
    }
    let place = place();
    for forged in [0, 6, 42] {
        let who = Submitter { uid: A, gid: forged, groups: vec![0, 6, 42] };
        let job = Spec { submitter: Some(who), ..spec(ReadToFile, &["id", "-G"]) }.output("t/of-a/groups");
        place.run(&job, &["t/all"], Splits::Auto).unwrap();
        assert_eq!(place.text("t/of-a/groups"), format!("{A_GROUP}\n"));
        assert_eq!(owner(&place, "t/of-a/groups"), (A, A_GROUP));
    }
    let unknown =
        place.submit(&by(UNKNOWN, spec(ReadToNothing, &["true"])), &["t/all"], Splits::Auto).unwrap();
    let error = place.go(unknown).unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("does not know"), "{error}");
}

#[test]
fn what_a_submitter_sets_is_set_for_his_program_alone() {
    if !is_root() {
        return;
    }
    let place = place();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (library, told) = (place.dir.path().join("told.so"), place.dir.path().join("told"));
    let source = format!(
        r#"#include <stdio.h>
        #include <unistd.h>
        __attribute__((constructor)) static void tell(void) {{
            char name[64] = ""; FILE *comm = fopen("/proc/self/comm", "r"), *to = fopen("{}", "a");
            if (comm && to && fgets(name, sizeof name, comm)) fprintf(to, "%d %s", geteuid(), name);
        }}"#,
        told.display()
    );
    std::fs::write(place.dir.path().join("told.c"), source).unwrap();
    let mut cc = Command::new("cc");
    let made = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(place.dir.path().join("told.c"));
    if !made.status().is_ok_and(|status| status.success()) {
        outrigger_workload::skipped!("no C compiler");
        return;
    }
    std::fs::write(&told, "").unwrap();
    std::fs::set_permissions(&told, std::fs::Permissions::from_mode(0o666)).unwrap();
    let names = ["LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV"];
    let with = |mode| {
        let mut job = by(A, Spec { sandbox: mode, ..spec(ReadToFile, &["/bin/cat"]) }).output("t/of-a/out");
        job.env.extend(names.map(|name| (name.to_string(), library.to_str().unwrap().to_string())));
        let report = place.run(&job, &["t/all"], Splits::Auto).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{:?}", report.job.why);
        let lines = std::fs::read_to_string(&told).unwrap();
        lines.lines().map(str::to_string).collect::<Vec<_>>()
    };
    // Without a sandbox, the program has its submitter's variables; the programs before it (`sh`,
    // `setpriv`, `prlimit`) do not.
    let lines = with(Mode::Off);
    assert!(!lines.is_empty() && lines.iter().all(|line| *line == format!("{A} cat")), "{lines:?}");
    if can_sandbox() {
        // In the sandbox it finds no such library; outside no program has looked for it.
        assert_eq!(with(Mode::Strict), lines);
    }
}

#[test]
fn root_hands_out_no_program_that_its_user_may_not_run() {
    if !is_root() || !can_sandbox() {
        return;
    }
    let place = place();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "#!/bin/sh\necho hidden\n").unwrap();
    // As nobody, too: a sandboxed job of root's runs as nobody.
    for (who, mode) in [(0, 0o700), (A, 0o700), (0, 0o644), (A, 0o644)] {
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
        let sandbox = Sandbox::find(Mode::Strict).unwrap();
        let who = Submitter { uid: who, gid: 0, groups: Vec::new() };
        let copied = sandbox
            .for_submitter(Some(&who))
            .unwrap()
            .copy_as_submitter(&secret, &place.dir.path().join("copy"));
        assert_eq!(copied.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied, "{who:?} {mode:o}");
    }
}

/// As an agent runs it.
fn as_agent(place: &Place, job: JobId, trust: Trust) -> Result<Report> {
    let options = RunOptions { trust: Arc::new(trust), ..options(2) };
    runner::run(&place.store, job, &options, &Arc::default())
}

fn own(path: &std::path::Path, uid: u32, mode: u32) {
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_signature_holds_for_one_user_one_store_and_the_same_inputs() {
    let (place, other) = (place(), place());
    let key = place.dir.path().join("key");
    let said =
        Command::new("ssh-keygen").args(["-qt", "ed25519", "-N", "", "-f"]).arg(&key).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let signers = place.dir.path().join("signers");
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    std::fs::write(&signers, format!("ann {public}\nbob {public}")).unwrap();
    let input = |path: &str, level| {
        let root = Root::Tree { level, len: 7, fingerprint: Fingerprint([5; 32]) };
        vec![JobInput { path: path.into(), root }]
    };
    let signed = signing::sign(&place.store, &key, "a job".into(), &input("in", 1)).unwrap();
    let verify = |store: &Arc<Store>, user: &str, signed: &Signed, inputs: Vec<JobInput>| {
        signing::verify(store, &signers, user, signed, &inputs).map_err(|error| error.kind())
    };
    for user in ["ann", "bob"] {
        assert_eq!(verify(&place.store, user, &signed, input("in", 1)), Ok(()));
    }
    let denied = Err(ErrorKind::Denied);
    assert_eq!(verify(&place.store, "eve", &signed, input("in", 1)), denied);
    assert_eq!(verify(&other.store, "ann", &signed, input("in", 1)), denied);
    assert_eq!(verify(&place.store, "ann", &signed, input("in", 2)), denied);
    assert_eq!(verify(&place.store, "ann", &signed, input("on", 1)), denied);
    assert_eq!(verify(&place.store, "ann", &signed, Vec::new()), denied);
    for changed in [
        Signed { spec: "another".into(), ..signed.clone() },
        Signed { at: signed.at + 1, ..signed.clone() },
        Signed { signature: String::new(), ..signed.clone() },
    ] {
        assert_eq!(verify(&place.store, "ann", &changed, input("in", 1)), denied);
    }
}

#[test]
fn who_owns_the_directory_of_a_store_is_who_submits() {
    if !is_root() {
        return;
    }
    let place = place();
    let ran = place.dir.path().join("ran");
    let (dir, who) = (place.store.dir().to_path_buf(), spec(ReadToFile, &["id", "-u"]).output("t/of-a/who"));
    let submit = |uid| place.submit(&by(uid, who.clone()), &["t/all"], Splits::Auto).unwrap();
    let denied = |uid, says: &str| {
        // An agent's further rights do not make it trust more.
        let trust = Trust { allow_root: true, ..Trust::default() };
        let job = by(uid, spec(ReadToNothing, &["touch", ran.to_str().unwrap()]));
        let job = place.submit(&job, &["t/all"], Splits::Auto).unwrap();
        let error = as_agent(&place, job, trust).unwrap_err();
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(says), "{error}");
        assert!(!ran.exists());
    };
    // A's directory, in which A names others, and root.
    own(&dir, A, 0o755);
    denied(B, "who owns the directory");
    denied(0, "who owns the directory");
    // Everybody's.
    own(&dir, 0, 0o777);
    denied(A, "everybody may write");
    own(&dir, A, 0o755);
    as_agent(&place, submit(A), Trust::default()).unwrap();
    assert_eq!(place.text("t/of-a/who"), format!("{A}\n"));
    // Root's: no other user can have written it.
    own(&dir, 0, 0o755);
    as_agent(&place, submit(A), Trust::default()).unwrap();
}

#[test]
fn an_agent_runs_programs_as_it_was_told_whatever_their_rows_say() {
    if !is_root() {
        return;
    }
    let place = place();
    let told = |trust: Trust, uid, job: &Spec| {
        as_agent(&place, place.submit(&by(uid, job.clone()), &["t/all"], Splits::Auto).unwrap(), trust)
    };
    let who = spec(ReadToFile, &["id", "-u"]).output("t/of-a/who");
    let as_b = || Trust { run_as: Some(Submitter::named(&B.to_string()).unwrap()), ..Trust::default() };
    // As one user; its submitter owns the outputs all the same. Root's job needs no permission
    // then, as it does not run as root.
    for uid in [A, 0] {
        told(as_b(), uid, &who).unwrap();
        assert_eq!(place.text("t/of-a/who"), format!("{B}\n"));
    }
    assert_eq!(owner(&place, "t/of-a/who"), (A, A_GROUP));
    // Of some users only.
    let only = Trust { users: Some([B].into()), ..Trust::default() };
    let error = told(only.clone(), A, &who).unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("--users"), "{error}");
    told(only, B, &spec(ReadToNothing, &["true"])).unwrap();
    // A minimum for the sandbox, below which rows may not go.
    if can_sandbox() {
        let sees =
            spec(ReadToFile, &["sh", "-c", "test ! -e /etc/passwd && echo kept in"]).output("t/of-a/sees");
        let strict = Trust { sandbox: Mode::Strict, ..Trust::default() };
        assert_eq!(told(strict, A, &sees).unwrap().job.state, JobState::Done);
        assert_eq!(place.text("t/of-a/sees"), "kept in\n");
        assert_eq!(told(Trust::default(), A, &sees).unwrap().job.state, JobState::Failed);
    }
}

/// A job's work directory is root's. Files that a program leaves in its own are read without
/// following links, even links that appear at any later time.
#[test]
fn what_a_program_puts_in_the_place_of_its_directory_is_not_read() {
    if !is_root() {
        return;
    }
    let place = place();
    std::fs::set_permissions(place.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let secret = place.dir.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("part"), "root's").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o700)).unwrap();
    let secret = secret.display();
    let splits = |script: String| {
        let words = ["sh", "-c", &script];
        let spec = Spec { sandbox: Mode::Off, tries: 1, ..spec(FileToMany, &words) };
        place.run(&by(A, spec.output("t/of-a/parts/")), &["t/all"], Splits::Auto)
    };
    // Its own directory lies in one that is not its.
    let report = splits(format!("cd ..; w=$(ls -d work-*); mv $w away; ln -s {secret} $w")).unwrap();
    assert_ne!(report.job.state, JobState::Done);
    // In its own it may do anything.
    splits(format!("mkdir d; echo own > d/part; ln -s {secret} e; ln -s {secret}/part f; sync")).unwrap();
    assert_eq!(place.text("t/of-a/parts/d/part"), "own\n");
    for name in ["part", "e/part", "f"] {
        let path = StorePath::parse(format!("t/of-a/parts/{name}").as_bytes()).unwrap();
        assert!(find(&*place.store.meta, At::Now, &path).unwrap().is_none(), "{name}");
    }
}
