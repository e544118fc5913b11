//! The system's C compiler, and programs made with it and this library.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How a program is linked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Static,
    Shared,
    /// Statically, with the C code under address and undefined-behaviour sanitizers, which also
    /// replace the allocator.
    Sanitized,
}

pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The path of the library that Cargo built, beside this test or above it.
pub fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let deps = test.parent().expect("a folder");
    let newest = |dir: &Path| {
        let stem = name.split('.').next().unwrap_or(name);
        let extension = Path::new(name).extension();
        let files = std::fs::read_dir(dir).expect("a readable folder").flatten().map(|entry| entry.path());
        files
            .filter(|path| {
                let file = path.file_stem().and_then(|file| file.to_str()).unwrap_or("");
                path.extension() == extension && (file == stem || file.starts_with(&format!("{stem}-")))
            })
            .max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
    };
    newest(deps)
        .or_else(|| newest(deps.parent().expect("a folder above")))
        .unwrap_or_else(|| panic!("there is no {name} in or above {}", deps.display()))
}

/// A C compiler with strict warnings.
pub fn cc(compiler: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(flags);
    command.arg("-I").arg(crate_dir().join("include"));
    command
}

/// Runs a command, which must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a command, and returns its output.
pub fn stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

/// Compiles `source` to a program in `dir`.
pub fn program(source: &Path, dir: &Path, link: Link) -> PathBuf {
    let program = dir.join(format!("{}-{link:?}", source.file_stem().expect("a name").display()));
    let mut command = cc("cc", &["-std=c99", "-O1", "-g"]);
    if link == Link::Sanitized {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg(source).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            let library = library("liboutrigger_capi.so");
            // Under the name that programs look for, like `make install`.
            let folder = dir.join("shared");
            std::fs::create_dir_all(&folder).expect("a folder");
            let _ = std::os::unix::fs::symlink(&library, folder.join("liboutrigger.so.1"));
            command.arg(&library).arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        Link::Static | Link::Sanitized => {
            command.arg(library("liboutrigger_capi.a"));
        }
    }
    run(command.args(["-lpthread", "-ldl", "-lm"]));
    program
}

/// A program under the sanitizers must find every leak. If a debugger traces this test, it cannot
/// look for leaks.
pub fn sanitized(program: &Path) -> Command {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let traced = status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", if traced { "detect_leaks=0" } else { "detect_leaks=1" });
    command
}
