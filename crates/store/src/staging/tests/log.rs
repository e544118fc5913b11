//! Appending, syncing, removing, waiting for room; a disk that is full or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrigger_format::StoreId;
use outrigger_format::staging::Operation;

use super::memory::Memory;
use super::{STORE, append, assert_samples, both, open, sample, small};
use crate::error::{ErrorKind, Result};
use crate::staging::space::Space;
use crate::staging::{ExtentMap, Log, Options};

fn write(inode: u64, offset: u64) -> Operation {
    Operation::Write { inode, offset }
}

/// Opens a log in a directory, and ignores the replayed records.
fn on_disk(path: &std::path::Path, options: Options) -> Result<Log> {
    Log::open(path, options, &mut |_| Ok(())).map(|(log, _)| log)
}

#[test]
fn what_was_appended_is_read_and_comes_back() {
    both(|key| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("staging/test");
        let log = on_disk(&path, small(key)).unwrap();
        let mut bytes = 0;
        for sequence in 1..=40 {
            let (operation, data) = sample(sequence);
            let appended = log.append(&operation, &data).unwrap();
            bytes += outrigger_format::staging::RECORD_HEADER_LEN as u64;
            let mut read = vec![0; data.len()];
            log.read(appended.location, &mut read).unwrap();
            assert_eq!(read, data);
            if data.len() > 4 {
                log.read(appended.location.slice(1..4), &mut read[..3]).unwrap();
            }
        }
        assert!(log.fill().used > bytes && log.oldest_segment() == 1);
        assert_eq!(log.sync().unwrap(), 40);
        let used = log.fill().used;
        assert_eq!(on_disk(&path, small(key)).unwrap_err().kind(), ErrorKind::Busy);
        drop(log);
        let other = Options { store: StoreId([6; 16]), ..small(key) };
        assert_eq!(on_disk(&path, other).unwrap_err().kind(), ErrorKind::Invalid);
        let mut replayed = Vec::new();
        let (log, report) = Log::open(&path, small(key), &mut |record| {
            replayed.push((record.appended, record.operation, record.data.to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!((report.first, report.last, report.torn), (1, 40, None));
        assert_eq!((log.durable(), log.fill().used), (40, used));
        for (appended, _, data) in &replayed {
            let mut read = vec![0; data.len()];
            log.read(appended.location, &mut read).unwrap();
            assert_eq!(&read, data);
        }
        assert_samples(
            &replayed.into_iter().map(|(at, what, data)| (at.sequence, what, data)).collect::<Vec<_>>(),
            1..41,
        );
        append(&log, 41).unwrap();
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    both(|key| {
        let (log, ..) = open(&Memory::empty(key)).unwrap();
        let kind = |result: Result<super::super::Appended>| result.unwrap_err().kind();
        assert_eq!(kind(log.append(&write(1, 0), b"")), ErrorKind::Invalid);
        assert_eq!(kind(log.append(&Operation::Forget { inode: 1 }, b"x")), ErrorKind::Invalid);
        assert_eq!(kind(log.append(&write(1, 0), &[0; 512])), ErrorKind::Invalid);
        let most = small(key).segment_len;
        assert_eq!(log.reserve(most + 1, None).err().unwrap().kind(), ErrorKind::Invalid);
        let tiny = Options { capacity: 1000, ..small(key) };
        let opened = Log::open_files(Box::new(Memory::empty(key)), tiny, Arc::default(), &mut |_| Ok(()));
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

#[test]
fn short_writes_are_gone_on_with() {
    both(|key| {
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        memory.disk().write_max = Some(7);
        for sequence in 1..=20 {
            append(&log, sequence).unwrap();
        }
        assert_samples(&open(&memory).unwrap().2, 1..21);
    });
}

#[test]
fn a_full_disk_is_an_error_to_the_writer_alone() {
    both(|key| {
        // The disk becomes full between records, within one, or within the next segment's header.
        for room in 0..900 {
            let memory = Memory::empty(key);
            let (log, ..) = open(&memory).unwrap();
            memory.disk().room = Some(room);
            let failed = (1..).find(|sequence| match append(&log, *sequence) {
                Ok(_) => false,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    true
                }
            });
            let failed = failed.unwrap();
            // All acknowledged records are there, and nothing else.
            let copy = memory.copy();
            assert_samples(&open(&copy).unwrap().2, 1..failed);
            assert_eq!(append(&log, failed).unwrap_err().kind(), ErrorKind::Full);
            log.sync().unwrap();
            memory.disk().room = None;
            for sequence in failed..failed + 5 {
                append(&log, sequence).unwrap();
            }
            drop(log);
            let (_, report, replayed) = open(&memory).unwrap();
            assert_samples(&replayed, 1..failed + 5);
            assert_eq!(report.torn, None);
        }
    });
}

#[test]
fn nothing_is_appended_behind_a_ragged_end() {
    both(|key| {
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        append(&log, 1).unwrap();
        memory.disk().room = Some(20);
        memory.disk().fail_truncate = true;
        assert_eq!(append(&log, 2).unwrap_err().kind(), ErrorKind::Full);
        memory.disk().room = None;
        assert_eq!(append(&log, 2).unwrap_err().kind(), ErrorKind::Io);
        // Killed now, it would be a torn tail.
        let copy = memory.copy();
        let (_, report, replayed) = open(&copy).unwrap();
        assert_samples(&replayed, 1..2);
        assert_eq!(report.torn.unwrap().bytes, 20);
        memory.disk().fail_truncate = false;
        append(&log, 2).unwrap();
        assert_samples(&open(&memory).unwrap().2, 1..3);
    });
}

#[test]
fn a_failed_sync_is_final() {
    both(|key| {
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        append(&log, 1).unwrap();
        log.sync().unwrap();
        append(&log, 2).unwrap();
        memory.disk().fail_sync = true;
        assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Io);
        memory.disk().fail_sync = false;
        assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(append(&log, 3).unwrap_err().kind(), ErrorKind::Io);
        log.sync_to(1).unwrap();
        assert_eq!(log.durable(), 1);
    });
}

#[test]
fn a_full_file_system_is_an_error_to_the_writer_alone() {
    both(|key| {
        let dir = tempfile::tempdir().unwrap();
        let mount = |program: &str, args: &[&str]| {
            let status = std::process::Command::new(program).args(args).arg(dir.path()).output();
            status.is_ok_and(|output| output.status.success())
        };
        if !mount("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"]) {
            outrigger_workload::skipped!("a file system of 1 MiB cannot be mounted here");
            return;
        }
        let outcome = std::panic::catch_unwind(|| {
            let path = dir.path().join("staging");
            let options = Options {
                segment_len: 256 << 10,
                capacity: 16 << 20,
                key: key.clone(),
                ..Options::new(STORE)
            };
            let log = on_disk(&path, options.clone()).unwrap();
            let data = vec![7; 30_000];
            let mut file = ExtentMap::new(Arc::clone(log.usage()), 0);
            let mut count = 0;
            let error = loop {
                match log.append(&write(2, count), &data) {
                    Ok(appended) => file.write(0, &appended),
                    Err(error) => break error,
                }
                count += 1;
            };
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert!((20..40).contains(&count), "{count}");
            log.sync().unwrap();
            // All but the last write are overwritten: there is room again.
            assert!(log.remove_dead(u64::MAX).unwrap() > 0);
            log.append(&write(2, count), &data).unwrap();
            drop((file, log));
            let mut last = 0;
            let visit = &mut |record: crate::staging::Replayed<'_>| {
                assert_eq!(record.data, data);
                last = record.appended.sequence;
                Ok(())
            };
            Log::open(&path, options, visit).unwrap();
            assert_eq!(last, count + 1);
        });
        assert!(mount("umount", &["-l"]));
        outcome.unwrap();
    });
}

#[test]
fn syncs_at_the_same_time_are_one() {
    both(|key| {
        let memory = Memory::empty(key);
        let options = Options { segment_len: 4096, capacity: 1 << 20, ..small(key) };
        let (log, _) =
            Log::open_files(Box::new(memory.clone()), options, Arc::default(), &mut |_| Ok(())).unwrap();
        memory.disk().sync_takes = Duration::from_millis(2);
        std::thread::scope(|scope| {
            for inode in 1..=8 {
                let log = &log;
                scope.spawn(move || {
                    for offset in 0..20 {
                        let appended = log.append(&write(inode, offset), b"data").unwrap();
                        log.sync_to(appended.sequence).unwrap();
                        assert!(log.durable() >= appended.sequence);
                    }
                });
            }
        });
        let syncs = memory.disk().syncs;
        assert!(syncs < 80, "{syncs} syncs for 160 calls");
        assert_eq!(log.durable(), 160);
        log.sync().unwrap();
        assert_eq!(memory.disk().syncs, syncs, "nothing to do");
    });
}

#[test]
fn threads_append_sync_read_and_remove() {
    both(|key| {
        const THREADS: u64 = 8;
        const WRITES: u64 = 300;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("staging");
        let options =
            Options { segment_len: 64 << 10, capacity: 16 << 20, key: key.clone(), ..Options::new(STORE) };
        let log = on_disk(&path, options.clone()).unwrap();
        let (done, removed) = (AtomicBool::new(false), AtomicU64::new(0));
        let content = |inode: u64, turn: u64| -> Vec<u8> {
            (0..1 + (inode * 131 + turn * 17) % 3000).map(|at| (at + inode * 7 + turn) as u8).collect()
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (1..=THREADS)
                .map(|inode| {
                    let log = &log;
                    scope.spawn(move || {
                        // One place in each file, written again and again: older segments die.
                        let mut file = ExtentMap::new(Arc::clone(log.usage()), 0);
                        for turn in 0..WRITES {
                            let data = content(inode, turn);
                            let room =
                                log.reserve(data.len() as u64 + 200, Some(Duration::from_secs(60))).unwrap();
                            let appended = log.append(&write(inode, 0), &data).unwrap();
                            drop(room);
                            file.write(0, &appended);
                            file.truncate(
                                data.len() as u64,
                                &appended_truncate(log, inode, data.len() as u64),
                            );
                            if turn % 16 == 0 {
                                log.sync_to(appended.sequence).unwrap();
                            }
                            let mut read = vec![0; data.len()];
                            log.read(appended.location, &mut read).unwrap();
                            assert_eq!(read, data);
                        }
                        file
                    })
                })
                .collect();
            let remover = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    removed.fetch_add(log.remove_dead(u64::MAX).unwrap() as u64, Ordering::Relaxed);
                    outrigger_clock::sleep(Duration::from_millis(1));
                }
            });
            // Finished threads still need their last write, and with it all later segments.
            let files: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            done.store(true, Ordering::Relaxed);
            remover.join().unwrap();
            files.into_iter().for_each(|file| drop(file.unwrap()));
        });
        assert!(removed.load(Ordering::Relaxed) > 0, "{removed:?}");
        drop(log);
        let mut last = vec![Vec::new(); THREADS as usize + 1];
        let (_, report) = Log::open(&path, options, &mut |record| {
            match record.operation {
                Operation::Write { inode, .. } => last[inode as usize] = record.data.to_vec(),
                Operation::Truncate { .. } => {}
                other => panic!("{other:?}"),
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((report.last, report.torn), (2 * THREADS * WRITES, None));
        for inode in 1..=THREADS {
            assert_eq!(last[inode as usize], content(inode, WRITES - 1));
        }
    });
}

fn appended_truncate(log: &Log, inode: u64, len: u64) -> super::super::Appended {
    log.append(&Operation::Truncate { inode, len }, b"").unwrap()
}

#[test]
fn only_what_nothing_needs_is_removed() {
    both(|key| {
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        let mut file = ExtentMap::new(Arc::clone(log.usage()), 0);
        let mut add = |offset: u64| {
            let appended = log.append(&write(2, offset), &[1; 300]).unwrap();
            file.write(offset, &appended);
            appended.location.segment
        };
        // One segment each.
        assert_eq!([add(0), add(300), add(600), add(900)], [1, 2, 3, 4]);
        let unlink = Operation::Unlink { parent: 1, name: b"n".to_vec(), inode: 3 };
        let named = log.append(&unlink, b"").unwrap();
        assert_eq!(named.location.segment, 4);
        assert_eq!(log.remove_dead(u64::MAX).unwrap(), 0);
        // The second is flushed, but the first is not: segments go from the front.
        let mut add = |offset: u64| {
            let appended = log.append(&write(2, offset), &[1; 300]).unwrap();
            file.write(offset, &appended);
            appended.location.segment
        };
        assert_eq!(add(300), 5);
        assert_eq!((log.remove_dead(u64::MAX).unwrap(), log.usage().live_bytes(2)), (0, 0));
        assert_eq!(add(0), 6);
        assert_eq!(log.remove_dead(u64::MAX).unwrap(), 2);
        assert_eq!(log.oldest_segment(), 3);
        assert_eq!(file.oldest_segment(), Some(3));
        let before = log.fill().used;
        assert_eq!(file.settle(4, 1200), 600);
        assert_eq!(log.remove_dead(named.sequence - 1).unwrap(), 1);
        assert_eq!(log.oldest_segment(), 4);
        assert_eq!(log.remove_dead(named.sequence).unwrap(), 1);
        assert!(log.fill().used < before);
        // The rest is settled, too; the last segment stays, so that sequences go on.
        file.settle(u64::MAX, 1200);
        assert!(file.is_clean());
        assert_eq!(log.remove_dead(u64::MAX).unwrap(), 1);
        assert_eq!(log.usage().staged_bytes(), 0);
        let last = log.sync().unwrap();
        drop((log, file));
        let (log, report, _) = open(&memory).unwrap();
        assert_eq!((report.last, log.oldest_segment()), (last, 6));
    });
}

#[test]
fn writers_wait_until_segments_go() {
    both(|key| {
        let memory = Memory::empty(key);
        let (log, ..) = open(&memory).unwrap();
        let mut file = ExtentMap::new(Arc::clone(log.usage()), 0);
        while log.fill().used + 400 <= log.fill().capacity {
            file.write(0, &log.append(&write(2, 0), &[1; 300]).unwrap());
        }
        let patience = Some(Duration::from_millis(20));
        assert_eq!(log.reserve(500, patience).err().unwrap().kind(), ErrorKind::Busy);
        assert_eq!(log.fill().waiting, 0);
        std::thread::scope(|scope| {
            let waiters = [0, 1, 2].map(|_| scope.spawn(|| drop(log.reserve(500, None).unwrap())));
            while log.fill().waiting != waiters.len() {
                std::thread::yield_now();
            }
            // A record of the flusher's own does not wait.
            log.append(&Operation::Committed { sequence: 1 }, b"").unwrap();
            assert!(log.remove_dead(u64::MAX).unwrap() > 3);
        });
        assert_eq!((log.fill().reserved, log.fill().waiting), (0, 0));
    });
}

#[test]
fn room_is_given_in_the_order_it_was_asked_for() {
    let space = Space::new(1000);
    space.take(900);
    let given = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for expected in 0..3 {
            let (space, given) = (&space, &given);
            scope.spawn(move || {
                // No two of these fit at once, so each reports alone. The later ones would fit
                // earlier.
                let room = space.reserve(600 - expected, None).unwrap();
                assert_eq!(given.fetch_add(1, Ordering::SeqCst), expected);
                drop(room);
            });
            while space.fill().waiting != expected as usize + 1 {
                std::thread::yield_now();
            }
        }
        assert_eq!(given.load(Ordering::SeqCst), 0);
        space.release(900);
    });
    assert_eq!(given.load(Ordering::SeqCst), 3);
}

#[test]
fn a_log_that_nothing_needs_begins_anew_and_can_be_discarded() {
    both(|key| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("staging");
        let log = on_disk(&path, small(key)).unwrap();
        let mut map = ExtentMap::new(Arc::clone(log.usage()), 0);
        let appended = log.append(&write(2, 0), b"data").unwrap();
        map.write(0, &appended);
        assert!(!log.restart(log.last(), 0).unwrap(), "the data is needed");
        assert_eq!(log.discard(log.last()).unwrap_err().kind(), ErrorKind::Busy);
        map.settle(log.last(), 4);
        assert!(!log.restart(log.last(), 4096).unwrap(), "too little to be worth a new segment");
        assert_eq!(log.oldest_segment(), 1);
        assert!(log.restart(log.last(), 0).unwrap());
        assert_eq!((log.oldest_segment(), log.last()), (2, 1), "sequences go on");
        // A name that the database does not have yet.
        log.append(&Operation::Forget { inode: 2 }, b"").unwrap();
        assert!(!log.restart(1, 0).unwrap());
        log.discard(2).unwrap();
        assert!(!path.exists());
        drop(log);
        let replayed = Log::open(&path, small(key), &mut |_| panic!("nothing is left")).unwrap().1;
        assert_eq!(replayed.last, 0);
    });
}
