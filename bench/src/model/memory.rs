//! How much memory keys take, from the resident memory of several populations.
//!
//! `bytes = base + sum of (bytes a key * keys) + slack * sqrt(keys) + bytes a slot * slots`, by least squares with no
//! term below zero.
//!
//! - The third term stands for what allocators leave open: pages and segments of many size classes and threads fill as
//!   memory grows, so resident memory rises steeper at first than later. Without it a forecast for four times the keys
//!   measured is too high by up to a seventh where keys are small; with it, it stays within 5 %, for redis-server and
//!   for Braid (the tests hold what was measured).
//! - The last term is for hash tables that grow by doubling, as Redis's do: memory then rises in steps, a saw-tooth over
//!   the line, and a forecast that ignores it is off by up to a table. Where tables step depends on their load factor, so
//!   the fit tries several, and keeps the term only if it explains more than its two parameters would by chance
//!   (Akaike's criterion, corrected for few samples). [`populations`] gives fill levels that show the steps.
//! - A sample weighs as its share of the keys of the largest one: forecasts go up from there.
//!
//! What the model cannot know: memory that grows with clients or with replication, fragmentation that comes with
//! deletes, and a server that changes encodings at sizes which no class stands for.

use std::fmt;

use serde::Serialize;

use super::least_squares::{self, Solution, Unsolvable};
use super::stats::{self, Estimate};

/// Keys that are taken to need the same memory each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Class {
    /// The type, as `TYPE` names it.
    pub kind: String,
    /// The size of a value, or the middle of the range of sizes that the class stands for.
    pub value_bytes: u64,
}

impl Class {
    /// A class of values.
    pub fn new(kind: impl Into<String>, value_bytes: u64) -> Self {
        Self { kind: kind.into(), value_bytes }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} B", self.kind, self.value_bytes)
    }
}

/// The resident memory with one population. One without keys helps the base along.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemorySample {
    /// Keys by class.
    pub keys: Vec<(Class, u64)>,
    /// Resident bytes of the server, once its tables have ceased to move.
    pub resident_bytes: u64,
}

impl MemorySample {
    fn n_keys(&self) -> f64 {
        total(&self.keys)
    }
}

/// What memory is made of.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// Resident bytes without keys.
    pub base: Estimate,
    /// Bytes a key by class, without slack and without the share of a doubling table.
    pub per_key: Vec<(Class, Estimate)>,
    /// The slack of the largest population, in bytes.
    pub slack_bytes: f64,
    /// Hash tables that grow by doubling.
    pub tables: Tables,
    /// The share of the samples' variance that is explained.
    pub r2: f64,
    /// The keys of the largest population.
    pub most_keys: f64,
    /// The mix of the largest population, as shares of its keys.
    mix: Vec<(Class, f64)>,
    #[serde(skip)]
    solution: Solution,
}

/// Whether doubling tables show in the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// A straight line explains the samples: either tables grow smoothly, or too few fill levels were measured.
    NotSeen,
    /// Tables have `phase * 2^i` slots, the least such number that is not below the keys.
    Doubling {
        /// Bytes for each slot.
        bytes_per_slot: Estimate,
        /// From 1 to below 2: 1 for tables that fill to the last slot, 1.75 for those that fill to 7/8.
        phase: f64,
    },
}

/// Memory that a population will need.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// Keys in all.
    pub n_keys: f64,
    /// Resident bytes at just so many keys, with the interval that a measurement would lie in.
    pub resident_bytes: Estimate,
    /// The upper end of the interval at the worst moment that so many keys may be at: the table has just doubled and
    /// the one before it is not yet freed. The interval's own end where no doubling was seen.
    pub worst_bytes: f64,
    /// Keys over those of the largest population measured; above 1 it is extrapolation.
    pub extrapolation: f64,
}

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No sample has a key.
    #[error("no population has a key")]
    NoKeys,
    /// As many unknowns as samples, or more.
    #[error("{n_classes} classes of keys need at least {needed} populations; there are {n_samples}")]
    TooFew {
        /// Classes among the samples.
        n_classes: usize,
        /// Samples given.
        n_samples: usize,
        /// Samples that are enough.
        needed: usize,
    },
    /// The samples cannot tell what this class takes.
    #[error("the populations cannot tell {0} from the rest: vary their numbers independently")]
    Inseparable(Class),
}

