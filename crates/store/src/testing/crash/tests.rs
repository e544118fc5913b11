//! Tests of the crash tester itself: hand-made traces with known states, then recorded ones.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::process::Command;

use outrigger_format::PackId;

use super::*;
use crate::backend::{Backend, LocalBackend};

const ALL: usize = 100_000;

/// A trace of steps on an empty directory.
fn trace(steps: impl FnOnce(&mut Recording) -> crate::Result<()>) -> Trace {
    let mut recording = Recording::empty();
    steps(&mut recording).unwrap();
    recording.finish()
}

fn states(trace: &Trace, mode: Mode) -> Vec<CrashState> {
    trace.crash_states(Exploration { mode, budget: ALL, seed: 1 }).collect()
}

/// The possible contents of the file `path`; `-` stands for no file.
fn contents(trace: &Trace, mode: Mode, path: &str) -> BTreeSet<String> {
    let states = states(trace, mode);
    let content =
        |state: &CrashState| state.content(path).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    states.iter().map(|state| content(state).unwrap_or("-".into())).collect()
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

/// Puts `old` at `x` durably, then replaces it by `new`, by way of a temporary file.
fn replace(sync_file: bool, sync_dir: bool) -> Trace {
    trace(|r| {
        r.create("x".as_ref())?;
        r.write("x".as_ref(), 0, b"old")?;
        r.sync("x".as_ref(), false)?;
        r.sync("".as_ref(), false)?;
        r.acknowledge(b"ready\n");
        r.create("x.tmp".as_ref())?;
        r.write("x.tmp".as_ref(), 0, b"new")?;
        if sync_file {
            r.sync("x.tmp".as_ref(), true)?;
        }
        r.rename("x.tmp".as_ref(), "x".as_ref())?;
        if sync_dir {
            r.sync("".as_ref(), false)?;
            r.acknowledge(b"replaced\n");
        }
        Ok(())
    })
}

#[test]
fn replacing_without_a_sync_may_leave_an_empty_file() {
    for mode in [Mode::Strict, Mode::Ordered] {
        for sync_dir in [false, true] {
            let found = contents(&replace(false, sync_dir), mode, "x");
            assert!(found.contains(""), "{mode:?}: {found:?}");
        }
    }
}

#[test]
fn replacing_with_a_sync_is_safe() {
    for mode in [Mode::Strict, Mode::Ordered] {
        let trace = replace(true, true);
        for state in states(&trace, mode) {
            let content = state.content("x");
            match state.acknowledged_lines().len() {
                0 => {}
                1 => assert!(matches!(content, Some(b"old" | b"new")), "{}", state.label()),
                _ => assert_eq!(content, Some(&b"new"[..]), "{}", state.label()),
            }
        }
    }
    // Without the directory's sync the old file may still be there in the end.
    assert!(contents(&replace(true, false), Mode::Strict, "x").contains("old"));
}

#[test]
fn a_synced_file_needs_a_synced_name() {
    let trace = trace(|r| {
        r.create("x".as_ref())?;
        r.write("x".as_ref(), 0, b"1")?;
        r.sync("x".as_ref(), false)?;
        r.acknowledge(b"done\n");
        Ok(())
    });
    let after = |mode| states(&trace, mode).into_iter().filter(|state| !state.acknowledged().is_empty());
    assert!(after(Mode::Strict).any(|state| state.content("x").is_none()));
    assert!(after(Mode::Ordered).all(|state| state.content("x") == Some(b"1")));
}

#[test]
fn names_change_in_order_by_a_journal_only() {
    let trace = trace(|r| {
        r.make_directory("d".as_ref())?;
        r.create("d/a".as_ref())?;
        r.create("d/b".as_ref())
    });
    let odd = |mode| {
        let states = states(&trace, mode);
        states.iter().any(|state| state.content("d/b").is_some() && state.content("d/a").is_none())
    };
    assert!(odd(Mode::Strict));
    assert!(!odd(Mode::Ordered));
}

#[test]
fn independent_writes_survive_independently() {
    let files = ["a", "b", "c"];
    let trace = trace(|r| {
        files.iter().try_for_each(|name| r.create(name.as_ref()))?;
        r.sync("".as_ref(), false)?;
        files.iter().try_for_each(|name| r.write(name.as_ref(), 0, b"1"))
    });
    for mode in [Mode::Strict, Mode::Ordered] {
        let all: BTreeSet<Vec<bool>> = states(&trace, mode)
            .iter()
            .map(|state| {
                files.map(|name| state.content(name).is_some_and(|content| content == b"1")).to_vec()
            })
            .collect();
        assert_eq!(all.len(), 8, "{mode:?}");
    }
}

#[test]
fn a_file_has_one_of_its_names() {
    let trace = trace(|r| {
        r.make_directory("d".as_ref())?;
        r.create("a".as_ref())?;
        r.sync("".as_ref(), false)?;
        r.acknowledge(b"there\n");
        r.rename("a".as_ref(), "d/b".as_ref())?;
        r.rename("d/b".as_ref(), "d/c".as_ref())?;
        r.sync("d".as_ref(), false)?;
        r.rename("d/c".as_ref(), "e".as_ref())
    });
    for mode in [Mode::Strict, Mode::Ordered] {
        for state in states(&trace, mode).iter().filter(|state| !state.acknowledged().is_empty()) {
            let names = ["a", "d/b", "d/c", "e"].iter().filter(|name| state.content(name).is_some()).count();
            assert_eq!(names, 1, "{mode:?} {}", state.label());
        }
    }
}

#[test]
fn writes_are_torn_at_sectors() {
    let (old, new) = ([b'o'; 8192], [b'n'; 8192]);
    let trace = trace(|r| {
        r.create("x".as_ref())?;
        r.write("x".as_ref(), 0, &old)?;
        r.sync("x".as_ref(), false)?;
        r.sync("".as_ref(), false)?;
        r.acknowledge(b"old\n");
        r.write("x".as_ref(), 0, &new)
    });
    let states = states(&trace, Mode::Strict);
    let found: BTreeSet<Vec<u8>> = states
        .iter()
        .filter(|state| !state.acknowledged().is_empty())
        .map(|state| state.content("x").unwrap().to_vec())
        .collect();
    assert!(found.contains(&[&new[..4096], &old[4096..]].concat()));
    assert!(found.contains(&[&old[..4096], &new[4096..]].concat()));
    assert!(found.contains(&[&new[..512], &old[512..]].concat()));
    assert!(found.contains(&old[..]) && found.contains(&new[..]));
    for content in found {
        assert!(content.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
    }
}

#[test]
fn a_length_may_come_without_data_in_strict_mode() {
    let trace = trace(|r| {
        r.create("x".as_ref())?;
        r.write("x".as_ref(), 0, b"data")
    });
    assert_eq!(contents(&trace, Mode::Strict, "x"), set(["-", "", "data", "\0\0\0\0"]));
    assert_eq!(contents(&trace, Mode::Ordered, "x"), set(["-", "", "data"]));
}

#[test]
fn a_sync_covers_what_was_done_before_it_began() {
    let trace = trace(|r| {
        r.create("x".as_ref())?;
        r.sync("".as_ref(), false)?;
        r.write("x".as_ref(), 0, b"1")?;
        let began = r.steps();
        r.write("x".as_ref(), 1, b"2")?;
        r.sync_since(r.find("x".as_ref()).unwrap(), "x".as_ref(), true, began);
        r.acknowledge(b"synced\n");
        Ok(())
    });
    let found: BTreeSet<_> = states(&trace, Mode::Strict)
        .iter()
        .filter(|state| !state.acknowledged().is_empty())
        .map(|state| String::from_utf8(state.content("x").unwrap().to_vec()).unwrap())
        .collect();
    assert_eq!(found, set(["1", "12", "1\0"]));
}

#[test]
fn truncating_in_place_may_lose_both() {
    let trace = trace(|r| {
        r.create("x".as_ref())?;
        r.write("x".as_ref(), 0, b"old")?;
        r.sync("x".as_ref(), false)?;
        r.sync("".as_ref(), false)?;
        r.acknowledge(b"old\n");
        r.resize("x".as_ref(), 0)?;
        r.write("x".as_ref(), 0, b"NE")
    });
    let after = |mode| -> BTreeSet<String> {
        let states = states(&trace, mode);
        let after = states.iter().filter(|state| !state.acknowledged().is_empty());
        after.map(|state| String::from_utf8(state.content("x").unwrap().to_vec()).unwrap()).collect()
    };
    assert_eq!(after(Mode::Ordered), set(["old", "", "NE"]));
    assert!(after(Mode::Strict).is_superset(&set(["old", "", "NE", "NEd"])));
}

#[test]
fn a_sample_keeps_to_its_budget_and_seed() {
    let trace = trace(|r| {
        (0..40).try_for_each(|n| {
            let name = format!("file{n}");
            r.create(name.as_ref())?;
            r.write(name.as_ref(), 0, &[n; 5000])
        })
    });
    let labels = |mode, budget, seed| -> Vec<String> {
        trace.crash_states(Exploration { mode, budget, seed }).map(|state| state.label().to_owned()).collect()
    };
    for mode in [Mode::Strict, Mode::Ordered] {
        for budget in [0, 1, 10, 81, 500] {
            let found = labels(mode, budget, 7);
            assert!(found.len() <= budget, "{} of {budget}", found.len());
            assert!(found.len() * 2 >= budget, "{} of {budget} are different", found.len());
            assert_eq!(found, labels(mode, budget, 7));
        }
        assert_ne!(labels(mode, 500, 7), labels(mode, 500, 8));
    }
}

/// Skips a test, with the reason, where nothing can be recorded.
macro_rules! needs_strace {
    () => {
        if let Some(reason) = unavailable() {
            return outrigger_workload::skipped!("{reason}");
        }
    };
}

fn shell(script: &str, dir: &Path) -> crate::Result<Trace> {
    record(Command::new("sh").args(["-c", script]).current_dir(dir), dir)
}

#[test]
fn records_a_shell_script() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("before"), "here").unwrap();
    let script = "mkdir d; echo a > x; echo b >> x; sync x; mv x d/y; echo moved; (cd d && echo c > z && rm z); \
        printf 12345678 > w; printf ab | dd of=w bs=1 seek=3 conv=notrunc 2>/dev/null; truncate -s 4 before; exit 3";
    let trace = shell(script, dir.path()).unwrap();
    assert_eq!(trace.status.unwrap().code(), Some(3));
    let labels: Vec<&str> = trace.labels().collect();
    for label in
        ["mkdir d", "write x 0+2", "write x 2+2", "fsync x", "rename x d/y", "remove d/z", "resize before 4"]
    {
        assert!(labels.contains(&label), "{label} of {labels:?}");
    }
    let last = states(&trace, Mode::Ordered).pop().unwrap();
    assert_eq!(last.acknowledged(), b"moved\n");

    // The state without losses is the directory's real contents.
    let all = states(&trace, Mode::Ordered);
    let real = |path: &str| std::fs::read(dir.path().join(path)).unwrap();
    assert!(all.iter().any(|state| {
        ["before", "d/y", "w"].iter().all(|path| state.content(path) == Some(&real(path)))
            && state.content("d/z").is_none()
    }));
}

