//! Runs one thread at a time, in an order given by the seed. Time passes only while all threads
//! wait.
//!
//! The threads are real. Each has a *baton*, a word that it waits on. The running thread has it,
//! and passes it on at its next *point*, where it would wait for a lock, a channel, a thread or the
//! time. The scheduler then draws the next thread among those that can run. If none can, virtual
//! time jumps to the earliest deadline; without a deadline the run has deadlocked. Only the thread
//! with the baton touches the scheduler's state, so that needs no lock.
//!
//! A thread belongs to a *host*, as do the threads that it starts. A paused host gets no baton. A
//! killed one never gets it again, and drops nothing, like a killed process.

mod simulation;
mod time;

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::real;
use simulation::{Host, Looks, Simulation, State, Thread};
pub(crate) use time::Virtual;

/// A machine of the simulation. The first one is the world itself, which arranges everything.
pub type HostId = usize;

/// The world's number.
pub const WORLD: HostId = 0;

/// The time at which the simulation begins: nanoseconds since 1970.
const BEGINS: u64 = 1_800_000_000_000_000_000;
/// Processor time from one point to the next.
const STEP_NANOS: u64 = 1_000;

struct Place(UnsafeCell<Option<Simulation>>);

// SAFETY: only the thread that has the baton looks into it.
#[expect(unsafe_code, reason = "the baton is the lock")]
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(None));

thread_local! {
    /// The number of this thread in the simulation, from 1; 0 outside.
    static ME: Cell<usize> = const { Cell::new(0) };
    /// True while this thread does a step of a simulated server, which must not be interrupted.
    static WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// The trace of a run, to compare with another run of the same seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// A digest of the schedule.
    pub trace: u64,
    /// Points at which a thread was chosen.
    pub points: u64,
    /// Virtual time that passed.
    pub time: Duration,
}

#[expect(unsafe_code, reason = "the baton is the lock")]
fn state<T>(f: impl FnOnce(&mut Simulation) -> T) -> T {
    debug_assert!(is_simulated());
    // SAFETY: the caller has the baton, and `f` calls nothing that comes here.
    let simulation = unsafe { &mut *PLACE.0.get() };
    f(simulation.as_mut().expect("a simulation runs"))
}

/// True in a thread of a simulation.
pub fn is_simulated() -> bool {
    ME.get() != 0
}

