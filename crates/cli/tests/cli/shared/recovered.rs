//! A database that is lost: what commands and jobs put into directories that only a mount has made comes back at its path.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::{Host, Shared, command};
use crate::run::{Said, noise};

/// Ends the mount as a crash would, and loses the database.
fn lose(shared: &Shared, host: &mut Host) {
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    assert!(Command::new("umount").arg("-l").arg(host.place.path("mnt")).status().unwrap().success());
    shared.server.sql(&format!("DROP SCHEMA {} CASCADE", shared.schema));
}

fn recover(shared: &Shared, host: &Host) -> Said {
    let packs = format!("file:{}", shared.packs.path().display());
    command(&host.place, &host.url, &["recover", "--packs", &packs]).output().unwrap().into()
}

#[test]
fn outputs_below_directories_that_mounts_made_come_back_at_their_paths() {
    let Some(shared) = Shared::new() else { return };
    let mut host = shared.mount();
    let text = noise(1, 40_000);
    host.place.write("text", &text);
    host.done(&["put", "text"]);
    // Nothing but the mount knows of these.
    fs::create_dir_all(host.path("made/deep/er")).unwrap();
    fs::set_permissions(host.path("made"), fs::Permissions::from_mode(0o2750)).unwrap();
    host.done(&["run", "--sandbox", "off", "--in", "text", "--out", "made/deep/er/job", "--", "cat"]);
    host.done(&["put", "text", "--to", "made/put"]);
    host.done(&["cp", "text", "made/deep/copied"]);
    host.done(&["mv", "made/put", "made/deep/moved"]);
    // A directory that is called otherwise by now.
    fs::create_dir(host.path("before")).unwrap();
    host.done(&["put", "text", "--to", "before/one"]);
    fs::rename(host.path("before"), host.path("after")).unwrap();
    host.done(&["put", "text", "--to", "after/two"]);
    lose(&shared, &mut host);
    let said = recover(&shared, &host);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.text());
    for path in ["made/deep/er/job", "made/deep/copied", "made/deep/moved", "after/one", "after/two", "text"]
    {
        assert!(host.done(&["cat", path]).out == text, "{path}");
    }
    let made = host.done(&["ls", "-l", "/"]).text();
    assert!(made.contains("drwxr-s--- ") && !made.contains("before"), "{made}");
    host.done(&["check", "--read-data"]);
}
