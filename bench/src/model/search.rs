//! The highest rate at which a server keeps its latency target, found over varying windows.
//!
//! One window says little: by chance, the same rate keeps the target in one and misses it in the next. So the
//! search takes three steps:
//!
//! 1. It **climbs** from [`Bounds::start`] in doublings until two windows of a rate are broken, and then
//!    bisects. If the first rate breaks, it descends until one rate is kept.
//! 2. It searches again for a number of **rounds** in fresh windows around the result of the climb. Each rate
//!    is judged by the majority of up to three windows. A round whose bracket is wrong walks out of it. The
//!    rounds' results are independent of each other, so their geometric mean has a valid error. The interval
//!    is where another search of as many rounds is expected to land, with the confidence of
//!    [`LEVEL`](super::stats::LEVEL). It is never narrower than the resolution.
//! 3. It measures a **curve** at even shares of the rate found, for the knee and for drawing.
//!
//! The rate found is the one that half of the windows keep. A rate for planning is the interval's lower end.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::stats::{self, Estimate};

/// A server under load, as the search sees it.
pub trait Probe {
    /// The reason why a window could not be measured at all.
    type Error;

    /// Offers `rate` requests a second for one window.
    ///
    /// # Errors
    ///
    /// If nothing can be measured any more; the search then ends with this error.
    fn measure(&mut self, rate: f64) -> Result<Window, Self::Error>;
}

/// The measurements of one window at one rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Window {
    /// Requests a second that were due.
    pub offered: f64,
    /// Requests a second that were answered.
    pub achieved: f64,
    /// Requests that failed.
    pub errors: u64,
    /// Requests that were due and never sent.
    pub unsent: u64,
    /// Whether the client, not the server, held the load back or made it late.
    pub client_limited: bool,
    /// Pairs of a percentile, 0 to 100, and a response time in microseconds.
    ///
    /// That percentage of requests stayed within the time.
    pub percentiles_us: Vec<(f64, f64)>,
}

impl Window {
    /// The response time at a percentile, if it was recorded.
    pub fn percentile_us(&self, percentile: f64) -> Option<f64> {
        let recorded = self.percentiles_us.iter().find(|(recorded, _)| (recorded - percentile).abs() < 1e-9);
        recorded.map(|&(_, micros)| micros)
    }
}

/// The conditions under which a window counts as kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slo {
    #[serde(serialize_with = "as_text")]
    targets: Vec<(f64, Duration)>,
    max_errors: u64,
}

impl Slo {
    /// The share of the offered requests that must be answered within the window.
    ///
    /// A lower share means a growing queue, whatever the latencies of the answered requests.
    pub const LEAST_ACHIEVED: f64 = 0.98;

    /// A target at one percentile.
    pub fn new(percentile: f64, at_most: Duration) -> Self {
        Self { targets: vec![(percentile, at_most)], max_errors: 0 }
    }

    /// Allows this many failed requests a window.
    pub fn with_max_errors(self, max_errors: u64) -> Self {
        Self { max_errors, ..self }
    }

    /// Percentiles and the times they must stay within.
    pub fn targets(&self) -> &[(f64, Duration)] {
        &self.targets
    }

    /// Judges a window.
    pub fn judge(&self, window: &Window) -> WindowVerdict {
        match self.breach(window) {
            None => WindowVerdict::Kept,
            Some(_) if window.client_limited => WindowVerdict::ClientLimited,
            Some(breach) => WindowVerdict::Broken(breach),
        }
    }

    fn breach(&self, window: &Window) -> Option<Breach> {
        if window.errors > self.max_errors {
            return Some(Breach::Errors);
        }
        if window.unsent > 0 {
            return Some(Breach::Unsent);
        }
        // The comparison makes a figure that is no number a breach.
        let kept_up = window.achieved >= window.offered * Self::LEAST_ACHIEVED;
        if !kept_up {
            return Some(Breach::Behind);
        }
        self.targets.iter().find_map(|&(percentile, at_most)| match window.percentile_us(percentile) {
            None => Some(Breach::Unmeasured { percentile }),
            Some(micros) if micros <= at_most.as_secs_f64() * 1e6 => None,
            Some(_) => Some(Breach::Latency { percentile }),
        })
    }
}

