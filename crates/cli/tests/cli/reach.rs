//! Programs that may reach single network destinations and nothing else. Without bubblewrap, or a
//! kernel that lets it make namespaces, these tests say so and pass.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_workload::postgres::Server;

use crate::run::{Place, Said};

/// Sends standard input to a host's port, ends its side, and prints the answer, or `-` if there is
/// none.
const ASK: &str = r#"
    use IO::Socket::INET;
    sub ask {
        my ($to, $text) = @_;
        my $socket = IO::Socket::INET->new(PeerAddr => $to, Proto => "tcp", Timeout => 20) or return "-";
        print $socket $text; $socket->flush; $socket->shutdown(1);
        local $/; my $answer = <$socket>; defined $answer && length $answer ? $answer : "-"
    }
"#;

/// True if this machine can isolate programs; prints a line if not.
fn can_reach(place: &Place) -> bool {
    let said = place.run(&run_args(&["--net", "localhost:1"], "exit 0"));
    if said.code != 0 {
        outrigger_workload::skipped!("{}", said.err);
    }
    said.code == 0
}

fn run_args(net: &[&str], script: &str) -> Vec<String> {
    let script = format!("{ASK} {script}");
    let head = ["run", "--quiet", "--pattern", "1R->0", "--tries", "1", "--in", "in"];
    let all = head.iter().chain(net).copied().chain(["--", "perl", "-e", &script]);
    all.map(str::to_string).collect()
}

/// The program's standard error, and its exit code.
fn told(place: &Place, net: &[&str], script: &str) -> (i32, String) {
    let said = place.run(&run_args(net, script));
    let jobs = place.done(&["jobs", "--json"]).json();
    let job = jobs["jobs"][0]["job"].to_string();
    let logs = place.done(&["job", "logs", &job, "--json"]).json();
    (said.code, logs["splits"][0]["log"].as_str().unwrap_or_default().to_string())
}

/// A server on this host that answers with its name and its input, and counts its clients.
fn server(name: &'static str) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let (port, came) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&came);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let mut got = String::new();
            // A client that asks for something else, or nothing, is no failure of the server.
            if stream.read_to_string(&mut got).is_ok() {
                let _ = stream.write_all(format!("{name}: {got}").as_bytes());
            }
        }
    });
    (port, came)
}

fn place() -> Place {
    let place = Place::plain();
    place.write("in", "input");
    place.done(&["put", "in"]);
    place
}

/// A name of this host other than `localhost`, under which a server on all addresses can be
/// reached.
fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_string();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_known = (name.as_str(), port).to_socket_addrs().is_ok_and(|mut all| all.any(|one| one.is_ipv4()))
        && TcpStream::connect((name.as_str(), port)).is_ok();
    if !is_known {
        outrigger_workload::lacking!("this host's own name, `{name}`, leads nowhere");
    }
    is_known.then_some(name)
}

/// This host's address as seen from elsewhere. Nothing is sent.
fn outer_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip().to_string())
        .filter(|address| !address.starts_with("127."))
}

#[test]
fn a_program_reaches_what_was_granted_and_nothing_else() {
    let place = place();
    if !can_reach(&place) {
        return;
    }
    let ((good, came), (other, none)) = (server("good"), server("other"));
    let mut granted = vec!["127.0.0.1".to_string(), "127.1.2.3".to_string()];
    granted.extend(own_name());
    granted.extend(outer_address());
    for host in &granted {
        let to = format!("{host}:{good}");
        let (code, log) =
            told(&place, &["--net", &to], &format!("local $/; print STDERR ask('{to}', <STDIN>)"));
        assert_eq!((code, log.as_str()), (0, "good: input"), "{to}");
    }
    let reached = came.load(Ordering::SeqCst);
    // Another port or another address of the same host, by name or number, and destinations
    // outside.
    let mut tries: Vec<String> = granted.iter().map(|host| format!("{host}:{other}")).collect();
    tries.extend(granted[1..].iter().map(|host| format!("{host}:{good}")));
    tries.extend([format!("localhost:{other}"), "192.0.2.1:80".into(), "example.org:80".into()]);
    let asks: String = tries.iter().map(|to| format!("print STDERR ask('{to}', 'x');")).collect();
    let script = format!("{asks} open F, '/proc/net/dev'; while (<F>) {{ print STDERR $1 if /^ *(\\w+):/ }}");
    let (code, log) = told(&place, &["--net", &format!("{}:{good}", granted[0])], &script);
    assert_eq!((code, log), (0, format!("{}lo", "-".repeat(tries.len()))), "{tries:?}");
    assert_eq!((came.load(Ordering::SeqCst), none.load(Ordering::SeqCst)), (reached, 0));
    // And without --net there is nothing.
    let (code, log) = told(&place, &[], &format!("print STDERR ask('127.0.0.1:{good}', 'x')"));
    assert_eq!((code, log.as_str()), (0, "-"));
}

