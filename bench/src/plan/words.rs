//! The plan in words: one sentence, or a few, about each measurement and each consequence.

use braid_bench::model::search::{Found, LimitedBy};
use braid_bench::model::stats::Estimate;
use braid_bench::model::usl;

use super::capacity::{Month, Needs};
use super::options::Options;
use super::plan_report::{Counted, Memory, NoLaw, Scaling, buffers_bytes};
use crate::quantity::{bytes, interval, thousands};
use crate::report::RunReport;

/// The most threads that a plan gives to an instance.
const MOST_THREADS: u32 = 256;
/// The ratio of an interval's ends from which the interval says little.
const WIDE: f64 = 2.0;

/// The content of the words.
pub(super) struct Findings<'a> {
    pub(super) options: &'a Options,
    /// The months of the plan, today first.
    pub(super) months: &'a [Month],
    pub(super) found: &'a Found,
    /// The threads of the measured instance, if threads were counted.
    pub(super) n_threads: Option<u32>,
    pub(super) memory: Option<&'a Memory>,
    pub(super) scaling: &'a Result<Scaling, NoLaw>,
    pub(super) run: &'a RunReport,
}

impl Findings<'_> {
    /// Returns all sentences.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut words =
            vec![self.today(), self.at_the_end(), self.when_it_runs_out(), self.rate_of_an_instance()];
        words.extend(self.how_sure_the_rate_is());
        words.extend(self.memory.into_iter().flat_map(|memory| self.memory_needed(memory)));
        words.extend(self.scalability());
        if self.run.shares_cores {
            words.push(String::from(
                "Client and server shared cores while this was measured; on its own machine the server takes more.",
            ));
        }
        words
    }

    fn end(&self) -> &Month {
        &self.months[self.months.len() - 1]
    }

    fn today(&self) -> String {
        let now = &self.months[0];
        format!(
            "Today {} need {}: {} with {} kept free.",
            asked(&now.needs),
            resources(&now.needs),
            self.instances(now),
            percent(self.options.headroom),
        )
    }

    fn at_the_end(&self) -> String {
        let end = self.end();
        format!(
            "In {} months of {} growth it is {}, which need {}: {}.",
            end.month,
            percent(self.options.growth),
            asked(&end.needs),
            resources(&end.needs),
            self.instances(end),
        )
    }

    fn when_it_runs_out(&self) -> String {
        let n_instances = self.options.instances;
        match self.months.iter().find(|month| month.n_instances > n_instances) {
            Some(Month { month: 0, short_of, .. }) => {
                format!("What there is ({n_instances}) does not suffice today: {short_of} is too little.")
            }
            Some(Month { month, short_of, .. }) => {
                format!(
                    "What there is ({n_instances}) runs out in month {month}: {short_of} is too little then."
                )
            }
            None => format!("What there is ({n_instances}) suffices for all {} months.", self.options.months),
        }
    }

    fn rate_of_an_instance(&self) -> String {
        let bound = bound(self.found.limit);
        let threads = self.n_threads.map_or_else(String::new, |n_threads| {
            format!(" with {}, which gave most,", Counted::Threads.counting(n_threads))
        });
        let rate = self.found.rate.low;
        format!(
            "An instance{threads} takes {} requests a second within {}{bound}; {} is what the plan counts on.",
            thousands(rate),
            self.options.search.slo(),
            thousands(rate * (1.0 - self.options.headroom)),
        )
    }

    fn how_sure_the_rate_is(&self) -> Option<String> {
        let rate = self.found.rate;
        let is_wide = self.found.limit == LimitedBy::Server && rate.high > rate.low * WIDE;
        is_wide.then(|| {
            format!(
                "That rate is little more than a guess ({}): the machine was not quiet, or more --rounds are needed.",
                interval(rate)
            )
        })
    }

    fn memory_needed(&self, memory: &Memory) -> Vec<String> {
        let per_key = memory.fit.per_key.iter();
        let each: Vec<_> = per_key
            .map(|(class, bytes)| {
                format!("{:.0} B ({:.0}..{:.0}) a {class}", bytes.value, bytes.low, bytes.high)
            })
            .collect();
        let mut words = vec![format!(
            "Memory is {} and {}; measured up to {} keys. A snapshot is taken to need {} on top, and tables to be at \
             their worst.",
            bytes(memory.fit.base.value),
            each.join(", "),
            thousands(memory.fit.most_keys),
            percent(self.options.snapshot),
        )];
        if let Some(buffers) = buffers_bytes(self.run).filter(|&buffers| buffers > 0) {
            words.push(format!(
                "Buffers and what was written while it ran took {} beyond that, which each month has on top.",
                bytes(buffers as f64)
            ));
        }
        if memory.now.extrapolation > 1.0 {
            words.push(format!(
                "Memory is extrapolated {:.1} times beyond what was measured.",
                memory.now.extrapolation
            ));
        }
        words
    }

    fn scalability(&self) -> Vec<String> {
        match self.scaling {
            Err(no_law) => vec![format!("{no_law}.")],
            Ok(Scaling { counted, fit, .. }) => {
                let mut words = vec![law(*counted, fit)];
                if *counted == Counted::Threads {
                    words.push(self.threads_needed(fit));
                }
                words
            }
        }
    }

    /// Returns a sentence on the threads that an instance with head-room needs at the end.
    ///
    /// The number follows from the law.
    fn threads_needed(&self, fit: &usl::UslFit) -> String {
        let Options { headroom, .. } = self.options;
        let rate = self.end().needs.rate / self.end().n_instances as f64;
        let enough = |&n: &u32| fit.at(f64::from(n)).value * (1.0 - headroom) >= rate;
        match (1..=MOST_THREADS).find(enough) {
            None => format!("No count of threads up to {MOST_THREADS} gives an instance what it needs then."),
            Some(n_threads) => {
                let extrapolated = fit.at(f64::from(n_threads)).extrapolated;
                let how = if extrapolated { ", by extrapolation" } else { "" };
                let verb = if n_threads == 1 { "gives" } else { "give" };
                let threads = Counted::Threads.counting(n_threads);
                format!("{threads} {verb} an instance what it needs then{how}.")
            }
        }
    }

    fn instances(&self, month: &Month) -> String {
        let noun = if month.n_instances == 1 { "instance" } else { "instances" };
        let n_copies = month.n_instances * self.options.redundancy;
        let copies = if n_copies == 1 { "copy" } else { "copies" };
        format!("{} {noun} and {n_copies} {copies}", month.n_instances)
    }
}

