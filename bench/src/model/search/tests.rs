//! The search against simulated servers with known answers.

use std::convert::Infallible;

use super::*;

/// A queue with exponential arrivals and services, M/M/1.
///
/// Response times are exponential with mean `1 / (mu - rate)`.
struct Queue {
    /// Services a second.
    capacity: f64,
    /// The difference of capacity between windows, as a share.
    noise: f64,
    /// One window in `n` is disturbed by a third of the capacity; 0 for none.
    disturbed: usize,
    /// The highest rate that the client can send.
    client: f64,
    random: fastrand::Rng,
    n_windows: usize,
}

impl Queue {
    fn new(capacity: f64) -> Self {
        Self {
            capacity,
            noise: 0.0,
            disturbed: 0,
            client: f64::INFINITY,
            random: fastrand::Rng::with_seed(1),
            n_windows: 0,
        }
    }

    /// Windows that differ by `noise` and are disturbed now and then.
    fn noisy(noise: f64, seed: u64) -> Self {
        Self { noise, disturbed: 20, random: fastrand::Rng::with_seed(seed), ..Self::new(100_000.0) }
    }

    /// The rate at which a percentile of response times is just `micros`.
    fn rate_at(&self, percentile: f64, micros: f64) -> f64 {
        self.capacity + (1.0 - percentile / 100.0).ln() * 1e6 / micros
    }
}

impl Probe for Queue {
    type Error = Infallible;

    fn measure(&mut self, rate: f64) -> Result<Window, Infallible> {
        self.n_windows += 1;
        let normal: f64 = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
        let disturbed = self.disturbed > 0 && self.random.usize(..self.disturbed) == 0;
        let capacity = self.capacity * (1.0 + self.noise * normal) * if disturbed { 0.67 } else { 1.0 };
        let sent = rate.min(self.client);
        let achieved = sent.min(capacity);
        let mean_us = if sent < capacity { 1e6 / (capacity - sent) } else { 1e6 };
        let percentiles_us = [50.0, 99.0, 99.9]
            .map(|percentile: f64| (percentile, -mean_us * (1.0 - percentile / 100.0).ln()));
        Ok(Window {
            offered: rate,
            achieved,
            errors: 0,
            unsent: if achieved < rate { ((rate - achieved) * 2.0) as u64 } else { 0 },
            client_limited: rate > self.client,
            percentiles_us: percentiles_us.to_vec(),
        })
    }
}

fn slo() -> Slo {
    "p99=1ms".parse().unwrap()
}

fn found(probe: &mut impl Probe<Error = Infallible>, bounds: &Bounds) -> Found {
    let Ok(found) = search(probe, &slo(), bounds, &mut |_| ());
    found
}

#[test]
fn a_quiet_queue_gives_the_rate_of_its_formula() {
    for capacity in [20_000.0, 123_456.0, 3e6] {
        let mut queue = Queue::new(capacity);
        let truth = queue.rate_at(99.0, 1000.0);
        let found = found(&mut queue, &Bounds::default());
        assert!((found.rate.value / truth - 1.0).abs() < 0.01, "{} of {truth}", found.rate.value);
        assert!(found.rate.contains(truth));
        assert_eq!(found.limit, LimitedBy::Server);
        assert!(queue.n_windows < 80, "{} windows", queue.n_windows);
    }
}

#[test]
fn the_knee_of_the_queue_is_at_half_its_capacity() {
    let found = found(&mut Queue::new(100_000.0), &Bounds { n_curve: 20, ..Bounds::default() });
    let knee = found.knee.unwrap();
    assert!(knee.rate.contains(50_000.0), "{knee:?}");
    assert!((knee.rate.value / 50_000.0 - 1.0).abs() < 0.06, "{knee:?}");
}

#[test]
fn the_start_may_be_above_the_rate_found() {
    let mut queue = Queue::new(50_000.0);
    let truth = queue.rate_at(99.0, 1000.0);
    let found = found(&mut queue, &Bounds { start: 10e6, ..Bounds::default() });
    assert!(found.rate.contains(truth), "{:?}", found.rate);
    assert_eq!(found.breach, Some(Breach::Latency { percentile: 99.0 }));
}

#[test]
fn five_searches_of_a_noisy_server_stay_within_the_interval_of_each() {
    let rates: Vec<Estimate> =
        (1..=5).map(|seed| found(&mut Queue::noisy(0.01, seed), &Bounds::default()).rate).collect();
    for interval in &rates {
        for other in &rates {
            assert!(interval.contains(other.value), "{} is not within {interval:?}", other.value);
        }
    }
}

#[test]
fn the_interval_holds_another_search_as_often_as_it_says() {
    for (noise, widest) in [(0.003, 0.021), (0.01, 0.022), (0.03, 0.035)] {
        let rates: Vec<Estimate> =
            (0..80).map(|seed| found(&mut Queue::noisy(noise, seed), &Bounds::default()).rate).collect();
        let pairs = || rates.iter().flat_map(|one| rates.iter().map(move |other| (one, other)));
        let inside = pairs().filter(|(interval, other)| interval.contains(other.value)).count();
        let share = inside as f64 / pairs().count() as f64;
        assert!(share >= stats::LEVEL - 0.02, "{share} at a noise of {noise}");
        let widths: Vec<f64> = rates.iter().map(Estimate::relative_error).collect();
        let width = stats::median(&widths).unwrap();
        assert!(width < widest, "± {width} at a noise of {noise}");
    }
}