/// Fill levels to measure at, rising: four an octave over three octaves up to `most`, so that a table that doubles is
/// seen nearly full, just doubled and between, wherever its steps are. Equal steps of the logarithm, each distinct.
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
pub fn fit(samples: &[MemorySample]) -> Result<Fit, MemoryError> {
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

    let straight = solve(samples, &classes, None).map_err(|unsolvable| match unsolvable {
        Unsolvable::Dependent(column) => {
            MemoryError::Inseparable(classes[column.saturating_sub(1).min(n_classes - 1)].clone())
        }
        Unsolvable::TooFewRows => unreachable!("samples were counted"),
    })?;
    // Errors below a millionth of the memory are rounding, not evidence.
    let least = samples.iter().map(|sample| (sample.resident_bytes as f64 * 1e-6).powi(2)).sum();
    let mut best = (criterion(&straight, 0, n_samples, least), straight, None);
    for phase in phases() {
        let Ok(stepped) = solve(samples, &classes, Some(phase)) else { continue };
        // The phase is a parameter too, though no column.
        let score = criterion(&stepped, 1, n_samples, least);
        if score < best.0 - 1e-6 && stepped.coefficients[n_classes + 2] > 0.0 {
            best = (score, stepped, Some(phase));
        }
    }

    let (_, solution, phase) = best;
    let n_keys = largest.n_keys();
    let estimate = |column: usize| coefficient(&solution, column);
    Ok(Fit {
        base: estimate(0),
        tables: phase.map_or(Tables::NotSeen, |phase| Tables::Doubling {
            bytes_per_slot: estimate(n_classes + 2),
            phase,
        }),
        slack_bytes: solution.coefficients[n_classes + 1] * n_keys.sqrt(),
        r2: explained(samples, &classes, &solution, phase),
        most_keys: n_keys,
        mix: largest.keys.iter().map(|(class, keys)| (class.clone(), *keys as f64 / n_keys)).collect(),
        per_key: classes.into_iter().enumerate().map(|(place, class)| (class, estimate(place + 1))).collect(),
        solution,
    })
}

impl Fit {
    /// Forecasts the memory of so many keys in the mix of the largest population.
    pub fn forecast(&self, n_keys: u64) -> Forecast {
        let keys = |class: &Class| self.mix.iter().find(|(other, _)| other == class).map_or(0.0, |mix| mix.1);
        self.forecast_counts(|class| keys(class) * n_keys as f64)
    }

    /// Forecasts the memory of another mix. Classes that were not measured count as nothing: check with
    /// [`Fit::per_key`] first.
    pub fn forecast_mix(&self, keys: &[(Class, u64)]) -> Forecast {
        self.forecast_counts(|class| {
            keys.iter().filter(|(other, _)| other == class).map(|(_, count)| *count as f64).sum()
        })
    }

    fn forecast_counts(&self, count: impl Fn(&Class) -> f64) -> Forecast {
        let counts: Vec<f64> = self.per_key.iter().map(|(class, _)| count(class)).collect();
        let n_keys: f64 = counts.iter().sum();
        let terms = |slots| terms(&counts, slots);
        let resident_bytes;
        let worst_bytes = match self.tables {
            Tables::NotSeen => {
                resident_bytes = self.at(&terms(None));
                resident_bytes.high
            }
            Tables::Doubling { phase, .. } => {
                resident_bytes = self.at(&terms(Some(slots(n_keys, phase))));
                self.at(&terms(Some(3.0 * n_keys))).high
            }
        };
        Forecast { n_keys, resident_bytes, worst_bytes, extrapolation: n_keys / self.most_keys }
    }

    fn at(&self, terms: &[f64]) -> Estimate {
        let value: f64 = terms.iter().zip(&self.solution.coefficients).map(|(term, each)| term * each).sum();
        let variance = self.solution.variance(terms) + self.solution.residual_variance();
        let half = stats::student(self.solution.degrees_of_freedom) * variance.sqrt();
        Estimate { value, low: (value - half).max(0.0), high: value + half }
    }
}

