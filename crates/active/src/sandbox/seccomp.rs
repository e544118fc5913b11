//! A filter of system calls: those that a component has no use for and an attacker has are refused
//! with `EPERM`.
//!
//! | call | what is refused |
//! | --- | --- |
//! | `socket`, `socketpair` | all families but Unix sockets and, for programs with a network, IPv4 and IPv6. `AF_VSOCK` reaches the hypervisor from any name space; `AF_NETLINK` reaches much of the kernel |
//! | `clone` | new name spaces; of `clone3`, whose flags a filter cannot see, everything (`ENOSYS`, at which C libraries take `clone`) |
//! | `ioctl` | typing into a terminal (`TIOCSTI`, `TIOCLINUX`) |
//! | [`REFUSED`] | everything |
//!
//! Other calls are allowed: what programs do is not known, and what name spaces and capabilities
//! forbid anyway needs no second lock. The program is classic BPF, made by `seccompiler` and read
//! by bwrap from a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Result};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use super::variables::in_memory;

/// Tracing, loading code into the kernel, keys, other name spaces, mounts, clocks, and what is
/// large, new and rarely needed. With `io_uring` sockets are opened past any filter.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
];

/// Flags of `clone` that make name spaces.
const NAME_SPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The bindings for musl on ARM lack it.
#[cfg(all(target_env = "musl", target_arch = "aarch64"))]
const KEXEC_FILE_LOAD: libc::c_long = 294;
#[cfg(not(all(target_env = "musl", target_arch = "aarch64")))]
const KEXEC_FILE_LOAD: libc::c_long = libc::SYS_kexec_file_load;

/// Where the calls of the x32 convention begin, which have numbers of their own.
const X32: u32 = 0x4000_0000;

fn wrong(error: seccompiler::BackendError) -> Error {
    Error::other(error.to_string())
}

/// All of these hold.
fn rule(conditions: impl IntoIterator<Item = (u8, SeccompCmpOp, u64)>) -> Result<SeccompRule> {
    let condition = |(argument, compares, value)| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compares, value).map_err(wrong)
    };
    SeccompRule::new(conditions.into_iter().map(condition).collect::<Result<_>>()?).map_err(wrong)
}

/// What is refused. A call without rules is refused whatever its arguments are.
fn rules(network: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let local = [libc::AF_UNIX];
    let all = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let none_of = |families: &[libc::c_int]| rule(families.iter().map(|family| (0, Ne, *family as u64)));
    rules.insert(libc::SYS_socket, vec![none_of(if network { &all } else { &local })?]);
    rules.insert(libc::SYS_socketpair, vec![none_of(&local)?]);
    let makes = |flag: &libc::c_int| rule([(0, MaskedEq(*flag as u64), *flag as u64)]);
    rules.insert(libc::SYS_clone, NAME_SPACES.iter().map(makes).collect::<Result<_>>()?);
    #[allow(clippy::unnecessary_cast, reason = "musl's type has 32 bits")]
    let types = |request: libc::Ioctl| rule([(1, Eq, request as u64)]);
    rules.insert(libc::SYS_ioctl, vec![types(libc::TIOCSTI)?, types(libc::TIOCLINUX)?]);
    Ok(rules)
}

/// The checks before the compiled rules, which have one answer for all that they refuse.
fn before() -> Vec<sock_filter> {
    let statement = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let unless = |jump: u32, k: u32| sock_filter {
        code: (libc::BPF_JMP | jump | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k,
    };
    let returns = libc::BPF_RET | libc::BPF_K;
    let mut code = vec![
        // The number is the first field of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        unless(libc::BPF_JEQ, libc::SYS_clone3 as u32),
        statement(returns, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    if cfg!(target_arch = "x86_64") {
        code.extend([unless(libc::BPF_JGE, X32), statement(returns, libc::SECCOMP_RET_KILL_PROCESS)]);
    }
    code
}

/// The filter for a program with or without a network, as a file in memory; `None` for a processor
/// that `seccompiler` does not know.
///
/// # Errors
/// When the kernel gives no such file.
pub(super) fn filter(network: bool) -> Result<Option<File>> {
    let Ok(architecture) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(None) };
    let refuses = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules(network)?, SeccompAction::Allow, refuses, architecture);
    let compiled = filter.and_then(BpfProgram::try_from).map_err(wrong)?;
    let mut bytes = Vec::new();
    for sock_filter { code, jt, jf, k } in before().into_iter().chain(compiled) {
        // The kernel reads it in its own byte order, which is little-endian wherever this is known.
        bytes.extend_from_slice(&code.to_le_bytes());
        bytes.extend_from_slice(&[jt, jf]);
        bytes.extend_from_slice(&k.to_le_bytes());
    }
    in_memory("seccomp", &bytes).map(Some)
}
