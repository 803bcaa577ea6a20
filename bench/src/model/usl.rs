//! The Universal Scalability Law: throughput against threads, connections or nodes, and its peak.
//!
//! `X(n) = lambda n / (1 + sigma (n - 1) + kappa n (n - 1))` (Gunther, *Guerrilla Capacity Planning*, 2007).
//! Lambda is the throughput of one, sigma the share of work that is serial, and kappa the cost of keeping
//! each pair in agreement.
//!
//! `n / X` is linear in `1/lambda`, `sigma/lambda` and `kappa/lambda`, and the fit starts there. It continues
//! by Gauss and Newton's method to the least squares of the *logarithms*, because a throughput's error is a
//! share of it. No parameter may be negative, so a server that scales better than in proportion shows a sigma
//! of zero.

use serde::Serialize;

use super::least_squares::{self, Solution};
use super::stats::{self, Estimate};

/// The law as fitted to measurements.
#[derive(Debug, Clone, Serialize)]
pub struct UslFit {
    /// Throughput of one.
    pub lambda: Estimate,
    /// Contention: the share that is serial.
    pub sigma: Estimate,
    /// Coherency: the cost of each pair.
    pub kappa: Estimate,
    /// The share of the throughputs' variance that the law explains.
    pub r2: f64,
    /// The least and greatest n measured.
    pub measured: (f64, f64),
    #[serde(skip)]
    solution: Solution,
}

/// The n with the greatest throughput.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Peak {
    /// The count at the peak.
    ///
    /// The interval combines the ends of sigma's and kappa's, so it tends to be too wide rather than too
    /// narrow.
    pub n: Estimate,
    /// The throughput there.
    pub throughput: f64,
    /// Whether the peak lies beyond the measured counts.
    pub extrapolated: bool,
}

/// A throughput that the law predicts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// The prediction.
    pub value: f64,
    /// The lower end of the interval for a measurement.
    pub low: f64,
    /// The upper end of the interval for a measurement.
    pub high: f64,
    /// Whether n lies outside the measured counts. There the interval rests on the law alone.
    pub extrapolated: bool,
}

/// The reason why there is no fit.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum UslError {
    /// There are too few points for three parameters and an error.
    #[error(
        "the scalability law needs at least four measurements at three different counts; there are {n_points} at {n_counts}"
    )]
    TooFew {
        /// Measurements given.
        n_points: usize,
        /// Different values of n among them.
        n_counts: usize,
    },
    /// A point that is no measurement.
    #[error("({n}, {throughput}) is no measurement: both must be above zero")]
    NotPositive {
        /// The count.
        n: f64,
        /// The throughput.
        throughput: f64,
    },
    /// The points fall faster than the law can, so no throughput of one fits them.
    #[error("the measurements do not follow the scalability law: throughput falls too fast with the count")]
    Unfit,
}

/// Fits the law to points of n and throughput.
///
/// # Errors
///
/// If there are fewer than four points or three different n, or a figure is not above zero. The points may
/// also fall faster than the law can.
pub fn fit(points: &[(f64, f64)]) -> Result<UslFit, UslError> {
    let is_positive = |figure: f64| figure > 0.0 && figure.is_finite();
    if let Some(&(n, throughput)) = points.iter().find(|&&(n, x)| !is_positive(n) || !is_positive(x)) {
        return Err(UslError::NotPositive { n, throughput });
    }
    let mut counts: Vec<f64> = points.iter().map(|point| point.0).collect();
    counts.sort_by(f64::total_cmp);
    counts.dedup();
    let (n_points, n_counts) = (points.len(), counts.len());
    if n_points < 4 || n_counts < 3 {
        return Err(UslError::TooFew { n_points, n_counts });
    }

    let solution = solve(points).ok_or(UslError::Unfit)?;
    let [a, b, c] = [0, 1, 2].map(|column| solution.coefficients[column]);
    if a <= 0.0 {
        return Err(UslError::Unfit);
    }
    let reach = stats::student(solution.degrees_of_freedom);
    let half = |gradient: [f64; 3]| reach * solution.variance(&gradient).sqrt();
    let not_negative =
        |value: f64, half: f64| Estimate { value, low: (value - half).max(0.0), high: value + half };
    let half_a = half([1.0, 0.0, 0.0]);
    let slowest = a - half_a;
    let lambda = Estimate {
        value: 1.0 / a,
        low: 1.0 / (a + half_a),
        high: if slowest > 0.0 { 1.0 / slowest } else { f64::INFINITY },
    };
    let sigma = not_negative(b / a, half([-b / (a * a), 1.0 / a, 0.0]));
    let kappa = not_negative(c / a, half([-c / (a * a), 0.0, 1.0 / a]));
    let measured = (counts[0], counts[n_counts - 1]);
    let mut fit = UslFit { lambda, sigma, kappa, r2: 0.0, measured, solution };
    fit.r2 = fit.explained(points);
    Ok(fit)
}

