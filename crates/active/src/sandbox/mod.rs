//! The sandbox: a component can read its program's closure and its inputs, and write its outputs,
//! nothing else.
//!
//! | against | means |
//! | --- | --- |
//! | other files, the store's directory, credentials in it | a mount name space of its own that has them not (bubblewrap) |
//! | other processes | a process name space of its own; all of it dies with the attempt |
//! | the network | a network name space of its own, without devices; to single destinations connections are forwarded (`net/`) |
//! | abstract sockets of the host, with all of its network | Landlock's scopes (`scope.rs`) |
//! | the kernel's rarer calls | a seccomp filter (`seccomp.rs`) |
//! | capabilities, set-uid programs | all dropped, `no_new_privs`; started by root it runs as its submitter, or, if that was root, as nobody |
//! | memory, processes, time, output | rlimits for each process ([`command`](Sandbox::command)), and a watch over all of them ([`crate::attempt`]) |
//!
//! The closure is `/usr` with the links into it, `/etc/alternatives`, the dynamic linker's cache
//! and the time zone; a program from elsewhere is copied in alone. Environment variables are not
//! inherited.

pub mod net;
mod scope;
mod seccomp;
mod trials;
mod variables;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_store::{Context as _, Error, ErrorKind, Result};

use crate::cgroup::Group;
use crate::identity::Submitter;
use crate::job::limits::Limits;
use crate::job::spec::Spec;
use crate::job::{Destination, Mode};
use net::Reach;
use trials::{can_become, try_out};
pub use variables::{Kept, Variable};

/// Keeps inherited descriptors, except the standard streams, from the programs of jobs. The parent
/// (a script with a lock file, a supervisor) may have left files and directories open, through
/// which a program would leave its sandbox. Call this first.
///
/// # Errors
/// When the table of descriptors cannot be read.
pub fn keep_inherited() -> Result<()> {
    net::shim::keep_inherited().context(|| "cannot read /proc/self/fd".into())
}

/// Further trials: that a program with all of the network cannot reach abstract sockets …
const SCOPED: &str = "scoped";
/// … and that one with single destinations is alone in its network.
const ALONE: &str = "alone";
/// Why root cannot run a component as somebody else.
const NO_SETPRIV: &str = "there is no setpriv that changes users (Debian: util-linux)";
/// Where a component finds what it writes to.
const WORK: &str = "/work";
/// Where a component finds its program, if that is not the system's.
const COMPONENT: &str = "/component";

/// The means that this machine has to sandbox components.
#[derive(Clone, Debug)]
pub struct Sandbox {
    bwrap: Option<PathBuf>,
    prlimit: Option<PathBuf>,
    /// The program that changes to another user, if this process is root's.
    setpriv: Option<PathBuf>,
    /// A command that gives programs only idle time, with its arguments.
    idle: Vec<OsString>,
    filtered: bool,
    /// Programs with all of the network do not reach the host's abstract sockets with it.
    scoped: bool,
    /// The user that components run as, if not this process's.
    run_as: Option<Submitter>,
    /// Missing protections, in words.
    pub missing: Vec<String>,
}

/// The places of one attempt on this machine.
pub struct Places<'a> {
    /// A directory of its own, to write to.
    pub work: &'a Path,
    /// A directory with its inputs as files, if it wants them so.
    pub inputs: Option<&'a Path>,
    /// A directory with its program, if that is not the system's.
    pub component: Option<&'a Path>,
}

/// The part of the network that a component can reach.
#[derive(Clone, Copy)]
pub enum Network<'a> {
    /// Nothing.
    Nothing,
    /// All that this machine can.
    All,
    /// These destinations; the second is the directory with their names.
    Only(&'a [Destination], &'a Path),
}

fn find(program: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.exists())
}

