//! Hostile components, and the protection against each. Needs bubblewrap and a kernel that lets it
//! make name spaces; reports when they are missing.

use crate::support;

use std::time::Instant;

use outrigger_active::job::Mode;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::ReadToFile;
use outrigger_active::plan::Splits;
use outrigger_active::runner::Report;
use outrigger_active::sandbox::Sandbox;
use outrigger_store::meta::jobs::JobState;
use support::{Place, can_sandbox, numbered, spec};

/// Runs a shell script in the sandbox, under limits.
fn kept_in(place: &Place, script: &str, limits: &str) -> Report {
    let mut job = Spec { sandbox: Mode::Strict, ..spec(ReadToFile, &["sh", "-c", script]) }.output("out");
    job.limits.set(limits).unwrap();
    place.run(&job, &["in"], Splits::Auto).unwrap()
}

fn place() -> Place {
    let place = Place::new();
    place.put("in", b"input\n");
    place
}

/// It was stopped, for this reason, and none of its output is visible.
fn assert_stopped(place: &Place, report: &Report, why: &str) {
    assert_eq!(report.job.state, JobState::Failed);
    assert!(report.job.why.contains(why), "{}", report.job.why);
    assert!(place.get("out").is_none());
}

#[test]
fn an_honest_program_works() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let report = kept_in(&place, "cat; echo $((6*7)); echo scratch > /tmp/x; cat /tmp/x; pwd; ls /work", "");
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!(place.text("out"), "input\n42\nscratch\n/work\n");
}

#[test]
fn a_program_of_ones_own_is_brought_along() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let program = place.dir.path().join("mine.sh");
    outrigger_workload::write_program(&program, b"#!/bin/sh\necho \"$1 $(cat)\"\n");
    let job = Spec { sandbox: Mode::Strict, ..spec(ReadToFile, &[program.to_str().unwrap(), "mine"]) }
        .output("out");
    let report = place.run(&job, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!(place.text("out"), "mine input\n");
}

#[test]
fn a_program_that_is_brought_along_is_what_it_was_when_the_job_was_made() {
    let place = place();
    let program = place.dir.path().join("mine.sh");
    let write =
        |text: &str| outrigger_workload::write_program(&program, format!("#!/bin/sh\n{text}\n").as_bytes());
    let script = format!("test -e {} && echo first", place.dir.path().join("go").display());
    write(&script);
    let job = spec(ReadToFile, &[program.to_str().unwrap()]).output("out");
    let id = place.submit(&job, &["in"], Splits::Auto).unwrap();
    let jobs = place.store.jobs();
    let row = jobs.job(id).unwrap().unwrap();
    let made = Spec::decode(&row.spec).unwrap();
    let hash = blake3::hash(format!("#!/bin/sh\n{script}\n").as_bytes()).to_hex().to_string();
    assert_eq!(made.component.map(|kept| (kept.name, kept.hash)), Some(("mine.sh".to_string(), hash)));
    assert_eq!(made.host, None, "any host can run it");
    assert_eq!(jobs.inputs(id).unwrap().len(), 2);
    assert!(place.store.meta.holders().unwrap().iter().all(|holder| !holder.starts_with("early:")));
    assert_eq!(place.go(id).unwrap().job.state, JobState::Failed);
    // Another program takes its place, or it is removed: a retry runs the same program as before.
    std::fs::write(place.dir.path().join("go"), "").unwrap();
    write("echo second");
    jobs.retry_job(id).unwrap();
    assert_eq!(place.go(id).unwrap().job.state, JobState::Done);
    assert_eq!(place.text("out"), "first\n");
    std::fs::remove_file(&program).unwrap();
    let error = place.submit(&job, &["in"], Splits::Auto).unwrap_err();
    assert!(error.to_string().contains("the program"), "{error}");
    // It is to be a program.
    std::fs::File::create(&program).unwrap().set_len(600 << 20).unwrap();
    let error = place.submit(&job, &["in"], Splits::Auto).unwrap_err();
    assert!(error.to_string().contains("longer than 512 MiB"), "{error}");
    place.assert_sound();
}

#[test]
fn files_of_the_host_are_not_there() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "hidden").unwrap();
    let store = place.store.dir().display().to_string();
    let tries = format!(
        "for path in {} {store} {store}/meta.db /root /home /etc/shadow /etc/passwd /var /proc/1/root/etc/shadow ../../../../etc/shadow; do \
         if [ -e $path ]; then echo \"saw $path\"; fi; done; \
         ln -s {} /work/link; cat /work/link; echo > /usr/evil && echo wrote; echo > /evil && echo wrote; exit 0",
        secret.display(),
        secret.display()
    );
    let report = kept_in(&place, &tries, "");
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!(place.text("out"), "");
}

