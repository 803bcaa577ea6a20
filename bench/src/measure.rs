//! Running a load once: the live line, samples of the server before and after it, and the report.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::endpoint::Endpoint;
use crate::engine::{Limit, Slice};
use crate::error::BenchError;
use crate::load::{Ceiling, Load};
use crate::observe::{self, Observer, Seen};
use crate::process::CpuSample;
use crate::quantity::{thousands, time};
use crate::report::{Measured, RunReport, Surroundings};

/// Runs a load once with a live line, and makes the report.
///
/// The server is sampled before and after.
///
/// # Errors
/// When the server cannot be loaded.
pub fn measure(
    load: &Load,
    endpoint: &Endpoint,
    observer: &Observer,
    ceiling: Option<Ceiling>,
) -> Result<Measured, BenchError> {
    let before = observer.sample();
    let mut live = Live::new(load, observer);
    let outcome = load.run(&endpoint.target, &mut |slice| live.show(slice))?;
    let seen = live.finish();
    let after = observer.sample();
    let server_use = after.since(&before);
    let around = Surroundings {
        server: &endpoint.name,
        load,
        before: &before,
        bottleneck: observe::bottleneck(&outcome, &server_use, load.workload()),
        server_use,
        seen: &seen,
        ceiling,
        shares_cores: observer.shares_cores(&load.plan.cpus),
    };
    let report = RunReport::new(&outcome, around);
    Ok(Measured { report, outcome })
}

/// The line that shows each second as it passes.
struct Live<'a> {
    bar: ProgressBar,
    observer: &'a Observer,
    last: Option<CpuSample>,
    seen: Seen,
}

impl<'a> Live<'a> {
    fn new(load: &Load, observer: &'a Observer) -> Self {
        let n_seconds = match load.plan.limit {
            Limit::Time { warmup, measured } => (warmup + measured).as_secs(),
            Limit::Requests(_) | Limit::Told(_) => 0,
        };
        let bar = ProgressBar::new(n_seconds);
        let style =
            ProgressStyle::with_template("{bar:20} {pos}/{len} s  {msg}").expect("the template is right");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, observer, last: observer.cpu(), seen: Seen::default() }
    }

    fn show(&mut self, slice: &Slice) {
        let now = self.observer.cpu();
        let used = now.zip(self.last).map(|(now, last)| now.since(last).as_secs_f64());
        self.last = now;
        self.seen.cpu.extend(used);
        self.seen.peak_bytes = self.seen.peak_bytes.max(self.observer.resident_bytes());
        let percentile = |percentile| time(slice.response.value_at_percentile(percentile) as f64 / 1e3);
        self.bar.set_position(slice.second + 1);
        self.bar.set_message(format!(
            "{} a second  p50 {}  p99 {}  {} errors",
            thousands(slice.n_done as f64),
            percentile(50.0),
            percentile(99.0),
            slice.n_errors
        ));
    }

    /// Removes the line, and returns the samples of each second.
    fn finish(self) -> Seen {
        self.bar.finish_and_clear();
        self.seen
    }
}
