//! Measures rates, and the processor time that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outrigger_offload::CpuDevice;
use outrigger_offload::accelerator::{Accelerator, StageTimes, Submission};
use outrigger_offload::cuda::CudaDevice;
use outrigger_offload::work::{Output, Work, same_result};

use crate::work::scalar;

/// The result of a run.
#[derive(Clone, Copy, Default)]
pub struct Rate {
    /// Input bytes a second.
    pub bytes: f64,
    /// Tasks a second.
    pub tasks: f64,
    /// Processor seconds of all threads for each second that passed.
    pub cores: f64,
    /// Mean stage times of a task, on a device.
    pub stages: Option<StageTimes>,
}

/// The code that the processor runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    Scalar,
    OneCore,
    AllCores,
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `task`, which returns the bytes of its input, until `seconds` have passed.
fn until(seconds: f64, mut task: impl FnMut() -> usize) -> Rate {
    task();
    let (begin, processor) = (Instant::now(), processor_seconds());
    let (mut bytes, mut tasks) = (0, 0);
    while begin.elapsed().as_secs_f64() < seconds || tasks < 3 {
        bytes += task();
        tasks += 1;
    }
    rate(bytes, tasks, begin, processor)
}

fn rate(bytes: usize, tasks: usize, begin: Instant, processor: f64) -> Rate {
    let elapsed = begin.elapsed().as_secs_f64();
    let cores = (processor_seconds() - processor) / elapsed;
    Rate { bytes: bytes as f64 / elapsed, tasks: tasks as f64 / elapsed, cores, stages: None }
}

/// Compares one result with the processor's.
pub fn check(device: &mut CudaDevice, work: &Arc<Work>) {
    device.submit(Submission { id: 0, work: work.clone(), output: Output::default() });
    let (mut done, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while done.is_empty() {
        device.poll(&mut done);
        assert!(Instant::now() < deadline, "{} does not end", work.class());
    }
    let completion = done.pop().expect("one");
    completion.result.unwrap_or_else(|fault| panic!("{}: {fault}", work.class()));
    let (mut cpu, mut expected) = (CpuDevice::new(), Output::default());
    work.run_on(&mut cpu, &mut expected).expect("the processor does everything");
    let output = completion.submission.output;
    assert!(same_result(work, &expected, &output, &mut cpu), "{} is wrong", work.class());
}

/// Runs tasks on the device, as many in flight as it wants, with reused outputs.
pub fn device(device: &mut CudaDevice, works: &[Arc<Work>], seconds: f64) -> Rate {
    let pool = outrigger_offload::pool::Pool::new(device.host_memory(), 1 << 30);
    let mut idle: Vec<Output> = (0..device.in_flight_max())
        .map(|_| {
            let mut output = Output::default();
            let bytes = works[0].output_len_max();
            if bytes > 0 {
                output.bytes.provide(pool.alloc(bytes));
            }
            output
        })
        .collect();
    let (mut submitted, mut done) = (0, Vec::new());
    let (mut begin, mut processor) = (Instant::now(), processor_seconds());
    let (mut tasks, mut warm, mut stages) = (0usize, 0, StageTimes::default());
    let (warm_up, in_flight) = (2 * works.len(), device.in_flight_max());
    loop {
        let more = tasks < 3 || begin.elapsed().as_secs_f64() < seconds;
        while more && let Some(output) = idle.pop() {
            let work = works[submitted % works.len()].clone();
            device.submit(Submission { id: submitted as u64, work, output });
            submitted += 1;
        }
        device.poll(&mut done);
        if done.is_empty() {
            std::thread::sleep(device.poll_interval().unwrap_or_default());
        }
        for completion in done.drain(..) {
            let times = completion.result.expect("a healthy device");
            idle.push(completion.submission.output);
            if warm < warm_up {
                warm += 1;
                (begin, processor) = (Instant::now(), processor_seconds());
                continue;
            }
            stages.copy_in += times.copy_in;
            stages.kernel += times.kernel;
            stages.copy_out += times.copy_out;
            tasks += 1;
        }
        if !more && idle.len() == in_flight {
            break;
        }
    }
    let mean = |time: Duration| time / tasks.max(1) as u32;
    let stages = StageTimes {
        copy_in: mean(stages.copy_in),
        kernel: mean(stages.kernel),
        copy_out: mean(stages.copy_out),
    };
    Rate { stages: Some(stages), ..rate(tasks * works[0].len_in(), tasks, begin, processor) }
}

/// Runs the same tasks on the processor.
pub fn processor(processor: Processor, works: &[Arc<Work>], seconds: f64) -> Option<Rate> {
    match processor {
        Processor::Scalar => {
            scalar(&works[0])?;
            let mut turn = 0;
            Some(until(seconds, || {
                turn += 1;
                scalar(&works[turn % works.len()]).unwrap_or(0)
            }))
        }
        Processor::OneCore => {
            let (mut cpu, mut output, mut turn) = (CpuDevice::new(), Output::default(), 0);
            Some(until(seconds, || {
                turn += 1;
                let work = &works[turn % works.len()];
                work.run_on(&mut cpu, &mut output).expect("the processor does everything");
                work.len_in()
            }))
        }
        Processor::AllCores => Some(all_cores(works, seconds)),
    }
}

fn all_cores(works: &[Arc<Work>], seconds: f64) -> Rate {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (begin, processor) = (Instant::now(), processor_seconds());
    let tasks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let tasks = &tasks;
            scope.spawn(move || {
                let (mut cpu, mut output, mut turn) = (CpuDevice::new(), Output::default(), thread);
                while begin.elapsed().as_secs_f64() < seconds {
                    turn += 1;
                    let work = &works[turn % works.len()];
                    work.run_on(&mut cpu, &mut output).expect("the processor does everything");
                    tasks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let tasks = tasks.into_inner();
    rate(tasks * works[0].len_in(), tasks, begin, processor)
}
