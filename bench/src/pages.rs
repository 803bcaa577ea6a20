//! The pages of `--html`, made from reports.

use braid_bench::model::search::{Found, Slo};
use braid_bench::report::html::{Fact, Figure, Page, Plate, Section, Warning, charts, render};
use hdrhistogram::Histogram;

use crate::engine::Outcome;
use crate::plan::PlanReport;
use crate::quantity::{bytes, interval, thousands, time};
use crate::report::{Measured, RunReport};

/// Percentiles of the percentile plot.
const PLOTTED: [f64; 12] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// The page of a single run.
pub fn run(measured: &Measured) -> String {
    let report = &measured.report;
    let mut page = begin(report, format!("{} on {}", report.workload.name, report.server_version));
    page.figures = run_figures(report);
    page.sections.push(run_section(measured));
    render(&page)
}

/// The page of a search.
pub fn max(found: &Found, slo: &Slo, measured: &Measured) -> String {
    let report = &measured.report;
    let mut page = begin(report, format!("How much {} takes within {slo}", report.server_version));
    page.figures = search_figures(found, slo);
    page.figures.extend(run_figures(report));
    page.sections.push(section("What it takes", vec![search_plate(found, slo)]));
    page.sections.push(run_section(measured));
    render(&page)
}

/// The page of a plan.
pub fn plan(plan: &PlanReport, slo: &Slo, measured: &Measured) -> String {
    let report = &measured.report;
    let mut page = begin(report, format!("A plan for {} on {}", report.workload.name, report.server_version));
    page.plan = plan.words.clone();
    page.figures = search_figures(&plan.found, slo);
    page.figures.extend(run_figures(report));
    let mut plates = vec![search_plate(&plan.found, slo)];
    if let Some(memory) = &plan.memory {
        let chart = charts::memory(&memory.samples, &memory.fit, plan.keys_at_end);
        let caption = "Resident memory as measured at several populations, and the regression over them.";
        plates.push(Plate { chart, caption: caption.to_owned() });
    }
    if let Some(scaling) = &plan.scaling {
        let most = scaling.points.iter().map(|point| point.0).fold(1.0, f64::max) * 2.0;
        let chart = charts::scalability(&scaling.points, &scaling.fit, most, &scaling.counted.to_string());
        let caption = format!(
            "Throughput of a closed loop against {}, and the Universal Scalability Law fitted to it. Beyond the measured \
             counts it is extrapolated.",
            scaling.counted
        );
        plates.push(Plate { chart, caption });
    }
    page.sections.push(section("What it takes", plates));
    page.sections.push(run_section(measured));
    render(&page)
}

fn section(heading: &str, plates: Vec<Plate>) -> Section {
    Section { heading: heading.to_owned(), plates, ..Section::default() }
}

fn begin(report: &RunReport, title: String) -> Page {
    let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
    let origin = &report.origin;
    let workload = &report.workload;
    let mut warnings = Vec::new();
    if let Some(reason) = &report.client_limit_reason {
        warnings.push(Warning {
            headline: String::from("CLIENT LIMITED"),
            text: format!("The rates are lower bounds: {reason}."),
        });
    }
    if report.shares_cores {
        warnings.push(Warning {
            headline: String::from("Shared cores"),
            text: String::from("Client and server run on the same cores, so each slows the other."),
        });
    }
    let machine =
        format!("{} cores, {}, {}", origin.n_cores, origin.processor, bytes(origin.memory_bytes as f64));
    Page {
        title,
        subtitle: workload.summary.clone(),
        warnings,
        facts: vec![
            fact("Server", format!("{}, {}", report.server, report.server_version)),
            fact(
                "Load",
                format!(
                    "{}, {} connections, pipeline {}, {} keys",
                    report.arrivals,
                    workload.connections,
                    workload.pipeline,
                    thousands(workload.keys.count as f64)
                ),
            ),
            fact("Machine", machine),
            fact("Kernel", origin.kernel.clone()),
            fact("Date", origin.date.clone()),
            fact("braid-bench", format!("{} ({})", origin.tool_version, origin.tool_revision)),
            fact("Command", origin.command_line.clone()),
        ],
        ..Page::default()
    }
}

