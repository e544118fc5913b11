//! A small object store for tests: the part of S3 that packs need, over HTTP on this machine, in
//! memory, with faults on demand.
//!
//! Connections, headers, ranges, conditions, uploads in parts and listings in pages are real.
//! Signatures are not computed again; only the key's name is checked. Tests with a real gateway are
//! `make test-cluster`'s.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use outrigger_format::checksum;

/// How a request goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HttpFault {
    /// Not done; the answer is this status. 507 means that the store is full, as for MinIO.
    Status(u16),
    /// Done; yet the answer is this status.
    DoneButStatus(u16),
    /// Not done; the connection is closed.
    Reset,
    /// Done; yet the connection is closed without an answer.
    DoneButReset,
    /// Done; the answer comes after so many milliseconds.
    Late(u64),
    /// Done; half of the answer's body comes, and then nothing: the connection is closed.
    Half,
    /// Done; the body comes in pieces with pauses.
    Slow,
    /// Not done; the answer is this status, with a body of [`ENDLESS`] bytes without a length.
    Endless(u16),
    /// Done; the answer claims a length of 2^62 bytes, and ends after those that there are.
    Claims,
    /// Done; the answer's range ends at the largest possible byte.
    Farthest,
    /// Done; a listing always returns its first page, and announces more.
    SamePage,
}

/// The objects of the server, and its faults.
#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    /// The dates until which objects are locked.
    locks: BTreeMap<String, String>,
    begun: u64,
    /// For requests of a method, from the n-th on (from 1), so many: a fault.
    faults: Vec<(&'static str, std::ops::RangeInclusive<u64>, HttpFault)>,
    counts: BTreeMap<String, u64>,
    faulty: u64,
    /// Bytes of endless answers that were taken.
    taken: usize,
    is_down: bool,
}

/// See the module. The server ends with the process.
#[derive(Clone)]
pub struct S3Server {
    state: Arc<Mutex<State>>,
    /// `http://127.0.0.1:PORT`.
    pub endpoint: String,
}

/// Objects in a page of a listing: few, so that listings have several.
const PAGE: usize = 7;
/// Bytes of an answer that passes for endless: more than anybody should read of it.
pub const ENDLESS: usize = 128 << 20;
/// The access key that is let in.
pub const ACCESS_KEY: &str = "TESTKEY";

