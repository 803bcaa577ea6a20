//! The search for the few parts of an input that cause a difference.

use std::time::{Duration, Instant};

/// The longest time of one search.
const PATIENCE: Duration = Duration::from_secs(10);

/// The length from which on every length is tried, at every place.
const SHORT: usize = 12;

/// Removes parts as long as the rest `is_failing`, in shorter and shorter runs.
pub fn shrink<T: Clone>(mut parts: Vec<T>, mut is_failing: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let deadline = Instant::now() + PATIENCE;
    let mut length = parts.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        while at < parts.len() && Instant::now() < deadline {
            let end = (at + length).min(parts.len());
            let fewer = [&parts[..at], &parts[end..]].concat();
            if is_failing(&fewer) {
                parts = fewer;
            } else {
                at += if length > SHORT { length } else { 1 };
            }
        }
        length = if length > SHORT { length.div_ceil(2) } else { length - 1 };
    }
    parts
}
