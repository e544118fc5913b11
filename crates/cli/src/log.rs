//! Where a mount reports failures, with the request that met each, if one did.

use std::os::unix::net::UnixDatagram;

use outrigger_fuse::report::Report;
use outrigger_store::ErrorKind;
use outrigger_store::note::Level;
use outrigger_store::text::show;

use crate::json::Object;
use crate::operation;
use crate::output::complain;

/// A daemon's facility in the numbers of syslog (RFC 5424).
const DAEMON: u8 = 3;
const ERROR: u8 = 3;
const NOTICE: u8 = 5;
/// The socket on which systemd's journal takes fields.
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";

/// See the module.
pub enum Log {
    /// Sentences on standard error.
    Terminal,
    /// Lines of the operation's log.
    Kept,
    /// The machine's log: fields for systemd's journal, or else lines for syslog. Without either,
    /// reports are dropped.
    Machine,
}

impl Log {
    /// Reports something.
    pub fn tell(&self, report: &Report) {
        match self {
            Self::Terminal => complain(&report.message),
            Self::Kept => {
                let (word, weight) = match level(report) {
                    ERROR => ("error", Level::Error),
                    _ => ("notice", Level::Info),
                };
                operation::line(word, weight, "report", &report.message, object(report));
            }
            Self::Machine => {
                let to = |path: &str, bytes: &[u8]| {
                    UnixDatagram::unbound().and_then(|socket| socket.send_to(bytes, path))
                };
                if to(JOURNAL, fields(report).as_bytes()).is_err() {
                    let _ = to(SYSLOG, line(report).as_bytes());
                }
            }
        }
    }

    /// Reports a failure that belongs to no request.
    pub fn tell_failure(&self, message: &str) {
        self.tell(&Report { message: message.to_owned(), kind: Some(ErrorKind::Io), asked: None });
    }
}

fn level(report: &Report) -> u8 {
    if report.kind.is_some() { ERROR } else { NOTICE }
}

fn kind(report: &Report) -> Option<String> {
    report.kind.map(|kind| format!("{kind:?}").to_lowercase())
}

/// The fields of a line besides its message.
fn object(report: &Report) -> Object {
    let mut object = Object::new();
    if let Some(kind) = kind(report) {
        object = object.with("kind", kind);
    }
    if let Some(asked) = report.asked {
        let of = Object::new().with("id", asked.request).with("operation", asked.operation);
        let of = of.with("inode", asked.inode).with("pid", asked.pid).with("uid", asked.uid);
        object = object.with("request", of);
    }
    object
}

/// The message on one line, escaped so that a terminal that shows the log obeys nothing in it.
fn message(report: &Report) -> String {
    show(report.message.replace('\n', " ").as_bytes())
}

/// Fields for the journal: one per line, so a value may have no line end.
fn fields(report: &Report) -> String {
    let message = message(report);
    let mut fields = format!("PRIORITY={}\nSYSLOG_IDENTIFIER=outrigger\nMESSAGE={message}\n", level(report));
    if let Some(kind) = kind(report) {
        fields += &format!("OUTRIGGER_KIND={kind}\n");
    }
    if let Some(asked) = report.asked {
        fields += &format!(
            "OUTRIGGER_REQUEST={}\nOUTRIGGER_OPERATION={}\nOUTRIGGER_INODE={}\nOUTRIGGER_PID={}\nOUTRIGGER_UID={}\n",
            asked.request, asked.operation, asked.inode, asked.pid, asked.uid
        );
    }
    fields
}

/// As syslog daemons take it (RFC 3164).
fn line(report: &Report) -> String {
    let head =
        format!("<{}>outrigger[{}]: {}", DAEMON << 3 | level(report), std::process::id(), message(report));
    match report.asked {
        None => head,
        Some(asked) => format!(
            "{head} [request {} {}, inode {}, process {} of user {}]",
            asked.request, asked.operation, asked.inode, asked.pid, asked.uid
        ),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_fuse::asked::Asked;
    use serde_json::Value;

    use super::*;

    fn report() -> Report {
        let asked = Asked { request: 12, operation: "READ", inode: 7, pid: 33, uid: 1000 };
        Report { message: "a pack\nis damaged".into(), kind: Some(ErrorKind::Damaged), asked: Some(asked) }
    }

    #[test]
    fn every_form_names_the_request() {
        let object = Value::from(object(&report()));
        assert_eq!(object["request"]["id"], 12);
        assert_eq!(object["request"]["operation"], "READ");
        assert_eq!(object["kind"], "damaged");
        let fields = fields(&report());
        assert!(fields.lines().all(|line| line.contains('=')), "{fields}");
        assert!(fields.contains("MESSAGE=a pack is damaged\n") && fields.contains("OUTRIGGER_REQUEST=12\n"));
        assert!(line(&report()).ends_with("[request 12 READ, inode 7, process 33 of user 1000]"));
    }

    #[test]
    fn what_nobody_asked_for_has_no_request() {
        let note = Report { message: "a note".into(), kind: None, asked: None };
        let said = Value::from(object(&note));
        assert!(said.get("request").is_none() && said.get("kind").is_none());
        assert!(line(&note).starts_with("<29>outrigger[") && !line(&note).contains("request"));
    }
}
