//! Agents yield while requests wait in any mount of their host.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Host, Shared, command};

/// A mount that states how many requests wait in it, and counts how often it was asked.
#[derive(Default)]
struct Told {
    waiting: AtomicU64,
    asked: AtomicU64,
}

/// A process that is killed at the end of its test, even after a panic.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Told {
    fn listen(self: &Arc<Self>, host: &Host) {
        let stores = fs::read_dir(host.place.path("cache")).unwrap();
        let mut mounts: Vec<PathBuf> = stores.map(|store| store.unwrap().path().join("mounts")).collect();
        mounts.retain(|mounts| mounts.is_dir());
        let [mounts] = &mounts[..] else { panic!("{mounts:?}") };
        let dir = mounts.join("fade");
        fs::create_dir(&dir).unwrap();
        let listener = UnixListener::bind(dir.join("mount.sock")).unwrap();
        let told = Arc::clone(self);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (told, stream) = (Arc::clone(&told), stream.unwrap());
                std::thread::spawn(move || told.answer(&stream));
            }
        });
    }

    fn answer(&self, stream: &UnixStream) {
        for _ in BufReader::new(stream).lines().map_while(Result::ok) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let waiting = self.waiting.load(Ordering::SeqCst);
            let status = format!(
                r#"{{"operations_read":0,"operations_write":0,"reading_seconds":0,"writing_seconds":0,"writing_paced_seconds":0,"waiting_operations":{waiting}}}"#
            );
            let mut stream = stream;
            if writeln!(stream, "{status}").is_err() {
                return;
            }
        }
    }
}

#[test]
fn an_agent_begins_nothing_while_others_wait_in_one_of_its_hosts_mounts() {
    let Some(shared) = Shared::new() else { return };
    let host = shared.mount();
    let told = Arc::new(Told { waiting: AtomicU64::new(1), asked: AtomicU64::new(0) });
    told.listen(&host);
    host.write("in", "text");
    let mut agent = command(&host.place, &host.url, &["node", "--allow-root", "--name", "one"]);
    let agent = agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _agent = Ends(agent);
    let until = Instant::now() + Duration::from_secs(60);
    let wait_for = |is: &dyn Fn() -> bool, what: &str| {
        while !is() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // Without an agent the command would start a background process, which does not yield.
    wait_for(&|| host.done(&["node", "list"]).text().contains("one"), "the agent never began");
    host.done(&[
        "run",
        "--detach",
        "--sandbox",
        "off",
        "--in",
        "in",
        "--out",
        "out",
        "--",
        "tr",
        "a-z",
        "A-Z",
    ]);
    wait_for(&|| told.asked.load(Ordering::SeqCst) >= 3, "the mount was never asked");
    assert_eq!(host.done(&["job", "show", "1", "--json"]).json()["splits_waiting"], 1);
    told.waiting.store(0, Ordering::SeqCst);
    host.done(&["job", "wait", "1", "--timeout", "60"]);
    host.must_read("out", "TEXT");
    host.done(&["node", "drain", "one", "--wait"]);
    shared.check(&host);
}
