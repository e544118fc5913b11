//! The life of a host from its start until it is killed: its programs, and the mount that they
//! share.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrigger_workload::history::Action;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cluster::{Cluster, Machine, reclaim};
use crate::history::{Failure, names};
use crate::host::{self, Done, Host};
use crate::program::{Program, place};
use crate::scheduler;
use crate::script::{DIRS, Op};
use crate::work;

/// How often an operation is retried that fails although nothing is wrong any more.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Life {
    cluster: Arc<Cluster>,
    host: usize,
    number: usize,
    mount: Mutex<Option<Arc<Host>>>,
    /// Programs that still have something to do.
    left: Mutex<usize>,
}

/// An operation of a program.
struct Doing<'a> {
    life: &'a Life,
    mount: &'a Host,
    program: usize,
    number: u64,
}

impl Life {
    pub fn new(cluster: Arc<Cluster>, host: usize, number: usize) -> Self {
        let left = cluster.machines[host].lines.len();
        Self { cluster, host, number, mount: Mutex::default(), left: Mutex::new(left) }
    }

    fn machine(&self) -> &Machine {
        &self.cluster.machines[self.host]
    }

    /// A program: one operation after the other on a mount, which is replaced when it is no longer
    /// of use.
    pub fn work(&self, program: usize) {
        let line = &self.machine().lines[program];
        loop {
            let next = line.next.fetch_add(1, Relaxed);
            let Some((at, op)) = line.ops.get(next) else { break };
            outrigger_clock::sleep(at.saturating_sub(scheduler::elapsed()));
            if let Op::Agent(secs, slots, until_idle) = *op {
                line.since.store(scheduler::elapsed().as_micros() as usize, Relaxed);
                // Splits that it leaves are run by other agents, or at the end.
                let _ = self.agent(Duration::from_secs(secs), slots, until_idle);
                line.since.store(0, Relaxed);
                continue;
            }
            let mount = self.mount();
            line.since.store(scheduler::elapsed().as_micros() as usize, Relaxed);
            let doing = Doing { life: self, mount: &mount, program, number: 4 * next as u64 };
            let done = doing.operate(op);
            line.since.store(0, Relaxed);
            self.note(&mount, done);
            if done == Err(Errno::STALE) {
                // Its session is over: unacknowledged data is lost.
                let mut current = self.mount.lock().expect("no panic while held");
                current.take_if(|current| Arc::ptr_eq(current, &mount));
            }
        }
        let mut left = self.left.lock().expect("no panic while held");
        *left -= 1;
        if *left == 0
            && let Some(mount) =
                self.mount.lock().expect("no panic while held").take().and_then(Arc::into_inner)
        {
            // Data that cannot be stored was not acknowledged.
            let _ = mount.volume.close(|| ());
        }
    }

    /// Runs the host's agent with its own store in the same directory, because it is another
    /// process.
    fn agent(&self, time: Duration, slots: usize, until_idle: bool) -> Done<()> {
        let machine = self.machine();
        let store = host::store(&self.cluster.servers, &machine.dir, &machine.condition);
        let (store, stop) = (Arc::new(store.map_err(|_| Errno::IO)?), Arc::<AtomicBool>::default());
        let stops = Arc::clone(&stop);
        std::thread::spawn(move || {
            outrigger_clock::sleep(time);
            stops.store(true, Relaxed);
        });
        work::agent(&store, &format!("a{}", self.host), slots, until_idle, &stop)
    }

    /// The mount. If there is none, this tries to make one until it works.
    fn mount(&self) -> Arc<Host> {
        let machine = self.machine();
        let mut mount = self.mount.lock().expect("no panic while held");
        if mount.is_none() {
            let made = loop {
                match Host::mount(&self.cluster.servers, &machine.dir, &machine.condition) {
                    Ok(made) => break made,
                    Err(_) => outrigger_clock::sleep(Duration::from_secs(7)),
                }
            };
            *mount = Some(Arc::new(made));
        }
        Arc::clone(mount.as_ref().expect("it is there"))
    }

    fn note(&self, mount: &Host, done: Done<()>) {
        self.note_damage(mount);
        let mut history = self.cluster.history();
        match done {
            Ok(()) => history.done.0 += 1,
            Err(_) => history.done.1 += 1,
        }
    }

    /// Records a mount's reports of damage.
    fn note_damage(&self, mount: &Host) {
        let damage = std::mem::take(&mut *mount.damage.lock().expect("no panic while held"));
        for what in damage {
            let is_excused = self.cluster.is_hit(self.host, &what);
            let what = format!("host {} reports damage: {what}", self.host);
            self.cluster.history().damage.push((what, is_excused));
        }
    }
}

