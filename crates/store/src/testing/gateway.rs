//! A real gateway for S3, as `scripts/cluster.sh` starts one: the bucket owner's requests besides
//! packs, and the documented rights for others (docs/packs.md).

use std::process::Command;

use crate::backend::S3Location;

/// The owner's keys, a name and the secret.
///
/// # Panics
/// When the environment has none.
pub fn owner_keys() -> [String; 2] {
    ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        .map(|name| std::env::var(name).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The keys of `writer` or `reader`, which may do only what a bucket's policy allows.
///
/// # Panics
/// When the environment has none.
pub fn keys_of(user: &str) -> [String; 2] {
    let [id, secret] = owner_keys();
    [id + &user.to_uppercase(), secret]
}

/// Asks for something that is no pack's, as the bucket's owner, and returns the answer.
///
/// # Panics
/// When it is refused.
pub fn ask(method: &str, location: &S3Location, query: &str, body: &str) -> String {
    let (said, text) = try_to_ask(method, location, query, body, &[]);
    said.unwrap_or_else(|why| panic!("{method} {query}: {why} {text}"))
}

/// As [`ask`], with these headers; the first value is the answer, or why it was refused.
///
/// # Panics
/// When there is no `curl`.
pub fn try_to_ask(
    method: &str,
    location: &S3Location,
    query: &str,
    body: &str,
    headers: &[&str],
) -> (Result<String, String>, String) {
    let endpoint = location.endpoint.as_deref().unwrap_or_default();
    let url = format!("{endpoint}/{}{query}", location.bucket);
    let output = Command::new("curl")
        .args(["-fsS", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &owner_keys().join(":")])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-X", method])
        .args(headers.iter().flat_map(|header| ["-H", header]))
        .args(["--data-binary", body, &url])
        .output();
    let output = output.unwrap_or_else(|error| panic!("curl: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() { (Ok(out), err) } else { (Err(err), out) }
}

/// All that is in a bucket, uploads that were not ended too: names, lengths, when they were
/// written.
///
/// # Panics
/// When it is more than one page.
pub fn listing(location: &S3Location) -> String {
    let objects = ask("GET", location, "?list-type=2", "");
    assert!(objects.contains("<IsTruncated>false</IsTruncated>"), "{objects}");
    objects + &ask("GET", location, "?uploads=", "")
}

/// The policy of docs/packs.md, for a bucket and users: a writer has all its statements, a reader
/// those for reading.
///
/// # Panics
/// When the page has none.
pub fn policy(location: &S3Location) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/packs.md");
    let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{page}: {error}"));
    let text = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    let text = text.unwrap_or_else(|| panic!("{page} has no policy"));
    let text = text.replace("bucket/store/", &format!("{}/{}/", location.bucket, location.prefix));
    let text = text.replace(":::bucket", &format!(":::{}", location.bucket));
    let documented: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{page}: {error}"));
    let mut statements = Vec::new();
    for user in ["writer", "reader"] {
        for statement in documented["Statement"].as_array().into_iter().flatten() {
            let mut statement = statement.clone();
            statement["Principal"] = serde_json::json!({ "AWS": [format!("arn:aws:iam:::user/{user}")] });
            if user == "reader" && statement["Action"].is_array() {
                statement["Action"] = "s3:GetObject".into();
            }
            statements.push(statement);
        }
    }
    serde_json::json!({ "Version": documented["Version"], "Statement": statements }).to_string()
}
