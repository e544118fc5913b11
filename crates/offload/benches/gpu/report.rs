//! Prints the figures for people, and writes them for programs.

use outrigger_offload::accelerator::Identity;
use outrigger_offload::cuda::CopyBandwidth;

use crate::measure::Rate;

/// One measurement.
pub struct Row {
    class: &'static str,
    size: usize,
    /// The part that was left out, or the processor's code. Empty for the device with all parts.
    how: &'static str,
    rate: Rate,
}

impl Row {
    pub fn new(class: &'static str, size: usize, how: &'static str, rate: Rate) -> Self {
        Self { class, size, how, rate }
    }
}

/// All measurements.
pub struct Report {
    identity: Identity,
    copies: CopyBandwidth,
    rows: Vec<Row>,
    /// The file for programs. It is written after each row, so that an interrupted run keeps its
    /// measurements.
    path: Option<String>,
}

fn size(bytes: usize) -> String {
    outrigger_format::print_size(bytes as u64)
}

impl Report {
    pub fn new(identity: Identity, copies: CopyBandwidth, path: Option<String>) -> Self {
        println!(
            "{:<26} {:>5} {:<17} {:>8} {:>7} {:>9} {:>6}  copy in, kernels, copy out: µs",
            "operation", "task", "how", "GB/s", "of bus", "tasks/s", "cores",
        );
        Self { identity, copies, rows: Vec::new(), path }
    }

    pub fn push(&mut self, row: Row) {
        let Row { class, how, rate, .. } = &row;
        let gbs = rate.bytes / 1e9;
        let stages = rate.stages.map_or(String::new(), |stages| {
            let micros = |time: std::time::Duration| format!("{:.0}", time.as_secs_f64() * 1e6);
            format!("{}, {}, {}", micros(stages.copy_in), micros(stages.kernel), micros(stages.copy_out))
        });
        println!(
            "{class:<26} {:>5} {how:<17} {gbs:>8.2} {:>6.0}% {:>9.0} {:>6.2}  {stages}",
            size(row.size),
            100.0 * gbs / self.copies.in_gbs,
            rate.tasks,
            rate.cores,
        );
        self.rows.push(row);
        if let Some(path) = &self.path {
            std::fs::write(path, self.json()).expect("the file can be written");
        }
    }

    /// For each operation: the processor's best rate, the device's rate, and the cores that either
    /// takes.
    pub fn summarise(&self) {
        println!("\nat {}, per operation:", size(crate::USUAL));
        let find = |class: &str, how: &str| {
            self.rows.iter().find(|row| row.class == class && row.how == how && row.size == crate::USUAL)
        };
        let mut seen = Vec::new();
        for row in &self.rows {
            if seen.contains(&row.class) {
                continue;
            }
            seen.push(row.class);
            let (Some(gpu), Some(all)) = (find(row.class, ""), find(row.class, "best, all cores")) else {
                continue;
            };
            let times = gpu.rate.bytes / all.rate.bytes;
            let (winner, by) = if times >= 1.0 { ("the GPU", times) } else { ("the processor", 1.0 / times) };
            let cores = |rate: &Rate| rate.cores / (rate.bytes / 1e9);
            let against = find(row.class, "scalar, one core").map_or(String::new(), |scalar| {
                format!(", {:.0} × one core's scalar code", gpu.rate.bytes / scalar.rate.bytes)
            });
            println!(
                "  {:<26} {winner} by {by:.2} ×; core seconds a GB: {:.4} with the GPU, {:.4} without{against}",
                row.class,
                cores(&gpu.rate),
                cores(&all.rate),
            );
            if row.class == "lookup" {
                println!("  {:<26} {:.0} million keys a second", "", gpu.rate.bytes / 32e6);
            }
        }
    }

    fn json(&self) -> String {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                serde_json::json!({
                    "operation": row.class,
                    "task_bytes": row.size,
                    "how": row.how,
                    "bytes_per_second": row.rate.bytes,
                    "tasks_per_second": row.rate.tasks,
                    "cores": row.rate.cores,
                    "stage_seconds": row.rate.stages.map(|stages| {
                        [stages.copy_in, stages.kernel, stages.copy_out].map(|time| time.as_secs_f64())
                    }),
                })
            })
            .collect();
        let report = serde_json::json!({
            "device": self.identity.model,
            "driver": self.identity.driver,
            "memory_bytes": self.identity.memory_bytes,
            "copy_gbs": { "in": self.copies.in_gbs, "out": self.copies.out_gbs, "both": self.copies.both_gbs },
            "rows": rows,
        });
        serde_json::to_string_pretty(&report).expect("plain numbers")
    }
}
