//! Runs `misuse.c`, a C program with errors, with and without the sanitizers.

use crate::common;

use common::{Link, crate_dir, program, sanitized, stdout};

#[test]
fn mistakes_are_errors_with_messages() {
    let dir = tempfile::tempdir().expect("a folder");
    for link in [Link::Shared, Link::Sanitized] {
        let program = program(&crate_dir().join("tests/misuse.c"), dir.path(), link);
        assert_eq!(stdout(&mut sanitized(&program)), "fine\n");
    }
}