impl S3Server {
    /// Starts one.
    ///
    /// # Panics
    /// When no port can be had.
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let server = Self { state: Arc::default(), endpoint };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                std::thread::spawn(move || while server.serve(&stream).is_some() {});
            }
        });
        server
    }

    /// Requests of `method` whose numbers (from 1, counted from now on) are in `range` fail.
    pub fn fault(&self, method: &'static str, range: std::ops::RangeInclusive<u64>, fault: HttpFault) {
        let mut state = self.state();
        state.counts.remove(method);
        state.faults.push((method, range, fault));
    }

    /// No request goes wrong any more.
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.is_down = false;
    }

    /// Every connection is closed as soon as it asks for something, until [`S3Server::heal`].
    pub fn go_down(&self) {
        self.state().is_down = true;
    }

    /// How many requests went wrong.
    pub fn faults(&self) -> u64 {
        self.state().faulty
    }

    /// Bytes of endless answers that were taken, by clients and the buffers on the way.
    pub fn taken(&self) -> usize {
        self.state().taken
    }

    /// Requests of `method` so far, since its last fault was set.
    pub fn count(&self, method: &str) -> u64 {
        self.state().counts.get(method).copied().unwrap_or(0)
    }

    /// The objects' keys, with the bucket, and their lengths.
    pub fn objects(&self) -> Vec<(String, usize)> {
        self.state().objects.iter().map(|(key, bytes)| (key.clone(), bytes.len())).collect()
    }

    /// The keys of locked objects, with their dates as S3 writes them.
    pub fn locks(&self) -> BTreeMap<String, String> {
        self.state().locks.clone()
    }

    /// Loses an object.
    ///
    /// # Panics
    /// When there is no such object.
    pub fn lose(&self, key: &str) {
        assert!(self.state().objects.remove(key).is_some(), "there is no {key}");
    }

    /// Uploads in parts that were neither completed nor aborted.
    pub fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    /// One request; `None` when the connection ends.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let request = Request::read(stream)?;
        let fault = {
            let mut state = self.state();
            let count = state.counts.entry(request.method.clone()).or_default();
            *count += 1;
            let number = *count;
            let fault =
                state.faults.iter().find(|(of, range, _)| *of == request.method && range.contains(&number));
            let fault = fault.map(|(.., fault)| *fault).or(state.is_down.then_some(HttpFault::Reset));
            state.faulty += u64::from(fault.is_some());
            fault
        };
        match fault {
            Some(HttpFault::Reset) => return None,
            Some(HttpFault::Status(status)) => {
                let code = if status == 507 { "XMinioStorageFull" } else { "OnPurpose" };
                return reply(stream, &request, Answer::error(status, code), None);
            }
            Some(HttpFault::Endless(status)) => return self.endless(stream, status),
            _ => {}
        }
        let answer = self.answer(&request, fault);
        match fault {
            Some(HttpFault::DoneButReset) => return None,
            Some(HttpFault::DoneButStatus(status)) => {
                return reply(stream, &request, Answer::error(status, "OnPurpose"), None);
            }
            Some(HttpFault::Late(millis)) => outrigger_clock::sleep(Duration::from_millis(millis)),
            _ => {}
        }
        reply(stream, &request, answer, fault)
    }

    /// Sends an endless answer until the client stops reading.
    fn endless(&self, mut stream: &TcpStream, status: u16) -> Option<()> {
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/xml\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        let piece = [b"10000\r\n".as_slice(), &[b'a'; 1 << 16], b"\r\n"].concat();
        for _ in 0..ENDLESS / (1 << 16) {
            stream.write_all(&piece).ok()?;
            self.state().taken += 1 << 16;
        }
        stream.write_all(b"0\r\n\r\n").ok()
    }

    fn answer(&self, request: &Request, fault: Option<HttpFault>) -> Answer {
        let signed =
            request.header("authorization").or(request.query.get("X-Amz-Credential").map(|of| &**of));
        if !signed.is_some_and(|value| value.contains(ACCESS_KEY)) {
            return Answer::error(403, "InvalidAccessKeyId");
        }
        let mut state = self.state();
        let (key, query) = (&request.key, &request.query);
        match request.method.as_str() {
            "GET" if query.contains_key("list-type") => {
                state.list(key, query, fault == Some(HttpFault::SamePage))
            }
            "GET" | "HEAD" => state.get(request),
            "PUT" if query.contains_key("uploadId") => {
                let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
                let Some(upload) = query.get("uploadId").and_then(|upload| state.uploads.get_mut(upload))
                else {
                    return Answer::error(404, "NoSuchUpload");
                };
                upload.insert(number, request.body.clone());
                Answer::ok().with("ETag", etag(&request.body))
            }
            "PUT" if query.contains_key("retention") => state.lock(request),
            "PUT" => state.put(request),
            "POST" if query.contains_key("uploads") => {
                state.begun += 1;
                let upload = format!("upload-{}", state.begun);
                state.uploads.insert(upload.clone(), BTreeMap::new());
                Answer::xml(format!(
                    "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                ))
            }
            "POST" => {
                let Some(parts) = query.get("uploadId").and_then(|upload| state.uploads.remove(upload))
                else {
                    return Answer::error(404, "NoSuchUpload");
                };
                let bytes: Vec<u8> = parts.into_values().flatten().collect();
                let tag = etag(&bytes);
                state.objects.insert(key.clone(), bytes);
                Answer::xml(format!(
                    "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>{}</ETag></CompleteMultipartUploadResult>",
                    tag.replace('"', "&quot;")
                ))
            }
            "DELETE" => {
                match query.get("uploadId") {
                    Some(upload) => drop(state.uploads.remove(upload)),
                    None => drop(state.objects.remove(key)),
                }
                Answer { status: 204, ..Answer::ok() }
            }
            _ => Answer::error(501, "NotImplemented"),
        }
    }
}

impl State {
    fn lock(&mut self, request: &Request) -> Answer {
        let body = String::from_utf8_lossy(&request.body);
        let date = body.split_once("<RetainUntilDate>").and_then(|(_, rest)| rest.split_once('<'));
        let Some((date, _)) = date.filter(|_| request.header("content-md5").is_some()) else {
            return Answer::error(400, "MalformedXML");
        };
        if !self.objects.contains_key(&request.key) {
            return Answer::error(404, "NoSuchKey");
        }
        let lock = self.locks.entry(request.key.clone()).or_default();
        if date < lock.as_str() {
            return Answer::error(403, "AccessDenied");
        }
        *lock = date.to_string();
        Answer::ok()
    }

    fn put(&mut self, request: &Request) -> Answer {
        if request.header("if-none-match") == Some("*") && self.objects.contains_key(&request.key) {
            return Answer::error(412, "PreconditionFailed");
        }
        if let Some(from) = request.header("x-amz-copy-source") {
            let Some(bytes) = self.objects.get(&decode(from.trim_start_matches('/'))).cloned() else {
                return Answer::error(404, "NoSuchKey");
            };
            let tag = etag(&bytes).replace('"', "&quot;");
            self.objects.insert(request.key.clone(), bytes);
            return Answer::xml(format!(
                "<CopyObjectResult><ETag>{tag}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></CopyObjectResult>"
            ));
        }
        self.objects.insert(request.key.clone(), request.body.clone());
        Answer::ok().with("ETag", etag(&request.body))
    }

    fn get(&self, request: &Request) -> Answer {
        let Some(bytes) = self.objects.get(&request.key) else { return Answer::error(404, "NoSuchKey") };
        let answer = Answer::ok()
            .with("ETag", etag(bytes))
            .with("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT".into());
        let Some(range) = request.header("range").and_then(|range| range.strip_prefix("bytes=")) else {
            return Answer { body: bytes.clone(), ..answer };
        };
        let (from, to) = range.split_once('-').unwrap_or((range, ""));
        let len = bytes.len();
        let (start, end) = match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) => (from, (to + 1).min(len)),
            (Ok(from), Err(_)) => (from, len),
            (Err(_), Ok(last)) => (len.saturating_sub(last), len),
            _ => return Answer::error(400, "InvalidArgument"),
        };
        if start >= len {
            return Answer::error(416, "InvalidRange");
        }
        let answer = answer.with("Content-Range", format!("bytes {start}-{}/{len}", end - 1));
        Answer { status: 206, body: bytes[start..end].to_vec(), ..answer }
    }

    fn list(&self, bucket: &str, query: &BTreeMap<String, String>, repeats: bool) -> Answer {
        let bucket = bucket.trim_end_matches('/');
        let prefix = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
        let after = query.get("continuation-token").filter(|_| !repeats).cloned().unwrap_or_default();
        let of_prefix = self.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
        let page: Vec<_> = of_prefix.clone().take(PAGE).collect();
        let is_truncated = repeats || of_prefix.count() > PAGE;
        let mut xml = format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        for (key, bytes) in &page {
            xml += &format!(
                "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>{}</Size></Contents>",
                &key[bucket.len() + 1..],
                bytes.len()
            );
        }
        if is_truncated && let Some((last, _)) = page.last() {
            xml += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        Answer::xml(xml + "</ListBucketResult>")
    }
}

