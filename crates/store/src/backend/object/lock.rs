//! Object lock: an object that is locked stays until its date, whoever asks to remove it.
//!
//! The client library cannot lock, but it signs addresses. Each request is one to such an address.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::DateTime;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use md5::{Digest as _, Md5};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer as _};
use outrigger_format::PackId;
use reqwest::{Client as Http, Method, Response, StatusCode};

use super::client::Patience;
use super::retry::attempt;
use super::{REQUESTS_MAX, Shared};
use crate::error::{Error, ErrorKind, Result};

/// How long a signed address is good for.
const VALID: Duration = Duration::from_secs(300);
/// Bytes of an error's body that are read, for its code and message.
const SAID_MAX: usize = 4096;

/// Locks objects.
pub(super) struct Lock {
    pub days: u32,
    http: Http,
}

impl Lock {
    /// # Errors
    /// When there can be no client.
    pub fn new(days: u32, patience: &Patience) -> Result<Self> {
        let http = Http::builder().connect_timeout(patience.connect).timeout(patience.request).build();
        let http = http.map_err(|error| Error::new(ErrorKind::Io, format!("S3: {error}")))?;
        Ok(Self { days, http })
    }
}

impl Shared {
    /// Locks the objects of packs until `until`, in seconds since 1970; returns how many. One that is
    /// not there is passed over. No lock becomes shorter.
    ///
    /// # Errors
    /// `Denied` without the right to lock; `Invalid` for a bucket without object lock.
    pub fn lock_until(&self, lock: &Lock, ids: &[PackId], until: u64) -> Result<u64> {
        let date = DateTime::from_timestamp(until as i64, 0)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("lock={}: too many days", lock.days)))?;
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>COMPLIANCE</Mode>\
             <RetainUntilDate>{}</RetainUntilDate></Retention>",
            date.format("%Y-%m-%dT%H:%M:%SZ")
        );
        let locked = AtomicU64::new(0);
        let one = |id: &PackId| {
            let (key, body, locked) = (self.key(*id), &body, &locked);
            let id = *id;
            async move {
                let what = || format!("cannot lock {}", self.name(id));
                let ask = attempt(&self.health, &self.patience, &what, |_| self.retain(lock, &key, body));
                match ask.await {
                    Ok(()) => drop(locked.fetch_add(1, Ordering::Relaxed)),
                    // It was removed since its row was read.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            }
        };
        let all = stream::iter(ids).map(one).buffer_unordered(REQUESTS_MAX).try_collect::<()>();
        self.block_on(all)?;
        Ok(locked.into_inner())
    }

    async fn retain(&self, lock: &Lock, key: &Path, body: &str) -> object_store::Result<()> {
        let options = SignedUrlOptions::default().with_query([("retention", "")]);
        let url = self.client.signed_url_opts(Method::PUT, key, VALID, &options).await?;
        let sum = STANDARD.encode(Md5::digest(body));
        let request = lock.http.put(url).header("content-md5", sum).body(body.to_string());
        let answer = request.send().await.map_err(|error| generic(error.without_url().to_string()))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(refused(status, key, said(answer).await)),
        }
    }
}

/// The beginning of an error's body.
async fn said(mut answer: Response) -> String {
    let mut said = Vec::new();
    while said.len() < SAID_MAX
        && let Ok(Some(part)) = answer.chunk().await
    {
        said.extend_from_slice(&part[..part.len().min(SAID_MAX - said.len())]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn refused(status: StatusCode, key: &Path, said: String) -> object_store::Error {
    let source = said.clone().into();
    let path = key.to_string();
    match status {
        StatusCode::NOT_FOUND => object_store::Error::NotFound { path, source },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            object_store::Error::PermissionDenied { path, source }
        }
        // S3's answer for a bucket without object lock.
        StatusCode::BAD_REQUEST | StatusCode::CONFLICT => object_store::Error::NotSupported {
            source: format!("the bucket has no object lock, or refuses this one: {said}").into(),
        },
        status => generic(format!("status {status}: {said}")),
    }
}

fn generic(why: String) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: why.into() }
}