/// Returns why a rate is a lower bound, if it is one.
fn bound(limit: LimitedBy) -> &'static str {
    match limit {
        LimitedBy::Client => " (a lower bound: the client was the limit)",
        LimitedBy::Highest => " (a lower bound: no higher rate was tried)",
        LimitedBy::Server | LimitedBy::Lowest => "",
    }
}

/// The law and where it peaks.
fn law(counted: Counted, fit: &usl::UslFit) -> String {
    let peak = match fit.peak() {
        Some(peak) => {
            let how = if peak.extrapolated { ", an extrapolation" } else { "" };
            format!("most at {}{how}", counted.counting(peak.n.value.round() as u32))
        }
        None => String::from("no peak in sight"),
    };
    format!(
        "Against {counted}, throughput follows contention {} and coherency {} (R² {:.2}): {peak}.",
        coefficient(fit.sigma, 3),
        coefficient(fit.kappa, 5),
        fit.r2
    )
}

/// Writes one of the law's coefficients with its interval.
fn coefficient(Estimate { value, low, high }: Estimate, n_digits: usize) -> String {
    if high.is_finite() {
        format!("{value:.n_digits$} ({low:.n_digits$}..{high:.n_digits$})")
    } else {
        format!("{value:.n_digits$} ({low:.n_digits$} or more)")
    }
}

/// Writes the load on the instances.
fn asked(needs: &Needs) -> String {
    format!("{} requests a second over {} keys", thousands(needs.rate), thousands(needs.n_keys as f64))
}

/// Writes the resources for the load.
fn resources(needs: &Needs) -> String {
    format!(
        "{:.1} cores, {} of memory and {:.0} Mbit/s",
        needs.cores,
        bytes(needs.memory_bytes),
        needs.network_bits / 1e6
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaling(points: &[(f64, f64)]) -> Result<Scaling, NoLaw> {
        Scaling::fit(Counted::Threads, points.to_vec())
    }

    #[test]
    fn a_server_that_threads_only_slow_down_is_fastest_with_one() {
        let Scaling { counted, fit, .. } =
            scaling(&[(1.0, 1000.0), (1.0, 1010.0), (2.0, 900.0), (3.0, 880.0), (3.0, 870.0)])
                .expect("it is a law");
        let words = law(counted, &fit);
        assert!(words.starts_with("Against threads, ") && words.ends_with(": most at 1 thread."), "{words}");
    }

    #[test]
    fn coefficients_are_told_with_what_bounds_them() {
        let estimate = |high| Estimate { value: 0.0312, low: 0.0098, high };
        assert_eq!(coefficient(estimate(0.0526), 3), "0.031 (0.010..0.053)");
        assert_eq!(coefficient(estimate(f64::INFINITY), 2), "0.03 (0.01 or more)");
    }

    #[test]
    fn a_lower_bound_is_told_with_its_reason() {
        assert!(bound(LimitedBy::Client).contains("the client was the limit"));
        assert!(bound(LimitedBy::Highest).contains("no higher rate was tried"));
        assert_eq!(bound(LimitedBy::Server), "");
    }

    #[test]
    fn what_scales_without_end_has_no_peak() {
        let Scaling { counted, fit, .. } =
            scaling(&[(1.0, 100.0), (2.0, 210.0), (4.0, 450.0), (8.0, 950.0)]).expect("it is a law");
        assert!(law(counted, &fit).ends_with(": no peak in sight."));
    }

    #[test]
    fn what_follows_no_law_is_told_with_its_reason() {
        let error = scaling(&[(1.0, 1e6), (2.0, 0.0), (3.0, 1e6)]).expect_err("nothing was answered");
        let told = error.to_string();
        assert!(told.starts_with("Throughput against threads gives no law: "), "{told}");
    }
}