#[test]
fn a_link_is_no_output() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "hidden").unwrap();
    let script = format!("ln -s {} stolen; echo fine > fine; mkfifo pipe", secret.display());
    let pattern = outrigger_active::pattern::Pattern::FileToMany;
    let job = Spec { sandbox: Mode::Strict, ..spec(pattern, &["sh", "-c", &script]) }.output("many/");
    let report = place.run(&job, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let names: Vec<String> = report.files.iter().map(|(path, _)| path.to_string()).collect();
    assert_eq!(names, ["many/fine"]);
}

#[test]
fn nothing_is_inherited_and_there_is_no_network() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    // Environment, other processes, interfaces beside the loopback.
    let script = "env | cut -d= -f1 | grep -v -e '^AS_' -e '^PATH$' -e '^HOME$' -e '^LANG$' -e '^PWD$' -e '^_$' -e '^SHLVL$' -e '^OLDPWD$'; \
                  ls /proc | grep -c '^[0-9]'; tail -n +3 /proc/net/dev | grep -v lo: ; exit 0";
    let report = kept_in(&place, script, "");
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let text = place.text("out");
    let processes: u32 = text.trim().parse().unwrap_or_else(|_| panic!("{text}"));
    assert!(processes < 10, "{text}");
}

#[test]
fn it_has_no_rights_that_its_submitter_has() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let script = "grep -e CapEff -e NoNewPrivs -e '^Seccomp:' /proc/self/status | tr -d '\\t '; unshare -U true 2>/dev/null && echo unshared; \
                  mount -t tmpfs none /tmp 2>/dev/null && echo mounted; exit 0";
    kept_in(&place, script, "");
    assert_eq!(place.text("out"), "CapEff:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n");
}

/// Tries calls by their numbers, and lists those that were not refused. (`ENOSYS` is a refusal,
/// too.)
const CALLS: &str = r#"
import ctypes, errno, socket, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def told(name, result):
    if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(name, result, ctypes.get_errno())
def call(name, number, *arguments):
    ctypes.set_errno(0)
    told(name, libc.syscall(number, *[ctypes.c_long(a) for a in arguments]))
SOCKET, SOCKETPAIR, CLONE = {"x86_64": (41, 53, 56), "aarch64": (198, 199, 220)}[os.uname().machine]
for family in range(1, 64):
    if family not in map(int, sys.argv[1].split(",")):
        for kind in (1, 2, 3, 5):
            call("socket %d" % family, SOCKET, family, kind, 0)
            call("high bits", SOCKET, family | 1 << 32, kind, 0)
            pair = (ctypes.c_int * 2)()
            told("socketpair %d" % family, libc.socketpair(family, kind, 0, pair))
for family in map(int, sys.argv[1].split(",")):
    socket.socket(family, 1).close()
call("io_uring_setup", 425, 1, 0)
call("io_uring_enter", 426, 3, 0, 0, 0, 0, 0)
call("clone3", 435, 0, 0)
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    pid = libc.syscall(CLONE, ctypes.c_long(flag | 17), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
    if pid == 0:
        os._exit(0)
    told("clone %x" % flag, pid)
told("unshare", libc.unshare(0x10000000))
if os.uname().machine == "x86_64":
    for name, number in (("ptrace", 101), ("add_key", 248), ("request_key", 249), ("keyctl", 250), ("bpf", 321),
                         ("perf_event_open", 298), ("userfaultfd", 323), ("setns", 308), ("mount", 165)):
        call(name, number, 0, 0, 0, 0, 0)
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541c)):
    ctypes.set_errno(0)
    told(name, libc.ioctl(0, ctypes.c_ulong(request), b"x"))
    told(name, libc.ioctl(0, ctypes.c_ulong(request | 1 << 32), b"x"))
"#;

#[test]
fn no_call_leads_out_of_it() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let tries = |net: bool, families: &str| {
        let mut job = spec(ReadToFile, &["python3", "-c", CALLS, families]).output("out");
        (job.sandbox, job.net) = (Mode::Strict, net);
        let report = place.run(&job, &["in"], Splits::Auto).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
        assert_eq!(place.text("out"), "", "network: {net}");
    };
    // Unix sockets; with a network IPv4 and IPv6 as well.
    tries(false, "1");
    tries(true, "1,2,10");
}

