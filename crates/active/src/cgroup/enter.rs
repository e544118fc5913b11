//! The unsafe part: what a child does between `fork` and `exec` to be in its group from its first instruction on.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Has the child of `command` write itself into `procs`, the open `cgroup.procs` of its group.
///
/// Whether that was possible is for the parent to look at: kernels before 5.16 ask for the rights of who writes, which the child may have given up by then.
pub(super) fn on_start(command: &mut Command, procs: OwnedFd) {
    let join = move || {
        // 0 is whoever writes it.
        let _ = rustix::io::write(&procs, b"0");
        Ok(())
    };
    // SAFETY: between `fork` and `exec` only what is safe in a signal's handler may be called: this is one `write` of two constants, which neither allocates nor takes
    // a lock, and the descriptor lives as long as the closure.
    unsafe { command.pre_exec(join) };
}
