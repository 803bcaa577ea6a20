//! A page with every element. `BRAID_SAMPLE_PAGE=FILE` writes it to a file for a browser.

use std::convert::Infallible;

use super::charts::{self, Second};
use super::*;
use crate::model::memory::{self, Class, MemorySample};
use crate::model::search::{Bounds, Probe, Slo, Window, search};
use crate::model::usl;

struct Simulated(fastrand::Rng);

impl Probe for Simulated {
    type Error = Infallible;

    fn measure(&mut self, rate: f64) -> Result<Window, Infallible> {
        let capacity = 240_000.0 * (0.99 + 0.02 * self.0.f64());
        let mean_us = if rate < capacity { 60.0 + 4e6 / (capacity - rate) } else { 5e5 };
        let percentiles = [50.0, 99.0, 99.9];
        Ok(Window {
            offered: rate,
            achieved: rate.min(capacity),
            errors: 0,
            unsent: 0,
            client_limited: false,
            percentiles_us: percentiles
                .map(|p: f64| (p, -mean_us * (1.0 - p / 100.0).ln() * (0.9 + 0.2 * self.0.f64())))
                .to_vec(),
        })
    }
}

/// Response times by percentile, longer by `scale`.
fn response(scale: f64) -> Vec<(f64, f64)> {
    (0..50)
        .map(|n| 0.1 * f64::from(n))
        .map(|nines| (100.0 - 100.0 * 10.0_f64.powf(-nines), scale * (80.0 + 300.0 * nines.powf(2.2))))
        .collect()
}

/// A minute in which the server stalls twice.
fn seconds(random: &mut fastrand::Rng) -> Vec<Second> {
    (1..=60)
        .map(|at| {
            let stalled = at % 23 == 0;
            Second {
                at: f64::from(at),
                offered: 200_000.0,
                achieved: if stalled { 130_000.0 } else { 198_000.0 + 4000.0 * random.f64() },
                p50_us: 110.0 + 20.0 * random.f64(),
                p99_us: if stalled { 42_000.0 } else { 600.0 + 300.0 * random.f64() },
                max_us: if stalled { 101_000.0 } else { 1500.0 + 2000.0 * random.f64() },
                server_cpu: Some(92.0 + 6.0 * random.f64()),
                client_cpu: (at > 5).then(|| 55.0 + 5.0 * random.f64()),
            }
        })
        .collect()
}

/// Memory of growing populations, with tables that double.
fn memory_samples(random: &mut fastrand::Rng) -> Vec<MemorySample> {
    let sample = |level: u64| MemorySample {
        keys: vec![(Class::new("string", 40), level)],
        resident_bytes: 9_000_000 + 112 * level + 8 * level.next_power_of_two() + random.u64(..200_000),
        used_bytes: None,
    };
    memory::populations(1_000_000).into_iter().map(sample).collect()
}

/// Throughput by threads, with its noise.
fn throughputs(random: &mut fastrand::Rng) -> Vec<(f64, f64)> {
    let law = |n: f64| 95_000.0 * n / (1.0 + 0.04 * (n - 1.0) + 0.0015 * n * (n - 1.0));
    [1.0, 2.0, 4.0, 8.0, 12.0, 16.0].map(|n| (n, law(n) * (0.98 + 0.04 * random.f64()))).to_vec()
}

fn plate(chart: Chart, caption: &str) -> Plate {
    Plate { chart, caption: caption.to_owned() }
}

fn latency_section(random: &mut fastrand::Rng) -> Section {
    let slo: Slo = "p99=1ms,p99.9=5ms".parse().unwrap();
    let Ok(found) = search(&mut Simulated(random.fork()), &slo, &Bounds::default(), &mut |_| ());
    let percentiles = [("response".to_owned(), response(1.0)), ("service".to_owned(), response(0.7))];
    Section {
        heading: "Latency and throughput".to_owned(),
        plates: vec![
            plate(charts::latency_throughput(&found, &slo), "Bands span the windows measured at one rate."),
            plate(
                charts::percentiles(&percentiles),
                "Response time counts from the intended send time, service time from the actual one.",
            ),
        ],
        ..Section::default()
    }
}

fn over_time_section(random: &mut fastrand::Rng) -> Section {
    let charts = charts::time_series(&seconds(random)).into_iter();
    Section {
        heading: "Over time".to_owned(),
        plates: charts.map(|chart| plate(chart, "The server stalled in the seconds 23 and 46.")).collect(),
        ..Section::default()
    }
}

fn growth_section(random: &mut fastrand::Rng) -> Section {
    let (samples, points) = (memory_samples(random), throughputs(random));
    let (memory_fit, usl_fit) = (memory::fit(&samples).unwrap(), usl::fit(&points).unwrap());
    Section {
        heading: "Growth".to_owned(),
        text: vec![
            "Points are measured, dashed lines are fitted, bands hold 95 % of measurements.".to_owned(),
        ],
        plates: vec![
            plate(charts::memory(&samples, &memory_fit, 4_000_000), "Steps are hash tables that double."),
            plate(charts::scalability(&points, &usl_fit, 32.0, "threads"), "sigma 0.04, kappa 0.0015."),
        ],
        tables: vec![HtmlTable {
            caption: "By command".to_owned(),
            head: ["command", "rate", "p50", "p99", "p99.9", "max"].map(str::to_owned).to_vec(),
            rows: vec![
                ["GET", "180,021/s", "112 µs", "801 µs", "1.9 ms", "101 ms"].map(str::to_owned).to_vec(),
                ["SET", "19,979/s", "118 µs", "823 µs", "2.1 ms", "101 ms"].map(str::to_owned).to_vec(),
            ],
        }],
    }
}

