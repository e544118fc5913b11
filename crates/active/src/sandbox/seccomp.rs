//! A filter of system calls: those that a component has no use for and an attacker has are refused with `EPERM`.
//!
//! It is a deny list: what programs do is not known, and what name spaces and capabilities forbid anyway needs no second lock. The
//! program is classic BPF, read by bwrap from a file.

use std::fs::File;

use super::variables::in_memory;

/// Tracing, loading code into the kernel, keys, other name spaces, mounts, clocks, and what is large, new and rarely needed.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
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
];

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | 1;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The kernel's name of this processor, and where calls of another convention begin, if it has one.
fn architecture() -> Option<(u32, Option<u32>)> {
    if cfg!(target_arch = "x86_64") {
        // The x32 convention has its own numbers above this one.
        Some((0xc000_003e, Some(0x4000_0000)))
    } else if cfg!(target_arch = "aarch64") {
        Some((0xc000_00b7, None))
    } else {
        None
    }
}

fn program(architecture: u32, foreign: Option<u32>) -> Vec<u8> {
    let mut code = Vec::new();
    let mut add = |operation: u16, yes: u8, no: u8, value: u32| {
        // The kernel reads it in its own byte order, which is little-endian on both.
        code.extend_from_slice(&operation.to_le_bytes());
        code.extend_from_slice(&[yes, no]);
        code.extend_from_slice(&value.to_le_bytes());
    };
    add(LOAD_WORD, 0, 0, ARCHITECTURE);
    add(JUMP_IF_EQUAL, 1, 0, architecture);
    add(RETURN, 0, 0, KILL);
    add(LOAD_WORD, 0, 0, NUMBER);
    if let Some(foreign) = foreign {
        add(JUMP_IF_AT_LEAST, 0, 1, foreign);
        add(RETURN, 0, 0, KILL);
    }
    for number in REFUSED {
        add(JUMP_IF_EQUAL, 0, 1, *number as u32);
        add(RETURN, 0, 0, REFUSE);
    }
    add(RETURN, 0, 0, ALLOW);
    code
}

/// The filter as a file in memory; `None` for a processor that it is not written for.
///
/// # Errors
/// When the kernel gives no such file.
pub(super) fn filter() -> std::io::Result<Option<File>> {
    let Some((architecture, foreign)) = architecture() else { return Ok(None) };
    in_memory("seccomp", &program(architecture, foreign)).map(Some)
}
