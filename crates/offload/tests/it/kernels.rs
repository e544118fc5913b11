//! The committed PTX was made from the sources beside it, and has every kernel that the host
//! launches.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// The sources' fingerprint, as `scripts/kernels.py` writes it into PTX.
fn fingerprint() -> String {
    let mut names: Vec<String> = std::fs::read_dir(kernels())
        .expect("the kernels' folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name.ends_with(".cu") || name.ends_with(".cuh"))
        .collect();
    names.sort();
    assert!(names.iter().filter(|name| name.ends_with(".cu")).count() >= 8, "{names:?}");
    let mut hasher = Sha256::new();
    for name in names {
        let content = std::fs::read(kernels().join(&name)).expect("a source");
        hasher.update(format!("{name} {}\n", content.len()));
        hasher.update(content);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_committed_ptx_was_made_from_these_sources() {
    let expected = format!("// sources {}", fingerprint());
    let mut modules = 0;
    for entry in std::fs::read_dir(kernels()).expect("the kernels' folder") {
        let source = entry.expect("an entry").path();
        if source.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
        let ptx =
            std::fs::read_to_string(kernels().join("ptx").join(format!("{name}.ptx"))).expect("its PTX");
        assert_eq!(ptx.lines().nth(1), Some(&*expected), "{name}: run scripts/kernels.py build");
        assert!(ptx.contains("\n.target sm_70\n"), "{name}: PTX for the oldest GPUs");
        modules += 1;
    }
    assert_eq!(modules, std::fs::read_dir(kernels().join("ptx")).expect("the PTX's folder").count());
}

/// Compiles everything again if NVRTC is installed.
#[test]
#[ignore = "slow: the compiler takes 15 s of the processor; that the sources are those of the PTX is in the quick tests"]
fn the_committed_ptx_is_what_the_compiler_makes() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kernels.py");
    let python = std::env::var("OUTRIGGER_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let output = match Command::new(python).arg(script).arg("check").output() {
        Ok(output) => output,
        Err(error) => return outrigger_workload::skipped!("no Python: {error}"),
    };
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => println!("{said}"),
        Some(77) => outrigger_workload::skipped!("{said}"),
        _ => panic!("{said}"),
    }
}
