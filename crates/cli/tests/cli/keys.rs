//! Keys of encrypted stores, as users have them.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outrigger_workload::eventually;
use outrigger_workload::postgres::Server;

use crate::run::{Place, Said};

const NAME: &str = "a-name-that-nobody-should-see.txt";
const TEXT: &str = "a sentence that nobody should read, over and over again. ";

/// A workplace whose user has a home directory of their own, and a store in it.
pub struct Home(pub Place);

impl Home {
    pub fn new(init: &[&str]) -> Self {
        let home = Self(Place::empty());
        home.done(&[&["init"], init].concat());
        home.0.write(NAME, TEXT.repeat(3000));
        home
    }

    /// A user with a store in a directory, and one with a store in PostgreSQL if that is installed.
    pub fn on_each_engine() -> Vec<Self> {
        let mut homes = vec![Self::new(&[])];
        if let Some(server) = Server::shared() {
            let home = Self(Place::empty().of(&server.url(&server.fresh())));
            let packs = format!("file:{}", home.0.path("packs").display());
            home.done(&["init", "--packs", &packs]);
            homes.push(home);
        }
        homes
    }

    pub fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.0.command(args);
        command.env("HOME", self.0.path("home")).env_remove("XDG_CONFIG_HOME");
        command
    }

    pub fn run(&self, args: &[impl AsRef<OsStr>]) -> Said {
        self.command(args).output().unwrap().into()
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    fn with(&self, variable: &str, value: &str, args: &[&str]) -> Said {
        self.command(args).env(variable, value).output().unwrap().into()
    }

    /// The key file that `init` made.
    pub fn key_file(&self) -> PathBuf {
        let keys = self.0.path("home/.config/outrigger/keys");
        std::fs::read_dir(keys).unwrap().next().expect("a key file").unwrap().path()
    }
}

fn holds(dir: &Path, needle: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holds(&path, needle));
        } else if std::fs::read(&path)
            .is_ok_and(|bytes| bytes.windows(16).any(|at| at == &needle.as_bytes()[..16]))
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_store_is_encrypted_unless_one_says_otherwise() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    assert_eq!(home.done(&["cat", NAME]).text(), TEXT.repeat(3000));
    assert_eq!(holds(&home.0.path("store"), NAME), [""; 0].map(PathBuf::from));
    assert_eq!(holds(&home.0.path("store"), TEXT), [""; 0].map(PathBuf::from));
    let file = home.key_file();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let plain = Home::new(&["--no-encryption"]);
    plain.done(&["put", NAME]);
    assert!(!holds(&plain.0.path("store"), NAME).is_empty());
    assert!(!plain.0.path("home/.config").exists());
    let said = plain.run(&["key", "list"]);
    assert!(said.code == 1 && said.err.contains("copy --encrypt"), "{}", said.err);
}

#[test]
fn without_its_key_a_store_says_what_opens_it() {
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    let file = home.key_file();
    let away = home.0.path("away.key");
    std::fs::rename(&file, &away).unwrap();
    for args in [&["ls"][..], &["check"], &["status"], &["recover"], &["gc"]] {
        let said = home.run(args);
        let says =
            said.err.contains("its key was not found") && said.err.contains(&file.display().to_string());
        assert!(said.code == 1 && says, "{args:?}: {}", said.err);
    }
    let away = away.display().to_string();
    assert_eq!(home.done(&["--key-file", &away, "ls"]).text(), format!("{NAME}\n"));
    assert_eq!(home.with("OUTRIGGER_KEY_FILE", &away, &["ls"]).code, 0);
    let said = home.run(&["--key-file", "missing", "ls"]);
    assert!(said.code == 1 && said.err.contains("missing"), "{}", said.err);
    home.0.write("other.key", "OKEY1-0000");
    assert!(home.run(&["--key-file", "other.key", "ls"]).err.contains("digits"));
    // A key of another store.
    let other = Home::new(&[]);
    let said = home.run(&["--key-file", &other.key_file().display().to_string(), "ls"]);
    assert!(said.code == 1 && said.err.contains("does not open it"), "{}", said.err);
}

