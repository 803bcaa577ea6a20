//! The processors on which a thread runs (`server-cpulist`, `bio-cpulist`).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{config::Config, warning};

/// Keeps the calling thread on some processors. An empty list keeps it nowhere.
pub fn stay_on(processors: &[usize]) {
    if processors.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    if let Err(error) = sched_setaffinity(None, &set) {
        warning!("A thread cannot be kept on the processors {processors:?}: {error}");
    }
}

/// Checks that each list of the configuration names a processor that the process may use.
///
/// # Errors
/// The processors of which none can be used, in words for the log.
pub fn check(config: &Config) -> Result<(), String> {
    let Ok(allowed) = sched_getaffinity(None) else { return Ok(()) };
    for list in [&config.server_cpulist, &config.bio_cpulist] {
        if !list.is_empty() && !list.iter().any(|&processor| allowed.is_set(processor)) {
            return Err(format!(
                "Threads cannot be kept on the processors {list:?}: the process may use none of them"
            ));
        }
    }
    Ok(())
}
