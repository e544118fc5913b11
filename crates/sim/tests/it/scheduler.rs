//! The scheduler by itself: threads, locks and channels of the standard library, on virtual time.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use outrigger_sim::scheduler::{self, Ran};

fn simulate<T: Send>(seed: u64, f: impl FnOnce() -> T + Send) -> (T, Ran) {
    let _turn = crate::turn();
    scheduler::run(seed, || {
        let value = f();
        (value, scheduler::ran())
    })
}

/// Threads that add to a list under a lock, wait for each other, and sleep. Returns their order.
fn busy() -> Vec<(usize, u64)> {
    let list = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let (send, receive) = mpsc::channel();
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let (list, send) = (Arc::clone(&list), send.clone());
            std::thread::spawn(move || {
                for round in 0..20 {
                    let mut locked = list.0.lock().unwrap();
                    locked.push((number, round));
                    list.1.notify_all();
                    if round % 3 == 0 {
                        locked = list.1.wait_timeout(locked, Duration::from_millis(5)).unwrap().0;
                    }
                    drop(locked);
                    outrigger_clock::sleep(Duration::from_secs(number as u64));
                }
                send.send(number).unwrap();
            })
        })
        .collect();
    drop(send);
    let ended: Vec<usize> = receive.iter().collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(ended.len(), 6);
    let hashed: HashMap<u64, u64> = (0..40).map(|number| (number, number)).collect();
    let mut order = list.0.lock().unwrap().clone();
    order.extend(hashed.keys().map(|&key| (0, key)));
    order
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    let (one, again, other) = (simulate(7, busy), simulate(7, busy), simulate(8, busy));
    assert_eq!(one, again);
    assert_ne!(one.0, other.0);
    assert_ne!(one.1.trace, other.1.trace);
    assert!(one.1.time >= Duration::from_secs(100), "{:?}", one.1);
}

#[test]
fn a_host_that_is_paused_stands_still_and_one_that_is_killed_does_not_come_back() {
    let (counted, _) = simulate(1, || {
        let counts = Arc::new(Mutex::new([0_u64; 3]));
        for number in 1..3 {
            let (host, counts) = (scheduler::add_host(), Arc::clone(&counts));
            assert_eq!(host, number);
            scheduler::spawn_on(host, move || {
                loop {
                    outrigger_clock::sleep(Duration::from_secs(1));
                    counts.lock().unwrap()[number] += 1;
                }
            });
        }
        let sleep_and_look = || {
            outrigger_clock::sleep(Duration::from_secs(10));
            *counts.lock().unwrap()
        };
        let begun = sleep_and_look();
        scheduler::pause(1, true);
        scheduler::kill(2);
        let still = sleep_and_look();
        scheduler::pause(1, false);
        [begun, still, sleep_and_look()]
    });
    let [begun, still, resumed] = counted;
    assert!(begun[1] >= 8 && begun[2] >= 8, "{counted:?}");
    assert_eq!(begun, still);
    assert!(resumed[1] > still[1] && resumed[2] == still[2], "{counted:?}");
}

#[test]
fn looks_are_skipped_until_something_is_new() {
    let (looks, _) = simulate(1, || {
        let looks = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&looks);
        std::thread::spawn(move || {
            let (never, wakes) = (Mutex::new(()), Condvar::new());
            loop {
                seen.lock().unwrap().push(scheduler::elapsed().as_secs());
                scheduler::nothing_is_new_until(Duration::from_secs(100));
                drop(wakes.wait_timeout(never.lock().unwrap(), Duration::from_secs(1)));
            }
        });
        outrigger_clock::sleep(Duration::from_millis(10_500));
        scheduler::something_is_new();
        outrigger_clock::sleep(Duration::from_secs(92));
        looks.lock().unwrap().clone()
    });
    assert_eq!(looks, [0, 11, 100, 101, 102]);
}