#[test]
fn names_are_known_inside_as_they_were_granted() {
    let place = place();
    let (Some(name), true) = (own_name(), can_reach(&place)) else { return };
    let (good, _) = server("good");
    let net = [format!("--net={name}:{good}"), format!("--net=localhost:{good}")];
    let net: Vec<&str> = net.iter().map(String::as_str).collect();
    let script = format!(
        "print STDERR ask('{name}:{good}', 'a'), ' ', ask('localhost:{good}', 'b'), ' '; \
         for ('{name}', 'localhost', 'example.org') {{ my @found = gethostbyname($_); print STDERR @found ? join('.', unpack('C4', $found[4])) : '-', ' ' }}"
    );
    let (code, log) = told(&place, &net, &script);
    assert_eq!((code, log.as_str()), (0, "good: a good: b 127.64.0.1 127.0.0.1 - "));
    let job = place.done(&["job", "show", "2", "--json"]).json();
    let reach: Vec<&str> = job["reach"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
    assert_eq!(reach, [format!("{name}:{good}"), format!("localhost:{good}")]);
    assert_eq!(job["net"], false);
    assert!(place.done(&["job", "show", "2"]).text().contains(&format!("reaches   {name}:{good}")));
}

#[test]
fn low_ports_and_other_addresses_are_there_for_whoever_runs_it() {
    let place = place();
    if !can_reach(&place) {
        return;
    }
    let mut wanted = vec![("127.0.0.1:22", "0100007F:0016"), ("192.0.2.1:80", "010200C0:0050")];
    if Path::new("/proc/net/if_inet6").exists() {
        wanted.push(("[::1]:443", "00000000000000000000000001000000:01BB"));
    }
    let net: Vec<&str> = wanted.iter().flat_map(|(to, _)| ["--net", *to]).collect();
    // The listening ports, as the kernel lists them.
    let script = "for (qw(tcp tcp6)) { open F, \"/proc/net/$_\"; push @all, map { /: ([0-9A-F]+:[0-9A-F]+) \\S+ 0A / ? $1 : () } <F> } print STDERR join ' ', sort @all";
    let args = run_args(&net, script);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(mut command) = place.unprivileged(&args) else { return };
    let said = Said::from(command.output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let logs = place.unprivileged(&["job", "logs", "2", "--json"]).unwrap().output().unwrap();
    let mut listens: Vec<&str> = wanted.iter().map(|(_, listens)| *listens).collect();
    listens.sort_unstable();
    assert_eq!(Said::from(logs).json()["splits"][0]["log"], listens.join(" "));
}

#[test]
fn who_is_not_there_is_seen_as_a_connection_that_is_reset() {
    let place = place();
    if !can_reach(&place) {
        return;
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let script = format!(
        "my $s = IO::Socket::INET->new(PeerAddr => '{closed}', Proto => 'tcp') or die 'refused'; \
         my $got = sysread $s, my $x, 10; print STDERR defined $got ? 'end' : $!{{ECONNRESET}} ? 'reset' : $!"
    );
    let (code, log) = told(&place, &["--net", &closed.to_string()], &script);
    assert_eq!((code, log.as_str()), (0, "reset"));
}

#[test]
fn what_makes_no_sense_is_refused_and_net_alone_is_everything() {
    let place = place();
    for (args, says) in [
        (&["--sandbox", "off", "--net", "db:1"][..], "--sandbox off"),
        (&["--net", "--net", "db:1"], "everything already"),
        (&["--net", "db"], "`db` is not HOST:PORT"),
        (&["--net=::1:80"], "in brackets"),
    ] {
        let said = place.run(&run_args(args, ""));
        assert!(said.code == 2 && said.err.contains(says), "{args:?}: {} {}", said.code, said.err);
    }
    let said = place.run(&["rule", "add", "--net", "tell", "--in", "in", "--", "true"]);
    assert!(said.err.contains("`tell` is not HOST:PORT") && said.err.contains("alone"), "{}", said.err);
    if !can_reach(&place) {
        return;
    }
    let (good, _) = server("good");
    for net in [&["--net"][..], &["--net", "--env", "A=b"]] {
        let (code, log) = told(&place, net, &format!("print STDERR ask('127.0.0.1:{good}', 'x')"));
        assert_eq!((code, log.as_str()), (0, "good: x"), "{net:?}");
    }
}

#[test]
fn a_rule_grants_its_jobs_what_it_was_made_with() {
    let place = place();
    if !can_reach(&place) {
        return;
    }
    let ((good, _), (other, none)) = (server("good"), server("other"));
    let script = format!("{ASK} print STDERR ask('127.0.0.1:{good}', 'x'), ask('127.0.0.1:{other}', 'x')");
    let net = format!("127.0.0.1:{good}");
    let add = [
        "rule",
        "add",
        "tell",
        "--on",
        "create",
        "--existing",
        "--in",
        "in",
        "--pattern",
        "1R->0",
        "--net",
        &net,
    ];
    place.done(&[&add[..], &["--", "perl", "-e", &script]].concat());
    place.done(&["node", "--allow-root", "--until-idle", "--quiet"]);
    let logs = place.done(&["job", "logs", "2", "--json"]).json();
    assert_eq!(logs["splits"][0]["log"], "good: x-", "{logs}");
    assert_eq!(none.load(Ordering::SeqCst), 0);
}

/// Forwards connections on this host to PostgreSQL's socket.
fn postgres_over_tcp(server: &Server) -> SocketAddr {
    let socket = std::fs::read_dir(server.dir()).unwrap().map(|entry| entry.unwrap().path());
    let is_socket = |path: &PathBuf| {
        path.to_string_lossy().contains(".s.PGSQL") && path.extension().is_some_and(|end| end != "lock")
    };
    let socket: PathBuf = socket.into_iter().find(is_socket).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut below) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (mut answers, mut to) = (below.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut client, &mut below);
                let _ = below.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn the_example_loads_into_a_database_that_is_all_it_can_reach() {
    let place = place();
    let Some(server) = Server::shared() else { return };
    if !can_reach(&place) || !Path::new("/usr/bin/psql").exists() {
        outrigger_workload::skipped!("it needs psql (apt-get install postgresql-client) and a sandbox");
        return;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/active/load");
    let schema = server.fresh();
    let tables = std::fs::read_to_string(example.join("tables.sql")).unwrap();
    server.sql(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}"));
    let rows: String = (0..900).map(|row| format!("s{},{}.5\n", row % 7, row)).collect();
    place.write("rows.csv", &rows);
    place.done(&["put", "rows.csv"]);
    let at = postgres_over_tcp(server);
    let load = example.join("load.sh").canonicalize().unwrap().display().to_string();
    let net = format!("localhost:{}", at.port());
    let port = format!("PGPORT={}", at.port());
    let path = format!("PGOPTIONS=--search_path={schema}");
    let work = [
        "run",
        "--pattern",
        "1R->0",
        "--in",
        "rows.csv",
        "--records",
        "lines",
        "--splits",
        "3",
        "--net",
        &net,
    ];
    let env = [
        "--env",
        "PGHOST=localhost",
        "--env",
        &port,
        "--env",
        "PGUSER=tester",
        "--env",
        "PGDATABASE=postgres",
    ];
    place.done(&[&work[..], &env[..], &["--env", &path, "--", &load]].concat());
    let count = server.sql(&format!("SELECT count(*), sum(value)::bigint FROM {schema}.measurement"));
    let sum: f64 = (0..900).map(|row| f64::from(row) + 0.5).sum();
    assert_eq!(count, format!("900|{sum}"));
    server.sql(&format!("SET client_min_messages = warning; DROP SCHEMA {schema} CASCADE"));
}

/// Abstract sockets belong to the network namespace. A program with the whole network shares the
/// host's.
#[test]
fn with_all_of_the_network_a_program_does_not_reach_the_hosts_abstract_sockets() {
    let place = place();
    if !can_reach(&place) {
        return;
    }
    let (good, _) = server("good");
    let name = format!("outrigger-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        "use Socket; sub reach {{ my ($name) = @_; socket(my $to, AF_UNIX, SOCK_STREAM, 0); \
         connect($to, pack_sockaddr_un(\"\\0$name\")) ? 'reached' : $!{{EPERM}} ? 'refused' : $! }} \
         socket(my $own, AF_UNIX, SOCK_STREAM, 0); bind($own, pack_sockaddr_un(\"\\0{name}-own\")); listen($own, 1); \
         print STDERR join ' ', ask('127.0.0.1:{good}', 'x'), reach('{name}-own'), reach('{name}')"
    );
    // Without a sandbox the socket is reachable.
    let (code, log) = told(&place, &["--net", "--sandbox", "off"], &script);
    assert_eq!((code, log.as_str()), (0, "good: x reached reached"));
    let said = place.run(&run_args(&["--net"], "exit 0"));
    assert_eq!(said.code, 0, "{}", said.err);
    if said.err.contains("Landlock's scopes") {
        outrigger_workload::skipped!("{}", said.err);
        return;
    }
    assert_eq!(said.err, "", "nothing is missing");
    let (code, log) = told(&place, &["--net"], &script);
    assert_eq!((code, log.as_str()), (0, "good: x reached refused"));
}