fn figure(name: &str, value: String, note: String) -> Figure {
    Figure { name: name.to_owned(), value, note }
}

fn search_figures(found: &Found, slo: &Slo) -> Vec<Figure> {
    let rate = found.rate;
    let bound = if found.is_lower_bound() { "at least " } else { "" };
    let interval = format!("{} with 95 % confidence", interval(rate));
    let mut figures = vec![figure(
        &format!("Highest rate within {slo}"),
        format!("{bound}{} /s", thousands(rate.value)),
        interval,
    )];
    if let Some(knee) = found.knee {
        let note = format!("median {} there", time(knee.median_us));
        figures.push(figure("Knee", format!("{} /s", thousands(knee.rate.value)), note));
    }
    figures
}

fn run_figures(report: &RunReport) -> Vec<Figure> {
    let offered = report
        .offered_rate
        .map_or_else(|| String::from("closed loop"), |rate| format!("{} offered", thousands(rate)));
    let times = &report.response_time_us;
    let mut figures = vec![
        figure("Answered", format!("{} /s", thousands(report.achieved_rate)), offered),
        figure(
            "Response time, p99",
            time(times.p99),
            format!("median {}, longest {}", time(times.p50), time(times.max)),
        ),
    ];
    if let Some(micros) = report.server_cpu_us_per_request {
        let cores = report.server_use.cpu_cores.unwrap_or(0.0);
        figures.push(figure(
            "Server CPU a request",
            format!("{micros:.2} µs"),
            format!("{cores:.2} cores in use"),
        ));
    }
    if let Some(resident) = report.server_use.resident_bytes_after {
        figures.push(figure("Resident memory", bytes(resident as f64), String::from("after the run")));
    }
    figures
}

fn search_plate(found: &Found, slo: &Slo) -> Plate {
    Plate {
        chart: charts::latency_throughput(found, slo),
        caption: format!(
            "Each point is the median of the windows at its rate; {} windows in all.",
            found.steps.len()
        ),
    }
}

fn run_section(measured: &Measured) -> Section {
    let Measured { report, outcome } = measured;
    let seconds: Vec<_> = report
        .seconds
        .iter()
        .map(|second| charts::Second {
            at: second.second as f64 + 1.0,
            // A closed loop offers nothing by itself; the chart leaves a gap.
            offered: report.offered_rate.unwrap_or(f64::NAN),
            achieved: second.done as f64,
            p50_us: second.p50_us,
            p99_us: second.p99_us,
            max_us: second.max_us,
            server_cpu: second.server_cpu.map(|cores| cores * 100.0),
            client_cpu: Some(second.client_cpu * 100.0),
        })
        .collect();
    let caption = "Response time counts from when a request was due, service time from when it was sent.";
    let chart = charts::percentiles(&distributions(outcome));
    let mut plates = vec![Plate { chart, caption: caption.to_owned() }];
    let over_time = charts::time_series(&seconds).into_iter();
    plates.extend(over_time.map(|chart| Plate { chart, caption: String::new() }));
    let heading = report.offered_rate.map_or_else(
        || String::from("A run in a closed loop"),
        |rate| format!("A run at {} requests a second", thousands(rate)),
    );
    section(&heading, plates)
}

fn distributions(outcome: &Outcome) -> Vec<(String, Vec<(f64, f64)>)> {
    let points = |nanos: &Histogram<u64>| {
        PLOTTED.iter().map(|&at| (at, nanos.value_at_percentile(at) as f64 / 1e3)).collect::<Vec<_>>()
    };
    let mut all = vec![(String::from("response time"), points(&outcome.record.response()))];
    if outcome.offered.is_some() {
        all.push((String::from("service time"), points(&outcome.record.service)));
    }
    all
}