#[test]
fn a_fork_bomb_is_stopped() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    // Slowly, and without an end of its own: it is counted, and nothing else can stop it.
    let many = "i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; wait";
    let report = kept_in(&place, many, "processes=50");
    assert_stopped(&place, &report, "more processes than it may");
    let report = kept_in(&place, "bomb() { bomb | bomb & }; bomb; sleep 600", "processes=50");
    // Whichever comes first: they are counted, or the kernel refuses another process and the shell
    // gives up. There is no limit of time.
    let is_refused = report.job.why.contains("Cannot fork");
    assert_stopped(&place, &report, if is_refused { "Cannot fork" } else { "more processes than it may" });
}

#[test]
fn processor_time_is_that_of_all_processes_together() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    // None of them takes long: each is over in an instant, and another one takes its place.
    let many = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
    let report = kept_in(&place, many, "cpu=1500ms,time=300s");
    assert_stopped(&place, &report, "more processor time than it may");
    let beside = "for n in 1 2 3 4; do sh -c 'while :; do :; done' & done; wait";
    let report = kept_in(&place, beside, "cpu=3s,time=300s");
    assert_stopped(&place, &report, "more processor time than it may");
}

#[test]
fn files_without_end_are_stopped_while_they_are_written() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    for (name, script) in [
        // One, which the kernel bounds; many; some that are removed as soon as they are open.
        ("one", "exec yes > $AS_WORK/x"),
        ("one of a child's", "yes > $AS_WORK/x"),
        ("many", "i=0; while :; do i=$((i+1)); head -c 100000 /dev/zero > $AS_WORK/$i; done"),
        ("many small", "i=0; while :; do i=$((i+1)); echo > $AS_WORK/$i; done"),
        (
            "removed",
            "exec 3> a 4> b 5> c 6> d; rm a b c d; for fd in 3 4 5 6; do head -c 12M /dev/zero >&$fd; done; sleep 600",
        ),
    ] {
        let report = kept_in(&place, script, "output=20M,time=300s");
        assert_eq!(report.job.state, JobState::Failed, "{name}");
        assert!(report.job.why.contains("wrote more into files than it may"), "{name}: {}", report.job.why);
    }
    // Files within the limit are allowed.
    let report = kept_in(&place, "head -c 10M /dev/zero > $AS_WORK/x; sleep 2; echo done", "output=20M");
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
}

#[test]
fn a_memory_hog_is_stopped() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    // One process runs into its own limit; several together into the watch.
    let grow = "exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'";
    let report = kept_in(&place, grow, "memory=64M,time=60s");
    assert_eq!(report.job.state, JobState::Failed);
    assert!(
        !report.job.why.contains("longer than it may") && place.get("out").is_none(),
        "{}",
        report.job.why
    );
    let several = "for n in 1 2 3 4 5 6; do \
                   awk 'BEGIN { s = \"x\"; while (length(s) < 40000000) s = s s; system(\"sleep 60\") }' & done; sleep 60";
    let report = kept_in(&place, several, "memory=150M,time=60s");
    assert_stopped(&place, &report, "more memory than it may");
}

#[test]
fn endless_output_is_stopped() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let report = kept_in(&place, "yes", "output=20M,time=60s");
    assert_stopped(&place, &report, "wrote more than it may");
    // Said on standard error, it is read and forgotten.
    let report = kept_in(&place, "yes | head -c 50M >&2; echo done", "output=20M,time=60s");
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let log = place.store.jobs().split(report.job.id, 0).unwrap().unwrap().log;
    assert!(log.len() < 100 << 10);
}

#[test]
fn a_program_without_end_is_stopped() {
    if !can_sandbox() {
        return;
    }
    let place = place();
    let began = Instant::now();
    // It also tries to be left alone.
    let report = kept_in(&place, "trap '' TERM HUP; setsid sleep 600 & while :; do :; done", "time=300ms");
    assert_stopped(&place, &report, "took longer than it may");
    assert!(began.elapsed().as_secs() < 120);
}

#[test]
fn where_a_means_is_missing_strict_refuses_and_says_so() {
    match Sandbox::find(Mode::Strict) {
        Ok(sandbox) => assert!(sandbox.missing.is_empty() && sandbox.is_closed()),
        Err(error) => {
            assert!(error.to_string().contains("--sandbox best"), "{error}");
            assert!(!Sandbox::find(Mode::Best).unwrap().missing.is_empty());
        }
    }
    assert!(!Sandbox::find(Mode::Off).unwrap().is_closed());
    let place = Place::new();
    place.put("in", &numbered(10));
    let best = Spec { sandbox: Mode::Best, ..spec(ReadToFile, &["cat"]) }.output("out");
    assert_eq!(place.run(&best, &["in"], Splits::Auto).unwrap().job.state, JobState::Done);
}
