//! Programs in the path of a file that is written on another host. An agent there reads the file
//! from the mount and stores it for the mount (delegated upload). Either may be killed.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Host, Shared, command, until};
use crate::run::{Agents, Said, noise};

/// A host that offers its files while they are written, and one with an agent.
struct Site {
    agents: Agents,
    one: Host,
    two: Host,
    shared: Shared,
}

/// Bytes of a file of these tests: several blocks, and far from a small file.
const LEN: usize = 6 << 20;

impl Site {
    fn new(pattern: &str, more: &[&str]) -> Option<Self> {
        // One test looks into the database.
        let shared = Shared::with(&["--no-encryption"])?;
        let one = Host::with(shared.url(), &[], &["--serve-followers", "127.0.0.1:0"]);
        let two = shared.mount();
        fs::create_dir(one.path("raw")).unwrap();
        let mut site = Self { agents: Agents::default(), one, two, shared };
        let mark = site.one.place.path("mark").display().to_string();
        let script = format!("tee -a {mark} | tr a-z A-Z");
        let head = "rule add r --quiet --on write --in raw/* --sandbox off --attach path --pattern";
        let head: Vec<&str> = head.split(' ').chain([pattern]).collect();
        site.one.done(&[&head[..], more, &["--", "sh", "-c", &script]].concat());
        site.agent("two");
        Some(site)
    }

    fn agent(&mut self, name: &str) {
        let host = if name.starts_with("two") { &self.two } else { &self.one };
        self.agents.start(command(
            &host.place,
            &host.url,
            &["node", "--allow-root", "--name", name, "--slots", "2"],
        ));
        self.until(|| self.one.done(&["node", "list"]).text().contains(name));
    }

    #[track_caller]
    fn until(&self, is: impl FnMut() -> bool) {
        // The split of another host's agent is free when its lease is over.
        until(&self.one, 180, &["jobs"], is);
    }

    /// Kills the agents, and checks that no content is pinned and the store is whole.
    fn end_with_nothing_held(mut self) {
        drop(std::mem::take(&mut self.agents));
        self.nothing_is_held();
        self.shared.check(&self.one);
    }

    fn read(&self) -> u64 {
        fs::metadata(self.one.place.path("mark")).map_or(0, |mark| mark.len())
    }