#[test]
fn a_server_that_never_breaks_has_a_lower_bound() {
    let found = found(&mut Queue::new(f64::MAX), &Bounds { highest: 1e6, ..Bounds::default() });
    assert_eq!(found.limit, LimitedBy::Highest);
    assert_eq!((found.rate.value, found.rate.low, found.rate.high), (1e6, 1e6, f64::INFINITY));
    assert!(found.is_lower_bound() && found.breach.is_none());
}

#[test]
fn a_server_that_is_always_broken_has_no_rate() {
    let found = found(&mut Queue::new(1.0), &Bounds::default());
    assert_eq!(found.limit, LimitedBy::Lowest);
    assert_eq!((found.rate.value, found.rate.low, found.rate.high), (0.0, 0.0, 10.0));
    assert!(found.knee.is_none() && !found.is_lower_bound());
}

#[test]
fn a_limited_client_gives_a_lower_bound() {
    let mut queue = Queue { client: 40_000.0, ..Queue::new(1e6) };
    let found = found(&mut queue, &Bounds::default());
    assert_eq!(found.limit, LimitedBy::Client);
    assert!((found.rate.value / 40_000.0 - 1.0).abs() < 0.03, "{:?}", found.rate);
    assert_eq!(found.rate.high, f64::INFINITY);
    assert!(found.curve(99.0).iter().all(|point| point.rate <= 40_000.0));
}

#[test]
fn a_client_that_is_limited_from_the_first_window_is_the_limit_too() {
    let found = found(&mut Queue { client: 0.0, ..Queue::new(1e6) }, &Bounds::default());
    assert_eq!(found.limit, LimitedBy::Client);
    assert_eq!((found.rate.value, found.rate.high), (0.0, f64::INFINITY));
}

#[test]
fn windows_break_on_errors_unsent_requests_and_falling_behind() {
    let window = Window {
        offered: 1000.0,
        achieved: 1000.0,
        errors: 0,
        unsent: 0,
        client_limited: false,
        percentiles_us: vec![(99.0, 1000.0)],
    };
    let slo = slo();
    assert_eq!(slo.judge(&window), WindowVerdict::Kept);
    assert_eq!(slo.judge(&Window { errors: 1, ..window.clone() }), WindowVerdict::Broken(Breach::Errors));
    assert_eq!(
        slo.clone().with_max_errors(1).judge(&Window { errors: 1, ..window.clone() }),
        WindowVerdict::Kept
    );
    assert_eq!(slo.judge(&Window { unsent: 1, ..window.clone() }), WindowVerdict::Broken(Breach::Unsent));
    assert_eq!(
        slo.judge(&Window { achieved: 979.0, ..window.clone() }),
        WindowVerdict::Broken(Breach::Behind)
    );
    assert_eq!(
        slo.judge(&Window { achieved: f64::NAN, ..window.clone() }),
        WindowVerdict::Broken(Breach::Behind)
    );
    let late = Window { percentiles_us: vec![(99.0, 1000.1)], ..window.clone() };
    assert_eq!(slo.judge(&late), WindowVerdict::Broken(Breach::Latency { percentile: 99.0 }));
    assert_eq!(slo.judge(&Window { client_limited: true, ..late }), WindowVerdict::ClientLimited);
    assert_eq!(slo.judge(&Window { client_limited: true, ..window.clone() }), WindowVerdict::Kept);
    let unmeasured = Window { percentiles_us: vec![(50.0, 1.0)], ..window };
    assert_eq!(slo.judge(&unmeasured), WindowVerdict::Broken(Breach::Unmeasured { percentile: 99.0 }));
}

#[test]
fn targets_are_read_as_people_write_them() {
    let slo: Slo = "p99=1ms, p99.9=2.5ms,max=1s".parse().unwrap();
    let micros = Duration::from_micros;
    assert_eq!(slo.targets(), [(99.0, micros(1000)), (99.9, micros(2500)), (100.0, micros(1_000_000))]);
    assert_eq!(slo.to_string(), "p99=1ms,p99.9=2ms 500us,p100=1s");
    assert_eq!(slo.to_string().parse(), Ok(slo));
    assert_eq!("p99".parse::<Slo>(), Err(SloError::Form("p99".to_owned())));
    assert_eq!("p101=1ms".parse::<Slo>(), Err(SloError::Percentile("p101".to_owned())));
    assert_eq!("p0=1ms".parse::<Slo>(), Err(SloError::Percentile("p0".to_owned())));
    assert_eq!("p99=soon".parse::<Slo>(), Err(SloError::Time("soon".to_owned())));
    assert_eq!("p99=0ms".parse::<Slo>(), Err(SloError::Time("0ms".to_owned())));
}

#[test]
fn progress_hears_of_every_window_and_an_error_ends_the_search() {
    struct Failing(u32);
    impl Probe for Failing {
        type Error = &'static str;
        fn measure(&mut self, rate: f64) -> Result<Window, &'static str> {
            self.0 = self.0.checked_sub(1).ok_or("refused")?;
            let Ok(window) = Queue::new(1e5).measure(rate);
            Ok(window)
        }
    }
    let mut heard = 0;
    let result = search(&mut Failing(7), &slo(), &Bounds::default(), &mut |_| heard += 1);
    assert_eq!((result.unwrap_err(), heard), ("refused", 7));
}

#[test]
fn what_is_found_is_written_as_json_with_null_for_what_nothing_bounds() {
    let found = found(&mut Queue { client: 40_000.0, ..Queue::new(1e6) }, &Bounds::default());
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["limit"], "client");
    assert!(json["rate"]["high"].is_null() && json["rate"]["low"].is_f64());
    assert_eq!(json["steps"][0]["phase"], "climb");
    assert_eq!(serde_json::to_value(slo()).unwrap()["targets"], "p99=1ms");
}
