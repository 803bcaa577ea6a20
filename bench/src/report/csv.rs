//! A report as CSV: one row a second, then one a command, then the total.

use super::{Percentiles, RunReport};

/// The columns.
const HEAD: &str = "kind,name,done,errors,rate,mean_us,p50_us,p90_us,p99_us,p99_9_us,max_us\n";

/// Writes the table.
pub fn csv(report: &RunReport) -> String {
    let mut text = String::from(HEAD);
    for second in &report.seconds {
        text += &format!(
            "second,{},{},{},{},,{:.1},,{:.1},,{:.1}\n",
            second.second,
            second.done,
            second.errors,
            second.done,
            second.p50_us,
            second.p99_us,
            second.max_us
        );
    }
    for command in &report.commands {
        let name = quoted(&command.name);
        text += &row("command", &name, command.done, command.errors, command.rate, &command.response_time_us);
    }
    text + &row("total", "all", report.done, report.errors, report.achieved_rate, &report.response_time_us)
}

fn row(kind: &str, name: &str, done: u64, errors: u64, rate: f64, times: &Percentiles) -> String {
    let Percentiles { mean, p50, p90, p99, p99_9, max, .. } = times;
    format!(
        "{kind},{name},{done},{errors},{rate:.1},{mean:.1},{p50:.1},{p90:.1},{p99:.1},{p99_9:.1},{max:.1}\n"
    )
}

/// Quotes a cell as RFC 4180 requires.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}