    /// Writes a file in a separate process, the only one that has it open. It waits before the end
    /// until it is told to go on.
    fn write(&self, name: &str, data: &[u8]) -> Writer {
        let from = self.one.place.path(format!("data-{name}"));
        fs::write(&from, data).unwrap();
        let script =
            format!("{{ cat {}; read go; printf 'the end'; }} | tee raw/{name} > /dev/null", from.display());
        let mut command = Command::new("sh");
        let command = command.args(["-c", &script]).current_dir(self.one.path(""));
        Writer(command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// A counter of the mount on the first host.
    fn counted(&self, name: &str) -> u64 {
        let stores = fs::read_dir(self.one.place.path("cache")).unwrap().flatten();
        let mounts = stores.flat_map(|store| fs::read_dir(store.path().join("mounts")).into_iter().flatten());
        let dir = mounts.flatten().map(|mount| mount.path()).find(|path| path.join("mount.sock").exists());
        let mut stream = UnixStream::connect(dir.unwrap().join("mount.sock")).unwrap();
        stream.write_all(b"status\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()[name].as_u64().unwrap()
    }

    fn wait(&self, job: &str) -> Said {
        let args = ["job", "wait", job, "--timeout", "120"];
        Said::from(command(&self.two.place, &self.two.url, &args).output().unwrap())
    }

    #[track_caller]
    fn must_be(&self, name: &str, data: &[u8]) {
        for host in [&self.one, &self.two] {
            assert!(fs::read(host.path(name)).unwrap() == data, "{name}");
        }
    }

    /// Checks that delegated uploads pin nothing any more, once killed agents are known to be gone.
    fn nothing_is_held(&self) {
        self.two.done(&["gc"]);
        let schema = &self.shared.schema;
        let held = format!("SELECT count(*) FROM {schema}.held WHERE holder LIKE 'early:%'");
        let noted = format!("SELECT count(*) FROM {schema}.record WHERE kind IN ('open-version', 'knock')");
        self.until(|| self.shared.server.sql(&held) == "0" && self.shared.server.sql(&noted) == "0");
    }
}

/// A process that writes; it is killed when this is dropped.
struct Writer(Child);

impl Writer {
    fn goes_on(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(seed: u64) -> Vec<u8> {
    noise(seed, LEN).into_iter().map(|byte| b'a' + byte % 16).collect()
}

fn with_end(data: &[u8]) -> Vec<u8> {
    [data, b"the end"].concat()
}

#[test]
fn an_agent_on_another_host_reads_the_file_and_stores_it_and_its_own_leave_it_to_that() {
    let Some(mut site) = Site::new("1W->2W", &["--out", "up/{name}", "--tries", "1"]) else { return };
    site.agent("one");
    let data = text(1);
    let mut writer = site.write("a", &data);
    site.until(|| site.read() == LEN as u64);
    let jobs_of = |name: &str| {
        let nodes = site.one.done(&["node", "list", "--json"]).json();
        let nodes = nodes["nodes"].as_array().unwrap().clone();
        nodes.into_iter().find(|node| node["name"] == name).unwrap()["jobs"].clone()
    };
    assert_eq!((jobs_of("two"), jobs_of("one")), (serde_json::json!([1]), serde_json::json!([])));
    writer.goes_on();
    let said = site.wait("1");
    assert_eq!(said.code, 0, "{}", said.err);
    let data = with_end(&data);
    site.must_be("raw/a", &data);
    site.must_be("up/a", &data.to_ascii_uppercase());
    assert_eq!(site.read(), data.len() as u64, "it was read once");
    assert_eq!(site.counted("new_bytes"), 0, "the mount has stored none of it");
    // The writer changes data that was read: the program runs again, over the new content.
    fs::write(site.one.place.path("mark"), "").unwrap();
    let mut data = text(2);
    let mut writer = site.write("b", &data);
    site.until(|| site.read() == LEN as u64);
    let file = OpenOptions::new().write(true).open(site.one.path("raw/b")).unwrap();
    file.write_all_at(b"changed", 9).unwrap();
    drop(file);
    writer.goes_on();
    assert_eq!(site.wait("2").code, 0);
    data[9..16].copy_from_slice(b"changed");
    let data = with_end(&data);
    site.must_be("raw/b", &data);
    site.must_be("up/b", &data.to_ascii_uppercase());
    // The writer gives the file up.
    fs::write(site.one.place.path("mark"), "").unwrap();
    let mut writer = site.write("c", &text(3));
    site.until(|| site.read() == LEN as u64);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(site.one.path("raw/c"), "user.outrigger.abort", b"1", flags).unwrap();
    writer.goes_on();
    assert_eq!(site.wait("3").code, 1);
    site.until(|| !site.two.path("raw/c").exists());
    assert!(!site.two.path("up/c").exists());
    site.end_with_nothing_held();
}

#[test]
fn files_that_are_closed_at_the_same_time_are_all_stored_by_agents() {
    let Some(mut site) = Site::new("1W->2W", &["--out", "up/{name}", "--tries", "1"]) else { return };
    site.agent("two-too");
    let files: Vec<(String, Vec<u8>)> = (0..5).map(|at| (format!("f{at}"), text(20 + at))).collect();
    let mut writers: Vec<Writer> = files.iter().map(|(name, data)| site.write(name, data)).collect();
    site.until(|| site.read() == (files.len() * LEN) as u64);
    std::thread::scope(|scope| writers.iter_mut().for_each(|writer| drop(scope.spawn(|| writer.goes_on()))));
    // Jobs are numbered as the files were opened, which may be in any order.
    for job in 1..=files.len() {
        let said = site.wait(&job.to_string());
        assert_eq!(said.code, 0, "{}", said.err);
    }
    for (name, data) in &files {
        let data = with_end(data);
        site.must_be(&format!("raw/{name}"), &data);
        site.must_be(&format!("up/{name}"), &data.to_ascii_uppercase());
    }
    assert_eq!(site.counted("new_bytes"), 0, "the mount has stored none of it");
    site.shared.check(&site.one);
}

/// A proxy between a mount and its followers. It cuts each of the first `cuts` connections after
/// `bytes`.
fn cuts_after(to: String, cuts: usize, bytes: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let cut = Arc::clone(&done);
    std::thread::spawn(move || {
        for here in listener.incoming() {
            let (mut here, mut there) = (here.unwrap(), TcpStream::connect(&to).unwrap());
            let (mut asks, mut asked) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut asked);
                let _ = asked.shutdown(Shutdown::Both);
            });
            // Connections of agents that only check for the mount are not cut.
            let (mut passed, mut block) = (0, vec![0; 64 << 10]);
            while let Ok(len @ 1..) = there.read(&mut block) {
                passed += len;
                if cut.load(Ordering::SeqCst) < cuts && passed > bytes {
                    cut.fetch_add(1, Ordering::SeqCst);
                    break;
                }
                if here.write_all(&block[..len]).is_err() {
                    break;
                }
            }
            let _ = (here.shutdown(Shutdown::Both), there.shutdown(Shutdown::Both));
        }
    });
    (address, done)
}

#[test]
fn over_a_connection_that_is_cut_again_and_again_it_goes_on_where_it_was() {
    let Some(site) = Site::new("1W->2W", &["--out", "up/{name}", "--tries", "1"]) else { return };
    let records = format!("{}.record", site.shared.schema);
    let offered = "WHERE kind = 'open-files-offer'";
    let to = site.shared.server.sql(&format!("SELECT value::json ->> 'address' FROM {records} {offered}"));
    let (address, cuts) = cuts_after(to, 2, 2 << 20);
    let value = format!("jsonb_set(value::jsonb, '{{address}}', '\"{address}\"')::text");
    site.shared.server.sql(&format!("UPDATE {records} SET value = {value} {offered}"));
    let data = text(7);
    let mut writer = site.write("a", &data);
    site.until(|| site.read() == LEN as u64);
    writer.goes_on();
    let said = site.wait("1");
    assert_eq!(said.code, 0, "{}", said.err);
    let data = with_end(&data);
    site.must_be("raw/a", &data);
    site.must_be("up/a", &data.to_ascii_uppercase());
    assert_eq!(cuts.load(Ordering::SeqCst), 2);
    assert_eq!(site.read(), data.len() as u64, "nothing was read twice");
    assert_eq!(site.counted("new_bytes"), 0, "the mount has stored none of it");
    site.shared.check(&site.one);
}

#[test]
fn an_agent_that_is_killed_is_followed_by_the_next_and_the_file_is_right() {
    let Some(mut site) = Site::new("1W->2W", &["--out", "up/{name}"]) else { return };
    let data = text(4);
    let mut writer = site.write("a", &data);
    site.until(|| site.read() == LEN as u64);
    // The agent has all of it, and has committed none.
    drop(std::mem::take(&mut site.agents));
    site.agent("one");
    site.until(|| site.read() == 2 * LEN as u64);
    writer.goes_on();
    let said = site.wait("1");
    assert_eq!(said.code, 0, "{}", said.err);
    let data = with_end(&data);
    site.must_be("raw/a", &data);
    site.must_be("up/a", &data.to_ascii_uppercase());
    assert!(site.counted("new_bytes") >= LEN as u64, "the mount has stored it");
    site.nothing_is_held();
    site.shared.check(&site.one);
}

#[test]
fn when_the_mount_is_killed_while_an_agent_elsewhere_reads_no_output_appears_and_nothing_is_held() {
    let Some(mut site) = Site::new("1W->2W", &["--out", "up/{name}", "--tries", "1"]) else { return };
    let writer = site.write("a", &text(5));
    site.until(|| site.read() == LEN as u64);
    site.one.kill_and_mount();
    drop(writer);
    let said = site.wait("1");
    assert!(said.code == 1 && said.err.contains("its writer was lost"), "{}", said.err);
    assert!(!site.two.path("up/a").exists());
    site.end_with_nothing_held();
}

#[test]
fn what_is_processed_in_its_place_goes_through_an_agent_elsewhere_too() {
    let Some(site) = Site::new("1W->1W", &["--tries", "1"]) else { return };
    let data = text(6);
    let mut writer = site.write("a", &data);
    site.until(|| site.read() == LEN as u64);
    assert!(!site.two.path("raw/a").exists());
    writer.goes_on();
    let said = site.wait("1");
    assert_eq!(said.code, 0, "{}", said.err);
    site.must_be("raw/a", &with_end(&data).to_ascii_uppercase());
    site.shared.check(&site.one);
}

#[test]
fn an_address_that_says_nothing_to_others_and_a_store_of_one_machine_are_refused() {
    let Some(shared) = Shared::new() else { return };
    let host = shared.mount();
    let mount = |url: &str, address: &str| {
        let args = ["mount", "--foreground", "--serve-followers", address, "mnt"];
        Said::from(command(&host.place, url, &args).output().unwrap())
    };
    for address in ["0.0.0.0:0", "[::]:7", "127.0.0.1", "here:7"] {
        let said = mount(&host.url, address);
        assert_eq!(said.code, 2, "{address}: {}", said.err);
    }
    let said = mount("store", "127.0.0.1:0");
    assert!(said.code == 2 && said.err.contains("PostgreSQL"), "{}", said.err);
}
