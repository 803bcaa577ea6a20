//! The charts of measurements and models.

use crate::model::memory::{self, MemorySample};
use crate::model::search::{CurvePoint, Found, LimitedBy, Slo};
use crate::model::usl;
use crate::plot::{Axis, AxisUnit, Chart, Mark, Series};

/// One second of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Second {
    /// The end of the second, since the run began.
    pub at: f64,
    /// Requests due in it.
    pub offered: f64,
    /// Requests answered in it.
    pub achieved: f64,
    /// The median response time, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile of the response times.
    pub p99_us: f64,
    /// The longest response time.
    pub max_us: f64,
    /// Processor time of the server, in percent of one core, where it is visible.
    pub server_cpu: Option<f64>,
    /// Processor time of the client, in percent of one core.
    pub client_cpu: Option<f64>,
}

/// Charts response times against the rate offered.
///
/// The chart shows the median and every percentile of the target, the target itself, the rate found and the
/// knee. A band spans the windows at one rate. Rates far above the one found are left out.
pub fn latency_throughput(found: &Found, slo: &Slo) -> Chart {
    let most = if found.rate.value > 0.0 { found.rate.value * 1.15 } else { f64::INFINITY };
    let percentiles =
        [50.0].into_iter().chain(slo.targets().iter().map(|target| target.0).filter(|&p| p != 50.0));
    let series = percentiles.map(|percentile| {
        let mut curve = found.curve(percentile);
        curve.retain(|point| point.rate <= most);
        let place = |point: &CurvePoint| (point.rate, point.response_us.value);
        let span = |point: &CurvePoint| (point.rate, point.response_us.low, point.response_us.high);
        Series::line(name(percentile), curve.iter().map(place).collect())
            .with_band(curve.iter().map(span).collect())
    });
    let targets = slo.targets().iter().map(|&(percentile, at_most)| {
        let micros = at_most.as_secs_f64() * 1e6;
        Mark::y(micros, format!("{} within {}", name(percentile), AxisUnit::Micros.format(micros)))
    });
    let rate = AxisUnit::Count.format(found.rate.value);
    let found_label = match found.limit {
        LimitedBy::Client => format!("client limited at {rate}"),
        LimitedBy::Highest => format!("highest tried {rate}"),
        LimitedBy::Server => format!("highest {rate}"),
        LimitedBy::Lowest => "no rate keeps the target".to_owned(),
    };
    let knee = found
        .knee
        .map(|knee| Mark::x(knee.rate.value, format!("knee {}", AxisUnit::Count.format(knee.rate.value))));
    Chart {
        title: "Response time against rate".to_owned(),
        description: format!("Response times rise with the offered rate; {found_label} requests a second"),
        x: Axis::linear("offered, requests a second", AxisUnit::Count),
        y: Axis::log("response time", AxisUnit::Micros),
        series: series.collect(),
        marks: targets.chain(knee).chain([Mark::x(found.rate.value, found_label)]).collect(),
    }
}

/// Charts response times by percentile, on an axis of nines.
///
/// Each line has a name and its pairs `(percentile, microseconds)`.
pub fn percentiles(distributions: &[(String, Vec<(f64, f64)>)]) -> Chart {
    Chart {
        title: "Response time by percentile".to_owned(),
        description: "Each further tick leaves out a tenth of the requests that the one before left out"
            .to_owned(),
        x: Axis::percentiles("percentile of requests"),
        y: Axis::log("response time", AxisUnit::Micros),
        series: distributions.iter().map(|(name, points)| Series::line(name, points.clone())).collect(),
        marks: Vec::new(),
    }
}

/// Charts a run over time: its rate, its response times and, where visible, processor time.
pub fn time_series(seconds: &[Second]) -> Vec<Chart> {
    let line = |name: &str, of: fn(&Second) -> Option<f64>| {
        Series::line(name, seconds.iter().map(|second| (second.at, of(second).unwrap_or(f64::NAN))).collect())
    };
    let over_time = |title: &str, description: &str, y: Axis, series: Vec<Series>| Chart {
        title: title.to_owned(),
        description: description.to_owned(),
        x: Axis::linear("time", AxisUnit::Seconds),
        y,
        series,
        marks: Vec::new(),
    };
    let mut charts = vec![
        over_time(
            "Rate over time",
            "Requests offered and answered in each second",
            Axis::linear("requests a second", AxisUnit::Count),
            vec![
                line("answered", |second| Some(second.achieved)),
                line("offered", |second| Some(second.offered)),
            ],
        ),
        over_time(
            "Response time over time",
            "Median, 99th percentile and slowest request of each second",
            Axis::log("response time", AxisUnit::Micros),
            vec![
                line("p50", |second| Some(second.p50_us)),
                line("p99", |second| Some(second.p99_us)),
                line("slowest", |second| Some(second.max_us)),
            ],
        ),
    ];
    let processors = [line("server", |second| second.server_cpu), line("client", |second| second.client_cpu)];
    let seen: Vec<Series> = processors
        .into_iter()
        .filter(|series| series.points.iter().any(|point| point.1.is_finite()))
        .collect();
    if !seen.is_empty() {
        let title = "Processor time over time";
        let axis = Axis::linear("processor time, 100 % is one core", AxisUnit::Percent);
        charts.push(over_time(title, "Processor time in each second", axis, seen));
    }
    charts
}

