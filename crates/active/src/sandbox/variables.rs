//! A submitter's environment variables: given to the program, and to nothing that runs before it.
//!
//! `sh`, `setpriv`, `prlimit` and bubblewrap run before the program, some of them as root and all
//! of them outside the sandbox. A variable such as `LD_PRELOAD` would load the submitter's library
//! into them. So they get an environment of this crate's own. The variables travel in a file in
//! memory, which only the last stage reads:
//!
//! | the program | the variables are set by | from |
//! | --- | --- | --- |
//! | sandboxed | bubblewrap, in its own environment, just before it becomes the program | `--args FD` |
//! | not sandboxed | this program, started once more as the program's user ([`enter`]) | `FD` |
//! | started by a process that cannot be that stage (tests of this crate) | `env -i` | its arguments |

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error as IoError, Read as _, Result as IoResult, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Mutex;

use outrigger_store::{Context as _, Error, ErrorKind, Result};
use rustix::io::FdFlags;

use super::net::{self, Reach, shim};

/// A name and its value.
pub type Variable = (OsString, OsString);

/// This program's first argument when it is started to set variables and become the program that
/// follows.
pub(super) const MARK: &str = "sandbox-variables";

/// Descriptors that a command's child inherits, and no other program that this process starts.
#[derive(Default)]
pub struct Kept {
    inherited: Vec<OwnedFd>,
    /// The program's forwarder of connections, if it has one.
    pub reach: Option<Reach>,
}

impl Kept {
    /// Lets the child inherit this; returns its number there.
    pub(super) fn add(&mut self, file: impl Into<OwnedFd>) -> OsString {
        let file = file.into();
        let number = file.as_raw_fd().to_string().into();
        self.inherited.push(file);
        number
    }

    /// Starts the command.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> IoResult<Child> {
        // A child has this process's open files until it has become its program. So children are
        // started one at a time. Another child started at the same moment would inherit this one's
        // descriptors, and could hold a program open that was just copied here, which the kernel
        // then refuses to run (ETXTBSY). (Letting the child itself keep them, between `fork` and
        // `exec`, costs a `fork`, which is slow in a large process.)
        static STARTING: Mutex<()> = Mutex::new(());
        let _alone = STARTING.lock().expect("no panic while held");
        let set = |flags| self.inherited.iter().try_for_each(|file| rustix::io::fcntl_setfd(file, flags));
        let started = set(FdFlags::empty()).map_err(IoError::from).and_then(|()| command.spawn());
        set(FdFlags::CLOEXEC)?;
        started
    }
}

/// A file in memory with these bytes, to be inherited.
pub(super) fn in_memory(name: &str, bytes: &[u8]) -> IoResult<File> {
    let mut file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Refuses text that would end a variable and begin another word where it is read.
fn check(variables: &[Variable]) -> Result<()> {
    let wrong = |(name, value): &&Variable| {
        name.is_empty()
            || name.as_bytes().iter().any(|byte| matches!(byte, 0 | b'='))
            || value.as_bytes().contains(&0)
    };
    match variables.iter().find(wrong) {
        None => Ok(()),
        Some((name, _)) => {
            let why = format!(
                "the variable {name:?}: a name is not empty and has no `=`, and neither it nor a value has a zero byte"
            );
            Err(Error::new(ErrorKind::Invalid, why))
        }
    }
}

/// The words that make bubblewrap set them in the sandbox.
pub(super) fn for_bwrap(variables: &[Variable], kept: &mut Kept) -> Result<[OsString; 2]> {
    check(variables)?;
    let mut bytes = Vec::new();
    for (name, value) in variables {
        for word in [OsStr::new("--setenv"), name, value] {
            bytes.extend_from_slice(word.as_bytes());
            bytes.push(0);
        }
    }
    let file = in_memory("variables", &bytes).context(|| "a file of variables".into())?;
    Ok(["--args".into(), kept.add(file)])
}

/// The words before a program without a sandbox that set them for it alone.
pub(super) fn for_program(variables: &[Variable], kept: &mut Kept) -> Result<Vec<OsString>> {
    check(variables)?;
    let pairs = || variables.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()]);
    let Ok((program, opened)) = net::staged() else {
        let pair = |parts: [&[u8]; 3]| OsString::from_vec(parts.concat());
        return Ok(["/usr/bin/env".into(), "-i".into()].into_iter().chain(pairs().map(pair)).collect());
    };
    let bytes: Vec<u8> = pairs().flat_map(|parts| [&parts.concat()[..], &[0]].concat()).collect();
    let file = in_memory("variables", &bytes).context(|| "a file of variables".into())?;
    kept.add(opened);
    Ok(vec![program, MARK.into(), kept.add(file)])
}

/// Sets the variables from the descriptor in the first word, and becomes the program of the other
/// words; returns only with an error.
pub(super) fn enter(words: &[OsString]) -> IoError {
    let [from, program, arguments @ ..] = words else { return IoError::other("there is nothing to run") };
    let number = from.to_str().and_then(|from| from.parse().ok()).ok_or(rustix::io::Errno::BADF);
    let read = number.map_err(IoError::from).and_then(shim::kept).and_then(|file| {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for pair in bytes.split(|&byte| byte == 0) {
        if let Some(at) = pair.iter().position(|&byte| byte == b'=') {
            command.env(OsStr::from_bytes(&pair[..at]), OsStr::from_bytes(&pair[at + 1..]));
        }
    }
    command.exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, value: &str) -> Variable {
        (name.into(), value.into())
    }

    #[test]
    fn what_is_more_than_a_variable_is_refused() {
        let mut kept = Kept::default();
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0--bind", "x"), ("A", "x\0--bind\0/\0/host")] {
            let bad = [variable(name, value)];
            assert_eq!(
                for_bwrap(&bad, &mut kept).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{name:?} {value:?}"
            );
            assert_eq!(
                for_program(&bad, &mut kept).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{name:?} {value:?}"
            );
        }
        for_bwrap(&[variable("A", "x=y --bind / /\n")], &mut kept).unwrap();
    }

    #[test]
    fn a_file_is_inherited_by_its_own_child_and_by_no_other() {
        let mut kept = Kept::default();
        let number = kept.add(in_memory("test", b"said").unwrap());
        let script = format!("cat /proc/self/fd/{}", number.to_str().unwrap());
        let read = |child: IoResult<Child>| child.unwrap().wait_with_output().unwrap();
        let command = || {
            let mut command = Command::new("sh");
            command.args(["-c", &script]).stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::null());
            command
        };
        assert_eq!(read(kept.spawn(&mut command())).stdout, b"said");
        let other = read(command().spawn());
        assert!(!other.status.success() && other.stdout.is_empty(), "{other:?}");
    }
}
