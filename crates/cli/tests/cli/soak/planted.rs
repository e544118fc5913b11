//! Faults that are planted beside running hosts, to show that the soak notices them: a missing
//! pack, changed bytes in a pack, an old row in the database, a missing name. Each fault is then
//! removed, and no error remains. So it was this fault that was noticed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::hosts::Shell;
use super::model::{FILES, Recipe, Way, name};
use super::{Soak, asked, ground};

/// The text of a panic.
fn why(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

impl Soak<'_> {
    /// Verification must fail with one of `wanted` in its text: hosts that read find the fault, or
    /// `check` does.
    fn must_notice(&self, shell: &Shell<'_>, what: &str, wanted: &[&str]) {
        println!("planted: {what}; that this is noticed, the next panic says");
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.verify(shell))) else {
            panic!("not noticed: {what}");
        };
        let said = why(&*panic);
        assert!(wanted.iter().any(|wanted| said.contains(wanted)), "{what}: noticed as {said}");
    }

    /// The file of the largest committed pack, and the pack's id.
    fn largest_pack(&self, packs: &Path) -> (PathBuf, String) {
        let id = self.ground.sql("SELECT id FROM SCHEMA.pack WHERE state = 2 ORDER BY bytes DESC LIMIT 1");
        let id = format!("{:016x}", id.parse::<u64>().unwrap());
        let mut dirs = vec![packs.join("packs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.file_name().unwrap().to_string_lossy().contains(&id) {
                    return (path, id);
                }
            }
        }
        panic!("pack {id} has no object");
    }
}

#[test]
#[ignore = "slow: soaks"]
fn faults_planted_beside_running_hosts_are_noticed() {
    let (seed, seconds) = asked(4);
    let Some(ground) = ground(false) else { return };
    let packs = tempfile::tempdir().unwrap();
    let shell = Shell::new(&ground);
    // Names are looked for in the database, so it is not encrypted.
    let soak = Soak::begin(&ground, &shell, packs.path(), (seed, seconds), &["--no-encryption"]);
    soak.act(seed);
    // A file that was written twice. Files of trees have other names.
    let slot = 5;
    assert!(slot < FILES);
    let path = soak.mounts[0].root.join(name(slot));
    let write = |blocks: Vec<u8>| {
        let recipe = Recipe::new(slot, soak.model.token(), blocks);
        let made = soak.model.blocks.made(Some(&recipe)).unwrap();
        soak.model.begin(slot, Some(recipe), Way::InPieces);
        fs::write(&path, &made[""]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        soak.model.done(slot);
    };
    write(vec![1, 2]);
    let entry = format!("SCHEMA.dentry WHERE name = 'f{slot}'");
    let of_it = format!("number = (SELECT inode FROM {entry})");
    ground.sql(&format!("CREATE TABLE SCHEMA.older AS SELECT * FROM SCHEMA.inode WHERE {of_it}"));
    write(vec![2, 3, 6]);
    ground.sql(&format!("CREATE TABLE SCHEMA.newer AS SELECT * FROM SCHEMA.inode WHERE {of_it}"));
    soak.verify(&shell);

    let (object, id) = soak.largest_pack(packs.path());
    let aside = packs.path().join("aside");
    fs::rename(&object, &aside).unwrap();
    soak.must_notice(&shell, "a pack is gone", &[&id, "is in no pack"]);
    fs::rename(&aside, &object).unwrap();

    let bytes = fs::read(&object).unwrap();
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle..middle + 16].iter_mut().for_each(|byte| *byte ^= 0x40);
    let change = |bytes: &[u8]| {
        // The file is replaced, as packs are read-only and this test may not be root.
        let kept = fs::metadata(&object).unwrap().permissions();
        fs::remove_file(&object).unwrap();
        fs::write(&object, bytes).unwrap();
        fs::set_permissions(&object, kept).unwrap();
    };
    change(&flipped);
    soak.must_notice(&shell, "bytes of a pack are others", &[&id, "stored data is damaged"]);
    change(&bytes);

    let put_row = |table: &str| {
        ground.sql(&format!("DELETE FROM SCHEMA.inode WHERE {of_it}"));
        ground.sql(&format!("INSERT INTO SCHEMA.inode SELECT * FROM SCHEMA.{table}"));
    };
    put_row("older");
    soak.must_notice(&shell, "a row is an older one", &[&format!("{}: ", name(slot))]);
    put_row("newer");

    ground.sql(&format!("CREATE TABLE SCHEMA.gone AS SELECT * FROM {entry}"));
    ground.sql(&format!("DELETE FROM {entry}"));
    soak.must_notice(&shell, "a name is gone", &[&format!("{}: nothing instead of", name(slot))]);
    ground.sql("INSERT INTO SCHEMA.dentry SELECT * FROM SCHEMA.gone");

    for table in ["older", "newer", "gone"] {
        ground.sql(&format!("DROP TABLE SCHEMA.{table}"));
    }
    soak.end(&shell, packs.path());
}
