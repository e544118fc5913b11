//! The output of `advise`.

use outrigger_offload::Missing;
use outrigger_offload::placement::{EquationOne, Line};
use serde_json::Value;

use super::advise::{Answer, Gpu, Question};
use super::devices::missing_json;
use crate::json::Object;
use crate::output::size;

/// GB/s.
fn giga(rate: f64) -> f64 {
    rate / 1e9
}

/// The mean distance of predictions from measurements.
fn mean_error(gpu: &Gpu) -> f64 {
    let off = gpu.errors.iter().map(|(_, predicted, measured)| (predicted / measured - 1.0).abs());
    off.sum::<f64>() / gpu.errors.len().max(1) as f64
}

fn from_size(even: Option<u64>) -> String {
    even.map_or("never".to_string(), |bytes| format!("from {}", size(bytes)))
}

/// The verdict, in a sentence.
fn verdict(question: &Question, answer: &Answer) -> (&'static str, String) {
    if question.rate.is_some_and(|rate| answer.all_threads >= rate) {
        return ("nothing", "the present processor reaches that rate".into());
    }
    let best = answer.gpus.iter().max_by(|a, b| a.with_gpu.total_cmp(&b.with_gpu));
    let most = best.map_or(answer.with_cpu, |gpu| gpu.with_gpu.max(answer.with_cpu));
    if let Some(rate) = question.rate.filter(|&rate| rate > most) {
        let gpu = best.map_or(String::new(), |gpu| format!(", a GPU {:.2}", giga(gpu.with_gpu)));
        let cpu = giga(answer.with_cpu);
        let why =
            format!("{:.2} GB/s cannot be reached: another processor gives {cpu:.2} GB/s{gpu}", giga(rate));
        return ("neither", why);
    }
    let Some(gpu) = best else {
        return ("cpu", "there is no GPU to compare with; simulate one with --sim".into());
    };
    if gpu.is_modelled {
        let why =
            format!("{} is a model with assumed rates; measure a real GPU before you buy one", gpu.name);
        return ("measure", why);
    }
    let (cpu_gain, gpu_gain) = (answer.with_cpu - answer.all_threads, gpu.with_gpu - answer.all_threads);
    match question.prices {
        None if gpu_gain > cpu_gain => {
            ("gpu", format!("a GPU adds {:.1} x what a processor adds", gpu_gain / cpu_gain))
        }
        None => ("cpu", format!("a processor adds {:.1} x what a GPU adds", cpu_gain / gpu_gain)),
        Some((cpu_price, gpu_price)) => {
            let (cpu, gpu) = (cpu_gain / cpu_price, gpu_gain / gpu_price);
            if gpu > cpu {
                ("gpu", format!("for the price, a GPU adds {:.1} x what a processor adds", gpu / cpu))
            } else {
                ("cpu", format!("for the price, a processor adds {:.1} x what a GPU adds", cpu / gpu))
            }
        }
    }
}

/// All threads together were slower than one of them.
const BUSY: &str =
    "     but one thread alone was faster than all: the machine was busy; run this again when it is idle\n";

pub fn describe(question: &Question, answers: &[Answer], missing: &[Missing], left_out: &[String]) -> String {
    let mut text = String::new();
    for missing in missing {
        text += &format!("{}: missing: {}\n", missing.kind, missing.why);
    }
    for answer in answers {
        text += &format!("\n{}, tasks of {}\n", answer.operation, size(question.block as u64));
        text += &format!(
            "  now               {:>8.2} GB/s on {} threads; one alone {:.2} GB/s\n",
            giga(answer.all_threads),
            question.threads,
            giga(answer.one_thread)
        );
        text += &format!(
            "  add a CPU         {:>8.2} GB/s with {} cores more, if memory keeps up\n",
            giga(answer.with_cpu),
            question.cpu_cores
        );
        answer.gpus.iter().for_each(|gpu| text += &describe_gpu(gpu));
        let (choice, why) = verdict(question, answer);
        text += &format!("  => {choice}: {why}\n");
        if answer.was_busy() {
            text += BUSY;
        }
    }
    if !left_out.is_empty() {
        text += &format!("\nleft out: {}\n", left_out.join("; "));
    }
    text
}

