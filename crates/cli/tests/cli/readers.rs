//! The least rights for reading: a role that may select, and packs that may be read. All reading
//! commands work with them, and a mount. All writing commands are refused, say why, and change
//! nothing.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use outrigger_workload::compare_trees;

use crate::copies::World;
use crate::run::Said;

/// A directory that shows another one and that no user, root included, can write to.
struct ReadOnly(PathBuf);

impl ReadOnly {
    /// `None`, with a line that says so, if it cannot be made.
    fn of(dir: &Path, at: &Path) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let mount = |args: &[&str], paths: &[&Path]| {
            let done = Command::new("mount").args(args).args(paths).stderr(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        if !mount(&["--bind"], &[dir, at]) {
            outrigger_workload::skipped!("a directory cannot be mounted in another place");
            return None;
        }
        let there = Self(at.to_owned());
        assert!(mount(&["-o", "remount,bind,ro"], &[at]));
        assert!(fs::write(at.join("x"), "x").is_err());
        Some(there)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Everything in a directory: paths, lengths, modification times.
fn laid(dir: &Path) -> Vec<(PathBuf, u64, i64, i64)> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            found.push((path.clone(), about.len(), about.mtime(), about.mtime_nsec()));
            if about.is_dir() {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}

/// All rows of a schema, except those about connected clients.
pub fn rows(world: &World, schema: &str) -> String {
    let list = format!(
        "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE nspname = '{schema}' AND relkind = 'r' ORDER BY relname"
    );
    let tables = world.server.sql(&list);
    // In one statement, because this runs after each command.
    let all = tables
        .lines()
        .map(|table| format!("SELECT '{table}', t.*::text FROM {schema}.{table} t ORDER BY 2;"));
    world.server.sql(&all.collect::<String>())
}

/// A client whose role may only select from a schema's tables.
pub struct Reader<'w> {
    world: &'w World,
    role: String,
    url: String,
}

impl<'w> Reader<'w> {
    pub fn new(world: &'w World, schema: &str) -> Self {
        let role = format!("reader_{schema}");
        world.server.sql(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
        ));
        let url = world.server.url_as(&role, schema);
        Self { world, role, url }
    }

    /// Reading commands work on a store that [`World::fill`] has filled and whose packs lie at
    /// `packs`. Writing commands are refused. `state`, of rows and packs, does not change.
    pub fn reads_everything_and_changes_nothing<T: PartialEq>(
        &self,
        about: &str,
        packs: &str,
        state: &dyn Fn() -> T,
    ) {
        let world = self.world;
        let before = state();
        let unchanged = |args: &[&str]| assert!(state() == before, "{args:?} changed something");
        assert_eq!(world.about(&self.url), about);
        world.holds(&self.url, &["/tree/dir0"], &world.place.path("second/dir0"));
        self.reads(&unchanged);
        assert_eq!(world.about("taken"), about);
        world.place.write("new", "new");
        self.is_refused_to_write(packs, &unchanged);
        self.mounts_read_only(&unchanged);
    }

    fn reads(&self, unchanged: &dyn Fn(&[&str])) {
        let Self { world, url: reader, .. } = self;
        let mut wrong = Vec::new();
        for args in [
            &["ls", "-lR", "/"][..],
            &["ls", "--at", "one", "/tree"],
            &["cat", "/tree/large"],
            &["cat", "--at", "one", "/gone"],
            &["get", "--at", "one", "/tree", "older"],
            &["versions", "/tree/large"],
            &["diff", "one:/tree", "/tree"],
            &["snapshot", "list"],
            &["policy", "list"],
            &["policy", "get", "/tree"],
            &["rule", "list"],
            &["jobs"],
            &["node", "list"],
            &["stats"],
            &["status"],
            &["status", "--json"],
            &["check"],
            &["check", "--read-data"],
            &["gc", "--dry-run"],
            &["keep", "--last", "1", "--dry-run"],
            &["where", "/tree/large"],
            &["rule", "log", "up"],
            &["export", "/tree", "tree.tar"],
            &["copy", reader, "taken"],
        ] {
            let said = world.run(&[&["-s", reader], args].concat());
            if said.code != 0 {
                wrong.push(format!("{args:?}: {}\n{}\n{}", said.code, said.text(), said.err));
            }
            unchanged(args);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    fn is_refused_to_write(&self, packs: &str, unchanged: &dyn Fn(&[&str])) {
        let Self { world, url: reader, .. } = self;
        let mut wrong = Vec::new();
        for args in [
            &["put", "new"][..],
            &["put", "-", "--to", "x"],
            &["rm", "-r", "/tree"],
            &["mv", "/tree", "/trees"],
            &["cp", "-r", "/tree", "/trees"],
            &["snapshot", "create", "two"],
            &["snapshot", "delete", "one"],
            &["policy", "set", "/", "versions=1"],
            &["localize", "/tree"],
            &["keep", "--last", "1"],
            &["gc"],
            &["recompress"],
            &["check", "--repair"],
            &["import", "tree.tar", "--to", "/imported"],
            &["rule", "add", "r", "--on", "close", "--in", "*", "--out", "x/{name}", "--", "cat"],
            &["rule", "remove", "up"],
            &["run", "--in", "/tree/large", "--out", "/x", "--", "cat"],
            &["node", "--until-idle"],
            &["init", "--packs", "file:/nowhere"],
            &["recover", "--packs", packs],
        ] {
            let said = world.run(&[&["-s", reader], args].concat());
            let says_why = ["read-only", "there is a store already", "permission denied"];
            if said.code != 1 || !says_why.iter().any(|why| said.err.contains(why)) {
                wrong.push(format!("{args:?}: {}\n{}\n{}", said.code, said.text(), said.err));
            }
            unchanged(args);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    fn mounts_read_only(&self, unchanged: &dyn Fn(&[&str])) {
        let Self { world, url: reader, .. } = self;
        let (place, stored) = (&world.place, world.place.path("second/dir0"));
        if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
            outrigger_workload::skipped!("/dev/fuse cannot be opened: {error}");
            return;
        }
        fs::create_dir(place.path("mnt")).unwrap();
        let mut command = world.command(&["-s", reader, "mount", "--read-only", "--foreground", "mnt"]);
        let mut mount = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let point = ReadOnly(place.path("mnt"));
        let above = fs::metadata(place.path("")).unwrap().dev();
        while fs::metadata(place.path("mnt")).is_ok_and(|found| found.dev() == above) {
            assert!(mount.try_wait().unwrap().is_none(), "it did not mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(compare_trees(&stored, &place.path("mnt/tree/dir0")).unwrap(), []);
        assert!(fs::write(place.path("mnt/x"), "x").is_err());
        assert!(fs::remove_file(place.path("mnt/tree/large")).is_err());
        unchanged(&["mount"]);
        drop(point);
        let _ = mount.kill();
        mount.wait().unwrap();
        // A mount that was meant to write fails, and says so.
        let said =
            Said::from(world.command(&["-s", reader, "mount", "--foreground", "mnt"]).output().unwrap());
        assert!(said.code == 1 && said.err.contains("read-only"), "{} {}", said.code, said.err);
        unchanged(&["mount", "to write"]);
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let _ = self.world.server.psql("tester", &format!("DROP OWNED BY {0}; DROP ROLE {0}", self.role));
    }
}

#[test]
fn who_may_only_read_reads_everything_and_changes_nothing() {
    let Some(world) = World::new() else { return };
    let place = &world.place;
    let schema = world.server.fresh();
    let owner = world.server.url(&schema);
    let packs = place.path("shown");
    // The store has one path for its packs on all hosts. Here a reader's host cannot write to that
    // path.
    fs::create_dir(place.path("real")).unwrap();
    fs::create_dir(&packs).unwrap();
    let bind = Command::new("mount").arg("--bind").args([&place.path("real"), &packs]).status();
    if !bind.is_ok_and(|status| status.success()) {
        outrigger_workload::skipped!("a directory cannot be mounted in another place");
        return;
    }
    let writable = ReadOnly(packs.clone());
    world.done(&["-s", &owner, "init", "--packs", &format!("file:{}", packs.display()), "--pack-size", "1M"]);
    world.fill(&owner);
    let about = world.about(&owner);
    drop(writable);
    fs::remove_dir(&packs).unwrap();
    let Some(_shown) = ReadOnly::of(&place.path("real"), &packs) else { return };
    let reader = Reader::new(&world, &schema);
    let state = || (rows(&world, &schema), laid(&place.path("real")));
    reader.reads_everything_and_changes_nothing(&about, &format!("file:{}", packs.display()), &state);
}