/// Lets another thread run while this one waits. Returns true if it was woken, false at its
/// deadline.
fn wait(waits: State) -> bool {
    let me = ME.get() - 1;
    let (next, baton) = state(|simulation| {
        simulation.put(me, waits);
        simulation.now += STEP_NANOS;
        let next = simulation.choose();
        let kind = match waits {
            State::Ready => 1,
            State::Word(..) => 2,
            State::Until(_) => 3,
            State::Thread(_) => 4,
            State::Done => 5,
        };
        for value in [simulation.now, next as u64, kind] {
            simulation.trace = (simulation.trace ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
        }
        simulation.points += 1;
        simulation.threads[next].state = State::Ready;
        (next, std::ptr::from_ref(&*simulation.threads[next].baton))
    });
    if next != me {
        let own = state(|simulation| std::ptr::from_ref(&*simulation.threads[me].baton));
        real::give(baton);
        if waits == State::Done {
            return true;
        }
        real::take(own);
    }
    state(|simulation| simulation.threads[me].woken)
}

/// A point: another thread may run now.
pub fn point() {
    if is_simulated() && !WHOLE.get() {
        wait(State::Ready);
    }
}

/// Sometimes a point.
fn seldom() {
    if !WHOLE.get() && state(|simulation| simulation.draw()) % 16 == 0 {
        wait(State::Ready);
    } else {
        // Otherwise a thread that polls the time until it is later would poll for ever.
        state(|simulation| simulation.now += STEP_NANOS);
    }
}

/// Runs `f` without a point in it, like a server that serves one request after the other.
pub fn whole<T>(f: impl FnOnce() -> T) -> T {
    let before = WHOLE.replace(true);
    let value = f();
    WHOLE.set(before);
    value
}

/// A number below `end`, chosen by the seed.
pub fn below(end: u64) -> u64 {
    state(|simulation| simulation.draw()) % end.max(1)
}

/// Virtual time since the beginning.
pub fn elapsed() -> Duration {
    Duration::from_nanos(state(|simulation| simulation.now))
}

/// The points so far, and their digest.
pub fn ran() -> Ran {
    state(|simulation| Ran {
        trace: simulation.trace,
        points: simulation.points,
        time: Duration::from_nanos(simulation.now),
    })
}

/// Adds a host.
pub fn add_host() -> HostId {
    state(|simulation| {
        simulation.hosts.push(Host::default());
        simulation.hosts.len() - 1
    })
}

/// Stops the host's threads, or lets them go on.
pub fn pause(host: HostId, paused: bool) {
    state(|simulation| simulation.hosts[host].paused = paused);
}

/// Stops the host's threads for so long.
pub fn pause_for(host: HostId, time: Duration) {
    pause(host, true);
    spawn_on(WORLD, move || {
        outrigger_clock::sleep(time);
        pause(host, false);
    });
}

/// The host of this thread.
pub fn own_host() -> HostId {
    let me = ME.get() - 1;
    state(|simulation| simulation.threads[me].host)
}

/// Stops the host's threads for ever. Their memory stays, and nothing reads it again.
pub fn kill(host: HostId) {
    state(|simulation| {
        simulation.hosts[host].dead = true;
        let Simulation { threads, ready, deadlines, waiting, joining, .. } = simulation;
        let lives = |number: &usize| threads[*number].host != host;
        ready.retain(lives);
        joining.retain(lives);
        deadlines.retain(|(_, number)| lives(number));
        waiting.values_mut().for_each(|numbers| numbers.retain(lives));
        waiting.retain(|_, numbers| !numbers.is_empty());
    });
}

/// Sets the host's wall clock so many nanoseconds ahead.
pub fn skew(host: HostId, nanos: i64) {
    state(|simulation| simulation.hosts[host].skew = nanos);
}

/// Starts a thread on another host.
pub fn spawn_on<T: Send + 'static>(
    host: HostId,
    f: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let me = ME.get() - 1;
    let own = state(|simulation| std::mem::replace(&mut simulation.threads[me].host, host));
    // Without a point in it.
    let handle = whole(|| std::thread::spawn(f));
    state(|simulation| simulation.threads[me].host = own);
    handle
}

/// For a thread that polls whether something is new: nothing will be before `until`, unless
/// [`something_is_new`] says so. The wait before its next poll may last until then.
pub fn nothing_is_new_until(until: Duration) {
    let me = ME.get() - 1;
    state(|simulation| simulation.threads[me].looks = Looks::Not(until.as_nanos() as u64));
}

/// All threads poll again at their next time.
pub fn something_is_new() {
    state(Simulation::end_skipping);
}

/// Sets the processor for this process's simulations, counted among the allowed ones. Only one
/// thread runs at a time, and handing over is cheapest on one processor.
pub fn run_on(processor: usize) {
    PROCESSOR.store(processor, Relaxed);
}

static PROCESSOR: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Runs `f` as the world of a simulation. A process runs one at a time. Threads that `f` leaves
/// behind stop for ever.
///
/// # Panics
/// When `f` does, or another simulation runs.
pub fn run<T: Send>(seed: u64, f: impl FnOnce() -> T + Send) -> T {
    assert!(!is_simulated(), "a simulation in a simulation");
    // A new thread each time, so that thread-local state, such as the keys of hash maps, is the
    // same.
    let world = std::thread::scope(|scope| scope.spawn(|| be_world(seed, f)).join());
    world.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[expect(unsafe_code, reason = "the baton is the lock")]
fn be_world<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let simulation = Simulation {
        now: 0,
        random: seed,
        trace: 0,
        points: 0,
        threads: vec![Thread::new(WORLD, real::own_handle())],
        hosts: vec![Host::default()],
        ready: Vec::new(),
        deadlines: BTreeSet::new(),
        waiting: BTreeMap::new(),
        joining: Vec::new(),
    };
    real::stay_on(PROCESSOR.load(Relaxed));
    // SAFETY: no simulation runs: this thread makes it and has its baton. The state of an earlier
    // one stays, because its stopped threads refer to it.
    unsafe { std::mem::forget((*PLACE.0.get()).replace(simulation)) };
    ME.set(1);
    let value = outrigger_clock::with(std::sync::Arc::new(Virtual), f);
    ME.set(0);
    value
}

