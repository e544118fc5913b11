//! A store in a temporary directory, and the binary run on it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::LazyLock;

use outrigger_workload::eventually;
use tempfile::TempDir;

/// A workplace with a store in `store`; commands run in it.
pub struct Place {
    dir: TempDir,
    store: String,
}

/// The outcome and the output of a command.
pub struct Said {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Said {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let code = output.status.code().unwrap_or(-1);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!err.contains("panicked"), "{err}");
        Self { code, out: output.stdout, err }
    }
}

/// Runs a command with `input` on its standard input.
pub fn fed(mut command: Command, input: &[u8]) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that fails early does not read all of it.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap().into()
}

/// Agents or other processes beside a test. Dropping this kills them.
#[derive(Default)]
pub struct Agents(pub Vec<Child>);

impl Agents {
    /// Starts another process, whose output is discarded.
    pub fn start(&mut self, mut command: Command) {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.0.push(command.spawn().unwrap());
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// A command that waits for a file to be written in a mount; dropping it leaves it running.
pub struct Waits {
    child: Child,
    err: BufReader<ChildStderr>,
    said: String,
}

impl Waits {
    /// Starts the command. Returns when its own message says that new files will be noticed, or
    /// when it has ended without one.
    pub fn begin(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut waits =
            Self { err: BufReader::new(child.stderr.take().unwrap()), child, said: String::new() };
        while !waits.said.contains("waiting for") && waits.err.read_line(&mut waits.said).unwrap() > 0 {}
        waits
    }

    /// Waits for its end.
    pub fn end(mut self) -> Said {
        // Its output is a few lines, which a pipe holds.
        self.err.read_to_string(&mut self.said).unwrap();
        let mut output = self.child.wait_with_output().unwrap();
        output.stderr = self.said.into_bytes();
        output.into()
    }
}

/// Bytes that cannot be compressed, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    outrigger_workload::Rng::new(seed).bytes(len)
}

/// The environment that shifts a program's clock, by `+1d` or `-1h`. Durations and file times stay
/// right. `None` without libfaketime.
pub fn clock(by: &'static str) -> Option<[(&'static str, &'static str); 5]> {
    static LIBRARY: LazyLock<Option<String>> = LazyLock::new(|| {
        std::fs::read_dir("/usr/lib").ok()?.flatten().find_map(|entry| {
            let path = entry.path().join("faketime/libfaketimeMT.so.1");
            path.exists().then(|| path.display().to_string())
        })
    });
    let Some(library) = &*LIBRARY else {
        outrigger_workload::skipped!("libfaketime is not installed (apt-get install faketime)");
        return None;
    };
    Some([
        ("LD_PRELOAD", library),
        ("FAKETIME", by),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
        ("NO_FAKE_STAT", "1"),
    ])
}

impl Place {
    /// An empty workplace.
    pub fn empty() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), store: "store".to_string() }
    }

    /// The same with another store: a directory in it, or a database.
    pub fn of(self, store: &str) -> Self {
        Self { store: store.to_string(), ..self }
    }

    /// A workplace with a store.
    pub fn new() -> Self {
        let place = Self::empty();
        place.done(&["init"]);
        place
    }

    /// A workplace with a store that is not encrypted: for tests that look into its files, or open it
    /// as users who have no key.
    pub fn plain() -> Self {
        let place = Self::empty();
        place.done(&["init", "--no-encryption"]);
        place
    }

    /// The store's directory or URL.
    pub fn store(&self) -> &str {
        &self.store
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file, and the directories it needs.
    pub fn write(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        let path = self.path(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command.args(args).current_dir(self.dir.path()).env("OUTRIGGER_STORE", &self.store).env("TZ", "UTC");
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[impl AsRef<OsStr>]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// A command of a user without rights; `None` if there is no way to run one.
    pub fn unprivileged(&self, args: &[&str]) -> Option<Command> {
        const NOBODY: &str = "65534";
        if !rustix::process::geteuid().is_root() {
            return Some(self.command(args));
        }
        let nobody = |program: &Path, args: &[&str]| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program).args(args);
            command.current_dir(self.dir.path()).env("OUTRIGGER_STORE", &self.store).stdin(Stdio::null());
            command
        };
        let runs = |program: &Path| {
            nobody(program, &["--version"]).output().is_ok_and(|output| output.status.success())
        };
        // That user may not be able to reach the binary itself.
        let mut program = Path::new(env!("CARGO_BIN_EXE_outrigger")).to_path_buf();
        if !runs(&program) {
            program = self.path(".outrigger");
            outrigger_workload::write_program(
                &program,
                &std::fs::read(env!("CARGO_BIN_EXE_outrigger")).unwrap(),
            );
        }
        let owned = Command::new("chown").args(["-R", NOBODY]).arg(self.dir.path()).status();
        if !owned.is_ok_and(|status| status.success()) || !runs(&program) {
            outrigger_workload::skipped!("nothing can be run as another user (`setpriv`, `chown`)");
            return None;
        }
        Some(nobody(&program, args))
    }

    /// Runs a command with `input` on its standard input.
    pub fn feed(&self, args: &[&str], input: &[u8]) -> Said {
        fed(self.command(args), input)
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn done(&self, args: &[impl AsRef<OsStr> + std::fmt::Debug]) -> Said {
        let said = self.run(args);
        // A child that another test forks has the files of this process open until it runs its
        // program, so a mount may be busy for that moment.
        if said.code == 1 && said.err.contains("fuser -vm") {
            eventually("the mount is not busy", || self.run(args).code == 0);
            return said;
        }
        assert_eq!(said.code, 0, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    /// Runs a command that must end with this code.
    #[track_caller]
    pub fn code(&self, code: i32, args: &[impl AsRef<OsStr> + std::fmt::Debug]) -> Said {
        let said = self.run(args);
        assert_eq!(said.code, code, "{args:?}\n{}\n{}", said.text(), said.err);
        said
    }

    /// The lines that a command prints.
    #[track_caller]
    pub fn lines(&self, args: &[&str]) -> Vec<String> {
        self.done(args).text().lines().map(str::to_string).collect()
    }
}