impl Sandbox {
    /// Finds the means for `mode`.
    ///
    /// # Errors
    /// `Denied` in strict mode if one is missing, saying which and what else could be done.
    pub fn find(mode: Mode) -> Result<Self> {
        let prlimit = find("prlimit");
        let is_root = rustix::process::geteuid().is_root();
        let setpriv = find("setpriv").filter(|setpriv| is_root && can_become(setpriv, &Submitter::nobody()));
        let mut found = Self { prlimit, setpriv, ..Self::none() };
        if is_root && found.setpriv.is_none() {
            found.missing.push(format!("other users: {NO_SETPRIV}"));
        }
        if found.prlimit.is_none() {
            found.missing.push("limits for each process: there is no prlimit (Debian: util-linux)".into());
        }
        if mode == Mode::Off {
            return Ok(found);
        }
        match find("bwrap") {
            None => found.missing.push("name spaces: there is no bwrap (Debian: bubblewrap)".into()),
            Some(bwrap) => match try_out(&bwrap, found.setpriv.as_deref(), None) {
                Ok(()) => found.bwrap = Some(bwrap),
                Err(why) => found.missing.push(format!("name spaces: {why}")),
            },
        }
        match seccomp::filter(false) {
            Ok(filter) => found.filtered = filter.is_some(),
            Err(error) => found.missing.push(format!("a filter of system calls: {error}")),
        }
        if !found.filtered {
            found.missing.push("a filter of system calls: none for this processor".into());
        }
        found = found.for_submitter(None)?;
        if mode == Mode::Strict && !found.missing.is_empty() {
            let why = format!(
                "programs cannot be kept in on this machine ({}); use --sandbox best to do what can be done, or --sandbox off for programs that you trust",
                found.missing.join("; ")
            );
            return Err(Error::new(ErrorKind::Denied, why));
        }
        Ok(found)
    }

    /// Nothing.
    fn none() -> Self {
        Self {
            bwrap: None,
            prlimit: None,
            setpriv: None,
            idle: Vec::new(),
            filtered: false,
            scoped: false,
            run_as: None,
            missing: Vec::new(),
        }
    }

    /// As [`Sandbox::find`], for a job.
    ///
    /// # Errors
    /// As there; and where single destinations make no sense, or cannot be granted.
    pub fn find_for(spec: &Spec) -> Result<Self> {
        spec.check_reach()?;
        #[cfg(feature = "testing")]
        if crate::instead::function().is_some() {
            return Ok(Self::none());
        }
        let mut found = Self::find(spec.sandbox)?;
        if spec.reach.is_empty() {
            if let Some(bwrap) = found.bwrap.as_ref().filter(|_| spec.net) {
                let tried = net::scoped()
                    .and_then(|scope| try_out(bwrap, found.setpriv.as_deref(), Some((SCOPED, scope))));
                found.scoped = tried.is_ok();
                // The job asked for all of the network, and most kernels cannot exclude this part
                // of it yet: reported, not refused.
                found.missing.extend(tried.err().map(|why| {
                    format!("with all of the network the program reaches this host's abstract sockets as well: {why}")
                }));
            }
            return Ok(found);
        }
        let tried = match &found.bwrap {
            None => Err(found.missing.join("; ")),
            Some(bwrap) => {
                net::alone().and_then(|stage| try_out(bwrap, found.setpriv.as_deref(), Some((ALONE, stage))))
            }
        };
        tried.map(|()| found).map_err(|why| {
            let why = format!(
                "single destinations (--net HOST:PORT) cannot be granted on this machine ({why}); --net alone gives a program all of the network"
            );
            Error::new(ErrorKind::Denied, why)
        })
    }

    /// If this process is root's, components run as their submitter; as nobody, if that is root,
    /// unless there is no sandbox.
    ///
    /// # Errors
    /// Those of [`Submitter::known_here`].
    pub fn for_submitter(mut self, submitter: Option<&Submitter>) -> Result<Self> {
        self.run_as = match submitter.filter(|submitter| !submitter.is_root()) {
            _ if !rustix::process::geteuid().is_root() => None,
            Some(submitter) => Some(Submitter::known_here(submitter.uid)?),
            None => self.is_closed().then(Submitter::nobody),
        };
        Ok(self)
    }

    /// True if components run with all the rights of root: without a sandbox, and as no other user.
    pub fn is_root(&self) -> bool {
        self.run_as.is_none() && rustix::process::geteuid().is_root()
    }

    /// Gives components only idle processor and disk time, as far as the tools for it (Debian:
    /// util-linux) exist and the disk's scheduler supports it.
    #[must_use]
    pub fn idle(mut self, idle: bool) -> Self {
        self.idle.clear();
        for (program, arguments) in [("chrt", ["--idle", "0"]), ("ionice", ["--class", "3"])] {
            if let Some(path) = find(program).filter(|_| idle) {
                self.idle.push(path.into());
                self.idle.extend(arguments.map(OsString::from));
            }
        }
        self
    }

    /// True if components have name spaces of their own.
    pub fn is_closed(&self) -> bool {
        self.bwrap.is_some()
    }

    /// The path of `work` as a component sees it.
    pub fn work_seen(&self, places: &Places<'_>) -> PathBuf {
        if self.is_closed() { WORK.into() } else { places.work.to_path_buf() }
    }