fn describe_gpu(gpu: &Gpu) -> String {
    let mut text = format!(
        "  add a GPU         {:>8.2} GB/s with {} ({}): {:.2} predicted, {:.2} {}\n",
        giga(gpu.with_gpu),
        gpu.name,
        gpu.model,
        giga(gpu.stream),
        giga(gpu.stream_measured),
        if gpu.is_modelled { "modelled" } else { "measured on it" }
    );
    text += &format!("    frees           {:>8.1} threads\n", gpu.freed);
    text += &format!(
        "    one task pays   {} against one thread ({} if buffers are not reused), {} against all\n",
        from_size(gpu.even_one),
        from_size(gpu.even_one_fresh),
        from_size(gpu.even_all)
    );
    text += "    equation 1      ";
    for (name, line) in terms(&gpu.equation) {
        text += &format!("{name} {:.1} µs", line.fixed / 1e3);
        text += &if line.per_byte > 0.0 {
            format!(" + bytes / {:.2} GB/s; ", 1.0 / line.per_byte)
        } else {
            "; ".to_string()
        };
    }
    text.truncate(text.trim_end_matches("; ").len());
    text += &format!("\n    its error       {:>7.1}% on average", 100.0 * mean_error(gpu));
    for (bytes, predicted, measured) in &gpu.errors {
        text += &format!("; {} {:+.1}%", size(*bytes as u64), 100.0 * (predicted / measured - 1.0));
    }
    text + "\n"
}

/// The terms by their names in StoreGPU's table 1.
fn terms(equation: &EquationOne) -> [(&'static str, Line); 5] {
    [
        ("T_MemAlloc", equation.mem_alloc),
        ("T_PreProc+T_PostProc", equation.pre_post),
        ("T_DataHtoG", equation.data_htog),
        ("T_Processing", equation.processing),
        ("T_DataGtoH", equation.data_gtoh),
    ]
}

pub fn json(question: &Question, answers: &[Answer], missing: &[Missing]) -> Object {
    let operations: Vec<Value> = answers
        .iter()
        .map(|answer| {
            let (choice, why) = verdict(question, answer);
            Object::new()
                .with("operation", answer.operation.as_str())
                .with("one_thread_bytes_per_second", answer.one_thread)
                .with("all_threads_bytes_per_second", answer.all_threads)
                .with("with_cpu_bytes_per_second", answer.with_cpu)
                .with("gpus", answer.gpus.iter().map(gpu_json).collect::<Vec<_>>())
                .with("advice", choice)
                .with("why", why)
                .with("machine_was_busy", answer.was_busy())
                .into()
        })
        .collect();
    Object::new()
        .with("block_bytes", question.block as u64)
        .with("threads", question.threads)
        .with("cpu_cores", question.cpu_cores)
        .with("operations", operations)
        .with("missing", missing_json(missing))
}

fn gpu_json(gpu: &Gpu) -> Value {
    let terms: serde_json::Map<String, Value> = terms(&gpu.equation)
        .into_iter()
        .map(|(name, line)| {
            let line = Object::new().with("fixed_ns", line.fixed).with("ns_per_byte", line.per_byte);
            (name.to_string(), line.into())
        })
        .collect();
    let errors: Vec<Value> = gpu
        .errors
        .iter()
        .map(|(bytes, predicted, measured)| {
            Object::new()
                .with("bytes", *bytes as u64)
                .with("predicted_ns", *predicted)
                .with("measured_ns", *measured)
                .into()
        })
        .collect();
    Object::new()
        .with("name", gpu.name.as_str())
        .with("model", gpu.model.as_str())
        .with("is_modelled", gpu.is_modelled)
        .with("equation_1", terms)
        .with("errors", errors)
        .with("mean_error", mean_error(gpu))
        .with("stream_bytes_per_second", gpu.stream)
        .with(
            if gpu.is_modelled {
                "stream_modelled_bytes_per_second"
            } else {
                "stream_measured_bytes_per_second"
            },
            gpu.stream_measured,
        )
        .with("with_gpu_bytes_per_second", gpu.with_gpu)
        .with("freed_threads", gpu.freed)
        .with("break_even_one_thread_bytes", gpu.even_one)
        .with("break_even_one_thread_fresh_buffers_bytes", gpu.even_one_fresh)
        .with("break_even_all_threads_bytes", gpu.even_all)
        .into()
}
