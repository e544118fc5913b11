//! Replaces the functions of the C library by which the standard library waits, starts threads, and
//! reads the time.
//!
//! `std::sync` and `std::thread` call a few of them (`syscall` for futexes, `pthread_create`,
//! `pthread_join`, `nanosleep`, `clock_gettime`, `getrandom`). A program that links this crate gets
//! these versions. In a thread of a simulation they ask the [scheduler](crate::scheduler), in all
//! others the C library. So the simulation runs the product's own code, which does not know it.
#![expect(unsafe_code, reason = "this is the one place that meets the C library")]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{clockid_t, pthread_attr_t, pthread_t, size_t, ssize_t, timespec};

use crate::disks;
use crate::real::{
    CONTROL, CREATE, JOIN, RANDOM, SLEEP, SLEEP_BY, SYSCALL, Start, TIME, WRITE, WRITE_AT, YIELD,
};
use crate::scheduler::{self, Virtual};

fn nanos(time: timespec) -> u64 {
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

fn fail(errno: c_int) -> c_long {
    // SAFETY: it is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// # Safety
/// As of the C library's. Values of arguments that a call does not have do not matter.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if !scheduler::is_simulated() {
        // SAFETY: as of the caller's.
        return unsafe { SYSCALL.get()(number, a, b, c, d, e, f) };
    }
    if number == libc::SYS_getrandom {
        // SAFETY: the caller has a buffer of this length.
        return unsafe { getrandom(a as *mut c_void, b, c as c_uint) as c_long };
    }
    if number != libc::SYS_futex {
        // SAFETY: as of the caller's.
        return unsafe { SYSCALL.get()(number, a, b, c, d, e, f) };
    }
    let command = b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match command {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            // SAFETY: the word is there, as the caller waits for it.
            let word = unsafe { &*(a as *const AtomicU32) };
            if word.load(Ordering::SeqCst) != c as u32 {
                return fail(libc::EAGAIN);
            }
            // SAFETY: a time, or none.
            let time = unsafe { (d as *const timespec).as_ref() }.map(|time| nanos(*time));
            let is_span = command == libc::FUTEX_WAIT;
            let until = time.map(|time| if is_span { scheduler::after(time) } else { time });
            if scheduler::wait_for_word(a, until) { 0 } else { fail(libc::ETIMEDOUT) }
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            scheduler::wake_word(a, (c as c_int).max(0) as usize) as c_long
        }
        _ => fail(libc::ENOSYS),
    }
}

/// The start of a new thread of a simulation.
struct Begin {
    number: usize,
    baton: *const AtomicU32,
    start: Start,
    argument: *mut c_void,
}

/// The key whose destructor is the last code that a thread runs, after those of all thread-local
/// variables.
fn last_key() -> libc::pthread_key_t {
    static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
    extern "C" fn leave(_: *mut c_void) {
        scheduler::leave_thread();
    }
    if KEY.load(Ordering::Relaxed) == u32::MAX {
        let mut key = 0;
        // SAFETY: the key is written, and the function is there. Only the thread that has the baton
        // comes here.
        unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) };
        KEY.store(key, Ordering::Relaxed);
    }
    KEY.load(Ordering::Relaxed)
}