    /// Where a component sees its inputs.
    pub fn inputs_seen(&self, places: &Places<'_>) -> PathBuf {
        match places.inputs {
            Some(inputs) if !self.is_closed() => inputs.to_path_buf(),
            _ => "/in".into(),
        }
    }

    /// Where a component sees its program.
    pub fn component_seen(&self, places: &Places<'_>) -> PathBuf {
        match places.component {
            Some(component) if !self.is_closed() => component.to_path_buf(),
            _ => COMPONENT.into(),
        }
    }

    /// The user that components run as, if root has them run as another one.
    pub fn runs_as(&self) -> Option<u32> {
        self.run_as.as_ref().map(|who| who.uid)
    }

    /// Lets the components' user reach what lies below a directory. The directory stays this
    /// process's: its owner could replace what root makes and mounts there with links.
    ///
    /// # Errors
    /// When its mode cannot be changed.
    pub fn let_in(&self, path: &Path) -> Result<()> {
        if self.run_as.is_some() {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711))
                .context(|| format!("opening {} to the component", path.display()))?;
        }
        Ok(())
    }

    /// Gives `path`, in a directory of this process's, to the user that components run as.
    ///
    /// # Errors
    /// When its owner cannot be changed.
    pub fn hand_over(&self, path: &Path) -> Result<()> {
        if let Some(who) = &self.run_as {
            std::os::unix::fs::lchown(path, Some(who.uid), Some(who.gid))
                .context(|| format!("giving {} to the component", path.display()))?;
        }
        Ok(())
    }

    /// Copies a program of this machine with the rights of its submitter: root must not hand out a
    /// file that only root can read. User nobody counts like any other.
    ///
    /// # Errors
    /// When it is no file that this user may execute and read, or it cannot be written.
    pub fn copy_as_submitter(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        const COPY: &str =
            r#"test -f "$0" && test -x "$0" || { echo not a program; exit 1; } >&2; exec cat -- "$0""#;
        let Some(who) = &self.run_as else {
            return std::fs::copy(from, to).map(drop);
        };
        let setpriv = self.setpriv.as_ref().ok_or_else(|| std::io::Error::other(NO_SETPRIV))?;
        let [program, words @ ..] = becoming(setpriv, who);
        let mut command = Command::new(program);
        command.args(words).args(["/bin/sh", "-c", COPY]).arg(from).env_clear().current_dir("/");
        command.stdin(std::process::Stdio::null());
        command.stdout(File::create(to)?).stderr(std::process::Stdio::piped());
        let read = Kept::default().spawn(&mut command)?.wait_with_output()?;
        // This also closes this process's copy of the output: a program that is open for writing
        // cannot be run.
        drop(command);
        if !read.status.success() {
            let said = String::from_utf8_lossy(&read.stderr);
            let why = format!("uid {} cannot run it: {}", who.uid, said.trim());
            return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
        }
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))
    }

    /// A command that runs `program` in the sandbox and in its group, if it has one, and the state
    /// that must live until it was started.
    ///
    /// Small programs that become each other do all the preparation. A child of this process that
    /// did it itself would need a `fork`, which is slow here (`Group::words`).
    ///
    /// # Errors
    /// When the kernel refuses a file in memory, or no tool exists to change to the user.
    pub fn command(
        &self,
        program: &[OsString],
        places: &Places<'_>,
        (limits, group): (&Limits, Option<&Group>),
        network: Network<'_>,
        variables: &[Variable],
    ) -> Result<(Command, Kept)> {
        let mut kept = Kept::default();
        let mut words: Vec<OsString> = group.map(|group| group.words().into()).unwrap_or_default();
        if let Some(who) = &self.run_as {
            let setpriv = self.setpriv.as_ref().ok_or_else(|| Error::new(ErrorKind::Denied, NO_SETPRIV))?;
            words.extend(becoming(setpriv, who));
        }
        if matches!(network, Network::All) && self.scoped {
            let (before, opened) = net::scoped().map_err(|why| Error::new(ErrorKind::Denied, why))?;
            words.extend(before);
            kept.add(opened);
        }
        if let Network::Only(to, _) = network {
            words.extend(Reach::prepare(to, &mut kept)?);
        }
        words.extend(self.idle.iter().cloned());
        if let Some(prlimit) = &self.prlimit {
            words.push(prlimit.into());
            words.push("--core=0".into());
            if let Some(memory) = limits.memory {
                words.push(format!("--data={memory}").into());
            }
            if let Some(output) = limits.output {
                words.push(format!("--fsize={output}").into());
            }
            if let Some(cpu) = limits.cpu {
                words.push(format!("--cpu={}", cpu.as_secs().max(1)).into());
            }
            if let (Some(processes), true) = (limits.processes, self.is_closed()) {
                // Counts all processes of user nobody on this machine, so it is only the last line;
                // the watch counts exactly.
                words.push(format!("--nproc={}", processes.saturating_mul(8).max(1024)).into());
            }
            words.push("--".into());
        }
        let own = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp"), ("LANG", "C.UTF-8")];
        let own = own.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let variables = [&own, variables].concat();
        if let Some(bwrap) = &self.bwrap {
            words.push(bwrap.into());
            self.closure(&mut words, places, limits, network);
            // bwrap reads it to its end, so each command needs its own.
            let has_network = !matches!(network, Network::Nothing);
            if let Some(filter) =
                seccomp::filter(has_network).context(|| "a filter of system calls".into())?
            {
                words.extend(["--seccomp".into(), kept.add(filter)]);
            }
            words.extend(variables::for_bwrap(&variables, &mut kept)?);
            words.push("--".into());
        } else {
            words.extend(variables::for_program(&variables, &mut kept)?);
        }
        words.extend(program.iter().cloned());
        let mut command = Command::new(&words[0]);
        // Only this crate's variables: the programs before the job's may be root's
        // (`variables.rs`).
        command.args(&words[1..]).env_clear().envs(own).process_group(0);
        if !self.is_closed() {
            command.current_dir(places.work);
        }
        Ok((command, kept))
    }

    fn closure(&self, words: &mut Vec<OsString>, places: &Places<'_>, limits: &Limits, network: Network<'_>) {
        let mut add =
            |these: &[&dyn AsRef<OsStr>]| words.extend(these.iter().map(|word| word.as_ref().to_owned()));
        add(&[
            &"--unshare-all",
            &"--unshare-user",
            &"--disable-userns",
            &"--die-with-parent",
            &"--new-session",
        ]);
        add(&[&"--cap-drop", &"ALL", &"--hostname", &"component"]);
        // With single destinations it is in a network name space of its own already.
        if !matches!(network, Network::Nothing) {
            add(&[&"--share-net"]);
        }
        add(&[&"--ro-bind", &"/usr", &"/usr"]);
        for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
            let host = Path::new("/").join(name);
            match std::fs::read_link(&host) {
                Ok(target) => add(&[&"--symlink", &target, &host]),
                Err(_) if host.exists() => add(&[&"--ro-bind", &host, &host]),
                Err(_) => {}
            }
        }
        let mut etc = vec!["/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"];
        match network {
            Network::Nothing => {}
            Network::All => etc.extend(["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"]),
            Network::Only(_, names) => {
                for (from, to) in net::names_in(names) {
                    add(&[&"--ro-bind", &from, &to]);
                }
            }
        }
        if !matches!(network, Network::Nothing) {
            etc.extend(["/etc/ssl", "/etc/ca-certificates"]);
        }
        for path in etc {
            add(&[&"--ro-bind-try", &path, &path]);
        }
        let scratch = limits.memory.unwrap_or(1 << 30).min(1 << 30).to_string();
        add(&[&"--proc", &"/proc", &"--dev", &"/dev", &"--size", &scratch, &"--tmpfs", &"/dev/shm"]);
        add(&[&"--remount-ro", &"/dev", &"--size", &scratch, &"--tmpfs", &"/tmp"]);
        add(&[&"--bind", &places.work, &WORK, &"--chdir", &WORK]);
        if let Some(inputs) = places.inputs {
            add(&[&"--ro-bind", &inputs, &"/in"]);
        }
        if let Some(component) = places.component {
            add(&[&"--ro-bind", &component, &COMPONENT]);
        }
        // The root itself is a file system in memory, without a size limit.
        add(&[&"--remount-ro", &"/"]);
    }
}

/// The words before a command that make it run as this user, in this user's groups and no others.
fn becoming(setpriv: &Path, who: &Submitter) -> [OsString; 5] {
    let [reuid, regid] = [format!("--reuid={}", who.uid), format!("--regid={}", who.gid)];
    let groups = match who.groups.as_slice() {
        [] => "--clear-groups".to_string(),
        groups => format!("--groups={}", groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    };
    [setpriv.into(), reuid.into(), regid.into(), groups.into(), "--".into()]
}
