//! Images of a real process: the program runs, and its memory is copied from outside.
#![allow(clippy::disallowed_methods, reason = "tests wait and measure in real time")]

use std::process::Command;

#[test]
fn a_running_search_is_imaged_and_most_of_it_stays_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_outrigger-workload"))
        .args(["images", "--len", "4m", "--count", "2", "--every", "20"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("ermi") {
        outrigger_workload::skipped!("this system lets no process read its child's memory: {said}");
        return;
    }
    assert!(out.status.success(), "{said}");
    let [first, second] = [1, 2].map(|n| std::fs::read(dir.path().join(format!("core.{n}"))).unwrap());
    assert!(first.len() > 2 << 20, "{} bytes", first.len());
    // The database alone is half of an image and does not change, so many pages of the second are
    // also in the first.
    let pages: std::collections::HashSet<&[u8]> = first.chunks(4096).collect();
    let same = second.chunks(4096).filter(|page| pages.contains(page)).count();
    assert!(same * 4096 * 10 > second.len() * 4, "{same} pages of {}", second.len() / 4096);
    assert!(first != second);
}
