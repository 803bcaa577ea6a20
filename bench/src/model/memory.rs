//! The memory that keys take, from the resident memory of several populations.
//!
//! Some servers report how much they have allocated (`used_memory`). Their memory is fitted in two parts,
//! each by least squares with no term below zero:
//!
//! - `used = base + sum of (bytes a key * keys) + bytes a slot * slots`, which is exact but for a few bytes.
//!   The slots are those of hash tables that grow by doubling, as Redis's do. Memory then rises in steps, a
//!   saw-tooth over the line. A forecast that ignores it is off by up to a table. The place of the steps
//!   depends on the tables' load factor, so the fit tries several. It keeps the term only if the term
//!   explains more than its two parameters would by chance (Akaike's criterion, corrected for few samples).
//!   [`populations`] returns fill levels that show the steps.
//! - `resident - used = base + slack * sqrt(keys)`: the memory that the allocator leaves unused. Pages and
//!   segments of many size classes and threads fill as memory grows, so this part rises, and less than in
//!   proportion. It grows by 10 MB up to a million small keys and by 7 MB more up to four million.
//!   redis-server and Braid are alike in this (the tests contain the measurements). A line through resident
//!   memory alone attributes it to the keys. A server may count the bytes requested, not the size class
//!   allocated. It then shows a share of the used bytes as well.
//!
//! A server that only shows its resident memory gets one fit of all these terms. With small keys, that fit
//! may be off by a seventh at four times the keys measured. A sample's weight is its keys as a share of the
//! largest sample's, because forecasts extrapolate from there.
//!
//! The model does not cover memory that grows with clients or with replication, or fragmentation after
//! deletes. Nor does it cover a server that changes encodings at sizes for which no class stands.

use std::fmt;

use serde::Serialize;

use super::least_squares::{self, Solution, Unsolvable};
use super::stats::{self, Estimate};

/// Keys that are assumed to need the same memory each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Class {
    /// The type, as `TYPE` names it.
    pub kind: String,
    /// The size of a value, or the middle of the class's range of sizes.
    pub value_bytes: u64,
}

impl Class {
    /// Makes a class of values.
    pub fn new(kind: impl Into<String>, value_bytes: u64) -> Self {
        Self { kind: kind.into(), value_bytes }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} B", self.kind, self.value_bytes)
    }
}

/// The resident memory with one population. A sample without keys improves the estimate of the base.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemorySample {
    /// Keys by class.
    pub keys: Vec<(Class, u64)>,
    /// Resident bytes of the server, once its tables have stopped moving.
    pub resident_bytes: u64,
    /// The bytes that the server has allocated, `used_memory` in INFO.
    pub used_bytes: Option<u64>,
}

impl MemorySample {
    fn n_keys(&self) -> f64 {
        total(&self.keys)
    }
}

/// The parts of a server's memory.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryFit {
    /// Resident bytes without keys.
    pub base: Estimate,
    /// Bytes a key by class, without slack and without the share of a doubling table.
    pub per_key: Vec<(Class, Estimate)>,
    /// The slack of the largest population, in bytes.
    pub slack_bytes: f64,
    /// Hash tables that grow by doubling.
    pub tables: Tables,
    /// The share of the samples' variance that the fit explains.
    pub r2: f64,
    /// The keys of the largest population.
    pub most_keys: f64,
    /// The mix of the largest population, as shares of its keys.
    mix: Vec<(Class, f64)>,
    /// The fit of the allocated bytes, or of all resident bytes.
    #[serde(skip)]
    solution: Solution,
    /// The fit of the bytes that are resident and not allocated, where they are known.
    #[serde(skip)]
    overhead: Option<Overhead>,
}

/// The memory that a fit explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All resident memory, slack included.
    Resident,
    /// The allocated memory, without slack.
    Used,
}

/// Memory that is resident and not allocated: a base, slack, and possibly a share of the used bytes.
#[derive(Debug, Clone)]
struct Overhead {
    solution: Solution,
    is_shared: bool,
}

