//! A report in the JSON of memtier_benchmark's `--json-out-file`, for tools that read it.
//!
//! Times are in milliseconds there. Each command has its statistics under its name and a plural s.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::{CommandReport, Percentiles, RunReport};

/// Writes the JSON. `start` is when the run began.
pub fn memtier(report: &RunReport, start: SystemTime) -> Value {
    let start_millis = start.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let total_millis = (report.measured_seconds * 1e3) as u64;
    let mut all = Map::new();
    all.insert(
        String::from("Runtime"),
        json!({
            "Start time": start_millis,
            "Finish time": start_millis + total_millis,
            "Total duration": total_millis,
            "Time unit": "MILLISECONDS",
        }),
    );
    for command in &report.commands {
        all.insert(plural(&command.name), of_command(command));
    }
    let mut totals = statistics(report.done, report.nulls, report.achieved_rate, &report.response_time_us);
    totals["KB/sec"] = json!(report.bytes_per_request * report.achieved_rate / 1024.0);
    totals["Time-Serie"] = report
        .seconds
        .iter()
        .map(|second| {
            let of_second = json!({
                "Count": second.done,
                "Max Latency": second.max_us / 1e3,
                "p50.00": second.p50_us / 1e3,
                "p99.00": second.p99_us / 1e3,
            });
            (second.second.to_string(), of_second)
        })
        .collect();
    all.insert(String::from("Totals"), totals);
    let workload = &report.workload;
    json!({
        "configuration": {
            "server": report.server,
            "clients": workload.connections,
            "threads": report.threads,
            "pipeline": workload.pipeline,
            "test_time": report.measured_seconds as u64,
            "key_maximum": workload.keys.count,
            "key_prefix": workload.keys.prefix,
        },
        "ALL STATS": all,
    })
}

fn of_command(command: &CommandReport) -> Value {
    statistics(command.done, command.nulls, command.rate, &command.response_time_us)
}

fn statistics(done: u64, nulls: u64, rate: f64, times: &Percentiles) -> Value {
    let null_share = nulls as f64 / done.max(1) as f64;
    json!({
        "Count": done,
        "Ops/sec": rate,
        "Hits/sec": rate * (1.0 - null_share),
        "Misses/sec": rate * null_share,
        "Latency": times.mean / 1e3,
        "Average Latency": times.mean / 1e3,
        "Max Latency": times.max / 1e3,
        "Percentile Latencies": {
            "p50.00": times.p50 / 1e3,
            "p90.00": times.p90 / 1e3,
            "p99.00": times.p99 / 1e3,
            "p99.90": times.p99_9 / 1e3,
        },
    })
}

/// `GET` becomes `Gets`.
fn plural(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters.map(|letter| letter.to_ascii_lowercase())).chain(['s']).collect()
}
