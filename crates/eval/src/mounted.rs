//! A mounted store, and programs that work in it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrigger_fuse::control::Client;

use crate::lab::{Failed, Lab, check};
use crate::threads::ticks;

/// A new store, mounted; unmounted when dropped.
pub struct Mount {
    child: Child,
    /// Where.
    pub point: PathBuf,
    base: PathBuf,
}

/// Runs a program and returns its output.
///
/// # Errors
/// When it cannot be started, or fails: with its messages.
pub fn run(command: &mut Command) -> Result<String, Failed> {
    let out = command.output()?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
        return Err(Failed::Program(format!("{command:?}: {said}")));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// True if something is mounted there.
pub fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == point.to_str())
}

impl Mount {
    /// Makes a store below `base` with these options of `init`, and mounts it there.
    ///
    /// # Errors
    /// `Missing` if nothing can be mounted.
    pub fn new(lab: &Lab, base: &Path, options: &[&str]) -> Result<Self, Failed> {
        let program = program(lab)?;
        std::fs::create_dir_all(base.join("mount"))?;
        run(Command::new(program).arg("-s").arg(base.join("store")).arg("init").args(options))?;
        Self::again(lab, base)
    }

    /// Mounts the store that [`Mount::new`] made there.
    ///
    /// # Errors
    /// `Missing` if nothing can be mounted.
    pub fn again(lab: &Lab, base: &Path) -> Result<Self, Failed> {
        let (program, store, point) = (program(lab)?, base.join("store"), base.join("mount"));
        let log = File::create(base.join("log"))?;
        let mut child = Command::new(program)
            .arg("-s")
            .arg(&store)
            .args(["mount", "--foreground"])
            .arg(&point)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let until = Instant::now() + Duration::from_secs(20);
        while !is_mounted(&point) {
            if Instant::now() > until || child.try_wait()?.is_some() {
                let _ = child.kill();
                let said = std::fs::read_to_string(base.join("log")).unwrap_or_default();
                return Err(Failed::Missing(format!("nothing can be mounted here: {said}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { child, point, base: base.to_path_buf() })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until all acknowledged data is stored.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn drain(&self) -> Result<(), Failed> {
        let mount = Client::connect(&self.base.join("store"))?;
        let mut mount =
            mount.ok_or_else(|| Failed::Program("nothing listens in the mounted store".into()))?;
        let answer = mount.ask("stored")?;
        check(answer == "ok", format!("the mount answers {answer}"))
    }

    /// Processor seconds of the mount's process so far.
    pub fn processor(&self) -> f64 {
        seconds_of(&self.child.id().to_string(), 11)
    }

    /// Unmounts it, which waits until all is stored. Returns the mount's processor time since its
    /// start.
    ///
    /// # Errors
    /// When it did not end well.
    pub fn end(mut self) -> Result<f64, Failed> {
        run(Command::new("umount").arg(&self.point))?;
        let before = of_children();
        let status = self.child.wait()?;
        let said = std::fs::read_to_string(self.base.join("log")).unwrap_or_default();
        check(status.success(), format!("the mount ended with {status}: {said}"))?;
        Ok(of_children() - before)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let _ = Command::new("umount").args(["-l"]).arg(&self.point).status();
        }
        let _ = self.child.wait();
    }
}

/// The program `outrigger`, if something can be mounted.
fn program(lab: &Lab) -> Result<&Path, Failed> {
    let Some(program) = &lab.outrigger else {
        return Err(Failed::Missing(
            "the program `outrigger` is not beside this one: build it, or give --outrigger".into(),
        ));
    };
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Err(Failed::Missing("this user cannot open /dev/fuse".into()));
    }
    Ok(program)
}

/// Processor seconds of processes that this one has waited for.
fn of_children() -> f64 {
    seconds_of("self", 13)
}

/// Processor seconds in a process' `stat`, see [`ticks`].
fn seconds_of(process: &str, field: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| ticks(rest, field)).unwrap_or(0) as f64 / 100.0
}

/// Checks that a program is installed.
///
/// # Errors
/// `Missing` if it is not.
pub fn needs(program: &str, package: &str) -> Result<(), Failed> {
    let there = Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if there {
        Ok(())
    } else {
        Err(Failed::Missing(format!("`{program}` is not installed (package {package})")))
    }
}