#[test]
fn refuses_what_it_cannot_record() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let error = shell("ln -s a b", dir.path()).err().unwrap();
    assert!(error.to_string().contains("symbolic link"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let error = shell("mknod pipe p", dir.path()).err().unwrap();
    assert!(error.to_string().contains("neither file nor directory"), "{error}");
    let error = record(&Command::new("/no/such/program"), tempfile::tempdir().unwrap().path()).err().unwrap();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

/// Runs the test `name` of this program as a process of its own, which works in `dir`, and records
/// it.
fn record_test(name: &str, dir: &Path, variant: &str) -> Trace {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--include-ignored"]);
    command.env("CRASH_WORKLOAD_DIR", dir).env("CRASH_WORKLOAD_VARIANT", variant);
    let trace = record(&command, dir).unwrap();
    let stderr = String::from_utf8_lossy(&trace.stderr);
    assert!(trace.status.unwrap().success(), "the workload failed: {stderr}");
    trace
}

fn workload() -> Option<(std::path::PathBuf, String)> {
    Some((std::env::var_os("CRASH_WORKLOAD_DIR")?.into(), std::env::var("CRASH_WORKLOAD_VARIANT").ok()?))
}

/// The largest number `n` in the lines `PREFIX n` that the workload printed, with other things
/// around it.
fn acknowledged(state: &CrashState, prefix: &str) -> Option<i64> {
    state.acknowledged_lines().iter().filter_map(|line| line.strip_prefix(prefix)?.trim().parse().ok()).max()
}

#[test]
fn sqlite_workload() {
    let Some((dir, variant)) = workload() else { return };
    let db = crate::testing::database(&dir.join("meta.db")).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.pragma_update(None, "synchronous", variant).unwrap();
    db.pragma_update(None, "wal_autocheckpoint", 12).unwrap();
    db.execute("create table t (id integer primary key, filler blob)", ()).unwrap();
    for id in 1..=12 {
        db.execute("insert into t values (?, zeroblob(3000))", [id]).unwrap();
        println!("\nrow {id}");
    }
}

/// Checks the database after a crash.
fn check_sqlite(dir: &Path, state: &CrashState) -> Result<(), String> {
    let wanted = acknowledged(state, "row ").unwrap_or(0);
    let text = |error: rusqlite::Error| format!("with {wanted} rows acknowledged: {error}");
    let db = crate::testing::database(&dir.join("meta.db")).map_err(text)?;
    let check: String = db.query_row("pragma integrity_check", (), |row| row.get(0)).map_err(text)?;
    if check != "ok" {
        return Err(check);
    }
    let tables: i64 =
        db.query_row("select count(*) from sqlite_schema", (), |row| row.get(0)).map_err(text)?;
    let (rows, max): (i64, i64) = match tables {
        0 => (0, 0),
        _ => db
            .query_row("select count(*), coalesce(max(id), 0) from t", (), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .map_err(text)?,
    };
    if rows != max || rows < wanted {
        return Err(format!("{rows} rows up to {max}, of {wanted} acknowledged"));
    }
    Ok(())
}

#[test]
fn sqlite_keeps_what_it_acknowledged() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let trace = record_test("testing::crash::tests::sqlite_workload", dir.path(), "full");
    assert!(trace.labels().any(|label| label.starts_with("write meta.db ")), "a checkpoint is part of it");
    for mode in [Mode::Strict, Mode::Ordered] {
        let exploration = Exploration { mode, budget: 1500, seed: 1 };
        let count = trace.for_each_crash(exploration, check_sqlite);
        println!("{count} states after {} steps", trace.steps());
        assert!(count > 300, "only {count} states");
    }
}

/// The tester finds bugs: with fewer syncs it finds lost rows, as SQLite's manual warns.
#[test]
fn sqlite_without_full_sync_loses_rows() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let trace = record_test("testing::crash::tests::sqlite_workload", dir.path(), "normal");
    let mut lost = 0;
    trace.for_each_crash(Exploration { mode: Mode::Ordered, budget: 500, seed: 1 }, |dir, state| {
        lost += u32::from(check_sqlite(dir, state).is_err());
        Ok(())
    });
    assert!(lost > 0, "no acknowledged row was ever lost");
}

/// Lengths of the packs that the workload writes: one of several stages, and small ones.
const PACKS: [usize; 6] = [100, 5000, (4 << 20) + 5000, 70_000, 0, 4096];

#[test]
fn backend_workload() {
    let Some((dir, variant)) = workload() else { return };
    let backend = &LocalBackend::open(&dir, true, false).unwrap();
    let write = |id: u64, len: usize| {
        let mut writer = backend.create(PackId(id)).unwrap();
        let bytes = vec![id as u8; len];
        bytes.chunks(60_000).for_each(|part| writer.append(&[IoSlice::new(part)]).unwrap());
        writer.seal().unwrap();
        print!("\nsealed {id}\n");
    };
    if variant == "threads" {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || (0..6).for_each(|n| write(1 + thread + 3 * n, 300 * n as usize)));
            }
        });
    } else {
        (1..).zip(PACKS).for_each(|(id, len)| write(id, len));
    }
    backend.remove(PackId(1)).unwrap();
    print!("\nremoved 1\n");
}