// ---- what the shim calls ------------------------------------------------------------------------------------------

pub(crate) fn monotonic() -> u64 {
    seldom();
    state(|simulation| simulation.now)
}

pub(crate) fn wall() -> u64 {
    seldom();
    let me = ME.get() - 1;
    state(|simulation| {
        let skew = simulation.hosts[simulation.threads[me].host].skew;
        (BEGINS + simulation.now).saturating_add_signed(skew)
    })
}

/// The wall clock of the simulated database.
pub fn database_time() -> u64 {
    state(|simulation| BEGINS + simulation.now)
}

pub(crate) fn sleep(nanos: u64) {
    let until = state(|simulation| simulation.now.saturating_add(nanos));
    wait(State::Until(until));
}

/// Waits for a word whose value was checked before. Returns false at the deadline.
pub(crate) fn wait_for_word(address: usize, until: Option<u64>) -> bool {
    assert!(!WHOLE.get(), "a step of a simulated server waits");
    let me = ME.get() - 1;
    let until = until.map(|until| state(|simulation| simulation.put_off(me, until)));
    wait(State::Word(address, until))
}

/// Wakes so many waiters of a word, in an order chosen by the seed.
pub(crate) fn wake_word(address: usize, most: usize) -> usize {
    let woken = state(|simulation| {
        for count in 0..most {
            let Some(waiting) = simulation.waiting.get(&address).map(Vec::len) else { return count };
            let drawn = (simulation.draw() % waiting as u64) as usize;
            simulation.wake(simulation.waiting[&address][drawn], true);
        }
        most
    });
    // Mostly the waking thread goes on, as on a machine with several processors.
    if woken > 0 && state(|simulation| simulation.draw()) % 3 == 0 {
        point();
    }
    woken
}

/// Registers a thread that this one is about to start.
pub(crate) fn begin_thread() -> usize {
    let me = ME.get() - 1;
    state(|simulation| {
        let host = simulation.threads[me].host;
        simulation.threads.push(Thread::new(host, 0));
        let number = simulation.threads.len();
        simulation.ready.push(number - 1);
        number
    })
}

/// Records that the thread was started, or not.
pub(crate) fn started(number: usize, handle: Option<libc::pthread_t>) {
    state(|simulation| match handle {
        Some(handle) => simulation.threads[number - 1].handle = handle,
        None => {
            simulation.ready.retain(|&ready| ready != number - 1);
            simulation.threads[number - 1].state = State::Done;
        }
    });
    point();
}

/// The first step of a new thread.
pub(crate) fn enter_thread(number: usize, baton: *const AtomicU32) {
    real::take(baton);
    ME.set(number);
}

/// The baton of a new thread.
pub(crate) fn baton_of(number: usize) -> *const AtomicU32 {
    state(|simulation| std::ptr::from_ref(&*simulation.threads[number - 1].baton))
}

/// The last step of a thread.
pub(crate) fn leave_thread() {
    if is_simulated() {
        wait(State::Done);
        ME.set(0);
    }
}

/// Waits until another thread has left.
pub(crate) fn join(handle: libc::pthread_t) {
    let found = state(|simulation| simulation.threads.iter().rposition(|thread| thread.handle == handle));
    if let Some(number) = found {
        while state(|simulation| simulation.threads[number].state != State::Done) {
            wait(State::Thread(number));
        }
    }
}

pub(crate) fn random(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        let drawn = state(|simulation| simulation.draw()).to_le_bytes();
        chunk.copy_from_slice(&drawn[..chunk.len()]);
    }
}

/// The deadline of a wait that lasts so long from now.
pub(crate) fn after(nanos: u64) -> u64 {
    state(|simulation| simulation.now.saturating_add(nanos))
}
