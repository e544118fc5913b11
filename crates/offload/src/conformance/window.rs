//! Sliding windows.

use super::{contents, run};
use crate::op::{WindowFunction, WindowHash, WindowSpec};
use crate::{Device, Task, TaskError, reference};

/// Window lengths around a block with its padding, around a word, and around the memory of gear32;
/// and the papers'.
const WINDOWS: [usize; 20] =
    [1, 3, 4, 16, 20, 31, 32, 33, 48, 52, 55, 56, 63, 64, 65, 119, 120, 128, 200, 4096];
/// Steps with special loads, the papers' steps, and one beyond every window.
const STEPS: [usize; 9] = [1, 2, 3, 4, 20, 52, 64, 5000, usize::MAX];

pub(super) fn check_window_hash(device: &mut dyn Device) {
    let (_, random) = contents(9000).pop().expect("contents");
    let zeros = vec![0; 3000];
    for function in WindowFunction::ALL {
        let mut keeps =
            [function.len(), 4, 1, 8, 3, 7].into_iter().filter(|&keep| keep <= function.len()).cycle();
        for window in WINDOWS {
            for step in STEPS {
                let keep = keeps.next().expect("a cycle");
                let spec = WindowSpec { function, window, step, keep };
                check(device, spec, &random[1..][..4200 + window % 23]);
                check(device, spec, &zeros);
            }
        }
        // Every number of windows around the number of lanes, and every distance from the last
        // window to the end of the data.
        for (window, step) in [(20, 4), (48, 1), (52, 52), (64, 7), (3, 4)] {
            let spec = WindowSpec { function, window, step, keep: function.len() };
            for length in (0..window + 8).chain(35 * step..36 * step + window + 70).step_by(1 + step / 8) {
                check(device, spec, &random[3..][..length]);
            }
        }
    }
    let bounds = WindowSpec { function: WindowFunction::Md5, window: 20, step: 4, keep: 16 };
    for spec in [
        WindowSpec { window: 0, ..bounds },
        WindowSpec { window: WindowSpec::WINDOW_MAX + 1, ..bounds },
        WindowSpec { step: 0, ..bounds },
        WindowSpec { keep: 0, ..bounds },
        WindowSpec { keep: 17, ..bounds },
    ] {
        let mut out = Vec::new();
        let answer = run(device, Task::WindowHash(WindowHash { spec, data: &random, out: &mut out }));
        assert!(
            matches!(answer, Err(TaskError::Unsupported { .. })),
            "{spec:?} is out of bounds: {answer:?}"
        );
    }
}

fn check(device: &mut dyn Device, spec: WindowSpec, data: &[u8]) {
    let mut got = vec![9];
    run(device, Task::WindowHash(WindowHash { spec, data, out: &mut got })).expect("window_hash");
    let expected = [&[9][..], &reference::window_hash(spec, data)].concat();
    let differ = got.iter().zip(&expected).position(|(got, expected)| got != expected);
    assert!(
        got == expected,
        "{}: {spec:?} of {} bytes: {} bytes instead of {}, the first that differs is {differ:?}",
        device.name(),
        data.len(),
        got.len(),
        expected.len(),
    );
}
