//! Messages of a process that has no terminal any more.

use std::os::unix::net::UnixDatagram;

/// A daemon's error, as RFC 3164 numbers them: facility 3, severity 3.
const DAEMON_ERROR: u8 = 3 << 3 | 3;

/// Sends a line to the machine's log. Where there is none, nobody is told.
pub fn log(message: &str) {
    let line = format!("<{DAEMON_ERROR}>outrigger[{}]: {message}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
}
