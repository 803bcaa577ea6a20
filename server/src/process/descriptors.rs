//! File descriptors: the process's limit, and the number of clients for which it suffices.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;

/// Descriptors of neither clients nor threads.
///
/// Redis reserves as many for listeners, files and similar uses.
const RESERVED: u64 = 32;

/// The descriptors of a thread: its event queue and its waker.
const A_THREAD: u64 = 2;

/// The maximum of connections at the metrics port.
pub const METRICS_CONNECTIONS_MAX: usize = 32;

/// Raises the process's limit of descriptors for `n_clients` clients. Returns for how many it suffices, at
/// most `n_clients`.
pub fn room_for_clients(n_clients: u32, n_threads: usize, config: &Config) -> u32 {
    let of_metrics = if config.metrics_port == 0 { 0 } else { METRICS_CONNECTIONS_MAX };
    let own = RESERVED + A_THREAD * n_threads as u64 + of_metrics as u64;
    let wanted = own + u64::from(n_clients);
    let limits = || getrlimit(Resource::RLIMIT_NOFILE);
    let Ok((soft, hard)) = limits() else { return n_clients };
    if soft < wanted {
        // An administrator may raise the hard limit, too.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    }
    let (soft, _) = limits().unwrap_or((soft, hard));
    soft.saturating_sub(own).min(u64::from(n_clients)) as u32
}