/// Whether doubling tables show in the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// A straight line explains the samples. Either tables grow smoothly, or too few fill levels were
    /// measured.
    NotSeen,
    /// Tables have `phase * 2^i` slots, the least such number not below the keys.
    Doubling {
        /// Bytes for each slot.
        bytes_per_slot: Estimate,
        /// The phase, from 1 to below 2.
        ///
        /// It is 1 for tables that fill to the last slot, and 1.75 for those that fill to 7/8.
        phase: f64,
    },
}

/// Memory that a population will need.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// Keys in all.
    pub n_keys: f64,
    /// Resident bytes at exactly this number of keys, with the interval for a measurement.
    pub resident_bytes: Estimate,
    /// The upper end of the interval at the worst moment for this number of keys.
    ///
    /// At that moment the table has just doubled and the old one is not yet freed. Where no doubling was
    /// seen, it is the interval's own end.
    pub worst_bytes: f64,
    /// Keys over those of the largest population measured. Above 1 the forecast is an extrapolation.
    pub extrapolation: f64,
}

/// The reason why there is no fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No sample has a key.
    #[error("no population has a key")]
    NoKeys,
    /// There are as many unknowns as samples, or more.
    #[error("{n_classes} classes of keys need at least {needed} populations; there are {n_samples}")]
    TooFew {
        /// Classes among the samples.
        n_classes: usize,
        /// Samples given.
        n_samples: usize,
        /// The least number of samples that is enough.
        needed: usize,
    },
    /// The samples do not separate this class from the rest.
    #[error("the populations cannot tell {0} from the rest: vary their numbers independently")]
    Inseparable(Class),
}

/// Returns fill levels to measure at, rising and distinct.
///
/// There are four an octave over three octaves up to `most`, at equal steps of the logarithm. So a table that
/// doubles is seen nearly full, just doubled and between, wherever its steps are.
pub fn populations(most: u64) -> Vec<u64> {
    let mut levels: Vec<u64> = (0..12)
        .rev()
        .map(|step| (most as f64 * 2.0_f64.powf(-f64::from(step) / 4.0)).round() as u64)
        .collect();
    levels.dedup();
    levels.retain(|&level| level > 0);
    levels
}