impl UslFit {
    /// Returns the n with the greatest throughput, if there is one.
    ///
    /// Without kappa, throughput rises without end, although ever more slowly. Where all work is serial, the
    /// peak is at one.
    pub fn peak(&self) -> Option<Peak> {
        let at = |sigma: f64, kappa: f64| match (1.0 - sigma).max(0.0) {
            0.0 => 1.0,
            parallel => (parallel / kappa).sqrt().max(1.0),
        };
        if self.kappa.value <= 0.0 && self.sigma.value < 1.0 {
            return None;
        }
        let value = at(self.sigma.value, self.kappa.value);
        let n = Estimate {
            value,
            low: at(self.sigma.high, self.kappa.high),
            high: if self.kappa.low > 0.0 { at(self.sigma.low, self.kappa.low) } else { f64::INFINITY },
        };
        let throughput = value / self.cost(value);
        Some(Peak { n, throughput, extrapolated: self.is_extrapolated(value) })
    }

    /// Predicts the throughput of a measurement at `n`.
    pub fn at(&self, n: f64) -> Prediction {
        let cost = self.cost(n);
        // The variance of the curve, and that of one more measurement.
        let variance = self.solution.variance(&terms(n)) + self.solution.residual_variance() * cost * cost;
        let half = stats::student(self.solution.degrees_of_freedom) * variance.sqrt();
        // Under this law nothing scales better than in proportion.
        let proportional = self.lambda.high * n.max(1.0);
        let high = if cost > half { (n / (cost - half)).min(proportional) } else { proportional };
        let value = n / cost;
        Prediction {
            value,
            low: n / (cost + half),
            high: high.max(value),
            extrapolated: self.is_extrapolated(n),
        }
    }

    /// n over throughput.
    fn cost(&self, n: f64) -> f64 {
        cost(&self.solution.coefficients, n)
    }

    fn is_extrapolated(&self, n: f64) -> bool {
        !(self.measured.0..=self.measured.1).contains(&n)
    }

    fn explained(&self, points: &[(f64, f64)]) -> f64 {
        let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
        let total: f64 = points.iter().map(|point| (point.1 - mean).powi(2)).sum();
        let left: f64 = points.iter().map(|&(n, x)| (x - n / self.cost(n)).powi(2)).sum();
        if total > 0.0 { 1.0 - left / total } else { 0.0 }
    }
}

/// Finds the coefficients of `n / X` with the least squares of X's logarithms.
fn solve(points: &[(f64, f64)]) -> Option<Solution> {
    let start: Vec<f64> = points.iter().map(|(n, throughput)| n / throughput).collect();
    let squares = |coefficients: &[f64]| -> f64 {
        points.iter().map(|&(n, throughput)| (n / throughput / cost(coefficients, n)).ln().powi(2)).sum()
    };
    let mut solution = step(points, &start, |_| 1.0)?;
    let mut least = squares(&solution.coefficients);
    for _ in 0..100 {
        let costs: Vec<f64> = points.iter().map(|&(n, _)| cost(&solution.coefficients, n)).collect();
        // To first order, ln(cost) changes by the change of cost over cost. Cost is its own such change.
        let full = step(points, &costs, |row| 1.0 + (points[row].0 / points[row].1 / costs[row]).ln())?;
        let shares = (0..30).map(|halvings| 0.5_f64.powi(halvings));
        let better = shares
            .map(|share| -> Vec<f64> {
                let ways = solution.coefficients.iter().zip(&full.coefficients);
                ways.map(|(from, to)| from + share * (to - from)).collect()
            })
            .find(|coefficients| squares(coefficients) < least);
        let improved = better.as_deref().map_or(least, &squares);
        let was = std::mem::replace(&mut least, improved);
        solution = full.at(better.unwrap_or(solution.coefficients), improved);
        if was - improved <= 1e-12 * was {
            break;
        }
    }
    Some(solution)
}

/// Solves for the coefficients with each row divided by its cost.
fn step(points: &[(f64, f64)], costs: &[f64], target: impl Fn(usize) -> f64) -> Option<Solution> {
    let row = |(&(n, _), cost): (&(f64, f64), &f64)| terms(n).iter().map(|term| term / cost).collect();
    let rows: Vec<Vec<f64>> = points.iter().zip(costs).map(row).collect();
    let targets: Vec<f64> = (0..points.len()).map(target).collect();
    least_squares::non_negative(&rows, &targets).ok()
}

fn cost(coefficients: &[f64], n: f64) -> f64 {
    coefficients.iter().zip(terms(n)).map(|(coefficient, term)| coefficient * term).sum()
}

