//! Rows of jobs in PostgreSQL, for the rules that both engines share. What is written goes with the
//! next request.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_format::Root;
use tokio_postgres::types::Type;

use super::super::connection::{Query, Row};
use super::super::sealing::{Private, Subject};
use super::super::transaction::Tx;
use super::super::{counters, reclaim, row, sessions};
use super::{hold_all, read};
use crate::meta::SessionId;
use crate::meta::change::row::root_column;
use crate::meta::fault::Outcome;
use crate::meta::jobs::rules::{Finished, JobRows, Lock, NewOutput, Running};
use crate::meta::jobs::{JobId, JobState, OPEN_END, SplitState, job_holder};

/// A text of PostgreSQL cannot have a zero byte.
fn text(text: &str) -> String {
    text.replace('\0', " ")
}

fn of_job(sql: &'static str, job: JobId) -> Query {
    Query::new(sql).int(job.0 as i64)
}

fn of_split(sql: &'static str, job: JobId, split: u64) -> Query {
    of_job(sql, job).int(split as i64)
}

fn input_of(query: Query, input: Option<u32>) -> Query {
    query.with(input.map(u32::cast_signed), Type::INT4)
}

/// Rows in a transaction.
pub(in super::super) struct PostgresJobs<'a, 'p>(pub &'a mut Tx<'p>);

impl JobRows for PostgresJobs<'_, '_> {
    fn state(&mut self, job: JobId, lock: Lock) -> Outcome<Option<JobState>> {
        let sql = match lock {
            Lock::Share => "SELECT state FROM @job WHERE id = $1 FOR SHARE",
            Lock::Update => "SELECT state FROM @job WHERE id = $1 FOR UPDATE",
        };
        let answer = self.0.one(of_job(sql, job))?;
        answer.first().map(|row| JobState::of(row.try_get::<_, i32>(0)?.into())).transpose()
    }

    fn set_state(&mut self, job: JobId, state: JobState, why: &str) -> Outcome<()> {
        let sql =
            concat!("UPDATE @job SET state = $2, why = $3, changed = ", sessions::now!(), " WHERE id = $1");
        let subject = Subject::JobWhy { job: job.0 as i64 };
        self.0.later(of_job(sql, job).with(state as i32, Type::INT4).text(subject, &text(why)));
        Ok(())
    }

    fn set_made(&mut self, job: JobId, made: &str) -> Outcome<()> {
        let query = of_job("UPDATE @job SET made = $2 WHERE id = $1", job);
        self.0.later(query.text(Subject::JobMade { job: job.0 as i64 }, &text(made)));
        Ok(())
    }

    fn running(&mut self, job: JobId, splits: &BTreeSet<u64>) -> Outcome<BTreeMap<u64, Running>> {
        let sql = "SELECT number, input, first, after, attempt, tries, session, primary_attempt, primary_session \
                   FROM @job_split WHERE job = $1 AND number = ANY ($2) AND state = 1 ORDER BY number FOR UPDATE";
        let splits = splits.iter().map(|&split| split as i64).collect();
        let answer = self.0.one(of_job(sql, job).ints(splits))?;
        let running = |row: &Row| {
            let number =
                |column: usize| Ok::<u64, tokio_postgres::Error>(row.try_get::<_, i64>(column)? as u64);
            let session = |number: i64| SessionId(number as u64);
            let primary: Option<(i64, i64)> = row.try_get::<_, Option<i64>>(7)?.zip(row.try_get(8)?);
            let primary = primary.map(|(attempt, of)| (attempt as u64, session(of)));
            let range = read::range(row, 1)?;
            let (attempt, tries, session) = (number(4)?, number(5)?, SessionId(number(6)?));
            Ok((number(0)?, Running { range, attempt, tries, session, primary }))
        };
        answer.rows.iter().map(running).collect()
    }

    fn set_attempts(&mut self, job: JobId, split: u64, to: &Running) -> Outcome<()> {
        let sql = "UPDATE @job_split SET attempt = $3, session = $4, primary_attempt = $5, primary_session = $6 \
                   WHERE job = $1 AND number = $2";
        let query = of_split(sql, job, split).int(to.attempt as i64).int(to.session.0 as i64);
        let query = query.with(to.primary.map(|(attempt, _)| attempt as i64), Type::INT8);
        self.0.later(query.with(to.primary.map(|(_, of)| of.0 as i64), Type::INT8));
        Ok(())
    }

    fn stop(&mut self, job: JobId, split: u64, state: SplitState, tries: u64) -> Outcome<()> {
        let sql = "UPDATE @job_split SET state = $3, tries = $4, primary_attempt = NULL, primary_session = NULL \
                   WHERE job = $1 AND number = $2";
        self.0.later(of_split(sql, job, split).with(state as i32, Type::INT4).int(tries as i64));
        Ok(())
    }