#[test]
fn keys_are_added_removed_and_printed_once() {
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    let file = home.key_file();
    let paper = home.done(&["key", "add", "--paper"]).text();
    let text = paper.lines().next().unwrap();
    assert!(text.starts_with("OKEY1-"), "{paper}");
    assert_eq!(holds(home.0.path("store").as_path(), text), [""; 0].map(PathBuf::from));
    home.done(&["key", "add", "--file", "host.key", "--label", "host"]);
    let said = home.with("OUTRIGGER_PASSPHRASE_COMMAND", "echo short", &["key", "add", "--passphrase"]);
    assert!(said.code != 0 && said.err.contains("8 characters"), "{}", said.err);
    let words = "echo a passphrase of words";
    assert_eq!(home.with("OUTRIGGER_PASSPHRASE_COMMAND", words, &["key", "add", "--passphrase"]).code, 0);
    let list = home.done(&["key", "list", "--json"]).json();
    let labels: Vec<&str> =
        list["keys"].as_array().unwrap().iter().map(|key| key["label"].as_str().unwrap()).collect();
    assert!(
        labels.len() == 4
            && ["key file", "paper", "host", "passphrase"].iter().all(|label| labels.contains(label))
    );

    std::fs::remove_file(&file).unwrap();
    assert_eq!(home.with("OUTRIGGER_PASSPHRASE_COMMAND", words, &["ls"]).code, 0);
    let said = home.with("OUTRIGGER_PASSPHRASE_COMMAND", "echo another passphrase", &["ls"]);
    assert!(said.code == 1 && said.err.contains("does not open it"), "{}", said.err);
    // As a person copies it from paper.
    home.0.write("typed", text.to_lowercase().replace('-', " "));
    home.done(&["--key-file", "typed", "ls"]);
    home.done(&["--key-file", "typed", "key", "remove", "host"]);
    assert_eq!(home.run(&["--key-file", "host.key", "ls"]).code, 1);
    home.done(&["--key-file", "typed", "key", "remove", "passphrase"]);
    home.done(&["--key-file", "typed", "key", "remove", "key file"]);
    let said = home.run(&["--key-file", "typed", "key", "remove", "paper"]);
    assert!(said.code != 0 && said.err.contains("last key"), "{}", said.err);
}

#[test]
fn a_rotation_locks_out_what_is_not_at_hand() {
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    home.done(&["key", "add", "--file", "lost.key", "--label", "lost"]);
    let said = home.run(&["key", "rotate"]);
    assert!(said.code == 1 && said.err.contains("key `lost`"), "{}", said.err);
    home.done(&["key", "rotate", "--drop-others"]);
    home.0.write("new", "stored after it");
    home.done(&["put", "new"]);
    assert_eq!(home.done(&["cat", "new"]).text(), "stored after it");
    assert_eq!(home.done(&["cat", NAME]).text(), TEXT.repeat(3000), "what is older stays readable");
    std::fs::remove_file(home.key_file()).unwrap();
    assert_eq!(home.run(&["--key-file", "lost.key", "ls"]).code, 1);
}

/// A thief who has an old key and its slot reads only packs that have the keys of that time.
#[test]
fn rekeying_takes_old_data_from_those_who_had_a_key() {
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    home.done(&["key", "add", "--file", "lost.key", "--label", "lost"]);
    let (slots, then) = (home.0.path("store/keys"), home.0.path("then"));
    let put_back = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    };
    put_back(&slots, &then);
    home.done(&["key", "rotate", "--drop-others"]);
    let now = home.0.path("now");
    put_back(&slots, &now);
    let by_thief = || {
        put_back(&then, &slots);
        let said = home.run(&["--key-file", "lost.key", "cat", NAME]);
        put_back(&now, &slots);
        said
    };
    assert_eq!(by_thief().text(), TEXT.repeat(3000), "a rotation alone is for new data");
    let would = home.done(&["recompress", "--rekey", "--dry-run"]).text();
    assert!(would.contains("the first run would take"), "{would}");
    let report = home.done(&["recompress", "--rekey", "--json"]).json();
    assert!(report["packs"].as_u64().unwrap() >= 2, "{report}");
    let would = home.done(&["recompress", "--rekey", "--dry-run"]).text();
    assert_eq!(would, "all packs have the newest keys already\n");
    assert_ne!(by_thief().code, 0);
    assert_eq!(home.done(&["cat", NAME]).text(), TEXT.repeat(3000));
    home.done(&["check", "--read-data"]);
}

