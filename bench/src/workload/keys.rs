//! The choice of keys, and their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};
use serde::{Deserialize, Serialize};

use super::size::{Size, SizeSampler};
use crate::error::BenchError;

/// A number of digits that is enough for new keys: a million of them a second for eleven days.
const ENOUGH_DIGITS: usize = 12;

/// The key space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// The number of keys.
    pub count: u64,
    /// The prefix of each key.
    pub prefix: String,
    /// Bytes of a key, including the prefix; digits fill the rest.
    ///
    /// Each key has its own size, the same in every run. A size too small for prefix and number is raised.
    pub size: Size,
    /// The frequency with which each key is requested.
    pub pattern: Pattern,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            count: 100_000,
            prefix: String::from("key:"),
            size: Size::Fixed(16),
            pattern: Pattern::Uniform,
        }
    }
}

/// The distribution of requests over the keys.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pattern {
    /// All keys are equally frequent.
    Uniform,
    /// Key `i`, counted from 0, is requested in proportion to `1 / (i + 1)^exponent`.
    Zipf {
        /// The exponent. 0 is uniform; 0.99 is customary for caches.
        exponent: f64,
    },
    /// A few keys take most requests.
    HotSpot {
        /// The share of hot keys, from 0 to 1; at least one key is hot.
        keys: f64,
        /// The share of requests that ask for a hot key.
        requests: f64,
    },
    /// Keys are requested in order, and from the start again.
    Sequential,
    /// The newest key is the most frequent, and older ones follow Zipf's law. `{new_key}` makes newer ones.
    Latest {
        /// The exponent, as for `Zipf`.
        exponent: f64,
    },
}

impl Pattern {
    /// Returns the share of requests for the most requested of `n_keys` keys, 0 to 1.
    pub fn hottest_share(self, n_keys: u64) -> f64 {
        // Above this rank, the sum is replaced by the integral of the law.
        const N_SUMMED: u64 = 10_000;
        match self {
            Self::Uniform | Self::Sequential => 1.0 / n_keys as f64,
            Self::HotSpot { keys, requests } => requests / (n_keys as f64 * keys).max(1.0).floor(),
            Self::Zipf { exponent } | Self::Latest { exponent } => {
                let n_summed = n_keys.min(N_SUMMED);
                let head: f64 = (1..=n_summed).map(|rank| (rank as f64).powf(-exponent)).sum();
                let (from, to) = (n_summed as f64, n_keys as f64);
                let tail = if (exponent - 1.0).abs() < 1e-9 {
                    (to / from).ln()
                } else {
                    (to.powf(1.0 - exponent) - from.powf(1.0 - exponent)) / (1.0 - exponent)
                };
                1.0 / (head + tail)
            }
        }
    }
}

/// Draws key numbers for one worker.
#[derive(Debug, Clone)]
pub(super) struct KeySampler {
    choice: Choice,
    n_keys: u64,
    /// The number of the next new key; shared by all workers.
    next_new: Arc<AtomicU64>,
}

#[derive(Debug, Clone)]
enum Choice {
    Uniform,
    Zipf(Zipf<f64>),
    HotSpot { n_hot: u64, requests: f64 },
    Sequential { next: u64, step: u64 },
    Latest(Zipf<f64>),
}

impl KeySampler {
    /// Makes a sampler.
    ///
    /// A sequence begins at `first` and continues by steps of `n_workers`. Each worker begins at another key.
    pub(super) fn new(
        keys: &Keys,
        next_new: Arc<AtomicU64>,
        first: u64,
        n_workers: u64,
    ) -> Result<Self, BenchError> {
        if keys.count == 0 {
            return Err(BenchError::workload("keys.count", "there must be at least one key"));
        }
        let zipf = |exponent: f64| {
            Zipf::new(keys.count as f64, exponent)
                .ok()
                .filter(|_| exponent.is_finite())
                .ok_or_else(|| BenchError::workload("keys.pattern", "the exponent must be at least 0"))
        };
        let choice = match keys.pattern {
            Pattern::Uniform => Choice::Uniform,
            Pattern::Zipf { exponent } => Choice::Zipf(zipf(exponent)?),
            Pattern::Latest { exponent } => Choice::Latest(zipf(exponent)?),
            Pattern::Sequential => Choice::Sequential { next: first % keys.count, step: n_workers },
            Pattern::HotSpot { keys: share, requests } => {
                if !(0.0..=1.0).contains(&share) || !(0.0..=1.0).contains(&requests) {
                    return Err(BenchError::workload("keys.pattern", "shares are from 0 to 1"));
                }
                let n_hot = ((keys.count as f64 * share) as u64).clamp(1, keys.count);
                Choice::HotSpot { n_hot, requests }
            }
        };
        Ok(Self { choice, n_keys: keys.count, next_new })
    }