fn etag(bytes: &[u8]) -> String {
    format!("\"{:016x}\"", checksum(&[bytes]))
}

struct Request {
    method: String,
    /// Bucket and key.
    key: String,
    query: BTreeMap<String, String>,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        // Nothing is read beyond one request: the client waits for each answer.
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
        let mut words = line.split_ascii_whitespace();
        let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let pairs = query.split('&').filter(|part| !part.is_empty());
        let query = pairs.map(|part| part.split_once('=').unwrap_or((part, "")));
        let query = query.map(|(key, value)| (decode(key), decode(value))).collect();
        let key = decode(path.trim_start_matches('/'));
        let mut request = Self { method, key, query, headers, body: Vec::new() };
        let len = request.header("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
        request.body = vec![0; len];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

fn decode(text: &str) -> String {
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn ok() -> Self {
        Self { status: 200, headers: Vec::new(), body: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    fn xml(body: String) -> Self {
        let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{body}").into_bytes();
        Self { body, ..Self::ok().with("Content-Type", "application/xml".into()) }
    }

    fn error(status: u16, code: &str) -> Self {
        Self {
            status,
            ..Self::xml(format!("<Error><Code>{code}</Code><Message>on purpose</Message></Error>"))
        }
    }
}

fn reply(mut stream: &TcpStream, request: &Request, answer: Answer, fault: Option<HttpFault>) -> Option<()> {
    let claims = fault == Some(HttpFault::Claims);
    let len = if claims { 1 << 62 } else { answer.body.len() };
    let mut head = format!("HTTP/1.1 {} Said\r\nContent-Length: {len}\r\n", answer.status);
    let farthest = "bytes 0-18446744073709551615/18446744073709551615".to_string();
    for (name, value) in &answer.headers {
        let is_other = fault == Some(HttpFault::Farthest) && *name == "Content-Range";
        let value = if is_other { &farthest } else { value };
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if request.method == "HEAD" {
        return Some(());
    }
    match fault {
        Some(HttpFault::Half) => {
            stream.write_all(&answer.body[..answer.body.len() / 2]).ok()?;
            return None;
        }
        Some(HttpFault::Claims) => {
            stream.write_all(&answer.body).ok()?;
            return None;
        }
        Some(HttpFault::Slow) => {
            for piece in answer.body.chunks(answer.body.len().div_ceil(5).max(1)) {
                stream.write_all(piece).ok()?;
                stream.flush().ok()?;
                outrigger_clock::sleep(Duration::from_millis(20));
            }
        }
        _ => stream.write_all(&answer.body).ok()?,
    }
    Some(())
}