/// Fits the memory of several populations.
///
/// # Errors
///
/// If there are too few samples for their classes, or classes that only occur in the same proportion.
pub fn fit(samples: &[MemorySample]) -> Result<MemoryFit, MemoryError> {
    let mut classes: Vec<Class> = samples
        .iter()
        .flat_map(|sample| &sample.keys)
        .filter(|keys| keys.1 > 0)
        .map(|keys| keys.0.clone())
        .collect();
    classes.sort();
    classes.dedup();
    let by_keys = |left: &&MemorySample, right: &&MemorySample| left.n_keys().total_cmp(&right.n_keys());
    let largest = samples.iter().max_by(by_keys).filter(|sample| sample.n_keys() > 0.0);
    let largest = largest.ok_or(MemoryError::NoKeys)?;
    let (n_samples, n_classes, needed) = (samples.len(), classes.len(), classes.len() + 3);
    if n_samples < needed {
        return Err(MemoryError::TooFew { n_classes, n_samples, needed });
    }

    // Some servers count bytes as used that are not resident. Their figure explains nothing.
    let is_apart =
        samples.iter().all(|sample| sample.used_bytes.is_some_and(|used| used <= sample.resident_bytes));
    let part = if is_apart { Part::Used } else { Part::Resident };
    let straight = solve(samples, &classes, part, None).map_err(|unsolvable| match unsolvable {
        Unsolvable::Dependent(column) => {
            MemoryError::Inseparable(classes[column.saturating_sub(1).min(n_classes - 1)].clone())
        }
        Unsolvable::TooFewRows => unreachable!("samples were counted"),
    })?;
    // Errors below a millionth of the memory are rounding, not evidence.
    let least = samples.iter().map(|sample| (sample.resident_bytes as f64 * 1e-6).powi(2)).sum();
    let mut best = (criterion(&straight, 0, n_samples, least), straight, None);
    for phase in phases() {
        let Ok(stepped) = solve(samples, &classes, part, Some(phase)) else { continue };
        // The phase is a parameter too, although it has no column.
        let score = criterion(&stepped, 1, n_samples, least);
        if score < best.0 - 1e-6 && stepped.coefficients[n_classes + 1] > 0.0 {
            best = (score, stepped, Some(phase));
        }
    }

    let (_, solution, phase) = best;
    let overhead = if is_apart { Overhead::fit(samples) } else { None };
    let n_keys = largest.n_keys();
    let estimate = |column: usize| coefficient(&solution, column);
    let base = match &overhead {
        Some(overhead) => together(estimate(0), coefficient(&overhead.solution, 0)),
        None => estimate(0),
    };
    let slack = match &overhead {
        Some(overhead) => overhead.solution.coefficients[1],
        None if is_apart => 0.0,
        None => solution.coefficients[solution.coefficients.len() - 1],
    };
    // Each used byte includes its share of the overhead.
    let share = overhead.as_ref().map_or(0.0, Overhead::share);
    let tables = phase
        .map_or(Tables::NotSeen, |phase| Tables::Doubling { bytes_per_slot: estimate(n_classes + 1), phase });
    let mut fit = MemoryFit {
        base,
        tables,
        slack_bytes: slack * n_keys.sqrt(),
        r2: 0.0,
        most_keys: n_keys,
        mix: largest.keys.iter().map(|(class, keys)| (class.clone(), *keys as f64 / n_keys)).collect(),
        per_key: classes
            .into_iter()
            .enumerate()
            .map(|(place, class)| (class, estimate(place + 1).map(|bytes| bytes * (1.0 + share))))
            .collect(),
        solution,
        overhead,
    };
    fit.r2 = fit.explained(samples);
    Ok(fit)
}

impl MemoryFit {
    /// Forecasts the memory of `n_keys` keys in the mix of the largest population.
    pub fn forecast(&self, n_keys: u64) -> Forecast {
        let keys = |class: &Class| self.mix.iter().find(|(other, _)| other == class).map_or(0.0, |mix| mix.1);
        self.forecast_counts(|class| keys(class) * n_keys as f64)
    }

    /// Forecasts the memory of another mix.
    ///
    /// Classes that were not measured count as nothing, so the caller checks with [`MemoryFit::per_key`]
    /// first.
    pub fn forecast_mix(&self, keys: &[(Class, u64)]) -> Forecast {
        self.forecast_counts(|class| {
            keys.iter().filter(|(other, _)| other == class).map(|(_, count)| *count as f64).sum()
        })
    }

    fn forecast_counts(&self, count: impl Fn(&Class) -> f64) -> Forecast {
        let counts: Vec<f64> = self.per_key.iter().map(|(class, _)| count(class)).collect();
        let n_keys: f64 = counts.iter().sum();
        let (resident_bytes, worst_bytes) = match self.tables {
            Tables::NotSeen => {
                let resident_bytes = self.at(&counts, None);
                (resident_bytes, resident_bytes.high)
            }
            Tables::Doubling { phase, .. } => {
                let resident_bytes = self.at(&counts, Some(slots(n_keys, phase)));
                (resident_bytes, self.at(&counts, Some(3.0 * n_keys)).high)
            }
        };
        Forecast { n_keys, resident_bytes, worst_bytes, extrapolation: n_keys / self.most_keys }
    }

    fn at(&self, counts: &[f64], slots: Option<f64>) -> Estimate {
        let Some(overhead) = &self.overhead else {
            return predict(&self.solution, &terms(Part::Resident, counts, slots));
        };
        let used = predict(&self.solution, &terms(Part::Used, counts, slots));
        let terms = overhead_terms(overhead.is_shared, counts.iter().sum(), used.value);
        together(used, predict(&overhead.solution, &terms))
    }

