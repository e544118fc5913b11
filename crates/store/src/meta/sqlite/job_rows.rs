//! Rows of jobs in SQLite, for the rules that both engines share. Whoever has a transaction that
//! writes is alone, so nothing is locked.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_format::Root;
use rusqlite::{Connection, OptionalExtension as _, Params};

use super::sessions::lives;
use super::{Moment, jobs, reclaim, row};
use crate::meta::SessionId;
use crate::meta::fault::Outcome;
use crate::meta::jobs::rules::{Finished, JobRows, Lock, NewOutput, Running};
use crate::meta::jobs::{JobId, JobState, OPEN_END, SplitState, job_holder};

/// Rows in the transaction that the connection is in.
pub(super) struct SqliteJobs<'a> {
    pub db: &'a Connection,
    pub now: Moment,
}

impl SqliteJobs<'_> {
    fn write(&self, sql: &str, values: impl Params) -> Outcome<()> {
        self.db.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }
}

impl JobRows for SqliteJobs<'_> {
    fn state(&mut self, job: JobId, _: Lock) -> Outcome<Option<JobState>> {
        let sql = "SELECT state FROM job WHERE id = ?1";
        let mut select = self.db.prepare_cached(sql)?;
        let state = select.query_row([job.0 as i64], |row| row.get(0)).optional()?;
        state.map(JobState::of).transpose()
    }

    fn set_state(&mut self, job: JobId, state: JobState, why: &str) -> Outcome<()> {
        let sql = "UPDATE job SET state = ?2, why = ?3, changed = ?4 WHERE id = ?1";
        self.write(sql, (job.0 as i64, state as i64, why, self.now.wall as i64))
    }

    fn set_made(&mut self, job: JobId, made: &str) -> Outcome<()> {
        self.write("UPDATE job SET made = ?2 WHERE id = ?1", (job.0 as i64, made))
    }

    fn running(&mut self, job: JobId, splits: &BTreeSet<u64>) -> Outcome<BTreeMap<u64, Running>> {
        let sql = "SELECT attempt, session, primary_attempt, primary_session, tries, input, first, after \
                   FROM job_split WHERE job = ?1 AND number = ?2 AND state = 1";
        let mut select = self.db.prepare_cached(sql)?;
        let mut found = BTreeMap::new();
        for &split in splits {
            let running = select.query_row((job.0 as i64, split as i64), |row| {
                let session = |number: i64| SessionId(number as u64);
                let primary: Option<(i64, i64)> = row.get::<_, Option<i64>>(2)?.zip(row.get(3)?);
                Ok(Running {
                    range: jobs::range(row, 5)?,
                    attempt: row.get::<_, i64>(0)? as u64,
                    tries: row.get::<_, i64>(4)? as u64,
                    session: session(row.get(1)?),
                    primary: primary.map(|(attempt, of)| (attempt as u64, session(of))),
                })
            });
            found.extend(running.optional()?.map(|running| (split, running)));
        }
        Ok(found)
    }

    fn set_attempts(&mut self, job: JobId, split: u64, to: &Running) -> Outcome<()> {
        let sql = "UPDATE job_split SET attempt = ?3, session = ?4, primary_attempt = ?5, primary_session = ?6 \
                   WHERE job = ?1 AND number = ?2";
        let (attempt, session) = (to.attempt as i64, to.session.0 as i64);
        let primary = to.primary.map(|(attempt, _)| attempt as i64);
        let of = to.primary.map(|(_, of)| of.0 as i64);
        self.write(sql, (job.0 as i64, split as i64, attempt, session, primary, of))
    }

    fn stop(&mut self, job: JobId, split: u64, state: SplitState, tries: u64) -> Outcome<()> {
        let sql = "UPDATE job_split SET state = ?3, tries = ?4, primary_attempt = NULL, primary_session = NULL \
                   WHERE job = ?1 AND number = ?2";
        self.write(sql, (job.0 as i64, split as i64, state as i64, tries as i64))
    }

    fn set_why(&mut self, job: JobId, split: u64, why: &str, log: &[u8]) -> Outcome<()> {
        let sql = "UPDATE job_split SET why = ?3, log = ?4 WHERE job = ?1 AND number = ?2";
        self.write(sql, (job.0 as i64, split as i64, why, log))
    }

    fn is_live(&mut self, session: SessionId) -> Outcome<bool> {
        let sql = concat!("SELECT 1 FROM session WHERE id = ?1 AND ", lives!("?2"));
        Ok(self.db.prepare_cached(sql)?.exists((session.0 as i64, self.now.steady as i64))?)
    }

    fn is_unfinished(&mut self, job: JobId) -> Outcome<bool> {
        let sql = "SELECT 1 FROM job_split WHERE job = ?1 AND state < 2 LIMIT 1";
        Ok(self.db.prepare_cached(sql)?.exists([job.0 as i64])?)
    }

    fn is_open(&mut self, job: JobId, input: Option<u32>) -> Outcome<bool> {
        let sql = "SELECT 1 FROM job_split WHERE job = ?1 AND input IS ?2 AND after = ?3";
        Ok(self.db.prepare_cached(sql)?.exists((job.0 as i64, input, OPEN_END as i64))?)
    }

    fn set_end(&mut self, job: JobId, input: Option<u32>, end: u64) -> Outcome<()> {
        let sql = "UPDATE job_split SET after = ?3 WHERE job = ?1 AND input IS ?2 AND after = ?4";
        self.write(sql, (job.0 as i64, input, end as i64, OPEN_END as i64))
    }

    fn set_input_root(&mut self, job: JobId, input: u32, root: &Root) -> Outcome<()> {
        let sql = "UPDATE job_input SET root = ?3 WHERE job = ?1 AND number = ?2";
        self.write(sql, (job.0 as i64, input, row::root_column(root)))
    }

    fn void_input(&mut self, job: JobId, input: Option<u32>) -> Outcome<()> {
        let sql = "UPDATE job_split SET state = 0, attempt = attempt + 1, tries = 0, measured = NULL, \
                   primary_attempt = NULL, primary_session = NULL \
                   WHERE job = ?1 AND input IS ?2 AND state IN (1, 2)";
        self.write(sql, (job.0 as i64, input))
    }

    fn void_running(&mut self, job: JobId) -> Outcome<()> {
        let sql = "UPDATE job_split SET state = 0, attempt = attempt + 1, primary_attempt = NULL, \
                   primary_session = NULL WHERE job = ?1 AND state = 1";
        self.write(sql, [job.0 as i64])
    }

    fn wait_again(&mut self, job: JobId) -> Outcome<()> {
        let sql = "UPDATE job_split SET state = 0, tries = 0 WHERE job = ?1 AND state <> 2";
        self.write(sql, [job.0 as i64])
    }

    fn add_outputs(&mut self, job: JobId, outputs: &[NewOutput<'_>]) -> Outcome<()> {
        let sql = "INSERT INTO job_output (job, split, attempt, name, root) VALUES (?1, ?2, ?3, ?4, ?5) \
                   ON CONFLICT DO UPDATE SET root = excluded.root";
        for &NewOutput { split, attempt, name, root } in outputs {
            let root_column = row::root_column(root);
            self.write(sql, (job.0 as i64, split as i64, attempt as i64, name, root_column))?;
            self.hold(&job_holder(job), root)?;
        }
        Ok(())
    }

    fn finish(&mut self, job: JobId, session: SessionId, finished: &[Finished<'_>]) -> Outcome<()> {
        // With two attempts at a split, what the other one wrote was nobody's output: the split has
        // this one's number now.
        let sql = "UPDATE job_split SET state = 2, why = '', log = ?3, attempt = ?4, session = ?5, measured = ?6, \
                   primary_attempt = NULL, primary_session = NULL WHERE job = ?1 AND number = ?2";
        for &Finished { split, attempt, log, measured } in finished {
            let log = (!log.is_empty()).then_some(log);
            let values = (job.0 as i64, split as i64, log, attempt as i64, session.0 as i64, measured);
            self.write(sql, values)?;
        }
        Ok(())
    }

    fn clear(&mut self, job: JobId) -> Outcome<()> {
        self.write("DELETE FROM job_output WHERE job = ?1", [job.0 as i64])?;
        self.write("UPDATE job_input SET root = NULL WHERE job = ?1", [job.0 as i64])
    }

    fn remove(&mut self, job: JobId) -> Outcome<()> {
        for sql in [
            "DELETE FROM job_output WHERE job = ?1",
            "DELETE FROM job_split WHERE job = ?1",
            "DELETE FROM job_input WHERE job = ?1",
            "DELETE FROM job WHERE id = ?1",
        ] {
            self.write(sql, [job.0 as i64])?;
        }
        Ok(())
    }

    fn hold(&mut self, holder: &str, root: &Root) -> Outcome<()> {
        reclaim::hold(self.db, holder, std::slice::from_ref(root))
    }

    fn release(&mut self, holder: &str) -> Outcome<()> {
        reclaim::let_go(self.db, holder, None)
    }
}
