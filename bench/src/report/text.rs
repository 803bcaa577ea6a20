//! A report as a table for people.

use std::fmt::{self, Write};

use super::{Percentiles, RunReport};
use crate::observe::BottleneckKind;
use crate::quantity::{bytes, thousands, time};
use crate::table::Table;

fn row(name: &str, count: String, times: &Percentiles) -> Vec<String> {
    // Where nothing was measured, a dash replaces the time.
    let told = |micros| if times.max > 0.0 { time(micros) } else { String::from("-") };
    let times = [times.mean, times.p50, times.p90, times.p99, times.p99_9, times.max].map(told);
    [name.to_owned(), count].into_iter().chain(times).collect()
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, .. } = self;
        let loop_kind = match self.offered_rate {
            None => String::from("closed loop"),
            Some(rate) => format!("open loop, {} a second, {}", thousands(rate), self.arrivals),
        };
        writeln!(
            f,
            "{}: {loop_kind}, {} connections, pipeline {}, {} on {}",
            workload.name, workload.connections, workload.pipeline, self.server_version, self.server
        )?;
        writeln!(f)?;
        let mut table = Table::new(["", "a second", "mean", "p50", "p90", "p99", "p99.9", "max"]);
        if self.commands.len() > 1 {
            for command in &self.commands {
                table.push(row(&command.name, thousands(command.rate), &command.response_time_us));
            }
        }
        table.push(row("response time", thousands(self.achieved_rate), &self.response_time_us));
        table.push(row("service time", String::new(), &self.service_time_us));
        if self.offered_rate.is_some() {
            table.push(row("schedule slip", String::new(), &self.schedule_slip_us));
        }
        if let Some(delivery) = &self.delivery_time_us {
            table.push(row("delivery time", String::new(), delivery));
        }
        writeln!(f, "{table}")?;
        writeln!(f, "{}", self.counts())?;
        writeln!(f, "{}", self.usage())?;
        for (text, n_times) in &self.error_texts {
            writeln!(f, "error {n_times} times: {text}")?;
        }
        if self.shares_cores {
            writeln!(
                f,
                "client and server share cores: each slows the other (--client-cpus, --server-cpus keep them apart)"
            )?;
        }
        if let Some(reason) = &self.client_limit_reason {
            writeln!(f, "CLIENT LIMITED: a lower bound ({reason})")?;
        } else if self.bottleneck.kind != BottleneckKind::None {
            writeln!(f, "limit: {} ({})", self.bottleneck.kind, self.bottleneck.why)?;
        }
        Ok(())
    }
}

impl RunReport {
    fn counts(&self) -> String {
        let mut line = format!("{} sent, {} done", thousands(self.sent as f64), thousands(self.done as f64));
        let rare = [
            (self.nulls, "null replies"),
            (self.conflicts, "conflicts"),
            (self.reconnects, "reconnects"),
            (self.errors, "errors"),
            (self.unanswered, "unanswered"),
            (self.unsent, "unsent"),
            (self.delivered, "messages delivered"),
            (self.lost, "messages lost"),
        ];
        for (count, what) in rare {
            if count > 0 {
                let _ = write!(line, ", {} {what}", thousands(count as f64));
            }
        }
        line
    }

    fn usage(&self) -> String {
        let mut line = format!("client {:.2} µs of CPU a request", self.client_cpu_us_per_request);
        if let Some(ceiling) = self.client_ceiling_rate {
            let _ = write!(line, ", by itself {} a second", thousands(ceiling));
        }
        let server = &self.server_use;
        if let Some(cores) = server.cpu_cores {
            let _ = write!(line, "; server {cores:.2} cores");
            if let Some(micros) = self.server_cpu_us_per_request {
                let _ = write!(line, ", {micros:.2} µs a request");
            }
        }
        if let Some(bytes_after) = server.resident_bytes_after {
            let _ = write!(line, ", {} resident", bytes(bytes_after as f64));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    #[test]
    fn what_was_not_measured_has_no_times() {
        let mut nanos = Histogram::new(3).expect("three digits are allowed");
        assert_eq!(row("GET", String::from("0"), &Percentiles::of(&nanos))[2..], ["-"; 6]);
        nanos.record(2_000_000).expect("it grows");
        assert_eq!(row("GET", String::from("1"), &Percentiles::of(&nanos))[2..], ["2.00 ms"; 6]);
    }
}
