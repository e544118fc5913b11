//! Imports of whole repositories, against what restic and Borg restore themselves.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use outrigger_workload::CompareOptions;
use serde_json::Value;

use crate::run::{Place, Said, noise};

/// Days of the backups, oldest first.
const DAYS: [&str; 3] = ["2021-05-01", "2021-05-02", "2021-06-03"];

/// A store, and repositories of a source that changes.
struct Site {
    place: Place,
    tool: &'static str,
}

impl Site {
    /// A site for `tool`, if this machine has it.
    fn of(tool: &'static str) -> Option<Self> {
        let package = if tool == "borg" { "borgbackup" } else { tool };
        if Command::new(tool).arg("help").output().is_err() {
            outrigger_workload::skipped!("{tool} is not installed (apt-get install {package})");
            return None;
        }
        let site = Self { place: Place::new(), tool };
        match tool {
            "borg" => site.ours(&["init", "-e", "repokey-blake2", "repo"]),
            _ => site.ours(&["init", "-r", "repo"]),
        };
        Some(site)
    }

    fn with_environment(&self, mut command: Command) -> Command {
        command.env("RESTIC_PASSWORD", "secret").env("RESTIC_CACHE_DIR", self.place.path("cache"));
        command.env("BORG_PASSPHRASE", "secret").env("BORG_BASE_DIR", self.place.path("borg"));
        command.env("TZ", "UTC").env("LC_ALL", "C.UTF-8").current_dir(self.place.path(""));
        command
    }

    /// Runs the tool itself.
    #[track_caller]
    fn ours(&self, args: &[&str]) -> String {
        let mut command = Command::new(self.tool);
        command.args(args);
        let said: Said = self.with_environment(command).output().unwrap().into();
        assert_eq!(said.code, 0, "{args:?}: {}{}", said.text(), said.err);
        said.text()
    }

    /// Makes backup `n` of `src`.
    fn back_up(&self, n: usize) {
        let (day, name) = (DAYS[n], format!("night-{n}"));
        match self.tool {
            "borg" => {
                let (time, archive) = (format!("{day}T10:00:00"), format!("repo::{name}"));
                self.ours(&["create", "--timestamp", &time, &archive, "src"]);
            }
            _ => {
                let time = format!("{day} 10:00:00");
                let tags = ["--tag", &name, "--tag", "by hand:1"];
                let args = ["-r", "repo", "backup", "src", "--host", "laptop", "--time", &time];
                self.ours(&[&args[..], &tags[..]].concat());
            }
        }
    }