impl Doing<'_> {
    fn host(&self) -> String {
        format!("h{}", self.life.host)
    }

    fn client(&self) -> String {
        format!("{}.{}-{}", self.host(), self.program, self.life.number)
    }

    fn program(&self, part: u64) -> Program<'_> {
        let id = format!("{}/{}", self.client(), self.number + part);
        Program { host: self.mount, id, process: 1 + self.program as u64 }
    }

    fn begin(&self, part: u64, key: &str, action: Action) -> usize {
        self.life.cluster.history().begin(&self.client(), self.number + part, key, action)
    }

    /// Does the part of the operation with this number, and records it. Returns the call.
    fn act(&self, part: u64, key: &str, action: Action, len: usize) -> (usize, Result<String, Failure>) {
        let call = self.begin(part, key, action);
        let done = self.program(part).act(key, action, len);
        self.life.cluster.history().end(call, &done);
        (call, done)
    }

    fn operate(&self, op: &Op) -> Done<()> {
        let errno = |failure: Failure| failure.errno();
        match op {
            Op::Do(key, action, len) => self.act(0, key, *action, *len).1.map(drop).map_err(errno),
            Op::Sync(key, len, secs) => self.sync(key, *len, *secs).map_err(errno),
            Op::Hold(key, len) => self.hold(key, *len),
            Op::List => self.mount.list("").map(drop),
            Op::Snapshot(id) => {
                let time = outrigger_clock::now_nanos();
                let taken = self.mount.store.meta.create_snapshot(&format!("s{id}"), time, &[]);
                taken.map(drop).map_err(|_| Errno::IO)
            }
            Op::Ask(asked) => work::ask(&self.life.cluster, self.mount, asked),
            Op::Cancel(id) => work::cancel(&self.life.cluster, self.mount, *id),
            Op::Drain(host) => work::drain(self.mount, &format!("a{host}")),
            Op::Agent(..) => Ok(()),
            Op::Collect => reclaim(&self.life.cluster, self.life.host, self.mount).map_err(|_| Errno::IO),
        }
    }

    /// Written data counts as stored once the sync has returned. The close comes later.
    fn sync(&self, key: &str, len: usize, secs: u64) -> Result<(), Failure> {
        let call = self.begin(0, key, Action::Write);
        let (file, done) = match self.program(0).write(key, len) {
            Ok(file) => {
                let done = file.sync().map(|()| "ok".into()).map_err(Failure::After);
                (Some(file), done)
            }
            Err(failure) => (None, Err(failure)),
        };
        self.life.cluster.history().end(call, &done);
        if let Some(file) = file {
            outrigger_clock::sleep(Duration::from_secs(secs));
            let _ = file.close(None);
        }
        done.map(drop)
    }

    /// An open file keeps its content if only this host takes its name, and its session is live.
    fn hold(&self, key: &str, len: usize) -> Done<()> {
        let since = self.act(0, key, Action::Replace, len).0;
        let session = self.mount.volume.session_id();
        let file = self.mount.open(key, OFlags::RDONLY)?;
        let before = file.read(0, 1 << 30);
        let done = self.act(1, key, Action::Replace, len).1;
        let _ = reclaim(&self.life.cluster, self.life.host, self.mount);
        let is_own = || {
            let others = self.life.cluster.history().others_changed(&self.host(), key, since);
            !others && self.mount.has(session)
        };
        let mut after = file.read(0, 1 << 30);
        for _ in 0..TRIES {
            if after.is_ok() || !is_own() {
                break;
            }
            outrigger_clock::sleep(PAUSE);
            after = file.read(0, 1 << 30);
        }
        let (number, is_own) = (file.number, is_own());
        let _ = file.close(None);
        self.life.note_damage(self.mount);
        let mut history = self.life.cluster.history();
        if !is_own {
            history.is_gone(number);
        }
        let is_rotten = || history.damage.iter().any(|(what, excused)| *excused && names(what, number));
        let who = format!("{key} was open in {}", self.client());
        match (&before, &after) {
            (Ok(before), Ok(after)) if before != after => {
                history.found.push(format!("{who}, and its content changed"));
            }
            (Ok(_), Err(errno)) if is_own && done.is_ok() && !is_rotten() => {
                history.found.push(format!("{who}, and cannot be read: {errno}"));
            }
            _ => {}
        }
        done.map(drop).map_err(|failure| failure.errno())
    }
}

/// Reads all keys after all changes have ended. A file for which `lost` is true may be unreadable.
pub(crate) fn final_looks(
    cluster: &Cluster,
    host: &Host,
    client: &str,
    lost: &dyn Fn(&str) -> bool,
) -> Result<(), String> {
    let (keys, mut number) = (cluster.history().keys(), 0);
    for key in keys {
        let looks = match key.as_bytes()[0] {
            b'm' => (0..DIRS).map(Action::Stat).collect(),
            b'n' | b'd' => vec![Action::Find],
            b'l' => vec![Action::Lines],
            _ => vec![Action::Read],
        };
        for action in looks {
            number += 1;
            let call = cluster.history().begin(client, number, &key, action);
            let program = Program { host, id: format!("{client}/{number}"), process: 1 };
            let done = program.act(&key, action, 0);
            cluster.history().end(call, &done);
            match done {
                Err(failure) if failure.errno() == Errno::IO && lost(&place(&key).0) => {}
                done => drop(done.map_err(|failure| format!("{key} cannot be read: {}", failure.errno()))?),
            }
        }
    }
    Ok(())
}