fn solve(samples: &[MemorySample], classes: &[Class], phase: Option<f64>) -> Result<Solution, Unsolvable> {
    let most = samples.iter().map(MemorySample::n_keys).fold(1.0, f64::max);
    // The root of the weight goes to both sides of a row. An empty server still counts for a hundredth.
    let root = |sample: &MemorySample| (sample.n_keys() / most).max(0.01).sqrt();
    let row = |sample| row(sample, classes, phase).iter().map(|term| term * root(sample)).collect();
    let rows: Vec<Vec<f64>> = samples.iter().map(row).collect();
    let targets: Vec<f64> =
        samples.iter().map(|sample| sample.resident_bytes as f64 * root(sample)).collect();
    match least_squares::non_negative(&rows, &targets)? {
        // No freedom leaves no error to judge the forecast by.
        Solution { degrees_of_freedom: 0, .. } => Err(Unsolvable::TooFewRows),
        solution => Ok(solution),
    }
}

fn row(sample: &MemorySample, classes: &[Class], phase: Option<f64>) -> Vec<f64> {
    let keys = |class: &Class| -> f64 {
        sample.keys.iter().filter(|(other, _)| other == class).map(|(_, count)| *count as f64).sum()
    };
    let counts: Vec<f64> = classes.iter().map(keys).collect();
    terms(&counts, phase.map(|phase| slots(sample.n_keys(), phase)))
}

/// What the coefficients multiply: one, the keys of each class, the root of all keys, and the slots if there are any.
fn terms(counts: &[f64], slots: Option<f64>) -> Vec<f64> {
    let root = counts.iter().sum::<f64>().sqrt();
    [1.0].into_iter().chain(counts.iter().copied()).chain([root]).chain(slots).collect()
}

/// Akaike's criterion with its correction for few samples; lower is better.
fn criterion(solution: &Solution, n_hidden: usize, n_samples: usize, least: f64) -> f64 {
    // The error's variance is a parameter as well.
    let parameters = (solution.coefficients.len() + n_hidden + 1) as f64;
    let samples = n_samples as f64;
    let spare = samples - parameters - 1.0;
    let correction = if spare > 0.0 { 2.0 * parameters * (parameters + 1.0) / spare } else { f64::INFINITY };
    // A few samples on a line are no reason to refuse the line: the first model is judged by its error alone.
    if n_hidden == 0 && correction.is_infinite() {
        return f64::MAX;
    }
    samples * (solution.squares.max(least) / samples).ln() + 2.0 * parameters + correction
}

/// Phases worth trying: the load factors in use first, for they win where the samples tell no difference.
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

