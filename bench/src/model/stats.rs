//! Means, medians and ratios of a few measurements, each with its confidence interval.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// The confidence of every interval in this crate.
pub const LEVEL: f64 = 0.95;

/// A figure and the interval that it lies in with a confidence of [`LEVEL`].
///
/// An end that nothing bounds is infinite, which JSON writes as `null`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure itself.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Estimate {
    /// Returns whether `figure` lies within the interval, ends included.
    pub fn contains(&self, figure: f64) -> bool {
        (self.low..=self.high).contains(&figure)
    }

    /// Returns the same estimate in another unit, or under any other function that grows.
    pub fn map(self, growing: impl Fn(f64) -> f64) -> Self {
        Self { value: growing(self.value), low: growing(self.low), high: growing(self.high) }
    }

    /// Returns half the interval's width as a share of the figure.
    pub fn relative_error(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.value.abs()
    }
}

/// Returns the median: the middle sample, or the mean of the middle two.
///
/// It is `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// Returns the quantile at `share` of the samples; `None` without samples.
///
/// Between two samples it follows a straight line.
pub fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// Returns the mean with Student's interval; `None` for fewer than two samples.
pub fn mean(samples: &[f64]) -> Option<Estimate> {
    let (mean, deviation) = moments(samples)?;
    let half = student(samples.len() - 1) * deviation / (samples.len() as f64).sqrt();
    Some(Estimate { value: mean, low: mean - half, high: mean + half })
}

/// Returns the geometric mean of `first / second` over runs in pairs.
///
/// Its interval is Student's on the logarithms. Pairs that ran in turns share most disturbances, so the
/// interval is narrower than that of two separate means. Logarithms make `ratio(a, b)` and `ratio(b, a)` each
/// other's inverse. The result is `None` for fewer than two pairs, or for a figure that is not above zero.
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    if pairs.iter().any(|&(first, second)| !(first > 0.0 && second > 0.0)) {
        return None;
    }
    let logarithms: Vec<f64> = pairs.iter().map(|(first, second)| (first / second).ln()).collect();
    Some(mean(&logarithms)?.map(f64::exp))
}

/// Returns any statistic of the samples with its bias-corrected bootstrap interval.
///
/// The method is Efron's of 1987, without acceleration. It serves figures without a formula, such as a median
/// or a percentile of runs. With fewer than about ten samples its interval is too narrow, and [`mean`] of
/// logarithms serves better. Equal seeds return equal intervals. The result is `None` for fewer than two
/// samples.
pub fn bootstrap(samples: &[f64], seed: u64, statistic: impl Fn(&[f64]) -> f64) -> Option<Estimate> {
    const RESAMPLES: usize = 2000;
    if samples.len() < 2 {
        return None;
    }
    let value = statistic(samples);
    let mut random = fastrand::Rng::with_seed(seed);
    let resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<f64> = samples.iter().map(|_| samples[random.usize(..samples.len())]).collect();
            statistic(&drawn)
        })
        .collect();

    // Half of the equal ones count as below. Otherwise a median that repeats a sample would seem biased.
    let below = resampled.iter().filter(|&&other| other < value).count() as f64;
    let equal = resampled.iter().filter(|&&other| other == value).count() as f64;
    let share = ((below + equal / 2.0) / RESAMPLES as f64).clamp(1e-3, 1.0 - 1e-3);
    let normal = Normal::standard();
    let bias = normal.inverse_cdf(share);
    let end = |tail: f64| quantile(&resampled, normal.cdf(2.0 * bias + normal.inverse_cdf(tail)));
    Some(Estimate { value, low: end((1.0 - LEVEL) / 2.0)?, high: end((1.0 + LEVEL) / 2.0)? })
}

/// Returns the mean and the standard deviation of a sample; `None` for fewer than two.
pub(super) fn moments(samples: &[f64]) -> Option<(f64, f64)> {
    let n = samples.len() as f64;
    if n < 2.0 {
        return None;
    }
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    Some((mean, (squares / (n - 1.0)).sqrt()))
}

/// Returns the number of standard errors from the figure to either end of its interval.
///
/// The error is estimated with this many degrees of freedom.
///
/// # Panics
///
/// If there are none: an error cannot be estimated then.
pub(super) fn student(degrees_of_freedom: usize) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, degrees_of_freedom as f64)
        .expect("an estimated error has degrees of freedom");
    distribution.inverse_cdf((1.0 + LEVEL) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() <= 1e-3 * right.abs().max(1e-9)
    }

    #[test]
    fn medians_of_odd_even_and_no_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
    }

    #[test]
    fn student_agrees_with_the_printed_table() {
        for (freedom, printed) in [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (120, 1.980)] {
            assert!(close(student(freedom), printed), "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn mean_of_a_textbook_sample() {
        let estimate = mean(&[9.0, 10.0, 11.0, 12.0, 13.0]).unwrap();
        assert!(close(estimate.value, 11.0));
        assert!(close(estimate.high - 11.0, 1.9632), "{estimate:?}");
        assert_eq!(mean(&[1.0]), None);
    }

    #[test]
    fn ratio_is_the_inverse_of_the_ratio_the_other_way() {
        let pairs = [(100.0, 50.0), (210.0, 100.0), (95.0, 49.0)];
        let there = ratio(&pairs).unwrap();
        let back = ratio(&pairs.map(|(first, second)| (second, first))).unwrap();
        assert!(there.contains(2.0));
        assert!(close(there.value * back.value, 1.0) && close(there.low * back.high, 1.0));
        assert_eq!(ratio(&[(1.0, 0.0), (1.0, 1.0)]), None);
    }

    #[test]
    fn pairs_cancel_what_both_runs_share() {
        let drift = [1.0, 1.5, 0.7, 1.2, 0.9];
        let pairs: Vec<_> =
            drift.iter().zip([1.01, 0.99, 1.0, 1.02, 0.98]).map(|(d, e)| (3.0 * d * e, *d)).collect();
        let estimate = ratio(&pairs).unwrap();
        assert!(estimate.contains(3.0) && estimate.relative_error() < 0.03, "{estimate:?}");
    }

    /// Draws about normally, for tests that count how often an interval contains the true value.
    fn normal(random: &mut fastrand::Rng) -> f64 {
        (0..12).map(|_| random.f64()).sum::<f64>() - 6.0
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(7);
        let trials = 400;
        let (mut means, mut medians) = (0, 0);
        for seed in 0..trials {
            let samples: Vec<f64> = (0..25).map(|_| 100.0 + normal(&mut random)).collect();
            means += u32::from(mean(&samples[..6]).unwrap().contains(100.0));
            let estimate = bootstrap(&samples, seed, |drawn| median(drawn).unwrap()).unwrap();
            medians += u32::from(estimate.contains(100.0));
        }
        assert!((0.92..=0.98).contains(&(f64::from(means) / trials as f64)), "{means}");
        assert!((0.90..=0.99).contains(&(f64::from(medians) / trials as f64)), "{medians}");
    }

    #[test]
    fn bootstrap_repeats_with_its_seed() {
        let samples = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 30.0];
        let middle = |drawn: &[f64]| median(drawn).unwrap();
        assert_eq!(bootstrap(&samples, 1, middle), bootstrap(&samples, 1, middle));
        assert!(bootstrap(&samples, 1, middle).unwrap().contains(5.5));
    }
}
