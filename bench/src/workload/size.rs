//! Sizes of keys and values, in bytes, and times to live, in seconds.

use std::fmt;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Distribution;
use rand_distr::LogNormal;
use rand_distr::weighted::WeightedAliasIndex;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::BenchError;

/// The largest size: Redis accepts no longer string.
const LARGEST: u64 = 512 * 1024 * 1024;
/// The cap of a log-normal size, as a multiple of its mean. A single sample then cannot fill a machine.
const LOG_NORMAL_CAP: f64 = 100.0;

/// The distribution of a size, sample by sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Size {
    /// A constant size: `32`.
    Fixed(u64),
    /// All sizes of a range, equally often: `{ range = { min = 10, max = 100 } }`, both included.
    Range {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// Some sizes by weight: `{ weighted = [[32, 0.9], [4096, 0.1]] }`.
    Weighted(Vec<(u64, f64)>),
    /// Log-normal: `{ log_normal = { mean = 400, sigma = 0.8 } }`.
    LogNormal {
        /// Mean of the sizes themselves.
        mean: f64,
        /// Standard deviation of the sizes' natural logarithm.
        sigma: f64,
    },
}

/// The form of a [`Size`] in a file when it is not a plain number.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Described {
    Range { min: u64, max: u64 },
    Weighted(Vec<(u64, f64)>),
    LogNormal { mean: f64, sigma: f64 },
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.clone() {
            Self::Fixed(size) => size.serialize(serializer),
            Self::Range { min, max } => Described::Range { min, max }.serialize(serializer),
            Self::Weighted(sizes) => Described::Weighted(sizes).serialize(serializer),
            Self::LogNormal { mean, sigma } => Described::LogNormal { mean, sigma }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl<'de> Visitor<'de> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or one of range, weighted and log_normal")
    }

    fn visit_i64<E: serde::de::Error>(self, size: i64) -> Result<Size, E> {
        u64::try_from(size).map(Size::Fixed).map_err(|_| E::custom("a size is not negative"))
    }

    fn visit_u64<E>(self, size: u64) -> Result<Size, E> {
        Ok(Size::Fixed(size))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Size, A::Error> {
        Ok(match Described::deserialize(MapAccessDeserializer::new(map))? {
            Described::Range { min, max } => Size::Range { min, max },
            Described::Weighted(sizes) => Size::Weighted(sizes),
            Described::LogNormal { mean, sigma } => Size::LogNormal { mean, sigma },
        })
    }
}

impl Size {
    /// Returns the mean of many samples.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(size) => *size as f64,
            Self::Range { min, max } => f64::midpoint(*min as f64, *max as f64),
            Self::Weighted(sizes) => {
                let total: f64 = sizes.iter().map(|(_, weight)| weight).sum();
                sizes.iter().map(|(size, weight)| *size as f64 * weight).sum::<f64>() / total
            }
            Self::LogNormal { mean, .. } => *mean,
        }
    }

    /// Makes a sampler. `place` is the field's name.
    pub(super) fn sampler(&self, place: &str) -> Result<SizeSampler, BenchError> {
        let sampler = match self {
            Self::Fixed(size) => SizeSampler::Fixed(*size),
            Self::Range { min, max } if min <= max => SizeSampler::Range { min: *min, max: *max },
            Self::Range { .. } => return Err(BenchError::workload(place, "min is above max")),
            Self::Weighted(sizes) => {
                let (sizes, weights): (Vec<_>, Vec<_>) = sizes.iter().copied().unzip();
                let index = WeightedAliasIndex::new(weights).map_err(|error| {
                    BenchError::workload(place, format!("the weights make no distribution: {error}"))
                })?;
                SizeSampler::Weighted { sizes, index }
            }
            Self::LogNormal { mean, sigma } => {
                let is_sound = mean.is_finite() && *mean > 0.0 && sigma.is_finite() && *sigma >= 0.0;
                let distribution = LogNormal::new(mean.ln() - sigma * sigma / 2.0, *sigma)
                    .ok()
                    .filter(|_| is_sound)
                    .ok_or_else(|| {
                        BenchError::workload(place, "mean must be above 0 and sigma at least 0")
                    })?;
                SizeSampler::LogNormal { distribution, largest: ((mean * LOG_NORMAL_CAP) as u64).max(1) }
            }
        };
        if sampler.largest() > LARGEST {
            Err(BenchError::workload(place, "beyond 512 MiB"))
        } else {
            Ok(sampler)
        }
    }
}

/// Draws sizes.
#[derive(Debug, Clone)]
pub(super) enum SizeSampler {
    Fixed(u64),
    Range { min: u64, max: u64 },
    Weighted { sizes: Vec<u64>, index: WeightedAliasIndex<f64> },
    LogNormal { distribution: LogNormal<f64>, largest: u64 },
}

