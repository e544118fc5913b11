//! Errors: a caller gets an error number, and the operators of the mount get a message.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use outrigger_store::ops::errors;
use outrigger_store::{Error, ErrorKind};
use rustix::io::Errno;

use crate::asked::Asked;

/// The last messages, which are not repeated: a program that reads a damaged file again and again
/// says nothing new.
const REMEMBERED: usize = 64;

/// A report; displayed, it is its message.
#[derive(Clone, Debug)]
pub struct Report {
    /// A sentence.
    pub message: String,
    /// The kind of the error, if the report is about one.
    pub kind: Option<ErrorKind>,
    /// The request that was being answered, if any. A message is reported once, so this is the
    /// first of perhaps many.
    pub asked: Option<Asked>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Turns errors of the store into error numbers, and gives `tell` those that a number does not
/// explain.
pub struct Reports {
    tell: Box<dyn Fn(&Report) + Send + Sync>,
    reported: Mutex<VecDeque<String>>,
}

impl Reports {
    /// Reports go to `tell`, one sentence at a time.
    pub fn new(tell: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        Self { tell: Box::new(tell), reported: Mutex::default() }
    }

    /// Reports that go where those of `other` go.
    pub fn shared(other: &Arc<Self>) -> Self {
        let other = Arc::clone(other);
        Self::new(move |report| other.say(report.message.clone(), report.kind))
    }

    /// The error number of an error of the store, which is reported if it is not the caller's own
    /// doing.
    pub fn errno(&self, error: &Error) -> Errno {
        let errno = errno(error.kind());
        if matches!(errno, Errno::IO | Errno::STALE) {
            self.say(error.to_string(), Some(error.kind()));
        }
        errno
    }

    /// As [`Reports::errno`], for work that no caller has asked for: always reported.
    pub fn errno_of_our_own(&self, error: &Error) -> Errno {
        self.say(error.to_string(), Some(error.kind()));
        errno(error.kind())
    }

    /// As [`Reports::errno`], with the object that was read.
    pub fn errno_at(&self, error: Error, what: impl std::fmt::Display) -> Errno {
        self.errno(&error.context(what))
    }

    /// Reports something that is no error.
    pub fn note(&self, message: String) {
        self.say(message, None);
    }

    fn say(&self, message: String, kind: Option<ErrorKind>) {
        let mut reported = self.reported.lock().expect("no panic while held");
        if reported.contains(&message) {
            return;
        }
        if reported.len() == REMEMBERED {
            reported.pop_front();
        }
        reported.push_back(message.clone());
        let asked = Asked::now();
        if let Some(kind) = kind {
            errors::met(asked.map_or("in the background", |asked| asked.operation), kind, &message);
        }
        (self.tell)(&Report { message, kind, asked });
    }
}

fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::Busy | ErrorKind::Changed => Errno::BUSY,
        ErrorKind::Denied => Errno::ACCESS,
        ErrorKind::Destroyed => Errno::KEYREVOKED,
        ErrorKind::Full => Errno::NOSPC,
        ErrorKind::Cancelled => Errno::INTR,
        ErrorKind::Fenced => Errno::STALE,
        ErrorKind::Damaged | ErrorKind::Newer | ErrorKind::Io => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn damage_is_told_once_and_names_that_are_missing_are_not() {
        let reported = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reported);
        let reports = Reports::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..3 {
            assert_eq!(reports.errno(&Error::damaged("pack 1")), Errno::IO);
            assert_eq!(reports.errno(&Error::new(ErrorKind::NotFound, "a")), Errno::NOENT);
        }
        assert_eq!(reported.load(Ordering::Relaxed), 1);
        assert_eq!(reports.errno_at(Error::damaged("pack 1"), "inode 7"), Errno::IO);
        assert_eq!(reported.load(Ordering::Relaxed), 2);
    }
}
