//! The client of an S3-compatible store: its address, its credentials, its timeouts.
//!
//! Credentials come from the first of these that exists:
//!
//! - `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (and `AWS_SESSION_TOKEN`);
//! - the profile `AWS_PROFILE`, or `default`, of the file `AWS_SHARED_CREDENTIALS_FILE`, or
//!   `~/.aws/credentials`;
//! - the platform's variables (web identity, container), and the metadata service of a cloud's
//!   machine where the environment asks for it.
//!
//! No error contains them: an object store's answer is reduced to its code and message.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{ClientConfigKey, ClientOptions, RetryConfig};

use super::bounded::{Connector, Refused};
use crate::backend::location::S3Location;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::note;

/// How long requests to an object store wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes of an answer.
    pub idle: Duration,
    /// For one request from its beginning to its end.
    pub request: Duration,
    /// Until a repeated operation fails.
    pub give_up: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Patience {
    /// One minute, or `secs`, or the value of `OUTRIGGER_PATIENCE_SECS`.
    pub fn new(secs: Option<u32>) -> Self {
        let asked = std::env::var("OUTRIGGER_PATIENCE_SECS").ok().and_then(|text| text.parse().ok());
        Self {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(20),
            request: Duration::from_secs(120),
            give_up: Duration::from_secs(asked.or(secs).unwrap_or(60).into()),
        }
    }

    /// For a caller that only asks for the state: no longer than a person waits for such a command.
    pub fn brief() -> Self {
        let default = Self::default();
        let most = Duration::from_secs(10).min(default.give_up);
        Self { connect: Duration::from_secs(3), idle: most, request: most, give_up: most }
    }
}

/// Makes the client.
///
/// # Errors
/// `Invalid` when the location or the environment make no sense.
pub(super) fn build(location: &S3Location, patience: &Patience, keys: Option<Keys>) -> Result<AmazonS3> {
    // The first engine that needs a provider sets it; any provider will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = ClientOptions::new()
        .with_connect_timeout(patience.connect)
        .with_read_timeout(patience.idle)
        .with_timeout(patience.request)
        .with_pool_max_idle_per_host(32);
    let mut builder = AmazonS3Builder::new();
    for (name, value) in std::env::vars() {
        let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
        let is_endpoint = matches!(key, AmazonS3ConfigKey::Endpoint) || name.starts_with("AWS_ENDPOINT");
        let is_fixed = matches!(key, AmazonS3ConfigKey::Bucket);
        if name.starts_with("AWS_") && !is_fixed && !(is_endpoint && location.endpoint.is_some()) {
            if matches!(key, AmazonS3ConfigKey::SecretAccessKey | AmazonS3ConfigKey::Token) {
                note::secret(&value);
            }
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &location.endpoint {
        builder = builder.with_endpoint(endpoint);
        if endpoint.starts_with("http://") {
            options = options.with_allow_http(true);
        }
    } else if std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true") {
        options = options.with_config(ClientConfigKey::AllowHttp, "true");
    }
    if let Some(region) = &location.region {
        builder = builder.with_region(region);
    }
    let has_keys = |builder: &AmazonS3Builder| {
        builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some()
            && builder.get_config_value(&AmazonS3ConfigKey::SecretAccessKey).is_some()
    };
    let keys = match keys {
        None if !has_keys(&builder) => match from_file()? {
            None if !asks_platform(&builder) => return Err(Error::new(ErrorKind::Denied, NO_KEYS)),
            found => found,
        },
        keys => keys,
    };
    if let Some(keys) = keys {
        note::secret(&keys.secret);
        keys.token.iter().for_each(|token| note::secret(token));
        builder = builder.with_access_key_id(keys.id).with_secret_access_key(keys.secret);
        if let Some(token) = keys.token {
            builder = builder.with_token(token);
        }
    }
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    builder
        .with_bucket_name(&location.bucket)
        .with_client_options(options)
        .with_http_connector(Connector)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // One request for each object, which needs no right except to remove.
        .with_disable_bulk_delete(true)
        .build()
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("S3: {error}")))
}

/// Reported before anything is sent. The metadata service is an address that does not answer
/// outside a cloud.
const NO_KEYS: &str = "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add the profile (AWS_PROFILE, or `default`) to ~/.aws/credentials or the file AWS_SHARED_CREDENTIALS_FILE; on a cloud's machine, AWS_EC2_METADATA_DISABLED=false asks its metadata service";

/// True if the environment says that the platform has credentials, or that none are needed.
fn asks_platform(builder: &AmazonS3Builder) -> bool {
    use AmazonS3ConfigKey as Key;
    let leads = [
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
        Key::MetadataEndpoint,
    ];
    leads.iter().any(|key| builder.get_config_value(key).is_some())
        || builder.get_config_value(&Key::SkipSignature).is_some_and(|skips| skips == "true")
        || std::env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value == "false")
}

/// Credentials, for programs that embed the store and know them. Not printable.
#[derive(Clone)]
pub struct Keys {
    /// The access key's name.
    pub id: String,
    /// The access key.
    pub secret: String,
    /// The token of a session, if it has one.
    pub token: Option<String>,
}