    fn explained(&self, samples: &[MemorySample]) -> f64 {
        let mean =
            samples.iter().map(|sample| sample.resident_bytes as f64).sum::<f64>() / samples.len() as f64;
        let total: f64 = samples.iter().map(|sample| (sample.resident_bytes as f64 - mean).powi(2)).sum();
        let error = |sample: &MemorySample| {
            let fitted = self.forecast_mix(&sample.keys).resident_bytes.value;
            (sample.resident_bytes as f64 - fitted).powi(2)
        };
        if total > 0.0 { 1.0 - samples.iter().map(error).sum::<f64>() / total } else { 0.0 }
    }
}

impl Overhead {
    /// Fits the resident bytes beyond the used bytes. Every sample has both.
    ///
    /// The result is `None` where samples are too few. A share must be beyond doubt, because a forecast
    /// multiplies it. A difference of ten in the criterion leaves the worse model no support (Burnham and
    /// Anderson, 2002, section 2.6).
    fn fit(samples: &[MemorySample]) -> Option<Self> {
        const DECISIVE: f64 = 10.0;
        let used = |sample: &MemorySample| sample.used_bytes.unwrap_or(0);
        let beyond = |sample: &MemorySample| (sample.resident_bytes - used(sample)) as f64;
        let targets: Vec<f64> = samples.iter().map(beyond).collect();
        let solve = |is_shared: bool| {
            let row = |sample| overhead_terms(is_shared, MemorySample::n_keys(sample), used(sample) as f64);
            let rows: Vec<Vec<f64>> = samples.iter().map(row).collect();
            let solution = least_squares::non_negative(&rows, &targets).ok()?;
            (solution.degrees_of_freedom > 0).then_some(Self { solution, is_shared })
        };
        let score = |overhead: &Self| criterion(&overhead.solution, 0, samples.len(), 1.0);
        let plain = solve(false)?;
        Some(solve(true).filter(|shared| score(shared) < score(&plain) - DECISIVE).unwrap_or(plain))
    }

    fn share(&self) -> f64 {
        if self.is_shared { self.solution.coefficients[2] } else { 0.0 }
    }
}

fn overhead_terms(is_shared: bool, n_keys: f64, used_bytes: f64) -> Vec<f64> {
    [1.0, n_keys.sqrt()].into_iter().chain(is_shared.then_some(used_bytes)).collect()
}

/// Predicts one more measurement.
fn predict(solution: &Solution, terms: &[f64]) -> Estimate {
    let value: f64 = terms.iter().zip(&solution.coefficients).map(|(term, each)| term * each).sum();
    let variance = solution.variance(terms) + solution.residual_variance();
    let half = stats::student(solution.degrees_of_freedom) * variance.sqrt();
    Estimate { value, low: (value - half).max(0.0), high: value + half }
}

/// The sum of two figures whose errors are independent.
fn together(one: Estimate, other: Estimate) -> Estimate {
    let value = one.value + other.value;
    let half = (one.high - one.value).hypot(other.high - other.value);
    Estimate { value, low: (value - half).max(0.0), high: value + half }
}

fn solve(
    samples: &[MemorySample],
    classes: &[Class],
    part: Part,
    phase: Option<f64>,
) -> Result<Solution, Unsolvable> {
    let most = samples.iter().map(MemorySample::n_keys).fold(1.0, f64::max);
    // The root of the weight multiplies both sides of a row. An empty server still has a weight of a
    // hundredth.
    let root = |sample: &MemorySample| (sample.n_keys() / most).max(0.01).sqrt();
    let row = |sample: &MemorySample| -> Vec<f64> {
        let keys = |class: &Class| -> f64 {
            sample.keys.iter().filter(|(other, _)| other == class).map(|(_, count)| *count as f64).sum()
        };
        let counts: Vec<f64> = classes.iter().map(keys).collect();
        let slots = phase.map(|phase| slots(sample.n_keys(), phase));
        terms(part, &counts, slots).iter().map(|term| term * root(sample)).collect()
    };
    let target = |sample: &MemorySample| {
        let bytes = match part {
            Part::Resident => sample.resident_bytes,
            Part::Used => sample.used_bytes.unwrap_or(0),
        };
        bytes as f64 * root(sample)
    };
    let rows: Vec<Vec<f64>> = samples.iter().map(row).collect();
    let targets: Vec<f64> = samples.iter().map(target).collect();
    match least_squares::non_negative(&rows, &targets)? {
        // Without degrees of freedom, there is no error by which to judge the forecast.
        Solution { degrees_of_freedom: 0, .. } => Err(Unsolvable::TooFewRows),
        solution => Ok(solution),
    }
}