fn terms(n: f64) -> [f64; 3] {
    [1.0, n - 1.0, n * (n - 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0];

    fn law(n: f64, [lambda, sigma, kappa]: [f64; 3]) -> f64 {
        lambda * n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))
    }

    fn points(parameters: [f64; 3], noise: f64, seed: u64) -> Vec<(f64, f64)> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        COUNTS.iter().map(|&n| (n, law(n, parameters) * (noise * normal()).exp())).collect()
    }

    #[test]
    fn parameters_are_recovered_from_exact_points() {
        for parameters in [
            [1e5, 0.05, 0.001],
            [995.6, 0.02671, 0.000_769],
            [3.0, 0.0, 0.01],
            [1e6, 0.2, 0.0],
            [7e4, 0.0, 0.0],
        ] {
            let fit = fit(&points(parameters, 0.0, 1)).unwrap();
            let found = [fit.lambda, fit.sigma, fit.kappa];
            for (estimate, truth) in found.iter().zip(parameters) {
                assert!((estimate.value - truth).abs() <= 1e-6 * truth.max(1e-3), "{estimate:?} of {truth}");
            }
            assert!(fit.r2 > 1.0 - 1e-9);
        }
    }

    #[test]
    fn intervals_hold_the_parameters_as_often_as_they_say() {
        let truth = [1e5, 0.05, 0.001];
        let trials = 300;
        let mut inside = [0; 5];
        for seed in 0..trials {
            let fit = fit(&points(truth, 0.03, seed)).unwrap();
            let mut random = fastrand::Rng::with_seed(seed + 1_000_000);
            let error: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let next = law(40.0, truth) * (0.03 * error).exp();
            let prediction = fit.at(40.0);
            let peak = fit.peak().map(|peak| peak.n.contains((0.95_f64 / 0.001).sqrt()));
            let held = [
                fit.lambda.contains(truth[0]),
                fit.sigma.contains(truth[1]),
                fit.kappa.contains(truth[2]),
                (prediction.low..=prediction.high).contains(&next),
                peak.unwrap_or(false),
            ];
            inside.iter_mut().zip(held).for_each(|(count, held)| *count += u32::from(held));
        }
        for count in inside {
            let share = f64::from(count) / trials as f64;
            assert!((0.92..=1.0).contains(&share), "{inside:?}");
        }
    }

    #[test]
    fn parameters_are_never_negative() {
        for seed in 0..100 {
            for truth in [[1e5, 0.0, 0.0], [1e5, 0.0, 1e-3], [1e5, 0.3, 0.0]] {
                let fit = fit(&points(truth, 0.1, seed)).unwrap();
                for estimate in [fit.lambda, fit.sigma, fit.kappa] {
                    assert!(
                        estimate.low >= 0.0
                            && estimate.low <= estimate.value
                            && estimate.value <= estimate.high
                    );
                }
            }
        }
    }

    #[test]
    fn better_than_proportional_is_no_contention() {
        let fit = fit(&[(1.0, 100.0), (2.0, 210.0), (4.0, 450.0), (8.0, 950.0)]).unwrap();
        assert_eq!((fit.sigma.value, fit.kappa.value), (0.0, 0.0));
        assert_eq!(fit.peak(), None);
    }

    #[test]
    fn the_peak_is_where_the_law_has_its_maximum() {
        let parameters = [1e5, 0.05, 0.001];
        let peak = fit(&points(parameters, 0.0, 1)).unwrap().peak().unwrap();
        assert!((peak.n.value - 30.822).abs() < 0.01, "{peak:?}");
        assert!(!peak.extrapolated);
        assert!(peak.throughput > law(30.0, parameters) && peak.throughput > law(31.6, parameters));
    }

    #[test]
    fn throughput_that_only_falls_is_greatest_at_one() {
        let fit = fit(&[(1.0, 1000.0), (1.0, 1010.0), (2.0, 900.0), (3.0, 880.0), (3.0, 870.0)]).unwrap();
        assert!(fit.sigma.value > 1.0 && fit.kappa.value == 0.0, "{fit:?}");
        let peak = fit.peak().unwrap();
        assert_eq!((peak.n.value, peak.n.low, peak.extrapolated), (1.0, 1.0, false));
        assert!((peak.throughput / 1000.0 - 1.0).abs() < 0.05, "{peak:?}");
    }

    #[test]
    fn predictions_beyond_the_points_are_marked_and_less_certain() {
        let fit = fit(&points([1e5, 0.05, 0.0005], 0.02, 5)).unwrap();
        let (within, beyond) = (fit.at(16.0), fit.at(128.0));
        assert!(!within.extrapolated && beyond.extrapolated && fit.at(0.5).extrapolated);
        assert!((beyond.high - beyond.low) / beyond.value > (within.high - within.low) / within.value);
    }

    #[test]
    fn a_few_points_and_figures_that_are_none_are_refused() {
        let few = fit(&[(1.0, 10.0), (2.0, 19.0), (4.0, 30.0)]).unwrap_err();
        assert_eq!(few, UslError::TooFew { n_points: 3, n_counts: 3 });
        assert!(few.to_string().contains("at least four measurements at three different counts"));
        let same = [(1.0, 10.0), (1.0, 11.0), (2.0, 19.0), (2.0, 20.0)];
        assert_eq!(fit(&same).unwrap_err(), UslError::TooFew { n_points: 4, n_counts: 2 });
        let zero = [(1.0, 10.0), (2.0, 0.0), (4.0, 30.0), (8.0, 40.0)];
        assert_eq!(fit(&zero).unwrap_err(), UslError::NotPositive { n: 2.0, throughput: 0.0 });
        let falling = [(10.0, 1e6), (20.0, 1e5), (40.0, 1e4), (80.0, 1e3)];
        assert_eq!(fit(&falling).unwrap_err(), UslError::Unfit);
    }
}
