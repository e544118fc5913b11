//! The header must agree with the library: sizes, offsets, numbers and names, as the C compiler
//! sees them.

use crate::common;

use std::process::Command;

use common::{Link, cc, crate_dir, program, run, stdout};

#[test]
fn it_is_c_and_cpp() {
    let header = crate_dir().join("include/outrigger.h");
    for (compiler, flags) in
        [("cc", ["-std=c99", "-xc"]), ("cc", ["-std=c17", "-xc"]), ("c++", ["-std=c++17", "-xc++"])]
    {
        run(cc(compiler, &flags).arg("-fsyntax-only").arg(&header));
    }
}

/// The header declares every function of the sources and no other, and a program can link to each.
#[test]
fn it_declares_every_function() {
    let header = std::fs::read_to_string(crate_dir().join("include/outrigger.h")).expect("the header");
    let mut exported = Vec::new();
    for dir in ["src", "src/task"] {
        for entry in std::fs::read_dir(crate_dir().join(dir)).expect("the sources").flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
            let functions = text.split("#[unsafe(no_mangle)]").skip(1);
            exported.extend(functions.map(|rest| {
                let (_, rest) = rest.split_once("extern \"C\" fn ").expect("a function");
                rest.split_once('(').expect("with parameters").0.to_string()
            }));
        }
    }
    exported.sort();
    let code: String =
        header.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let code = code.split_once("*/").expect("the introduction").1;
    let mut declared: Vec<String> = code
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(')
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("outrigger_"))
        .map(str::to_string)
        .collect();
    declared.sort();
    assert!(exported.len() > 60, "{exported:?}");
    assert_eq!(declared, exported);

    let dir = tempfile::tempdir().expect("a folder");
    let source = dir.path().join("all.c");
    let calls: String = exported.iter().map(|name| format!("    (void (*)(void)){name},\n")).collect();
    let text = format!(
        "#include <outrigger.h>\nstatic void (*const all[])(void) = {{\n{calls}}};\n\
         int main(void) {{\n    for (unsigned n = 0; n < sizeof all / sizeof *all; n++) if (!all[n]) return 1;\n    \
         return outrigger_abi() != OUTRIGGER_ABI;\n}}\n"
    );
    std::fs::write(&source, text).expect("written");
    for link in [Link::Static, Link::Shared] {
        run(&mut Command::new(program(&source, dir.path(), link)));
    }
}

/// The shared library has the name for its version of the interface, and exports nothing else.
#[test]
fn the_shared_library_is_named_and_closed() {
    let library = common::library("liboutrigger_capi.so");
    let text = stdout(Command::new("readelf").args(["-d", "--wide"]).arg(&library));
    let abi = 1;
    assert!(text.contains(&format!("soname: [liboutrigger.so.{abi}]")), "{text}");
    let symbols = stdout(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let foreign: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|name| !name.starts_with("outrigger_") && !name.starts_with('_'))
        .collect();
    assert_eq!(foreign, [""; 0], "a program's own symbols of these names would clash");
}