/// Reads `p99=1ms,p99.9=5ms`; `max` is the hundredth percentile.
impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let target = |part: &str| {
            let (name, time) = part.split_once('=').ok_or_else(|| SloError::Form(part.to_owned()))?;
            let percentile = match name.trim() {
                "max" => 100.0,
                name => name
                    .strip_prefix('p')
                    .and_then(|digits| digits.parse().ok())
                    .filter(|percentile| (0.0..=100.0).contains(percentile) && *percentile > 0.0)
                    .ok_or_else(|| SloError::Percentile(name.to_owned()))?,
            };
            let at_most = humantime::parse_duration(time.trim())
                .ok()
                .filter(|at_most| !at_most.is_zero())
                .ok_or_else(|| SloError::Time(time.to_owned()))?;
            Ok((percentile, at_most))
        };
        let targets = text.split(',').map(target).collect::<Result<_, _>>()?;
        Ok(Self { targets, max_errors: 0 })
    }
}

/// Writes the targets in the form in which they are read.
impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.targets.iter().enumerate().try_for_each(|(place, &(percentile, at_most))| {
            let separator = if place == 0 { "" } else { "," };
            write!(f, "{separator}p{percentile}={}", humantime::format_duration(at_most))
        })
    }
}

fn as_text<S: Serializer>(targets: &[(f64, Duration)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Slo { targets: targets.to_vec(), max_errors: 0 })
}

/// The reason why a text is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SloError {
    /// There is no `=`.
    #[error("`{0}` is no target: write for example p99=1ms,p99.9=5ms")]
    Form(String),
    /// The text left of the `=` is no percentile.
    #[error("`{0}` is no percentile: write p50, p99, p99.9 or max")]
    Percentile(String),
    /// The text right of the `=` is no time above zero.
    #[error("`{0}` is no time: write for example 500us, 1.5ms or 2s")]
    Time(String),
}

/// The judgement of a rate by one window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowVerdict {
    /// The target is kept. A limited client makes latencies worse, never better, so this verdict holds for it
    /// too.
    Kept,
    /// The server breaks the target.
    Broken(Breach),
    /// The target is missed, and the client may be the reason. The window says nothing about the server.
    ClientLimited,
}

/// The condition that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Breach {
    /// More requests failed than are allowed.
    Errors,
    /// Requests were due and never sent.
    Unsent,
    /// Fewer were answered than were offered.
    Behind,
    /// A percentile is beyond its time.
    Latency {
        /// The percentile, 0 to 100.
        percentile: f64,
    },
    /// A percentile of the target is not among those recorded.
    Unmeasured {
        /// The percentile, 0 to 100.
        percentile: f64,
    },
}

/// The range and the resolution of a search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// The first rate tried.
    pub start: f64,
    /// The lowest rate worth trying.
    pub lowest: f64,
    /// The highest rate tried. For a server that keeps the target there, the result is a lower bound.
    pub highest: f64,
    /// The precision of a bisection, as a share of the rate.
    pub resolution: f64,
    /// The number of repeated searches after the climb, at least two.
    pub n_rounds: u32,
    /// The number of even shares of the rate found that are measured for the curve.
    pub n_curve: u32,
}

impl Default for Bounds {
    /// The default bounds: from 1,000 up to 100 million requests a second, to 2 %.
    ///
    /// With five rounds and a curve of ten rates, a search takes about seventy windows.
    fn default() -> Self {
        Self { start: 1000.0, lowest: 10.0, highest: 1e8, resolution: 0.02, n_rounds: 5, n_curve: 10 }
    }
}

/// The part of the search that a window belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Climbing, descending and the first bisection.
    Climb,
    /// A repeated search, counted from one.
    Round(u32),
    /// A share of the rate found.
    Curve,
}

/// One window and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The part of the search.
    pub phase: Phase,
    /// The rate that was requested.
    pub rate: f64,
    /// The measurements.
    pub window: Window,
    /// The judgement of the window.
    pub verdict: WindowVerdict,
}

/// The limit that keeps the rate from being higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    /// The server; the rate is its own.
    Server,
    /// The client; the rate is a lower bound, and the interval has no upper end.
    Client,
    /// [`Bounds::highest`]; the rate is a lower bound, and the interval has no upper end.
    Highest,
    /// Even [`Bounds::lowest`] breaks the target. The rate is zero, and the interval ends at the lowest
    /// tried.
    Lowest,
}

/// The knee of the latency-throughput curve.
///
/// It is the point of greatest power, which is the achieved rate over the median response time (Kleinrock
/// 1979). Beyond it, waiting grows faster than throughput.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Knee {
    /// The measured rate with the greatest power. The interval reaches to the measured rates on both sides.
    pub rate: Estimate,
    /// The median response time there.
    pub median_us: f64,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The highest rate that keeps the target.
    ///
    /// The interval is where a repeated search is expected to land.
    pub rate: Estimate,
    /// The limit of the rate.
    pub limit: LimitedBy,
    /// The commonest breach just above the rate; `None` if the server is not the limit.
    pub breach: Option<Breach>,
    /// The knee, if response times were recorded at three rates or more.
    pub knee: Option<Knee>,
    /// Every window, in order.
    pub steps: Vec<Step>,
}