extern "C" fn begin(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below made it, for this thread alone.
    let begin = unsafe { Box::from_raw(argument.cast::<Begin>()) };
    scheduler::enter_thread(begin.number, begin.baton);
    // SAFETY: the key is there; the value only has to be something.
    unsafe { libc::pthread_setspecific(last_key(), std::ptr::dangling::<u8>().cast()) };
    let Begin { start, argument, .. } = *begin;
    outrigger_clock::with(Arc::new(Virtual), || start(argument))
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let create = CREATE.get();
    if !scheduler::is_simulated() {
        // SAFETY: as of the caller's.
        return unsafe { create(thread, attributes, start, argument) };
    }
    let number = scheduler::begin_thread();
    let baton = scheduler::baton_of(number);
    let argument = Box::into_raw(Box::new(Begin { number, baton, start, argument }));
    // SAFETY: as of the caller's; `begin` takes the box.
    let failed = unsafe { create(thread, attributes, begin, argument.cast()) };
    // SAFETY: it has been written if the thread was started.
    scheduler::started(number, (failed == 0).then(|| unsafe { *thread }));
    failed
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int {
    if scheduler::is_simulated() {
        scheduler::join(thread);
    }
    // SAFETY: as of the caller's.
    unsafe { JOIN.get()(thread, value) }
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !scheduler::is_simulated() {
        // SAFETY: as of the caller's.
        return unsafe { SLEEP.get()(time, left) };
    }
    // SAFETY: the caller has a time there.
    scheduler::sleep(nanos(unsafe { *time }));
    0
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !scheduler::is_simulated() {
        // SAFETY: as of the caller's.
        return unsafe { SLEEP_BY.get()(clock, flags, time, left) };
    }
    // SAFETY: the caller has a time there.
    let time = nanos(unsafe { *time });
    let begun = if flags & libc::TIMER_ABSTIME == 0 { 0 } else { scheduler::monotonic() };
    scheduler::sleep(time.saturating_sub(begun));
    0
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let now = match clock {
        libc::CLOCK_MONOTONIC if scheduler::is_simulated() => scheduler::monotonic(),
        libc::CLOCK_REALTIME if scheduler::is_simulated() => scheduler::wall(),
        // SAFETY: as of the caller's.
        _ => return unsafe { TIME.get()(clock, time) },
    };
    let now = timespec { tv_sec: (now / 1_000_000_000) as i64, tv_nsec: (now % 1_000_000_000) as i64 };
    // SAFETY: the caller has room for a time there.
    unsafe { time.write(now) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    if !scheduler::is_simulated() {
        // SAFETY: it takes nothing.
        return unsafe { YIELD.get()() };
    }
    scheduler::point();
    0
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(bytes: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if !scheduler::is_simulated() {
        // SAFETY: as of the caller's.
        return unsafe { RANDOM.get()(bytes, len, flags) };
    }
    // SAFETY: the caller has a buffer of this length there.
    scheduler::random(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), len) });
    len as ssize_t
}

/// Ignores locks between processes on the database's file, because a simulation has one process:
/// they cost more system calls than everything else. The library's function takes any number of
/// arguments. This one takes the three that are ever given.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(file: c_int, command: c_int, argument: usize) -> c_int {
    if command == libc::F_SETLK && scheduler::is_simulated() {
        return 0;
    }
    // SAFETY: as of the caller's.
    unsafe { CONTROL.get()(file, command, argument) }
}

/// How many of `len` bytes a file takes: fewer if it lies in the directory of a simulated host
/// whose disk is full.
fn takes(file: c_int, len: size_t) -> Result<size_t, c_long> {
    if !disks::is_full() {
        return Ok(len);
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{file}")).unwrap_or_default();
    if !disks::is_of_a_host(&path) {
        return Ok(len);
    }
    disks::take(len).map_err(|_| fail(libc::ENOSPC))
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match takes(file, len) {
        // SAFETY: as of the caller's.
        Ok(len) => unsafe { WRITE.get()(file, bytes, len) },
        Err(failed) => failed as ssize_t,
    }
}

/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(file: c_int, bytes: *const c_void, len: size_t, at: i64) -> ssize_t {
    match takes(file, len) {
        // SAFETY: as of the caller's.
        Ok(len) => unsafe { WRITE_AT.get()(file, bytes, len, at) },
        Err(failed) => failed as ssize_t,
    }
}

/// To other hosts, all programs of a simulated host are one process.
#[unsafe(no_mangle)]
extern "C" fn getpid() -> c_int {
    if scheduler::is_simulated() {
        return 1_000_000 + scheduler::own_host() as c_int;
    }
    // SAFETY: it takes nothing.
    unsafe { SYSCALL.get()(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as c_int }
}
