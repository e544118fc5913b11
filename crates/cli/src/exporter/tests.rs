use std::net::SocketAddr;

use super::*;

fn exporter(address: &Address) -> Exporter {
    let mut exporter = Exporter::bind(address).unwrap();
    exporter.start("text/x", Arc::new(|| Some("a 1\n".to_string()))).unwrap();
    exporter
}

/// On a port that was free a moment ago.
fn on_tcp() -> (SocketAddr, Exporter) {
    loop {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if let Ok(mut exporter) = Exporter::bind(&Address::Tcp(free)) {
            exporter.start("text/x", Arc::new(|| Some("a 1\n".to_string()))).unwrap();
            return (free, exporter);
        }
    }
}

fn ask(mut stream: impl Connection, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    // The exporter may hang up on a long request before it has read all of it.
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_scraper_gets_the_metrics_and_others_are_told_what_is_wrong() {
    let (address, _exporter) = on_tcp();
    let ask = |request: &str| ask(TcpStream::connect(address).unwrap(), request.as_bytes());
    let all =
        "HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 4\r\nConnection: close\r\n\r\na 1\n";
    assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"), all);
    assert_eq!(ask("GET /metrics?x=y HTTP/1.0\n\n"), all);
    assert_eq!(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), all.strip_suffix("a 1\n").unwrap());
    for (request, code) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /metrics HTTP/2\r\n\r\n", "505"),
        ("hello\r\n\r\n", "400"),
        ("\r\n\r\n", "400"),
    ] {
        let answer = ask(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{request:?}: {answer}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(REQUEST_BYTES));
    let answer = ask(&long[..REQUEST_BYTES]);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn whoever_says_nothing_keeps_few_places_and_not_for_long() {
    let (address, _exporter) = on_tcp();
    let silent: Vec<TcpStream> = (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
    let request = b"GET /metrics HTTP/1.1\r\n\r\n";
    // They are accepted in the order they came.
    assert_eq!(ask(TcpStream::connect(address).unwrap(), request), "", "all places are taken");
    drop(silent);
    let deadline = Instant::now() + PATIENCE;
    while !ask(TcpStream::connect(address).unwrap(), request).ends_with("a 1\n") {
        assert!(Instant::now() < deadline);
        outrigger_clock::sleep(RETRY);
    }
}

#[test]
fn a_socket_is_removed_at_the_end_and_a_stale_one_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.sock");
    let address = Address::Unix(path.clone());
    // A killed process leaves its socket behind.
    drop(UnixListener::bind(&path).unwrap());
    let first = exporter(&address);
    assert!(ask(UnixStream::connect(&path).unwrap(), b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("a 1\n"));
    assert_eq!(Exporter::bind(&address).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    let trace = first.trace().unwrap();
    drop(first);
    assert!(!path.exists());
    // The socket of a later process stays.
    std::fs::write(&path, "not ours").unwrap();
    let keep = std::fs::hard_link(&path, dir.path().join("kept"));
    keep.unwrap();
    Trace { inode: trace.inode.wrapping_add(1 << 40), ..trace }.remove();
    assert!(path.exists());
    assert!(Exporter::bind(&address).err().unwrap().to_string().contains("no socket"));
}