/// Response times at one offered rate over all windows.
///
/// Rates within a hundredth of each other count as one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Requested rate, in requests a second: the median of the windows.
    pub rate: f64,
    /// Requests a second answered, the median of the windows.
    pub achieved: f64,
    /// Response time in microseconds: the median of the windows, with their least and greatest as interval.
    pub response_us: Estimate,
}

impl Found {
    /// Whether the rate is a lower bound of the server's capacity.
    pub fn is_lower_bound(&self) -> bool {
        matches!(self.limit, LimitedBy::Client | LimitedBy::Highest)
    }

    /// Returns the latency-throughput curve at a percentile, by rising rate.
    ///
    /// Windows that the client held back are left out.
    pub fn curve(&self, percentile: f64) -> Vec<CurvePoint> {
        curve(&self.steps, percentile)
    }
}

/// Searches for the highest rate that keeps the target, and passes every window to `progress`.
///
/// # Errors
///
/// The first error of the probe.
///
/// # Panics
///
/// If the bounds are not `0 < lowest <= start <= highest`, the resolution is not between 0 and 1, or there
/// are fewer than two rounds.
pub fn search<P: Probe>(
    probe: &mut P,
    slo: &Slo,
    bounds: &Bounds,
    progress: &mut dyn FnMut(&Step),
) -> Result<Found, P::Error> {
    let ordered = 0.0 < bounds.lowest && bounds.lowest <= bounds.start && bounds.start <= bounds.highest;
    assert!(ordered, "the bounds of a search rise from above zero: {bounds:?}");
    assert!(bounds.resolution > 0.0 && bounds.resolution < 1.0, "the resolution is a share: {bounds:?}");
    assert!(bounds.n_rounds >= 2, "an interval needs two rounds: {bounds:?}");
    Search { probe, slo, bounds, progress, steps: Vec::new() }.run()
}

/// Two rates: the lower was kept, the upper was not.
#[derive(Debug, Clone, Copy)]
struct Bracket {
    kept: f64,
    missed: f64,
}

impl Bracket {
    fn middle(self) -> f64 {
        (self.kept * self.missed).sqrt()
    }
}

/// The result of a search for a bracket.
enum Bracketed {
    Within(Bracket),
    AllKept,
    AllMissed,
}

struct Search<'a, P> {
    probe: &'a mut P,
    slo: &'a Slo,
    bounds: &'a Bounds,
    progress: &'a mut dyn FnMut(&Step),
    steps: Vec<Step>,
}

