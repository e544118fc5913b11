//! The C library's own functions behind the [`crate::shim`]. Batons are passed with them, outside
//! of simulated time.
#![expect(unsafe_code, reason = "this calls the C library")]

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use libc::{clockid_t, pthread_attr_t, pthread_t, size_t, ssize_t, timespec};

/// A function of the C library, of type `F`, that one of the shim hides.
pub(crate) struct Real<F> {
    name: &'static CStr,
    found: AtomicUsize,
    function: PhantomData<F>,
}

impl<F> Real<F> {
    const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<usize>());
        Self { name, found: AtomicUsize::new(0), function: PhantomData }
    }

    /// The function, which is looked up the first time.
    pub fn get(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found == 0 {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
            if found == 0 {
                // SAFETY: it ends the process.
                unsafe { libc::abort() }
            }
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: `F` is the type of the function of this name, and as large as an address.
        unsafe { std::mem::transmute_copy::<usize, F>(&found) }
    }
}

pub(crate) type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
pub(crate) type Start = extern "C" fn(*mut c_void) -> *mut c_void;
pub(crate) type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;
pub(crate) type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
pub(crate) type Sleep = unsafe extern "C" fn(*const timespec, *mut timespec) -> c_int;
pub(crate) type SleepBy = unsafe extern "C" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
pub(crate) type Time = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
pub(crate) type Yield = unsafe extern "C" fn() -> c_int;
pub(crate) type Control = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
pub(crate) type Random = unsafe extern "C" fn(*mut c_void, size_t, c_uint) -> ssize_t;
pub(crate) type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
pub(crate) type WriteAt = unsafe extern "C" fn(c_int, *const c_void, size_t, i64) -> ssize_t;

pub(crate) static SYSCALL: Real<Syscall> = Real::new(c"syscall");
pub(crate) static CREATE: Real<Create> = Real::new(c"pthread_create");
pub(crate) static JOIN: Real<Join> = Real::new(c"pthread_join");
pub(crate) static SLEEP: Real<Sleep> = Real::new(c"nanosleep");
pub(crate) static SLEEP_BY: Real<SleepBy> = Real::new(c"clock_nanosleep");
pub(crate) static TIME: Real<Time> = Real::new(c"clock_gettime");
pub(crate) static YIELD: Real<Yield> = Real::new(c"sched_yield");
pub(crate) static CONTROL: Real<Control> = Real::new(c"fcntl64");
pub(crate) static RANDOM: Real<Random> = Real::new(c"getrandom");
pub(crate) static WRITE: Real<Write> = Real::new(c"write");
pub(crate) static WRITE_AT: Real<WriteAt> = Real::new(c"pwrite64");

/// Gives a baton to the thread that waits for it.
pub(crate) fn give(baton: *const AtomicU32) {
    // SAFETY: batons are kept for as long as the process runs.
    let word = unsafe { &*baton };
    word.store(1, Ordering::Release);
    let (command, most) = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    // SAFETY: the word is there.
    unsafe { SYSCALL.get()(libc::SYS_futex, baton as usize, command as usize, most, 0, 0, 0) };
}

/// Waits for this thread's baton.
pub(crate) fn take(baton: *const AtomicU32) {
    // SAFETY: batons are kept for as long as the process runs.
    let word = unsafe { &*baton };
    let command = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    while word.swap(0, Ordering::Acquire) == 0 {
        // SAFETY: the word is there.
        unsafe { SYSCALL.get()(libc::SYS_futex, baton as usize, command as usize, 0, 0, 0, 0) };
    }
}

/// This thread.
pub(crate) fn own_handle() -> pthread_t {
    // SAFETY: it cannot fail.
    unsafe { libc::pthread_self() }
}

/// Binds this thread, and those that it starts, to one of their allowed processors: the one with
/// this number, or the present one.
pub(crate) fn stay_on(number: usize) {
    // SAFETY: a set of processors and a policy's parameters are plain data, and the calls fill or
    // read them.
    unsafe {
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&may), &raw mut may) != 0 {
            return;
        }
        let allowed: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &may)).collect();
        let here = libc::sched_getcpu() as usize;
        let chosen = if number == usize::MAX { here } else { allowed[number % allowed.len()] };
        let mut only: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(chosen, &mut only);
        libc::sched_setaffinity(0, size_of_val(&only), &raw const only);
        // A thread that gets the baton should start when its giver waits, and not before. That is
        // one switch instead of three.
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters);
    }
}

/// Closes the files below a directory, as the system does for a killed process. The threads that
/// had them open never run again.
pub(crate) fn close_below(directory: &std::path::Path) {
    let open: Vec<_> = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().collect();
    for entry in open {
        let leads = std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(directory));
        let number = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok());
        if let Some(number) = number.filter(|_| leads) {
            // SAFETY: no thread that can run refers to it.
            unsafe { libc::close(number) };
        }
    }
}