    #[inline]
    pub(super) fn sample(&mut self, random: &mut SmallRng) -> u64 {
        match &mut self.choice {
            Choice::Uniform => random.random_range(0..self.n_keys),
            Choice::Zipf(zipf) => rank(zipf, random),
            Choice::HotSpot { n_hot, requests } => {
                let is_hot = *n_hot == self.n_keys || random.random::<f64>() < *requests;
                if is_hot { random.random_range(0..*n_hot) } else { random.random_range(*n_hot..self.n_keys) }
            }
            Choice::Sequential { next, step } => {
                let key = *next;
                *next = (key + *step) % self.n_keys;
                key
            }
            Choice::Latest(zipf) => {
                (self.next_new.load(Ordering::Relaxed) - 1).saturating_sub(rank(zipf, random))
            }
        }
    }

    /// Returns a key that no request has named.
    pub(super) fn new_key(&self) -> u64 {
        self.next_new.fetch_add(1, Ordering::Relaxed)
    }
}

fn rank(zipf: &Zipf<f64>, random: &mut SmallRng) -> u64 {
    zipf.sample(random) as u64 - 1
}

/// Writes keys' names.
#[derive(Debug, Clone)]
pub(super) struct KeyNames {
    prefix: Vec<u8>,
    size: SizeSampler,
    /// The number of digits for the largest key number.
    min_digits: usize,
}

impl KeyNames {
    pub(super) fn new(keys: &Keys) -> Result<Self, BenchError> {
        let min_digits = (keys.count.max(2) - 1).ilog10() as usize + 1;
        Ok(Self {
            prefix: keys.prefix.clone().into_bytes(),
            size: keys.size.sampler("keys.size")?,
            min_digits,
        })
    }

    /// Returns the length of every name, if all have the same.
    ///
    /// New keys could outgrow it unless there are enough digits.
    pub(super) fn fixed_len(&self, makes_new_keys: bool) -> Option<usize> {
        let size = self.size.fixed()? as usize;
        let n_digits = if makes_new_keys { self.min_digits.max(ENOUGH_DIGITS) } else { self.min_digits };
        (size >= self.prefix.len() + n_digits).then_some(size)
    }

    /// Appends the name of key `index`: the prefix and the number with leading zeros.
    #[inline]
    pub(super) fn append(&self, index: u64, out: &mut Vec<u8>) {
        let size = self.size.of_index(index) as usize;
        let n_needed = index.max(1).ilog10() as usize + 1;
        let n_digits = size.saturating_sub(self.prefix.len()).max(self.min_digits).max(n_needed);
        out.extend_from_slice(&self.prefix);
        let at = out.len();
        out.resize(at + n_digits, b'0');
        write_digits(&mut out[at..], index);
    }
}

