//! pkg-config finds what `make install` installs, and a program compiles with it and runs.

use crate::common;

use std::process::Command;

use common::{cc, crate_dir, library, run, stdout};

#[test]
fn an_installed_library_can_be_used() {
    let dir = tempfile::tempdir().expect("a folder");
    let (build, prefix) = (dir.path().join("build"), dir.path().join("usr"));
    std::fs::create_dir(&build).expect("a folder");
    for name in ["liboutrigger_capi.so", "liboutrigger_capi.a"] {
        std::os::unix::fs::symlink(library(name), build.join(name)).expect("a link");
    }
    run(Command::new(crate_dir().join("../../scripts/install-library.sh"))
        .arg(&build)
        .arg(&prefix)
        .env_remove("DESTDIR"));

    // As pkg-config has it, if it is there, or by hand.
    let config = prefix.join("lib/pkgconfig/outrigger.pc");
    let text = std::fs::read_to_string(&config).expect("outrigger.pc");
    assert!(text.contains(&format!("prefix={}\n", prefix.display())), "{text}");
    assert!(text.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
    let asked = Command::new("pkg-config").args(["--cflags", "--libs"]).arg(&config).output();
    let flags = match asked {
        Ok(output) => String::from_utf8(output.stdout).expect("text"),
        Err(_) => format!("-I{0}/include -L{0}/lib -loutrigger", prefix.display()),
    };
    let program = dir.path().join("hash_file");
    let source = crate_dir().join("examples/hash_file.c");
    run(cc("cc", &["-std=c99"]).arg(&source).args(flags.split_whitespace()).arg("-o").arg(&program));
    let line =
        stdout(Command::new(&program).arg("md5").arg("/dev/null").env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(line, "d41d8cd98f00b204e9800998ecf8427e  /dev/null\n");
    // With static linking the program runs without our shared library.
    let archive = prefix.join("lib/liboutrigger.a");
    run(cc("cc", &["-std=c99"])
        .arg(&source)
        .arg(&archive)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    assert!(stdout(Command::new(&program).arg("sha1").arg("/dev/null")).starts_with("da39a3ee"));
}