    fn set_why(&mut self, job: JobId, split: u64, why: &str, log: &[u8]) -> Outcome<()> {
        let sql = "UPDATE @job_split SET why = $3, log = $4 WHERE job = $1 AND number = $2";
        let (query, job, split) = (of_split(sql, job, split), job.0 as i64, split as i64);
        let query = query.text(Subject::SplitWhy { job }, &text(why));
        self.0.later(query.bytes(Subject::SplitLog { job, split }, log.to_vec()));
        Ok(())
    }

    fn is_live(&mut self, session: SessionId) -> Outcome<bool> {
        let sql = concat!(
            "SELECT 1 FROM @session WHERE id = $1 AND ",
            sessions::lease_until!(""),
            " > ",
            sessions::now!()
        );
        Ok(self.0.one(Query::new(sql).int(session.0 as i64))?.first().is_some())
    }

    fn is_unfinished(&mut self, job: JobId) -> Outcome<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM @job_split WHERE job = $1 AND state < 2)";
        let answer = self.0.one(of_job(sql, job))?;
        Ok(counters::row(&answer)?.try_get(0)?)
    }

    fn is_open(&mut self, job: JobId, input: Option<u32>) -> Outcome<bool> {
        let sql = "SELECT 1 FROM @job_split WHERE job = $1 AND input IS NOT DISTINCT FROM $2 AND after = $3 LIMIT 1";
        let query = input_of(of_job(sql, job), input).int(OPEN_END as i64);
        Ok(self.0.one(query)?.first().is_some())
    }

    fn set_end(&mut self, job: JobId, input: Option<u32>, end: u64) -> Outcome<()> {
        let sql = "UPDATE @job_split SET after = $3 \
                   WHERE job = $1 AND input IS NOT DISTINCT FROM $2 AND after = $4";
        self.0.later(input_of(of_job(sql, job), input).int(end as i64).int(OPEN_END as i64));
        Ok(())
    }

    fn set_input_root(&mut self, job: JobId, input: u32, root: &Root) -> Outcome<()> {
        let sql = "SELECT path FROM @job_input WHERE job = $1 AND number = $2";
        let answer = self.0.one(of_split(sql, job, input.into()))?;
        let (id, number) = (job.0 as i64, i64::from(input));
        let path = counters::row(&answer)?.bytes(0, &Subject::InputPath { job: id, number })?;
        let column = root_column(root);
        let sum = row::input_sum(self.0.seals(), id, number, &path, column.as_deref());
        let sql = "UPDATE @job_input SET root = $3, sum = $4 WHERE job = $1 AND number = $2";
        let query = of_split(sql, job, input.into());
        let query = query.maybe_bytes(Subject::InputRoot { job: id, number }, column);
        self.0.later(query.with(sum, Type::INT4));
        Ok(())
    }

    fn void_input(&mut self, job: JobId, input: Option<u32>) -> Outcome<()> {
        let sql = "UPDATE @job_split SET state = 0, attempt = attempt + 1, tries = 0, measured = NULL, \
                   primary_attempt = NULL, primary_session = NULL \
                   WHERE job = $1 AND input IS NOT DISTINCT FROM $2 AND state IN (1, 2)";
        self.0.later(input_of(of_job(sql, job), input));
        Ok(())
    }

    fn void_running(&mut self, job: JobId) -> Outcome<()> {
        let sql = "UPDATE @job_split SET state = 0, attempt = attempt + 1, primary_attempt = NULL, \
                   primary_session = NULL WHERE job = $1 AND state = 1";
        self.0.later(of_job(sql, job));
        Ok(())
    }

    fn wait_again(&mut self, job: JobId) -> Outcome<()> {
        let sql = "UPDATE @job_split SET state = 0, tries = 0 WHERE job = $1 AND state <> 2";
        self.0.later(of_job(sql, job));
        Ok(())
    }

    fn add_outputs(&mut self, job: JobId, outputs: &[NewOutput<'_>]) -> Outcome<()> {
        let (id, of) = (job.0 as i64, |number: fn(&NewOutput<'_>) -> u64| {
            outputs.iter().map(|output| number(output) as i64).collect::<Vec<i64>>()
        });
        let roots: Vec<Option<Vec<u8>>> = outputs.iter().map(|output| root_column(output.root)).collect();
        let sum = |(output, root): (&NewOutput<'_>, &Option<Vec<u8>>)| {
            let key = [id, output.split as i64, output.attempt as i64];
            row::output_sum(self.0.seals(), key, output.name, root.as_deref())
        };
        let sums: Vec<i32> = outputs.iter().zip(&roots).map(sum).collect();
        let name = |output: &NewOutput<'_>| {
            let (split, attempt) = (output.split as i64, output.attempt as i64);
            Private::new(Subject::OutputName { job: id, split, attempt }, output.name.to_vec())
        };
        let names = outputs.iter().map(name).collect();
        hold_all(self.0, &job_holder(job), roots.iter().flatten().cloned().collect());
        let sql = "INSERT INTO @job_output (job, split, attempt, sum, name, root) \
                   SELECT $1, * FROM unnest($2::int8[], $3::int8[], $4::int4[], $5::bytea[], $6::bytea[]) \
                   ON CONFLICT (job, split, attempt, name) DO UPDATE SET sum = excluded.sum, root = excluded.root";
        let query = of_job(sql, job).ints(of(|output| output.split)).ints(of(|output| output.attempt));
        let root = |(output, root): (&NewOutput<'_>, Option<Vec<u8>>)| {
            let (split, attempt) = (output.split as i64, output.attempt as i64);
            root.map(|root| Private::new(Subject::OutputRoot { job: id, split, attempt }, root))
        };
        let roots = outputs.iter().zip(roots).map(root).collect();
        let query = query.with(sums, Type::INT4_ARRAY).each_bytes(names);
        self.0.later(query.each_maybe_bytes(roots));
        Ok(())
    }

    fn finish(&mut self, job: JobId, session: SessionId, finished: &[Finished<'_>]) -> Outcome<()> {
        // With two attempts at a split, what the other one wrote was nobody's output: the split has
        // this one's number now.
        let sql = "UPDATE @job_split s SET state = 2, why = '', log = f.log, attempt = f.attempt, session = $2, \
                   measured = f.measured, primary_attempt = NULL, primary_session = NULL \
                   FROM unnest($3::int8[], $4::int8[], $5::bytea[], $6::text[]) AS f (number, attempt, log, measured) \
                   WHERE s.job = $1 AND s.number = f.number";
        let splits = finished.iter().map(|ended| ended.split as i64).collect();
        let attempts = finished.iter().map(|ended| ended.attempt as i64).collect();
        let id = job.0 as i64;
        let log = |ended: &Finished<'_>| {
            let subject = Subject::SplitLog { job: id, split: ended.split as i64 };
            (!ended.log.is_empty()).then(|| Private::new(subject, ended.log.to_vec()))
        };
        let measured = |ended: &Finished<'_>| {
            let subject = Subject::SplitMeasured { job: id, split: ended.split as i64 };
            ended.measured.map(|measured| Private::new(subject, text(measured)))
        };
        let query = of_job(sql, job).int(session.0 as i64).ints(splits).ints(attempts);
        let query = query.each_maybe_bytes(finished.iter().map(log).collect());
        self.0.later(query.each_maybe_text(finished.iter().map(measured).collect()));
        Ok(())
    }

    fn clear(&mut self, job: JobId) -> Outcome<()> {
        self.0.later(of_job("DELETE FROM @job_output WHERE job = $1", job));
        // Rows are written whole, as they end with a checksum.
        let answer = self.0.one(of_job("SELECT number, path FROM @job_input WHERE job = $1", job))?;
        let (mut numbers, mut sums) = (Vec::new(), Vec::new());
        for found in &answer.rows {
            let (id, number): (_, i32) = (job.0 as i64, found.try_get(0)?);
            let path = found.bytes(1, &Subject::InputPath { job: id, number: number.into() })?;
            sums.push(row::input_sum(self.0.seals(), id, number.into(), &path, None));
            numbers.push(number);
        }
        let sql = "UPDATE @job_input i SET root = NULL, sum = n.sum FROM unnest($2::int4[], $3::int4[]) AS n (number, sum) \
                   WHERE i.job = $1 AND i.number = n.number";
        self.0.later(of_job(sql, job).with(numbers, Type::INT4_ARRAY).with(sums, Type::INT4_ARRAY));
        Ok(())
    }

    fn remove(&mut self, job: JobId) -> Outcome<()> {
        for sql in [
            "DELETE FROM @job_output WHERE job = $1",
            "DELETE FROM @job_split WHERE job = $1",
            "DELETE FROM @job_input WHERE job = $1",
            "DELETE FROM @job WHERE id = $1",
        ] {
            self.0.later(of_job(sql, job));
        }
        Ok(())
    }

    fn hold(&mut self, holder: &str, root: &Root) -> Outcome<()> {
        hold_all(self.0, holder, root_column(root).into_iter().collect());
        Ok(())
    }

    fn release(&mut self, holder: &str) -> Outcome<()> {
        reclaim::let_go(self.0, holder, None);
        Ok(())
    }
}