    /// Restores backup `n` by the tool itself.
    fn restore(&self, n: usize, to: &str) {
        fs::create_dir(self.place.path(to)).unwrap();
        if self.tool == "borg" {
            let mut command = Command::new("borg");
            command.args(["extract", &format!("../repo::night-{n}")]);
            let mut command = self.with_environment(command);
            assert!(command.current_dir(self.place.path(to)).status().unwrap().success());
        } else {
            self.ours(&["-r", "repo", "restore", "latest", "--tag", &format!("night-{n}"), "--target", to]);
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        self.with_environment(self.place.command(args))
    }

    fn import(&self, more: &[&str]) -> Said {
        let repository = format!("{}:repo", self.tool);
        let args = ["import", &repository, "--to", "docs", "--json"];
        self.command(&[&args[..], more].concat()).output().unwrap().into()
    }

    /// The states of all snapshots after an import with this exit code.
    #[track_caller]
    fn states(&self, code: i32, more: &[&str]) -> Vec<String> {
        let said = self.import(more);
        assert_eq!(said.code, code, "{}{}", said.text(), said.err);
        let text = |one: &Value| one["state"].as_str().unwrap().to_string();
        said.json()["snapshots"].as_array().unwrap().iter().map(text).collect()
    }

    fn snapshots(&self) -> Vec<Value> {
        let list = self.place.done(&["snapshot", "list", "--json"]).json();
        list["snapshots"].as_array().unwrap().clone()
    }

    /// Compares backup `n` with the store on its day.
    #[track_caller]
    fn same(&self, n: usize) {
        let (theirs, ours) = (format!("theirs-{n}"), format!("ours-{n}"));
        for old in [&theirs, &ours] {
            let _ = fs::remove_dir_all(self.place.path(old));
        }
        self.restore(n, &theirs);
        self.place.done(&["get", "--special", "--at", DAYS[n], "docs", &ours]);
        let options = CompareOptions {
            // Neither tool's archives have holes, Borg's have no attributes and restic's no links.
            sparseness: false,
            xattrs: self.tool == "restic",
            hard_links: self.tool == "borg",
            roots: false,
            ..CompareOptions::default()
        };
        let (theirs, ours) = (self.place.path(theirs), self.place.path(ours));
        let found = outrigger_workload::compare_trees_with(&theirs, &ours, &options).unwrap();
        assert!(found.is_empty(), "{n}: {}", found.iter().map(|one| format!("{one}\n")).collect::<String>());
    }

    fn wrapper(&self) -> String {
        let program = self.place.path("bin/restic");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        let script = r#"#!/bin/sh
PATH=${PATH#*:}
case "$FAULT $*" in
cut*dump*"$VICTIM"*) restic "$@" | head -c 300000; exit 0 ;;
killed*dump*"$VICTIM"*) restic "$@" | head -c 300000; kill -9 $$ ;;
fails*dump*"$VICTIM"*) restic "$@"; echo 'something is wrong' >&2; exit 3 ;;
list*ls*"$VICTIM"*) restic "$@"; echo 'the list is wrong' >&2; exit 1 ;;
more*ls*"$VICTIM"*) restic "$@"; echo '{"path":"/src/ghost","type":"file","size":1,"mtime":""}' ;;
*) exec restic "$@" ;;
esac
"#;
        outrigger_workload::write_program(&program, script.as_bytes());
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap())
    }
}

/// Makes `src`, or changes it as between two backups.
fn change(place: &Place, n: usize) {
    let path = |name: &str| place.path("src").join(name);
    match n {
        0 => {
            place.write("src/a", "first");
            place.write("src/dir/same", noise(1, 100_000));
            place.write("src/dir/big", noise(2, 3 << 20));
            place.write("src/dir/gone", "for one day");
            place.write("src/was-file", "a file");
            place.write("src/was-dir/x", "in a directory");
            place.write(format!("src/{}/{}", "n".repeat(120), "m".repeat(200)), "long names");
            place.write(Path::new("src").join(std::ffi::OsStr::from_bytes(b"not\xffUTF-8")), "x");
            fs::create_dir(path("empty")).unwrap();
            fs::set_permissions(path("empty"), fs::Permissions::from_mode(0o1700)).unwrap();
            symlink("dir/same", path("link")).unwrap();
            fs::hard_link(path("dir/same"), path("same-too")).unwrap();
            fs::hard_link(path("a"), path("z")).unwrap();
            let sparse = fs::File::create(path("sparse")).unwrap();
            sparse.set_len(2 << 20).unwrap();
        }
        1 => {
            place.write("src/a", "other");
            fs::remove_file(path("dir/gone")).unwrap();
            fs::remove_file(path("was-file")).unwrap();
            place.write("src/was-file/now", "a directory");
            fs::remove_dir_all(path("was-dir")).unwrap();
            place.write("src/was-dir", "a file");
            fs::set_permissions(path("dir/big"), fs::Permissions::from_mode(0o4755)).unwrap();
            fs::remove_file(path("same-too")).unwrap();
            place.write("src/new", "new");
        }
        _ => {
            fs::rename(path("dir"), path("moved")).unwrap();
            fs::remove_file(path("link")).unwrap();
            symlink("moved/same", path("link")).unwrap();
            fs::hard_link(path("moved/same"), path("same-again")).unwrap();
            // Its names are two files from now on.
            fs::remove_file(path("z")).unwrap();
            fs::copy(path("a"), path("z")).unwrap();
        }
    }
    whole_microseconds(&place.path("src"));
}