/// Writes `number` into the end of `out`, which is filled with zeros and long enough.
#[inline]
fn write_digits(out: &mut [u8], number: u64) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;
    use crate::workload::Size;

    const N_SAMPLES: usize = 60_000;

    fn sampler(count: u64, pattern: Pattern) -> KeySampler {
        let keys = Keys { count, pattern, ..Keys::default() };
        KeySampler::new(&keys, Arc::new(AtomicU64::new(count)), 0, 1).expect("the pattern makes sense")
    }

    fn counts(count: u64, pattern: Pattern, seed: u64) -> Vec<f64> {
        let mut sampler = sampler(count, pattern);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut counts = vec![0.0; count as usize];
        (0..N_SAMPLES).for_each(|_| counts[sampler.sample(&mut random) as usize] += 1.0);
        counts
    }

    /// Returns the exponent for which the samples are most likely.
    ///
    /// There the mean of `ln rank` equals the law's own. It is found by halving, because that mean falls as
    /// the exponent grows.
    fn fitted_exponent(counts: &[f64]) -> f64 {
        let logs: Vec<_> = (1..=counts.len()).map(|rank| (rank as f64).ln()).collect();
        let total: f64 = counts.iter().sum();
        let observed = counts.iter().zip(&logs).map(|(count, log)| count * log).sum::<f64>() / total;
        let expected = |exponent: f64| {
            let weights: Vec<_> = logs.iter().map(|log| (-exponent * log).exp()).collect();
            weights.iter().zip(&logs).map(|(weight, log)| weight * log).sum::<f64>()
                / weights.iter().sum::<f64>()
        };
        let (mut low, mut high) = (0.0, 5.0);
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if expected(middle) > observed { low = middle } else { high = middle }
        }
        low
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn zipf_has_its_exponent(exponent in 0.3..1.8, count in 200_u64..5000, seed: u64) {
            let found = fitted_exponent(&counts(count, Pattern::Zipf { exponent }, seed));
            prop_assert!((found - exponent).abs() < 0.03, "{found} of {exponent}");
        }

        #[test]
        fn a_hot_spot_takes_its_share(keys in 0.01..0.5, requests in 0.5..0.99, seed: u64) {
            let counts = counts(1000, Pattern::HotSpot { keys, requests }, seed);
            let hot: f64 = counts[..(1000.0 * keys) as usize].iter().sum();
            prop_assert!((hot / N_SAMPLES as f64 - requests).abs() < 0.02);
        }

        #[test]
        fn names_sort_as_their_numbers_and_have_their_size(index in 0_u64..1_000_000) {
            let names = KeyNames::new(&Keys { count: 1_000_000, ..Keys::default() }).expect("the size makes sense");
            let mut name = Vec::new();
            names.append(index, &mut name);
            prop_assert_eq!(name, format!("key:{index:012}").into_bytes());
        }
    }

    #[test]
    fn the_hottest_key_has_the_share_it_says() {
        let patterns = [
            Pattern::Uniform,
            Pattern::Zipf { exponent: 0.99 },
            Pattern::Zipf { exponent: 1.0 },
            Pattern::HotSpot { keys: 0.00001, requests: 0.5 },
        ];
        for pattern in patterns {
            let found = counts(20_000, pattern, 1)[0] / N_SAMPLES as f64;
            let share = pattern.hottest_share(20_000);
            assert!((found - share).abs() < 0.005, "{pattern:?}: {found} of {share}");
        }
    }

    #[test]
    fn uniform_is_even() {
        let counts = counts(100, Pattern::Uniform, 1);
        assert!(counts.iter().all(|count| (count / 600.0 - 1.0).abs() < 0.25));
    }

    #[test]
    fn a_sequence_is_divided_between_workers() {
        let keys = Keys { count: 7, pattern: Pattern::Sequential, ..Keys::default() };
        let next_new = Arc::new(AtomicU64::new(7));
        let mut random = SmallRng::seed_from_u64(1);
        let mut seen: Vec<_> = (0..3)
            .flat_map(|worker| {
                let mut sampler =
                    KeySampler::new(&keys, next_new.clone(), worker, 3).expect("it makes sense");
                let n_own = (7 - worker).div_ceil(3);
                (0..n_own).map(|_| sampler.sample(&mut random)).collect::<Vec<_>>()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
    }

    #[test]
    fn the_latest_pattern_follows_new_keys() {
        let mut sampler = sampler(1000, Pattern::Latest { exponent: 1.2 });
        let mut random = SmallRng::seed_from_u64(1);
        (0..5000).for_each(|_| assert!(sampler.new_key() >= 1000));
        let n_new = (0..1000).filter(|_| sampler.sample(&mut random) >= 5900).count();
        assert!(n_new > 600, "{n_new} of 1000 asked for the newest hundred");
    }

    #[test]
    fn a_name_grows_when_its_size_is_too_small() {
        let names = KeyNames::new(&Keys { count: 1000, size: Size::Fixed(3), ..Keys::default() });
        let mut name = Vec::new();
        names.expect("the size makes sense").append(42, &mut name);
        assert_eq!(name, b"key:042");
    }
}
