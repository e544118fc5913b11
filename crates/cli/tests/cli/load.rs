//! A program that changes something outside the store, exactly once: the example that loads into
//! PostgreSQL.

use std::path::Path;
use std::process::{Command, Stdio};

use outrigger_workload::postgres::Server;

use crate::site::Site;

#[test]
fn rows_are_loaded_once_though_attempts_are_repeated_and_late() {
    let Some(server) = Server::shared() else { return };
    let psql = Command::new("psql").arg("--version").stdout(Stdio::null()).status();
    if !psql.is_ok_and(|status| status.success()) {
        outrigger_workload::skipped!("there is no psql (apt-get install postgresql-client)");
        return;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/active/load");
    let schema = server.fresh();
    let tables = std::fs::read_to_string(example.join("tables.sql")).unwrap();
    server.sql(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}"));
    let site = Site::sqlite();
    let rows: String = (0..900).map(|row| format!("s{},{}.5\n", row % 7, row)).collect();
    site.place.write("rows.csv", &rows);
    site.done(&["put", "rows.csv"]);
    let load = example.join("load.sh").canonicalize().unwrap().display().to_string();
    // Odd splits fail once, after their rows are there.
    let script = format!("{load} && {{ [ $((AS_SPLIT % 2)) = 0 ] || [ $AS_ATTEMPT -gt 1 ]; }}");
    let host = format!("PGHOST={}", server.dir().display());
    let path = format!("PGOPTIONS=--search_path={schema}");
    let args = [
        "run",
        "--pattern",
        "1R->0",
        "--sandbox",
        "off",
        "--in",
        "rows.csv",
        "--records",
        "lines",
        "--splits",
        "6",
    ];
    let env = ["--env", &host, "--env", "PGUSER=tester", "--env", "PGDATABASE=postgres", "--env", &path];
    site.done(&[&args[..], &env[..], &["--", "sh", "-c", &script]].concat());
    let count = || server.sql(&format!("SELECT count(*), sum(value)::bigint FROM {schema}.measurement"));
    let sum: f64 = (0..900).map(|row| f64::from(row) + 0.5).sum();
    assert_eq!(count(), format!("900|{sum}"));
    let attempts = format!("SELECT string_agg(attempt::text, '' ORDER BY task) FROM {schema}.loaded");
    assert_eq!(server.sql(&attempts), "121212", "the first attempts at odd splits did load");
    // An attempt that was given up long ago comes to its end now.
    let late = |attempt: &str| {
        let task = server.sql(&format!("SELECT max(task) FROM {schema}.loaded"));
        let mut child = Command::new(&load)
            .env("PGHOST", server.dir())
            .env("PGOPTIONS", format!("--search_path={schema}"))
            .envs([
                ("PGUSER", "tester"),
                ("PGDATABASE", "postgres"),
                ("AS_TASK_ID", &task),
                ("AS_ATTEMPT", attempt),
            ])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"late,1\n").unwrap();
        child.wait().unwrap().success()
    };
    assert!(!late("1"), "it is refused");
    assert_eq!(count(), format!("900|{sum}"), "and changes nothing");
    assert!(late("3"), "a newer one replaces what was there");
    assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.measurement WHERE sensor = 'late'")), "1");
    server.sql(&format!("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE"));
}
