//! Reduces an episode that ends in a difference to the few steps that cause it.
//!
//! Leaving out steps may cause another difference, because the remaining steps no longer fit together. So the
//! same command must be answered differently, and in the same way.

use std::time::{Duration, Instant};

use super::{
    pair::Pair,
    step::{Difference, Step},
};

/// The longest duration of the search.
const PATIENCE: Duration = Duration::from_secs(30);

/// Leaves out superfluous steps. Returns none if playing the steps again shows no difference.
pub fn shrink(pair: &mut Pair, steps: Vec<Step>) -> Option<(Vec<Step>, Difference)> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = replay(pair, steps)?;
    let original = (name_of_last(&found.0), found.1.clone());
    let mut chunk = found.0.len().div_ceil(2);
    loop {
        let n_before = found.0.len();
        let mut at = 0;
        while at < found.0.len() && Instant::now() < deadline {
            let end = (at + chunk).min(found.0.len());
            let fewer = [&found.0[..at], &found.0[end..]].concat();
            match replay(pair, fewer) {
                Some(shorter) if is_alike(&original, &shorter) => found = shorter,
                _ => at = end,
            }
        }
        if chunk == 1 && (found.0.len() == n_before || Instant::now() >= deadline) {
            return Some(found);
        }
        chunk = chunk.div_ceil(2);
    }
}

/// Plays steps from the beginning. Returns those up to the first difference.
fn replay(pair: &mut Pair, mut steps: Vec<Step>) -> Option<(Vec<Step>, Difference)> {
    pair.reset();
    let difference = pair.play(&steps).err()?;
    steps.truncate(difference.at + 1);
    Some((steps, difference))
}

fn name_of_last(steps: &[Step]) -> String {
    steps.last().map_or(String::new(), Step::name)
}

fn is_alike(original: &(String, Difference), found: &(Vec<Step>, Difference)) -> bool {
    original.0 == name_of_last(&found.0)
        && without_digits(&original.1.ours) == without_digits(&found.1.ours)
        && without_digits(&original.1.theirs) == without_digits(&found.1.theirs)
}

/// Removes the numbers from a reply, because times and the like change with every run.
fn without_digits(reply: &str) -> String {
    let mut kept: Vec<char> = reply.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    kept.dedup_by(|next, before| *next == '#' && *before == '#');
    kept.into_iter().collect()
}