/// The factors of the coefficients.
///
/// They are one, the keys of each class, the slots if there are any, and the root of all keys.
fn terms(part: Part, counts: &[f64], slots: Option<f64>) -> Vec<f64> {
    let root = counts.iter().sum::<f64>().sqrt();
    let slack = (part == Part::Resident).then_some(root);
    [1.0].into_iter().chain(counts.iter().copied()).chain(slots).chain(slack).collect()
}

/// Akaike's criterion with its correction for few samples; a lower value is better.
fn criterion(solution: &Solution, n_hidden: usize, n_samples: usize, least: f64) -> f64 {
    // The error's variance is a parameter as well.
    let parameters = (solution.coefficients.len() + n_hidden + 1) as f64;
    let samples = n_samples as f64;
    let spare = samples - parameters - 1.0;
    let correction = if spare > 0.0 { 2.0 * parameters * (parameters + 1.0) / spare } else { f64::INFINITY };
    // A few samples on a line are no reason to refuse the line, so the first model is judged by its error
    // alone.
    if n_hidden == 0 && correction.is_infinite() {
        return f64::MAX;
    }
    samples * (solution.squares.max(least) / samples).ln() + 2.0 * parameters + correction
}

/// Phases worth trying. The load factors in use come first, because they win where the samples show no
/// difference.
fn phases() -> impl Iterator<Item = f64> {
    [1.0, 1.75, 1.5].into_iter().chain((1..16).map(|step| 2.0_f64.powf(f64::from(step) / 16.0)))
}

fn slots(n_keys: f64, phase: f64) -> f64 {
    if n_keys > 0.0 { phase * (n_keys / phase).log2().ceil().exp2() } else { 0.0 }
}

fn total(keys: &[(Class, u64)]) -> f64 {
    keys.iter().map(|(_, count)| *count as f64).sum()
}