fn explained(samples: &[MemorySample], classes: &[Class], solution: &Solution, phase: Option<f64>) -> f64 {
    let mean = samples.iter().map(|sample| sample.resident_bytes as f64).sum::<f64>() / samples.len() as f64;
    let total: f64 = samples.iter().map(|sample| (sample.resident_bytes as f64 - mean).powi(2)).sum();
    let error = |sample: &MemorySample| {
        let terms = row(sample, classes, phase);
        let fitted: f64 = terms.iter().zip(&solution.coefficients).map(|(term, each)| term * each).sum();
        (sample.resident_bytes as f64 - fitted).powi(2)
    };
    if total > 0.0 { 1.0 - samples.iter().map(error).sum::<f64>() / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose allocator is known, with resident memory that is off by up to `noise_bytes`.
    struct Server {
        base: f64,
        per_key: fn(&Class) -> f64,
        slot_bytes: f64,
        phase: f64,
        noise_bytes: f64,
        random: fastrand::Rng,
    }

    /// jemalloc's size classes: four to each doubling, from 16 bytes in steps of 16 at first.
    fn jemalloc(bytes: u64) -> u64 {
        let step = if bytes <= 128 { 16 } else { bytes.next_power_of_two() / 8 };
        bytes.div_ceil(step) * step
    }

    /// An entry, an object header and a string with its header, each in its size class; plus the key's own string.
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
            MemorySample { resident_bytes: (self.exact_bytes(&keys) + noise) as u64, keys }
        }

        fn strings(&mut self, value_bytes: u64, levels: &[u64]) -> Vec<MemorySample> {
            levels
                .iter()
                .map(|&level| self.sample(vec![(Class::new("string", value_bytes), level)]))
                .collect()
        }
    }

    fn assert_forecast(server: &Server, fit: &Fit, value_bytes: u64, n_keys: u64, tolerance: f64) {
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
            // Phases between two fill levels look the same, and the bytes a slot make up for the difference.
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

    /// Resident KiB of servers on Linux with strings under keys of 16 bytes: without keys, at each of
    /// `populations(1_000_000)`, and at 2, 3 and 4 million keys.
    const MEASURED: [(&str, [u64; 16]); 10] = [
        (
            "redis-server, 10 B",
            [
                11_964, 29_756, 32_452, 35_692, 39_552, 48_244, 51_636, 58_120, 65_824, 83_320, 94_216,
                102_036, 117_448, 222_508, 335_760, 432_632,
            ],
        ),
        (
            "redis-server, 40 B",
            [
                11_956, 35_300, 38_936, 43_256, 48_156, 58_348, 65_612, 71_172, 81_440, 101_996, 116_528,
                133_804, 150_252, 287_596, 433_144, 562_296,
            ],
        ),
        (
            "redis-server, 150 B",
            [
                11_980, 49_736, 56_428, 64_404, 73_872, 89_248, 100_600, 116_532, 135_484, 166_360, 193_156,
                220_932, 258_836, 505_292, 759_940, 998_192,
            ],
        ),
        (
            "redis-server, 300 B",
            [
                12_076, 74_236, 84_332, 97_572, 113_312, 136_144, 158_404, 182_832, 214_312, 260_092,
                304_616, 357_564, 420_536, 820_412, 1_232_592, 1_628_380,
            ],
        ),
        (
            "braid, 10 B",
            [
                11_560, 24_244, 26_900, 29_432, 31_680, 40_016, 46_640, 50_760, 56_904, 65_568, 79_072,
                88_420, 96_612, 173_552, 251_512, 323_008,
            ],
        ),
        (
            "braid, 40 B",
            [
                11_668, 23_728, 27_164, 28_724, 31_724, 37_020, 41_496, 45_088, 56_164, 65_752, 71_192,
                82_456, 94_720, 172_000, 253_668, 323_308,
            ],
        ),
        (
            "braid, 40 B again",
            [
                11_520, 23_996, 26_044, 29_112, 33_356, 40_248, 46_508, 50_120, 56_780, 65_600, 74_044,
                85_852, 97_908, 173_576, 253_328, 323_096,
            ],
        ),
        (
            "braid, 150 B",
            [
                11_620, 58_048, 67_648, 76_500, 85_396, 96_412, 115_940, 136_492, 154_856, 179_948, 210_672,
                247_544, 286_712, 548_632, 818_808, 1_079_132,
            ],
        ),
        (
            "braid, 300 B",
            [
                11_452, 81_156, 98_196, 108_656, 135_524, 153_636, 178_152, 211_320, 244_284, 291_268,
                341_020, 401_124, 474_540, 924_964, 1_383_772, 1_830_612,
            ],
        ),
        (
            "braid, 600 B",
            [
                11_528, 137_632, 160_172, 182_728, 212_552, 248_272, 296_544, 346_764, 406_720, 480_888,
                571_008, 671_372, 789_724, 1_558_268, 2_329_116, 3_089_332,
            ],
        ),
    ];

    #[test]
    fn what_was_measured_at_four_million_keys_is_forecast_from_one_million() {
        for (server, kibibytes) in MEASURED {
            let class = Class::new("string", 1);
            let levels = [0].into_iter().chain(populations(1_000_000));
            let sample = |(level, kibibytes): (u64, &u64)| MemorySample {
                keys: vec![(class.clone(), level)],
                resident_bytes: kibibytes * 1024,
            };
            let fit = fit(&levels.zip(&kibibytes).map(sample).collect::<Vec<_>>()).unwrap();
            for (n_keys, kibibytes) in [2_000_000, 3_000_000, 4_000_000].into_iter().zip(&kibibytes[13..]) {
                let error = fit.forecast(n_keys).resident_bytes.value / (kibibytes * 1024) as f64 - 1.0;
                assert!(error.abs() < 0.05, "{server} at {n_keys} keys: {error}: {fit:?}");
            }
        }
    }
}