impl<P: Probe> Search<'_, P> {
    fn run(mut self) -> Result<Found, P::Error> {
        let estimate = match self.climb()? {
            Bracketed::AllKept => self.none_missed(),
            Bracketed::AllMissed => self.none_kept(),
            Bracketed::Within(bracket) => self.rounds(bracket)?,
        };
        if estimate.value > 0.0 {
            for share in 1..=self.bounds.n_curve {
                self.window(
                    Phase::Curve,
                    estimate.value * f64::from(share) / f64::from(self.bounds.n_curve),
                )?;
            }
        }
        let limit = self.limit(estimate);
        let rate = match limit {
            LimitedBy::Client | LimitedBy::Highest => Estimate { high: f64::INFINITY, ..estimate },
            LimitedBy::Server | LimitedBy::Lowest => estimate,
        };
        let breach = if limit == LimitedBy::Client { None } else { self.commonest_breach() };
        let knee = knee(&self.steps);
        Ok(Found { rate, limit, breach, knee, steps: self.steps })
    }

    /// Doubles or halves the rate until it is bracketed, then bisects.
    fn climb(&mut self) -> Result<Bracketed, P::Error> {
        let start = self.bounds.start;
        let direction = if self.either_keeps(start)? { Direction::Up } else { Direction::Down };
        let bracketed = self.walk(start, Self::either_keeps, direction, 2.0)?;
        let Bracketed::Within(mut bracket) = bracketed else { return Ok(bracketed) };
        while bracket.missed > bracket.kept * (1.0 + 2.0 * self.bounds.resolution) {
            self.halve(&mut bracket, |search, rate| search.majority_keeps(Phase::Climb, rate))?;
        }
        Ok(Bracketed::Within(bracket))
    }

    /// Repeats the search around the climb's bracket, and returns the results' mean and spread.
    fn rounds(&mut self, found: Bracket) -> Result<Estimate, P::Error> {
        let n_rounds = self.bounds.n_rounds;
        let mut logarithms = Vec::new();
        for round in 1..=n_rounds {
            // The brackets are shifted against each other. Otherwise every round would try the same few
            // rates.
            let shift = f64::from(round) / f64::from(n_rounds + 1) - 0.5;
            let center = found.middle() * (1.0 + shift * self.bounds.resolution);
            logarithms.push(self.round(round, center)?.ln());
        }
        let (mean, deviation) = stats::moments(&logarithms).expect("there are two rounds at least");
        // This is twice the variance of a mean: that of this search, and that of another search expected to
        // land in the interval.
        let spread = stats::student(logarithms.len() - 1) * deviation * (2.0 / f64::from(n_rounds)).sqrt();
        let half = spread.max(self.bounds.resolution);
        let within = |logarithm: f64| logarithm.exp().clamp(self.bounds.lowest, self.bounds.highest);
        Ok(Estimate { value: mean.exp(), low: within(mean - half), high: within(mean + half) })
    }

    /// Searches once in fresh windows, from a bracket around `center`.
    ///
    /// The search may leave the bracket on either side.
    fn round(&mut self, round: u32, center: f64) -> Result<f64, P::Error> {
        let phase = Phase::Round(round);
        let keeps = |search: &mut Self, rate: f64| search.majority_keeps(phase, rate);
        let reach = 1.0 + 3.0 * self.bounds.resolution;
        let bounds = *self.bounds;
        let (lowest, highest) = (center / reach, center * reach);
        let mut bracket = if keeps(self, center)? {
            if keeps(self, highest.min(bounds.highest))? {
                match self.walk(highest.min(bounds.highest), keeps, Direction::Up, reach)? {
                    Bracketed::Within(bracket) => bracket,
                    Bracketed::AllKept | Bracketed::AllMissed => return Ok(bounds.highest),
                }
            } else {
                Bracket { kept: center, missed: highest }
            }
        } else if keeps(self, lowest.max(bounds.lowest))? {
            Bracket { kept: lowest, missed: center }
        } else {
            match self.walk(lowest.max(bounds.lowest), keeps, Direction::Down, reach)? {
                Bracketed::Within(bracket) => bracket,
                Bracketed::AllKept | Bracketed::AllMissed => return Ok(bounds.lowest),
            }
        };
        while bracket.missed > bracket.kept * (1.0 + self.bounds.resolution) {
            self.halve(&mut bracket, keeps)?;
        }
        Ok(bracket.middle())
    }

    /// Continues from a judged rate until the judgement turns or a bound is reached.
    ///
    /// Each step changes the rate by `factor`.
    fn walk(
        &mut self,
        from: f64,
        mut keeps: impl FnMut(&mut Self, f64) -> Result<bool, P::Error>,
        direction: Direction,
        factor: f64,
    ) -> Result<Bracketed, P::Error> {
        let mut last = from;
        loop {
            match direction {
                Direction::Up if last >= self.bounds.highest => return Ok(Bracketed::AllKept),
                Direction::Down if last <= self.bounds.lowest => return Ok(Bracketed::AllMissed),
                Direction::Up => {
                    let next = (last * factor).min(self.bounds.highest);
                    if !keeps(self, next)? {
                        return Ok(Bracketed::Within(Bracket { kept: last, missed: next }));
                    }
                    last = next;
                }
                Direction::Down => {
                    let next = (last / factor).max(self.bounds.lowest);
                    if keeps(self, next)? {
                        return Ok(Bracketed::Within(Bracket { kept: next, missed: last }));
                    }
                    last = next;
                }
            }
        }
    }

    fn halve(
        &mut self,
        bracket: &mut Bracket,
        mut keeps: impl FnMut(&mut Self, f64) -> Result<bool, P::Error>,
    ) -> Result<(), P::Error> {
        let middle = bracket.middle();
        if keeps(self, middle)? {
            bracket.kept = middle;
        } else {
            bracket.missed = middle;
        }
        Ok(())
    }

    /// Whether one window of two keeps the target. That is enough to continue climbing far below the final
    /// rate.
    fn either_keeps(&mut self, rate: f64) -> Result<bool, P::Error> {
        Ok(self.keeps(Phase::Climb, rate)? || self.keeps(Phase::Climb, rate)?)
    }

    /// Whether two windows of three keep the target.
    ///
    /// The third is measured only if the first two differ.
    fn majority_keeps(&mut self, phase: Phase, rate: f64) -> Result<bool, P::Error> {
        let (first, second) = (self.keeps(phase, rate)?, self.keeps(phase, rate)?);
        if first == second { Ok(first) } else { self.keeps(phase, rate) }
    }

    fn keeps(&mut self, phase: Phase, rate: f64) -> Result<bool, P::Error> {
        Ok(self.window(phase, rate)? == WindowVerdict::Kept)
    }

    fn window(&mut self, phase: Phase, rate: f64) -> Result<WindowVerdict, P::Error> {
        let window = self.probe.measure(rate)?;
        let verdict = self.slo.judge(&window);
        let step = Step { phase, rate, window, verdict };
        (self.progress)(&step);
        self.steps.push(step);
        Ok(verdict)
    }

    fn none_missed(&self) -> Estimate {
        Estimate { value: self.bounds.highest, low: self.bounds.highest, high: f64::INFINITY }
    }

    fn none_kept(&self) -> Estimate {
        let least = self.steps.iter().map(|step| step.rate).fold(f64::INFINITY, f64::min);
        Estimate { value: 0.0, low: 0.0, high: least }
    }

    /// Names the limit: the side that missed more of the windows that bound the rate from above.
    fn limit(&self, rate: Estimate) -> LimitedBy {
        let (by_server, by_client) = self
            .missed_nearby()
            .partition::<Vec<_>, _>(|step| matches!(step.verdict, WindowVerdict::Broken(_)));
        if by_client.len() > by_server.len() {
            LimitedBy::Client
        } else if rate.value == 0.0 {
            LimitedBy::Lowest
        } else if rate.value >= self.bounds.highest {
            LimitedBy::Highest
        } else {
            LimitedBy::Server
        }
    }

    /// The windows of the rounds that missed the target.
    ///
    /// Where there were no rounds, they are those of the climb.
    fn missed_nearby(&self) -> impl Iterator<Item = &Step> {
        let is_round = |step: &&Step| matches!(step.phase, Phase::Round(_));
        let has_rounds = self.steps.iter().any(|step| is_round(&step));
        self.steps
            .iter()
            .filter(move |step| step.verdict != WindowVerdict::Kept && (!has_rounds || is_round(step)))
    }

    fn commonest_breach(&self) -> Option<Breach> {
        let breaches = || {
            self.missed_nearby().filter_map(|step| match step.verdict {
                WindowVerdict::Broken(breach) => Some(breach),
                WindowVerdict::Kept | WindowVerdict::ClientLimited => None,
            })
        };
        breaches().max_by_key(|breach| breaches().filter(|other| other == breach).count())
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// The largest factor between rates of one point of the curve.
///
/// The rounds try many rates whose difference is unimportant.
const NEARBY: f64 = 1.01;

fn curve(steps: &[Step], percentile: f64) -> Vec<CurvePoint> {
    let mut measured: Vec<(f64, f64, f64)> = steps
        .iter()
        .filter(|step| step.verdict != WindowVerdict::ClientLimited)
        .filter_map(|step| Some((step.rate, step.window.achieved, step.window.percentile_us(percentile)?)))
        .collect();
    measured.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut points = Vec::new();
    let mut rest = measured.as_slice();
    while let Some(&(rate, ..)) = rest.first() {
        let (nearby, further) = rest.split_at(rest.partition_point(|window| window.0 <= rate * NEARBY));
        let middle = |of: fn(&(f64, f64, f64)) -> f64, share| {
            let figures: Vec<f64> = nearby.iter().map(of).collect();
            stats::quantile(&figures, share).expect("the first is near itself")
        };
        let response = |share| middle(|window| window.2, share);
        points.push(CurvePoint {
            rate: middle(|window| window.0, 0.5),
            achieved: middle(|window| window.1, 0.5),
            response_us: Estimate { value: response(0.5), low: response(0.0), high: response(1.0) },
        });
        rest = further;
    }
    points
}

fn knee(steps: &[Step]) -> Option<Knee> {
    // Only windows that kept up count. In a broken one the median belongs to a growing queue, not to the
    // rate.
    let kept_up: Vec<Step> = steps
        .iter()
        .filter(|step| {
            step.window.achieved >= step.window.offered * Slo::LEAST_ACHIEVED && step.window.unsent == 0
        })
        .cloned()
        .collect();
    let points = curve(&kept_up, 50.0);
    if points.len() < 3 {
        return None;
    }
    let power = |point: &CurvePoint| point.achieved / point.response_us.value;
    let (best, point) =
        points.iter().enumerate().max_by(|left, right| power(left.1).total_cmp(&power(right.1)))?;
    let low = points[best.saturating_sub(1)].rate;
    let high = points[(best + 1).min(points.len() - 1)].rate;
    Some(Knee { rate: Estimate { value: point.rate, low, high }, median_us: point.response_us.value })
}

#[cfg(test)]
mod tests;