fn coefficient(solution: &Solution, column: usize) -> Estimate {
    let unit: Vec<f64> =
        (0..solution.coefficients.len()).map(|other| f64::from(u8::from(other == column))).collect();
    let value = solution.coefficients[column];
    let half = stats::student(solution.degrees_of_freedom) * solution.variance(&unit).sqrt();
    Estimate { value, low: (value - half).max(0.0), high: value + half }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with a known allocator, whose resident memory is off by up to `noise_bytes`.
    struct Server {
        base: f64,
        per_key: fn(&Class) -> f64,
        slot_bytes: f64,
        phase: f64,
        noise_bytes: f64,
        random: fastrand::Rng,
    }

    /// Rounds up to jemalloc's size classes: four to each doubling, from 16 bytes in steps of 16 at first.
    fn jemalloc(bytes: u64) -> u64 {
        let step = if bytes <= 128 { 16 } else { bytes.next_power_of_two() / 8 };
        bytes.div_ceil(step) * step
    }

    /// The bytes of an entry, an object header and a string, each in its size class.
    ///
    /// The string has its header. The key's own string is included.
    fn redis_key(class: &Class) -> f64 {
        (jemalloc(24) + jemalloc(16) + jemalloc(class.value_bytes + 4) + jemalloc(16 + 2)) as f64
    }

    fn packed_key(class: &Class) -> f64 {
        (class.value_bytes + 22) as f64
    }

    impl Server {
        fn redis(seed: u64) -> Self {
            Self {
                base: 8e6,
                per_key: redis_key,
                slot_bytes: 8.0,
                phase: 1.0,
                noise_bytes: 300e3,
                random: fastrand::Rng::with_seed(seed),
            }
        }

        fn exact_bytes(&self, keys: &[(Class, u64)]) -> f64 {
            let entries: f64 = keys.iter().map(|(class, count)| (self.per_key)(class) * *count as f64).sum();
            self.base + entries + self.slot_bytes * slots(total(keys), self.phase)
        }

        fn sample(&mut self, keys: Vec<(Class, u64)>) -> MemorySample {
            let noise = self.noise_bytes * (self.random.f64() - 0.5) * 2.0;
            MemorySample { resident_bytes: (self.exact_bytes(&keys) + noise) as u64, used_bytes: None, keys }
        }

        fn strings(&mut self, value_bytes: u64, levels: &[u64]) -> Vec<MemorySample> {
            levels
                .iter()
                .map(|&level| self.sample(vec![(Class::new("string", value_bytes), level)]))
                .collect()
        }
    }

    fn assert_forecast(server: &Server, fit: &MemoryFit, value_bytes: u64, n_keys: u64, tolerance: f64) {
        let truth = server.exact_bytes(&[(Class::new("string", value_bytes), n_keys)]);
        let forecast = fit.forecast(n_keys);
        let error = forecast.resident_bytes.value / truth - 1.0;
        assert!(error.abs() < tolerance, "{error} at {n_keys} of {value_bytes} B: {fit:?}");
    }

    #[test]
    fn four_million_keys_are_forecast_from_one_million_in_doubling_tables() {
        for seed in 0..20 {
            for value_bytes in [3, 40, 100, 1000] {
                let mut server = Server::redis(seed);
                let fit = fit(&server.strings(value_bytes, &populations(1_000_000))).unwrap();
                for n_keys in [2_100_000, 3_000_000, 4_000_000, 4_300_000] {
                    assert_forecast(&server, &fit, value_bytes, n_keys, 0.02);
                    let growing = server.exact_bytes(&[(Class::new("string", value_bytes), n_keys)]);
                    assert!(fit.forecast(n_keys).worst_bytes >= growing);
                }
            }
        }
    }

    #[test]
    fn the_steps_of_a_table_are_found_with_their_bytes_a_slot() {
        for (phase, slot_bytes) in [(1.0, 8.0), (1.75, 17.0)] {
            let mut server = Server { phase, slot_bytes, noise_bytes: 50e3, ..Server::redis(3) };
            let fit = fit(&server.strings(32, &populations(1_000_000))).unwrap();
            let Tables::Doubling { bytes_per_slot, phase: found } = fit.tables else { panic!("{fit:?}") };
            // Phases between two fill levels look the same, and the bytes a slot compensate for the
            // difference.
            assert!((found / phase - 1.0).abs() < 0.19, "{found} of {phase}");
            assert!(
                (bytes_per_slot.value * found / slot_bytes / phase - 1.0).abs() < 0.1,
                "{bytes_per_slot:?}"
            );
            assert_forecast(&server, &fit, 32, 4_000_000, 0.02);
        }
    }

    #[test]
    fn a_server_without_tables_is_a_straight_line() {
        let mut straight = 0;
        for seed in 0..50 {
            let mut server = Server { per_key: packed_key, slot_bytes: 0.0, ..Server::redis(seed) };
            let fit = fit(&server.strings(64, &populations(1_000_000))).unwrap();
            straight += u32::from(fit.tables == Tables::NotSeen);
            assert_forecast(&server, &fit, 64, 4_000_000, 0.02);
        }
        assert!(straight >= 45, "{straight} of 50");
    }

    #[test]
    fn classes_are_told_apart() {
        let (small, large, hash) =
            (Class::new("string", 16), Class::new("string", 512), Class::new("hash", 100));
        let mut server = Server { noise_bytes: 10e3, ..Server::redis(9) };
        let levels = populations(400_000);
        let samples: Vec<MemorySample> = levels
            .iter()
            .enumerate()
            .map(|(place, &level)| {
                let parts = [(place % 3) as u64 + 1, (place / 3 % 2) as u64, (place % 2) as u64 * 2];
                let keys =
                    [&small, &large, &hash].into_iter().cloned().zip(parts.map(|part| level * part / 4));
                server.sample(keys.collect())
            })
            .collect();
        let fit = fit(&samples).unwrap();
        for (class, estimate) in &fit.per_key {
            assert!((estimate.value / redis_key(class) - 1.0).abs() < 0.03, "{class}: {estimate:?}");
        }
        let mix = [(small, 1_000_000), (large, 500_000), (hash, 100_000)];
        let forecast = fit.forecast_mix(&mix);
        assert!((forecast.resident_bytes.value / server.exact_bytes(&mix) - 1.0).abs() < 0.02);
        assert!(forecast.extrapolation > 2.0);
    }

    #[test]
    fn intervals_hold_what_is_measured_as_often_as_they_say() {
        let trials = 200;
        let inside = (0..trials)
            .filter(|&seed| {
                let mut server = Server { per_key: packed_key, slot_bytes: 0.0, ..Server::redis(seed) };
                let fit = fit(&server.strings(64, &populations(1_000_000))).unwrap();
                let then = &server.strings(64, &[2_000_000])[0];
                fit.forecast(2_000_000).resident_bytes.contains(then.resident_bytes as f64)
            })
            .count();
        assert!(inside as f64 >= 0.9 * trials as f64, "{inside} of {trials}");
    }

    #[test]
    fn samples_that_cannot_tell_are_refused() {
        let mut server = Server::redis(1);
        assert_eq!(fit(&[]).unwrap_err(), MemoryError::NoKeys);
        let few = fit(&server.strings(10, &[1000, 2000])).unwrap_err();
        assert_eq!(few, MemoryError::TooFew { n_classes: 1, n_samples: 2, needed: 4 });
        let same = fit(&server.strings(10, &[1000, 1000, 1000, 1000])).unwrap_err();
        assert_eq!(same, MemoryError::Inseparable(Class::new("string", 10)));
        let paired: Vec<MemorySample> = [1000, 2000, 3000, 4000, 5000]
            .map(|n| server.sample(vec![(Class::new("a", 1), n), (Class::new("b", 2), 2 * n)]))
            .to_vec();
        assert_eq!(fit(&paired).unwrap_err(), MemoryError::Inseparable(Class::new("b", 2)));
    }

    #[test]
    fn four_samples_are_enough_for_a_line() {
        let mut server = Server { slot_bytes: 0.0, noise_bytes: 0.0, ..Server::redis(1) };
        let fit = fit(&server.strings(10, &[0, 50_000, 100_000, 200_000])).unwrap();
        assert!(fit.base.contains(8e6) || (fit.base.value / 8e6 - 1.0).abs() < 1e-6, "{:?}", fit.base);
        assert!(fit.tables == Tables::NotSeen);
    }

    #[test]
    fn populations_rise_and_end_at_the_most() {
        let levels = populations(1_000_000);
        assert_eq!((levels.len(), levels.last()), (12, Some(&1_000_000)));
        assert!(levels.is_sorted());
        assert!(populations(0).is_empty());
        assert_eq!(populations(1), [1]);
    }

    /// Resident and used KiB of servers on Linux with strings under keys of 16 bytes.
    ///
    /// The rows are: without keys, at each of `populations(1_000_000)`, and at 2, 3 and 4 million keys.
    const MEASURED: [(&str, [(u64, u64); 16]); 7] = [
        (
            "redis-server, 20 B",
            [
                (12248, 893),
                (32024, 20258),
                (35172, 22310),
                (38924, 25968),
                (43380, 30319),
                (52780, 39588),
                (59080, 43692),
                (66576, 51009),
                (75488, 59710),
                (94424, 78250),
                (107032, 86459),
                (122016, 101092),
                (133692, 118494),
                (253912, 236061),
                (382332, 361820),
                (494368, 471195),
            ],
        ),
        (
            "redis-server, 40 B",
            [
                (12208, 893),
                (35300, 22580),
                (38672, 25072),
                (42980, 29253),
                (48108, 34225),
                (58312, 44234),
                (65560, 49217),
                (74188, 57579),
                (84452, 67523),
                (104988, 87540),
                (119504, 97507),
                (133688, 114231),
                (154220, 134119),
                (291560, 267311),
                (433000, 408695),
                (562136, 533695),
            ],
        ),
        (
            "redis-server, 150 B",
            [
                (12264, 893),
                (50808, 38838),
                (56468, 44407),
                (64444, 52246),
                (73912, 61568),
                (89288, 76751),
                (102696, 87886),
                (118628, 103565),
                (137584, 122210),
                (168460, 152575),
                (195256, 174847),
                (225084, 206204),
                (262988, 243493),
                (509440, 486061),
                (764088, 736819),
                (998240, 971195),
            ],
        ),
        (
            "braid, 5 B",
            [
                (11584, 0),
                (19356, 6196),
                (20552, 7349),
                (22172, 8837),
                (23568, 10424),
                (27788, 12364),
                (28228, 14660),
                (32260, 17585),
                (36520, 20861),
                (43112, 24746),
                (46672, 29343),
                (57792, 35151),
                (63612, 41721),
                (110408, 83416),
                (157072, 124461),
                (194576, 166802),
            ],
        ),
        (
            "braid, 40 B",
            [
                (11592, 0),
                (24848, 10843),
                (26072, 12871),
                (29712, 15416),
                (31372, 18248),
                (36208, 21671),
                (39924, 25723),
                (45184, 30729),
                (51344, 36495),
                (61500, 43330),
                (68028, 51436),
                (80764, 61447),
                (92224, 72971),
                (163272, 145916),
                (245460, 218211),
                (315420, 291790),
            ],
        ),
        (
            "braid, 100 B",
            [
                (11724, 0),
                (34640, 20132),
                (37748, 23922),
                (45304, 28551),
                (49400, 33868),
                (55092, 40246),
                (64568, 47811),
                (75524, 56991),
                (86848, 67742),
                (104328, 80473),
                (114444, 95622),
                (138372, 114005),
                (150988, 135440),
                (295260, 270887),
                (433260, 405706),
                (569724, 541824),
            ],
        ),
        (
            "braid, 600 B",
            [
                (11620, 0),
                (131296, 94460),
                (156208, 112313),
                (181320, 133662),
                (215628, 158877),
                (248400, 188890),
                (291412, 224595),
                (342316, 267229),
                (406152, 317726),
                (479496, 377776),
                (563908, 449179),
                (664800, 534441),
                (790304, 635447),
                (1554120, 1270910),
                (2328752, 1905715),
                (3087412, 2541807),
            ],
        ),
    ];

    #[test]
    fn what_was_measured_at_four_million_keys_is_forecast_from_one_million() {
        for (server, kibibytes) in MEASURED {
            let class = Class::new("string", 1);
            let levels = [0].into_iter().chain(populations(1_000_000));
            let sample = |(level, &(resident, used)): (u64, &(u64, u64))| MemorySample {
                keys: vec![(class.clone(), level)],
                resident_bytes: resident * 1024,
                used_bytes: Some(used * 1024),
            };
            let fit = fit(&levels.zip(&kibibytes).map(sample).collect::<Vec<_>>()).unwrap();
            for (n_keys, (resident, _)) in [2_000_000, 3_000_000, 4_000_000].into_iter().zip(&kibibytes[13..])
            {
                let forecast = fit.forecast(n_keys);
                let error = forecast.resident_bytes.value / (resident * 1024) as f64 - 1.0;
                assert!(error.abs() < 0.05, "{server} at {n_keys} keys: {error}: {fit:?}");
            }
        }
    }
}
