//! A second server that follows the first by streaming replication, and may take over.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{PORT, Server, USER};

impl Server {
    /// Starts a standby that follows this server by streaming replication, with more lines of
    /// configuration.
    ///
    /// # Panics
    /// When that fails.
    pub fn standby(&self, config: &str) -> Self {
        let make = || -> io::Result<Self> {
            let (standby, config) = Self::lay(self.binaries.clone(), |_| Ok(config.to_owned()))?;
            let mut copy = Command::new(self.binaries.join("pg_basebackup"));
            copy.args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-U", USER]);
            copy.args(["-p", &PORT.to_string(), "-h"]).arg(&self.dir).arg("-D").arg(standby.data());
            standby.carry_out(&mut copy)?;
            standby.configure(&config)?;
            standby.run()?;
            Ok(standby)
        };
        make().unwrap_or_else(|error| panic!("no standby: {error}"))
    }

    /// From now on commits are acknowledged only when a standby has them.
    ///
    /// # Panics
    /// When none confirms within a minute.
    pub fn wait_for_standbys(&self) {
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        let until = Instant::now() + Duration::from_secs(60);
        while self.sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "0" {
            assert!(Instant::now() < until, "no standby is synchronous");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes a standby a primary.
    ///
    /// # Panics
    /// When it does not become one.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t", "it was not promoted");
    }

    /// The URL of a store in a schema of this server or another one, whichever is the primary.
    pub fn url_with(&self, other: &Self, schema: &str) -> String {
        let (one, two) = (self.dir.display(), other.dir.display());
        format!("postgres://{USER}@/postgres?host={one},{two}&port={PORT}&schema={schema}")
    }
}
