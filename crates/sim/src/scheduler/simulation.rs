//! The scheduler's state: the wait of each thread, and the choice of the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::HostId;

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Ready,
    /// Waits for a wake of the word at an address, or for a deadline.
    Word(usize, Option<u64>),
    Until(u64),
    Thread(usize),
    Done,
}

pub(super) struct Thread {
    pub host: HostId,
    pub state: State,
    /// True if it was woken before its deadline.
    pub woken: bool,
    pub handle: libc::pthread_t,
    pub baton: Box<AtomicU32>,
    pub looks: Looks,
}

impl Thread {
    /// A thread that can run.
    pub fn new(host: HostId, handle: libc::pthread_t) -> Self {
        let (state, looks) = (State::Ready, Looks::Each);
        Self { host, state, woken: false, handle, baton: Box::default(), looks }
    }
}

/// How a thread polls that looks periodically whether something is new.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Looks {
    /// It looks each time.
    Each,
    /// Nothing will be new until then, so its next wait may last as long.
    Not(u64),
    /// It waits as long. It would have looked every so many nanoseconds since a time.
    Skipped { since: u64, every: u64 },
}

#[derive(Clone, Copy, Default)]
pub(super) struct Host {
    pub paused: bool,
    pub dead: bool,
    pub skew: i64,
}

pub(super) struct Simulation {
    pub now: u64,
    pub random: u64,
    pub trace: u64,
    pub points: u64,
    pub threads: Vec<Thread>,
    pub hosts: Vec<Host>,
    /// Threads that can run, also those of paused hosts.
    pub ready: Vec<usize>,
    /// Deadlines of waiting threads.
    pub deadlines: BTreeSet<(u64, usize)>,
    /// Threads that wait for a word, by its address.
    pub waiting: BTreeMap<usize, Vec<usize>>,
    /// Threads that wait for the end of another one.
    pub joining: Vec<usize>,
}

impl Simulation {
    pub fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn runs(&self, number: usize) -> bool {
        let host = self.hosts[self.threads[number].host];
        !host.paused && !host.dead
    }

    /// Changes the state of a thread: it waits from here on, or can run.
    pub fn put(&mut self, number: usize, state: State) {
        let thread = &mut self.threads[number];
        (thread.state, thread.woken) = (state, false);
        if state == State::Ready && matches!(thread.looks, Looks::Skipped { .. }) {
            thread.looks = Looks::Each;
        }
        match state {
            State::Ready => self.ready.push(number),
            State::Word(address, until) => {
                self.waiting.entry(address).or_default().push(number);
                self.deadlines.extend(until.map(|until| (until, number)));
            }
            State::Until(until) => drop(self.deadlines.insert((until, number))),
            State::Thread(_) => self.joining.push(number),
            State::Done => {
                let joins = |&other: &usize| self.threads[other].state == State::Thread(number);
                let (joined, left) = self.joining.iter().partition(|other| joins(other));
                let joined: Vec<usize> = joined;
                self.joining = left;
                joined.into_iter().for_each(|other| self.put(other, State::Ready));
            }
        }
    }

    /// Ends a thread's wait, because it was woken or its deadline has come.
    pub fn wake(&mut self, number: usize, woken: bool) {
        let state = self.threads[number].state;
        if let State::Word(address, _) = state
            && let Some(waiting) = self.waiting.get_mut(&address)
        {
            waiting.retain(|&other| other != number);
            if waiting.is_empty() {
                self.waiting.remove(&address);
            }
        }
        if let State::Word(_, Some(until)) | State::Until(until) = state {
            self.deadlines.remove(&(until, number));
        }
        self.put(number, State::Ready);
        self.threads[number].woken = woken;
    }

    /// The deadline of a wait, which is later if polls can be skipped.
    pub fn put_off(&mut self, number: usize, until: u64) -> u64 {
        let (now, thread) = (self.now, &mut self.threads[number]);
        match thread.looks {
            Looks::Not(later) if later > until && until > now => {
                thread.looks = Looks::Skipped { since: now, every: until - now };
                later
            }
            _ => until,
        }
    }

    /// Something is new: no poll is skipped from here on.
    pub fn end_skipping(&mut self) {
        for number in 0..self.threads.len() {
            let thread = &mut self.threads[number];
            let looks = std::mem::replace(&mut thread.looks, Looks::Each);
            if let (Looks::Skipped { since, every }, State::Word(address, Some(until))) =
                (looks, thread.state)
                && self.deadlines.remove(&(until, number))
            {
                let next = since + every * ((self.now - since) / every + 1);
                thread.state = State::Word(address, Some(until.min(next)));
                self.deadlines.insert((until.min(next), number));
            }
        }
    }

    /// The next thread to have the baton.
    pub fn choose(&mut self) -> usize {
        let is_paused = self.hosts.iter().any(|host| host.paused && !host.dead);
        loop {
            while let Some(due) = self.due().filter(|&(until, _)| until <= self.now) {
                self.wake(due.1, false);
            }
            let can = |at: &usize| !is_paused || self.runs(self.ready[*at]);
            let can: Vec<usize> = (0..self.ready.len()).filter(can).collect();
            if !can.is_empty() {
                let at = can[(self.draw() % can.len() as u64) as usize];
                return self.ready.swap_remove(at);
            }
            match self.due() {
                Some((until, _)) => self.now = until,
                None => self.deadlock(),
            }
        }
    }

    /// The earliest deadline.
    pub fn due(&self) -> Option<(u64, usize)> {
        self.deadlines.iter().find(|(_, number)| self.runs(*number)).copied()
    }

    pub fn deadlock(&self) -> ! {
        eprintln!(
            "deadlock at {:?}: nobody can run, and nobody waits for a time",
            Duration::from_nanos(self.now)
        );
        let left = self.threads.iter().enumerate().filter(|(number, _)| self.runs(*number));
        for (number, thread) in left.filter(|(_, thread)| thread.state != State::Done) {
            eprintln!("  thread {number} of host {} waits: {:?}", thread.host, thread.state);
        }
        std::process::exit(3);
    }
}