#[test]
fn a_passphrase_alone_opens_a_store() {
    let home = Home(Place::empty());
    home.0.write("words", "a passphrase of words\n");
    let said = home.with("OUTRIGGER_PASSPHRASE_FILE", "words", &["init"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(!home.0.path("home/.config/outrigger/keys").exists(), "no key file was made");
    assert_eq!(home.with("OUTRIGGER_PASSPHRASE_FILE", "words", &["ls"]).code, 0);
    assert_eq!(home.run(&["ls"]).code, 1);
}

/// Where the kernel keeps keys: some containers forbid it.
#[test]
fn the_kernel_keeps_a_key_for_a_while() {
    let home = Home::new(&[]);
    let unlock = home.run(&["key", "unlock", "--for", "5m"]);
    if unlock.code != 0 {
        assert!(unlock.err.contains("OUTRIGGER_KEY_FILE"), "{}", unlock.err);
        return outrigger_workload::lacking!("the kernel keeps no keys: {}", unlock.err.trim());
    }
    std::fs::remove_file(home.key_file()).unwrap();
    home.done(&["ls"]);
    home.done(&["key", "lock"]);
    assert_eq!(home.run(&["ls"]).code, 1);
}

#[test]
fn a_plain_store_is_encrypted_by_a_copy() {
    let home = Home::new(&["--no-encryption"]);
    home.done(&["put", NAME, "--tag", "before"]);
    home.done(&["copy", "store", "sealed", "--encrypt"]);
    assert_eq!(home.done(&["-s", "sealed", "cat", NAME]).text(), TEXT.repeat(3000));
    assert_eq!(holds(&home.0.path("sealed"), NAME), [""; 0].map(PathBuf::from));
    home.0.write("more", "more");
    home.done(&["put", "more"]);
    home.done(&["copy", "store", "sealed"]);
    assert_eq!(home.done(&["-s", "sealed", "cat", "more"]).text(), "more");
    assert!(home.done(&["-s", "sealed", "snapshot", "list"]).text().contains("before"));
    home.done(&["-s", "sealed", "check", "--read-data"]);
    let said = home.run(&["copy", "sealed", "again", "--encrypt"]);
    assert!(said.code == 2 && said.err.contains("has its keys"), "{}", said.err);
}

/// Bytes in a mount's log are encrypted, too, and are there after it was killed.
#[test]
fn a_mount_keeps_nothing_in_the_clear() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return outrigger_workload::skipped!("/dev/fuse cannot be opened");
    }
    let home = Home::new(&[]);
    let point = home.0.path("mnt");
    std::fs::create_dir(&point).unwrap();
    let mount = || {
        let mut command = home.command(&["mount", "--foreground", "mnt"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("mounting", || point.join(".snapshots").exists());
        child
    };
    let mut child = mount();
    std::fs::write(point.join(NAME), TEXT.repeat(3000)).unwrap();
    File::open(point.join(NAME)).unwrap().sync_all().unwrap();
    assert_eq!(holds(&home.0.path("store"), NAME), [""; 0].map(PathBuf::from));
    assert_eq!(holds(&home.0.path("store"), TEXT), [""; 0].map(PathBuf::from));
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = Command::new("umount").arg("-l").arg(&point).status();
    let mut child = mount();
    assert_eq!(std::fs::read_to_string(point.join(NAME)).unwrap(), TEXT.repeat(3000));
    home.done(&["unmount", "mnt"]);
    child.wait().unwrap();
    assert_eq!(home.done(&["cat", NAME]).text(), TEXT.repeat(3000));
}

#[test]
fn a_plain_store_in_the_place_of_an_encrypted_one_is_refused() {
    let home = Home::new(&[]);
    home.done(&["put", NAME]);
    // Somebody who can write there puts another one in its place.
    let (store, away) = (home.0.path("store"), home.0.path("away"));
    let other = home.0.path("other").display().to_string();
    home.done(&["--store", &other, "init", "--no-encryption"]);
    std::fs::rename(&store, &away).unwrap();
    std::fs::rename(&other, &store).unwrap();
    for args in [&["put", NAME][..], &["ls"], &["gc"]] {
        let said = home.run(args);
        assert_eq!(said.code, 1, "{args:?} {}", said.text());
        assert!(said.err.contains("is not encrypted") && said.err.contains("known"), "{}", said.err);
    }
    assert!(holds(&store, TEXT).is_empty());
    // The real one is still fine, and an owner who means it makes a plain one there.
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    assert_eq!(home.done(&["cat", NAME]).text(), TEXT.repeat(3000));
    std::fs::remove_dir_all(&store).unwrap();
    home.done(&["init", "--no-encryption"]);
    home.done(&["put", NAME]);
}