fn sample() -> Page {
    let mut random = fastrand::Rng::with_seed(4);
    let fact = |name: &str, value: &str| Fact { name: name.to_owned(), value: value.to_owned() };
    let figure = |name: &str, value: &str, note: &str| Figure {
        name: name.to_owned(),
        value: value.to_owned(),
        note: note.to_owned(),
    };
    Page {
        title: "Capacity of 127.0.0.1:6379 for cache".to_owned(),
        subtitle: "Zipf keys, 90 % GET and 10 % SET of 40 bytes, open loop with Poisson arrivals.".to_owned(),
        warnings: vec![Warning {
            headline: "CLIENT LIMITED: a lower bound".to_owned(),
            text: "The client was at its own ceiling in 3 of 12 windows; the server may take more. Client and server \
                   share cores 0 and 1: give each its own with --client-cpus and --server-cpus."
                .to_owned(),
        }],
        figures: vec![
            figure("Highest rate within p99 1 ms", "228.4 k/s", "± 2 %, five rounds"),
            figure("Knee", "121 k/s", "greatest rate over median response time"),
            figure("Bytes a key", "120.1 B", "119.6 to 120.6 B, string of 40 B"),
            figure("Runs out", "March 2027", "of 4 GiB, growing by 8 % a month"),
        ],
        plan: vec![
            "One instance with 2 threads takes the peak of 150,000 requests a second with a head-room of 34 %. Memory \
             for 4,000,000 keys is 501 MiB, and 560 MiB at the worst moment of a table's growth."
                .to_owned(),
            "At a growth of 8 % a month the 4 GiB run out in March 2027. Forecasts beyond 1,000,000 keys and 16 threads \
             are extrapolated."
                .to_owned(),
        ],
        sections: vec![
            latency_section(&mut random),
            over_time_section(&mut random),
            growth_section(&mut random),
        ],
        facts: vec![
            fact("Server", "redis_version 7.0.15, standalone, io-threads 1"),
            fact("Machine", "2 × AMD EPYC 7B13, 7.8 GiB, Linux 6.1"),
            fact("Command line", "braid-bench max -p 6379 --workload cache --slo p99=1ms,p99.9=5ms --html report.html"),
            fact("Date", "2026-11-21 07:00 UTC"),
        ],
    }
}

#[test]
fn the_page_needs_nothing_else() {
    let html = render(&sample());
    if let Some(path) = std::env::var_os("BRAID_SAMPLE_PAGE") {
        std::fs::write(path, &html).unwrap();
    }
    let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "<script", "<link", "@import", "url(", "src="] {
        assert!(!without_namespace.contains(outside), "{outside}");
    }
    assert_eq!(html.matches("<svg").count(), 7);
    assert_eq!(html.matches("<h1>").count(), 1);
    assert!(html.contains("name=\"viewport\"") && html.contains("<html lang=\"en\">"));
}

#[test]
fn a_warning_stands_before_every_figure() {
    let html = render(&sample());
    let warning = html.find("CLIENT LIMITED").unwrap();
    assert!(warning < html.find("class=\"value\"").unwrap() && warning < html.find("<svg").unwrap());
}

#[test]
fn everything_from_outside_is_escaped() {
    let hostile = || "\"><script>alert('&')</script>".to_owned();
    let chart = Chart {
        title: hostile(),
        description: hostile(),
        x: plot::Axis::linear(hostile(), plot::AxisUnit::Count),
        y: plot::Axis::linear(hostile(), plot::AxisUnit::Count),
        series: vec![
            Series::line(hostile(), vec![(1.0, 2.0), (2.0, 3.0)]),
            Series::points(hostile(), vec![(1.0, 1.0)]),
        ],
        marks: vec![plot::Mark::x(1.0, hostile())],
    };
    let page = Page {
        title: hostile(),
        subtitle: hostile(),
        warnings: vec![Warning { headline: hostile(), text: hostile() }],
        figures: vec![Figure { name: hostile(), value: hostile(), note: hostile() }],
        plan: vec![hostile()],
        sections: vec![Section {
            heading: hostile(),
            text: vec![hostile()],
            plates: vec![Plate { chart, caption: hostile() }],
            tables: vec![HtmlTable {
                caption: hostile(),
                head: vec![hostile()],
                rows: vec![vec![hostile(), hostile()]],
            }],
        }],
        facts: vec![Fact { name: hostile(), value: hostile() }],
    };
    let html = render(&page);
    assert!(!html.contains("<script") && !html.contains("\">\"&gt;<"), "{html}");
    assert!(
        html.matches("alert(&#39;&#38;&#39;)").count() + html.matches("alert(&#39;&amp;&#39;)").count() > 20
    );
}

#[test]
fn an_empty_page_has_no_empty_boxes() {
    let html = render(&Page { title: "Nothing".to_owned(), ..Page::default() });
    for part in ["<dl", "<section", "<figure", "<div"] {
        assert!(!html.contains(part), "{part}");
    }
}
