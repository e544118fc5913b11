//! One operation, tried until it succeeds, cannot succeed, or patience ends.
//!
//! Between two tries is a pause that doubles from [`PAUSE_MIN`] to [`PAUSE_MAX`], of which a random
//! part is waited: clients that failed together do not come back together. If no request of any
//! operation has succeeded for as long as patience lasts, an operation is tried once; otherwise one
//! of several requests would wait several times as long. The caller waits while an operation is
//! repeated. This back-pressure keeps a writer from running ahead of a store that does not answer.

use std::future::Future;
use std::time::Duration;

use outrigger_clock as clock;
use outrigger_clock::Instant;

use super::client::{Patience, Verdict, judge};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Health;
use crate::note;

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Tries `request`, which gets the number of the try, from 0.
///
/// # Errors
/// That of the last try, of the kind that `judge` finds; `Io` when patience has ended.
pub(super) async fn attempt<T, F>(
    health: &Health,
    patience: &Patience,
    what: &(dyn Fn() -> String + Sync),
    mut request: impl FnMut(u32) -> F + Send,
) -> Result<T>
where
    F: Future<Output = object_store::Result<T>> + Send,
{
    let (began, mut pause) = (Instant::now(), PAUSE_MIN);
    for number in 0.. {
        // The client's own time-outs end most requests; this one covers the rest.
        let limit = patience.request + patience.connect;
        let waiting = health.begin();
        let answered = tokio::time::timeout(limit, request(number)).await;
        drop(waiting);
        let (verdict, why) = match answered {
            Ok(Ok(done)) => {
                health.works();
                return Ok(done);
            }
            Ok(Err(error)) => judge(&error),
            Err(_) => (Verdict::Again, format!("no answer within {} s", limit.as_secs())),
        };
        if let Verdict::Final(kind) = verdict {
            health.works();
            return Err(Error::new(kind, format!("{}: {why}", what())));
        }
        health.fails(&why);
        note::again(&what(), number + 1, &why);
        if began.elapsed().max(health.failing_for()) >= patience.give_up {
            let waited = began.elapsed().as_secs();
            let why = format!("{}: {why} (given up after {waited} s and {} tries)", what(), number + 1);
            return Err(Error::new(ErrorKind::Io, why));
        }
        tokio::time::sleep(part_of(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    unreachable!("the loop ends by itself")
}

/// A random part of `pause`, at least half of it.
fn part_of(pause: Duration) -> Duration {
    let random = clock::random::<4>().map_or(0, u32::from_le_bytes);
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