impl SizeSampler {
    /// Returns the size of every sample, if there is only one.
    pub(super) fn fixed(&self) -> Option<u64> {
        if let Self::Fixed(size) = self { Some(*size) } else { None }
    }

    /// Returns the upper bound of the samples.
    pub(super) fn largest(&self) -> u64 {
        match self {
            Self::Fixed(size) => *size,
            Self::Range { max, .. } => *max,
            Self::Weighted { sizes, .. } => sizes.iter().copied().max().unwrap_or(0),
            Self::LogNormal { largest, .. } => *largest,
        }
    }

    #[inline]
    pub(super) fn sample(&self, random: &mut SmallRng) -> u64 {
        match self {
            Self::Fixed(size) => *size,
            Self::Range { min, max } => random.random_range(*min..=*max),
            Self::Weighted { sizes, index } => sizes[index.sample(random)],
            Self::LogNormal { distribution, largest } => {
                (distribution.sample(random).round() as u64).clamp(1, *largest)
            }
        }
    }

    /// Returns the sample for number `index`, always the same.
    pub(super) fn of_index(&self, index: u64) -> u64 {
        self.fixed().unwrap_or_else(|| self.sample(&mut SmallRng::seed_from_u64(index)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const N_SAMPLES: usize = 20_000;

    fn samples(size: &Size, seed: u64) -> Vec<f64> {
        let sampler = size.sampler("size").expect("the size makes sense");
        let mut random = SmallRng::seed_from_u64(seed);
        (0..N_SAMPLES).map(|_| sampler.sample(&mut random) as f64).collect()
    }

    fn mean(figures: &[f64]) -> f64 {
        figures.iter().sum::<f64>() / figures.len() as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn log_normal_has_its_mean_and_sigma(mean_bytes in 100.0..10_000.0, sigma in 0.1..1.0, seed: u64) {
            let found = samples(&Size::LogNormal { mean: mean_bytes, sigma }, seed);
            // The bound is five times the mean's own deviation, which is mean * sqrt(exp(sigma^2) - 1) /
            // sqrt(n).
            let bound = 5.0 * mean_bytes * ((sigma * sigma).exp_m1() / N_SAMPLES as f64).sqrt() + 0.5;
            prop_assert!((mean(&found) - mean_bytes).abs() < bound, "mean {} of {mean_bytes}", mean(&found));
            let logs: Vec<_> = found.iter().map(|size| size.ln()).collect();
            let centre = mean(&logs);
            let deviation = mean(&logs.iter().map(|log| (log - centre).powi(2)).collect::<Vec<_>>()).sqrt();
            prop_assert!((deviation / sigma - 1.0).abs() < 0.05, "sigma {deviation} of {sigma}");
        }

        #[test]
        fn a_range_keeps_its_bounds_and_its_middle(min in 0_u64..1000, width in 0_u64..1000, seed: u64) {
            let found = samples(&Size::Range { min, max: min + width }, seed);
            prop_assert!(found.iter().all(|&size| (min as f64..=(min + width) as f64).contains(&size)));
            prop_assert!((mean(&found) - (min as f64 + width as f64 / 2.0)).abs() <= 0.02 * width as f64);
        }

        #[test]
        fn weights_are_kept(weight in 0.05..0.95, seed: u64) {
            let found = samples(&Size::Weighted(vec![(1, weight), (0, 1.0 - weight)]), seed);
            prop_assert!((mean(&found) - weight).abs() < 0.02);
            prop_assert!((Size::Weighted(vec![(1, weight), (0, 1.0 - weight)]).mean() - weight).abs() < 1e-9);
        }
    }

    #[test]
    fn the_smallest_mean_still_makes_sizes() {
        assert!(samples(&Size::LogNormal { mean: 0.001, sigma: 1.0 }, 1).iter().all(|&size| size == 1.0));
    }

    #[test]
    fn an_index_has_one_size() {
        let sampler = Size::Range { min: 0, max: 1000 }.sampler("size").expect("it makes sense");
        assert_eq!(sampler.of_index(7), sampler.of_index(7));
        assert!((0..20).any(|index| sampler.of_index(index) != sampler.of_index(0)));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let sizes = [
            Size::Range { min: 2, max: 1 },
            Size::Weighted(Vec::new()),
            Size::Weighted(vec![(1, -1.0)]),
            Size::LogNormal { mean: 0.0, sigma: 1.0 },
            Size::LogNormal { mean: 10.0, sigma: -1.0 },
            Size::Fixed(LARGEST + 1),
        ];
        assert!(sizes.iter().all(|size| size.sampler("size").is_err()));
    }
}
