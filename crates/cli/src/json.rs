//! JSON objects, and the form of times in them.

use jiff::Timestamp;
use outrigger_format::catalogue::Time;
use outrigger_store::text::show;
use serde_json::{Map, Value};

/// A JSON object being made.
#[derive(Default)]
pub struct Object(Map<String, Value>);

impl Object {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_string(), value.into());
        self
    }

    /// With all fields of another one.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// With a name or path, see [`crate::output`].
    #[must_use]
    pub fn with_name(mut self, key: &str, name: &[u8]) -> Self {
        match std::str::from_utf8(name) {
            Ok(text) => self.with(key, text),
            Err(_) => {
                let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
                self.0.insert(format!("{key}_hex"), hex.into());
                self.with(key, show(name))
            }
        }
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Value::Object(object.0)
    }
}

/// RFC 3339 in UTC, with nanoseconds if there are any.
pub fn rfc3339(time: Time) -> String {
    timestamp(time).map_or_else(|| format!("@{}", time.secs), |time| time.to_string())
}

/// As [`rfc3339`], from nanoseconds since 1970.
pub fn rfc3339_nanos(nanos: u64) -> String {
    rfc3339(Time::from_nanos(nanos))
}

/// The same, to be shown otherwise; `None` beyond the years 9999.
pub fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::from_second(time.secs)
        .ok()?
        .checked_add(jiff::SignedDuration::from_nanos(time.nanos.into()))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_text_keep_their_bytes() {
        let object = Object::new().with_name("name", b"a\xff").with_name("path", "\u{e9}\n".as_bytes());
        let text = Value::from(object).to_string();
        assert_eq!(text, r#"{"name":"a\\xff","name_hex":"61ff","path":"é\n"}"#);
    }

    #[test]
    fn times_before_1970_are_times() {
        assert_eq!(rfc3339(Time { secs: -1, nanos: 5 }), "1969-12-31T23:59:59.000000005Z");
        assert_eq!(rfc3339(Time { secs: i64::MAX, nanos: 0 }), format!("@{}", i64::MAX));
    }
}
