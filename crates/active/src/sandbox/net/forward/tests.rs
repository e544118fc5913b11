//! Tests of forwarding, on this host's own loopback.

use std::io::{Read, Write};
use std::net::SocketAddr;

use super::super::stage::hand_over;
use super::*;

/// A program's side: the forwarder, and the address inside for `to`. Connections made before
/// `begin` wait.
struct Inside {
    at: SocketAddr,
    reach: Reach,
    listening: Vec<TcpListener>,
    theirs: UnixStream,
}

impl Inside {
    fn new(to: SocketAddr) -> Self {
        let (channel, theirs) = UnixStream::pair().unwrap();
        let listening = vec![TcpListener::bind("127.0.0.1:0").unwrap()];
        let at = listening[0].local_addr().unwrap();
        let to = vec![Destination::parse(&to.to_string()).unwrap()];
        Self { at, reach: Reach { channel, to }, listening, theirs }
    }

    fn begin(self) -> Forward {
        hand_over(&self.theirs, &self.listening).unwrap();
        Forward::start(self.reach).unwrap()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn never() -> bool {
    false
}

#[test]
fn much_goes_both_ways_at_once_and_who_has_sent_all_still_receives() {
    const LEN: usize = 8 << 20;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new(server.local_addr().unwrap());
    let at = inside.at;
    let forward = inside.begin();
    // Each side writes everything before it reads: a side that does not read must not block the
    // other's writes.
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writes = std::thread::spawn(move || writer.write_all(&bytes(LEN)).unwrap());
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        writes.join().unwrap();
        // It knows that it has all; what it says now comes after that.
        stream.write_all(b"end").unwrap();
        got
    });
    let mut stream = TcpStream::connect(at).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        writer.write_all(&bytes(LEN)).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    writes.join().unwrap();
    assert!(answers.join().unwrap() == bytes(LEN));
    assert!(got == [&bytes(LEN)[..], b"end"].concat());
    assert_eq!(forward.end(false, never), Ok(()));
}

#[test]
fn what_was_sent_before_the_end_is_delivered_though_the_server_never_says_a_word() {
    const LEN: usize = 3 << 20;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new(server.local_addr().unwrap());
    let mut early = TcpStream::connect(inside.at).unwrap();
    early.write_all(b"early").unwrap();
    drop(early);
    let mut held = TcpStream::connect(inside.at).unwrap();
    let forward = inside.begin();
    let takes = std::thread::spawn(move || {
        let mut all: Vec<Vec<u8>> = Vec::new();
        let streams: Vec<TcpStream> = (0..2).map(|_| server.accept().unwrap().0).collect();
        for mut stream in &streams {
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            all.push(got);
        }
        // It closes nothing before all is there.
        drop(streams);
        all.sort_by_key(Vec::len);
        all
    });
    held.write_all(&bytes(LEN)).unwrap();
    drop(held);
    assert_eq!(forward.end(false, never), Ok(()));
    let all = takes.join().unwrap();
    assert!(all[0] == b"early" && all[1] == bytes(LEN), "{} {}", all[0].len(), all[1].len());
}

#[test]
fn who_cannot_be_reached_is_told_and_a_program_that_has_gone_before_has_failed() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let inside = Inside::new(nobody);
    let mut waits = TcpStream::connect(inside.at).unwrap();
    waits.write_all(b"hello").unwrap();
    let forward = inside.begin();
    let error = waits.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(forward.end(false, never), Ok(()), "it was told");

    let inside = Inside::new(nobody);
    let mut gone = TcpStream::connect(inside.at).unwrap();
    gone.write_all(b"hello").unwrap();
    drop(gone);
    let why = inside.begin().end(false, never).unwrap_err();
    assert!(why.contains(&nobody.to_string()) && why.contains("cannot be reached"), "{why}");
}

#[test]
fn an_error_on_one_side_is_one_on_the_other() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new(server.local_addr().unwrap());
    let at = inside.at;
    let forward = inside.begin();
    let mut ours = TcpStream::connect(at).unwrap();
    let (theirs, _) = server.accept().unwrap();
    reset(&theirs);
    drop(theirs);
    assert_eq!(ours.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let ours = TcpStream::connect(at).unwrap();
    let (mut theirs, _) = server.accept().unwrap();
    reset(&ours);
    drop(ours);
    assert_eq!(theirs.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(forward.end(false, never), Ok(()));
}

#[test]
fn more_connections_than_are_forwarded_at_once_wait_for_each_other() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new(server.local_addr().unwrap());
    let at = inside.at;
    let forward = inside.begin();
    let count = CONNECTIONS_MAX + 40;
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            got.reverse();
            stream.write_all(&got).unwrap();
        }
    });
    let mut streams: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(at).unwrap()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(format!("<{number}").as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    for (number, mut stream) in streams.into_iter().enumerate() {
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        assert_eq!(got.chars().rev().collect::<String>(), format!("<{number}"));
    }
    assert_eq!(forward.end(false, never), Ok(()));
}

#[test]
fn when_the_attempt_is_stopped_nothing_stays_open() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = Inside::new(server.local_addr().unwrap());
    let at = inside.at;
    let forward = inside.begin();
    let mut ours = TcpStream::connect(at).unwrap();
    ours.write_all(b"x").unwrap();
    let (mut theirs, _) = server.accept().unwrap();
    theirs.read_exact(&mut [0]).unwrap();
    assert_eq!(forward.end(true, never), Ok(()));
    assert_eq!(theirs.read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(ours.read(&mut [0]).unwrap_or(0), 0);
    assert!(TcpStream::connect(at).is_err(), "nobody listens any more");
}