fn check_packs(dir: &Path, state: &CrashState, len: impl Fn(u64) -> usize) -> Result<(), String> {
    let lines = state.acknowledged_lines();
    let sealed = lines.iter().filter_map(|line| line.strip_prefix("sealed ")?.parse::<u64>().ok());
    let removed = lines.iter().any(|line| line == "removed 1");
    let text = |error: crate::Error| error.to_string();
    let backend = LocalBackend::open(dir, true, false).map_err(text)?;
    if removed && backend.list().map_err(text)?.contains(&PackId(1)) {
        return Err("the removed pack is back".into());
    }
    // Pack 1 may be gone from the moment its removal begins.
    for id in sealed.filter(|id| *id != 1) {
        let mut bytes = vec![0; len(id)];
        backend.read_at(PackId(id), 0, &mut bytes).map_err(text)?;
        if backend.len(PackId(id)).map_err(text)? != Some(len(id) as u64)
            || bytes.iter().any(|b| *b != id as u8)
        {
            return Err(format!("pack {id} is not what was sealed"));
        }
    }
    Ok(())
}

#[test]
fn sealed_packs_survive_and_removed_ones_are_gone() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let trace = record_test("testing::crash::tests::backend_workload", dir.path(), "one");
    for mode in [Mode::Strict, Mode::Ordered] {
        let exploration = Exploration { mode, budget: 400, seed: 2 };
        let count = trace
            .for_each_crash(exploration, |dir, state| check_packs(dir, state, |id| PACKS[id as usize - 1]));
        println!("{count} states after {} steps", trace.steps());
        assert!(count > 50, "only {count} states");
    }
}

#[test]
fn packs_sealed_by_several_threads_survive() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let trace = record_test("testing::crash::tests::backend_workload", dir.path(), "threads");
    let lines = trace.crash_states(Exploration { mode: Mode::Ordered, budget: ALL, seed: 1 }).last().unwrap();
    assert_eq!(lines.acknowledged_lines().iter().filter(|line| line.starts_with("sealed ")).count(), 18);
    for mode in [Mode::Strict, Mode::Ordered] {
        let exploration = Exploration { mode, budget: 1500, seed: 3 };
        let count = trace.for_each_crash(exploration, |dir, state| {
            check_packs(dir, state, |id| 300 * ((id as usize - 1) / 3))
        });
        println!("{count} states after {} steps", trace.steps());
    }
}

mod texts;