/// The keys in the credentials file, if there is one and it has the profile.
fn from_file() -> Result<Option<Keys>> {
    let path = match std::env::var_os("AWS_SHARED_CREDENTIALS_FILE") {
        Some(path) => PathBuf::from(path),
        None => match std::env::home_dir() {
            Some(home) => home.join(".aws/credentials"),
            None => return Ok(None),
        },
    };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.context(|| format!("cannot read {}", path.display()))?,
    };
    let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_string());
    Ok(keys_of(&text, &profile))
}

/// The keys of `profile` in a credentials file's text.
fn keys_of(text: &str, profile: &str) -> Option<Keys> {
    let (mut inside, mut id, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        } else if inside && let Some((key, value)) = line.split_once('=') {
            let value = Some(value.trim().to_string());
            match key.trim() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    Some(Keys { id: id?, secret: secret?, token })
}

/// How to go on after a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It may work the next time.
    Again,
    /// It will not work; the kind says why.
    Final(ErrorKind),
}

/// Judges an error of the object store or of the way to it. The text is a clause without keys,
/// signatures and headers.
pub(super) fn judge(error: &object_store::Error) -> (Verdict, String) {
    use object_store::Error as Of;
    let said = chain(error);
    let code = between(&said, "<Code>", "</Code>");
    let message = between(&said, "<Message>", "</Message>");
    let why = match (code, message) {
        (Some(code), Some(message)) if !message.is_empty() => format!("{code}: {message}"),
        (Some(code), _) => code.to_string(),
        _ => shorten(&said),
    };
    let verdict = match error {
        _ if code
            .is_some_and(|code| matches!(code, "QuotaExceeded" | "StorageFull" | "XMinioStorageFull")) =>
        {
            Verdict::Final(ErrorKind::Full)
        }
        // The bucket is missing, not a pack: the caller must not take all packs for lost.
        Of::NotFound { .. } if code == Some("NoSuchBucket") => Verdict::Final(ErrorKind::Io),
        Of::NotFound { .. } => Verdict::Final(ErrorKind::NotFound),
        Of::AlreadyExists { .. } | Of::Precondition { .. } | Of::NotModified { .. } => {
            Verdict::Final(ErrorKind::Exists)
        }
        // Clocks that differ, and keys that are renewed while in use, are temporary.
        Of::PermissionDenied { .. } if code == Some("RequestTimeTooSkewed") => Verdict::Again,
        Of::PermissionDenied { .. } | Of::Unauthenticated { .. } => Verdict::Final(ErrorKind::Denied),
        Of::NotSupported { .. } | Of::NotImplemented { .. } | Of::InvalidPath { .. } => {
            Verdict::Final(ErrorKind::Invalid)
        }
        _ if is_refused(error) => Verdict::Final(ErrorKind::Io),
        _ if code == Some("InvalidRange") || said.contains("416 Range Not Satisfiable") => {
            Verdict::Final(ErrorKind::Damaged)
        }
        _ => Verdict::Again,
    };
    let hint = match verdict {
        Verdict::Final(ErrorKind::Denied) => " (are the credentials right? see docs/packs.md)",
        _ => "",
    };
    (verdict, format!("{why}{hint}"))
}

/// True if an answer came and was not accepted. Another try would get the same answer.
fn is_refused(error: &object_store::Error) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    causes.any(|cause| cause.is::<Refused>())
}

/// An error with its causes, none twice.
fn chain(error: &object_store::Error) -> String {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let start = text.find(from)? + from.len();
    let len = text[start..].find(to)?;
    Some(&text[start..start + len])
}

/// One line of at most 300 bytes, without what follows the `?` of addresses.
fn shorten(said: &str) -> String {
    let mut line: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(at) = line.find('?') {
        let rest = line[at..].find([' ', ')', ',']).map_or(line.len(), |len| at + len);
        line.replace_range(at..rest, "");
    }
    if line.len() > 300 {
        let end = (0..=300).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

/// An `Arc`, since uploads outlive the call that began them.
pub(super) type Client = Arc<AmazonS3>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_found_in_its_file() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n[ other ]\naws_access_key_id=C\n\
                    aws_secret_access_key = D=\naws_session_token = E\n[half]\naws_access_key_id = F\n";
        let keys = keys_of(text, "default").unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.as_deref()), ("A", "B", None));
        let keys = keys_of(text, "other").unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.as_deref()), ("C", "D=", Some("E")));
        assert!(keys_of(text, "half").is_none());
        assert!(keys_of(text, "none").is_none());
    }

    #[test]
    fn what_a_store_says_is_told_without_what_it_was_asked() {
        let body = "Server returned non-2xx status code: 403: <Error><Code>SignatureDoesNotMatch</Code><Message>It differs.\
                    </Message><AWSAccessKeyId>AKIA</AWSAccessKeyId><StringToSign>secret stuff</StringToSign></Error>";
        let error = object_store::Error::PermissionDenied { path: "a".into(), source: body.into() };
        let (verdict, why) = judge(&error);
        assert_eq!(verdict, Verdict::Final(ErrorKind::Denied));
        assert!(why.starts_with("SignatureDoesNotMatch: It differs.") && !why.contains("AKIA"), "{why}");

        let source = "error sending request for url (http://h/b?X-Amz-Signature=abc)";
        let error = object_store::Error::Generic { store: "S3", source: source.into() };
        let (verdict, why) = judge(&error);
        assert_eq!(verdict, Verdict::Again);
        assert!(why.contains("http://h/b)") && !why.contains("Signature"), "{why}");
    }
}
