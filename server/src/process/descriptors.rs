//! File descriptors: how many the process may have, and for how many clients that is enough.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::config::Config;

/// Descriptors that are neither clients' nor threads': as many as Redis keeps for listeners, files and the
/// like.
const RESERVED: u64 = 32;

/// Those of a thread: its event queue, and what wakes it.
const A_THREAD: u64 = 2;

/// How many connections the metrics port may have.
pub const METRICS_CONNECTIONS_MAX: usize = 32;

/// Lets the process have descriptors for so many clients, and says for how many it may have them: so many, or
/// fewer.
pub fn room_for_clients(n_clients: u32, n_threads: usize, config: &Config) -> u32 {
    let of_metrics = if config.metrics_port == 0 { 0 } else { METRICS_CONNECTIONS_MAX };
    let own = RESERVED + A_THREAD * n_threads as u64 + of_metrics as u64;
    let wanted = own + u64::from(n_clients);
    let limits = || getrlimit(Resource::RLIMIT_NOFILE);
    let Ok((soft, hard)) = limits() else { return n_clients };
    if soft < wanted {
        // An administrator may lift the hard limit, too.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    }
    let (soft, _) = limits().unwrap_or((soft, hard));
    soft.saturating_sub(own).min(u64::from(n_clients)) as u32
}