/// Borg lists times in microseconds, and rounds them.
fn whole_microseconds(path: &Path) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let found = fs::symlink_metadata(path).unwrap();
    if found.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| whole_microseconds(&entry.unwrap().path()));
    }
    use std::os::unix::fs::MetadataExt as _;
    let time = Timespec { tv_sec: found.mtime(), tv_nsec: found.mtime_nsec() / 1000 * 1000 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn snapshots_arrive(site: &Site) {
    site.place.write("other", "stays");
    site.place.done(&["put", "other", "--tag", "mine"]);
    for n in 0..2 {
        change(&site.place, n);
        site.back_up(n);
    }
    assert_eq!(site.states(0, &["--tag", "old"]), ["imported", "imported"]);
    (0..2).for_each(|n| site.same(n));
    // Again, and with one more.
    assert_eq!(site.states(0, &[]), ["present", "present"]);
    let listed = site.snapshots();
    assert_eq!(listed.len(), 3, "{listed:?}");
    change(&site.place, 2);
    site.back_up(2);
    assert_eq!(site.states(0, &[]), ["present", "present", "imported"]);
    (0..3).for_each(|n| site.same(n));
    // They come before what was taken here, in the order of their time.
    let listed = site.snapshots();
    let imported: Vec<&Value> = listed.iter().filter(|one| one["imported"].is_object()).collect();
    let times: Vec<&str> = imported.iter().map(|one| &one["time"].as_str().unwrap()[..10]).collect();
    assert_eq!(times, DAYS);
    assert!(listed[2]["imported"].is_object() && listed[3]["tags"] == serde_json::json!(["mine"]));
    let about = &imported[0];
    assert_eq!(about["imported"]["tool"], site.tool);
    assert_eq!(about["kind"], "dated");
    assert_eq!(about["targets"], serde_json::json!(["docs"]));
    assert!(about["tags"].as_array().unwrap().contains(&"old".into()));
    assert!(about["tags"].as_array().unwrap().contains(&"night-0".into()), "{about}");
    // The last import removed something, so it can be taken back.
    assert!(site.place.done(&["ls", "-R", "docs"]).text().contains("moved/same"));
    site.place.done(&["undo"]);
    assert!(!site.place.done(&["ls", "-R", "docs"]).text().contains("moved/same"));
    assert_eq!(site.place.done(&["cat", "other"]).out, b"stays");
    // Rules go by the originals' times: the newest of each month stays.
    let kept = site.place.done(&["keep", "--of", "night-0", "--last", "1", "--json"]).json();
    assert_eq!(kept["deleted"], serde_json::json!([]));
    let kept = site.place.done(&["keep", "--monthly", "9", "--json"]).json();
    assert_eq!(kept["deleted"], serde_json::json!([imported[0]["name"]]));
    // An older one does not come back over the newest, unless it is named.
    assert_eq!(site.states(0, &[]), ["older", "present", "present"]);
    let id = about["imported"]["snapshot"].as_str().unwrap();
    assert_eq!(site.states(0, &["--snapshot", &id[..10]]), ["imported"]);
    site.same(0);
    site.place.done(&["check", "--read-data"]);
}

#[test]
fn snapshots_of_restic_arrive_as_they_were() {
    let Some(site) = Site::of("restic") else { return };
    snapshots_arrive(&site);
    let listed = site.place.done(&["snapshot", "list", "--tag", "by-hand-1"]).text();
    assert!(listed.contains("on laptop") && listed.contains(" at docs"), "{listed}");
}

#[test]
fn archives_of_borg_arrive_as_they_were() {
    let Some(site) = Site::of("borg") else { return };
    snapshots_arrive(&site);
}

#[test]
fn an_import_goes_on_where_it_broke_off() {
    let Some(site) = Site::of("restic") else { return };
    for n in 0..3 {
        change(&site.place, n);
        site.back_up(n);
    }
    let ids: Value = serde_json::from_str(&site.ours(&["-r", "repo", "snapshots", "--json"])).unwrap();
    let path = site.wrapper();
    for (fault, says) in [
        ("cut", "the archive"),
        ("killed", "it was killed"),
        ("fails", "(exit code 3): something is wrong"),
        ("list", "(exit code 1): the list is wrong"),
        ("more", "the archive lacks `src/ghost`"),
    ] {
        let mut import = site.command(&["import", "restic:repo", "--to", "docs", "--json"]);
        import.env("PATH", &path).env("FAULT", fault).env("VICTIM", ids[1]["id"].as_str().unwrap());
        let said: Said = import.output().unwrap().into();
        assert_eq!(said.code, 1, "{fault}: {}{}", said.text(), said.err);
        assert!(said.err.contains(says), "{fault}: {}", said.err);
        let states = said.json()["snapshots"].as_array().unwrap().clone();
        assert_eq!((&states[1]["state"], &states[2]["state"]), (&"failed".into(), &"due".into()));
        let listed: Vec<Value> =
            site.snapshots().into_iter().filter(|one| one["imported"].is_object()).collect();
        assert_eq!(listed.len(), 1, "{fault}");
        site.same(0);
        // An archive that is not whole removes nothing.
        assert_eq!(site.place.done(&["cat", "docs/src/dir/gone"]).out, b"for one day");
    }
    assert_eq!(site.states(0, &[]), ["present", "imported", "imported"]);
    (0..3).for_each(|n| site.same(n));
}

#[test]
fn a_wrong_password_changes_nothing() {
    for (tool, says) in [("restic", "wrong password"), ("borg", "passphrase")] {
        let Some(site) = Site::of(tool) else { return };
        change(&site.place, 0);
        site.back_up(0);
        let mut import = site.command(&["import", &format!("{tool}:repo"), "--to", "docs"]);
        let said: Said =
            import.env("RESTIC_PASSWORD", "no").env("BORG_PASSPHRASE", "no").output().unwrap().into();
        assert_eq!(said.code, 1, "{}", said.err);
        assert!(said.err.contains(says), "{}", said.err);
        assert!(site.snapshots().is_empty() && site.place.done(&["ls"]).out.is_empty());
    }
}

#[test]
fn a_repository_takes_no_directory_with_other_data() {
    let Some(site) = Site::of("restic") else { return };
    change(&site.place, 0);
    site.back_up(0);
    site.place.write("mine/file", "mine");
    site.place.done(&["put", "mine", "--to", "docs"]);
    let said = site.import(&[]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("--replace-source"), "{}", said.err);
    assert_eq!(site.states(0, &["--replace-source"]), ["imported"]);
    site.same(0);
    site.place.done(&["undo"]);
    assert_eq!(site.place.done(&["cat", "docs/file"]).out, b"mine");
    // Options of repositories, and names that mean nothing.
    site.place.code(2, &["import", "-", "--to", "docs", "--snapshot", "x"]);
    assert_eq!(site.import(&["--snapshot", "ffffffff"]).code, 2);
    assert_eq!(site.import(&["--host", "desktop"]).code, 2);
    assert_eq!(site.states(0, &["--host", "laptop"]), ["present"]);
}

#[test]
fn entries_that_archives_lack_are_named() {
    let Some(site) = Site::of("restic") else { return };
    place_with_pipe(&site.place);
    (0..2).for_each(|n| site.back_up(n));
    let said = site.import(&[]);
    assert_eq!(said.code, 4, "{}", said.err);
    assert_eq!(said.err.matches("skipped src/pipe").count(), 1, "{}", said.err);
    assert_eq!(said.json()["snapshots"][1]["files"], 1);
    let Some(site) = Site::of("borg") else { return };
    place_with_pipe(&site.place);
    site.back_up(0);
    assert_eq!(site.states(0, &[]), ["imported"]);
    site.same(0);
}

fn place_with_pipe(place: &Place) {
    place.write("src/file", "x");
    assert!(Command::new("mkfifo").arg(place.path("src/pipe")).status().unwrap().success());
    whole_microseconds(&place.path("src"));
}
