//! Bounds the answers of an object store. The client library keeps some bodies whole, and reserves
//! as much as a header claims. The service here is between it and the network, and no body is
//! longer than the request asked for.

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};

/// At most so much of an error's body is read, for its code and message.
const ERROR_MAX: usize = 64 << 10;
/// A page of a listing has up to 1000 keys of up to 1 KiB, and every character may be escaped.
const LIST_MAX: u64 = 16 << 20;
/// The end of a range with the largest possible last byte. No object is so long.
const LAST_BYTE: &str = "-18446744073709551615/";
/// Bound for confirmations and credentials.
const OTHER_MAX: u64 = 1 << 20;

/// Why an answer is not taken, which another try would not change.
#[derive(Debug)]
pub(super) struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Makes clients whose answers are bounded.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Bounded(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Bounded(HttpClient);

impl HttpService for Bounded {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let max = longest(&request);
            let (parts, body) = self.0.execute(request).await?.into_parts();
            // The client library adds one to the end of a range.
            let range = parts.headers.get("content-range").and_then(|range| range.to_str().ok());
            if range.is_some_and(|range| range.contains(LAST_BYTE)) {
                let why = Refused(format!("a range that cannot be: {range:?}"));
                return Err(HttpError::new(HttpErrorKind::Decode, why));
            }
            let body = if parts.status.is_success() { bound(body, max) } else { beginning(body).await? };
            Ok(HttpResponse::from_parts(parts, body))
        })
    }
}

/// The longest body that a request may be answered with.
fn longest(request: &HttpRequest) -> u64 {
    let range = request.headers().get("range").and_then(|range| range.to_str().ok());
    match range.and_then(|range| range.strip_prefix("bytes=")).and_then(|range| range.split_once('-')) {
        Some(("", last)) => last.parse().unwrap_or(0),
        Some((from, to)) => {
            let (from, to) = (from.parse().unwrap_or(u64::MAX), to.parse().unwrap_or(0u64));
            to.saturating_sub(from).saturating_add(1)
        }
        None if request.uri().query().is_some_and(|query| query.contains("list-type=")) => LIST_MAX,
        None => OTHER_MAX,
    }
}

fn bound(body: HttpResponseBody, max: u64) -> HttpResponseBody {
    let limited = Limited::new(body, usize::try_from(max).unwrap_or(usize::MAX));
    HttpResponseBody::new(limited.map_err(move |error| match error.downcast::<HttpError>() {
        Ok(error) => *error,
        Err(error) if error.is::<LengthLimitError>() => {
            let why = format!("the answer is longer than the {max} bytes that it may have");
            HttpError::new(HttpErrorKind::Decode, Refused(why))
        }
        Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
    }))
}

/// The first [`ERROR_MAX`] bytes.
async fn beginning(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let (mut read, mut parts) = (Vec::new(), body.bytes_stream());
    while read.len() < ERROR_MAX
        && let Some(part) = parts.try_next().await?
    {
        read.extend_from_slice(&part[..part.len().min(ERROR_MAX - read.len())]);
    }
    Ok(String::from_utf8_lossy(&read).into_owned().into())
}
