//! Power loss at every step of writing and removing small texts beside packs.

use super::*;
use crate::backend::KEYS_DIR;

/// The texts of the workload, in order, and their bytes.
const TEXTS: [(&str, usize); 4] =
    [("store.toml", 600), ("keys/first", 5000), ("keys/second", 9), ("keys/third", 4096)];

fn content(name: &str, len: usize) -> String {
    name.chars().cycle().take(len).collect()
}

#[test]
fn text_workload() {
    let Some((dir, _)) = workload() else { return };
    let backend = LocalBackend::open(&dir, true, false).unwrap();
    for (name, len) in TEXTS {
        let put = |text: &str| match name {
            "store.toml" => backend.claim(text),
            name => backend.put_text(name, text),
        };
        put(&content(name, len)).unwrap();
        print!("\nhas {name}\n");
        put("another").unwrap_err();
    }
    backend.remove_text("keys/first").unwrap();
    print!("\nremoved keys/first\n");
}

fn check_texts(dir: &Path, state: &CrashState) -> Result<(), String> {
    let text = |error: crate::Error| error.to_string();
    let lines = state.acknowledged_lines();
    let said = |line: String| lines.contains(&line);
    let backend = LocalBackend::open(dir, true, false).map_err(text)?;
    let listed = backend.texts(KEYS_DIR).map_err(text)?;
    if listed.iter().any(|name| TEXTS.iter().all(|(whole, _)| *whole != format!("keys/{name}"))) {
        return Err(format!("{listed:?} has a name that nobody wrote"));
    }
    for (name, len) in TEXTS {
        let there = backend.text(name).map_err(text)?;
        let slot = name.split_once('/').map(|(_, slot)| slot.to_owned());
        if slot.is_some_and(|slot| listed.contains(&slot) != there.is_some()) {
            return Err(format!("{name} is listed and not there, or there and not listed"));
        }
        match there {
            Some(there) if there != content(name, len) => return Err(format!("{name} is not whole")),
            Some(_) if said(format!("removed {name}")) => return Err(format!("{name} is back")),
            // The first one may be gone from the moment its removal begins.
            None if said(format!("has {name}")) && name != "keys/first" => {
                return Err(format!("{name} is lost"));
            }
            Some(_) => {}
            // What was left of it is in nobody's way.
            None => backend.put_text(name, "again").map_err(text)?,
        }
    }
    Ok(())
}

#[test]
fn texts_are_whole_or_not_there() {
    needs_strace!();
    let dir = tempfile::tempdir().unwrap();
    let trace = record_test("testing::crash::tests::texts::text_workload", dir.path(), "one");
    for mode in [Mode::Strict, Mode::Ordered] {
        let exploration = Exploration { mode, budget: 1000, seed: 4 };
        let count = trace.for_each_crash(exploration, check_texts);
        println!("{count} states after {} steps", trace.steps());
        assert!(count > 40, "only {count} states");
    }
}
