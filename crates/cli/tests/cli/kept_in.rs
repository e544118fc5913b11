//! Data that programs must not reach, whichever user runs them: secrets of the runner and stored
//! files of others. And the outcome on machines without isolation.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use outrigger_active::job::Mode;
use outrigger_active::sandbox::Sandbox;

use crate::run::{Place, Said, noise};

fn can_sandbox() -> bool {
    let found = Sandbox::find(Mode::Strict);
    found.inspect_err(|error| outrigger_workload::skipped!("{error}")).is_ok()
}

#[test]
fn a_program_sees_no_secret_of_whoever_runs_it() {
    if !can_sandbox() {
        return;
    }
    let place = Place::new();
    place.write("in", "x\n");
    place.done(&["put", "in"]);
    const SECRET: &str = "hunter2-and-more";
    for name in [".pgpass", ".aws/credentials", ".config/outrigger", ".ssh/id"] {
        let path = place.write(format!("home/{name}"), format!("db:5432:*:me:{SECRET}\n"));
        // Whichever user runs the program could read this file.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let home = place.path("home").display().to_string();
    let script = format!(
        "env; cat $HOME/.pgpass {home}/.pgpass {home}/.*/* ~/.ssh/id; cat /proc/*/environ; cat /proc/*/cmdline; \
         ls -la / /tmp /home /root {home}; find / -name .pgpass -exec cat {{}} +; exit 0"
    );
    let args = ["run", "--in", "in", "--out", "out", "--env", "SEEN=yes", "--", "sh", "-c", &script];
    let mut command = place.command(&args);
    for name in ["PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "OUTRIGGER_S3_SECRET"] {
        command.env(name, SECRET);
    }
    let said =
        Said::from(command.env("HOME", &home).env("PGPASSFILE", format!("{home}/.pgpass")).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let seen = place.done(&["cat", "out"]).text();
    assert!(seen.contains("SEEN=yes"), "{seen}");
    assert!(
        !seen.contains(SECRET) && !seen.contains("PGPASSWORD=") && !seen.contains("PGPASSFILE"),
        "{seen}"
    );
    let log = place.done(&["job", "logs", "1"]).text();
    assert!(!log.contains(SECRET), "{log}");
    // The same variable is there if it was asked for.
    let mut command =
        place.command(&["run", "--in", "in", "--out", "asked", "--env", "PGPASSWORD", "--", "env"]);
    assert_eq!(Said::from(command.env("PGPASSWORD", SECRET).output().unwrap()).code, 0);
    assert!(place.done(&["cat", "asked"]).text().contains(SECRET));
}

#[test]
fn a_program_does_not_find_stored_files_that_are_none_of_its_inputs() {
    if !can_sandbox() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let place = Place::new();
    // The bytes as they lie in packs: they cannot be compressed.
    let secret = format!("{:?}", noise(5, 3000));
    place.write("ours/in", "x\n");
    let theirs = place.write("theirs/secret", &secret);
    std::fs::set_permissions(theirs, std::fs::Permissions::from_mode(0o600)).unwrap();
    place.done(&["put", "ours", "theirs"]);
    let (store, mount) = (place.path("store").display().to_string(), place.path("").display().to_string());
    let script = format!(
        "ls $AS_IN; cat $AS_IN/../theirs/secret $AS_IN/theirs/secret {store}/meta.db {mount}/theirs/secret; \
         ls -R {store} {mount}; find / -path /proc -prune -o -name secret -exec cat {{}} + ; exit 0"
    );
    for (more, wanted) in [(&["--with", "ours/in"][..], "ours\n"), (&[], "")] {
        let args = [&["run", "--in", "ours/in", "--out", "out"], more, &["--", "sh", "-c", &script]].concat();
        let said = place.run(&args);
        if said.err.contains("none can be made here") {
            return outrigger_workload::skipped!("{}", said.err);
        }
        assert_eq!(said.code, 0, "{}", said.err);
        let seen = place.done(&["cat", "out"]).text();
        assert!(!seen.contains(&secret[..40]) && !seen.contains("theirs") && seen.contains(wanted), "{seen}");
    }
}

#[test]
fn where_there_is_no_bubblewrap_nothing_is_run_and_it_is_said_what_is_missing() {
    let place = Place::plain();
    place.write("in", "x\n");
    place.done(&["put", "in"]);
    let ran = place.path("ran").display().to_string();
    // The command's own mount namespace, in which bubblewrap is no program.
    let hidden = "mount --bind /dev/null \"$1\" && shift && exec \"$@\"";
    let Some(bwrap) = ["/usr/bin/bwrap", "/bin/bwrap"].into_iter().find(|path| Path::new(path).exists())
    else {
        let said = place.run(&["run", "--in", "in", "--out", "out", "--", "touch", &ran]);
        return assert!(said.code == 1 && said.err.contains("there is no bwrap"), "{}", said.err);
    };
    let run = |sandbox: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", hidden, "sh", bwrap, env!("CARGO_BIN_EXE_outrigger")]);
        command.args(["run", "--sandbox", sandbox, "--in", "in", "--out", "out", "--", "sh", "-c"]);
        let script = format!("touch {ran}; cat");
        command.arg(script).current_dir(place.path("")).env("OUTRIGGER_STORE", "store");
        Said::from(command.output().unwrap())
    };
    let said = run("strict");
    if said.err.contains("unshare") || said.err.contains("mount:") {
        return outrigger_workload::skipped!("{}", said.err);
    }
    assert_eq!(said.code, 1, "{}", said.err);
    for wanted in [
        "programs cannot be kept in on this machine",
        "name spaces: bwrap",
        "--sandbox best",
        "--sandbox off",
    ] {
        assert!(said.err.contains(wanted), "{wanted}: {}", said.err);
    }
    assert!(!Path::new(&ran).exists());
    assert_eq!(place.done(&["jobs"]).text(), "", "no job is made");
    // With `best` the user is told what is missing.
    let said = run("best");
    assert!(said.code == 0 && said.err.contains("the sandbox is incomplete: name spaces"), "{}", said.err);
    assert!(Path::new(&ran).exists());
}

#[test]
fn a_program_inherits_nothing_that_whoever_started_its_runner_had_open() {
    if !can_sandbox() {
        return;
    }
    let place = Place::plain();
    place.write("in", "x\n");
    place.done(&["put", "in"]);
    place.write("secret", "precious");
    let mut command = Command::new("sh");
    let script = "exec 7</ 9<secret; exec \"$0\" run --in in --out out -- sh -c 'ls /proc/self/fd; cat /dev/fd/9; ls /dev/fd/7/; true'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]).current_dir(place.path(""));
    let said = Said::from(command.env("OUTRIGGER_STORE", "store").output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let seen = place.done(&["cat", "out"]).text();
    let open = |number| seen.lines().any(|line| line == number);
    assert!(open("0") && !open("7") && !open("9") && !seen.contains("precious"), "{seen}");
}

/// Root, working in another user's store, writes to that store only.
#[test]
fn root_follows_no_links_in_the_store_of_somebody_else() {
    let place = Place::new();
    place.write("mine", noise(1, 1000));
    place.done(&["put", "mine"]);
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    for number in 0..=255 {
        let _ = std::os::unix::fs::symlink(
            place.path("elsewhere"),
            place.path(format!("store/packs/{number:02x}")),
        );
    }
    // Gives the store to another user.
    if !rustix::process::geteuid().is_root() || place.unprivileged(&["ls"]).is_none() {
        outrigger_workload::skipped!("only root can be led astray");
        return;
    }
    place.write("mine", noise(2, 1000));
    place.code(1, &["put", "mine"]);
    let is_empty = || std::fs::read_dir(place.path("elsewhere")).unwrap().next().is_none();
    assert!(is_empty());
    place.done(&["cat", "mine"]);
    for name in ["index", "packs"] {
        std::fs::rename(place.path(format!("store/{name}")), place.path(name)).unwrap();
        std::os::unix::fs::symlink(place.path("elsewhere"), place.path(format!("store/{name}"))).unwrap();
        let said = place.code(1, &["check"]);
        assert!(said.err.contains("is a link"), "{}", said.err);
        assert!(is_empty());
        std::fs::remove_file(place.path(format!("store/{name}"))).unwrap();
        std::fs::rename(place.path(name), place.path(format!("store/{name}"))).unwrap();
    }
    place.done(&["check"]);
}

/// A user whose store root works in cannot send root elsewhere: with root's keys to a server, or to
/// a Ceph configuration that names files to write.
#[test]
fn root_goes_nowhere_for_another_users_store() {
    if !rustix::process::geteuid().is_root() {
        outrigger_workload::skipped!("only root works in the stores of others");
        return;
    }
    let place = Place::empty();
    let packs = format!("file:{}", place.path("packs").display());
    place.done(&["init", "--packs", &packs]);
    place.write("a", "1");
    place.done(&["put", "a"]);
    std::os::unix::fs::chown(place.path("store"), Some(5), None).unwrap();
    for args in [&["ls"][..], &["put", "a"], &["gc"], &["recover"]] {
        let said = place.code(1, args);
        assert!(said.err.contains("root does not go there"), "{args:?}: {}", said.err);
    }
}
