//! A host's path to the simulated database's jobs. The same faults happen on it as with all other
//! calls.

use outrigger_store::meta::jobs::{RuleMarks, Splits};
use std::collections::HashMap;

use outrigger_format::Root;
use outrigger_store::Result;
use outrigger_store::meta::SessionId;
use outrigger_store::meta::jobs::{
    Claimed, Claims, JobId, JobInput, JobRow, JobState, Jobs, NewJob, OutputRow, Seen, SplitRow, SplitState,
};
use outrigger_store::meta::records::{RecordRow, Records};

use crate::link::Link;
use crate::planted::{self, Planted};
use crate::servers::Servers;

impl Servers {
    /// The claims of a session on a job as the host gets them, with a planted fault if there is
    /// one.
    fn told_claims(&self, session: SessionId, job: JobId, mut claims: Claims) -> Result<Claims> {
        if planted::is(Planted::ClaimedTwice) && claims.claimed.is_empty() {
            let others = |split: &SplitRow| split.state == SplitState::Running && split.session != session;
            let claimed = |SplitRow { number, range, attempt, .. }| Claimed { number, range, attempt };
            claims.claimed.extend(self.database.splits(job)?.into_iter().find(others).map(claimed));
        }
        Ok(claims)
    }

    fn job_outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        let mut rows = self.database.outputs(job)?;
        if planted::is(Planted::CountedTwice) {
            rows.extend(rows.last().cloned());
        }
        Ok(rows)
    }
}

macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> Result<$out> {
            self.call(stringify!($name), |servers| servers.database.$name($($argument),*))
        })*
    };
}

impl Jobs for Link {
    fn outputs(&self, job: JobId) -> Result<Vec<OutputRow>> {
        self.call("outputs", |servers| servers.job_outputs(job))
    }

    pass_on! {
        fn create_job(job: &NewJob) -> JobId;
        fn job(job: JobId) -> Option<JobRow>;
        fn job_briefly(job: JobId) -> Option<JobRow>;
        fn jobs(limit: usize) -> Vec<JobRow>;
        fn open_jobs() -> Vec<JobRow>;
        fn inputs(job: JobId) -> Vec<JobInput>;
        fn splits(job: JobId) -> Vec<SplitRow>;
        fn split(job: JobId, number: u64) -> Option<SplitRow>;
        fn measured(job: JobId) -> Vec<(u64, String)>;
        fn made(job: JobId) -> Option<String>;
    }
}

impl Splits for Link {
    fn claim_splits(
        &self,
        session: SessionId,
        job: JobId,
        limit: usize,
        tries: u32,
        only: Option<&[u64]>,
    ) -> Result<Claims> {
        self.call("claim_splits", |servers| {
            let claims = servers.database.claim_splits(session, job, limit, tries, only)?;
            servers.told_claims(session, job, claims)
        })
    }

    pass_on! {
        fn claim_speculative(session: SessionId, job: JobId, split: u64, beside: u64) -> Option<Claimed>;
        fn is_current(session: SessionId, job: JobId, claimed: &Claimed) -> bool;
        fn fail_split(job: JobId, claimed: &Claimed, tries: u32, why: &str, log: &[u8]) -> bool;
        fn give_back_splits(job: JobId, claimed: &[Claimed]) -> ();
        fn close_input(job: JobId, root: &Root, again: bool) -> bool;
        fn close_one_input(job: JobId, input: u32, root: &Root, again: bool, end: Option<u64>) -> bool;
        fn end_job(job: JobId, state: JobState, why: &str) -> bool;
        fn retry_job(job: JobId) -> ();
        fn forget_job(job: JobId) -> ();
    }
}

impl RuleMarks for Link {
    pass_on! {
        fn seen(rule: &str) -> HashMap<u64, String>;
        fn see(seen: &[Seen]) -> ();
        fn forget_seen(rule: &str) -> ();
        fn forget_inodes(rule: &str, inodes: &[u64]) -> ();
    }
}

impl Records for Link {
    pass_on! {
        fn records(kind: &str) -> Vec<RecordRow>;
        fn set_record(kind: &str, name: &str, value: Option<&str>) -> ();
        fn add_record(kind: &str, name: &str, value: &str) -> bool;
        fn swap_record(kind: &str, name: &str, was: &str, to: Option<&str>) -> bool;
    }
}
