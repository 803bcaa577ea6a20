//! The process's score for the system's out-of-memory killer (`oom-score-adj`).

use std::{
    fs, io,
    sync::atomic::{AtomicI32, Ordering},
};

use crate::config::{Config, OomScoreAdj};

const PATH: &str = "/proc/self/oom_score_adj";

/// The bounds of a score in Linux.
const SCORES: std::ops::RangeInclusive<i32> = -1000..=1000;

/// The score with which the process started. The first adjustment sets it, before other threads start.
static STARTED_WITH: AtomicI32 = AtomicI32::new(i32::MIN);

/// Adjusts the score as configured. Without an adjustment the score of the start returns.
///
/// # Errors
/// The refusal of the system: a score below that of the start needs a privilege.
pub fn adjust(config: &Config) -> io::Result<()> {
    let before = read()?;
    let is_first = STARTED_WITH.load(Ordering::Relaxed) == i32::MIN;
    if is_first {
        STARTED_WITH.store(before, Ordering::Relaxed);
    }
    let start = STARTED_WITH.load(Ordering::Relaxed);
    let [primary, ..] = config.oom_score_adj_values.map(i32::from);
    let wanted = match config.oom_score_adj {
        OomScoreAdj::No => start,
        OomScoreAdj::Yes | OomScoreAdj::Relative => start + primary,
        OomScoreAdj::Absolute => primary,
    };
    let wanted = wanted.clamp(*SCORES.start(), *SCORES.end());
    if wanted == before { Ok(()) } else { fs::write(PATH, wanted.to_string()) }
}

fn read() -> io::Result<i32> {
    let text = fs::read_to_string(PATH)?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{PATH}: {text}")))
}