/// Charts resident memory against keys.
///
/// The chart shows the measurements, the fit, and its forecast up to `n_keys` with its interval.
pub fn memory(samples: &[MemorySample], fit: &memory::MemoryFit, n_keys: u64) -> Chart {
    const N_POINTS: u64 = 240;
    let measured = |sample: &MemorySample| {
        (sample.keys.iter().map(|(_, count)| *count as f64).sum(), sample.resident_bytes as f64)
    };
    let forecasts: Vec<memory::Forecast> = (0..=N_POINTS)
        .map(|place| fit.forecast((n_keys as u128 * u128::from(place) / u128::from(N_POINTS)) as u64))
        .collect();
    let line = forecasts.iter().map(|forecast| (forecast.n_keys, forecast.resident_bytes.value)).collect();
    let band = forecasts
        .iter()
        .map(|forecast| (forecast.n_keys, forecast.resident_bytes.low, forecast.worst_bytes))
        .collect();
    let last = fit.forecast(n_keys);
    let needed = AxisUnit::Bytes.format(last.resident_bytes.value);
    Chart {
        title: "Resident memory against keys".to_owned(),
        description: format!("{} keys are expected to need {needed}", AxisUnit::Count.format(last.n_keys)),
        x: Axis::linear("keys", AxisUnit::Count),
        y: Axis::linear("resident memory", AxisUnit::Bytes),
        series: vec![
            Series::dashed("fit, up to the worst moment", line).with_band(band),
            Series::points("measured", samples.iter().map(measured).collect()),
        ],
        marks: extrapolation(fit.most_keys, n_keys as f64),
    }
}

/// Charts throughput against a count of threads, connections or nodes.
///
/// The chart shows the measurements, and the law up to `most`.
pub fn scalability(points: &[(f64, f64)], fit: &usl::UslFit, most: f64, counted: &str) -> Chart {
    const N_POINTS: usize = 120;
    let (least, measured) = fit.measured;
    let least = least.min(1.0);
    let most = most.max(measured);
    let counts: Vec<f64> =
        (0..=N_POINTS).map(|place| least + (most - least) * place as f64 / N_POINTS as f64).collect();
    let line = counts.iter().map(|&n| (n, fit.at(n).value)).collect();
    let band = counts.iter().map(|&n| (n, fit.at(n))).map(|(n, at)| (n, at.low, at.high)).collect();
    let peak = fit.peak().filter(|peak| peak.n.value <= most);
    let peak_label = |n: f64| format!("peak at {}", AxisUnit::Count.format((n * 10.0).round() / 10.0));
    Chart {
        title: format!("Throughput against {counted}"),
        description: match peak {
            Some(peak) => format!("Throughput is greatest at {:.0} {counted}", peak.n.value),
            None => format!("Throughput rises up to {most:.0} {counted}"),
        },
        x: Axis::linear(counted, AxisUnit::Count),
        y: Axis::linear("requests a second", AxisUnit::Count),
        series: vec![
            Series::dashed("scalability law", line).with_band(band),
            Series::points("measured", points.to_vec()),
        ],
        marks: peak
            .map(|peak| Mark::x(peak.n.value, peak_label(peak.n.value)))
            .into_iter()
            .chain(extrapolation(measured, most))
            .collect(),
    }
}

/// Marks the end of the measurements, where extrapolation begins.
fn extrapolation(measured: f64, most: f64) -> Vec<Mark> {
    if most > measured { vec![Mark::x(measured, "measured up to here")] } else { Vec::new() }
}

fn name(percentile: f64) -> String {
    if percentile == 100.0 { "slowest".to_owned() } else { format!("p{percentile}") }
}
