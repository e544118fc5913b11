//! Programs of jobs, while people work in a mount.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::run::{Agents, noise};
use crate::writable::Mounts;

const BLOCK: usize = 2 << 20;
/// Blocks of each file, which are overwritten again and again.
const BLOCKS: usize = 8;

/// Inputs of the job. An agent asks if others wait before each, and so many take longer than writers
/// need to fill the room.
const INPUTS: usize = 100;

/// Writes in a file until `stop`, or until its time is over, and returns the final content.
fn writes(file: &File, seed: u64, (stop, until): (&AtomicBool, Instant)) -> Vec<u8> {
    let blocks: Vec<Vec<u8>> = (0..5).map(|block| noise(seed * 100 + block, BLOCK)).collect();
    let mut text = vec![0; BLOCK * BLOCKS];
    for (step, block) in (0..).zip(blocks.iter().cycle()) {
        let at = step % BLOCKS * BLOCK;
        file.write_all_at(block, at as u64).unwrap();
        text[at..at + BLOCK].copy_from_slice(block);
        if step >= BLOCKS && (stop.load(Ordering::SeqCst) || Instant::now() > until) {
            break;
        }
    }
    text
}

#[test]
fn an_agent_stands_back_while_somebody_writes_in_a_mount_and_both_come_to_their_end() {
    // With little room writers wait for it, as they do if the packs' place is slow.
    let Some(mounts) = Mounts::with(&["--staging-size", "8M"]) else { return };
    let place = &mounts.place;
    for input in 0..INPUTS {
        place.write(format!("in/{input}"), format!("text {input}\n"));
    }
    place.done(&["put", "in"]);
    let (stop, until) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(120));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let path = place.path(format!("mnt/{writer}"));
                let stop = &stop;
                scope.spawn(move || {
                    let file = File::create(&path).unwrap();
                    (path, writes(&file, writer, (stop, until)))
                })
            })
            .collect();
        let mut agents = Agents::default();
        let mut agent =
            place.command(&["node", "--allow-root", "--name", "one", "--yield-above", "1", "--slots", "1"]);
        agent.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        agents.0.push(agent.spawn().unwrap());
        let said = BufReader::new(agents.0[0].stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        scope.spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let says = |what: &str| {
            while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                if line.contains(what) {
                    return true;
                }
            }
            false
        };
        let began = says("agent one");
        let mut args = vec!["run", "--detach", "--sandbox", "off", "--in", "in/*", "--out", "out/{name}"];
        args.extend(["--", "tr", "a-z", "A-Z"]);
        let queued = place.run(&args);
        let stood_back = says("yielding");
        // In any case the writers must stop.
        stop.store(true, Ordering::SeqCst);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let ended = place.run(&["job", "wait", "1", "--timeout", "120"]);
        drop(agents);
        assert!(began && stood_back, "{}", queued.err);
        assert_eq!((queued.code, ended.code), (0, 0), "{}{}", queued.err, ended.err);
        for input in 0..INPUTS {
            let out = place.done(&["cat", &format!("out/{input}")]);
            assert_eq!(out.text(), format!("TEXT {input}\n"));
        }
        for (path, text) in written {
            assert!(std::fs::read(&path).unwrap() == text, "{}", path.display());
        }
    });
}
