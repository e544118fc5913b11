//! A bounded number of open connections: a caller that needs one more waits until one comes back.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::connection::Connection;
use super::location::Location;
use super::sealing::Seals;
use super::servers::{CONNECT, Servers};
use super::tls::Tls;
use crate::error::Result;
use crate::health::Health;
use crate::meta::Sealer;

/// The connections of an engine.
pub(super) struct Pool {
    pub location: Location,
    pub seals: Seals,
    tls: Tls,
    servers: Servers,
    state: Mutex<State>,
    /// The name of connections in the server's list of activities.
    label: OnceLock<String>,
    returned: Condvar,
    /// Judged by new connections: a caller that loses one makes another.
    pub health: Health,
}

struct State {
    idle: Vec<Connection>,
    /// Connections on loan.
    lent: usize,
}

impl Pool {
    /// No connections yet.
    ///
    /// # Errors
    /// When a certificate cannot be read.
    pub fn new(location: Location) -> Result<Self> {
        Self::with(location, None)
    }

    /// As [`Pool::new`], of an engine that has this sealer.
    ///
    /// # Errors
    /// As there.
    pub fn with(location: Location, sealer: Option<Sealer>) -> Result<Self> {
        let tls = Tls::new(&location)?;
        let state = Mutex::new(State { idle: Vec::new(), lent: 0 });
        let (label, returned) = (OnceLock::new(), Condvar::new());
        let health = Health::new(location.patience);
        let (seals, servers) = (Seals::new(sealer), Servers::default());
        Ok(Self { location, seals, tls, servers, state, label, returned, health })
    }

    /// Gives connections a name that tells an administrator whose they are. Only the first call
    /// counts.
    pub fn call(&self, name: String) {
        let _ = self.label.set(name);
    }

    /// A connection on loan: the one used last, or a new one.
    ///
    /// # Errors
    /// When a new one cannot be made.
    pub fn get(&self) -> Result<Lent<'_>> {
        self.get_within(CONNECT)
    }

    /// As [`Pool::get`]; a new one is tried to be made for so long.
    ///
    /// # Errors
    /// As there.
    pub fn get_within(&self, within: Duration) -> Result<Lent<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = loop {
            if let Some(connection) = state.idle.pop() {
                if connection.is_lost() {
                    continue;
                }
                break Some(connection);
            }
            if state.lent < self.location.connections {
                break None;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.lent += 1;
        drop(state);
        // From here on its drop counts it back.
        let mut lent = Lent { connection: None, pool: self };
        lent.connection = Some(match kept {
            Some(connection) => connection,
            None => self.open(within)?,
        });
        if let Some(name) = self.label.get() {
            lent.bear(name);
        }
        Ok(lent)
    }

    fn open(&self, within: Duration) -> Result<Connection> {
        let opening = self.health.begin();
        let mut opened = self.servers.connect(&self.location, &self.tls, within);
        if let Ok(connection) = &mut opened {
            connection.seals = self.seals.clone();
        }
        drop(opening);
        match &opened {
            Ok(_) => self.health.works(),
            Err(error) => self.health.fails(&error.to_string()),
        }
        opened
    }

    /// Drops idle connections, which may be lost, too, if the server was restarted.
    pub fn forget_idle(&self) {
        self.servers.doubt();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).idle.clear();
    }
}

/// A connection on loan.
pub(super) struct Lent<'p> {
    connection: Option<Connection>,
    pool: &'p Pool,
}

impl Lent<'_> {
    /// It is not fit to be used again.
    pub fn discard(mut self) {
        self.connection = None;
    }
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("it is taken out when dropped only")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is taken out when dropped only")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lent -= 1;
        let kept = self.connection.take().filter(|connection| !connection.is_lost());
        state.idle.extend(kept);
        self.pool.returned.notify_one();
    }
}
